#pragma once

/// Typed errors; `main` maps them to exit codes. A message is one line: what, where, how to fix it.

#include <source_location>
#include <stdexcept>
#include <string>

namespace jforge {

/// Part of the command-line contract: do not change the values.
enum class ExitCode : int {
  ok = 0,
  usage = 2,         ///< Bad command line or configuration.
  input_data = 3,    ///< Bad prompts, model files, checkpoints.
  environment = 4,   ///< MPI, GPU, disk, missing program.
  numerical = 5,     ///< NaN, Inf, divergence.
  internal = 70,     ///< A bug, or the hang watchdog.
  interrupted = 75,  ///< Stopped on request after a commit; run again to continue.
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ExitCode code() const noexcept { return code_; }
  /// Whether every rank throws this error (failure_agreement.h), so that one report is enough.
  [[nodiscard]] bool on_all_ranks() const noexcept { return on_all_ranks_; }
  void set_on_all_ranks() noexcept { on_all_ranks_ = true; }
  /// Whether this rank lost its device or link, so that the others may wait where no error reaches
  /// them. Then no agreement is possible (failure_agreement.h) and the job ends.
  [[nodiscard]] bool cut_off() const noexcept { return cut_off_; }
  void set_cut_off() noexcept { cut_off_ = true; }

 private:
  ExitCode code_;
  bool on_all_ranks_ = false;
  bool cut_off_ = false;
};

/// Bad command line or configuration (exit 2).
struct ConfigError : Error {
  explicit ConfigError(const std::string& message) : Error(ExitCode::usage, message) {}
};
/// Bad input data (exit 3). Names the file and, if any, the line or tensor.
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(ExitCode::input_data, message) {}
};
/// The machine lacks something: disk space, permission, a program (exit 4).
struct EnvironmentError : Error {
  explicit EnvironmentError(const std::string& message) : Error(ExitCode::environment, message) {}
};
/// Message passing failed or the ranks disagree (exit 4).
struct CommError : Error {
  explicit CommError(const std::string& message) : Error(ExitCode::environment, message) {}
};
/// NaN, Inf or divergence (exit 5).
struct NumericalError : Error {
  explicit NumericalError(const std::string& message) : Error(ExitCode::numerical, message) {}
};
/// A broken invariant (exit 70).
struct InternalError : Error {
  explicit InternalError(const std::string& message) : Error(ExitCode::internal, message) {}
};
/// Stopped on request; everything is durable (exit 75).
struct Interrupted : Error {
  explicit Interrupted(const std::string& message) : Error(ExitCode::interrupted, message) {}
};

/// Throws InternalError with the caller's location. For invariants, not for user input.
void expect(bool condition, const std::string& what,
            std::source_location where = std::source_location::current());
inline void expect(bool condition, const char* what,
                   std::source_location where = std::source_location::current()) {
  if (!condition) [[unlikely]] {
    expect(false, std::string(what), where);
  }
}

}  // namespace jforge
