#include "model/transformer/parameter_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/message_of.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

TEST(ParameterTable, CoversTheFlatVectorWithoutOverlap) {
  for (const auto& [tied, family] : {std::pair(false, ModelFamily::qwen2),
                                     {true, ModelFamily::qwen2},
                                     {false, ModelFamily::qwen3},
                                     {false, ModelFamily::olmo2}}) {
    for (const int shards : {1, 2, 3, 7}) {
      const ParameterTable table(test::tiny_config(tied, family), shards);
      std::vector<int> owners(static_cast<std::size_t>(table.flat_size()), 0);
      std::int64_t elements = 0;
      for (const ParameterEntry& entry : table.entries()) {
        const ParameterGroup& group = table.groups()[static_cast<std::size_t>(entry.group)];
        EXPECT_GE(entry.offset, group.offset);
        EXPECT_LE(entry.offset + entry.shape.elements(), group.offset + group.size);
        EXPECT_EQ(entry.decay, entry.shape.rank() == 2) << entry.name;
        elements += entry.shape.elements();
        for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
          ++owners[static_cast<std::size_t>(entry.offset + i)];
        }
      }
      EXPECT_EQ(elements, table.parameter_count());
      EXPECT_EQ(std::ranges::count(owners, 1), elements);
      EXPECT_EQ(std::ranges::count(owners, 0), table.flat_size() - elements);
    }
  }
}

TEST(ParameterTable, ShardsTileEveryGroupEvenly) {
  const ParameterTable table(test::tiny_config(false), 3);
  std::int64_t reached = 0;
  for (std::int32_t group = 0; group < static_cast<std::int32_t>(table.groups().size()); ++group) {
    EXPECT_EQ(table.groups()[static_cast<std::size_t>(group)].padded_size % (3 * 16), 0);
    for (int shard = 0; shard < 3; ++shard) {
      const ParameterTable::Range range = table.shard_range(group, shard);
      EXPECT_EQ(range.begin, reached);
      EXPECT_EQ(range.end - range.begin,
                table.groups()[static_cast<std::size_t>(group)].padded_size / 3);
      reached = range.end;
    }
  }
  EXPECT_EQ(reached, table.flat_size());
  EXPECT_THROW((void)table.shard_range(0, 3), InternalError);
  EXPECT_THROW((void)table.shard_range(99, 0), InternalError);
}

TEST(ParameterTable, TensorOffsetsInAGroupDoNotDependOnTheShardCount) {
  const ParameterTable one(test::tiny_config(false), 1);
  const ParameterTable five(test::tiny_config(false), 5);
  for (std::size_t i = 0; i < one.entries().size(); ++i) {
    const auto within = [](const ParameterTable& table, std::size_t index) {
      const ParameterEntry& entry = table.entries()[index];
      return entry.offset - table.groups()[static_cast<std::size_t>(entry.group)].offset;
    };
    EXPECT_EQ(within(one, i), within(five, i));
  }
}

TEST(ParameterTable, NamesAndGroupsFollowHuggingFace) {
  const ParameterTable untied(test::tiny_config(false), 1);
  const ParameterTable tied(test::tiny_config(true), 1);
  EXPECT_EQ(untied.entries().size(), 1U + 3U * 12U + 2U);
  EXPECT_EQ(untied.entry("lm_head.weight").shape, (Shape{37, 24}));
  EXPECT_EQ(untied.entry("model.layers.2.self_attn.k_proj.bias").shape, (Shape{8}));
  EXPECT_EQ(untied.entry("model.layers.1.mlp.down_proj.weight").shape, (Shape{24, 40}));
  EXPECT_THROW((void)tied.entry("lm_head.weight"), InternalError);
  EXPECT_EQ(untied.parameter_count() - tied.parameter_count(), 37 * 24);
  EXPECT_EQ(untied.groups().front().name, "embedding");
  EXPECT_EQ(untied.groups()[2].name, "layer.1");
  EXPECT_EQ(untied.groups().back().name, "head");
  EXPECT_EQ(tied.groups().back().size, 24);
  const ParameterTable qwen3(test::tiny_config(true, ModelFamily::qwen3), 1);
  EXPECT_EQ(qwen3.entries().size(), 1U + 3U * 11U + 1U);
  EXPECT_EQ(qwen3.entry("model.layers.0.self_attn.q_norm.weight").shape, (Shape{6}));
  EXPECT_EQ(qwen3.entry("model.layers.2.self_attn.k_norm.weight").shape, (Shape{6}));
  EXPECT_EQ(qwen3.entry("model.layers.0.self_attn.q_proj.weight").shape, (Shape{36, 24}));
  EXPECT_EQ(qwen3.entry("model.layers.0.self_attn.o_proj.weight").shape, (Shape{24, 36}));
  const ParameterTable olmo2(test::tiny_config(true, ModelFamily::olmo2), 1);
  EXPECT_EQ(olmo2.entries().size(), 1U + 3U * 11U + 1U);
  EXPECT_EQ(olmo2.entry("model.layers.0.self_attn.q_norm.weight").shape, (Shape{24}));
  EXPECT_EQ(olmo2.entry("model.layers.2.self_attn.k_norm.weight").shape, (Shape{8}));
  EXPECT_EQ(olmo2.entry("model.layers.2.post_feedforward_layernorm.weight").shape, (Shape{24}));
  EXPECT_THROW((void)olmo2.entry("model.layers.0.input_layernorm.weight"), InternalError);
}

