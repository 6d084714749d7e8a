#include "tests/cuda_emulator/mutants.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_set>

#include "tests/cuda_emulator/device_memory.h"

namespace jforge::emulator {

namespace {

bool listing() {
  static const bool set = std::getenv("JFORGE_EMULATED_LIST") != nullptr;
  return set;
}
const std::string& omitted() {
  static const std::string site = [] {
    const char* const value = std::getenv("JFORGE_EMULATED_OMIT");
    return std::string(value == nullptr ? "" : value);
  }();
  return site;
}

}  // namespace

void mutate(Kernel& kernel) {
  if (!listing() && omitted().empty()) {
    return;
  }
  unsigned number = 0;
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    Instruction& instruction = kernel.code[i];
    if (instruction.flow != Flow::block_barrier) {
      continue;
    }
    const std::string site = kernel.name + ":" + std::to_string(number++);
    if (listing()) {
      std::fprintf(stderr, "barrier %s PTX line %u\n", site.c_str(), kernel.lines[i]);
    }
    if (site == omitted()) {
      instruction.flow = Flow::plain;
      instruction.execute = [](Warp& /*warp*/, const Instruction& /*own*/, LaneMask /*lanes*/) {};
    }
  }
}

bool leaves_out_wait(const char* call) {
  if (!listing() && !omitted().starts_with(call)) {
    return false;
  }
  // The calls that led here, without this one and the library's.
  constexpr int kOwn = 2;
  constexpr int kDeep = 8;
  std::array<void*, kOwn + kDeep> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  std::string places;
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (int i = kOwn; i < count; ++i) {
    Dl_info info{};
    void* const frame = frames[static_cast<std::size_t>(i)];
    if (dladdr(frame, &info) == 0 || info.dli_fbase == nullptr) {
      continue;
    }
    const std::string object = info.dli_fname;
    if (object.find("libc.so") != std::string::npos) {
      break;
    }
    const auto offset =
        reinterpret_cast<std::uint64_t>(frame) - reinterpret_cast<std::uint64_t>(info.dli_fbase);
    hash = (hash ^ offset) * 0x100000001b3ULL;
    hash ^= hash >> 31;
    places += " " + object + "+" + hexadecimal(offset);
  }
  const std::string site = call + (":" + hexadecimal(hash).substr(2));
  if (listing()) {
    static auto& listed = *new std::unordered_set<std::string>;
    if (listed.insert(site).second) {
      std::fprintf(stderr, "wait %s%s\n", site.c_str(), places.c_str());
    }
  }
  return site == omitted();
}

}  // namespace jforge::emulator
