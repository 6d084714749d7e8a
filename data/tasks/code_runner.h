#pragma once

/// Interface between tasks, which say what to run and judge the results, and
/// workers/evaluate/sandbox, which confines the programs.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// One run of an untrusted Python program. Time limits are seconds of the program's own time, which
/// excludes waiting for a processor, so that other programs' load does not count.
struct CodeRunRequest {
  /// Source of the module under test.
  std::string candidate;
  /// Python run in the module's namespace after it has loaded without error: assertions. May be
  /// empty. It is not in the candidate's view while that loads.
  std::string check;
  /// Function of the module that is called once per element of `calls`, after `check`.
  std::string entry_point;
  /// Arguments per call: a Python expression over builtins that yields a list ("[1, (2, 3),
  /// float('inf')]").
  std::vector<std::string> calls;
  /// Seconds for loading and `check` together.
  double check_seconds = 3.0;
  /// Seconds per call. Empty: check_seconds each; else as long as `calls`.
  std::vector<double> call_seconds;
  /// Seconds for the run, excluding the interpreter's start.
  double total_seconds = 60.0;
  std::int64_t memory_bytes = std::int64_t{4} << 30;
  /// PYTHONHASHSEED, which decides the iteration order of sets of texts.
  std::uint32_t hash_seed = 0;
  /// Allows a cached result of the same request, for programs of the benchmark itself.
  bool repeatable = false;
};

enum class CodeRunStatus : std::uint8_t {
  completed,  ///< Loaded, checked, and every call returned.
  failed,     ///< Exception, crash, early exit, forbidden act or rejected value.
  timed_out   ///< Exceeded a limit of own or processor time.
};

struct CodeRunResult {
  CodeRunStatus status = CodeRunStatus::failed;
  std::string reason;                ///< One line; empty if completed.
  std::int64_t calls_returned = 0;   ///< Values returned and accepted.
  std::vector<double> call_seconds;  ///< Own time of each returned call.
};

/// Receives each call's value in order. Returning false ends the run as failed with the reason
/// "value of call I not accepted". Values are JSON of exact types (subclasses count as their base):
///   None null · bool true/false · str "text" (lone surrogates as {"str_utf16": "hex, big-endian"})
///   int {"int": "decimal"} · float {"float": "repr"} with "inf", "-inf", "nan"
///   complex {"complex": ["repr", "repr"]} · bytes, bytearray {"bytes": "hex"}
///   list [..] · tuple {"tuple": [..]} · set, frozenset {"set": [..]} · dict {"dict": [[k, v], ..]}
///   numpy scalars as the Python value, numpy arrays {"array": [..nested lists..]}
///   anything else, and values nested deeper than 100 levels {"other": "type name"}.
using CodeValueSink = std::function<bool(std::int64_t call, std::string_view json)>;

/// Thread-safe.
class CodeRunner {
 public:
  virtual ~CodeRunner() = default;
  /// Runs the program once. Only its own behaviour yields a failed result; throws EnvironmentError
  /// if it cannot be run at all (no interpreter, no memory).
  [[nodiscard]] virtual CodeRunResult run(const CodeRunRequest& request,
                                          const CodeValueSink& sink = {}) = 0;
};

}  // namespace jforge
