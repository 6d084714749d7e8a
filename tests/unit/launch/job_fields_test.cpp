#include "launch/config/job_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSmallest =
    "[run]\ndirectory = \"out\"\n"
    "[model]\nsource = \"model\"\n"
    "[prompts]\nfiles = [\"prompts.jsonl\"]\n"
    "[[rounds]]\nsteps = 10\n";

JobConfig small_job(const std::vector<std::string>& overrides = {}) {
  return read_job_config(kSmallest, "job.toml", overrides);
}

// validate()'s error for the smallest job with `overrides`.
std::string refusal(const std::vector<std::string>& overrides, int ranks = 1) {
  return test::message_of<Error>([&] { small_job(overrides).validate(ranks); });
}

TEST(JobFields, TheSmallestJobIsValid) { EXPECT_EQ(refusal({}), "nothing thrown"); }

TEST(JobFields, DefaultsRoundTrip) {
  JobConfig config;
  config.rounds.resize(2);
  const std::string text = write_toml(job_fields(config));
  JobConfig back = read_job_config(text, "resolved_config.toml", {});
  EXPECT_EQ(write_toml(job_fields(back)), text);
  EXPECT_EQ(identity_values(job_fields(back)), identity_values(job_fields(config)));
}

TEST(JobFields, OtherValuesRoundTrip) {
  JobConfig config = small_job(
      {"run.seed=7", "model.export_as=float32", "prompts.keep_if=[\"score >= 1.0\"]",
       "prompts.order_by=-/a!/b", "prompts.sample=random", "prompts.limit=9",
       "generate.store_states=all", "rounds.1.schedule=reverse", "rounds.1.mask=window",
       "rounds.1.learning_rate=1e-5", "train.beta2=0.999", "train.kept=all", "train.compat=paper",
       "evaluate.tasks=[\"gsm8k\"]", "evaluate.block_size=9", "sweep.block_size=[4, 8]"});
  const std::string text = write_toml(job_fields(config));
  JobConfig back = read_job_config(text, "resolved_config.toml", {});
  EXPECT_EQ(write_toml(job_fields(back)), text);
  EXPECT_EQ(back.run.seed, 7U);
  EXPECT_EQ(std::get<std::int64_t>(back.evaluate.decoding.at("block_size")), 9);
  EXPECT_EQ(back.sweep.points().size(), 2U);
  EXPECT_EQ(back.model.export_as, ComputeType::float32);
  EXPECT_THAT(back.prompts.keep_if, ::testing::ElementsAre("score >= 1.0"));
  EXPECT_EQ(back.prompts.order_by, "-/a!/b");
  EXPECT_EQ(back.prompts.sample, PromptSample::random);
  EXPECT_EQ(back.generate.store_states, StoredStates::all);
  EXPECT_EQ(back.rounds.at(0).schedule, ScheduleKind::reverse);
  EXPECT_EQ(back.rounds.at(0).mask, MaskKind::window);
  EXPECT_EQ(back.rounds.at(0).learning_rate, 1e-5);
  EXPECT_EQ(back.train.optimizer.beta2, 0.999F);
  EXPECT_EQ(back.compat, Compat::paper);
}

TEST(JobFields, PathsAreUniqueAndEveryFieldReadsWhatItWrites) {
  JobConfig config;
  config.rounds.resize(2);
  std::set<std::string> paths;
  for (const ConfigField& field : job_fields(config)) {
    EXPECT_TRUE(paths.insert(field.path()).second) << field.path() << " is there twice";
    if (const auto text = field.write()) {
      const toml::table table = toml::parse("value = " + *text);
      EXPECT_EQ(field.read(*table.get("value")), std::nullopt) << field.path();
    }
  }
}

TEST(JobFields, UnknownKeysAndWrongTypesAreRefusedByName) {
  EXPECT_THAT(test::message_of<ConfigError>([] { return small_job({"train.lerning_rate=1"}); }),
              HasSubstr("did you mean train.learning_rate?"));
  EXPECT_THROW(static_cast<void>(small_job({"rounds.1.mask=blurred"})), ConfigError);
  EXPECT_THROW(static_cast<void>(small_job({"generate.batch_prompts=many"})), ConfigError);
  EXPECT_THROW(static_cast<void>(small_job({"run.seed=-1"})), ConfigError);
}

