#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoints/hf_model.h"
#include "model/transformer/layer_plan.h"
#include "tests/unit/checkpoints/hf_model_fixture.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HfConfigTest : public HfModelTest {
 protected:
  static ordered_json config_of(const char* architecture, const char* model_type) {
    ordered_json config = ordered_json::parse(kConfig);
    config["architectures"] = {architecture};
    config["model_type"] = model_type;
    return config;
  }
  TransformerConfig read(const ordered_json& config) const {
    write(source_ / "config.json", config.dump());
    return read_hf_config(source_);
  }
  std::string refusal_of(const ordered_json& config) {
    write(source_ / "config.json", config.dump());
    return config_refusal();
  }
};

TEST_F(HfConfigTest, ReadsTheConfiguration) {
  const TransformerConfig config = read_hf_config(source_);
  EXPECT_EQ(config.vocabulary_size, 33);
  EXPECT_EQ(config.hidden_size, 16);
  EXPECT_EQ(config.intermediate_size, 24);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_size(), 4);
  EXPECT_EQ(config.max_position_embeddings, 64);
  EXPECT_DOUBLE_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_DOUBLE_EQ(config.rope.theta, 1e6);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
}

TEST_F(HfConfigTest, TakesEosFromTheGenerationConfigurationFirst) {
  write(source_ / "generation_config.json", R"({"eos_token_id": [5, 9]})");
  EXPECT_THAT(read_hf_config(source_).eos_ids, ElementsAre(5, 9));
  write(source_ / "generation_config.json", R"({"temperature": 1.0})");
  EXPECT_THAT(read_hf_config(source_).eos_ids, ElementsAre(2));
  fs::remove(source_ / "generation_config.json");
  edit("eos_token_id", nullptr);
  EXPECT_TRUE(read_hf_config(source_).eos_ids.empty());
  edit("eos_token_id", 33);
  EXPECT_THAT(config_refusal(), HasSubstr("eos_token_id"));
  edit("eos_token_id", "</s>");
  EXPECT_THAT(config_refusal(), HasSubstr("eos_token_id"));
}

TEST_F(HfConfigTest, ReadsRopeParametersOfNewerFiles) {
  erase("rope_theta");
  EXPECT_THAT(config_refusal(), HasSubstr("rope_theta: missing"));
  ordered_json newer = ordered_json::parse(kConfig);
  newer.erase("rope_theta");
  newer["rope_parameters"] = {{"rope_theta", 5000.0}, {"rope_type", "default"}};
  EXPECT_DOUBLE_EQ(read(newer).rope.theta, 5000.0);
  edit("rope_parameters", {{"rope_theta", 5000.0}, {"rope_type", "yarn"}, {"factor", 4.0}});
  EXPECT_THAT(config_refusal(), AllOf(HasSubstr("rope_parameters"), HasSubstr("yarn")));
}

// As transformers 5 writes for version 4.
TEST_F(HfConfigTest, ReadsBothRopeSchemasIfTheyAgree) {
  ordered_json both = ordered_json::parse(kConfig);
  const ordered_json scaling{{"rope_type", "linear"}, {"factor", 4.0}};
  both["rope_scaling"] = scaling;
  both["rope_parameters"] = scaling;
  both["rope_parameters"]["rope_theta"] = both["rope_theta"];
  EXPECT_EQ(read(both).rope,
            (RotarySettings{.theta = 1e6, .scaling = RotaryScaling::linear, .factor = 4}));
  both["rope_scaling"]["factor"] = 8.0;
  EXPECT_THAT(refusal_of(both), AllOf(HasSubstr("rope_scaling"), HasSubstr("rope_parameters")));
}

TEST_F(HfConfigTest, ReadsNullHeadsAndSwishAsTransformersDoes) {
  edit("num_key_value_heads", nullptr);
  const TransformerConfig config = read_hf_config(source_);
  EXPECT_EQ(config.num_kv_heads, config.num_heads);
  edit("hidden_act", "swish");
  EXPECT_NO_THROW(static_cast<void>(read_hf_config(source_)));
}

