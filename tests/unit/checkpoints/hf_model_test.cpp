#include "checkpoints/hf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoints/directory_checksums.h"
#include "checkpoints/safetensors.h"
#include "model/transformer/weight_init.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"
#include "tests/support/tiny_config.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char* const kConfig = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 33, "tie_word_embeddings": false, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "max_position_embeddings": 64, "torch_dtype": "float32",
  "use_sliding_window": false, "sliding_window": 32, "rope_scaling": null, "eos_token_id": 2,
  "max_window_layers": 21, "initializer_range": 0.02})";

class HfModelTest : public ::testing::Test {
 protected:
  HfModelTest()
      : root_(fs::temp_directory_path() / ("jforge-hf-" + std::to_string(::getpid()))),
        source_(root_ / "source") {
    fs::remove_all(root_);
    fs::create_directories(source_);
    write(source_ / "config.json", kConfig);
  }
  ~HfModelTest() override { fs::remove_all(root_); }

  static void write(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  /// The configuration with one key replaced, or removed when `value` is discarded.
  void edit(const std::string& key, const ordered_json& value) {
    ordered_json config = ordered_json::parse(kConfig);
    config[key] = value;
    write(source_ / "config.json", config.dump());
  }
  void erase(const std::string& key) {
    ordered_json config = ordered_json::parse(kConfig);
    config.erase(key);
    write(source_ / "config.json", config.dump());
  }
  template <class Action>
  static std::string refusal(const Action& action) {
    try {
      action();
    } catch (const DataError& error) {
      return error.what();
    }
    return "was not refused";
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
  /// Tensors of a model as they go to a file, for tests that damage one of them.
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
  static void load(const fs::path& directory, Model& model) {
    load_hf_weights(directory, model.config, model.table, model.flat());
  }

  fs::path root_;
  fs::path source_;
};

TEST_F(HfModelTest, TensorsAreReadOneByOne) {
  Model model = make_model();
  for (const DType stored : {DType::float32, DType::bfloat16}) {
    const fs::path directory = root_ / dtype_name(stored);
    export_hf_model(source_, directory, model.config, model.table, values_in(model.flat()),
                    {.stored = stored});
    Model whole = make_model();
    load(directory, whole);
    HfTensors tensors(directory, model.config, model.table);
    for (const ParameterEntry& entry : model.table.entries()) {
      const ConstTensorView tensor = tensors.read(entry);
      EXPECT_EQ(tensor.shape(), entry.shape);
      EXPECT_EQ(tensor.dtype(), stored);
      for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        const float value = stored == DType::float32 ? tensor.data<float>()[i]
                                                     : to_float(tensor.data<BFloat16>()[i]);
        ASSERT_EQ(value, whole.values[static_cast<std::size_t>(entry.offset + i)]) << entry.name;
      }
    }
  }
}

TEST_F(HfModelTest, ReadsTheConfiguration) {
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

TEST_F(HfModelTest, TakesEosFromTheGenerationConfigurationFirst) {
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

TEST_F(HfModelTest, ReadsRopeParametersOfNewerFiles) {
  erase("rope_theta");
  EXPECT_THAT(config_refusal(), HasSubstr("rope_theta: missing"));
  ordered_json newer = ordered_json::parse(kConfig);
  newer.erase("rope_theta");
  newer["rope_parameters"] = {{"rope_theta", 5000.0}, {"rope_type", "default"}};
  write(source_ / "config.json", newer.dump());
  EXPECT_DOUBLE_EQ(read_hf_config(source_).rope.theta, 5000.0);
  edit("rope_parameters", {{"rope_theta", 5000.0}, {"rope_type", "yarn"}, {"factor", 4.0}});
  EXPECT_THAT(config_refusal(), AllOf(HasSubstr("rope_parameters"), HasSubstr("yarn")));
}

TEST_F(HfModelTest, ReadsRopeScalingInBothSpellings) {
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
  edit("rope_parameters", with(llama3, "rope_type", "llama3"));  // Beside its rope_theta.
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

TEST_F(HfModelTest, RefusesRotaryKeysThatStandTwiceAndDiffer) {
  const ordered_json llama3{{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  edit("rope_scaling", {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 1e6}});
  EXPECT_EQ(read_hf_config(source_).rope.theta, 1e6);
  edit("rope_scaling", {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 1e5}});
  EXPECT_THAT(config_refusal(), HasSubstr("is not the one inside them"));
  edit("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}});
  EXPECT_EQ(read_hf_config(source_).rope.theta, 1e6);
  edit("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}});
  EXPECT_THAT(config_refusal(), HasSubstr("is not the one inside them"));
  for (const int beside : {8192, 4096}) {
    ordered_json config = ordered_json::parse(kConfig);
    config["rope_scaling"] = llama3;
    config["original_max_position_embeddings"] = beside;
    write(source_ / "config.json", config.dump());
    if (beside == 8192) {
      EXPECT_EQ(read_hf_config(source_).rope.original_positions, 8192);
    } else {
      EXPECT_THAT(config_refusal(), HasSubstr("it is not the one of the rotary embedding"));
    }
  }
}

TEST_F(HfModelTest, ReadsHeadSizesOfTheirOwn) {
  edit("head_dim", 4);  // 16 / 4: what an absent key means.
  EXPECT_FALSE(read_hf_config(source_).own_head_size.has_value());
  edit("head_dim", 8);
  EXPECT_EQ(read_hf_config(source_).head_size(), 8);
  edit("head_dim", 3);
  EXPECT_THAT(config_refusal(), HasSubstr("head_dim"));
  edit("head_dim", std::int64_t{1} << 40);
  EXPECT_THAT(config_refusal(), HasSubstr("head_dim"));
}

TEST_F(HfModelTest, RefusesWhatItDoesNotCompute) {
  const std::vector<std::pair<std::string, ordered_json>> unsupported{
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "llama"},  // does not go with the architecture
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

TEST_F(HfModelTest, WeightsOfAnotherKindAreNamed) {
  Model model = make_model();
  const auto said = [&] { return refusal([&] { load(source_, model); }); };
  EXPECT_THAT(said(), HasSubstr("a model needs one of them"));
  write(source_ / "pytorch_model.bin", "PK");
  EXPECT_THAT(said(), HasSubstr("pytorch_model.bin is not read"));
  write(source_ / "model.safetensors",
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 268\n");
  EXPECT_THAT(said(), HasSubstr("model.safetensors: a Git LFS pointer"));
  write(source_ / "adapter_config.json", "{}");
  EXPECT_THAT(config_refusal(), HasSubstr("holds a PEFT adapter"));
}

TEST_F(HfModelTest, ReadsFamiliesWithoutBiases) {
  const auto llama = [&](const ordered_json& changes) {
    ordered_json config = ordered_json::parse(kConfig);
    config["architectures"] = {"LlamaForCausalLM"};
    config["model_type"] = "llama";
    config.update(changes);
    write(source_ / "config.json", config.dump());
  };
  llama({{"attention_bias", false}, {"mlp_bias", false}});
  EXPECT_EQ(read_hf_config(source_).family, ModelFamily::llama);
  EXPECT_FALSE(read_hf_config(source_).attention_bias());
  EXPECT_EQ(read_hf_config(source_).num_kv_heads, 2);
  // What Llama 2's first files do not name.
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

TEST_F(HfModelTest, ReadsQwen3) {
  ordered_json config = ordered_json::parse(kConfig);
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["model_type"] = "qwen3";
  write(source_ / "config.json", config.dump());
  EXPECT_EQ(read_hf_config(source_).head_size(), 128) << "what transformers takes";
  config["head_dim"] = 6;
  write(source_ / "config.json", config.dump());
  const TransformerConfig qwen3 = read_hf_config(source_);
  EXPECT_EQ(qwen3.family, ModelFamily::qwen3);
  EXPECT_EQ(qwen3.head_size(), 6);
  EXPECT_TRUE(qwen3.query_key_norms());
  EXPECT_FALSE(qwen3.attention_bias());
  config["attention_bias"] = true;
  write(source_ / "config.json", config.dump());
  EXPECT_THAT(config_refusal(), HasSubstr("attention_bias"));
}

class HfFamilyTest : public HfModelTest, public ::testing::WithParamInterface<ModelFamily> {};

TEST_P(HfFamilyTest, ExportsUnderItsNames) {
  TransformerConfig config = test::tiny_config(false, GetParam());
  if (GetParam() == ModelFamily::llama) {
    config.rope = {.theta = 5e5,
                   .scaling = RotaryScaling::llama3,
                   .factor = 8,
                   .low_frequency_factor = 1,
                   .high_frequency_factor = 4,
                   .original_positions = 256};
  } else if (GetParam() == ModelFamily::mistral) {
    config.rope = {.theta = 100, .scaling = RotaryScaling::linear, .factor = 2};
    config.own_head_size = 10;
  }
  const ParameterTable table(config, 1);
  std::vector<float> values(static_cast<std::size_t>(table.flat_size()));
  const TensorView flat(values.data(), {table.flat_size()});
  initialise_weights(table, flat, 7, config.num_layers);
  fs::remove(source_ / "config.json");
  write(source_ / "tokenizer.json", "{}");
  export_hf_model(source_, root_ / "family", config, table, values_in(flat), {DType::float32});
  EXPECT_EQ(read_hf_config(root_ / "family"), config);
  std::vector<float> read(values.size());
  load_hf_weights(root_ / "family", config, table, {read.data(), {table.flat_size()}});
  EXPECT_EQ(read, values);
}

INSTANTIATE_TEST_SUITE_P(Families, HfFamilyTest,
                         ::testing::Values(ModelFamily::qwen2, ModelFamily::llama,
                                           ModelFamily::mistral, ModelFamily::qwen3));

TEST_F(HfModelTest, AcceptsModelTypeWithoutArchitectures) {
  erase("architectures");
  EXPECT_EQ(read_hf_config(source_).num_layers, 2);
}

TEST_F(HfModelTest, ExportAndImportRoundTrip) {
  Model model = make_model(/*shard_count=*/3);
  write(source_ / "tokenizer.json", "{\"kept\":  \"verbatim\"}\n");
  write(source_ / "chat_template.jinja", "{{ x }}");
  write(source_ / "pytorch_model.bin", "old weights");
  fs::create_directory(source_ / "checkpoints");
  fs::create_directory(source_ / "additional_chat_templates");
  write(source_ / "additional_chat_templates" / "tool_use.jinja", "{{ tools }}");
  const fs::path output = root_ / "made" / "model";
  export_hf_model(source_, output, model.config, model.table, values_in(model.flat()),
                  {DType::float32});

  EXPECT_EQ(read_file(output / "tokenizer.json"), "{\"kept\":  \"verbatim\"}\n");
  EXPECT_TRUE(fs::exists(output / "chat_template.jinja"));
  EXPECT_FALSE(fs::exists(output / "pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(output / "checkpoints"));
  EXPECT_EQ(read_file(output / "additional_chat_templates" / "tool_use.jinja"), "{{ tools }}");
  EXPECT_EQ(read_hf_config(output), model.config);
  EXPECT_FALSE(hf_matrices_are_bfloat16(output));
  // The padding of a polluted vector must be zeroed, so that ranks may reduce over it.
  std::vector<float> read(model.values.size(), 99.0F);
  load_hf_weights(output, model.config, model.table, {read.data(), {model.table.flat_size()}});
  EXPECT_EQ(read, model.values);
  for (const auto& item : fs::directory_iterator(root_ / "made")) {
    EXPECT_EQ(item.path().filename(), "model") << "left behind";
  }
}

TEST_F(HfModelTest, ExportKeepsOneTensorInMemoryAtATime) {
  Model model = make_model(/*shard_count=*/3);
  const fs::path whole = root_ / "whole";
  const fs::path single = root_ / "single";
  export_hf_model(source_, whole, model.config, model.table, values_in(model.flat()),
                  {DType::float32});
  std::vector<float> memory;
  std::size_t asked = 0;
  const auto values = [&](const ParameterEntry& entry) -> std::span<const float> {
    EXPECT_EQ(entry.name, model.table.entries()[asked++].name);
    const auto begin = model.values.begin() + entry.offset;
    memory.assign(begin, begin + entry.shape.elements());
    return memory;
  };
  export_hf_model(source_, single, model.config, model.table, values, {DType::float32});
  EXPECT_EQ(asked, model.table.entries().size());
  EXPECT_EQ(read_file(single / "model.safetensors"), read_file(whole / "model.safetensors"));
  const auto too_few = [&](const ParameterEntry& entry) { return values(entry).subspan(1); };
  asked = 0;
  EXPECT_THROW(
      export_hf_model(source_, single, model.config, model.table, too_few, {DType::float32}),
      InternalError);
}

TEST_F(HfModelTest, ExportsBfloat16AndUpdatesOnlyTheDtype) {
  Model model = make_model();
  const fs::path output = root_ / "bf16";
  export_hf_model(source_, output, model.config, model.table, values_in(model.flat()),
                  {DType::bfloat16});
  ordered_json expected = ordered_json::parse(kConfig);
  expected["torch_dtype"] = "bfloat16";
  EXPECT_EQ(ordered_json::parse(read_file(output / "config.json")).dump(), expected.dump());

  EXPECT_TRUE(hf_matrices_are_bfloat16(output));
  EXPECT_FALSE(hf_matrices_are_bfloat16(root_)) << "no weights there";

  Model read = make_model();
  load(output, read);
  for (std::size_t i = 0; i < read.values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(read.values[i]) & 0xFFFFU, 0U);
    ASSERT_LE(std::abs(read.values[i] - model.values[i]), std::abs(model.values[i]) / 256);
  }
}

TEST_F(HfModelTest, WritesShardsWithAnIndex) {
  Model model = make_model();
  const fs::path output = root_ / "sharded";
  export_hf_model(source_, output, model.config, model.table, values_in(model.flat()),
                  {.stored = DType::float32, .max_shard_bytes = 4000});
  EXPECT_FALSE(fs::exists(output / "model.safetensors"));
  const ordered_json index =
      ordered_json::parse(read_file(output / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], model.table.parameter_count() * 4);
  EXPECT_EQ(index["weight_map"].size(), model.table.entries().size());
  Model read = make_model();
  std::ranges::fill(read.values, 1.0F);
  load(output, read);
  EXPECT_EQ(read.values, model.values);

  fs::remove(output / "checksums.json");  // As if others had made the directory.
  const std::string shard = index["weight_map"]["model.norm.weight"];
  const auto damaged = [&](const std::string& key, const ordered_json& value) {
    ordered_json changed = index;
    changed["weight_map"][key] = value;
    write(output / "model.safetensors.index.json", changed.dump());
    return refusal([&] { load(output, read); });
  };
  EXPECT_THAT(damaged("model.norm.weight", "../evil.safetensors"), HasSubstr("weight_map"));
  EXPECT_THAT(damaged("model.norm.weight", 3), HasSubstr("weight_map"));
  EXPECT_THAT(damaged("model.norm.weight", "absent.safetensors"), HasSubstr("absent.safetensors"));
  EXPECT_THAT(damaged("model.embed_tokens.weight", shard),
              AllOf(HasSubstr("model.embed_tokens.weight"), HasSubstr("is missing from")));
  EXPECT_THAT(damaged("model.extra", shard), HasSubstr("model.extra"));
  write(output / "model.safetensors.index.json", R"({"metadata": {}})");
  EXPECT_THAT(refusal([&] { load(output, read); }), HasSubstr("weight_map"));
  fs::remove(output / "model.safetensors.index.json");
  EXPECT_THAT(refusal([&] { load(output, read); }), HasSubstr("model.safetensors"));
}

TEST_F(HfModelTest, RefusesMissingUnknownAndMisshapenTensorsByName) {
  Model model = make_model();
  const std::vector<float> extra(4);
  const auto load_with = [&](const auto& change) {
    std::vector<SafetensorsTensor> tensors = tensors_of(model);
    change(tensors);
    write_safetensors(source_ / "model.safetensors", tensors);
    Model read = make_model();
    return refusal([&] { load(source_, read); });
  };
  using Tensors = std::vector<SafetensorsTensor>;
  EXPECT_EQ(load_with([](Tensors&) {}), "was not refused");
  for (const ParameterEntry& entry : model.table.entries()) {
    EXPECT_THAT(load_with([&](Tensors& tensors) {
                  std::erase_if(tensors, [&](const auto& t) { return t.name == entry.name; });
                }),
                AllOf(HasSubstr(entry.name), HasSubstr("missing")));
  }
  EXPECT_THAT(load_with([&](Tensors& tensors) {
                tensors[1].shape = {4, 4};
              }),
              AllOf(HasSubstr(model.table.entries()[1].name), HasSubstr("shape [4, 4]")));
  EXPECT_THAT(load_with([&](Tensors& tensors) {
                tensors.push_back({"model.layers.0.self_attn.q_norm.weight", {4}, extra});
              }),
              HasSubstr("q_norm"));
  EXPECT_EQ(load_with([&](Tensors& tensors) {
              tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}, extra});
            }),
            "was not refused");
}

TEST_F(HfModelTest, TiedModelsMayCarryARedundantHead) {
  edit("tie_word_embeddings", true);
  Model model = make_model();
  std::vector<SafetensorsTensor> tensors = tensors_of(model);
  EXPECT_TRUE(
      std::ranges::none_of(tensors, [](const auto& t) { return t.name == "lm_head.weight"; }));
  SafetensorsTensor head = tensors[0];
  head.name = "lm_head.weight";
  tensors.push_back(head);
  write_safetensors(source_ / "model.safetensors", tensors);
  Model read = make_model();
  load(source_, read);
  EXPECT_EQ(read.values, model.values);
  // Stored in another type, which holds these values.
  std::vector<float> coarse(tensors[0].values.size());
  std::ranges::transform(tensors[0].values, coarse.begin(),
                         [](float value) { return to_float(to_bfloat16(value)); });
  tensors[0].values = coarse;
  tensors.back().values = coarse;
  tensors.back().stored = DType::bfloat16;
  write_safetensors(source_ / "model.safetensors", tensors);
  load(source_, read);
  EXPECT_EQ(read.values[0], coarse[0]);
}

TEST_F(HfModelTest, ATiedModelWhoseHeadDiffersIsRefused) {
  edit("tie_word_embeddings", true);
  Model model = make_model();
  std::vector<SafetensorsTensor> tensors = tensors_of(model);
  std::vector<float> other(tensors[0].values.begin(), tensors[0].values.end());
  other.back() += 1.0F;
  for (const DType stored : {DType::float32, DType::bfloat16}) {
    std::vector<SafetensorsTensor> both = tensors;
    both.push_back({"lm_head.weight", tensors[0].shape, other, stored});
    write_safetensors(source_ / "model.safetensors", both);
    Model read = make_model();
    EXPECT_THAT(refusal([&] { load(source_, read); }),
                AllOf(HasSubstr("lm_head.weight differs"), HasSubstr("tie_word_embeddings")));
  }
}

TEST_F(HfModelTest, HashChangesWithConfigurationAndWeights) {
  Model model = make_model();
  write_safetensors(source_ / "model.safetensors", tensors_of(model));
  const std::string first = hf_model_hash(source_);
  EXPECT_EQ(first, hf_model_hash(source_));
  EXPECT_EQ(first.size(), 16U);
  model.values[0] += 1.0F;
  write_safetensors(source_ / "model.safetensors", tensors_of(model));
  const std::string second = hf_model_hash(source_);
  EXPECT_NE(first, second);
  edit("eos_token_id", 3);
  EXPECT_NE(second, hf_model_hash(source_));
  fs::remove(source_ / "model.safetensors");
  EXPECT_THROW((void)hf_model_hash(source_), DataError);
}

TEST_F(HfModelTest, HashChangesWithTheStopTokensOfTheGenerationConfiguration) {
  const Model model = make_model();
  write_safetensors(source_ / "model.safetensors", tensors_of(model));
  std::set<std::string> hashes{hf_model_hash(source_)};
  for (const char* const text : {R"({"eos_token_id": 2})", R"({"eos_token_id": [2, 5]})", "{}"}) {
    write(source_ / "generation_config.json", text);
    EXPECT_TRUE(hashes.insert(hf_model_hash(source_)).second) << text;
  }
}

TEST_F(HfModelTest, AnExportStopsWhereItsSourceDoesInTransformersToo) {
  const auto exported = [&](const std::string& generation) {
    write(source_ / "generation_config.json", generation);
    Model model = make_model();
    export_hf_model(source_, root_ / "stops", model.config, model.table, values_in(model.flat()),
                    {DType::float32});
    return ordered_json::parse(read_file(root_ / "stops" / "generation_config.json"));
  };
  for (const char* without : {R"({"do_sample": false})", R"({"eos_token_id": null})"}) {
    EXPECT_EQ(exported(without).at("eos_token_id"), 2) << "that of config.json";
  }
  EXPECT_EQ(exported(R"({"eos_token_id": [5, 9], "top_k": 3})"),
            ordered_json::parse(R"({"eos_token_id": [5, 9], "top_k": 3})"));
}

TEST_F(HfModelTest, ExportIsUnderChecksumsThatLoadingCompares) {
  write(source_ / "tokenizer.json", "{}");
  write(source_ / "generation_config.json", R"({"eos_token_id": 2})");
  write(source_ / "checksums.json", "another directory's");
  Model model = make_model();
  const fs::path output = root_ / "output";
  export_hf_model(source_, output, model.config, model.table, values_in(model.flat()),
                  {.stored = DType::float32, .jacobi_block_size = 16, .max_shard_bytes = 4000});
  EXPECT_TRUE(check_checksums(output));
  EXPECT_EQ(ordered_json::parse(read_file(output / "jacobi_decoding.json")).at("block_size"), 16);
  EXPECT_THAT(read_file(output / "custom_generate" / "generate.py"), HasSubstr("def generate("));
  std::size_t files = 0;
  for (const auto& item : fs::recursive_directory_iterator(output)) {
    if (item.is_directory()) {
      continue;
    }
    const std::string whole = read_file(item.path());
    const std::string name = item.path().filename().string();
    ++files;
    for (const std::size_t place : {std::size_t{0}, whole.size() / 2, whole.size() - 1}) {
      for (const int bit : {0, 5}) {
        std::string damaged = whole;
        damaged[place] = static_cast<char>(damaged[place] ^ (1 << bit));
        write(item.path(), damaged);
        EXPECT_THAT(refusal([&] { load(output, model); }), HasSubstr(name)) << place;
      }
    }
    write(item.path(), whole.substr(0, whole.size() - 2));
    EXPECT_THAT(refusal([&] { load(output, model); }), HasSubstr(name));
    write(item.path(), "");
    EXPECT_THAT(refusal([&] { load(output, model); }), HasSubstr(name));
    write(item.path(), whole);
    EXPECT_EQ(refusal([&] { load(output, model); }), "was not refused");
  }
  EXPECT_GE(files, 8U);
  fs::remove(output / "tokenizer.json");
  write(output / "notes.txt", "added later");
  EXPECT_THAT(refusal([&] { (void)check_checksums(output); }),
              AllOf(HasSubstr("tokenizer.json"), ::testing::Not(HasSubstr("notes.txt"))));
  fs::remove(output / "checksums.json");
  EXPECT_FALSE(check_checksums(output));
}

TEST_F(HfModelTest, ForeignChecksumFilesAreRefused) {
  const std::string version_3 = R"({"format": "jforge-checksums", "version": 3, "files": []})";
  std::vector<std::string> texts{
      "",
      "null",
      "{}",
      seal_json("{}"),
      seal_json(R"({"format": "jforge-checksums", "version": 1, "files": 5})"),
      seal_json(version_3),
      version_3};
  for (const char* const outside :
       {"../a", "/a", "a/../b", "a/b/c", "..", "", "a/", "./a", "a//b"}) {
    texts.push_back(
        seal_json(ordered_json{{"format", "jforge-checksums"},
                               {"version", 2},
                               {"files", {{{"file", outside}, {"bytes", 1}, {"xxh3", "0"}}}}}
                      .dump()));
  }
  for (const std::string& text : texts) {
    write(source_ / "checksums.json", text);
    EXPECT_THAT(refusal([&] { (void)check_checksums(source_); }), HasSubstr("checksums.json"))
        << text;
  }
}

TEST_F(HfModelTest, ExportReplacesAModelAndNothingElse) {
  Model model = make_model();
  const fs::path output = root_ / "output";
  const auto run = [&](const fs::path& target) {
    export_hf_model(source_, target, model.config, model.table, values_in(model.flat()),
                    {DType::float32});
  };
  run(output);
  write(output / "stale.txt", "of the model before");
  model.values[0] = 5.0F;
  run(output);
  EXPECT_FALSE(fs::exists(output / "stale.txt"));
  Model read = make_model();
  load(output, read);
  EXPECT_EQ(read.values[0], 5.0F);
  for (const auto& item : fs::directory_iterator(root_)) {
    EXPECT_THAT(item.path().filename().string(), ::testing::AnyOf("source", "output"));
  }

  EXPECT_THROW(run(source_), ConfigError);
  const fs::path precious = root_ / "precious";
  fs::create_directory(precious);
  write(precious / "thesis.tex", "text");
  EXPECT_THROW(run(precious), ConfigError);
  EXPECT_TRUE(fs::exists(precious / "thesis.tex"));
  write(root_ / "file", "");
  EXPECT_THROW(run(root_ / "file" / "model"), EnvironmentError);
}

TEST_F(HfModelTest, ExportGoesWhereTheSystemFindsItsPlace) {
  Model model = make_model();
  fs::create_directories(root_ / "disk" / "scratch");
  fs::create_directory_symlink(root_ / "disk" / "scratch", root_ / "link");
  const fs::path given = root_ / "link" / ".." / "model";  // disk/model, not model.
  export_hf_model(source_, given, model.config, model.table, values_in(model.flat()),
                  {DType::float32});
  EXPECT_TRUE(fs::exists(root_ / "disk" / "model" / "config.json"));
  EXPECT_FALSE(fs::exists(root_ / "model"));
  const fs::path ending = root_ / "link" / ".." / "other" / "";
  export_hf_model(source_, ending, model.config, model.table, values_in(model.flat()),
                  {DType::float32});
  EXPECT_TRUE(fs::exists(root_ / "disk" / "other" / "config.json"));
}

TEST_F(HfModelTest, ExportLeavesWhatAnotherJobWritesToTheSamePlaceAndSweepsWhatAKilledOneLeft) {
  Model model = make_model();
  const fs::path others = root_ / ".tmp-output-0123abcd";
  const fs::path left = root_ / ".tmp-output-4567cdef";
  for (const fs::path& path : {others, left}) {
    fs::create_directory(path);
    write(path / "config.json", kConfig);
  }
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(25));
  export_hf_model(source_, root_ / "output", model.config, model.table, values_in(model.flat()),
                  {DType::float32});
  EXPECT_TRUE(fs::exists(others / "config.json"));
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(HfModelTest, AFileNameThatIsNoUtf8IsRefusedBeforeAllWork) {
  write(source_ / "note-\xe9.txt", "text");
  try {
    expect_exportable(source_, root_ / "output");
    ADD_FAILURE() << "taken";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no valid UTF-8"), HasSubstr("note-")));
  }
}

TEST_F(HfModelTest, WhatAnExportWouldRefuseOrTakeAwayIsSaidBeforeIt) {
  Model model = make_model();
  const fs::path output = root_ / "output";
  const auto expect_ours = [&] { expect_only_an_export(output); };
  EXPECT_NO_THROW(expect_exportable(source_, output));
  EXPECT_NO_THROW(expect_ours());
  fs::create_directory(output);
  EXPECT_NO_THROW(expect_ours());
  export_hf_model(source_, output, model.config, model.table, values_in(model.flat()),
                  {.stored = DType::float32, .jacobi_block_size = 8});
  EXPECT_NO_THROW(expect_ours());
  for (const char* const name : {"notes.txt", "mine/best.pt"}) {
    fs::create_directories((output / name).parent_path());
    write(output / name, "mine");
    EXPECT_THAT([&] { expect_ours(); }, ::testing::ThrowsMessage<ConfigError>(::testing::AllOf(
                                            HasSubstr(name), HasSubstr(output.string()))));
    fs::remove(output / name);
  }
  fs::remove(output / "checksums.json");  // of another program, then
  EXPECT_THROW(expect_ours(), ConfigError);

  EXPECT_THROW(expect_exportable(source_, source_), ConfigError);
  write(root_ / "secret", "");
  fs::create_symlink("../secret", source_ / "README.md");
  EXPECT_THROW(expect_exportable(source_, output), DataError);
  // The Hugging Face cache is made of links, in folders too.
  const fs::path cached = root_ / "models--a--b" / "snapshots" / "r";
  fs::create_directories(cached / "additional_chat_templates");
  fs::create_directories(root_ / "models--a--b" / "blobs");
  write(root_ / "models--a--b" / "blobs" / "1", "{{ tools }}");
  fs::create_symlink("../../../blobs/1", cached / "additional_chat_templates" / "t.jinja");
  EXPECT_NO_THROW(expect_exportable(cached, output));
}

TEST_F(HfModelTest, ExportWritesAConfigurationWhereTheSourceHasNone) {
  Model model = make_model();
  model.config.eos_ids = {2, 7};
  fs::remove(source_ / "config.json");
  write(source_ / "tokenizer.json", "{}");
  const fs::path output = root_ / "fresh";
  export_hf_model(source_, output, model.config, model.table, values_in(model.flat()),
                  {DType::bfloat16});
  EXPECT_EQ(read_hf_config(output), model.config);
  EXPECT_EQ(ordered_json::parse(read_file(output / "config.json"))["torch_dtype"], "bfloat16");

  model.config.rope.theta = 123.0;
  EXPECT_THROW(export_hf_model(output, root_ / "other", model.config, model.table,
                               values_in(model.flat()), {DType::bfloat16}),
               DataError);
  EXPECT_FALSE(fs::exists(root_ / "other"));
}

}  // namespace
}  // namespace jforge