TEST(JobFields, IdentityHoldsWhatChangesResultsAndNothingElse) {
  JobConfig config = small_job();
  const auto identity = identity_values(job_fields(config));
  for (const char* const key :
       {"run.seed", "prompts.keep_if", "prompts.limit", "generate.max_new_tokens",
        "rounds.1.block_size", "rounds.1.steps", "train.learning_rate", "train.batch_samples",
        "train.ar_weight", "train.compat"}) {
    EXPECT_TRUE(identity.contains(key)) << key;
  }
  for (const char* const key :
       {"run.directory", "model.source", "model.device", "generate.batch_prompts",
        "generate.prompts_per_lease", "train.tokens_per_rank", "checkpoint.every_steps",
        "checkpoint.keep_last", "evaluate.tasks", "evaluate.batch_prompts"}) {
    EXPECT_FALSE(identity.contains(key)) << key;
  }
  // Part of the identity unless they are defaults.
  const std::set<std::string> not_by_default{"train.drafter",
                                             "train.drafter_rank",
                                             "train.drafter_alpha",
                                             "train.drafter_targets",
                                             "train.drafter_proposals",
                                             "train.drafter_layers",
                                             "train.drafter_features",
                                             "train.drafter_mask_token",
                                             "model.decode_weights",
                                             "generate.method",
                                             "train.ar_loss",
                                             "train.consistency_decay",
                                             "rounds.1.drop_initial_state",
                                             "prompts.text",
                                             "prompts.template_arguments"};
  std::size_t identity_fields = 0;
  for (const ConfigField& field : job_fields(config)) {
    identity_fields +=
        field.kind == FieldKind::identity && !not_by_default.contains(field.path()) ? 1 : 0;
  }
  EXPECT_EQ(identity.size(), identity_fields);
  config.prompts.text = "{question}";
  EXPECT_TRUE(identity_values(job_fields(config)).contains("prompts.text"));
}

TEST(JobFields, TheIdentitySaysWhatAChangeOfAKeyMeans) {
  JobConfig config = small_job();
  const Identity identity = identity_of(config);
  for (const char* const key : {"run.seed", "model.compute", "prompts.limit"}) {
    EXPECT_EQ(identity.change_of(key), (KeyChange{FixedFrom::import, false})) << key;
  }
  for (const char* const key : {"train.batch_samples", "train.filter_eos"}) {
    EXPECT_EQ(identity.change_of(key), (KeyChange{FixedFrom::round, false})) << key;
  }
  for (const char* const key : {"rounds.1.mask", "train.ar_weight", "train.teacher"}) {
    EXPECT_EQ(identity.change_of(key), (KeyChange{FixedFrom::never, true})) << key;
  }
  for (const char* const key : {"generate.max_new_tokens", "rounds.1.steps", "train.learning_rate",
                                "model.decode_weights"}) {
    EXPECT_EQ(identity.change_of(key), KeyChange()) << key;
  }
}

TEST(JobFields, AKeyWithoutEffectIsRefused) {
  EXPECT_THAT(refusal({"prompts.text={a}", "prompts.field=prompt"}),
              AllOf(HasSubstr("prompts.field has no effect beside prompts.text")));
  JobConfig config = small_job({"prompts.text={a}"});
  JobConfig back = read_job_config(write_toml(job_fields(config)), "resolved_config.toml", {});
  EXPECT_EQ(identity_of(back), identity_of(config));
}

TEST(JobFields, TypesFollowTheDeviceUnlessTheyAreGiven) {
  const auto chosen = [](Device device, const std::vector<std::string>& keys) {
    JobConfig config = small_job(keys);
    config.model.choose_for(device);
    return std::pair(config.sharding().compute, config.model.decode_weights);
  };
  const std::pair exact(DType::float32, WeightStorage::automatic);
  EXPECT_EQ(chosen(Device::cpu, {}), exact);
  EXPECT_EQ(chosen(Device::cuda, {}),
            std::pair(DType::bfloat16, WeightStorage::bfloat16_arithmetic));
  EXPECT_EQ(chosen(Device::cuda, {"model.compute=float32"}), exact);
  EXPECT_EQ(chosen(Device::cuda, {"model.decode_weights=float32"}),
            std::pair(DType::bfloat16, WeightStorage::float32));
  EXPECT_EQ(chosen(Device::cpu, {"model.compute=bfloat16"}),
            std::pair(DType::bfloat16, WeightStorage::automatic));
  EXPECT_EQ(chosen(Device::cpu, {"model.decode_weights=int8"}),
            std::pair(DType::float32, WeightStorage::int8));
  EXPECT_THAT(
      test::message_of<ConfigError>(
          [&] { return chosen(Device::cuda, {"model.decode_weights=int8"}); }),
      AllOf(HasSubstr("model.decode_weights = \"int8\""), HasSubstr("bfloat16_arithmetic")));
}

