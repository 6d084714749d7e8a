#pragma once

/// The verdict file of `jforge grade`. Until it is complete, every rank appends its verdicts to a
/// part (part_files.h) in the directory FILE.parts; a later call at any rank count reuses them.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "workers/evaluate/part_files.h"
#include "workers/grade/completion_set.h"
#include "workers/grade/verdict_record.h"

namespace jforge {

struct VerdictSummary {
  std::size_t problems = 0;
  /// JSON object of "base" and, for tasks with additional tests, "plus": mean over problems of the
  /// share of completions that pass.
  std::string pass_at_1;
};

/// Throws EnvironmentError if `file` is unreadable.
[[nodiscard]] bool is_verdict_file(const std::filesystem::path& file);

class VerdictStore {
 public:
  /// `file`: name of the verdict file.
  explicit VerdictStore(std::filesystem::path file);

  /// Directory of the parts.
  [[nodiscard]] const std::filesystem::path& directory() const noexcept { return directory_; }
  [[nodiscard]] const PartFiles& parts() const noexcept { return parts_; }

  /// Returns stored verdicts for `set`, sorted by index, one per completion. Warns of verdicts with
  /// another key. Skips damaged lines (PartFiles::read), so their completions are graded again.
  [[nodiscard]] std::vector<VerdictRecord> read(const CompletionSet& set) const;

  /// Returns the summary of an intact verdict file on exactly `set`, else nothing. Warns of a
  /// damaged one.
  [[nodiscard]] std::optional<VerdictSummary> finished(const CompletionSet& set) const;
  /// Writes the verdict file durably. Requires: one verdict per completion; their order does not
  /// matter. Throws EnvironmentError, and InternalError for a missing or foreign verdict.
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
