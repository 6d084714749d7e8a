#pragma once

/// Completions of a task's problems, made by any model and read from a file.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tasks/task.h"
#include "runtime/comm/mpi_session.h"

namespace jforge {

struct Completion {
  std::size_t problem = 0;            ///< Index into CompletionSet::problems.
  std::optional<std::string> answer;  ///< The text that is graded; nothing if none was found.
  /// 16 hex digits: hash of everything the verdict depends on (task version, problem record,
  /// answer).
  std::string key;
  /// Appended to a failure: how to pass a text of this form. Empty if the form is right.
  std::string hint = {};
};

struct CompletionSource {
  std::string task;            ///< "TASK" or "TASK:STYLE".
  std::filesystem::path data;  ///< See Task::load.
  std::filesystem::path completions;
  bool allow_missing = false;  ///< Skip problems without a completion.
};

struct CompletionSet {
  std::unique_ptr<Task> task;
  /// The task's version. For code without a style it names the check only:
  /// "humaneval/completion/check-3s".
  std::string version;
  std::vector<TaskRecord> problems;
  std::vector<std::string> names;       ///< Their task_id.
  std::vector<Completion> completions;  ///< In the order of the file.
  std::string hash;                     ///< Over problems and keys of all completions.

  [[nodiscard]] const TaskRecord& problem_of(const Completion& completion) const {
    return problems[completion.problem];
  }
};

/// Reads JSON lines, plain or gzip, with `task_id` and either `solution` (a whole program) or
/// `completion` (continues the prompt; with "TASK:STYLE" an answer in that style). A problem is
/// named by its task_id or, if that is unambiguous, by the part after the last '/', alone or after
/// the suite's name ("Mbpp/11" for MBPP's 11). Throws ConfigError for an unknown task, DataError
/// with file and line for an invalid completion, and DataError for a problem without a completion
/// unless `allow_missing`.
[[nodiscard]] CompletionSet load_completions(const CompletionSource& source);

/// Collective. Throws DataError on a rank that has read other data than rank 0.
void expect_same(const Communicator& comm, const CompletionSet& set);

}  // namespace jforge
