#pragma once

/// Continuous batching: many sequences share each forward; a finished one frees its slot at once.
///
///     while (true) {
///       while (engine.free_slots() > 0 && …another decoder…) engine.admit(…);
///       if (engine.running() == 0) break;
///       engine.step();
///       while (std::optional<DecodeResult> result = engine.take_finished()) …
///     }

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "model/decoding/sequence_decoder.h"
#include "model/kernels/token_sampler.h"
#include "model/transformer/inference_transformer.h"

namespace jforge {

struct DecodeStatistics {
  std::int64_t steps = 0;
  std::int64_t rows = 0;          ///< Includes prefill rows.
  std::int64_t prefill_rows = 0;  ///< Prompt rows.
  double prefill_seconds = 0;     ///< Step time is divided by rows.
  double decode_seconds = 0;
  std::int64_t tokens = 0;    ///< Includes unfinished sequences.
  std::int64_t forwards = 0;  ///< Prefill excluded.
};

class DecodeObserver {
 public:
  virtual ~DecodeObserver() = default;
  /// Called after the pending() branches were forwarded.
  virtual void before_advance(const SequenceDecoder& decoder) = 0;
  /// The sequence may have finished.
  virtual void after_advance(const SequenceDecoder& decoder, const Commit& commit) = 0;
};

/// Drives sequence decoders over a DecodeModel. Results do not depend on the batch size or on how
/// prompts are cut. Drafts are forwarded whole, prompts in chunks. If all sequences are greedy the
/// model stores no logits. Not thread-safe. The model must outlive the engine.
class DecodeEngine {
 public:
  /// Prompts fill a step up to this many rows.
  static constexpr std::size_t kStepRows = 1024;
  /// Prompt rows that every step may take, so that large drafts do not stall prefill.
  static constexpr std::size_t kMinimumPrefillRows = 128;

  /// Throws ConfigError if `batch_prompts`, limited by the model's slots, is less than 1.
  DecodeEngine(DecodeModel& model, std::int32_t batch_prompts);
  ~DecodeEngine() { clear(); }
  DecodeEngine(const DecodeEngine&) = delete;
  DecodeEngine& operator=(const DecodeEngine&) = delete;

  /// Null: none. Requires: the observer outlives the engine.
  void set_observer(DecodeObserver* observer) noexcept { observer_ = observer; }

  [[nodiscard]] std::size_t free_slots() const noexcept { return slots_.size() - running_; }
  /// Returns the number of unfinished sequences, waiting ones included.
  [[nodiscard]] std::size_t running() const noexcept { return running_; }
  /// Returns the number of sequences that wait for cache memory.
  [[nodiscard]] std::size_t waiting() const noexcept { return waiting_.size(); }
  /// Adds a sequence, which waits while the cache lacks memory for all of it; sequences begin in
  /// order of admission. Requires: free_slots() > 0. Throws DataError if it needs more positions or
  /// branch rows than a slot has.
  void admit(std::unique_ptr<SequenceDecoder> decoder);
  /// Makes one batched forward. Requires: running() > 0. After a throw only clear() may follow.
  void step();
  /// Returns each result once; empty if there is none.
  [[nodiscard]] std::optional<DecodeResult> take_finished();
  /// Drops all sequences and releases their cache memory.
  void clear();

  [[nodiscard]] const DecodeStatistics& statistics() const noexcept { return statistics_; }

 private:
  struct PlacedBranch {
    std::int64_t first_position = 0;
    std::int64_t fork_row = 0;  ///< 0: not an alternative.
    std::size_t outputs = 0;
    std::size_t first_row = 0;  ///< Index in rows_.
  };
  struct Slot {
    std::unique_ptr<SequenceDecoder> decoder;
    std::size_t forwarded = 0;
    std::size_t rows = 0;
    std::int64_t end = 0;          ///< Positions with the draft.
    std::int64_t branch_rows = 0;  ///< Of alternatives.
    bool begun = false;            ///< The model has reserved cache memory.
    bool prefilling = true;
    std::vector<PlacedBranch> branches;
    std::vector<TokenId> predictions;  ///< Of all outputs, branch by branch.
    /// With a repetition penalty only: the tokens at the cached positions.
    std::vector<TokenId> text;
  };

  void begin_waiting();
  void assemble_rows();
  void append_prompt(std::size_t slot_index, std::size_t limit);
  /// Appends the branches that draft, or the others.
  void append_branches(std::size_t slot_index, bool drafting);
  void append_rows(const DraftBranch& branch, CacheRow place, std::size_t begin, std::size_t end);
  void forward_rows();
  void describe_choices();
  [[nodiscard]] SampledRow choice_of(std::size_t row_index) const;
  void hand_back();
  void advance(std::size_t slot_index);
  void ask(std::size_t slot_index, std::int64_t first_position, std::array<RowRange, 2> rows);
  void propose();

  DecodeModel& model_;
  DecodeObserver* observer_ = nullptr;
  DecodeStatistics statistics_;
  std::vector<Slot> slots_;
  std::size_t running_ = 0;
  std::deque<std::size_t> waiting_;  ///< Slots that wait for cache memory, oldest first.
  std::size_t sampling_ = 0;         ///< Begun sequences that sample.
  std::deque<DecodeResult> finished_;
  std::vector<DecodeRow> rows_;
  std::vector<TokenId> predictions_;
  std::vector<SampledRow> choices_;  ///< Only if a sequence samples: one per output.
  std::vector<TokenId> row_tokens_;  ///< Only if a sequence samples: of rows_.
  std::vector<BranchOutcome> outcomes_;
  std::vector<CacheCopy> kept_;
  std::vector<ProposalRequest> requests_;  ///< By slot.
  std::int64_t choices_wanted_ = 1;        ///< The most that a request wants for a position.
  std::vector<LikelyToken> proposals_;
  std::size_t outputs_ = 0;
  std::size_t prefill_rows_ = 0;
};

/// Returns all results in the order in which they finish.
[[nodiscard]] std::vector<DecodeResult> decode_all(
    DecodeEngine& engine, std::vector<std::unique_ptr<SequenceDecoder>> decoders);

}  // namespace jforge
