#pragma once

/// The one description of a model's layers. The parameter table, both transformers, the planner and
/// the exporter read it: a new dense family is a row of family_traits() and at most a new kind
/// here.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/kernels/packed_plan.h"
#include "model/kernels/rotary_settings.h"
#include "model/transformer/transformer_config.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// The weights that a layer can have. A sublayer's norm comes before its input or after its output;
/// no layer has `none`.
enum class LayerWeight : std::uint8_t {
  attention_norm,
  q,
  q_bias,
  k,
  k_bias,
  v,
  v_bias,
  q_norm,
  k_norm,
  o,
  attention_output_norm,
  feed_forward_norm,
  gate,
  up,
  down,
  feed_forward_output_norm,
  none
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
  std::int64_t query;      ///< H · D
  std::int64_t key_value;  ///< Hkv · D
  float epsilon;           ///< Of RMS norms other than the residual stream's.
  /// The residual stream is stored divided by the residual multiplier, so that a sublayer's output
  /// is added as it is. This epsilon, divided by the multiplier's square, gives the same norms.
  float stream_epsilon;
  float embedding_factor;              ///< Multiplies embeddings.
  float hidden_factor;                 ///< Multiplies the final norm's output, to scale the logits.
  std::vector<RotarySettings> rope;    ///< [L] Scaled by the attention multiplier.
  std::vector<PlannedWeight> weights;  ///< Of each layer, in the order of the flat vector.

  [[nodiscard]] std::int64_t num_layers() const { return std::ssize(rope); }
  /// Returns the elements of one layer's matrices (rank 2), or of its norms and biases (rank 1).
  [[nodiscard]] std::int64_t elements(int rank) const;
  /// Returns 0 if layers have no such weight.
  [[nodiscard]] std::int64_t elements(LayerWeight weight) const;
};

}  // namespace jforge
