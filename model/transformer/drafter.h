#pragma once

/// What can be trained beside a frozen model to propose its tokens. Rows without the drafter keep
/// the model's bits.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/transformer/layer_plan.h"
#include "runtime/ids.h"

namespace jforge {

/// Low-rank additions to the model's projections, which act on drafting rows only (LoRA, Hu et al.
/// 2021, gated by row): y = x · Wᵀ + (alpha / rank) · (x · Aᵀ) · Bᵀ.
struct AdapterShape {
  std::int32_t rank = 64;
  double alpha = 128;
  /// Projections that have an addition, in the order of LayerPlan::weights.
  std::vector<LayerWeight> targets = {LayerWeight::q,   LayerWeight::k,    LayerWeight::v,
                                      LayerWeight::o,   LayerWeight::gate, LayerWeight::up,
                                      LayerWeight::down};

  [[nodiscard]] float scale() const { return static_cast<float>(alpha / rank); }
  bool operator==(const AdapterShape&) const = default;
};

/// Decoder layers of Qwen3's form that read the model's features (DFlash, arXiv 2602.06036; causal
/// within a block as JetSpec, 2606.18394). A block's rows are the newest token and mask tokens,
/// embedded by the model; row i > 0 proposes the token at its own position, by the model's head.
/// Keys and values of earlier positions come, in every layer, from the context
/// norm(Σ_i feature_i · fc_iᵀ), where feature_i is the residual stream after layer features[i].
struct HeadShape {
  std::int32_t layers = 1;
  /// 0-based, ascending; not the model's last layer. Empty: default_features() of `layers`.
  std::vector<std::int32_t> features;
  TokenId mask_token = -1;  ///< −1: the vocabulary's last.

  bool operator==(const HeadShape&) const = default;
};

using DrafterShape = std::variant<AdapterShape, HeadShape>;

/// What a decoding method needs beside the model.
enum class DrafterNeed { nothing, drafter, head };

/// Projections by their names in configurations and in PEFT's target_modules, in LayerPlan's order.
inline constexpr std::pair<LayerWeight, const char*> kProjections[] = {
    {LayerWeight::q, "q_proj"},      {LayerWeight::k, "k_proj"},       {LayerWeight::v, "v_proj"},
    {LayerWeight::o, "o_proj"},      {LayerWeight::gate, "gate_proj"}, {LayerWeight::up, "up_proj"},
    {LayerWeight::down, "down_proj"}};

/// Names of A [rank, K] and B [N, rank] in an adapter's table, for a matrix [N, K]:
/// "model.layers.0.self_attn.q_proj.lora_A.weight". In PEFT's files "base_model.model." precedes
/// them.
[[nodiscard]] std::string adapter_in(const PlannedWeight& weight, std::int64_t layer);
[[nodiscard]] std::string adapter_out(const PlannedWeight& weight, std::int64_t layer);

/// Names of fc_i [C, C] and of the context's norm [C] in a head's table.
[[nodiscard]] std::string head_feature(std::size_t index);
inline constexpr const char* kContextNorm = "hidden_norm.weight";

/// Returns the shape with its defaults for `model`.
[[nodiscard]] HeadShape completed(HeadShape shape, const TransformerConfig& model);

/// Returns the layers of a completed head as a model's. Throws ConfigError naming the key if the
/// model cannot have such a head.
[[nodiscard]] TransformerConfig head_config(const TransformerConfig& model, const HeadShape& shape);

/// Returns the layers that DFlash reads with `count` features, evenly spread from the second to the
/// third last; in a model of fewer than five layers from the first to the second last.
[[nodiscard]] std::vector<std::int32_t> default_features(std::int64_t model_layers,
                                                         std::int64_t count);

}  // namespace jforge
