#include "checkpoints/hf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
#include "tests/support/message_of.h"
#include "tests/support/tiny_config.h"
#include "tests/support/whole_weights.h"
#include "tests/unit/checkpoints/hf_model_fixture.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(HfModelTest, TensorsAreReadOneByOne) {
  Model model = make_model();
  for (const DType stored : {DType::float32, DType::bfloat16}) {
    const fs::path directory = root_ / dtype_name(stored);
    export_hf_model(source_, directory, model.config, model.table, test::values_in(model.flat()),
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
  export_hf_model(source_, root_ / "family", config, table, test::values_in(flat),
                  {DType::float32});
  EXPECT_EQ(read_hf_config(root_ / "family"), config);
  std::vector<float> read(values.size());
  test::load_hf_weights(root_ / "family", config, table, {read.data(), {table.flat_size()}});
  EXPECT_EQ(read, values);
}

INSTANTIATE_TEST_SUITE_P(Families, HfFamilyTest,
                         ::testing::Values(ModelFamily::qwen2, ModelFamily::llama,
                                           ModelFamily::mistral, ModelFamily::qwen3,
                                           ModelFamily::smollm3, ModelFamily::olmo2,
                                           ModelFamily::granite));

TEST_F(HfModelTest, ExportAndImportRoundTrip) {
  Model model = make_model(/*shard_count=*/3);
  write(source_ / "tokenizer.json", "{\"kept\":  \"verbatim\"}\n");
  write(source_ / "chat_template.jinja", "{{ x }}");
  write(source_ / "pytorch_model.bin", "old weights");
  fs::create_directory(source_ / "checkpoints");
  fs::create_directory(source_ / "additional_chat_templates");
  write(source_ / "additional_chat_templates" / "tool_use.jinja", "{{ tools }}");
  const fs::path output = root_ / "made" / "model";
  export_hf_model(source_, output, model.config, model.table, test::values_in(model.flat()),
                  {DType::float32});

  EXPECT_EQ(read_file(output / "tokenizer.json"), "{\"kept\":  \"verbatim\"}\n");
  EXPECT_TRUE(fs::exists(output / "chat_template.jinja"));
  EXPECT_FALSE(fs::exists(output / "pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(output / "checkpoints"));
  EXPECT_EQ(read_file(output / "additional_chat_templates" / "tool_use.jinja"), "{{ tools }}");
  EXPECT_EQ(read_hf_config(output), model.config);
  EXPECT_FALSE(hf_matrices_are_bfloat16(output));
  // Padding must be zeroed, because ranks reduce over it.
  std::vector<float> read(model.values.size(), 99.0F);
  test::load_hf_weights(output, model.config, model.table,
                        {read.data(), {model.table.flat_size()}});
  EXPECT_EQ(read, model.values);
  for (const auto& item : fs::directory_iterator(root_ / "made")) {
    EXPECT_EQ(item.path().filename(), "model") << "left behind";
  }
}

TEST_F(HfModelTest, ExportKeepsOneTensorInMemoryAtATime) {
  Model model = make_model(/*shard_count=*/3);
  const fs::path whole = root_ / "whole";
  const fs::path single = root_ / "single";
  export_hf_model(source_, whole, model.config, model.table, test::values_in(model.flat()),
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

TEST_F(HfModelTest, ExportsBfloat16AndUpdatesDtypeAndRope) {
  Model model = make_model();
  const fs::path output = root_ / "bf16";
  export_hf_model(source_, output, model.config, model.table, test::values_in(model.flat()),
                  {DType::bfloat16});
  ordered_json expected = ordered_json::parse(kConfig);
  expected["torch_dtype"] = "bfloat16";
  expected["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", expected["rope_theta"]}};
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

// transformers 4.57 would read theta 10,000.
TEST_F(HfModelTest, ExportsOfNewerConfigurationsAreReadByOlderProgramsToo) {
  Model model = make_model();
  ordered_json newer = ordered_json::parse(kConfig);
  const ordered_json theta = newer["rope_theta"];
  newer.erase("rope_theta");
  newer["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", theta}};
  write(source_ / "config.json", newer.dump());
  const fs::path output = root_ / "newer";
  const TransformerConfig config = read_hf_config(source_);
  export_hf_model(source_, output, config, model.table, test::values_in(model.flat()),
                  {DType::float32});
  const ordered_json made = ordered_json::parse(read_file(output / "config.json"));
  EXPECT_EQ(made["rope_theta"], theta);
  EXPECT_EQ(made["rope_scaling"], ordered_json({{"rope_type", "linear"}, {"factor", 4.0}}));
  EXPECT_EQ(made["rope_parameters"], newer["rope_parameters"]);
  EXPECT_EQ(read_hf_config(output), config);
}

TEST_F(HfModelTest, WritesShardsWithAnIndex) {
  Model model = make_model();
  const fs::path output = root_ / "sharded";
  export_hf_model(source_, output, model.config, model.table, test::values_in(model.flat()),
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

  fs::remove(output / "checksums.json");
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
  EXPECT_EQ(load_with([](Tensors&) {}), "nothing thrown");
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
            "nothing thrown");
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
    export_hf_model(source_, root_ / "stops", model.config, model.table,
                    test::values_in(model.flat()), {DType::float32});
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
  export_hf_model(source_, output, model.config, model.table, test::values_in(model.flat()),
                  {.stored = DType::float32,
                   .jacobi_block_size = 16,
                   .template_arguments = {{"enable_thinking", true}, {"date_string", "1 Jan"}},
                   .max_shard_bytes = 4000});
  EXPECT_TRUE(check_checksums(output));
  ordered_json decoding = ordered_json::parse(read_file(output / "jacobi_decoding.json"));
  EXPECT_EQ(decoding.erase("checksum"), 1U);
  EXPECT_EQ(decoding,
            ordered_json::parse(R"({"method": "jacobi", "block_size": 16, "template_arguments":
                                    {"date_string": "1 Jan", "enable_thinking": true}})"));
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
    EXPECT_EQ(refusal([&] { load(output, model); }), "nothing thrown");
  }
  EXPECT_GE(files, 8U);
  fs::remove(output / "tokenizer.json");
  EXPECT_THAT(refusal([&] { HfModel checked(output); }), HasSubstr("tokenizer.json"));
  // Shared out, one share finds it.
  int found = 0;
  constexpr std::size_t kShares = 3;
  for (std::size_t share = 0; share < kShares; ++share) {
    found += refusal([&] { HfModel shared(output, {share, kShares}); }) == "nothing thrown" ? 0 : 1;
  }
  EXPECT_EQ(found, 1);
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
    export_hf_model(source_, target, model.config, model.table, test::values_in(model.flat()),
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
  const fs::path given = root_ / "link" / ".." / "model";  // disk/model, not model
  export_hf_model(source_, given, model.config, model.table, test::values_in(model.flat()),
                  {DType::float32});
  EXPECT_TRUE(fs::exists(root_ / "disk" / "model" / "config.json"));
  EXPECT_FALSE(fs::exists(root_ / "model"));
  const fs::path ending = root_ / "link" / ".." / "other" / "";
  export_hf_model(source_, ending, model.config, model.table, test::values_in(model.flat()),
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
  export_hf_model(source_, root_ / "output", model.config, model.table,
                  test::values_in(model.flat()), {DType::float32});
  EXPECT_TRUE(fs::exists(others / "config.json"));
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(HfModelTest, AFileNameThatIsNoUtf8IsRefusedBeforeAllWork) {
  write(source_ / "note-\xe9.txt", "text");
  EXPECT_THAT(test::message_of<DataError>([&] { expect_exportable(source_, root_ / "output"); }),
              AllOf(HasSubstr("not valid UTF-8"), HasSubstr("note-")));
}

TEST_F(HfModelTest, WhatAnExportWouldRefuseOrTakeAwayIsSaidBeforeIt) {
  Model model = make_model();
  const fs::path output = root_ / "output";
  const auto expect_ours = [&] { expect_only_an_export(output); };
  EXPECT_NO_THROW(expect_exportable(source_, output));
  EXPECT_NO_THROW(expect_ours());
  fs::create_directory(output);
  EXPECT_NO_THROW(expect_ours());
  export_hf_model(source_, output, model.config, model.table, test::values_in(model.flat()),
                  {.stored = DType::float32, .jacobi_block_size = 8});
  EXPECT_NO_THROW(expect_ours());
  for (const char* const name : {"notes.txt", "mine/best.pt"}) {
    fs::create_directories((output / name).parent_path());
    write(output / name, "mine");
    EXPECT_THAT([&] { expect_ours(); }, ::testing::ThrowsMessage<ConfigError>(::testing::AllOf(
                                            HasSubstr(name), HasSubstr(output.string()))));
    fs::remove(output / name);
  }
  fs::remove(output / "checksums.json");  // as of another program
  EXPECT_THROW(expect_ours(), ConfigError);

  EXPECT_THROW(expect_exportable(source_, source_), ConfigError);
  write(root_ / "secret", "");
  fs::create_symlink("../secret", source_ / "README.md");
  EXPECT_THROW(expect_exportable(source_, output), DataError);
  // As the Hugging Face cache does.
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
  export_hf_model(source_, output, model.config, model.table, test::values_in(model.flat()),
                  {DType::bfloat16});
  EXPECT_EQ(read_hf_config(output), model.config);
  EXPECT_EQ(ordered_json::parse(read_file(output / "config.json"))["torch_dtype"], "bfloat16");

  model.config.rope.theta = 123.0;
  EXPECT_THROW(export_hf_model(output, root_ / "other", model.config, model.table,
                               test::values_in(model.flat()), {DType::bfloat16}),
               DataError);
  EXPECT_FALSE(fs::exists(root_ / "other"));
}

}  // namespace
}  // namespace jforge
