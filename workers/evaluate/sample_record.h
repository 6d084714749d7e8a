#pragma once

/// Sample records as JSON lines, and their files. During an evaluation every rank appends graded
/// samples to its own parts (part_files.h), one per task and method; the stem is TASK.METHOD. When
/// all samples exist, the parts are merged into TASK.METHOD.jsonl, sorted by index and sample and
/// without timing, and removed. Lines in parts are sealed (runtime/text_seal.h); summary.json has
/// the merged file's checksum.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoding/sequence_decoder.h"
#include "runtime/ids.h"
#include "workers/evaluate/part_files.h"

namespace jforge {

/// One completion of a problem.
struct SampleRecord {
  std::int64_t index = 0;     ///< 0-based position of the problem in the benchmark.
  std::int64_t sample = 0;    ///< 0-based completion of the problem.
  std::string id;             ///< The task's name for the problem.
  std::string prompt_hash;    ///< Problem::hash
  std::string settings;       ///< 16 hex digits: hash of everything the result depends on.
  std::int64_t tokens = 0;    ///< Generated, including the first eos.
  std::int64_t forwards = 0;  ///< Without prefill.
  std::int64_t prefill_forwards = 0;
  bool stopped_by_eos = false;        ///< "stop": "eos" or "length".
  std::string token_hash;             ///< 16 hex digits over the generated ids.
  std::optional<std::string> answer;  ///< As extracted, if any.
  std::string verdict;                ///< "pass", "fail" or "timeout".
  std::string reason;                 ///< Empty for a pass.
  /// On the base tests alone, for tasks with additional tests.
  std::optional<std::string> base_verdict;
  /// See Verdict::rules.
  std::vector<std::pair<std::string, bool>> rules;
  std::string text;    ///< ProblemSet::text_of.
  std::string prompt;  ///< Problem::prompt_text; in merged files only.

  bool operator==(const SampleRecord&) const = default;
};

[[nodiscard]] DecodingCost cost_of(const SampleRecord& record) noexcept;

/// Differs between runs, so only lines in parts contain it.
struct SampleTiming {
  std::int64_t attempt = 0;
  Rank rank = 0;
  std::int32_t ranks = 0;          ///< Of the job.
  std::int32_t batch_prompts = 0;  ///< evaluate.batch_prompts
  /// Seconds in forwards of this rank and attempt up to the end of the sample.
  double decode_seconds = 0;
  double prefill_seconds = 0;

  bool operator==(const SampleTiming&) const = default;
};

struct TimedSample {
  SampleRecord record;
  SampleTiming timing;
};

/// One line without a newline. Without `timing` it has neither those keys nor a seal.
[[nodiscard]] std::string to_line(const SampleRecord& record,
                                  const std::optional<SampleTiming>& timing);
/// Parses a line of a part. Throws DataError naming `origin`.
[[nodiscard]] TimedSample parse_timed_sample(std::string_view line, const std::string& origin);

/// Files of one task and method of one model.
class SampleFiles {
 public:
  /// `directory`: the model's; need not exist. In names, characters other than letters, digits and
  /// "._=+-" become "-".
  SampleFiles(std::filesystem::path directory, const std::string& task, const std::string& method);

  [[nodiscard]] const std::string& stem() const noexcept { return stem_; }

  [[nodiscard]] std::filesystem::path merged() const { return directory_ / (stem_ + ".jsonl"); }
  /// Measured speeds (speed_record.h), shared by the task's methods.
  [[nodiscard]] std::filesystem::path speed() const { return directory_ / (task_ + ".speed"); }
  [[nodiscard]] std::filesystem::path part(std::int64_t attempt, Rank rank, int ranks) const {
    return parts_.part(attempt, rank, ranks);
  }
  [[nodiscard]] std::vector<std::filesystem::path> parts() const { return parts_.all(); }
  [[nodiscard]] std::int64_t next_attempt() const { return parts_.next_attempt(); }
  /// Reads all parts as PartFiles::read; skips malformed lines and those with a broken seal.
  [[nodiscard]] std::vector<TimedSample> read_parts() const;
  /// Reads the merged file; timing is absent. Throws DataError naming file and line for a malformed
  /// or torn line.
  [[nodiscard]] std::vector<SampleRecord> read_merged() const;
  /// XXH3-64 of the merged file, 16 hex digits; nothing if it does not exist.
  [[nodiscard]] std::optional<std::string> merged_hash() const;
  /// Writes durably. Requires: `records` sorted by index and sample.
  void publish_merged(const std::vector<SampleRecord>& records) const;
  void remove_parts() const { parts_.remove(); }

 private:
  std::filesystem::path directory_;
  std::string task_;  ///< As in file names.
  std::string stem_;
  PartFiles parts_;
};

}  // namespace jforge
