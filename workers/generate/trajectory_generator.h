#pragma once

/// Generating phase of one rank: prompts in, Jacobi trajectories out (METHOD.md §1).

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

/// Which states of a block a trajectory keeps.
enum class StoredStates : std::uint8_t {
  all,       ///< Every state, the fixed point last.
  selected,  ///< The one the noise schedule selects and the fixed point.
};

/// In which order the states of a trajectory are computed. They are the same (on CPU fp32).
enum class GenerationMethod : std::uint8_t {
  sequential,  ///< Block after block.
  parallel,    ///< The answer first, then all its blocks at once, each up to the state it needs.
};

/// How trajectories are generated.
struct GenerateOptions {
  GenerationMethod method = GenerationMethod::sequential;
  FixedPointMethod fixed_point = FixedPointMethod::ar;  ///< Used with GenerationMethod::parallel.
  std::int32_t block_size = 16;                         ///< n ≥ 1
  std::int64_t max_new_tokens = 256;  ///< T ≥ 1; an answer has at most ceil(T / n) blocks.
  std::uint64_t seed = 0;
  std::uint64_t round = 0;          ///< Part of the drafts' random stream.
  std::vector<TokenId> eos_ids;     ///< An answer ends with the block that holds one of them.
  std::int32_t batch_prompts = 32;  ///< Prompts decoded at once; does not change results.
  StoredStates stored_states = StoredStates::selected;
  NoiseScheduleOptions schedule;  ///< Used with StoredStates::selected.

  /// Throws ConfigError naming the field.
  void validate() const;
  /// Cache positions a prompt of `prompt_tokens` needs: P + ceil(T / n) · n.
  [[nodiscard]] std::int64_t required_positions(std::int64_t prompt_tokens) const;
  /// Cache rows a prompt needs beside them (DecodeModel::branch_rows).
  [[nodiscard]] std::int64_t required_branch_rows() const;
};

/// One prompt to generate for.
struct GeneratePrompt {
  PromptId id = 0;
  std::vector<TokenId> tokens;  ///< Templated prompt, at least one id.
};

/// What generation has cost so far.
struct GenerationCounts {
  std::int64_t prompts = 0;         ///< Finished.
  std::int64_t cut_answers = 0;     ///< Of those: StopReason::length.
  std::int64_t answer_tokens = 0;   ///< Up to the first eos or T.
  std::int64_t block_tokens = 0;    ///< n · blocks: what the forwards made known.
  std::int64_t forwards = 0;        ///< Prefill excluded, per sequence.
  std::int64_t prefill_tokens = 0;  ///< Prompt tokens of finished prompts.
  std::int64_t states_seen = 0;
  std::int64_t flipped_blocks = 0;
  /// Batched forwards, rows and seconds, dropped sequences included.
  DecodeStatistics decoder;

  /// Of whole blocks, the text behind an answer's end included: what `forwards` were made for. Its
  /// tokens per forward are reported as block TPF, since an evaluation's end with the answer.
  [[nodiscard]] DecodingCost cost_of_blocks() const noexcept {
    return {.sequences = prompts, .tokens = block_tokens, .forwards = forwards};
  }
};

/// Turns prompts into trajectories with a model it borrows. On CPU fp32 the result depends on
/// prompts, weights and options alone: not on batch_prompts, the prompts' order or who else is
/// generated.
///
/// A trajectory's eos_position and stop speak of whole blocks: an end of sequence that the last
/// block holds behind T counts there, while answer_tokens ends at T.
///
/// `flipped_blocks` counts blocks whose iterates disagree with the fixed point that another decoder
/// has found (GenerationMethod::parallel), which reproducible arithmetic excludes. Block after
/// block the fixed points are what the forwards committed, and it stays 0.
class TrajectoryGenerator {
 public:
  /// `model` must outlive the generator. Throws ConfigError for bad options.
  TrajectoryGenerator(DecodeModel& model, GenerateOptions options);

  /// Prompts that may be admitted now.
  [[nodiscard]] std::size_t free_places() const noexcept { return engine_.free_slots(); }
  /// Prompts in the batch: admitted, and their trajectories not taken.
  [[nodiscard]] std::size_t running() const noexcept { return running_.size(); }
  /// Throws DataError for an empty prompt, a prompt id that is running already, or a prompt that
  /// does not fit a cache slot.
  void admit(GeneratePrompt prompt);
  /// One batched forward, for which a prompt must be running.
  void step();
  /// A trajectory that a step has finished, each once; nothing when there is none.
  [[nodiscard]] std::optional<Trajectory> take_finished();
  /// Drops what is unfinished, and must come first after any exception.
  void clear();

  /// Sums since construction.
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