TEST(JobFields, DecodingWeightsAreIdentityWhereTheyAreRounded) {
  const auto identity = [](const char* storage) {
    JobConfig config = small_job({std::string("model.decode_weights=") + storage});
    return identity_values(job_fields(config));
  };
  JobConfig config = small_job();
  const auto usual = identity_values(job_fields(config));
  FinetuneConfig finetune;  // unknown to earlier versions, whose runs must continue
  EXPECT_FALSE(identity_values(finetune_fields(finetune)).contains("finetune.template"));
  finetune.finetune.chat_template = "chatml";
  EXPECT_TRUE(identity_values(finetune_fields(finetune)).contains("finetune.template"));
  EXPECT_EQ(identity("auto"), usual);
  EXPECT_EQ(identity("float32"), usual);
  EXPECT_TRUE(identity("bfloat16").contains("model.decode_weights"));
  EXPECT_NE(identity("bfloat16_arithmetic"), identity("bfloat16"));
  EXPECT_THROW(static_cast<void>(identity("int4")), ConfigError);
}

TEST(JobFields, TemplateArgumentsAreIdentityWhereThereAreSome) {
  JobConfig unset = small_job();
  EXPECT_FALSE(identity_values(job_fields(unset)).contains("prompts.template_arguments"));
  JobConfig given = small_job({"prompts.template_arguments={enable_thinking=true, b='1 Jan'}"});
  EXPECT_EQ(identity_values(job_fields(given)).at("prompts.template_arguments"),
            "{ b = '1 Jan', enable_thinking = true }");
  EXPECT_THAT(refusal({"prompts.template_arguments={strftime_now='today'}"}),
              AllOf(HasSubstr("prompts.template_arguments"), HasSubstr("2026-01-31")));
  FinetuneConfig finetune;
  EXPECT_FALSE(identity_values(finetune_fields(finetune)).contains("finetune.template_arguments"));
}

TEST(JobFields, OperationalChangesKeepTheIdentity) {
  JobConfig before = small_job();
  JobConfig after = small_job({"run.directory=elsewhere", "generate.batch_prompts=3",
                               "checkpoint.every_steps=1", "evaluate.limit=5"});
  EXPECT_EQ(identity_values(job_fields(before)), identity_values(job_fields(after)));
  JobConfig other = small_job({"run.seed=43"});
  EXPECT_NE(identity_values(job_fields(before)), identity_values(job_fields(other)));
}

TEST(JobFields, RefusalsNameTheKeyAndTheWayOut) {
  EXPECT_THAT(refusal({"run.directory="}), HasSubstr("run.directory"));
  EXPECT_THAT(refusal({"model.source="}), HasSubstr("model.source"));
  if (cuda_device_count() == 0) {
    EXPECT_THAT(refusal({"model.device=cuda"}),
                AllOf(HasSubstr("model.device"), HasSubstr("CUDA")));
  }
  EXPECT_THAT(refusal({"prompts.files=[]"}), HasSubstr("prompts.files"));
  EXPECT_THAT(refusal({"run.hang_limit_seconds=1"}), HasSubstr("run.hang_limit_seconds"));
  for (const std::string limit : {"1", "0", "-1", "nan"}) {
    EXPECT_THAT(refusal({"run.heartbeat_limit_seconds=" + limit}),
                HasSubstr("run.heartbeat_limit_seconds"));
  }
  EXPECT_THAT(refusal({"train.batch_samples=4294967297"}),
              HasSubstr("train.batch_samples = 4294967297 must be at most"));
  EXPECT_THAT(refusal({"rounds.1.steps=1000000000000"}),
              AllOf(HasSubstr("[[rounds]] number 1"), HasSubstr("steps must be at most")));
  EXPECT_THAT(refusal({"rounds.1.epochs=1.0"}),
              AllOf(HasSubstr("[[rounds]] number 1"), HasSubstr("epochs or steps")));
  EXPECT_THAT(refusal({"rounds.1.block_size=0"}), HasSubstr("block_size"));
  EXPECT_THAT(refusal({"rounds.1.steps=0"}), HasSubstr("positive"));
  EXPECT_THAT(refusal({"generate.max_new_tokens=0"}), HasSubstr("generate.max_new_tokens"));
  EXPECT_THAT(refusal({"train.zero_stage=4"}), HasSubstr("zero_stage"));
  EXPECT_THAT(refusal({"evaluate.tasks=[\"no_such_task\"]", "evaluate.data=x"}),
              HasSubstr("evaluate.tasks"));
  EXPECT_THAT(refusal({"train.batch_samples=3"}, 4),
              AllOf(HasSubstr("train.batch_samples"), HasSubstr("allow_idle_ranks")));
  EXPECT_EQ(refusal({"train.batch_samples=3", "train.allow_idle_ranks=true"}, 4), "nothing thrown");
}

