#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "workers/evaluate/sandbox/sandbox.h"

namespace jforge {

/// Null, with the reason, if the machine allows none.
struct SharedSandbox {
  std::unique_ptr<Sandbox> sandbox;
  std::string refusal;
};

inline SharedSandbox& shared_sandbox(SandboxKind kind) {
  static std::map<SandboxKind, SharedSandbox> sandboxes;
  const auto [place, made] = sandboxes.try_emplace(kind);
  if (made) {
    try {
      SandboxOptions options;
      options.kind = kind;
      place->second.sandbox = std::make_unique<Sandbox>(options);
    } catch (const EnvironmentError& error) {
      place->second.refusal = error.what();
    }
  }
  return place->second;
}

/// If Python runs in a tool's namespaces for an ordinary user, a sandbox must start.
inline bool works_without_us(SandboxKind kind) {
  const std::string user =
      geteuid() == 0 ? "setpriv --reuid=65534 --regid=65534 --clear-groups " : "";
  const std::string tool = kind == SandboxKind::bubblewrap
                               ? "/usr/bin/bwrap --unshare-user --unshare-pid --unshare-net "
                                 "--unshare-ipc --unshare-uts --ro-bind / / "
                               : "unshare --user --map-root-user --pid --fork --mount --net "
                                 "--ipc --uts ";
  const std::string program = "/usr/bin/python3 -I -c 'import numpy' >/dev/null 2>&1";
  return std::system((user + tool + program).c_str()) == 0;
}

class SandboxTest : public ::testing::TestWithParam<SandboxKind> {
 protected:
  void SetUp() override {
    const SharedSandbox& shared = shared_sandbox(GetParam());
    if (shared.sandbox == nullptr) {
      ASSERT_FALSE(works_without_us(GetParam())) << shared.refusal;
      GTEST_SKIP() << shared.refusal;
    }
    sandbox_ = shared.sandbox.get();
  }

  /// Limits that slow machines can meet.
  static CodeRunRequest request(std::string candidate, std::string check = {},
                                std::vector<std::string> calls = {}) {
    CodeRunRequest result;
    result.candidate = std::move(candidate);
    result.check = std::move(check);
    result.entry_point = "f";
    result.calls = std::move(calls);
    result.check_seconds = 60;
    result.total_seconds = 60;
    return result;
  }

  Sandbox* sandbox_ = nullptr;
};

inline std::string kind_name(const ::testing::TestParamInfo<SandboxKind>& info) {
  return info.param == SandboxKind::bubblewrap ? "bubblewrap" : "namespaces";
}

inline std::vector<std::string> processes_with(const std::string& word) {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const int file = open((entry->path() / "cmdline").c_str(), O_RDONLY | O_CLOEXEC);
    std::string line(1 << 17, '\0');  // The word follows the program's text on the command line.
    const ssize_t got = file < 0 ? 0 : read(file, line.data(), line.size());
    close(file);
    line.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (line.find(word) != std::string::npos) {
      found.push_back(entry->path().filename().string());
    }
  }
  return found;
}

inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

}  // namespace jforge
