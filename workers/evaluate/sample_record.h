#pragma once

/// One evaluated completion as a line of JSON, and the files that hold such lines.
///
/// While an evaluation runs, every rank appends to a part of its own for each task and method
/// (part_files.h; the stem is TASK.METHOD) when a sample is graded. When all samples are there the
/// parts are merged into TASK.METHOD.jsonl, sorted by index and sample and without the lines'
/// timing, and removed. A part's lines are sealed (runtime/text_seal.h), for the merged file
/// summary.json has the checksum.

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

/// What is known of one completion of a problem.
struct SampleRecord {
  std::int64_t index = 0;     ///< The problem's 0-based place in the benchmark.
  std::int64_t sample = 0;    ///< Which of the problem's completions, from 0.
  std::string id;             ///< The task's name for it.
  std::string prompt_hash;    ///< Problem::hash
  std::string settings;       ///< 16 hex digits: everything the result depends on.
  std::int64_t tokens = 0;    ///< Generated, first end of sequence included.
  std::int64_t forwards = 0;  ///< Prefill excluded.
  std::int64_t prefill_forwards = 0;
  bool stopped_by_eos = false;        ///< "stop": "eos", else "length".
  std::string token_hash;             ///< 16 hex digits over the generated ids.
  std::optional<std::string> answer;  ///< As extracted; null when there is none.
  std::string verdict;                ///< "pass", "fail" or "timeout".
  std::string reason;                 ///< Empty for a pass.
  /// Verdict on the base tests alone, of tasks that add further ones.
  std::optional<std::string> base_verdict;
  /// Right by each rule, of tasks that judge by several (Verdict::rules); `verdict` is the first's.
  std::vector<std::pair<std::string, bool>> rules;
  std::string text;    ///< ProblemSet::text_of.
  std::string prompt;  ///< Problem::prompt_text; only merged files have it.

  bool operator==(const SampleRecord&) const = default;
};

/// What the record's completion took.
[[nodiscard]] DecodingCost cost_of(const SampleRecord& record) noexcept;

/// Where, when and beside what a sample was finished. Part of the lines in parts only, since it
/// differs from run to run.
struct SampleTiming {
  std::int64_t attempt = 0;
  Rank rank = 0;
  std::int32_t ranks = 0;          ///< Of the job.
  std::int32_t batch_prompts = 0;  ///< evaluate.batch_prompts
  /// Seconds in forwards that this rank had spent in this attempt when the sample was finished.
  double decode_seconds = 0;
  double prefill_seconds = 0;

  bool operator==(const SampleTiming&) const = default;
};

struct TimedSample {
  SampleRecord record;
  SampleTiming timing;
};

/// One line without its newline. An empty `timing` leaves those keys and the seal out.
[[nodiscard]] std::string to_line(const SampleRecord& record,
                                  const std::optional<SampleTiming>& timing);
/// Reads a part's line back. Throws DataError naming `origin` for anything else.
[[nodiscard]] TimedSample parse_timed_sample(std::string_view line, const std::string& origin);

/// The files of one task and method of one model.
class SampleFiles {
 public:
  /// `directory`: the model's. It need not exist yet. Characters of the names that files had better
  /// not have (anything but letters, digits, ".", "_", "=", "+", "-") become "-".
  SampleFiles(std::filesystem::path directory, const std::string& task, const std::string& method);

  [[nodiscard]] const std::string& stem() const noexcept { return stem_; }

  [[nodiscard]] std::filesystem::path merged() const { return directory_ / (stem_ + ".jsonl"); }
  /// The measured speeds of the task's methods (speed_record.h), shared by all of them.
  [[nodiscard]] std::filesystem::path speed() const { return directory_ / (task_ + ".speed"); }
  [[nodiscard]] std::filesystem::path part(std::int64_t attempt, Rank rank, int ranks) const {
    return parts_.part(attempt, rank, ranks);
  }
  [[nodiscard]] std::vector<std::filesystem::path> parts() const { return parts_.all(); }
  [[nodiscard]] std::int64_t next_attempt() const { return parts_.next_attempt(); }
  /// All samples in the parts, as PartFiles::read; a line that is no sample or whose seal is broken
  /// does not count.
  [[nodiscard]] std::vector<TimedSample> read_parts() const;
  /// The merged file's samples (without timing). DataError naming file and line for anything else,
  /// a torn line too.
  [[nodiscard]] std::vector<SampleRecord> read_merged() const;
  /// XXH3-64 of the merged file, 16 hex digits; nothing where there is none.
  [[nodiscard]] std::optional<std::string> merged_hash() const;
  /// Publishes `records`, which must be sorted by index and sample, durably.
  void publish_merged(const std::vector<SampleRecord>& records) const;
  void remove_parts() const { parts_.remove(); }

 private:
  std::filesystem::path directory_;
  std::string task_;  ///< As in file names.
  std::string stem_;
  PartFiles parts_;
};

}  // namespace jforge
