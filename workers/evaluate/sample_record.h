#pragma once

/// Sample records as JSON lines, and their files. Every rank appends graded samples to parts
/// (part_files.h) with the stem TASK.METHOD. Complete parts are merged into TASK.METHOD.jsonl,
/// sorted by index and sample and without timing, and removed. Lines in parts are sealed
/// (runtime/text_seal.h); summary.json has the merged file's checksum.

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

struct SampleRecord {
  std::int64_t index = 0;   ///< 0-based position in the benchmark.
  std::int64_t sample = 0;  ///< 0-based, of the problem.
  std::string id;
  std::string prompt_hash;    ///< Problem::hash
  std::string settings;       ///< 16 hex digits over everything that affects the result.
  std::int64_t tokens = 0;    ///< Including the first eos.
  std::int64_t forwards = 0;  ///< Without prefill.
  std::int64_t prefill_forwards = 0;
  bool stopped_by_eos = false;  ///< "stop": "eos" or "length".
  std::string token_hash;       ///< 16 hex digits.
  std::optional<std::string> answer;
  std::string verdict;  ///< "pass", "fail" or "timeout".
  std::string reason;   ///< Empty for a pass.
  /// On the base tests alone, for tasks with additional tests.
  std::optional<std::string> base_verdict;
  /// See Verdict::rules.
  std::vector<std::pair<std::string, bool>> rules;
  std::string text;    ///< ProblemSet::text_of.
  std::string prompt;  ///< Problem::prompt_text; merged files only.

  bool operator==(const SampleRecord&) const = default;
};

[[nodiscard]] DecodingCost cost_of(const SampleRecord& record) noexcept;

/// Differs between runs; in parts only.
struct SampleTiming {
  std::int64_t attempt = 0;
  Rank rank = 0;
  std::int32_t ranks = 0;
  std::int32_t batch_prompts = 0;  ///< evaluate.batch_prompts
  /// This rank's seconds in forwards of the attempt, up to the end of the sample.
  double decode_seconds = 0;
  double prefill_seconds = 0;

  bool operator==(const SampleTiming&) const = default;
};

struct TimedSample {
  SampleRecord record;
  SampleTiming timing;
};

/// Without a newline. Timing and seal are absent without `timing`.
[[nodiscard]] std::string to_line(const SampleRecord& record,
                                  const std::optional<SampleTiming>& timing);
/// Throws DataError naming `origin`.
[[nodiscard]] TimedSample parse_timed_sample(std::string_view line, const std::string& origin);

/// Files of one task and method of one model.
class SampleFiles {
 public:
  /// `directory`: the model's; need not exist. Characters of names other than letters, digits and
  /// "._=+-" become "-".
  SampleFiles(std::filesystem::path directory, const std::string& task, const std::string& method);

  [[nodiscard]] const std::string& stem() const noexcept { return stem_; }

  [[nodiscard]] std::filesystem::path merged() const { return directory_ / (stem_ + ".jsonl"); }
  /// Speeds of all the task's methods (speed_record.h).
  [[nodiscard]] std::filesystem::path speed() const { return directory_ / (task_ + ".speed"); }
  [[nodiscard]] std::filesystem::path part(std::int64_t attempt, Rank rank, int ranks) const {
    return parts_.part(attempt, rank, ranks);
  }
  [[nodiscard]] std::vector<std::filesystem::path> parts() const { return parts_.all(); }
  [[nodiscard]] std::int64_t next_attempt() const { return parts_.next_attempt(); }
  /// As PartFiles::read; skips malformed lines and broken seals.
  [[nodiscard]] std::vector<TimedSample> read_parts() const;
  /// Without timing. Throws DataError naming file and line for a malformed or torn line.
  [[nodiscard]] std::vector<SampleRecord> read_merged() const;
  /// XXH3-64, 16 hex digits; nothing without a file.
  [[nodiscard]] std::optional<std::string> merged_hash() const;
  /// Durable. Requires: `records` sorted by index and sample.
  void publish_merged(const std::vector<SampleRecord>& records) const;
  void remove_parts() const { parts_.remove(); }

 private:
  std::filesystem::path directory_;
  std::string task_;
  std::string stem_;
  PartFiles parts_;
};

}  // namespace jforge
