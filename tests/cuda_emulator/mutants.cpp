#include "tests/cuda_emulator/mutants.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <unordered_set>
#include <vector>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/fault.h"

namespace jforge::emulator {

namespace {

/// −1: no list is wanted.
int list_file() {
  static const int file = [] {
    const char* const path = std::getenv("JFORGE_EMULATED_LIST");
    if (path == nullptr) {
      return -1;
    }
    const int opened = ::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (opened < 0) {
      throw Refusal(std::string("JFORGE_EMULATED_LIST: cannot write ") + path);
    }
    return opened;
  }();
  return file;
}
bool listing() { return list_file() >= 0; }

/// A single write, so that processes' lines do not mix.
void list(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(list_file(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Refusal("JFORGE_EMULATED_LIST: cannot write a line");
  }
}

const std::unordered_set<std::string>& omitted() {
  static const auto& all = *new std::unordered_set<std::string>([] {
    std::unordered_set<std::string> sites;
    const char* const value = std::getenv("JFORGE_EMULATED_OMIT");
    std::istringstream text(value == nullptr ? "" : value);
    for (std::string site; std::getline(text, site, ',');) {
      sites.insert(site);
    }
    return sites;
  }());
  return all;
}

std::string name_of(const std::string& text) {
  const std::size_t begin = text.front() == '@' ? text.find(' ') + 1 : 0;
  return text.substr(begin, text.find_first_of(" ;", begin) - begin);
}

bool uses_shared(const std::string& text) {
  const std::string name = name_of(text);
  // A copy arrives when it is waited for.
  if (name.find(".shared") != std::string::npos || name.starts_with("cp.async.wait")) {
    return true;
  }
  const bool access = name.starts_with("ld.") || name.starts_with("st.") ||
                      name.starts_with("atom.") || name.starts_with("red.");
  return access && name.find(".global") == std::string::npos &&
         name.find(".param") == std::string::npos && name.find(".local") == std::string::npos;
}

/// Before a barrier, from `start` along `next`.
bool reaches_shared(const Kernel& kernel, std::size_t start,
                    const std::vector<std::vector<std::size_t>>& next) {
  std::vector<bool> seen(kernel.code.size());
  std::vector<std::size_t> open = next[start];
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    if (seen[at] || kernel.code[at].flow == Flow::block_barrier) {
      continue;
    }
    seen[at] = true;
    if (uses_shared(kernel.text[at])) {
      return true;
    }
    open.insert(open.end(), next[at].begin(), next[at].end());
  }
  return false;
}

/// Finds barriers on one side of which shared memory is not accessed up to the next barrier or the
/// end.
std::vector<bool> idle_barriers(const Kernel& kernel) {
  std::vector<std::vector<std::size_t>> after(kernel.code.size());
  std::vector<std::vector<std::size_t>> before(kernel.code.size());
  const auto follow = [&](std::size_t from, std::size_t to) {
    if (to < kernel.code.size()) {
      after[from].push_back(to);
      before[to].push_back(from);
    }
  };
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    const Instruction& own = kernel.code[i];
    if (own.flow == Flow::branch) {
      follow(i, own.target);
    }
    if (own.guarded || (own.flow != Flow::branch && own.flow != Flow::exit)) {
      follow(i, i + 1);
    }
  }
  std::vector<bool> idle(kernel.code.size());
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    idle[i] = kernel.code[i].flow == Flow::block_barrier &&
              (!reaches_shared(kernel, i, after) || !reaches_shared(kernel, i, before));
  }
  return idle;
}

/// What can be omitted, by its letter in a site's name.
enum class Kind : char { block_barrier = 'b', warp_barrier = 'w', copy_wait = 'c', none = 0 };

Kind kind_of(const Kernel& kernel, std::size_t i) {
  if (kernel.code[i].flow == Flow::block_barrier) {
    return Kind::block_barrier;
  }
  const std::string name = name_of(kernel.text[i]);
  if (name == "bar.warp.sync") {
    return Kind::warp_barrier;
  }
  return name.starts_with("cp.async.wait") ? Kind::copy_wait : Kind::none;
}

}  // namespace

void mutate(Kernel& kernel) {
  if (!listing() && omitted().empty()) {
    return;
  }
  const std::vector<bool> idle = listing() ? idle_barriers(kernel) : std::vector<bool>();
  std::map<Kind, unsigned> numbers;
  for (std::size_t i = 0; i < kernel.code.size(); ++i) {
    Instruction& instruction = kernel.code[i];
    const Kind kind = kind_of(kernel, i);
    if (kind == Kind::none) {
      continue;
    }
    const std::string site =
        kernel.name + ":" + static_cast<char>(kind) + std::to_string(numbers[kind]++);
    if (listing()) {
      list("barrier " + site + " PTX line " + std::to_string(kernel.lines[i]) +
           (idle[i] ? " idle" : ""));
    }
    if (omitted().contains(site)) {
      instruction.flow = Flow::plain;
      instruction.execute = [](Warp& /*warp*/, const Instruction& /*own*/, LaneMask /*lanes*/) {};
    }
  }
}

bool leaves_out_wait(const char* call) {
  if (!listing() && omitted().empty()) {
    return false;
  }
  constexpr int kOwn = 2;
  constexpr int kDeep = 6;
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
      list("wait " + site + places);
    }
  }
  return omitted().contains(site);
}

}  // namespace jforge::emulator
