#pragma once

#include <array>
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
  bool wants_output = true;  ///< Whether its next token is predicted.
  /// Has the adapter's additions; an alternative's row. In a call such rows are adjacent.
  bool drafts = false;
  bool proposes = false;  ///< A head may read it (DecodeModel::propose()).
};

/// Takes logits [m, V], on the host, of the rows first … first + m − 1 of those that want output.
/// May overwrite them.
using LogitsReader = std::function<void(std::int64_t first, const TensorView& logits)>;

/// Returns a parameter, float32 or bfloat16 in host memory, valid until the next call. Called once
/// for each one, twice for a tied embedding.
using ParameterReader = std::function<ConstTensorView(const ParameterEntry&)>;

/// A drafter's weights, copied by the transformer's constructor.
struct DrafterSource {
  DrafterShape shape;
  const ParameterTable& table;
  ParameterReader read;
};

/// A sequence's part of DecodeModel::propose().
struct ProposalRequest {
  std::int32_t slot = 0;
  std::int64_t first_position = 0;  ///< Of the first of the rows below.
  /// Rows of the last predict() that the sequence keeps, by index, with DecodeRow::proposes; the
  /// second may be empty.
  std::array<RowRange, 2> rows;
  TokenId newest = 0;      ///< The token behind them.
  std::int64_t count = 0;  ///< Of positions after it; 0: the rows are only noted.
};

/// What decoders need of a model; tests of decoders have fakes.
class DecodeModel {
 public:
  virtual ~DecodeModel() = default;
  [[nodiscard]] virtual std::int32_t num_slots() const = 0;
  /// Returns the maximum positions of a slot.
  [[nodiscard]] virtual std::int32_t slot_capacity() const = 0;
  /// Returns a slot's rows for alternative drafts (CacheRow), which come from slot_capacity() on.
  [[nodiscard]] virtual std::int32_t branch_rows() const = 0;
  /// Writes the rows' keys and values to the cache; predictions[i] is the next token of the i-th
  /// row that wants output. A sequence's own rows must be in ascending position, without a gap to
  /// those forwarded earlier; each sees all positions of its slot up to its own. Writing a position
  /// again drops a rejected draft. An alternative's rows must come together, in ascending position
  /// from their fork, after the sequence's own rows up to there.
  virtual void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) = 0;
  /// As predict(), with tokens drawn as `choices` say, one for each row that wants output. The
  /// default throws InternalError.
  virtual void predict_sampled(std::span<const DecodeRow> rows, std::span<const SampledRow> choices,
                               std::span<TokenId> predictions);
  /// Whether the model has a head (drafter.h), which proposes from what the last predict() left.
  [[nodiscard]] virtual bool proposes() const { return false; }
  /// Writes [positions, choices] proposals, one request after the other, for each position the
  /// likeliest tokens in descending order. With one choice they have no log-probability. A
  /// sequence's requests must have all its rows, in order. The default throws InternalError.
  virtual void propose(std::span<const ProposalRequest> requests, std::int64_t choices,
                       std::span<LikelyToken> proposals);
  /// Accepts alternatives: copies their rows to the sequence's own, at their positions. Requires:
  /// from ≥ slot_capacity() > to, without a gap in the sequence.
  virtual void keep_branches(std::span<const CacheCopy> rows) = 0;
  /// Empties `slot` and reserves cache memory for a sequence of at most so many positions and rows
  /// of alternatives. Returns false if the other slots leave too little; one sequence always fits.
  [[nodiscard]] virtual bool reserve(std::int32_t slot, std::int64_t positions,
                                     std::int64_t branch_rows) = 0;
  /// Ends the slot's sequence and frees its cache memory.
  virtual void release(std::int32_t slot) = 0;
};

/// The forward pass of decoding, with batch-invariant rows (KernelSet, "decoding"). Holds packed
/// weights and the KV cache. One object per rank and phase; not thread-safe. A row at position 0
/// begins a slot anew; a row that leaves a gap throws InternalError.
///
/// Slots share the cache's pages (cache_pages.h). A slot gets a page when a row is first written to
/// it and keeps it until release() or reserve(). A slot without reserve() throws InternalError if
/// no page is free.
class InferenceTransformer final : public DecodeModel {
 public:
  struct Options {
    std::int32_t num_slots = 1;
    std::int32_t slot_capacity = 0;  ///< Positions per slot; > 0. Rounded up to whole pages.
    std::int32_t branch_rows = 0;    ///< Rows per slot for alternative drafts.
    /// Pages that slots share, at least one full slot's; 0: all slots'. If a device lacks memory,
    /// with an eighth of it left for passes (512 MB at most), there are fewer, and a warning.
    std::int64_t cache_pages = 0;
    std::int32_t max_rows = 0;  ///< Rows computed at once; 0: 1024.
    /// Matrices' type. Embeddings are float32, or bfloat16 on a device if matrices are rounded.
    WeightStorage weights = WeightStorage::automatic;
    bool replay = true;  ///< Whether a device may replay passes (DecodePlan::run): the same bits.
    const DrafterSource* adapter = nullptr;  ///< A drafter; read by the constructor.
  };
  /// Both copy the parameters, one at a time. `parameters`: the table's flat vector.
  InferenceTransformer(const TransformerConfig& config, const ParameterTable& table,
                       ConstTensorView parameters, KernelSet& kernels, MemoryAccount& account,
                       Options options);
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
  /// Returns the cache pages that no slot holds or has reserved.
  [[nodiscard]] std::int64_t free_pages() const;
  [[nodiscard]] std::int64_t replays() const;
  [[nodiscard]] bool proposes() const override;
  void propose(std::span<const ProposalRequest> requests, std::int64_t choices,
               std::span<LikelyToken> proposals) override;
  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override;
  /// The first call allocates logits [kLogitsRows, V].
  void predict_sampled(std::span<const DecodeRow> rows, std::span<const SampledRow> choices,
                       std::span<TokenId> predictions) override;
  /// As predict(), but calls `reader` with the logits, in ascending order, at most kLogitsRows rows
  /// at once. The first call allocates as that of predict_sampled(), on a device twice.
  void predict_logits(std::span<const DecodeRow> rows, const LogitsReader& reader);
  static constexpr std::int64_t kLogitsRows = 64;
  /// As predict(), but writes the logits [rows that want output, V]; for probes and tests.
  void logits(std::span<const DecodeRow> rows, TensorView output);
  /// Returns what the constructor allocates if the kernels compute on `device`, without the padding
  /// of packed weights. With WeightStorage::automatic matrices count as float32.
  static std::size_t bytes(const TransformerConfig& config, Options options, Device device);
  /// Returns the bytes of a cache of `pages` pages with elements of type `cache` (cache_type()).
  static std::size_t cache_bytes(const TransformerConfig& config, std::int64_t pages, DType cache);
  /// Returns the bytes of the embeddings. With automatic `weights` they are float32.
  static std::size_t embedding_bytes(const TransformerConfig& config, WeightStorage weights,
                                     Device device);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace jforge