TEST_F(HfConfigTest, ReadsRopeScalingInBothSpellings) {
  const ordered_json llama3{{"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  const auto with = [](ordered_json parameters, const char* key, const char* type) {
    parameters[key] = type;
    return parameters;
  };
  const RotarySettings expected{.theta = 1e6,
                                .scaling = RotaryScaling::llama3,
                                .factor = 8,
                                .low_frequency_factor = 1,
                                .high_frequency_factor = 4,
                                .original_positions = 8192};
  for (const char* const key : {"rope_type", "type"}) {
    edit("rope_scaling", with(llama3, key, "llama3"));
    EXPECT_EQ(read_hf_config(source_).rope, expected);
  }
  edit("rope_scaling", {{"type", "linear"}, {"factor", 4}});
  EXPECT_EQ(read_hf_config(source_).rope,
            (RotarySettings{.theta = 1e6, .scaling = RotaryScaling::linear, .factor = 4}));
  edit("rope_parameters", with(llama3, "rope_type", "llama3"));
  EXPECT_EQ(read_hf_config(source_).rope, expected);
  for (const auto& [change, named] : std::vector<std::pair<ordered_json, std::string>>{
           {{{"type", "linear"}}, "factor"},
           {{{"type", "linear"}, {"factor", 0.5}}, "factor"},
           {{{"type", "linear"}, {"factor", "4"}}, "factor"},
           {{{"type", "linear"}, {"factor", 4}, {"partial_rotary_factor", 0.5}}, "partial_rotary"},
           {{{"type", "dynamic"}, {"factor", 4}}, "dynamic"},
           {{{"rope_type", "longrope"}}, "longrope"},
           {{{"rope_type", 3}}, "rope_type 3"},
           {"linear", "not an object"},
           {with(with(llama3, "type", "llama3"), "original_max_position_embeddings", "8192"),
            "original_max_position"}}) {
    edit("rope_scaling", change);
    EXPECT_THAT(config_refusal(), HasSubstr(named)) << change.dump();
  }
}

TEST_F(HfConfigTest, RefusesRotaryKeysThatStandTwiceAndDiffer) {
  const ordered_json llama3{{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  edit("rope_scaling", {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 1e6}});
  EXPECT_EQ(read_hf_config(source_).rope.theta, 1e6);
  edit("rope_scaling", {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 1e5}});
  EXPECT_THAT(config_refusal(), HasSubstr("differs from the rotary embedding's own"));
  edit("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}});
  EXPECT_EQ(read_hf_config(source_).rope.theta, 1e6);
  edit("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}});
  EXPECT_THAT(config_refusal(), HasSubstr("differs from the rotary embedding's own"));
  for (const int beside : {8192, 4096}) {
    ordered_json config = ordered_json::parse(kConfig);
    config["rope_scaling"] = llama3;
    config["original_max_position_embeddings"] = beside;
    write(source_ / "config.json", config.dump());
    if (beside == 8192) {
      EXPECT_EQ(read_hf_config(source_).rope.original_positions, 8192);
    } else {
      EXPECT_THAT(config_refusal(), HasSubstr("it differs from the one of the rotary embedding"));
    }
  }
}

TEST_F(HfConfigTest, ReadsHeadSizesOfTheirOwn) {
  edit("head_dim", 4);  // 16 / 4, as without the key
  EXPECT_FALSE(read_hf_config(source_).own_head_size.has_value());
  edit("head_dim", 8);
  EXPECT_EQ(read_hf_config(source_).head_size(), 8);
  edit("head_dim", 3);
  EXPECT_THAT(config_refusal(), HasSubstr("head_dim"));
  edit("head_dim", std::int64_t{1} << 40);
  EXPECT_THAT(config_refusal(), HasSubstr("head_dim"));
}

TEST_F(HfConfigTest, RefusesWhatItDoesNotCompute) {
  const std::vector<std::pair<std::string, ordered_json>> unsupported{
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "llama"},  // does not match the architecture
      {"architectures", {"Qwen2ForSequenceClassification"}},
      {"model_type", "qwen3_moe"},
      {"hidden_act", "gelu"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}},
      {"use_sliding_window", true},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"quantization_config", {{"bits", 4}}},
      {"head_dim", 7},
      {"hidden_size", "16"},
      {"hidden_size", 16.5},
      {"hidden_size", 0},
      {"hidden_size", 18446744073709551615ULL},
      {"num_key_value_heads", 3},
      {"num_attention_heads", 16},
      {"vocab_size", -1},
      {"rms_norm_eps", 0.0},
      {"rope_theta", "large"},
      {"tie_word_embeddings", 1},
  };
  for (const auto& [key, value] : unsupported) {
    edit(key, value);
    const std::string named = key == "num_attention_heads" ? "head size" : key;
    EXPECT_THAT(config_refusal(), AllOf(HasSubstr("config.json"), HasSubstr(named)))
        << value.dump();
  }
  erase("vocab_size");
  EXPECT_THAT(config_refusal(), HasSubstr("vocab_size: missing"));
  write(source_ / "config.json", "{");
  EXPECT_THAT(config_refusal(), HasSubstr("not valid JSON"));
  write(source_ / "config.json", "[]");
  EXPECT_THAT(config_refusal(), HasSubstr("not a JSON object"));
  write(source_ / "config.json",
        R"({"architectures": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}");
  EXPECT_THAT(config_refusal(), HasSubstr("config.json: not valid JSON: nested more than 64"));
  fs::remove(source_ / "config.json");
  EXPECT_THAT(config_refusal(), HasSubstr("config.json"));
}

