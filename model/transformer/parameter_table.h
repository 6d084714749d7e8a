#pragma once

/// The layout of all parameters in one flat vector of groups (embedding, each layer, head). A group
/// is ZeRO's unit of sharding, padded so that it divides evenly over the ranks. An adapter's vector
/// has a group for each layer only; a head's (features, each layer, head).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/transformer/drafter.h"
#include "model/transformer/transformer_config.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

struct ParameterEntry {
  std::string name;     ///< In HF files: "model.layers.0.self_attn.q_proj.weight".
  Shape shape;          ///< Projections [N, K], the embedding [V, C].
  std::int64_t offset;  ///< First element in the flat vector.
  std::int32_t group;   ///< Index into ParameterTable::groups().
  bool decay;           ///< Subject to weight decay (matrices yes; norms and biases no).
};

/// Elements [offset, offset + padded_size) of the flat vector.
struct ParameterGroup {
  std::string name;  ///< "embedding", "layer.0", …, "head".
  std::int64_t offset;
  std::int64_t size;         ///< Without the padding.
  std::int64_t padded_size;  ///< Multiple of shard_count · 16; the padding stays zero.
};

class ParameterTable {
 public:
  /// Requires: shard_count ≥ 1, the ranks that share optimizer state (1 for inference).
  ParameterTable(const TransformerConfig& config, int shard_count);
  /// A drafter's weights for this model. Throws as head_config().
  ParameterTable(const TransformerConfig& config, const DrafterShape& drafter, int shard_count);

  [[nodiscard]] const std::vector<ParameterEntry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const std::vector<ParameterGroup>& groups() const noexcept { return groups_; }
  [[nodiscard]] int shard_count() const noexcept { return shard_count_; }
  enum class Kind : std::uint8_t { model, adapter, head };
  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  /// Includes the padding.
  [[nodiscard]] std::int64_t flat_size() const noexcept { return flat_size_; }
  /// Excludes the padding; a tied head counts once.
  [[nodiscard]] std::int64_t parameter_count() const noexcept { return parameter_count_; }
  /// Throws InternalError for an unknown name.
  [[nodiscard]] const ParameterEntry& entry(std::string_view name) const;
  /// Returns a tensor's view in a float32 vector [flat_size].
  template <class View>
  [[nodiscard]] View tensor(const View& flat, std::string_view name) const {
    expect(flat.elements() == flat_size_, "the flat vector's size differs from the table's");
    const ParameterEntry& found = entry(name);
    return {flat.template data<float>() + found.offset, DType::float32, found.shape, flat.device()};
  }
  /// Returns the elements [begin, end) of the flat vector that rank `shard` owns of a group.
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };
  [[nodiscard]] Range shard_range(std::int32_t group, int shard) const;

 private:
  void open_group(std::string name);
  void append(std::string name, Shape shape);
  void close_group();
  void add_layers(const LayerPlan& plan);
  void add_adapter(const TransformerConfig& config, const AdapterShape& adapter);
  void add_head(const TransformerConfig& config, const HeadShape& head);

  std::vector<ParameterEntry> entries_;
  std::vector<ParameterGroup> groups_;
  int shard_count_;
  Kind kind_ = Kind::model;
  std::int64_t flat_size_ = 0;
  std::int64_t parameter_count_ = 0;
};

/// Returns the view of `entry` in `group`, a vector that begins at `offset` of the flat vector.
template <class View>
[[nodiscard]] View tensor_in_group(const View& group, std::int64_t offset,
                                   const ParameterEntry& entry) {
  const auto begin = static_cast<std::size_t>(entry.offset - offset) * dtype_bytes(group.dtype());
  return {static_cast<typename View::template Element<std::byte>*>(group.raw()) + begin,
          group.dtype(), entry.shape, group.device()};
}

}  // namespace jforge
