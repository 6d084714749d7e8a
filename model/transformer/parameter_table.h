#pragma once

/// Every parameter of the model by name, in one flat vector cut into groups (embedding, each layer,
/// head). A group is the unit of ZeRO: it is padded so that it divides evenly over the ranks, and
/// every stage shards groups, never tensors.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/transformer/transformer_config.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// One named tensor.
struct ParameterEntry {
  std::string name;     ///< Hugging Face name, e.g. "model.layers.0.self_attn.q_proj.weight".
  Shape shape;          ///< As in the HF file: [N, K] for projections, [V, C] for the embedding.
  std::int64_t offset;  ///< First element in the flat vector.
  std::int32_t group;   ///< Index into ParameterTable::groups().
  bool decay;           ///< Subject to weight decay (matrices yes; norms and biases no).
};

/// A contiguous run of the flat vector: [offset, offset + padded_size).
struct ParameterGroup {
  std::string name;  ///< "embedding", "layer.0", …, "head".
  std::int64_t offset;
  std::int64_t size;         ///< Elements that belong to tensors.
  std::int64_t padded_size;  ///< Multiple of shard_count · 16; the padding stays zero.
};

/// Layout of all parameters for a configuration and a shard count. Immutable.
class ParameterTable {
 public:
  /// `shard_count` ≥ 1: the number of ranks that share optimizer state (1 for inference).
  ParameterTable(const TransformerConfig& config, int shard_count);

  [[nodiscard]] const std::vector<ParameterEntry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const std::vector<ParameterGroup>& groups() const noexcept { return groups_; }
  [[nodiscard]] int shard_count() const noexcept { return shard_count_; }
  /// Elements of the flat vector, padding included.
  [[nodiscard]] std::int64_t flat_size() const noexcept { return flat_size_; }
  /// Elements that belong to tensors: the model's parameter count (a tied head counts once).
  [[nodiscard]] std::int64_t parameter_count() const noexcept { return parameter_count_; }
  /// Throws InternalError for an unknown name.
  [[nodiscard]] const ParameterEntry& entry(std::string_view name) const;
  /// View of one tensor inside a flat float32 vector of flat_size() elements.
  [[nodiscard]] TensorView tensor(const TensorView& flat, std::string_view name) const;
  [[nodiscard]] ConstTensorView tensor(const ConstTensorView& flat, std::string_view name) const;
  /// Elements of group `group` that rank `shard` owns, as [begin, end) of the flat vector.
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };
  [[nodiscard]] Range shard_range(std::int32_t group, int shard) const;

 private:
  std::vector<ParameterEntry> entries_;
  std::vector<ParameterGroup> groups_;
  int shard_count_;
  std::int64_t flat_size_ = 0;
  std::int64_t parameter_count_ = 0;
};

/// Tensor of `entry` inside `group`, a vector of any element type that begins at `offset` of the
/// flat vector.
template <class View>
[[nodiscard]] View tensor_in_group(const View& group, std::int64_t offset,
                                   const ParameterEntry& entry) {
  const auto begin = static_cast<std::size_t>(entry.offset - offset) * dtype_bytes(group.dtype());
  return {static_cast<typename View::template Element<std::byte>*>(group.raw()) + begin,
          group.dtype(), entry.shape, group.device()};
}

}  // namespace jforge
