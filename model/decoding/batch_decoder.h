#pragma once

/// Continuous batching: many sequences share each forward; a finished one's slot is refilled at
/// once.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/decoding/sequence_decoder.h"
#include "model/transformer/inference_transformer.h"

namespace jforge {

struct BatchDecoderStatistics {
  std::int64_t steps = 0;         ///< Batched forwards.
  std::int64_t rows = 0;          ///< Rows forwarded, prefill included.
  std::int64_t prefill_rows = 0;  ///< Rows of the sequences' first passes (their prompts).
  double prefill_seconds = 0;     ///< Time in steps, shared out by rows: prefill part.
  double decode_seconds = 0;      ///< The rest.
  std::int64_t tokens =
      0;  ///< Made by unfinished sequences too, as their caches show: for displays.
  std::int64_t forwards = 0;  ///< Sequences' forwards after their first passes.
};

/// Drives sequence decoders over a DecodeModel. Results do not depend on how many sequences share a
/// step, nor on how a prompt is cut: drafts are forwarded whole, prompts in chunks that keep a step
/// near kStepRows rows. Not thread-safe; the model must outlive it.
class BatchDecoder {
 public:
  /// Rows per step that prompts may fill up to; drafts alone may exceed it.
  static constexpr std::size_t kStepRows = 1024;
  /// Rows that prompts get in every step, however many rows the drafts take: so they always move
  /// on.
  static constexpr std::size_t kMinimumPrefillRows = 128;

  /// `batch_prompts` sequences at most at once (and never more than the model has slots). Throws
  /// ConfigError when that is less than 1.
  BatchDecoder(DecodeModel& model, std::int32_t batch_prompts);

  /// Gives the next sequence to start, or null when there is none at present; asked whenever a slot
  /// is free.
  using Source = std::function<std::unique_ptr<SequenceDecoder>()>;
  /// Takes a finished sequence's result.
  using Sink = std::function<void(DecodeResult)>;
  /// Asked once per step; true ends the run after that step, unfinished sequences are dropped.
  using StopRequested = std::function<bool()>;
  /// Called once per step, before a stop is asked for.
  using StepDone = std::function<void()>;

  /// Runs until the source is empty and every sequence has finished. Throws DataError when a
  /// sequence needs more positions than a slot holds. After any exception the decoder may be run
  /// again: slots carry nothing from one run to the next.
  void run(const Source& source, const Sink& sink, const StopRequested& stop_requested = {},
           const StepDone& step_done = {});

  [[nodiscard]] const BatchDecoderStatistics& statistics() const noexcept { return statistics_; }

 private:
  /// One slot's sequence and how much of its pending tokens has been forwarded.
  struct Slot {
    std::unique_ptr<SequenceDecoder> decoder;
    std::size_t forwarded = 0;
    std::size_t chunk = 0;  ///< Rows of this step.
    bool prefilling = true;
    std::vector<TokenId> predictions;  ///< Of the pending tokens forwarded so far.
  };

  /// Fills free slots; false when nothing is left to do.
  bool refill(const Source& source);
  void assemble_rows();
  void append_rows(std::size_t slot_index, std::size_t limit);
  void forward_rows();
  void hand_back(const Sink& sink);

  DecodeModel& model_;
  BatchDecoderStatistics statistics_;
  std::vector<Slot> slots_;
  std::vector<DecodeRow> rows_;
  std::vector<TokenId> predictions_;
  std::size_t outputs_ = 0;
  std::size_t prefill_rows_ = 0;
};

}  // namespace jforge
