#pragma once

/// What the layers of a model consist of, described once. The parameter table, both transformers,
/// the planner and the exporter read it, so that a new dense family is a row of family_traits() and
/// at most one new kind here.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/kernels/packed_plan.h"
#include "model/kernels/rotary_settings.h"
#include "model/transformer/transformer_config.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Every weight that a layer can have; each family has some of them.
enum class LayerWeight : std::uint8_t {
  attention_norm,  ///< Before the projections of queries, keys and values.
  q,
  q_bias,
  k,
  k_bias,
  v,
  v_bias,
  q_norm,
  k_norm,
  o,
  attention_output_norm,  ///< After o.
  feed_forward_norm,      ///< Before gate and up.
  gate,
  up,
  down,
  feed_forward_output_norm,  ///< After down.
  none                       ///< No layer has it.
};

/// One value for each LayerWeight.
template <class Value>
class PerLayerWeight {
 public:
  Value& operator[](LayerWeight weight) { return values_.at(static_cast<std::size_t>(weight)); }
  const Value& operator[](LayerWeight weight) const {
    return values_.at(static_cast<std::size_t>(weight));
  }

 private:
  std::array<Value, static_cast<std::size_t>(LayerWeight::none) + 1> values_{};
};

struct PlannedWeight {
  LayerWeight weight;
  const char* name;  ///< Hugging Face name without the layer: "self_attn.q_proj.weight".
  Shape shape;       ///< Matrices [N, K], norms and biases [N].

  /// "model.layers.0.self_attn.q_proj.weight"
  [[nodiscard]] std::string name_in(std::int64_t layer) const;
};

struct LayerPlan {
  /// Requires: config.validate() does not throw.
  explicit LayerPlan(const TransformerConfig& config);

  std::int64_t hidden;  ///< C
  std::int64_t wide;    ///< F
  AttentionHeads heads;
  std::int64_t query;                  ///< H · D
  std::int64_t key_value;              ///< Hkv · D
  float epsilon;         ///< Of RMS norms, but for those of the residual stream.
  float stream_epsilon;  ///< Of those.
  /// Of embeddings. The residual stream is kept divided by the residual multiplier: its norms see
  /// no difference if their epsilon is divided by the multiplier's square.
  float embedding_factor;
  float hidden_factor;  ///< Of what the last norm leaves, for logits are divided.
  std::vector<RotarySettings> rope;    ///< Of each layer; scaled so that attention is as it multiplies.
  std::vector<PlannedWeight> weights;  ///< Of one layer, in the order of the flat vector.

  [[nodiscard]] std::int64_t num_layers() const { return std::ssize(rope); }
  /// Returns the number of elements in one layer's matrices (rank 2) or norms and biases (rank 1).
  [[nodiscard]] std::int64_t elements(int rank) const;
  /// Returns the weight's number of elements, 0 if layers have no such weight.
  [[nodiscard]] std::int64_t elements(LayerWeight weight) const;
};

}  // namespace jforge
