#pragma once

/// Grading against the base and further inputs of EvalPlus.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/tasks/code_runner.h"
#include "data/tasks/task.h"

namespace jforge {

enum class EvalPlusSuite : std::uint8_t { humaneval, mbpp };
/// The release whose comparison is meant: they differ in what counts as equal.
enum class EvalPlusRules : std::uint8_t { v0_2_1, v0_3_1 };

/// Runs a program on a problem's base inputs and, when all are right, in a new process on its
/// further ones (evalplus_call.py). A process of its own, out of the program's reach, compares the
/// values with those of the canonical solution (prompt + canonical_solution), which is run once
/// for each problem (evalplus_oracle.py).
///
/// Both releases: Python's ==; if that fails and the tolerance atol is not 0, |out − expected| ≤
/// atol + 1e-7·|expected| elementwise. atol is the problem's; once an expected value is a float, or
/// a list or tuple of nothing but floats, an atol of 0 becomes 1e-6 for the rest of the run.
/// MBPP's are_equivalent takes every answer, sum_div also 0, and check_str, text_match_three and
/// text_starta_endb ask only whether something was found.
/// 0.2.1 compares by numpy.testing.assert_allclose and takes an empty list for a list of floats.
/// 0.3.1 compares by numpy.allclose between values of one type and one length; eight MBPP problems
/// compare as sets, surface_Area and digit_distance_nums accept a second reading of the problem,
/// and HumanEval's find_zero accepts every root (as meant, and as later releases do).
///
/// Each call has max(10, 4 × the canonical solution's time) seconds, each of the two runs
/// max(120, 4 × its sum).
/// EvalPlus itself allows max(1, 4 ×) and 60: on a slow or busy processor that fails right
/// programs.
///
/// A value of more than 200,000 parts is compared by its type, length and a digest of its content,
/// that is exactly.
///
/// Under the rules of 0.2.1 the hash seed of a run follows from the program's text: as with
/// EvalPlus' own processes, a program whose answer hangs on the order of a set of texts does not by
/// accident agree with a different program that does the same; and unlike there the outcome is the
/// same in every run.
///
/// Thread-safe.
class EvalPlusGrader {
 public:
  EvalPlusGrader(EvalPlusSuite suite, EvalPlusRules rules) : suite_(suite), rules_(rules) {}

  /// Record fields: task_id, prompt, canonical_solution, entry_point, base_input, plus_input and
  /// atol as JSON. DataError naming the record when its canonical solution cannot be run on its
  /// inputs.
  [[nodiscard]] Verdict grade(const std::string& program, const TaskRecord& record,
                              CodeRunner& runner) const;
  /// "evalplus-0.3.1-floor-10s".
  [[nodiscard]] std::string version() const;

 private:
  /// One list of inputs and what the canonical solution makes of it.
  struct Part {
    std::string name = {};
    std::vector<std::string> inputs = {};    ///< JSON of each call's arguments.
    std::vector<std::string> expected = {};  ///< Value JSON.
    std::vector<double> limits = {};         ///< Seconds for each call.
    double run_limit = 0.0;                  ///< Seconds for all of them.
  };
  /// Runs of one canonical solution exclude each other, and are not repeated.
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
  /// Compares the values of the first calls with the expected ones: completed if all are right.
  [[nodiscard]] CodeRunResult compare(const std::vector<std::string>& values,
                                      const TaskRecord& record, const Part& part,
                                      CodeRunner& runner) const;

  EvalPlusSuite suite_;
  EvalPlusRules rules_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<Reference>> references_;
};

}  // namespace jforge
