// libFuzzer's entry points: `jforge_fuzz --target=NAME [libFuzzer's own flags] FOLDERS`.

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "tests/fuzz/fuzz_targets.h"

namespace {

const jforge::FuzzTarget* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  constexpr std::string_view kFlag = "--target=";
  for (int i = 1; i < *count; ++i) {
    const std::string_view argument = (*arguments)[i];
    if (argument.starts_with(kFlag)) {
      for (const jforge::FuzzTarget& target : jforge::fuzz_targets()) {
        chosen = target.name == argument.substr(kFlag.size()) ? &target : chosen;
      }
    }
  }
  if (chosen == nullptr) {
    std::cerr << "expected --target=NAME, one of:";
    for (const jforge::FuzzTarget& target : jforge::fuzz_targets()) {
      std::cerr << ' ' << target.name;
    }
    std::cerr << '\n';
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  jforge::run_target(*chosen, {data, size});
  return 0;
}