TEST(JobFields, CompatibilityModesFixTheirFormulas) {
  const JobConfig paper = small_job({"train.compat=paper"});
  EXPECT_EQ(paper.noise_schedule(1).endpoint, ScheduleEndpoint::exclusive);
  EXPECT_EQ(paper.noise_schedule(1).measure, UnconvergedMeasure::positionwise);
  EXPECT_EQ(paper.noise_schedule(1).target, ScheduleTarget::ceil_count);
  EXPECT_EQ(paper.train_config(1).reduction, LossReduction::paper);
  EXPECT_EQ(paper.train_config(1).kept, KeptOffsets::all);
  EXPECT_EQ(paper.train_config(1).ar_weight, 1.0F);
  const JobConfig repo = small_job({"train.compat=repo"});
  EXPECT_EQ(repo.noise_schedule(1).endpoint, ScheduleEndpoint::inclusive);
  EXPECT_EQ(repo.train_config(1).reduction, LossReduction::repo);
  EXPECT_EQ(repo.train_config(1).ar_weight, 10.0F);
  EXPECT_TRUE(repo.train_config(1).train_prompt);
}

// A recipe's values for two rounds, by key.
std::map<std::string, std::string> two_rounds(const std::vector<std::string>& overrides) {
  JobConfig config =
      read_job_config(std::string(kSmallest) + "[[rounds]]\nsteps = 5\n", "job.toml", overrides);
  std::map<std::string, std::string> values;
  for (const ConfigField& field : job_fields(config)) {
    values[field.path()] = field.write().value_or("");
  }
  return values;
}

void expect_values(const std::map<std::string, std::string>& values,
                   const std::map<std::string, std::string>& expected) {
  for (const auto& [path, value] : expected) {
    EXPECT_EQ(values.at(path), value) << path;
  }
}

TEST(JobFields, JacobiForcingIsTheDefaultRecipe) {
  const std::map<std::string, std::string> expected{{"train.recipe", toml_quoted("jacobi-forcing")},
                                                    {"train.compat", toml_quoted("none")},
                                                    {"train.consistency_decay", "1.0"},
                                                    {"rounds.1.mask", toml_quoted("noise")},
                                                    {"rounds.1.schedule", toml_quoted("linear")},
                                                    {"rounds.1.block_size", "16"},
                                                    {"rounds.1.noise_window", "16"},
                                                    {"rounds.2.block_size", "32"},
                                                    {"rounds.2.noise_window", "8"}};
  expect_values(two_rounds({}), expected);
  expect_values(two_rounds({"train.recipe=jacobi-forcing"}), expected);
}

TEST(JobFields, OtherRecipesMeanWhatTheirNamesSay) {
  expect_values(two_rounds({"train.recipe=authors"}), {{"train.recipe", toml_quoted("authors")},
                                                       {"train.compat", toml_quoted("repo")},
                                                       {"train.ar_weight", "1.0"},
                                                       {"train.train_prompt", "true"},
                                                       {"train.consistency_decay", "1.0"},
                                                       {"rounds.1.mask", toml_quoted("noise")},
                                                       {"rounds.1.noise_window", "16"},
                                                       {"rounds.2.block_size", "32"},
                                                       {"rounds.2.noise_window", "16"}});
  expect_values(two_rounds({"train.recipe=clean-context"}),
                {{"train.recipe", toml_quoted("clean-context")},
                 {"train.compat", toml_quoted("none")},
                 {"train.consistency_decay", "0.8"},
                 {"rounds.1.mask", toml_quoted("clean")},
                 {"rounds.1.schedule", toml_quoted("random")},
                 {"rounds.2.block_size", "16"},
                 {"rounds.2.mask", toml_quoted("clean")}});
}

