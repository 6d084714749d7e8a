#pragma once

/// Runs untrusted Python programs.
///
/// Each run is one process in its own user, pid, mount, network, ipc and uts namespaces, made by
/// bubblewrap or our own code: a read-only view of system programs and libraries
/// (make_namespace_plan()), a small writable tmpfs, no network, no capabilities, a seccomp filter
/// (make_seccomp_filter()), limits on memory, CPU time, files, threads and output, and wall-clock
/// limits kept from outside. It cannot start processes; its output is discarded. When run()
/// returns, the process and all that it wrote are gone. Sandboxes also end if this process dies or
/// hangs: their first process (sandbox_init.c) kills the program when the pipe from here closes or
/// its time limit has passed.
///
/// Trust: harness.py loads the program as a module, confirms with a token, and only then receives a
/// nonce and the check, later the arguments of one call at a time. Unexpected bytes, an early exit
/// with any code, and a thread left after loading (checked from outside) are failures.
///  - Calls: expected values never enter the sandbox; returned values are compared outside.
///  - Check: the assertions run in the program's own process, as in every scorer of these
///    benchmarks. Nonce, token and the restoring of builtins, trace hooks and timers stop programs
///    that end early, print or write a verdict, leave threads or patch the interpreter. They cannot
///    stop a program made to cheat: one that returns objects equal to everything, or finds the
///    token in the interpreter's frames or memory and answers for the harness. No design that runs
///    both in one interpreter can.

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
  /// Empty: bubblewrap if it works, else our own namespaces.
  std::optional<SandboxKind> kind;
  std::filesystem::path bubblewrap = "/usr/bin/bwrap";
  std::filesystem::path interpreter = "/usr/bin/python3";
  std::vector<std::string> interpreter_options = {"-s", "-W", "ignore"};
  std::int64_t work_bytes = std::int64_t{64} << 20;   ///< Size of the writable directory.
  std::int64_t value_bytes = std::int64_t{64} << 20;  ///< JSON text of one call's value.
  /// Polled several times a second by the thread that runs a program; true ends it. Not used by the
  /// constructor.
  std::function<bool()> cancelled = {};
  /// Sign of life; called whenever `cancelled` is polled.
  std::function<void()> waiting = {};
};

/// The setup of all runs, without the kind of sandbox. Throws EnvironmentError without an
/// interpreter.
[[nodiscard]] SandboxSetup make_sandbox_setup(const SandboxOptions& options);

/// Thread-safe: every call of run() has its own process.
class Sandbox final : public CodeRunner {
 public:
  /// Tries a small program and numpy. Throws EnvironmentError, with advice, if the machine allows
  /// no sandbox (nothing ever runs without one) or lacks the interpreter or numpy.
  explicit Sandbox(const SandboxOptions& options = {});

  /// Throws Interrupted if SandboxOptions::cancelled ended the program.
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
