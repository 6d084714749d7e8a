#pragma once

/// Benchmark tasks. A task's version names its prompt style and extraction rule, because these
/// affect scores more than most models do.

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

struct TaskRecord {
  std::string id;                             ///< "gsm8k/17": 0-based index in the file.
  std::map<std::string, std::string> fields;  ///< Texts as in the file.
};

enum class VerdictStatus : std::uint8_t { pass, fail, timeout };
/// Returns "pass", "fail" or "timeout".
[[nodiscard]] std::string_view to_string(VerdictStatus status);

struct Verdict {
  VerdictStatus status = VerdictStatus::fail;
  std::string reason;                 ///< One line; for a pass empty or the rule that passed.
  std::optional<std::string> answer;  ///< In canonical form.
  /// Result of the base tests alone; `status` counts all.
  std::optional<VerdictStatus> base_status = std::nullopt;
  /// Result by rule; `status` is the first one's.
  std::vector<std::pair<std::string, bool>> rules = {};
};

struct TaskPrompt {
  /// Rendered by the chat template with generation prompt; if empty, `prefix` is the raw prompt.
  std::vector<ChatMessage> messages;
  std::string prefix = {};  ///< Beginning of the answer, not part of the completion.
};

/// Part of a task's identity.
struct TaskOptions {
  std::string prompt_style;  ///< A documented style; empty: the task's default.
};

/// Immutable and thread-safe.
class Task {
 public:
  virtual ~Task() = default;

  /// Returns the name in commands and results: "gsm8k".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Returns the versions of prompt and rules: "gsm8k/plain/extract-4".
  [[nodiscard]] virtual std::string version() const = 0;
  /// Reads the problems. `data` is the task's file, or the directory of the benchmarks' folders.
  /// Throws DataError naming file and line.
  [[nodiscard]] virtual std::vector<TaskRecord> load(const std::filesystem::path& data) const = 0;
  [[nodiscard]] virtual TaskPrompt prompt(const TaskRecord& record) const = 0;
  [[nodiscard]] virtual std::int64_t default_max_new_tokens() const = 0;
  /// Returns texts that end a completion and are cut off.
  [[nodiscard]] virtual std::vector<std::string> stop_texts() const = 0;
  /// Returns the answer in canonical form, or nullopt.
  [[nodiscard]] virtual std::optional<std::string> extract(std::string_view completion,
                                                           const TaskRecord& record) const = 0;
  /// Returns a record for grade() made of a reference answer alone, or nullopt if grading needs
  /// more.
  [[nodiscard]] virtual std::optional<TaskRecord> reference_record(
      std::string_view /*reference*/) const {
    return std::nullopt;
  }
  /// Returns true if grading needs a runner.
  [[nodiscard]] virtual bool runs_code() const { return false; }
  /// Grades an answer. `runner` may be null unless runs_code(). Throws DataError if the record has
  /// no valid answer.
  [[nodiscard]] virtual Verdict grade(const std::optional<std::string>& answer,
                                      const TaskRecord& record, CodeRunner* runner) const = 0;
};

/// Returns sorted names.
[[nodiscard]] std::vector<std::string> task_names();
/// Throws ConfigError listing the known tasks or prompt styles.
[[nodiscard]] std::unique_ptr<Task> make_task(std::string_view name,
                                              const TaskOptions& options = {});

/// Returns `data` itself, or the first of `candidates` that exists in the directory. Throws
/// DataError naming them.
[[nodiscard]] std::filesystem::path task_file(const std::filesystem::path& data,
                                              const std::string& task,
                                              const std::vector<std::string>& candidates);

/// Reads task_file()'s records with ids "TASK/INDEX". Throws DataError naming file and line if a
/// record lacks a text of `required`: benchmarks are never scored in part.
[[nodiscard]] std::vector<TaskRecord> load_task_records(const std::filesystem::path& data,
                                                        const std::string& task,
                                                        const std::vector<std::string>& candidates,
                                                        const std::vector<std::string>& required);

}  // namespace jforge
