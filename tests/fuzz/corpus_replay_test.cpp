// Runs every corpus input whole, cut and with flipped bits, so that a fuzzer's findings stay found.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "runtime/read_file.h"
#include "tests/fuzz/fuzz_targets.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

fs::path corpus() {
  const char* source = std::getenv("JFORGE_SOURCE_DIR");
  return fs::path(source == nullptr ? "." : source) / "tests" / "fuzz" / "corpus";
}

void run(const FuzzTarget& target, const std::vector<std::uint8_t>& bytes) {
  EXPECT_NO_THROW(run_target(target, bytes));
}

TEST(FuzzCorpus, EveryInputIsReadOrRefused) {
  for (const FuzzTarget& target : fuzz_targets()) {
    SCOPED_TRACE(target.name);
    std::size_t inputs = 0;
    for (const auto& entry : fs::directory_iterator(corpus() / target.name)) {
      SCOPED_TRACE(entry.path());
      const std::string text = read_file(entry.path());
      const std::vector<std::uint8_t> bytes(text.begin(), text.end());
      run(target, bytes);
      constexpr std::size_t kVariants = 24;
      for (std::size_t i = 0; i < kVariants; ++i) {
        const std::size_t place = i * bytes.size() / kVariants;
        run(target, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(place)});
        std::vector<std::uint8_t> turned = bytes;
        if (!turned.empty()) {
          turned[place] = static_cast<std::uint8_t>(turned[place] ^ (1U << (i % 8)));
        }
        run(target, turned);
      }
      ++inputs;
    }
    EXPECT_GT(inputs, 0U);
  }
}

TEST(FuzzCorpus, EveryFolderHasItsTarget) {
  std::set<std::string> names;
  for (const FuzzTarget& target : fuzz_targets()) {
    names.insert(std::string(target.name));
  }
  for (const auto& entry : fs::directory_iterator(corpus())) {
    EXPECT_TRUE(names.contains(entry.path().filename().string())) << entry.path();
  }
}

}  // namespace
}  // namespace jforge