TEST_F(HfConfigTest, ReadsFamiliesWithoutBiases) {
  const auto llama = [&](const ordered_json& changes) {
    ordered_json config = config_of("LlamaForCausalLM", "llama");
    config.update(changes);
    write(source_ / "config.json", config.dump());
  };
  llama({{"attention_bias", false}, {"mlp_bias", false}});
  EXPECT_EQ(read_hf_config(source_).family, ModelFamily::llama);
  EXPECT_EQ(LayerPlan(read_hf_config(source_)).elements(LayerWeight::q_bias), 0);
  EXPECT_EQ(read_hf_config(source_).num_kv_heads, 2);
  // Llama 2's first files lack these keys.
  llama({{"num_key_value_heads", nullptr}, {"rope_theta", nullptr}});
  EXPECT_EQ(read_hf_config(source_).num_kv_heads, read_hf_config(source_).num_heads);
  EXPECT_DOUBLE_EQ(read_hf_config(source_).rope.theta, 10000.0);
  for (const char* const bias : {"attention_bias", "mlp_bias"}) {
    llama({{bias, true}});
    EXPECT_THAT(config_refusal(), HasSubstr(bias));
  }
  const auto mistral = [&](ordered_json changes) {
    changes["architectures"] = {"MistralForCausalLM"};
    changes["model_type"] = "mistral";
    llama(changes);
  };
  for (const ordered_json& full : {ordered_json(nullptr), ordered_json(64), ordered_json(4096)}) {
    mistral({{"sliding_window", full}});
    EXPECT_EQ(read_hf_config(source_).family, ModelFamily::mistral);
  }
  ordered_json short_window{{"max_position_embeddings", 4097}};
  for (const ordered_json& change : {short_window, ordered_json{{"sliding_window", 63}},
                                     ordered_json{{"sliding_window", "no"}}}) {
    mistral(change);
    EXPECT_THAT(config_refusal(), HasSubstr("sliding_window")) << change.dump();
  }
}

TEST_F(HfConfigTest, ReadsQwen3) {
  ordered_json config = config_of("Qwen3ForCausalLM", "qwen3");
  EXPECT_EQ(read(config).head_size(), 128) << "what transformers takes";
  config["head_dim"] = 6;
  const TransformerConfig qwen3 = read(config);
  EXPECT_EQ(qwen3.family, ModelFamily::qwen3);
  EXPECT_EQ(qwen3.head_size(), 6);
  EXPECT_EQ(LayerPlan(qwen3).elements(LayerWeight::q_norm), 6);
  EXPECT_EQ(LayerPlan(qwen3).elements(LayerWeight::q_bias), 0);
  config["attention_bias"] = true;
  EXPECT_THAT(refusal_of(config), HasSubstr("attention_bias"));
}

