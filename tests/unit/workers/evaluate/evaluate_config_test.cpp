#include "workers/evaluate/evaluate_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "model/decoding/decoding_method.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

EvaluateConfig valid() {
  EvaluateConfig config;
  config.tasks = {"gsm8k"};
  config.data = "somewhere";
  return config;
}

void expect_refused(const std::function<void(EvaluateConfig&)>& damage, const std::string& part) {
  EvaluateConfig config = valid();
  damage(config);
  EXPECT_THAT(test::message_of<ConfigError>([&] { config.validate(); }), HasSubstr(part));
}

TEST(EvaluateConfig, DefaultsAreValid) {
  EXPECT_NO_THROW(EvaluateConfig{}.validate());
  EXPECT_NO_THROW(valid().validate());
}

TEST(EvaluateConfig, EveryBadValueIsRefusedByItsKey) {
  expect_refused([](auto& c) { c.decoding["block_size"] = std::int64_t{0}; },
                 "evaluate.block_size");
  expect_refused([](auto& c) { c.max_new_tokens = 0; }, "evaluate.max_new_tokens");
  expect_refused(
      [](auto& c) {
        c.max_new_tokens = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
      },
      "evaluate.max_new_tokens");
  expect_refused([](auto& c) { c.decoding["block_size"] = std::int64_t{1} << 31; },
                 "evaluate.block_size");
  expect_refused([](auto& c) { c.decoding["block_size"] = 8.0; }, "evaluate.block_size");
  expect_refused([](auto& c) { c.decoding["blocks_size"] = std::int64_t{8}; },
                 "evaluate.blocks_size");
  expect_refused([](auto& c) { c.limit = 0; }, "evaluate.limit");
  expect_refused([](auto& c) { c.batch_prompts = 0; }, "evaluate.batch_prompts");
  expect_refused([](auto& c) { c.speed_problems = -1; }, "evaluate.speed_problems is -1");
  expect_refused([](auto& c) { c.speed_repeats = 1; }, "evaluate.speed_repeats is 1");
  expect_refused([](auto& c) { c.speed_repeats = 1001; }, "evaluate.speed_repeats is 1001");
  expect_refused([](auto& c) { c.decoding["temperature"] = -0.5; }, "evaluate.temperature is -0.5");
  expect_refused([](auto& c) { c.decoding["top_p"] = 1.5; }, "evaluate.top_p is 1.5");
  expect_refused([](auto& c) { c.decoding["top_p"] = 0.0; }, "top_p is 0");
  expect_refused([](auto& c) { c.decoding["top_k"] = std::int64_t{-1}; }, "evaluate.top_k is -1");
  expect_refused([](auto& c) { c.decoding["repetition_penalty"] = 0.0; },
                 "repetition_penalty is 0");
  expect_refused([](auto& c) { c.samples_per_problem = 0; }, "evaluate.samples_per_problem is 0");
  expect_refused([](auto& c) { c.samples_per_problem = 2; }, "set evaluate.temperature above 0");
  expect_refused([](auto& c) { c.tasks = {"gsm8k", "chess"}; }, "evaluate.tasks: unknown task");
  expect_refused([](auto& c) { c.tasks = {"gsm8k", "gsm8k"}; }, "named twice");
  expect_refused([](auto& c) { c.methods = {"ar", "magic"}; }, "evaluate.methods: unknown");
  expect_refused([](auto& c) { c.methods = {"ar", "jacobi", "ar"}; }, "named twice");
  expect_refused([](auto& c) { c.methods = {}; }, "evaluate.methods is empty");
  expect_refused([](auto& c) { c.prompt_style = "sonnet"; }, "evaluate.prompt_style");
  expect_refused([](auto& c) { c.tasks = {"gsm8k:sonnet"}; }, "evaluate.tasks");
  expect_refused([](auto& c) { c.tasks = {"gsm8k:"}; }, "gsm8k:cot_boxed");
  expect_refused([](auto& c) { c.tasks = {":plain"}; }, "gsm8k:cot_boxed");
  expect_refused([](auto& c) { c.data.clear(); }, "evaluate.data");
}

