#include "checkpoints/drafter_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "checkpoints/directory_checksums.h"
#include "runtime/read_file.h"
#include "tests/unit/checkpoints/hf_model_fixture.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class AdapterFilesTest : public HfModelTest {
 protected:
  AdapterFilesTest() {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<float>(i % 97) - 40.5F;
    }
  }
  void write_to(const fs::path& folder) {
    write_drafter(folder, source_, shape_, 4, table_, test::values_in(flat()));
  }
  [[nodiscard]] ConstTensorView flat() const { return {values_.data(), {table_.flat_size()}}; }
  [[nodiscard]] std::string hash_of(const fs::path& folder) const {
    return DrafterFiles(folder, config_).hash();
  }
  std::string adapter_refusal() {
    return refusal([&] { const DrafterFiles adapter(folder_, config_); });
  }
  std::vector<SafetensorsTensor> adapter_tensors() {
    std::vector<SafetensorsTensor> tensors;
    for (const ParameterEntry& entry : table_.entries()) {
      SafetensorsTensor& tensor = tensors.emplace_back();
      tensor.name = "base_model.model." + entry.name;
      tensor.shape = {entry.shape[0], entry.shape[1]};
      tensor.values = test::values_in(flat())(entry);
    }
    return tensors;
  }

  const TransformerConfig config_ = read_hf_config(source_);
  const AdapterShape shape_{
      .rank = 5, .alpha = 12.5, .targets = {LayerWeight::q, LayerWeight::v, LayerWeight::down}};
  const ParameterTable table_{config_, shape_, 3};  // of several ranks, with padding
  std::vector<float> values_ = std::vector<float>(static_cast<std::size_t>(table_.flat_size()));
  const fs::path folder_ = root_ / "adapter";
};

TEST_F(AdapterFilesTest, IsReadAsItWasWritten) {
  write_to(folder_);
  const DrafterFiles adapter(folder_, config_);
  EXPECT_EQ(adapter.source().shape, DrafterShape(shape_));
  ASSERT_EQ(adapter.table().entries().size(), table_.entries().size());
  for (const ParameterEntry& entry : adapter.table().entries()) {
    const ConstTensorView read = adapter.source().read(entry);
    const auto written = test::values_in(flat())(table_.entry(entry.name));
    EXPECT_TRUE(std::ranges::equal(read.span<float>(), written)) << entry.name;
  }
  EXPECT_EQ(adapter.hash(), hash_of(folder_));
  write_safetensors(folder_ / "adapter_model.safetensors", adapter_tensors(), {});
  EXPECT_EQ(adapter.hash(), hash_of(folder_)) << "of the weights, not of the file";
  ordered_json config = ordered_json::parse(read_file(folder_ / "adapter_config.json"));
  config["lora_alpha"] = 12;
  write(folder_ / "adapter_config.json", config.dump());
  EXPECT_NE(adapter.hash(), hash_of(folder_));
  values_.front() += 1;
  const fs::path other = root_ / "other";
  write_to(other);
  EXPECT_NE(adapter.hash(), hash_of(other));
}

TEST_F(AdapterFilesTest, OtherKindsAreRefusedByTheirKeys) {
  write_to(folder_);
  const ordered_json config = ordered_json::parse(read_file(folder_ / "adapter_config.json"));
  const std::vector<std::pair<std::string, ordered_json>> refused{
      {"peft_type", "IA3"},
      {"bias", "all"},
      {"use_rslora", true},
      {"use_dora", true},
      {"fan_in_fan_out", true},
      {"lora_bias", true},
      {"use_qalora", true},
      {"rank_pattern", {{"q_proj", 2}}},
      {"alpha_pattern", {{"q_proj", 2}}},
      {"modules_to_save", {"lm_head"}},
      {"layers_to_transform", {0}},
      {"exclude_modules", "q_proj"},
      {"target_parameters", {"a"}},
      {"layer_replication", ordered_json::parse("[[0, 1]]")},
      {"trainable_token_indices", {1}},
      {"alora_invocation_tokens", {1}},
      {"use_bdlora", {{"nblocks", 2}}},
      {"arrow_config", {{"top_k", 3}}},
      {"monteclora_config", {{"n", 1}}},
      {"kasa_config", {{"n", 1}}},
      {"init_lora_weights", "pissa_niter_4"},
      {"r", 0},
      {"r", -3},
      {"r", 1 << 20},
      {"r", "5"},
      {"r", nullptr},
      {"lora_alpha", 0},
      {"lora_alpha", "x"},
      {"target_modules", ordered_json::array()},
      {"target_modules", "all-linear"},
      {"target_modules", {"q_proj", "q_proj", "lm_head"}},
      {"target_modules", {"q_proj", 3}}};
  for (const auto& [key, value] : refused) {
    ordered_json changed = config;
    changed[key] = value;
    write(folder_ / "adapter_config.json", changed.dump());
    EXPECT_THAT(adapter_refusal(), AllOf(HasSubstr("adapter_config.json"), HasSubstr(key)))
        << changed.dump();
  }
  ordered_json bare = config;  // absent or null: what changes nothing
  for (const auto& [key, value] : refused) {
    if (key != "peft_type" && key != "r" && key != "lora_alpha" && key != "target_modules") {
      bare[key] = nullptr;
    }
  }
  bare.erase("bias");
  write(folder_ / "adapter_config.json", bare.dump());
  EXPECT_EQ(adapter_refusal(), "nothing thrown");
  write(folder_ / "adapter_config.json", "{");
  EXPECT_THAT(adapter_refusal(), HasSubstr("adapter_config.json"));
}

