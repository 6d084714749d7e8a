#pragma once

/// Continuous batching: many sequences share each forward; a finished one's slot is free for the
/// next at once. The loop above it is its user's:
///
///     while (true) {
///       while (engine.free_slots() > 0 && …another decoder…) engine.admit(…);
///       if (engine.running() == 0) break;
///       engine.step();
///       while (std::optional<DecodeResult> result = engine.take_finished()) …
///     }

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
  std::int64_t steps = 0;         ///< Batched forwards.
  std::int64_t rows = 0;          ///< Rows forwarded, prefill included.
  std::int64_t prefill_rows = 0;  ///< Rows of the sequences' first passes (their prompts).
  double prefill_seconds = 0;     ///< Time in steps, shared out by rows: prefill part.
  double decode_seconds = 0;      ///< The rest.
  std::int64_t tokens =
      0;  ///< Made by unfinished sequences too, as their caches show: for displays.
  std::int64_t forwards = 0;  ///< Sequences' forwards after their first passes.
};

/// Sees what an engine's sequences do.
class DecodeObserver {
 public:
  virtual ~DecodeObserver() = default;
  /// The sequence's pending() branches have been forwarded.
  virtual void before_advance(const SequenceDecoder& decoder) = 0;
  /// It has taken their outcomes and committed to `commit`; it may have finished.
  virtual void after_advance(const SequenceDecoder& decoder, const Commit& commit) = 0;
};

/// Drives sequence decoders over a DecodeModel. Results do not depend on how many sequences share a
/// step, nor on how a prompt is cut: drafts are forwarded whole, prompts in chunks that keep a step
/// near kStepRows rows. Where a sequence samples, the model chooses tokens from logits; while all
/// are greedy it gives argmaxes and no logits exist. Not thread-safe; the model must outlive it,
/// and gets its slots back from clear() and the destructor.
class DecodeEngine {
 public:
  /// Rows per step that prompts may fill up to; drafts alone may exceed it.
  static constexpr std::size_t kStepRows = 1024;
  /// Rows that prompts get in every step, however many rows the drafts take: so they always move
  /// on.
  static constexpr std::size_t kMinimumPrefillRows = 128;

  /// `batch_prompts` sequences at most at once (and never more than the model has slots). Throws
  /// ConfigError when that is less than 1.
  DecodeEngine(DecodeModel& model, std::int32_t batch_prompts);
  ~DecodeEngine() { clear(); }
  DecodeEngine(const DecodeEngine&) = delete;
  DecodeEngine& operator=(const DecodeEngine&) = delete;

  /// Calls `observer` from now on, which must outlive the engine; null: nobody, as at first.
  void set_observer(DecodeObserver* observer) noexcept { observer_ = observer; }

  /// Sequences that may be admitted now.
  [[nodiscard]] std::size_t free_slots() const noexcept { return slots_.size() - running_; }
  /// Sequences that are neither finished nor dropped; they may be waiting().
  [[nodiscard]] std::size_t running() const noexcept { return running_; }
  /// Of them, those that have not begun, because the model's cache cannot carry them beside the
  /// others.
  [[nodiscard]] std::size_t waiting() const noexcept { return waiting_.size(); }
  /// Takes the first free slot, of which there must be one. Where the model's cache cannot carry
  /// all that the sequence may need beside the others, it waits for some of them to end; sequences
  /// begin in the order in which they were admitted. Throws DataError when it needs more positions
  /// than a slot holds, or more rows for alternatives.
  void admit(std::unique_ptr<SequenceDecoder> decoder);
  /// One batched forward; at least one sequence must be running. After an exception only clear()
  /// may follow.
  void step();
  /// The result of a sequence that a step has finished, each once; nothing when there is none.
  [[nodiscard]] std::optional<DecodeResult> take_finished();
  /// Drops all sequences; slots carry nothing to what is admitted next and hold no cache memory.
  void clear();

  [[nodiscard]] const DecodeStatistics& statistics() const noexcept { return statistics_; }

 private:
  /// Where a pending branch lies in this step.
  struct PlacedBranch {
    std::int64_t first_position = 0;
    std::int64_t fork_row = 0;  ///< 0: the sequence's own.
    std::size_t outputs = 0;
    std::size_t first_row = 0;  ///< Of this step's.
  };
  /// One slot's sequence and how much of its prompt has been forwarded.
  struct Slot {
    std::unique_ptr<SequenceDecoder> decoder;
    std::size_t forwarded = 0;
    std::size_t rows = 0;  ///< Of this step.
    bool begun = false;    ///< The model has cache memory for it.
    bool prefilling = true;
    std::vector<PlacedBranch> branches;
    std::vector<TokenId> predictions;  ///< Of what has been forwarded, branch after branch.
    /// Where tokens that stand before a new one are penalised: those whose keys the sequence's
    /// positions hold.
    std::vector<TokenId> text;
  };

  void begin_waiting();
  void assemble_rows();
  void append_prompt(std::size_t slot_index, std::size_t limit);
  void append_branches(std::size_t slot_index);
  void append_rows(const DraftBranch& branch, CacheRow place, std::size_t begin, std::size_t end);
  void forward_rows();
  void describe_choices();
  [[nodiscard]] SampledRow choice_of(std::size_t row_index) const;
  void hand_back();
  void advance(std::size_t slot_index);

  DecodeModel& model_;
  DecodeObserver* observer_ = nullptr;
  DecodeStatistics statistics_;
  std::vector<Slot> slots_;
  std::size_t running_ = 0;
  std::deque<std::size_t> waiting_;  ///< Slots whose sequences have not begun, the oldest first.
  std::size_t sampling_ = 0;         ///< Begun sequences that are not decoded greedily.
  std::deque<DecodeResult> finished_;
  std::vector<DecodeRow> rows_;
  std::vector<TokenId> predictions_;
  std::vector<SampledRow> choices_;  ///< Where tokens are sampled: of each output.
  std::vector<TokenId> row_tokens_;  ///< There, too: those of rows_.
  std::vector<BranchOutcome> outcomes_;
  std::vector<CacheCopy> kept_;
  std::size_t outputs_ = 0;
  std::size_t prefill_rows_ = 0;
};

/// Decodes all of them and gives their results in the order in which they finish.
[[nodiscard]] std::vector<DecodeResult> decode_all(
    DecodeEngine& engine, std::vector<std::unique_ptr<SequenceDecoder>> decoders);

}  // namespace jforge
