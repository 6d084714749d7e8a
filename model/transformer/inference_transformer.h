#pragma once

/// Forward pass for decoding: batch-invariant rows over a key/value cache (KernelSet, "decoding").

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/kernels/decode_plan.h"
#include "model/kernels/kernel_set.h"
#include "model/kernels/token_sampler.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"

namespace jforge {

/// One row of a decoding step: forward `token` at `position` of `slot`.
struct DecodeRow {
  TokenId token = 0;
  CacheRow place;
  bool wants_output =
      true;  ///< Whether its next-token prediction is needed (prefill needs only the last row's).
};

/// Takes logits [m, V], on the host, of the rows first … first + m − 1 of those that want output.
/// They are its own to overwrite until it returns.
using LogitsReader = std::function<void(std::int64_t first, const TensorView& logits)>;

/// Gives a parameter, float32 or bfloat16 in host memory, valid until the next call. Asked for each
/// one once, or twice for an embedding that is the head too.
using ParameterReader = std::function<ConstTensorView(const ParameterEntry&)>;

/// What decoders need of a model; a fake implements it in decoder tests.
class DecodeModel {
 public:
  virtual ~DecodeModel() = default;
  [[nodiscard]] virtual std::int32_t num_slots() const = 0;
  /// Positions a slot holds at most.
  [[nodiscard]] virtual std::int32_t slot_capacity() const = 0;
  /// Rows a slot has besides, from slot_capacity() on, for alternative drafts (CacheRow).
  [[nodiscard]] virtual std::int32_t branch_rows() const = 0;
  /// Writes the rows' keys and values into the cache, then predicts: predictions[i] belongs to the
  /// i-th row that wants output. A sequence's own rows must be in ascending position and each sees
  /// all positions ≤ its own in its slot, so everything before the first of them must have been
  /// forwarded earlier. Overwriting a position is how a rejected draft is dropped. Rows of an
  /// alternative come whole, in ascending position from their fork, behind the sequence's own rows
  /// of the call up to there.
  virtual void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) = 0;
  /// As predict(), with the token that `choices` say of each row that wants output, in their order.
  /// The default throws InternalError: a model that only measures forwards has no logits.
  virtual void predict_sampled(std::span<const DecodeRow> rows, std::span<const SampledRow> choices,
                               std::span<TokenId> predictions);
  /// Makes rows of alternatives the sequence's own, each at the position that the row had: how an
  /// alternative is accepted. `from` lies at or behind slot_capacity(), `to` before it, without a
  /// gap in the sequence.
  virtual void keep_branches(std::span<const CacheCopy> rows) = 0;
  /// Begins a sequence of so many positions and rows of alternatives at most in `slot`, which loses
  /// what it held: cache memory is set aside for all of it. False, and the slot is empty, where the
  /// other slots' sequences leave too little; a sequence alone always fits.
  [[nodiscard]] virtual bool reserve(std::int32_t slot, std::int64_t positions,
                                     std::int64_t branch_rows) = 0;
  /// Ends the slot's sequence: its cache memory is free for others.
  virtual void release(std::int32_t slot) = 0;
};

/// Holds packed weights and the cache; one object per rank and phase; not thread-safe. `parameters`
/// is read in place for embeddings, norms and biases, or copied once when it lies elsewhere than
/// the kernels compute: it must outlive the object and stay unchanged. A slot is begun anew by a
/// row at position 0; a row beyond the positions filled since then is an InternalError.
///
/// The cache is a pool of pages that slots share (cache_pages.h). A slot gets one when a row is
/// first written there; without reserve() too, while any is free that is not set aside, and then an
/// InternalError says that none is. It keeps them until release() or reserve().
class InferenceTransformer final : public DecodeModel {
 public:
  struct Options {
    std::int32_t num_slots = 1;
    std::int32_t slot_capacity = 0;  ///< Positions per slot; > 0. Rounded up to whole pages.
    std::int32_t branch_rows = 0;    ///< Rows per slot for alternative drafts.
    /// Pages that all slots share, at least as many as one full slot takes; 0: enough for all to be
    /// full at once. On a device that has not the memory, with an eighth of it left for what passes
    /// take (512 MB at most), there are fewer, down to a full slot's: a warning says what asked,
    /// what holds the rest and how many there are.
    std::int64_t cache_pages = 0;
    std::int32_t max_rows =
        0;  ///< Rows computed at once; a larger predict() call is cut. 0 = 1024.
    WeightStorage weights = WeightStorage::automatic;  ///< Of the matrices; embeddings are float32,
                                                       ///< or on a device bfloat16 if these round.
    /// Whether a device may replay a pass that it did before for as many rows (DecodePlan::run):
    /// the same bits.
    bool replay = true;
  };
  InferenceTransformer(const TransformerConfig& config, const ParameterTable& table,
                       ConstTensorView parameters, KernelSet& kernels, MemoryAccount& account,
                       Options options);
  /// Reads the parameters one at a time and keeps copies of its own: a matrix goes from where it is
  /// read to where it is multiplied, as it is.
  InferenceTransformer(const TransformerConfig& config, const ParameterTable& table,
                       const ParameterReader& read, KernelSet& kernels, MemoryAccount& account,
                       Options options);
  ~InferenceTransformer() override;

  [[nodiscard]] std::int32_t num_slots() const override;
  [[nodiscard]] std::int32_t slot_capacity() const override;
  [[nodiscard]] std::int32_t branch_rows() const override;
  void keep_branches(std::span<const CacheCopy> rows) override;
  [[nodiscard]] bool reserve(std::int32_t slot, std::int64_t positions,
                             std::int64_t branch_rows) override;
  void release(std::int32_t slot) override;
  /// Cache pages that are no slot's and set aside for none.
  [[nodiscard]] std::int64_t free_pages() const;
  /// Passes that a device replayed.
  [[nodiscard]] std::int64_t replays() const;
  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override;
  /// The first call allocates logits of kLogitsRows rows.
  void predict_sampled(std::span<const DecodeRow> rows, std::span<const SampledRow> choices,
                       std::span<TokenId> predictions) override;
  /// As predict(), but `reader` gets the logits, in ascending order and never many rows at once.
  /// The first call allocates as that of predict_sampled(), on a device twice.
  void predict_logits(std::span<const DecodeRow> rows, const LogitsReader& reader);
  /// Rows whose logits are held at once: the output head is read once for them all.
  static constexpr std::int64_t kLogitsRows = 64;
  /// As predict(), but the logits [rows that want output, V] are written out, to any device: for
  /// probes and tests.
  void logits(std::span<const DecodeRow> rows, TensorView output);
  /// Bytes that the constructor allocates where the kernels compute on `device`, but for the
  /// padding of packed weights: a packed copy of every matrix, cache, work space. With
  /// WeightStorage::automatic matrices count as float32, the most they can take.
  static std::size_t bytes(const TransformerConfig& config, Options options, Device device);
  /// Bytes of a cache of so many pages of elements of type `cache`: cache_type() of the weights and
  /// the device.
  static std::size_t cache_bytes(const TransformerConfig& config, std::int64_t pages, DType cache);
  /// Bytes of the embeddings that a device holds; the CPU reads them in place. With automatic
  /// `weights` they are float32, also where matrices prove to be bfloat16.
  static std::size_t embedding_bytes(const TransformerConfig& config, WeightStorage weights,
                                     Device device);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace jforge
