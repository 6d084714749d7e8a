#pragma once

/// Interface between tasks, which say what to run, and workers/evaluate/sandbox, which confines it.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// A run of an untrusted Python program. Limits are seconds of its own time, without waiting for a
/// processor, so that other programs' load does not count.
struct CodeRunRequest {
  std::string candidate;  ///< The module under test.
  /// Optional assertions, run in the loaded module's namespace; invisible to it while loading.
  std::string check;
  std::string entry_point;  ///< Function called once per element of `calls`, after `check`.
  /// Arguments: Python expressions over builtins that yield lists ("[1, (2, 3), float('inf')]").
  std::vector<std::string> calls;
  double check_seconds = 3.0;        ///< For loading and `check` together.
  std::vector<double> call_seconds;  ///< Empty: check_seconds each; else as long as `calls`.
  double total_seconds = 60.0;       ///< Excludes the interpreter's start.
  std::int64_t memory_bytes = std::int64_t{4} << 30;
  std::uint32_t hash_seed = 0;  ///< PYTHONHASHSEED: decides the order of sets of texts.
  /// A completed run's result may be reused; for the benchmark's own programs.
  bool repeatable = false;
};

enum class CodeRunStatus : std::uint8_t {
  completed,  ///< Loaded, checked, and every call returned.
  failed,     ///< Exception, crash, early exit, forbidden act or rejected value.
  timed_out   ///< Exceeded own or processor time.
};

struct CodeRunResult {
  CodeRunStatus status = CodeRunStatus::failed;
  std::string reason;                ///< One line; empty if completed.
  std::int64_t calls_returned = 0;   ///< Values returned and accepted.
  std::vector<double> call_seconds;  ///< Own time of each returned call.
};

/// Receives call values in order. Returning false ends the run as failed ("value of call I not
/// accepted"). Values are JSON of exact types (subclasses count as their base):
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
  /// Runs the program. Only its own faults give failed results; throws EnvironmentError if it
  /// cannot be run (no interpreter, no memory).
  [[nodiscard]] virtual CodeRunResult run(const CodeRunRequest& request,
                                          const CodeValueSink& sink = {}) = 0;
};

}  // namespace jforge