TEST(EvaluateConfig, AnEntryOfTasksMayNameItsStyle) {
  EvaluateConfig config = valid();
  config.prompt_style = "cot_boxed";
  config.tasks = {"gsm8k", "gsm8k:plain"};
  EXPECT_NO_THROW(config.validate());
  const TaskChoice plain = config.choice("gsm8k");
  EXPECT_EQ(plain.label, "gsm8k");
  EXPECT_EQ(plain.name, "gsm8k");
  EXPECT_EQ(plain.prompt_style, "cot_boxed");
  const TaskChoice styled = config.choice("mbpp_plus@0.1.0:evalplus");
  EXPECT_EQ(styled.label, "mbpp_plus@0.1.0:evalplus");
  EXPECT_EQ(styled.name, "mbpp_plus@0.1.0");
  EXPECT_EQ(styled.prompt_style, "evalplus");
}

TEST(DecodingMethod, KnownNames) {
  EXPECT_THAT(decoding_method_names(),
              ElementsAre("ar", "draft", "draft_lookup", "draft_tree", "draft_tree_lookup",
                          "jacobi", "jacobi_shrinking", "mr", "mr_lookup", "prompt_lookup"));
}

TEST(DecodingMethod, VariantsOfMultiBlockDecodingAreNamed) {
  DecodingSettings settings;
  assign_decoding_setting(settings, "variant=authors");
  const DecodingMethod authors = make_decoding_method("mr", settings, 3);
  EXPECT_EQ(authors.settings.at("variant"), "authors");
  EXPECT_EQ(authors.settings.at("ngram_pool"), authors.settings.at("verification_size"));
  const DecodingMethod own = make_decoding_method("mr", {}, 3);
  EXPECT_EQ(own.settings.at("variant"), "own");
  EXPECT_EQ(own.settings.at("ngram_pool"), 16);
  settings.insert_or_assign("variant", std::string("paper"));
  EXPECT_EQ(make_decoding_method("mr", settings, 3).settings.at("variant"), "paper");
  for (const DecodingValue& bad : {DecodingValue(std::string("theirs")), DecodingValue(1.0)}) {
    settings.insert_or_assign("variant", bad);
    EXPECT_THROW(static_cast<void>(make_decoding_method("mr", settings, 3)), ConfigError);
  }
}

TEST(DecodingMethod, SettingsSayWhatResultsDependOn) {
  const DecodingSettings config{{"block_size", std::int64_t{7}}};
  const DecodingMethod ar = make_decoding_method("ar", config, 3);
  EXPECT_EQ(ar.name, "ar");
  EXPECT_EQ(ar.settings.at("block_size"), 1);
  EXPECT_EQ(ar.settings.at("window"), "none");
  // Greedy decoding does not use the seed.
  EXPECT_EQ(ar.settings, make_decoding_method("ar", config, 4).settings);

  const DecodingMethod jacobi = make_decoding_method("jacobi", config, 3);
  EXPECT_EQ(jacobi.settings.at("block_size"), 7);
  EXPECT_EQ(jacobi.settings.at("window"), "running");
  EXPECT_NE(jacobi.settings, make_decoding_method("jacobi", config, 4).settings);
  EXPECT_EQ(make_decoding_method("jacobi_shrinking", config, 3).settings.at("window"), "shrinking");

  const DecodingMethod mr = make_decoding_method("mr", {{"spawn_ratio", 0.5}}, 3);
  EXPECT_EQ(mr.settings.at("window"), "multi_block");
  const DecodingMethod sampled = make_decoding_method(
      "mr", {{"spawn_ratio", 0.5}, {"temperature", 0.7}, {"repetition_penalty", 1.1}}, 3);
  for (const std::string& key : decoding_method_keys("mr")) {
    EXPECT_TRUE(sampled.settings.contains(key)) << key;
    EXPECT_EQ(mr.settings.contains(key), !key.starts_with("t") && !key.starts_with("r")) << key;
  }
  EXPECT_EQ(mr.settings.at("spawn_ratio"), 0.5);
  const DecodingMethod lookup =
      make_decoding_method("mr_lookup", {{"match_length", std::int64_t{2}}}, 3);
  EXPECT_EQ(lookup.settings.at("match_length"), 2);
  EXPECT_THROW((void)make_decoding_method("mr", {{"spawn_ratio", 1.5}}, 3), ConfigError);
  EXPECT_THROW((void)make_decoding_method("mr", {{"spawn_ratio", 0.0}}, 3), ConfigError);
}

