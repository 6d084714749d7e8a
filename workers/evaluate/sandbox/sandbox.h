#pragma once

/// Runs Python programs that nobody trusts.
///
/// Each run is one process in user, pid, mount, network, ipc and uts namespaces of its own, made by
/// bubblewrap or, where that is missing, by our own code: a read-only view of the system's programs
/// and libraries (sandbox_layout.h: no /proc, /home, /etc/passwd or run directory), a small tmpfs
/// to write to, no network, no capabilities, a seccomp filter (seccomp_filter.h), limits on memory,
/// processor time, files, threads and output, and limits of wall-clock time kept from outside.
/// It cannot start other processes. Standard output and error go nowhere. When run() returns, the
/// process is gone, and with it everything it wrote. Should this process die, however that happens,
/// or stop for good, its sandboxes end too: the first process of each (sandbox_init.c) is not the
/// program, and ends it when the pipe from here closes or its own limit of time has passed.
///
/// What a verdict rests on. The interpreter runs harness.py, which loads the program as a module,
/// says so with a token, and only then gets a nonce and the check, and later the calls' arguments,
/// one at a time. Out-of-turn bytes, an early end with any exit code, and a thread left over from
/// loading (looked for from outside) are failures; output is never looked at.
///  - Calls: expected values never enter the program's sandbox; what comes back is compared outside
///    it. A program can return only what it computes.
///  - Check: the assertions run in the program's own process, as they do in every scorer of these
///    benchmarks. Nonce, token and the restoring of builtins, trace hooks and timers after loading
///    stop programs that end early, print or write a verdict, leave threads, or patch the
///    interpreter. They cannot stop a program made to cheat: one that returns objects equal to
///    everything, or that searches the interpreter's frames or memory for the token and then
///    speaks in the harness's place. No design does that runs both in one interpreter.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/tasks/code_runner.h"
#include "workers/evaluate/sandbox/sandbox_process.h"

namespace jforge {

enum class SandboxKind : std::uint8_t { bubblewrap, namespaces };

struct SandboxOptions {
  /// Empty: bubblewrap where it is installed and works here, else our own namespaces.
  std::optional<SandboxKind> kind;
  std::filesystem::path bubblewrap = "/usr/bin/bwrap";
  std::filesystem::path interpreter = "/usr/bin/python3";
  std::vector<std::string> interpreter_options = {"-s", "-W", "ignore"};
  std::int64_t work_bytes = std::int64_t{64} << 20;   ///< Of the directory a program may write to.
  std::int64_t value_bytes = std::int64_t{64} << 20;  ///< JSON text of one call's value.
  /// Asked several times a second while a program runs, from the thread that runs it; true ends the
  /// program. Not asked by the constructor.
  std::function<bool()> cancelled = {};
  /// Called whenever `cancelled` is asked: a program runs, and its limits are kept.
  std::function<void()> waiting = {};
};

/// What all runs with `options` have in common, but for the kind of sandbox. EnvironmentError when
/// the interpreter is missing.
[[nodiscard]] SandboxSetup make_sandbox_setup(const SandboxOptions& options);

/// Thread-safe: every thread that calls run() has a process of its own.
class Sandbox final : public CodeRunner {
 public:
  /// Tries a small program and numpy. EnvironmentError, saying how to mend it, when the machine
  /// allows no sandbox (nothing is ever run without one) or the interpreter or numpy is missing.
  explicit Sandbox(const SandboxOptions& options = {});

  /// Throws Interrupted when SandboxOptions::cancelled ended the program.
  [[nodiscard]] CodeRunResult run(const CodeRunRequest& request,
                                  const CodeValueSink& sink = {}) override;

  [[nodiscard]] SandboxKind kind() const {
    return setup_.bubblewrap ? SandboxKind::bubblewrap : SandboxKind::namespaces;
  }
  /// "bubblewrap, Python 3.11.2, numpy 1.24.2"
  [[nodiscard]] const std::string& description() const { return description_; }

 private:
  [[nodiscard]] std::string try_kind(SandboxKind kind);
  void probe_numpy();

  SandboxSetup setup_;
  std::string python_version_;
  std::string description_;
};

}  // namespace jforge
