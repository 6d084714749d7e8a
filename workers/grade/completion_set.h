#pragma once

/// Completions of a task's problems that somebody else's model has made, as they stand in a file.

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
  std::optional<std::string> answer;  ///< What the task grades; nothing when there is none.
  /// 16 hex digits: everything that its verdict depends on (the task's version, the problem's
  /// record, the answer).
  std::string key;
  /// Said of a failure: how to give a text of this form. Empty if the form is a completion's.
  std::string hint = {};
};

/// Where completions lie, and of what.
struct CompletionSource {
  std::string task;            ///< "TASK" or "TASK:STYLE".
  std::filesystem::path data;  ///< As for Task::load.
  std::filesystem::path completions;
  bool allow_missing = false;  ///< Problems without a completion are left out.
};

struct CompletionSet {
  std::unique_ptr<Task> task;
  /// The task's, or where programs are taken as they are "humaneval/completion/check-3s": its check
  /// without a style.
  std::string version;
  std::vector<TaskRecord> problems;
  std::vector<std::string> names;       ///< Of the problems: their task_id.
  std::vector<Completion> completions;  ///< In the file's order.
  std::string hash;                     ///< Over all completions' problems and keys.

  [[nodiscard]] const TaskRecord& problem_of(const Completion& completion) const {
    return problems[completion.problem];
  }
};

/// Reads JSON lines, plain or gzip, with `task_id` and `solution` (a whole program) or `completion`
/// (what continues the prompt; with "TASK:STYLE" an answer as that style reads it). A problem may
/// be called by its task_id, and where it is one problem's only by the part of that behind the last
/// '/', alone or behind the suite's name
/// ("Mbpp/11" for MBPP's 11). Throws ConfigError for an unknown task, DataError naming file and
/// line for what is no completion of it, and, unless `allow_missing`, naming the first problem that
/// has none.
[[nodiscard]] CompletionSet load_completions(const CompletionSource& source);

/// Collective. Throws DataError where a rank has read something else than rank 0.
void expect_same(const Communicator& comm, const CompletionSet& set);

}  // namespace jforge
