#pragma once

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
  std::optional<std::string> answer;  ///< The text to grade; nothing if none was found.
  /// 16 hex digits over task version, problem record and answer: all that the verdict depends on.
  std::string key;
  /// Added to a failure's reason: how to pass a text of this form. Empty if the form is right.
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
  /// The task's version; for code without a style the check only: "humaneval/completion/check-3s".
  std::string version;
  std::vector<TaskRecord> problems;
  std::vector<std::string> names;       ///< task_id
  std::vector<Completion> completions;  ///< In file order.
  std::string hash;                     ///< Over all problems and keys.

  [[nodiscard]] const TaskRecord& problem_of(const Completion& completion) const {
    return problems[completion.problem];
  }
};

/// Reads JSON lines, plain or gzip, with `task_id` and `solution` (a whole program) or `completion`
/// (continues the prompt; with "TASK:STYLE" an answer in that style). A problem is named by its
/// task_id or, if unambiguous, the part after the last '/', alone or after the suite's name
/// ("Mbpp/11"). Throws ConfigError for an unknown task; DataError with file and line for an invalid
/// completion, or if a problem has none, unless `allow_missing`.
[[nodiscard]] CompletionSet load_completions(const CompletionSource& source);

/// Collective. Throws DataError if a rank has read other data than rank 0.
void expect_same(const Communicator& comm, const CompletionSet& set);

}  // namespace jforge
