#pragma once

/// Generates Jacobi trajectories from prompts on one rank (METHOD.md §1).

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "data/batches/noise_schedule.h"
#include "data/trajectories/trajectory.h"
#include "model/decoding/decode_engine.h"
#include "model/decoding/sequence_decoder.h"
#include "runtime/ids.h"

namespace jforge {

enum class StoredStates : std::uint8_t {
  all,       ///< The fixed point is last.
  selected,  ///< The state selected by the noise schedule, then the fixed point.
};

/// Order in which states are computed; results are the same (on CPU fp32).
enum class GenerationMethod : std::uint8_t {
  sequential,  ///< Block after block.
  parallel,    ///< The answer first, then all blocks at once, each up to the state it needs.
};

struct GenerateOptions {
  GenerationMethod method = GenerationMethod::sequential;
  std::int32_t block_size = 16;       ///< n ≥ 1
  std::int64_t max_new_tokens = 256;  ///< T ≥ 1; an answer has at most ceil(T / n) blocks.
  std::uint64_t seed = 0;
  std::uint64_t round = 0;          ///< Part of the drafts' random stream.
  std::vector<TokenId> eos_ids;     ///< The block that contains one ends the answer.
  std::int32_t batch_prompts = 32;  ///< Prompts decoded at once; results do not change.
  StoredStates stored_states = StoredStates::selected;
  NoiseScheduleOptions schedule;  ///< For StoredStates::selected.

  /// Throws ConfigError naming the field.
  void validate() const;
  /// KV cache positions of a prompt of P `prompt_tokens`: P + ceil(T / n) · n.
  [[nodiscard]] std::int64_t required_positions(std::int64_t prompt_tokens) const;
  /// Additional cache rows of a prompt (DecodeModel::branch_rows).
  [[nodiscard]] std::int64_t required_branch_rows() const;
};

struct GeneratePrompt {
  PromptId id = 0;
  std::vector<TokenId> tokens;  ///< Templated; at least one.
};

/// Sums since construction.
struct GenerationCounts {
  std::int64_t prompts = 0;
  std::int64_t cut_answers = 0;    ///< Ended by StopReason::length.
  std::int64_t answer_tokens = 0;  ///< Up to the first eos or T.
  std::int64_t block_tokens = 0;   ///< n · blocks.
  std::int64_t forwards = 0;       ///< Per sequence, without prefill.
  std::int64_t prefill_tokens = 0;
  std::int64_t states_seen = 0;
  std::int64_t flipped_blocks = 0;
  /// Includes dropped sequences.
  DecodeStatistics decoder;

  /// Counts whole blocks, beyond the end of the answer too. Reported as "block TPF", because the
  /// TPF of an evaluation stops at the end of the answer.
  [[nodiscard]] DecodingCost cost_of_blocks() const noexcept {
    return {.sequences = prompts, .tokens = block_tokens, .forwards = forwards};
  }
};

/// On CPU fp32 trajectories depend only on prompts, weights and options, not on the batch.
/// eos_position and stop refer to whole blocks: an eos after T in the last block counts, but
/// answer_tokens ends at T. `flipped_blocks` counts blocks whose iterates disagree with the fixed
/// point found by a separate decoder (GenerationMethod::parallel); reproducible arithmetic never
/// causes one.
class TrajectoryGenerator {
 public:
  /// `model` must outlive the generator. Throws ConfigError for bad options.
  TrajectoryGenerator(DecodeModel& model, GenerateOptions options);

  [[nodiscard]] std::size_t free_places() const noexcept { return engine_.free_slots(); }
  /// Admitted prompts whose trajectory has not been taken.
  [[nodiscard]] std::size_t running() const noexcept { return running_.size(); }
  /// Throws DataError for an empty prompt, an id that is running, or a prompt too long for a cache
  /// slot.
  void admit(GeneratePrompt prompt);
  /// Runs one batched forward. Requires: running() > 0.
  void step();
  /// Returns each finished trajectory once.
  [[nodiscard]] std::optional<Trajectory> take_finished();
  /// Drops unfinished prompts. Must be called first after any exception.
  void clear();

  [[nodiscard]] const GenerationCounts& counts() const noexcept { return counts_; }

 private:
  [[nodiscard]] Trajectory finish(DecodeResult result);
  [[nodiscard]] Trajectory make_trajectory(std::vector<TokenId> prompt, DecodeResult result) const;
  void count(const Trajectory& trajectory, std::int64_t answer_tokens);

  GenerateOptions options_;
  DecodeEngine engine_;
  GenerationCounts counts_;
  std::unordered_map<PromptId, std::vector<TokenId>> running_;
};

}  // namespace jforge
