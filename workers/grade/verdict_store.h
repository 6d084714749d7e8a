#pragma once

/// The verdict file of `jforge grade`. While completions are graded, every rank appends each
/// verdict at once to its own part file (part_files.h, verdict_record.h) in the directory
/// FILE.parts. A later call, at any rank count, reuses the verdicts for its own completions.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "workers/evaluate/part_files.h"
#include "workers/grade/completion_set.h"
#include "workers/grade/verdict_record.h"

namespace jforge {

struct VerdictSummary {
  std::size_t problems = 0;
  /// JSON object of "base" and, for tasks with additional tests, "plus": each is the mean over
  /// problems of the share of their completions that pass.
  std::string pass_at_1;
};

/// Returns whether `file` is a verdict file of any task. Throws EnvironmentError if it is
/// unreadable.
[[nodiscard]] bool is_verdict_file(const std::filesystem::path& file);

class VerdictStore {
 public:
  /// `file`: name of the verdict file.
  explicit VerdictStore(std::filesystem::path file);

  /// Returns the directory of the parts.
  [[nodiscard]] const std::filesystem::path& directory() const noexcept { return directory_; }
  [[nodiscard]] const PartFiles& parts() const noexcept { return parts_; }

  /// Returns stored verdicts for completions of `set`, sorted by index, at most one each. Ignores
  /// verdicts with a different key and logs a warning with their number. Damaged lines are skipped
  /// (PartFiles::read), so that their completions are graded again.
  [[nodiscard]] std::vector<VerdictRecord> read(const CompletionSet& set) const;

  /// Writes the verdict file durably. Requires: one verdict per completion, in any order; the
  /// output does not depend on it. Throws EnvironmentError, and InternalError if a verdict is
  /// missing or foreign.
  VerdictSummary publish(const CompletionSet& set,
                         const std::vector<VerdictRecord>& verdicts) const;
  /// Removes the directory of the parts if it is empty.
  void remove_directory() const noexcept;

 private:
  std::filesystem::path file_;
  std::filesystem::path directory_;
  PartFiles parts_;
};

}  // namespace jforge
