#pragma once

/// Benchmark tasks: what is asked, what counts as the answer, what counts as right. A task has a
/// name and a version; the version names the prompt style and the extraction rule, because the
/// scorer moves results more than most models do.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tasks/code_runner.h"
#include "data/tokenizer/chat_template.h"

namespace jforge {

/// One problem.
struct TaskRecord {
  std::string id;                             ///< "gsm8k/17": task and 0-based place in its file.
  std::map<std::string, std::string> fields;  ///< Texts as they stand in the file.
};

/// Outcome of grading.
enum class VerdictStatus : std::uint8_t { pass, fail, timeout };
/// "pass", "fail" or "timeout".
[[nodiscard]] std::string_view to_string(VerdictStatus status);

struct Verdict {
  VerdictStatus status = VerdictStatus::fail;
  std::string reason;                 ///< One line; for a pass empty or the rule it passed by.
  std::optional<std::string> answer;  ///< What was extracted, in canonical form.
  /// Outcome on the base tests alone, for tasks that add further ones (`status` counts all).
  std::optional<VerdictStatus> base_status = std::nullopt;
  /// For tasks that judge by several rules: whether the answer is right by each, in the task's
  /// order. `status` is the first one's.
  std::vector<std::pair<std::string, bool>> rules = {};
};

/// What is put to the model.
struct TaskPrompt {
  /// Put through the chat template with the generation prompt added; empty: `prefix` is the whole
  /// prompt as raw text.
  std::vector<ChatMessage> messages;
  /// Text with which the answer begins, behind the generation prompt; not part of the completion.
  std::string prefix = {};
};

/// Choices that belong to a task's identity.
struct TaskOptions {
  /// How the question is put; each task documents its styles. Empty: the task's default.
  std::string prompt_style;
};

/// One benchmark task. Immutable; methods may be called from many threads.
class Task {
 public:
  virtual ~Task() = default;

  /// Name on the command line and in results: "gsm8k".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Versions of prompt and rules: "gsm8k/plain/extract-4".
  [[nodiscard]] virtual std::string version() const = 0;
  /// Reads the problems from `data`: the directory that holds the benchmarks' folders, or the
  /// task's file itself. DataError naming file and line.
  [[nodiscard]] virtual std::vector<TaskRecord> load(const std::filesystem::path& data) const = 0;
  [[nodiscard]] virtual TaskPrompt prompt(const TaskRecord& record) const = 0;
  /// Tokens to generate at most unless the configuration says otherwise.
  [[nodiscard]] virtual std::int64_t default_max_new_tokens() const = 0;
  /// Texts that end a completion (cut before them) besides the end-of-sequence token.
  [[nodiscard]] virtual std::vector<std::string> stop_texts() const = 0;
  /// The answer in a completion, in canonical form; nothing when there is none.
  [[nodiscard]] virtual std::optional<std::string> extract(std::string_view completion,
                                                           const TaskRecord& record) const = 0;
  /// A record that grade() judges answers by, made of a reference answer (of a training set, say)
  /// alone. Nothing for tasks whose check needs more.
  [[nodiscard]] virtual std::optional<TaskRecord> reference_record(
      std::string_view /*reference*/) const {
    return std::nullopt;
  }
  /// Whether grading runs programs: then grade() needs a runner.
  [[nodiscard]] virtual bool runs_code() const { return false; }
  /// Grades an extracted answer. `runner` may be null unless runs_code(). DataError when the record
  /// itself has no valid answer.
  [[nodiscard]] virtual Verdict grade(const std::optional<std::string>& answer,
                                      const TaskRecord& record, CodeRunner* runner) const = 0;
};

/// Names of all tasks, sorted.
[[nodiscard]] std::vector<std::string> task_names();
/// The task `name`. ConfigError listing the known ones, or the known prompt styles.
[[nodiscard]] std::unique_ptr<Task> make_task(std::string_view name,
                                              const TaskOptions& options = {});

/// The file of a task: `data` itself, or the first of `candidates` (relative paths) that exists in
/// the directory `data`. DataError naming them when there is none.
[[nodiscard]] std::filesystem::path task_file(const std::filesystem::path& data,
                                              const std::string& task,
                                              const std::vector<std::string>& candidates);

/// Reads a task's JSON records: every record must be an object with all of `required` as texts; a
/// bad one is a DataError naming file and line (a benchmark is never scored in part). `data` is a
/// file, or a directory in which the first of `candidates` (relative paths) that exists is taken.
/// Ids are "TASK/INDEX".
[[nodiscard]] std::vector<TaskRecord> load_task_records(const std::filesystem::path& data,
                                                        const std::string& task,
                                                        const std::vector<std::string>& candidates,
                                                        const std::vector<std::string>& required);

}  // namespace jforge