TEST(TransformerConfig, ValidateNamesTheField) {
  const auto refusal = [](const auto& change) -> std::string {
    TransformerConfig config = test::tiny_config(false);
    change(config);
    return test::message_of<DataError>([&] { config.validate(); });
  };
  EXPECT_EQ(refusal([](TransformerConfig&) {}), "nothing thrown");
  EXPECT_THAT(refusal([](auto& c) { c.vocabulary_size = 0; }), HasSubstr("vocab_size"));
  EXPECT_THAT(refusal([](auto& c) { c.vocabulary_size = std::int64_t{1} << 40; }),
              HasSubstr("vocab_size"));
  EXPECT_THAT(refusal([](auto& c) { c.num_heads = 5; }), HasSubstr("num_attention_heads"));
  EXPECT_THAT(refusal([](auto& c) { c.num_kv_heads = 4; }), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(refusal([](auto& c) { c.num_heads = 8; }), HasSubstr("head size"));
  EXPECT_THAT(refusal([](auto& c) { c.num_layers = -1; }), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(refusal([](auto& c) { c.rms_norm_eps = std::nan(""); }), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(refusal([](auto& c) { c.rope.theta = 0; }), HasSubstr("rope_theta"));
  EXPECT_THAT(refusal([](auto& c) { c.eos_ids = {37}; }), HasSubstr("eos_token_id"));
  EXPECT_EQ(refusal([](auto& c) { c.own_head_size = 10; }), "nothing thrown");
  EXPECT_THAT(refusal([](auto& c) { c.own_head_size = 5; }), HasSubstr("head_dim"));
  EXPECT_THAT(refusal([](auto& c) { c.own_head_size = 0; }), HasSubstr("head_dim"));
  EXPECT_THAT(refusal([](auto& c) { c.own_head_size = 1 << 20; }), HasSubstr("head_dim"));
  const RotarySettings llama3{.theta = 5e5,
                              .scaling = RotaryScaling::llama3,
                              .factor = 8,
                              .low_frequency_factor = 1,
                              .high_frequency_factor = 4,
                              .original_positions = 8192};
  EXPECT_EQ(refusal([&](auto& c) { c.rope = llama3; }), "nothing thrown");
  const auto scaled = [&](const auto& change) {
    return refusal([&](TransformerConfig& c) {
      c.rope = llama3;
      change(c.rope);
    });
  };
  EXPECT_THAT(scaled([](auto& rope) { rope.factor = 0.5; }), HasSubstr("factor"));
  EXPECT_THAT(scaled([](auto& rope) { rope.low_frequency_factor = 4; }),
              HasSubstr("high_freq_factor"));
  EXPECT_THAT(scaled([](auto& rope) { rope.original_positions = 0; }),
              HasSubstr("original_max_position_embeddings"));
}

TEST(WeightInit, HasTheStatedDistributionWhateverTheShardCount) {
  const TransformerConfig config = test::tiny_config(false);
  const auto fill = [&](int shards, std::uint64_t seed) {
    const ParameterTable table(config, shards);
    std::vector<float> values(static_cast<std::size_t>(table.flat_size()), 5.0F);
    initialise_weights(table, {values.data(), {table.flat_size()}}, seed, config.num_layers);
    std::vector<float> tensors;
    std::int64_t zeros = 0;
    for (const ParameterEntry& entry : table.entries()) {
      const auto begin = values.begin() + entry.offset;
      tensors.insert(tensors.end(), begin, begin + entry.shape.elements());
    }
    zeros = std::ranges::count(values, 0.0F);
    EXPECT_GE(zeros, table.flat_size() - table.parameter_count());
    return tensors;
  };
  EXPECT_EQ(fill(1, 4), fill(3, 4));
  EXPECT_NE(fill(1, 4), fill(1, 5));

  const ParameterTable table(config, 1);
  const std::vector<float> values = [&] {
    std::vector<float> filled(static_cast<std::size_t>(table.flat_size()));
    initialise_weights(table, {filled.data(), {table.flat_size()}}, 4, config.num_layers);
    return filled;
  }();
  const auto deviation = [&](const char* name) {
    const ParameterEntry& entry = table.entry(name);
    double sum = 0;
    for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
      const double value = values[static_cast<std::size_t>(entry.offset + i)];
      sum += value * value;
    }
    return std::sqrt(sum / static_cast<double>(entry.shape.elements()));
  };
  EXPECT_NEAR(deviation("model.embed_tokens.weight"), 0.02, 0.002);
  EXPECT_NEAR(deviation("model.layers.0.mlp.up_proj.weight"), 0.02, 0.002);
  EXPECT_NEAR(deviation("model.layers.0.mlp.down_proj.weight"), 0.02 / std::sqrt(6.0), 0.001);
  EXPECT_NEAR(deviation("model.layers.2.self_attn.o_proj.weight"), 0.02 / std::sqrt(6.0), 0.001);
  EXPECT_EQ(deviation("model.layers.0.input_layernorm.weight"), 1.0);
  EXPECT_EQ(deviation("model.layers.0.self_attn.q_proj.bias"), 0.0);
}

}  // namespace
}  // namespace jforge
