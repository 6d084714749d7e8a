#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/byte_level.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/weight_init.h"
#include "runtime/random.h"
#include "tests/support/tiny_config.h"
#include "tests/support/write_text.h"
#include "workers/evaluate/evaluator.h"

namespace jforge::test {

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// 256 bytes, one merge, special tokens 300 to 302; without a chat template, so ChatML must be
/// forced.
inline void write_byte_tokenizer(const std::filesystem::path& directory) {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[spell_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  }
  vocabulary["he"] = 256;
  nlohmann::json added = nlohmann::json::object();
  int id = 300;
  for (const char* token : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    added[std::to_string(id++)] = {{"content", token},     {"special", true},
                                   {"lstrip", false},      {"rstrip", false},
                                   {"single_word", false}, {"normalized", false}};
  }
  const nlohmann::json config = {{"tokenizer_class", "Qwen2Tokenizer"},
                                 {"add_prefix_space", false},
                                 {"eos_token", "<|im_end|>"},
                                 {"pad_token", "<|endoftext|>"},
                                 {"bos_token", nullptr},
                                 {"added_tokens_decoder", added}};
  write_text(directory / "vocab.json", vocabulary.dump());
  write_text(directory / "merges.txt", "#version: 0.2\nh e\n");
  write_text(directory / "tokenizer_config.json", config.dump());
}

/// Problem i asks about i things.
inline void write_benchmark(const std::filesystem::path& data,
                            const std::vector<std::string>& answers) {
  std::string text;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const nlohmann::json record = {{"question", fmt::format("{} the hen lays {} eggs. How many?",
                                                            std::string(i % 7, 'A'), i * i)},
                                   {"answer", "All of them.\n#### " + answers[i]}};
    text += record.dump() + "\n";
  }
  write_text(data / "gsm8k" / "test.jsonl", text);
}

/// Large weights, so that predictions are far from ties; vocabulary 310.
class RandomModel {
 public:
  explicit RandomModel(std::uint64_t seed = 5, std::int64_t positions = 512)
      : config_(make_config(positions)),
        table_(config_, 1),
        values_(static_cast<std::size_t>(table_.flat_size())) {
    const TensorView flat(values_.data(), {table_.flat_size()});
    initialise_weights(table_, flat, seed, config_.num_layers);
    for (const ParameterEntry& entry : table_.entries()) {
      for (std::int64_t i = 0; entry.shape.rank() == 2 && i < entry.shape.elements(); ++i) {
        values_[static_cast<std::size_t>(entry.offset + i)] *= 12.0F;
      }
    }
  }

  [[nodiscard]] const TransformerConfig& config() const { return config_; }
  [[nodiscard]] const ParameterTable& table() const { return table_; }
  [[nodiscard]] ConstTensorView weights() const { return {values_.data(), {table_.flat_size()}}; }
  [[nodiscard]] ModelUnderTest under_test(const std::string& name,
                                          const std::filesystem::path& directory) const {
    const auto read = [this](const ParameterEntry& entry) {
      return table_.tensor(weights(), entry.name);
    };
    return {name, config_, table_, read, directory};
  }

 private:
  static TransformerConfig make_config(std::int64_t positions) {
    TransformerConfig config = tiny_config();
    config.vocabulary_size = 310;  // some more than the test tokenizer has
    config.max_position_embeddings = positions;
    config.eos_ids = {302};  // so that some random completions end
    for (TokenId id = 0; id < 12; ++id) {
      config.eos_ids.push_back(128 + 10 * id);
    }
    return config;
  }

  TransformerConfig config_;
  ParameterTable table_;
  std::vector<float> values_;
};

}  // namespace jforge::test
