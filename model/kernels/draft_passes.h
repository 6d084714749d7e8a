#pragma once

/// Forward passes over drafts that a device renews by itself: what a pass accepts and what the next
/// one forwards is worked out beside the arithmetic, so that the device never waits for the host.
/// The host reads behind what each pass forwarded and predicted, and comes to the same by the
/// decoders of model/decoding, which are the reference.

#include <cstdint>
#include <functional>
#include <span>

#include "model/kernels/decode_plan.h"
#include "runtime/ids.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// How the next draft follows from what a pass predicted (METHOD.md §1, §6.1 – §6.3).
enum class DraftMethod : std::uint8_t {
  running,          ///< What was predicted behind the accepted tokens, and fillers up to n.
  shrinking,        ///< The same without fillers, until n tokens are committed.
  complete_blocks,  ///< The same, and an end of sequence ends the answer behind its block.
  lookup,           ///< What followed the last tokens where they stood before.
};

/// A sequence behind its prefill, as its decoder has it between two passes: every token that is
/// known but the newest, and the draft, which begins with that one.
struct DraftSequence {
  std::int32_t slot = 0;
  DraftMethod method = DraftMethod::running;
  std::int32_t block_size = 1;    ///< n ≥ 1: tokens of a draft at most.
  std::int32_t match_length = 1;  ///< Of a lookup, ≥ 1.
  /// The stream of the fillers (RandomPurpose::jacobi_draft), and its draws of 64 bits that were
  /// made for a running window.
  std::uint64_t seed = 0;
  std::uint64_t round = 0;
  std::uint64_t item = 0;
  std::uint64_t draws = 0;
  std::int64_t prompt_length = 0;
  std::int64_t max_new_tokens = 0;   ///< T
  std::int64_t block = 0;            ///< Of shrinking windows: the present one …
  std::int64_t block_begin = 0;      ///< … and where it begins in the context.
  std::span<const TokenId> eos_ids;  ///< Empty: never stop early.
  std::span<const TokenId> context;  ///< Whose keys and values are in the cache.
  std::span<const TokenId> draft;    ///< At least one.
  std::int64_t max_positions = 0;    ///< That the sequence takes at most.
};

/// A row that a pass forwarded.
struct DraftRow {
  TokenId token = 0;
  std::int32_t position = 0;
  TokenId prediction = 0;
};

/// Made by a plan (DecodePlan::make_draft_passes) for the functions of its kernel set. Memory grows
/// to the largest batch of sequences and is reused. One user at a time.
class DraftPasses {
 public:
  virtual ~DraftPasses() = default;

  /// Begins with `sequences`, whose spans may change afterwards; passes that are queued still are
  /// forgotten, their reports never read. `table` must have pages for all positions that the
  /// sequences take at most, and stay so. Sequences of one batch have each a slot of its own.
  /// Throws InternalError otherwise.
  virtual void begin(std::span<const DraftSequence> sequences, const PageTable& table) = 0;
  /// Queues a pass over the drafts of all sequences that have not ended: `forward` computes
  /// `predictions`, int32 [rows], of the rows of the plan that it is given. For both what
  /// DecodePlan::run says holds. What it accepts, what the next pass forwards and where a sequence
  /// ends follows on the device. Two passes may be queued and not read.
  virtual void queue(const std::function<void(const DecodePlan&)>& forward,
                     const TensorView& predictions) = 0;
  /// Waits for the oldest pass that was not read. Throws NumericalError for a row whose logits hold
  /// NaN.
  virtual void read() = 0;
  /// Rows that the pass read last forwarded for a sequence, in ascending position; none once it has
  /// ended. Valid until the next queue().
  [[nodiscard]] virtual std::span<const DraftRow> rows(std::size_t sequence) const = 0;
  /// Passes that the device did as before (DecodePlan::replays).
  [[nodiscard]] virtual std::int64_t replays() const noexcept = 0;
};

}  // namespace jforge
