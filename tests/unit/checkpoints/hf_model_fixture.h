#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "checkpoints/hf_model.h"
#include "checkpoints/safetensors.h"
#include "model/transformer/weight_init.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/whole_weights.h"

namespace jforge {

inline constexpr const char* kConfig = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 33, "tie_word_embeddings": false, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "max_position_embeddings": 64, "torch_dtype": "float32",
  "use_sliding_window": false, "sliding_window": 32, "rope_scaling": null, "eos_token_id": 2,
  "max_window_layers": 21, "initializer_range": 0.02})";

class HfModelTest : public ::testing::Test {
 protected:
  HfModelTest() {
    std::filesystem::create_directories(source_);
    write(source_ / "config.json", kConfig);
  }

  static void write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  /// Removes the key if `value` is discarded.
  void edit(const std::string& key, const nlohmann::ordered_json& value) {
    nlohmann::ordered_json config = nlohmann::ordered_json::parse(kConfig);
    config[key] = value;
    write(source_ / "config.json", config.dump());
  }
  void erase(const std::string& key) {
    nlohmann::ordered_json config = nlohmann::ordered_json::parse(kConfig);
    config.erase(key);
    write(source_ / "config.json", config.dump());
  }
  template <class Action>
  static std::string refusal(const Action& action) {
    return test::message_of<DataError>(action);
  }
  std::string config_refusal() {
    return refusal([&] { (void)read_hf_config(source_); });
  }

  struct Model {
    TransformerConfig config;
    ParameterTable table;
    std::vector<float> values;
    [[nodiscard]] TensorView flat() { return {values.data(), {table.flat_size()}}; }
  };
  Model make_model(int shard_count = 1) {
    Model model{read_hf_config(source_), ParameterTable(read_hf_config(source_), shard_count), {}};
    model.values.resize(static_cast<std::size_t>(model.table.flat_size()));
    initialise_weights(model.table, model.flat(), 7, model.config.num_layers);
    return model;
  }
  static std::vector<SafetensorsTensor> tensors_of(const Model& model) {
    std::vector<SafetensorsTensor> tensors;
    for (const ParameterEntry& entry : model.table.entries()) {
      SafetensorsTensor tensor{entry.name, {}, {}, DType::float32};
      for (int dim = 0; dim < entry.shape.rank(); ++dim) {
        tensor.shape.push_back(entry.shape[dim]);
      }
      tensor.values = std::span(model.values)
                          .subspan(static_cast<std::size_t>(entry.offset),
                                   static_cast<std::size_t>(entry.shape.elements()));
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }
  static void load(const std::filesystem::path& directory, Model& model) {
    test::load_hf_weights(directory, model.config, model.table, model.flat());
  }

  test::TemporaryDirectory scratch_;
  const std::filesystem::path root_ = scratch_.path();
  const std::filesystem::path source_ = root_ / "source";
};

}  // namespace jforge