TEST_F(AdapterFilesTest, MissingExtraMisshapenAndDamagedWeightsAreNamed) {
  write_to(folder_);
  const fs::path file = folder_ / "adapter_model.safetensors";
  const std::string whole = read_file(file);
  for (const std::size_t length : {whole.size() - 4, whole.size() / 2, std::size_t{4}}) {
    write(file, whole.substr(0, length));
    EXPECT_THAT(adapter_refusal(), HasSubstr("adapter_model.safetensors")) << length;
  }
  auto tensors = adapter_tensors();
  const std::string name = tensors.back().name;
  const auto refused_as = [&](const std::vector<SafetensorsTensor>& changed) {
    write_safetensors(file, changed, {});
    return adapter_refusal();
  };
  EXPECT_EQ(refused_as(tensors), "nothing thrown");
  values_[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refused_as(tensors), AllOf(HasSubstr(file.string()), HasSubstr("holds NaN")));
  values_[1] = 0;
  std::swap(tensors.back().shape[0], tensors.back().shape[1]);
  EXPECT_THAT(refused_as(tensors), AllOf(HasSubstr(file.string()), HasSubstr(name)));
  std::swap(tensors.back().shape[0], tensors.back().shape[1]);
  tensors.push_back(tensors.front());
  tensors.back().name = "base_model.model.lm_head.lora_A.weight";
  EXPECT_THAT(refused_as(tensors), AllOf(HasSubstr(file.string()), HasSubstr("13 tensors")));
  tensors.resize(tensors.size() - 2);
  EXPECT_THAT(refused_as(tensors), AllOf(HasSubstr(file.string()), HasSubstr(name)));
  fs::remove(file);
  EXPECT_THAT(adapter_refusal(), HasSubstr("adapter_model.safetensors"));
}

TEST_F(AdapterFilesTest, AnExportLeavesTheModelsFilesAsTheyAre) {
  Model model = make_model();
  write_safetensors(source_ / "model.safetensors", tensors_of(model), {});
  write(source_ / "tokenizer.json", "{}");
  write(source_ / "generation_config.json", R"({"eos_token_id": 2})");
  fs::create_directories(source_ / "additional_chat_templates");
  write(source_ / "additional_chat_templates" / "tools.jinja", "x");
  const fs::path output = root_ / "output";
  export_with_drafter(source_, output, {}, [&](const fs::path& folder) { write_to(folder); });
  for (const auto& item : fs::recursive_directory_iterator(source_)) {
    if (item.is_regular_file()) {
      const fs::path copy = output / fs::relative(item.path(), source_);
      EXPECT_EQ(read_file(copy), read_file(item.path())) << copy;
    }
  }
  EXPECT_TRUE(check_checksums(output));
  EXPECT_EQ(HfModel(output).drafter->source().shape, DrafterShape(shape_));
  EXPECT_EQ(HfModel(source_).drafter, nullptr);
  for (const char* const name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const fs::path file = output / "drafter" / name;
    const std::string whole = read_file(file);
    std::string damaged = whole;
    damaged[whole.size() / 2] = static_cast<char>(damaged[whole.size() / 2] ^ 4);
    for (const std::string& text : {damaged, whole.substr(0, whole.size() - 1)}) {
      write(file, text);
      EXPECT_THAT(refusal([&] { const HfModel opened(output); }), HasSubstr(name));
    }
    fs::remove(file);
    EXPECT_THAT(refusal([&] { const HfModel opened(output); }), HasSubstr(name));
    write(file, whole);
  }
  // A failed export leaves the earlier one, and nothing else.
  EXPECT_THROW(
      export_with_drafter(source_, output, {}, [](const fs::path&) { throw DataError("stopped"); }),
      DataError);
  EXPECT_TRUE(check_checksums(output));
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), fs::directory_iterator()), 2);
}

