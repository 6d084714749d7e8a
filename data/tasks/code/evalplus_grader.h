#pragma once

#include <map>
#include <memory>
#include <mutex>
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

}  // namespace jforge
