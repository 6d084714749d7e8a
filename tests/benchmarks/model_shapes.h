#pragma once

/// Shapes of published models, and options that choose and change one.

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <utility>

#include "model/transformer/transformer_config.h"
#include "runtime/error.h"

namespace jforge {

/// Throws ConfigError if `name` is unknown.
inline TransformerConfig named_shape(const std::string& name) {
  TransformerConfig config;
  config.tie_word_embeddings = true;
  config.max_position_embeddings = 32768;
  config.rope.theta = 1e6;
  const auto set = [&](std::int64_t hidden, std::int64_t intermediate, std::int64_t layers,
                       std::int64_t heads, std::int64_t kv_heads, std::int64_t vocabulary) {
    config.hidden_size = hidden;
    config.intermediate_size = intermediate;
    config.num_layers = layers;
    config.num_heads = heads;
    config.num_kv_heads = kv_heads;
    config.vocabulary_size = vocabulary;
  };
  if (name == "qwen2.5-7b") {
    config.tie_word_embeddings = false;
    set(3584, 18944, 28, 28, 4, 152064);
  } else if (name == "qwen2.5-0.5b") {
    set(896, 4864, 24, 14, 2, 151936);
  } else if (name == "quickstart") {
    config.rope.theta = TransformerConfig{}.rope.theta;
    set(128, 320, 6, 4, 2, 768);
  } else {
    throw ConfigError("--shape " + name + ": known are qwen2.5-7b, qwen2.5-0.5b, quickstart");
  }
  return config;
}

/// --shape and changes to it.
class ShapeOptions {
 public:
  void add_to(CLI::App& app) {
    app.add_option("--shape", name_, "qwen2.5-7b | qwen2.5-0.5b | quickstart")
        ->capture_default_str();
    for (const auto& [option, field] : kFields) {
      app.add_option(option, given_.*field, "instead of the shape's");
    }
  }
  /// Throws ConfigError if the shape is unknown or the changes do not fit it.
  [[nodiscard]] TransformerConfig model() const {
    TransformerConfig model = named_shape(name_);
    for (const auto& [option, field] : kFields) {
      if (given_.*field != 0) {
        model.*field = given_.*field;
      }
    }
    model.validate();
    return model;
  }
  /// Returns the shape's name and the changes.
  [[nodiscard]] std::string description() const {
    std::string text = name_;
    for (const auto& [option, field] : kFields) {
      if (given_.*field != 0) {
        text += std::string(" ") + option + " " + std::to_string(given_.*field);
      }
    }
    return text;
  }

 private:
  static constexpr std::array<std::pair<const char*, std::int64_t TransformerConfig::*>, 6> kFields{
      {{"--hidden", &TransformerConfig::hidden_size},
       {"--intermediate", &TransformerConfig::intermediate_size},
       {"--layers", &TransformerConfig::num_layers},
       {"--heads", &TransformerConfig::num_heads},
       {"--kv-heads", &TransformerConfig::num_kv_heads},
       {"--vocabulary", &TransformerConfig::vocabulary_size}}};

  std::string name_ = "qwen2.5-0.5b";
  TransformerConfig given_;  ///< 0: the shape's
};

}  // namespace jforge
