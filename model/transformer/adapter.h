#pragma once

/// A drafter: low-rank additions to a frozen model's projections, which act on drafting rows only
/// (LoRA, Hu et al. 2021, gated by row): y = x · Wᵀ + (alpha / rank) · (x · Aᵀ) · Bᵀ. Rows without
/// it keep the model's bits.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/transformer/layer_plan.h"

namespace jforge {

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

}  // namespace jforge