TEST_F(AdapterFilesTest, AMethodThatNeedsADrafterSaysSo) {
  write_to(folder_);
  const DrafterFiles adapter(folder_, config_);
  EXPECT_EQ(drafter_for("ar", DrafterNeed::nothing, nullptr, source_), nullptr);
  EXPECT_EQ(drafter_for("ar", DrafterNeed::nothing, &adapter, source_), nullptr);
  EXPECT_EQ(drafter_for("draft", DrafterNeed::drafter, &adapter, source_), &adapter.source());
  const auto refusal = [&](const char* method, DrafterNeed need, const DrafterFiles* drafter) {
    return test::message_of<ConfigError>(
        [&] { (void)drafter_for(method, need, drafter, source_); });
  };
  EXPECT_THAT(refusal("draft", DrafterNeed::drafter, nullptr),
              AllOf(HasSubstr("\"draft\" needs a drafter"), HasSubstr(source_.string()),
                    HasSubstr("(train.drafter)")));
  EXPECT_THAT(
      refusal("draft_tree", DrafterNeed::head, &adapter),
      AllOf(HasSubstr("\"draft_tree\" needs a head"), HasSubstr("(train.drafter = \"head\")")));
}

class HeadFilesTest : public HfModelTest {
 protected:
  HeadFilesTest() {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<float>(i % 97) - 40.5F;
    }
    write_drafter(folder_, source_, shape_, 4, table_,
                  test::values_in({values_.data(), {table_.flat_size()}}));
  }
  std::string head_refusal() {
    return refusal([&] { const DrafterFiles head(folder_, config_); });
  }
  void set(const std::string& key, const ordered_json& value) {
    ordered_json config = ordered_json::parse(read_file(folder_ / "config.json"));
    config[ordered_json::json_pointer(key)] = value;
    write(folder_ / "config.json", config.dump());
  }

  const TransformerConfig config_ = read_hf_config(source_);
  const HeadShape shape_ =
      completed({.layers = 2, .features = {0}, .mask_token = 3}, read_hf_config(source_));
  const ParameterTable table_{config_, shape_, 3};
  std::vector<float> values_ = std::vector<float>(static_cast<std::size_t>(table_.flat_size()));
  const fs::path folder_ = root_ / kDrafterFolder;
};

TEST_F(HeadFilesTest, IsReadAsItWasWritten) {
  EXPECT_TRUE(has_drafter(root_));
  const DrafterFiles head(folder_, config_);
  EXPECT_EQ(head.source().shape, DrafterShape(shape_));
  for (const ParameterEntry& entry : head.table().entries()) {
    const auto written =
        test::values_in({values_.data(), {table_.flat_size()}})(table_.entry(entry.name));
    EXPECT_TRUE(std::ranges::equal(head.source().read(entry).span<float>(), written)) << entry.name;
  }
  const SafetensorsFile file(folder_ / "model.safetensors");
  const std::int64_t size = config_.hidden_size;
  EXPECT_EQ(file.entries().at("fc.weight").shape, (std::vector<std::int64_t>{size, size}));
  EXPECT_TRUE(file.contains("layers.1.self_attn.q_norm.weight"));
  EXPECT_TRUE(file.contains("norm.weight") && file.contains("hidden_norm.weight"));
  const std::string hash = head.hash();
  set("/dflash_config/mask_token_id", 4);
  EXPECT_NE(DrafterFiles(folder_, config_).hash(), hash);
}

TEST_F(HeadFilesTest, OtherHeadsAreRefusedByTheirKeys) {
  const std::string whole = read_file(folder_ / "config.json");
  const std::tuple<const char*, ordered_json, const char*> others[] = {
      {"/architectures", {"DFlash2DraftModel"}, "architectures"},
      {"/hidden_size", 7, "hidden_size"},
      {"/head_dim", 7, "head_dim"},
      {"/num_target_layers", 9, "num_target_layers"},
      {"/rms_norm_eps", 0.5, "rms_norm_eps"},
      {"/num_hidden_layers", -1, "drafter_layers"},
      {"/num_hidden_layers", "two", "dflash_config"},
      {"/dflash_config/target_layer_ids", {99}, "drafter_features"},
      {"/dflash_config/mask_token_id", nullptr, "dflash_config"},
      {"/dflash_config", 3, "dflash_config"}};
  for (const auto& [key, value, says] : others) {
    set(key, value);
    EXPECT_THAT(head_refusal(), AllOf(HasSubstr("config.json"), HasSubstr(says))) << key;
    write(folder_ / "config.json", whole);
  }
  for (const char* flag : {"/dflash_config/causal", "/is_causal", "/causal_head"}) {
    EXPECT_EQ(head_refusal(), "nothing thrown") << flag;
    set(flag, false);
  }
  EXPECT_THAT(head_refusal(), HasSubstr("must be causal"));
  write(folder_ / "config.json", whole);
  fs::resize_file(folder_ / "model.safetensors", 100);
  EXPECT_THAT(head_refusal(), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace jforge