TEST(DecodingMethod, SamplingIsOfEveryMethodAndItsRequests) {
  const DecodingSettings settings{{"temperature", 0.7},
                                  {"top_p", 0.9},
                                  {"top_k", std::int64_t{20}},
                                  {"repetition_penalty", 1.1}};
  const DecodeRequest request{.id = 1, .prompt = {1}, .max_new_tokens = 4};
  for (const std::string& name : decoding_method_names()) {
    const DecodingMethod greedy = make_decoding_method(name, {}, 3);
    EXPECT_TRUE(greedy.sampling.greedy());
    EXPECT_TRUE(greedy.make(request)->sampling().greedy());
    // It needs a temperature.
    EXPECT_EQ(greedy.settings, make_decoding_method(name, {{"top_p", 0.5}}, 3).settings);
    const DecodingMethod sampled = make_decoding_method(name, settings, 3);
    const SamplingOptions& sampling = sampled.make(request)->sampling();
    EXPECT_EQ(sampling.temperature, 0.7);
    EXPECT_EQ(sampling.top_p, 0.9);
    EXPECT_EQ(sampling.top_k, 20);
    EXPECT_EQ(sampling.repetition_penalty, 1.1);
    EXPECT_EQ(sampling.seed, 3U);
    EXPECT_NE(sampled.settings, greedy.settings);
    EXPECT_NE(sampled.settings, make_decoding_method(name, settings, 4).settings);
  }
  EXPECT_THROW((void)make_decoding_method("ar", {{"top_p", 0.0}}, 3), ConfigError);
  EXPECT_THROW((void)make_decoding_method("ar", {{"repetition_penalty", 0.0}}, 3), ConfigError);
}

TEST(DecodingMethod, SettingsAreReadFromText) {
  DecodingSettings settings;
  assign_decoding_setting(settings, "blocks=3");
  assign_decoding_setting(settings, "spawn_ratio=0.25");
  assign_decoding_setting(settings, "blocks=4");
  EXPECT_EQ(settings, (DecodingSettings{{"blocks", std::int64_t{4}}, {"spawn_ratio", 0.25}}));
  for (const char* bad :
       {"blocks", "blocks=", "blocks=2x", "blocks=2.5", "magic=1", "=1", "spawn_ratio=half"}) {
    EXPECT_THROW(assign_decoding_setting(settings, bad), ConfigError) << bad;
  }
}

TEST(DecodingMethod, MakesTheDecoderItNames) {
  const DecodingSettings config{{"block_size", std::int64_t{7}}};
  const DecodeRequest request{.id = 11, .prompt = {1, 2, 3}, .max_new_tokens = 20};
  // Greedy forwards one token, the others a draft of n.
  const TokenId first = 9;
  const BranchOutcome outcome{{&first, 1}};
  for (const auto& [name, rows] :
       {std::pair("ar", 1U), std::pair("jacobi", 7U), std::pair("mr", 7U)}) {
    const auto decoder = make_decoding_method(name, config, 0).make(request);
    EXPECT_EQ(decoder->pending().front().tokens.size(), 3U);
    decoder->advance({&outcome, 1});
    EXPECT_EQ(decoder->pending().front().tokens.size(), rows) << name;
    EXPECT_EQ(decoder->pending().front().tokens.front(), first);
  }
}

TEST(DecodingMethod, MissingSettingsAreTheDefaults) {
  EXPECT_EQ(make_decoding_method("jacobi", {}, 3).settings.at("block_size"), 64);
  EXPECT_EQ(std::get<std::int64_t>(EvaluateConfig{}.decoding.at("block_size")), 64);
  EXPECT_THAT(decoding_method_keys("ar"),
              ElementsAre("repetition_penalty", "temperature", "top_k", "top_p"));
  EXPECT_THAT(decoding_method_keys("jacobi"),
              ElementsAre("block_size", "repetition_penalty", "temperature", "top_k", "top_p"));
  EXPECT_THROW((void)decoding_method_keys("magic"), ConfigError);
}

TEST(DecodingMethod, EveryKeyOfAMethodIsDeclared) {
  const DecodingSettings known = default_decoding_settings();
  for (const std::string& name : decoding_method_names()) {
    for (const std::string& key : decoding_method_keys(name)) {
      EXPECT_TRUE(known.contains(key)) << name << " has " << key;
    }
  }
}

}  // namespace
}  // namespace jforge
