#pragma once

/// Typed errors. Inside a rank every failure is an exception of one of these types; `main` turns it
/// into the documented exit code. Messages are one line: what happened, where, and how to mend it.

#include <source_location>
#include <stdexcept>
#include <string>

namespace jforge {

/// Process exit codes: part of the command-line contract, do not change the values.
enum class ExitCode : int {
  ok = 0,
  usage = 2,         ///< Bad command line or configuration.
  input_data = 3,    ///< Bad prompts, model files, checkpoints.
  environment = 4,   ///< MPI, GPU, disk, missing program.
  numerical = 5,     ///< NaN, Inf, divergence.
  internal = 70,     ///< A bug, or the hang watchdog.
  interrupted = 75,  ///< Stopped on request after a commit; run again to continue.
};

/// Base of every error thrown by the project.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ExitCode code() const noexcept { return code_; }
  /// Whether every rank throws this same error (failure_agreement.h), so that one of them is enough
  /// to report it.
  [[nodiscard]] bool on_all_ranks() const noexcept { return on_all_ranks_; }
  void set_on_all_ranks() noexcept { on_all_ranks_ = true; }
  /// Whether this rank's device or its link to the others is lost, so that they may wait for it
  /// where no error reaches them: no agreement can be had then (failure_agreement.h), the job ends.
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
/// Bad input data: names the file and, where there is one, the line or tensor (exit 3).
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(ExitCode::input_data, message) {}
};
/// The machine does not offer what is needed: disk full, directory not writable, missing program
/// (exit 4).
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
/// A broken invariant of our own (exit 70).
struct InternalError : Error {
  explicit InternalError(const std::string& message) : Error(ExitCode::internal, message) {}
};
/// A stop was requested and everything that must be durable is (exit 75).
struct Interrupted : Error {
  explicit Interrupted(const std::string& message) : Error(ExitCode::interrupted, message) {}
};

/// Throws InternalError naming the caller's place when `condition` is false. For invariants, not
/// for user input.
void expect(bool condition, const std::string& what,
            std::source_location where = std::source_location::current());
inline void expect(bool condition, const char* what,
                   std::source_location where = std::source_location::current()) {
  if (!condition) [[unlikely]] {
    expect(false, std::string(what), where);
  }
}

}  // namespace jforge