TEST(JobFields, AKeyOfItsOwnMakesAnotherRecipe) {
  const auto values = two_rounds({"rounds.1.noise_window=8"});
  expect_values(values, {{"train.recipe", toml_quoted("none")},
                         {"rounds.1.noise_window", "8"},
                         {"rounds.2.noise_window", "8"},
                         {"rounds.1.mask", toml_quoted("noise")}});
  expect_values(two_rounds({"train.recipe=none", "rounds.1.mask=clean"}),
                {{"train.recipe", toml_quoted("none")}, {"rounds.1.mask", toml_quoted("clean")}});
  expect_values(two_rounds({"rounds.1.noise_window=16", "train.compat=none"}),
                {{"train.recipe", toml_quoted("jacobi-forcing")}});
  EXPECT_THAT(refusal({"train.recipe=jacobi-forcing", "rounds.1.mask=clean"}),
              AllOf(HasSubstr("rounds.1.mask = " + toml_quoted("clean")),
                    HasSubstr("train.recipe = " + toml_quoted("jacobi-forcing")),
                    HasSubstr("noise"), HasSubstr("train.recipe = \"none\"")));
  EXPECT_THAT(refusal({"train.recipe=clean-context", "train.compat=paper"}),
              HasSubstr("train.compat = " + toml_quoted("paper")));
}

TEST(JobFields, CompatibilityModesBeginWithThePapersMaskAndSchedule) {
  const auto of = [](const std::vector<std::string>& overrides) {
    const RoundSettings round = small_job(overrides).rounds.at(0);
    return std::pair(round.mask, round.schedule);
  };
  EXPECT_EQ(of({"train.compat=paper"}), std::pair(MaskKind::noise, ScheduleKind::linear));
  EXPECT_EQ(of({"train.compat=repo"}), std::pair(MaskKind::noise, ScheduleKind::linear));
  EXPECT_EQ(of({"train.compat=paper", "rounds.1.mask=window", "rounds.1.schedule=random"}),
            std::pair(MaskKind::window, ScheduleKind::random));
}

TEST(JobFields, TheResolvedFileSaysWhatCompatibilityFixes) {
  JobConfig repo = small_job({"train.compat=repo"});
  const auto values = identity_values(job_fields(repo));
  EXPECT_EQ(values.at("train.ar_weight"), "10.0");
  EXPECT_EQ(values.at("train.train_prompt"), "true");
  JobConfig paper = small_job({"train.compat=paper"});
  const std::string text = write_toml(job_fields(paper));
  EXPECT_THAT(text, HasSubstr("kept = " + toml_quoted("all")));
  JobConfig back = read_job_config(text, "resolved_config.toml", {});
  EXPECT_EQ(write_toml(job_fields(back)), text);
}

TEST(JobFields, ValuesThatContradictCompatibilityAreRefused) {
  EXPECT_EQ(small_job({"train.compat=repo", "train.ar_weight=3.0"}).train_config(1).ar_weight, 3);
  EXPECT_EQ(small_job({"train.compat=paper", "train.ar_weight=40"}).train_config(1).ar_weight, 40);
  EXPECT_THAT(refusal({"train.compat=repo", "train.kept=all"}),
              AllOf(HasSubstr("train.kept = " + toml_quoted("all")),
                    HasSubstr("train.compat = " + toml_quoted("repo")),
                    HasSubstr("means " + toml_quoted("from_first_difference"))));
  EXPECT_EQ(refusal({"train.compat=none", "train.ar_weight=3.0"}), "nothing thrown");
}

TEST(JobFields, LossesBeforeAndAfterAnotherCompatDoNotCompare) {
  JobConfig config = small_job();
  EXPECT_TRUE(identity_of(config).change_of("train.compat").other_loss);
}

TEST(FinetuneFields, TheIdentityHoldsKeysOfEveryTraining) {
  FinetuneConfig finetune;
  EXPECT_FALSE(identity_of(finetune).contains("train.filter_min_tokens"));
  PretrainConfig pretrain;
  const Identity identity = identity_of(pretrain);
  expect_values(identity, {{"train.consistency_weight", "1.0"}});
  EXPECT_FALSE(identity.contains("model.compute"));
}

TEST(JobFields, ARoundMayHaveItsOwnRate) {
  const JobConfig config = small_job({"rounds.1.learning_rate=1e-5", "rounds.1.mask=clean"});
  EXPECT_EQ(config.train_config(1).learning_rate, 1e-5);
  EXPECT_EQ(config.train_config(1).mask, MaskKind::clean);
  EXPECT_EQ(small_job().train_config(1).learning_rate, TrainConfig{}.learning_rate);
}