TEST_F(HfConfigTest, ReadsSmolLM3) {
  ordered_json config = config_of("SmolLM3ForCausalLM", "smollm3");
  config["num_hidden_layers"] = 9;
  config.erase("tie_word_embeddings");
  config.erase("rope_theta");
  const TransformerConfig absent = read(config);
  EXPECT_THAT(absent.layers_without_rope, ElementsAre(3, 7)) << "what transformers takes";
  EXPECT_EQ(absent.rope.theta, 2e6);
  EXPECT_TRUE(absent.tie_word_embeddings);
  const LayerPlan plan(absent);
  EXPECT_EQ(plan.elements(LayerWeight::q_bias), 0);
  EXPECT_EQ(plan.rope[3].scaling, RotaryScaling::off);
  EXPECT_EQ(plan.rope[4], absent.rope);
  config["no_rope_layer_interval"] = 2;
  EXPECT_THAT(read(config).layers_without_rope, ElementsAre(1, 3, 5, 7));
  config["no_rope_layers"] = {0, 1, 1, 1, 1, 1, 1, 1, 0, 0};
  EXPECT_THAT(read(config).layers_without_rope, ElementsAre(0, 8));
  const std::vector<ordered_json> refused{{1, 0}, "all", {1, 1, 1, 1, 1, 1, 1, 1, 2}};
  for (const ordered_json& layers : refused) {
    config["no_rope_layers"] = layers;
    EXPECT_THAT(refusal_of(config), HasSubstr("no_rope_layers")) << layers;
  }
  config.erase("no_rope_layers");
  config["no_rope_layer_interval"] = 0;
  EXPECT_THAT(refusal_of(config), HasSubstr("no_rope_layer_interval"));
}

TEST_F(HfConfigTest, ReadsOlmo2) {
  ordered_json config = config_of("Olmo2ForCausalLM", "olmo2");
  config["num_key_value_heads"] = nullptr;
  config.erase("rope_theta");
  const TransformerConfig olmo2 = read(config);
  EXPECT_EQ(olmo2.num_kv_heads, 4) << "what transformers takes";
  EXPECT_EQ(olmo2.rope.theta, 1e4);
  EXPECT_EQ(LayerPlan(olmo2).elements(LayerWeight::k_norm), 16);
  EXPECT_EQ(LayerPlan(olmo2).elements(LayerWeight::attention_norm), 0);
  config["attention_bias"] = true;
  EXPECT_THAT(refusal_of(config), HasSubstr("config.json: attention_bias: true is not supported"));
  config["attention_bias"] = false;
  config.erase("rms_norm_eps");
  EXPECT_THAT(refusal_of(config), HasSubstr("rms_norm_eps: missing"));
}

TEST_F(HfConfigTest, ReadsGranite) {
  ordered_json config = config_of("GraniteForCausalLM", "granite");
  EXPECT_EQ(read(config).multipliers,
            (Multipliers{.embedding = 1, .attention = 1, .residual = 1, .logits = 1}))
      << "what transformers takes";
  config.update({{"embedding_multiplier", 12},
                 {"attention_multiplier", 0.125},
                 {"residual_multiplier", 0.5},
                 {"logits_scaling", 8.0}});
  const LayerPlan plan(read(config));
  EXPECT_EQ(plan.embedding_factor, 24);
  EXPECT_EQ(plan.stream_epsilon, 4 * plan.epsilon);
  EXPECT_EQ(plan.rope[1].scale, 0.5) << "0.125 instead of 1 / √4, half each of q and k";
  EXPECT_EQ(plan.hidden_factor, 0.125F);
  for (const auto& [key, value] : kMultipliers) {
    for (const ordered_json& wrong : {ordered_json(0), ordered_json("12"), ordered_json(-1)}) {
      ordered_json changed = config;
      changed[key] = wrong;
      EXPECT_THAT(refusal_of(changed), AllOf(HasSubstr("config.json"), HasSubstr(key))) << wrong;
    }
  }
}

TEST_F(HfConfigTest, AcceptsModelTypeWithoutArchitectures) {
  erase("architectures");
  EXPECT_EQ(read_hf_config(source_).num_layers, 2);
}

}  // namespace
}  // namespace jforge
