#pragma once

/// The verdict file of `jforge grade`, and the verdicts that are kept beside it until all are
/// there. While completions are graded, every rank appends to a part of its own (part_files.h) in
/// the directory FILE.parts; a line (verdict_record.h) is written as soon as its verdict is there.
/// A later call, at any rank count, takes the verdicts that it finds for its own completions.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "workers/evaluate/part_files.h"
#include "workers/grade/completion_set.h"
#include "workers/grade/verdict_record.h"

namespace jforge {

/// What a verdict file says in short.
struct VerdictSummary {
  std::size_t problems = 0;
  /// JSON object of "base" and, of tasks that add further tests, "plus": the mean over problems of
  /// the share of their completions that pass.
  std::string pass_at_1;
};

/// Whether `file` is a verdict file, of whatever task. Throws EnvironmentError when it cannot be
/// read.
[[nodiscard]] bool is_verdict_file(const std::filesystem::path& file);

class VerdictStore {
 public:
  /// `file` is the verdict file's name.
  explicit VerdictStore(std::filesystem::path file);

  /// Where the parts lie.
  [[nodiscard]] const std::filesystem::path& directory() const noexcept { return directory_; }
  [[nodiscard]] const PartFiles& parts() const noexcept { return parts_; }

  /// Verdicts in the parts on completions of `set`, at most one each, by index. A verdict counts
  /// where its completion still has the key that it had; how many do not is said in a warning.
  /// Damaged lines are left out, as PartFiles::read has it: their completions are graded again.
  [[nodiscard]] std::vector<VerdictRecord> read(const CompletionSet& set) const;

  /// Writes the verdict file durably. `verdicts` holds one for each completion, in any order: the
  /// bytes do not depend on it. Throws EnvironmentError, and InternalError when a verdict is
  /// missing or of another completion.
  VerdictSummary publish(const CompletionSet& set,
                         const std::vector<VerdictRecord>& verdicts) const;
  /// Removes the directory of the parts if nothing is in it any more.
  void remove_directory() const noexcept;

 private:
  std::filesystem::path file_;
  std::filesystem::path directory_;
  PartFiles parts_;
};

}  // namespace jforge
