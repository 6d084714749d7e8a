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
#include "model/decoding/parallel_trajectory_decoder.h"
#include "model/decoding/sequence_decoder.h"
#include "runtime/ids.h"

namespace jforge {

enum class StoredStates : std::uint8_t {
  all,       ///< Every state; the fixed point is last.
  selected,  ///< The state selected by the noise schedule, and the fixed point.
};

/// Order in which states are computed. The result is the same (on CPU fp32).
enum class GenerationMethod : std::uint8_t {
  sequential,  ///< Block after block.
  parallel,    ///< First the answer, then all blocks at once, each up to the state it needs.
};

struct GenerateOptions {
  GenerationMethod method = GenerationMethod::sequential;
  FixedPointMethod fixed_point = FixedPointMethod::ar;  ///< Used with GenerationMethod::parallel.
  std::int32_t block_size = 16;                         ///< n ≥ 1
  std::int64_t max_new_tokens = 256;  ///< T ≥ 1; an answer has at most ceil(T / n) blocks.
  std::uint64_t seed = 0;
  std::uint64_t round = 0;          ///< Part of the drafts' random stream.
  std::vector<TokenId> eos_ids;     ///< The block that contains one of them ends the answer.
  std::int32_t batch_prompts = 32;  ///< Prompts decoded at once; does not change results.
  StoredStates stored_states = StoredStates::selected;
  NoiseScheduleOptions schedule;  ///< Used with StoredStates::selected.

  /// Throws ConfigError naming the field.
  void validate() const;
  /// Returns the KV cache positions of a prompt of `prompt_tokens`: P + ceil(T / n) · n.
  [[nodiscard]] std::int64_t required_positions(std::int64_t prompt_tokens) const;
  /// Returns the additional cache rows of a prompt (DecodeModel::branch_rows).
  [[nodiscard]] std::int64_t required_branch_rows() const;
};

struct GeneratePrompt {
  PromptId id = 0;
  std::vector<TokenId> tokens;  ///< Templated prompt, at least one id.
};

/// Cost of generation since construction.
struct GenerationCounts {
  std::int64_t prompts = 0;         ///< Finished prompts.
  std::int64_t cut_answers = 0;     ///< Of these, ended by StopReason::length.
  std::int64_t answer_tokens = 0;   ///< Up to the first eos or T.
  std::int64_t block_tokens = 0;    ///< n · blocks.
  std::int64_t forwards = 0;        ///< Per sequence, without prefill.
  std::int64_t prefill_tokens = 0;  ///< Prompt tokens of finished prompts.
  std::int64_t states_seen = 0;
  std::int64_t flipped_blocks = 0;
  /// Batched forwards, rows and seconds, including dropped sequences.
  DecodeStatistics decoder;

  /// Counts whole blocks, including tokens after the answer's end. Its tokens per forward are
  /// reported as "block TPF", because an evaluation counts only up to the end of the answer.
  [[nodiscard]] DecodingCost cost_of_blocks() const noexcept {
    return {.sequences = prompts, .tokens = block_tokens, .forwards = forwards};
  }
};

/// Turns prompts into trajectories with a borrowed model. On CPU fp32 the result depends only on
/// prompts, weights and options: not on batch_prompts, the order of prompts or the rest of the
/// batch.
///
/// eos_position and stop refer to whole blocks: an eos after T in the last block counts, but
/// answer_tokens ends at T.
///
/// `flipped_blocks` counts blocks whose iterates disagree with the fixed point that a separate
/// decoder found (GenerationMethod::parallel). It is 0 with reproducible arithmetic, and for
/// sequential generation, where the fixed points are the committed tokens.
class TrajectoryGenerator {
 public:
  /// `model` must outlive the generator. Throws ConfigError for bad options.
  TrajectoryGenerator(DecodeModel& model, GenerateOptions options);

  /// Returns how many prompts may be admitted now.
  [[nodiscard]] std::size_t free_places() const noexcept { return engine_.free_slots(); }
  /// Returns how many prompts are admitted without their trajectory having been taken.
  [[nodiscard]] std::size_t running() const noexcept { return running_.size(); }
  /// Throws DataError for an empty prompt, an id that is running, or a prompt that does not fit a
  /// cache slot.
  void admit(GeneratePrompt prompt);
  /// Runs one batched forward. Requires: a running prompt.
  void step();
  /// Returns each finished trajectory once; nothing if none is left.
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
