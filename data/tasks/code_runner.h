#pragma once

/// What a task asks of whatever runs programs for it. Tasks say what to run and judge what comes
/// back; how a program is kept from doing harm is workers/evaluate/sandbox.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// One run of a Python program that nobody trusts. Its limits are seconds of the program's own
/// time: wall-clock time less what it was ready to run and waited for a processor, so that the load
/// of other programs is not counted.
struct CodeRunRequest {
  /// Source of the module under test.
  std::string candidate;
  /// Python run in the module's namespace after it has loaded without error: assertions. May be
  /// empty. It is not in the candidate's view while that loads.
  std::string check;
  /// Function of the module that is called once for each of `calls`, after `check`. May be empty
  /// when there are no calls.
  std::string entry_point;
  /// For each call the arguments: a Python literal or expression over builtins that yields a list
  /// ("[1, (2, 3), float('inf')]").
  std::vector<std::string> calls;
  /// Seconds for loading and `check` together.
  double check_seconds = 3.0;
  /// Seconds for each call; empty: check_seconds for every one. Else calls.size() long.
  std::vector<double> call_seconds;
  /// Seconds for the whole run, the interpreter's start excluded.
  double total_seconds = 60.0;
  std::int64_t memory_bytes = std::int64_t{4} << 30;
  /// PYTHONHASHSEED of the interpreter: it decides the order in which sets of texts are walked.
  std::uint32_t hash_seed = 0;
  /// Whether a completed earlier run of the same request may stand for this one: a program of the
  /// benchmark's own.
  bool repeatable = false;
};

enum class CodeRunStatus : std::uint8_t {
  completed,  ///< Loaded, checked, and every call returned.
  failed,     ///< An exception, a crash, an early exit, a forbidden act, or the caller's no.
  timed_out   ///< A limit of own or processor time was passed.
};

struct CodeRunResult {
  CodeRunStatus status = CodeRunStatus::failed;
  std::string reason;                ///< One line; empty when completed.
  std::int64_t calls_returned = 0;   ///< Values that came back and were taken.
  std::vector<double> call_seconds;  ///< Own time of each returned call.
};

/// Told each call's value as it comes back, in order; false ends the run as failed with the reason
/// "value of call I not accepted".
///
/// A value is JSON text, built from exact types (subclasses count as their base):
///   None null · bool true/false · str "text" (lone surrogates as {"str_utf16": "hex, big-endian"})
///   int {"int": "decimal"} · float {"float": "repr"} with "inf", "-inf", "nan"
///   complex {"complex": ["repr", "repr"]} · bytes, bytearray {"bytes": "hex"}
///   list [..] · tuple {"tuple": [..]} · set, frozenset {"set": [..]} · dict {"dict": [[k, v], ..]}
///   numpy scalars as the Python value, numpy arrays {"array": [..nested lists..]}
///   anything else, and whatever is nested deeper than 100 levels {"other": "type name"}.
using CodeValueSink = std::function<bool(std::int64_t call, std::string_view json)>;

/// Thread-safe.
class CodeRunner {
 public:
  virtual ~CodeRunner() = default;
  /// Runs the program once. Only the program's own doings end as a failed result; that it could not
  /// be run at all (no interpreter, no memory for a process) is an EnvironmentError.
  [[nodiscard]] virtual CodeRunResult run(const CodeRunRequest& request,
                                          const CodeValueSink& sink = {}) = 0;
};

}  // namespace jforge
