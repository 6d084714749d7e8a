#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "data/tasks/code_runner.h"
#include "data/tasks/task.h"

namespace jforge {

enum class EvalPlusSuite : std::uint8_t { humaneval, mbpp };
/// They differ in what counts as equal.
enum class EvalPlusRules : std::uint8_t { v0_2_1, v0_3_1 };

/// Runs a program on a problem's base inputs and, if all are right, in a new process on EvalPlus'
/// additional ones (evalplus_call.py). A separate process, which the program cannot reach, compares
/// the values with those of the canonical solution (prompt + canonical_solution), which runs once
/// per problem (evalplus_oracle.py). Thread-safe.
///
/// Both releases: Python's ==; if that fails and atol ≠ 0, |out − expected| ≤ atol +
/// 1e-7·|expected| elementwise. An atol of 0 becomes 1e-6 for the rest of the run once an expected
/// value is a float or a list or tuple of floats. MBPP's are_equivalent accepts everything, sum_div
/// also 0; check_str, text_match_three and text_starta_endb only test whether something was found.
/// 0.2.1: numpy.testing.assert_allclose; an empty list counts as a list of floats.
/// 0.3.1: numpy.allclose between equal types and lengths; eight MBPP problems compare as sets,
/// surface_Area and digit_distance_nums accept a second reading, and HumanEval's find_zero accepts
/// every root, as later releases do.
///
/// Limits: max(10, 4 × the canonical solution's time) seconds per call, max(120, 4 × its sum) per
/// run. EvalPlus' max(1, 4 ×) and 60 fail right programs on slow processors. Values of more than
/// 200,000 parts compare exactly, by type, length and digest.
/// With 0.2.1 the hash seed follows from the program's text. So results are reproducible, but, as
/// in EvalPlus, programs that depend on the order of sets do not agree by accident.
class EvalPlusGrader {
 public:
  EvalPlusGrader(EvalPlusSuite suite, EvalPlusRules rules) : suite_(suite), rules_(rules) {}

  /// Grades a program. Record fields: task_id, prompt, canonical_solution, entry_point, base_input,
  /// plus_input and atol as JSON. Throws DataError if the canonical solution fails.
  [[nodiscard]] Verdict grade(const std::string& program, const TaskRecord& record,
                              CodeRunner& runner) const;
  /// Returns for example "evalplus-0.3.1-floor-10s".
  [[nodiscard]] std::string version() const;

 private:
  /// Inputs with the canonical solution's results.
  struct Part {
    std::string name = {};
    std::vector<std::string> inputs = {};    ///< JSON arguments of each call.
    std::vector<std::string> expected = {};  ///< Value JSON.
    std::vector<double> limits = {};         ///< Seconds.
    double run_limit = 0.0;                  ///< Seconds.
  };
  /// The mutex serialises runs of the canonical solution.
  struct Reference {
    std::mutex mutex;
    std::vector<Part> parts;
  };

  [[nodiscard]] std::shared_ptr<Reference> reference(const TaskRecord& record,
                                                     CodeRunner& runner) const;
  [[nodiscard]] Part expected_values(const TaskRecord& record, const char* field,
                                     CodeRunner& runner) const;
  [[nodiscard]] CodeRunRequest request(std::string program, const TaskRecord& record,
                                       const Part& part) const;
  [[nodiscard]] CodeRunResult run_part(const std::string& program, const TaskRecord& record,
                                       const Part& part, CodeRunner& runner) const;
  /// Returns "completed" if the values of the first calls are right.
  [[nodiscard]] CodeRunResult compare(const std::vector<std::string>& values,
                                      const TaskRecord& record, const Part& part,
                                      CodeRunner& runner) const;

  EvalPlusSuite suite_;
  EvalPlusRules rules_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<Reference>> references_;
};

inline constexpr const char* kEvalPlusSanitizer = "sanitize-0.3.1";  ///< Part of a task's version.

struct SanitizedProgram {
  CodeRunStatus status = CodeRunStatus::completed;
  std::string reason;   ///< One line; empty if completed.
  std::string program;  ///< Empty unless completed.
};

/// Extracts the program in `text` as EvalPlus 0.3.1 does:
///  1. Of the spans of at least two lines that parse as Python, takes the first with the most
///     non-blank lines; the first line if none parses.
///  2. Of its top-level statements keeps the imports (except "from __future__"), then the
///     definitions that `entry_point` needs: itself and, transitively, all names mentioned
///     (attributes and arguments too); all definitions without `entry_point`. Definitions are
///     classes, functions with a return statement and non-augmented assignments, the first of each
///     name, never decorated ones. An assignment to anything but a name is known by its value if
///     that is one. If nothing is left, keeps the span.
///
/// EvalPlus uses tree-sitter for step 2; here Python's parser does both, in the sandbox. So
/// trailing comments of definitions are dropped, and text on which EvalPlus would crash (a NUL,
/// operators nested thousands deep) does not parse. Invalid UTF-8 counts as U+FFFD. Times out after
/// 30 s.
[[nodiscard]] SanitizedProgram evalplus_sanitize(const std::string& text,
                                                 const std::optional<std::string>& entry_point,
                                                 CodeRunner& runner);

/// Makes a verdict; `has_base` is as in not_run().
[[nodiscard]] Verdict not_sanitized(const SanitizedProgram& sanitized, const std::string& answer,
                                    bool has_base);

}  // namespace jforge