TEST(PretrainFields, DefaultsRoundTripAndRefusalsNameTheKey) {
  PretrainConfig config;
  const std::string text = write_toml(pretrain_fields(config));
  PretrainConfig back = read_pretrain_config(text, "resolved_config.toml", {});
  EXPECT_EQ(write_toml(pretrain_fields(back)), text);
  EXPECT_THAT(test::message_of<ConfigError>([&] { back.validate(); }), HasSubstr("run.directory"))
      << "a configuration without directory was accepted";
  EXPECT_THROW(static_cast<void>(read_pretrain_config("[[rounds]]\nsteps = 1\n", "p.toml", {})),
               ConfigError);
}

TEST(FinetuneFields, DefaultsRoundTripAndRefusalsNameTheKey) {
  FinetuneConfig config;
  const std::string text = write_toml(finetune_fields(config));
  FinetuneConfig back = read_finetune_config(text, "resolved_config.toml", {});
  EXPECT_EQ(write_toml(finetune_fields(back)), text);
  constexpr const char* kFinetune =
      "[run]\ndirectory = \"out\"\n[model]\nsource = \"m\"\n"
      "[finetune]\noutput = \"o\"\nfiles = [\"d.jsonl\"]\nsteps = 3\n";
  const auto said = [&](const std::string& override) {
    return test::message_of<ConfigError>(
        [&] { read_finetune_config(kFinetune, "f.toml", {override}).validate(); });
  };
  EXPECT_EQ(said("finetune.max_tokens=9"), "nothing thrown");
  EXPECT_THAT(said("run.directory="), HasSubstr("run.directory"));
  EXPECT_THAT(said("model.source="), HasSubstr("model.source"));
  EXPECT_THAT(said("finetune.output="), HasSubstr("finetune.output"));
  EXPECT_THAT(said("finetune.files=[]"), HasSubstr("finetune.files"));
  EXPECT_THAT(said("finetune.epochs=1.5"), HasSubstr("finetune.epochs or finetune.steps"));
  EXPECT_THAT(said("finetune.steps=0"), HasSubstr("finetune.steps"));
  EXPECT_THAT(said("finetune.steps=1000000000000"), HasSubstr("finetune.steps must be at most"));
  EXPECT_THAT(said("run.heartbeat_limit_seconds=1"), HasSubstr("run.heartbeat_limit_seconds"));
  EXPECT_THAT(said("finetune.max_tokens=0"), HasSubstr("finetune.max_tokens"));
  // Keys of other commands are not its own, but part of the identity, as in earlier versions.
  for (const std::string key : {"train.teacher", "train.consistency_decay",
                                "train.early_stop_every", "model.decode_weights"}) {
    EXPECT_THAT(said(key + "=1"), HasSubstr(key + " has no effect in jforge finetune"));
  }
  EXPECT_THAT(text, Not(HasSubstr("teacher")));
  EXPECT_EQ(identity_of(config).at("train.teacher"), toml_quoted("detached"));
}

TEST(PretrainFields, DimensionsOfNoModelAreRefusedByKey) {
  constexpr const char* kPretrain =
      "[run]\ndirectory = \"out\"\n"
      "[pretrain]\ntokenizer = \"t\"\noutput = \"m\"\nfiles = [\"d.jsonl\"]\n";
  const auto said = [&](const std::string& override) {
    return test::message_of<ConfigError>(
        [&] { read_pretrain_config(kPretrain, "p.toml", {override}).validate(); });
  };
  EXPECT_EQ(said("pretrain.num_heads=8"), "nothing thrown");
  EXPECT_EQ(said("model.device=cpu"), "nothing thrown");
  EXPECT_THAT(said("model.device=gpu"), HasSubstr("model.device"));
  EXPECT_THAT(said("pretrain.steps=1000000000000"), HasSubstr("pretrain.steps must be"));
  for (const char* key : {"hidden_size", "intermediate_size", "num_layers", "num_heads",
                          "num_kv_heads", "max_position_embeddings", "rope_theta"}) {
    EXPECT_THAT(said(std::string("pretrain.") + key + "=0"), HasSubstr(key));
  }
  EXPECT_THAT(said("pretrain.num_heads=3"),
              AllOf(HasSubstr("pretrain.num_heads = 3"), HasSubstr("pretrain.hidden_size = 128")));
  EXPECT_THAT(said("pretrain.num_kv_heads=3"), HasSubstr("pretrain.num_kv_heads = 3"));
  EXPECT_THAT(said("pretrain.num_heads=128"), HasSubstr("odd"));
}

}  // namespace
}  // namespace jforge
