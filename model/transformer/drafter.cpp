#include "model/transformer/drafter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "runtime/error.h"

namespace jforge {
namespace {

/// "….q_proj.weight" with `part` before the last word.
std::string name_of_part(const PlannedWeight& weight, std::int64_t layer, std::string_view part) {
  std::string name = weight.name_in(layer);
  return name.insert(name.rfind('.'), part);
}

}  // namespace

std::string adapter_in(const PlannedWeight& weight, std::int64_t layer) {
  return name_of_part(weight, layer, ".lora_A");
}

std::string adapter_out(const PlannedWeight& weight, std::int64_t layer) {
  return name_of_part(weight, layer, ".lora_B");
}

std::string head_feature(std::size_t index) { return fmt::format("fc.{}.weight", index); }

HeadShape completed(HeadShape shape, const TransformerConfig& model) {
  if (shape.features.empty()) {
    shape.features = default_features(model.num_layers, shape.layers);
  }
  if (shape.mask_token == -1) {
    shape.mask_token = static_cast<TokenId>(model.vocabulary_size - 1);
  }
  return shape;
}

TransformerConfig head_config(const TransformerConfig& model, const HeadShape& shape) {
  const auto require = [](bool condition, const std::string& problem) {
    if (!condition) {
      throw ConfigError("train.drafter = \"head\": " + problem);
    }
  };
  require(model.multipliers == Multipliers{},
          "a model with multipliers (Granite) cannot have one; take \"adapter\"");
  require(model.num_layers >= 2, "the model has one layer; take \"adapter\"");
  require(shape.layers >= 1, fmt::format("drafter_layers is {}, not at least 1", shape.layers));
  require(shape.mask_token >= 0 && shape.mask_token < model.vocabulary_size,
          fmt::format("drafter_mask_token {} is outside the vocabulary of {}", shape.mask_token,
                      model.vocabulary_size));
  require(!shape.features.empty() && std::ranges::is_sorted(shape.features, std::less_equal<>()) &&
              shape.features.front() >= 0 && shape.features.back() < model.num_layers - 1,
          fmt::format("drafter_features must be ascending numbers of layers from 0 to {}",
                      model.num_layers - 2));
  TransformerConfig config = model;
  config.family = ModelFamily::qwen3;
  config.num_layers = shape.layers;
  config.layers_without_rope.clear();
  config.tie_word_embeddings = true;
  return config;
}

std::vector<std::int32_t> default_features(std::int64_t model_layers, std::int64_t count) {
  const bool few = model_layers < 5;
  const double first = few ? 0 : 1;
  const auto last = static_cast<double>(model_layers - (few ? 2 : 3));
  std::vector<std::int32_t> layers;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t middle = model_layers / 2;
    const double place = count == 1 ? static_cast<double>(middle)
                                    : first + static_cast<double>(i) * (last - first) /
                                                  static_cast<double>(count - 1);
    const auto layer = static_cast<std::int32_t>(std::min(std::nearbyint(place), last));
    if (layers.empty() || layers.back() < layer) {
      layers.push_back(std::max(layer, 0));
    }
  }
  return layers;
}

}  // namespace jforge
