#pragma once

/// Forward passes over drafts that a device renews by itself: what a pass accepts and what the next
/// one forwards is worked out beside the arithmetic, so that the device never waits for the host.
/// The host reads behind what each pass forwarded and predicted, and comes to the same by the
/// decoders of model/decoding, which are the reference.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/kernels/decode_plan.h"
#include "model/kernels/token_sampler.h"
#include "runtime/ids.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// How the next draft follows from what a pass predicted (METHOD.md §1, §6.1 – §6.3).
enum class DraftMethod : std::uint8_t {
  running,          ///< What was predicted behind the accepted tokens, and fillers up to n.
  shrinking,        ///< The same without fillers, until n tokens are committed.
  complete_blocks,  ///< The same, and an end of sequence ends the answer behind its block.
  lookup,           ///< What followed the last tokens where they stood before.
  multi_block,      ///< Blocks behind the shrinking one, and alternatives to it (DraftBlocks).
  lookahead,        ///< A window and n-grams of it behind the newest token (LookaheadWindow).
};

/// A block behind the real-active one (METHOD.md §6.3). It is forwarded behind the draft; what it
/// accepts is provisional and neither committed nor looked at for an end of sequence.
struct PseudoBlock {
  std::vector<TokenId> tokens;
  std::size_t accepted = 0;   ///< Leading tokens that a forward has confirmed after those before.
  TokenId continuation = -1;  ///< Predicted behind the block; −1 before its first forward.
};

/// Token sequences in a ring, the newest before `next`.
struct TokenRing {
  std::span<const std::vector<TokenId>> entries;
  std::size_t next = 0;
  std::size_t size = 0;  ///< Of the entries in use.

  /// The i-th newest, i < size.
  [[nodiscard]] const std::vector<TokenId>& newest(std::size_t i) const {
    return entries[(next + entries.size() - 1 - i) % entries.size()];
  }
};

/// What multi-block decoding has beside the draft, which is the real-active block's.
struct DraftBlocks {
  std::int32_t blocks = 1;         ///< K ≥ 1, the real-active one included.
  std::int32_t candidates = 0;     ///< Drafts verified beside the plain one, at most.
  std::int32_t pool_capacity = 0;  ///< Sequences that are kept of what was rejected.
  std::int32_t threshold = 1;      ///< Accepted tokens of the newest block that spawn the next.
  bool clone = false;              ///< Whether a block begins as a copy of the draft.
  bool on_every_row = false;       ///< Whether alternatives carry the pseudo blocks, too.
  std::span<const PseudoBlock> pseudo;  ///< In order.
  TokenRing pool;
};

/// What lookahead decoding has beside the draft, which is the newest token.
struct LookaheadWindow {
  std::int32_t ngram = 2;    ///< N ≥ 2
  std::int32_t guesses = 0;  ///< G ≥ 0
  /// Those that are forwarded, each the tokens of all levels there are: 1 to N − 1, of every column
  /// as many. There will not be more columns.
  std::span<const std::vector<TokenId>> columns;
  TokenRing pool;  ///< Different n-grams of N tokens.
};

/// A sequence behind its prefill, as its decoder has it between two passes: every token that is
/// known but the newest, and the draft, which begins with that one.
struct DraftSequence {
  std::int32_t slot = 0;
  DraftMethod method = DraftMethod::running;
  std::int32_t block_size = 1;  ///< n ≥ 1: tokens of a draft at most.
  /// Last tokens that are looked for: of a lookup, ≥ 1; of multi-block decoding 0 where nothing is.
  std::int32_t match_length = 0;
  /// The stream of the fillers (RandomPurpose::jacobi_draft), and its draws of 64 bits that were
  /// made for a running window.
  std::uint64_t seed = 0;
  std::uint64_t round = 0;
  std::uint64_t item = 0;  ///< The request, for its sampling too.
  std::uint64_t draws = 0;
  SamplingOptions sampling;
  std::int64_t prompt_length = 0;
  std::int64_t max_new_tokens = 0;   ///< T
  std::int64_t block = 0;            ///< Of shrinking windows: the present one …
  std::int64_t block_begin = 0;      ///< … and where it begins in the context.
  std::span<const TokenId> eos_ids;  ///< Empty: never stop early.
  std::span<const TokenId> context;  ///< Whose keys and values are in the cache.
  std::span<const TokenId> draft;    ///< At least one.
  std::int64_t max_positions = 0;    ///< That the sequence takes at most.
  std::int64_t max_branch_rows = 0;  ///< Cache rows that its alternatives take, all together.
  DraftBlocks blocks;
  LookaheadWindow window;
};

/// Rows that a pass takes for each of a batch's sequences: first those of its own, the draft and
/// what stands behind it, then so many for each alternative to them.
struct DraftRows {
  std::int64_t own = 0;
  std::int64_t alternatives = 0;
  std::int64_t alternative_rows = 0;

  [[nodiscard]] std::int64_t each() const noexcept { return own + alternatives * alternative_rows; }
  bool operator==(const DraftRows&) const = default;
};
/// What the one takes that takes most, in its largest pass.
[[nodiscard]] DraftRows draft_rows(std::span<const DraftSequence> sequences);

/// A row that a pass forwarded; fork and fork_row as CacheRow.
struct DraftRow {
  TokenId token = 0;
  std::int32_t position = 0;
  TokenId prediction = 0;
  std::int32_t fork = 0;
  std::int32_t fork_row = 0;
};

/// Made by a plan (DecodePlan::make_draft_passes) for the functions of its kernel set. Memory grows
/// to the largest batch of sequences and is reused. One user at a time.
class DraftPasses {
 public:
  virtual ~DraftPasses() = default;

  /// Begins with `sequences`, whose spans may change afterwards; passes that are queued still are
  /// forgotten, their reports never read. `table` must have pages for all positions that the
  /// sequences take at most, and from row `branch_row` of a slot on for all alternatives, and stay
  /// so. Sequences of one batch have each a slot of its own. Throws InternalError otherwise.
  virtual void begin(std::span<const DraftSequence> sequences, const PageTable& table,
                     std::int64_t branch_row) = 0;
  /// Queues a pass over the drafts of all sequences that have not ended: `forward` does the copies
  /// of the plan that it is given (KernelSet::cache_copy), which make an alternative that the pass
  /// before accepted the sequence's own, then computes `predictions`, int32 [rows], of its rows.
  /// For both what DecodePlan::run says holds. What it accepts, what the next pass forwards and
  /// where a sequence ends follows on the device. Two passes may be queued and not read. Nobody has
  /// done the copies of the newest one.
  virtual void queue(const std::function<void(const DecodePlan&)>& forward,
                     const TensorView& predictions) = 0;
  /// Called by `forward` for the rows of a pass in turn where any sequence is not decoded greedily:
  /// tokens [m], int32, of the rows first … first + m − 1 from their logits [m, V], which are
  /// overwritten, as KernelSet::sample_tokens() chooses them by the sequences' `sampling`.
  virtual void sample(std::int64_t first, const TensorView& logits, const TensorView& tokens) = 0;
  /// Waits for the oldest pass that was not read. Throws NumericalError for a row whose logits hold
  /// NaN.
  virtual void read() = 0;
  /// Rows that the pass read last forwarded for a sequence: its own in ascending position, then
  /// those of each alternative; none once it has ended. Valid until the next queue().
  [[nodiscard]] virtual std::span<const DraftRow> rows(std::size_t sequence) const = 0;
  /// Passes that the device did as before (DecodePlan::replays).
  [[nodiscard]] virtual std::int64_t replays() const noexcept = 0;
};

}  // namespace jforge
