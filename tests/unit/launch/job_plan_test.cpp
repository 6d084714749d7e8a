#include "launch/commands/job_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "checkpoints/hf_model.h"
#include "launch/commands/available_memory.h"
#include "launch/commands/plan_time.h"
#include "launch/config/job_fields.h"
#include "model/kernels/device_loss.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/training_transformer.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/launch/plan_model.h"

namespace jforge {
namespace {

using test::plan_model;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

JobConfig job() {
  JobConfig config;
  config.rounds.resize(2);
  config.rounds[0].block_size = 16;
  config.rounds[1].block_size = 48;  // 64 new tokens are 96 in whole blocks
  config.generate.max_new_tokens = 64;
  config.generate.batch_prompts = 4;
  config.train.batch_samples = 6;
  config.train.tokens_per_rank = 5000;
  return config;
}

TEST(MemoryPlan, CountsWhatThePhasesAllocate) {
  const MemoryPlan plan =
      plan_memory(job(), plan_model(), 2, Device::cpu, {std::nullopt, 30}, false);
  const double vector = 4.0 * static_cast<double>(ParameterTable(plan_model(), 2).flat_size());
  EXPECT_EQ(plan.weights, vector / 2);
  EXPECT_EQ(plan.gathered, 4.0 * (1000 * 64 + 64)) << "the head with its norm";
  EXPECT_EQ(plan.state.optimizer, vector);  // 8P/N
  EXPECT_EQ(plan.micro_batches, 1);
  EXPECT_EQ(plan.payload.total(), vector);  // f (g + w) P
  EXPECT_EQ(plan.snapshot, 1.5 * vector);   // 12P/N
  EXPECT_EQ(plan.rows, 3 * (30 + 2 * 96));
  EXPECT_EQ(plan.activations,
            static_cast<double>(TrainingTransformer::bytes(plan_model(), plan.rows, {})));
  EXPECT_EQ(plan.generation(),
            plan.weights + plan.gathered +
                static_cast<double>(InferenceTransformer::bytes(
                    plan_model(), {.num_slots = 4, .slot_capacity = 30 + 96}, Device::cpu)));
  EXPECT_EQ(plan.training(), 4.5 * vector + plan.activations);
  EXPECT_EQ(plan.training_on_device(), 0);
  // Five prompts on two ranks take three places, seven or more all four.
  EXPECT_EQ(plan_memory(job(), plan_model(), 2, Device::cpu, {5, 30}, false).cache,
            plan.cache * 3 / 4);
  EXPECT_EQ(plan_memory(job(), plan_model(), 2, Device::cpu, {7, 30}, false).cache, plan.cache);
  JobConfig few = job();
  few.train.batch_samples = 2;
  few.rounds[0].steps = 1;
  few.rounds[1].steps = 2;
  for (const std::optional<std::int64_t> count :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(1000)}) {
    EXPECT_EQ(plan_memory(few, plan_model(), 2, Device::cpu, {count, 30}, false).cache,
              plan.cache * 2 / 4);
  }

  // Only the longest prompts that fill the batch: 126 rows take two pages, 129 three.
  const auto cache_of = [&](std::vector<std::int64_t> lengths, std::int64_t cache_mb) {
    JobConfig config = job();
    config.generate.cache_mb = cache_mb;
    const PlannedPrompts prompts{std::ssize(lengths), 33, std::move(lengths)};
    return plan_memory(config, plan_model(), 2, Device::cpu, prompts, false).cache;
  };
  const double page = plan.cache / (4 * 2);
  const std::vector<std::int64_t> lengths{33, 30, 1, 33, 2, 32, 7, 8};
  EXPECT_EQ(cache_of(lengths, 0), (3 + 3 + 2 + 2) * page);
  EXPECT_EQ(cache_of(lengths, 1000), (3 + 3 + 2 + 2) * page);
  const std::vector<std::int64_t> alike(8, 400);
  EXPECT_EQ(cache_of(alike, 0), 4 * 8 * page);
  EXPECT_EQ(cache_of(alike, 1), std::floor(1e6 / page) * page);
  JobConfig deep = job();
  deep.generate.cache_mb = 1;
  EXPECT_THROW((void)plan_memory(deep, plan_model(), 2, Device::cpu, {1, 4000, {4000}}, false),
               ConfigError);

  JobConfig narrow = job();
  narrow.train.tokens_per_rank = 300;
  EXPECT_EQ(plan_memory(narrow, plan_model(), 2, Device::cpu, {std::nullopt, 30}, false).rows, 300);
}

TEST(MemoryPlan, FollowsStageAndType) {
  JobConfig config = job();
  config.train.optimizer.zero_stage = 3;
  config.model.compute = ComputeType::bfloat16;
  config.train.tokens_per_rank = 400;
  EXPECT_EQ(
      plan_memory(config, plan_model(), 2, Device::cpu, {std::nullopt, 30}, false).micro_batches, 3)
      << "samples of 222 rows are not split";
  config.train.tokens_per_rank = 300;
  const MemoryPlan plan =
      plan_memory(config, plan_model(), 8, Device::cpu, {std::nullopt, 30}, false);
  const ParameterTable table(plan_model(), 8);
  const Sharding sharding{.stage = 3, .compute = DType::bfloat16};
  EXPECT_EQ(plan.state.total(), training_memory(table, sharding).total());
  EXPECT_EQ(plan.activations, static_cast<double>(TrainingTransformer::bytes(
                                  plan_model(), plan.rows, {.compute = DType::bfloat16})));
  EXPECT_EQ(plan.training(), plan.state.total() + plan.snapshot + plan.activations);
  EXPECT_EQ(plan.micro_batches, 1) << "one sample of 222 rows on each rank";
  EXPECT_EQ(plan.payload.total(), step_payload(table, sharding, 1).total());
}

TEST(MemoryPlan, CopiesOfTheStateHoldAndSendMore) {
  JobConfig config = job();
  const auto plan_for = [&](int shard_ranks) {
    config.train.shard_ranks = shard_ranks;
    return plan_memory(config, plan_model(), 8, Device::cpu, {std::nullopt, 30}, false);
  };
  const MemoryPlan copies = plan_for(2);
  EXPECT_NEAR(copies.weights / plan_for(0).weights, 4, 1e-2) << "but for padding";
  EXPECT_EQ(
      copies.payload.within(),
      plan_memory(job(), plan_model(), 2, Device::cpu, {std::nullopt, 30}, false).payload.total());
  EXPECT_EQ(copies.payload.across, 1.5 * copies.weights);
  EXPECT_THAT([&] { static_cast<void>(plan_for(3)); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("train.shard_ranks = 3")));
}

TEST(MemoryPlan, AFrozenTeacherIsWeightsAndAForward) {
  JobConfig config = job();
  const auto plan_for = [&](Device device) {
    return plan_memory(config, plan_model(), 2, device, {std::nullopt, 30}, false);
  };
  const MemoryPlan detached = plan_for(Device::cpu);
  const MemoryPlan detached_on_device = plan_for(Device::cuda);
  config.train.teacher = TeacherKind::frozen;
  const MemoryPlan frozen = plan_for(Device::cpu);
  const auto forward = static_cast<double>(
      TrainingTransformer::bytes(plan_model(), 3 * (30 + 96), {.forward_only = true}));
  EXPECT_EQ(frozen.state.teacher, 2 * frozen.weights) << "all of both ranks' shards";
  EXPECT_EQ(frozen.training() - detached.training(), frozen.state.teacher + forward);
  EXPECT_EQ(frozen.payload.total(), detached.payload.total())
      << "nothing is gathered below stage 3";
  const MemoryPlan on_device = plan_for(Device::cuda);
  // The teacher's rows have their own logits.
  EXPECT_EQ(on_device.loss, 1.5 * detached_on_device.loss);
  EXPECT_EQ(on_device.training_on_device() - detached_on_device.training_on_device(),
            frozen.state.teacher + forward + detached_on_device.loss / 2);
  config.train.ar_loss = ArLoss::distillation;
  EXPECT_EQ(plan_for(Device::cuda).loss, 2 * detached_on_device.loss);
}

TEST(MemoryPlan, ChecksInTrainingTakeADecodersMemory) {
  JobConfig config = job();
  config.train.collapse.check_every = 5;
  const auto plan_for = [&](Device device) {
    return plan_memory(config, plan_model(), 2, device, {std::nullopt, 30}, false);
  };
  const auto decoding = static_cast<double>(InferenceTransformer::bytes(
      plan_model(), {.num_slots = 4, .slot_capacity = 30 + 64}, Device::cpu));
  const MemoryPlan plan = plan_for(Device::cpu);
  EXPECT_EQ(plan.probe.decoding, decoding);
  EXPECT_EQ(plan.probe.gathered, plan.gathered);
  EXPECT_EQ(plan_for(Device::cuda).probe.decoding, decoding);
  JobConfig without = config;
  without.train.collapse.check_every = 0;
  const MemoryPlan detached =
      plan_memory(without, plan_model(), 2, Device::cpu, {std::nullopt, 30}, false);
  EXPECT_EQ(plan_for(Device::cpu).training() - detached.training(), decoding + plan.gathered);
  config.train.early_stop = {.every = 5, .task = "gsm8k", .problems = 2};
  EXPECT_EQ(plan_for(Device::cpu).probe.decoding,
            static_cast<double>(InferenceTransformer::bytes(
                plan_model(), {.num_slots = 4, .slot_capacity = 30 + 512}, Device::cpu)));
  JobConfig halved = config;
  halved.model.decode_weights = WeightStorage::bfloat16;
  EXPECT_EQ(
      plan_memory(halved, plan_model(), 2, Device::cpu, {std::nullopt, 30}, false).probe.decoding,
      static_cast<double>(InferenceTransformer::bytes(
          plan_model(),
          {.num_slots = 4, .slot_capacity = 30 + 512, .weights = WeightStorage::bfloat16},
          Device::cpu)));
  EXPECT_EQ(plan_memory(config, plan_model(), 2, Device::cpu, {std::nullopt, 30, {}, 400}, false)
                .probe.decoding,
            static_cast<double>(InferenceTransformer::bytes(
                plan_model(), {.num_slots = 4, .slot_capacity = 400 + 512}, Device::cpu)));
}

TEST(MemoryPlan, MatricesTakeHalfWhereDecodingStoresBfloat16) {
  const auto decoding = [](const JobConfig& config, Device device, bool source_is_bfloat16) {
    return plan_memory(config, plan_model(), 1, device, {std::nullopt, 30}, source_is_bfloat16)
        .decoding;
  };
  const double matrices = 2 * (64 * 3 * 64 + 3 * 64 * 128) + 1000 * 64;
  JobConfig config = job();
  const double whole = decoding(config, Device::cpu, false);
  EXPECT_EQ(decoding(config, Device::cpu, true), whole) << "round 2 decodes trained float32";
  config.rounds.resize(1);
  EXPECT_EQ(decoding(config, Device::cpu, true), whole - 2 * matrices);
  EXPECT_EQ(decoding(config, Device::cpu, false), whole);
  EXPECT_EQ(decoding(config, Device::cuda, true),
            decoding(config, Device::cuda, false) - 2 * matrices);
  config.model.decode_weights = WeightStorage::float32;
  EXPECT_EQ(decoding(config, Device::cpu, true), whole);
  config = job();
  config.model.decode_weights = WeightStorage::bfloat16;
  EXPECT_EQ(decoding(config, Device::cpu, false), whole - 2 * matrices);
  config.model.decode_weights = WeightStorage::int8;
  const double scales = 2 * (3 * 64 + 2 * 128 + 64) + 1000;
  EXPECT_EQ(decoding(config, Device::cpu, false), whole - 3 * matrices + 4 * scales);
}

TEST(MemoryPlan, ADevicesCacheTakesHalfBesideRoundedWeights) {
  const auto cache = [](WeightStorage storage, Device device) {
    JobConfig config = job();
    config.model.decode_weights = storage;
    return plan_memory(config, plan_model(), 1, device, {std::nullopt, 30}, true).cache;
  };
  const double whole = cache(WeightStorage::automatic, Device::cuda);
  EXPECT_EQ(cache(WeightStorage::float32, Device::cuda), whole);
  for (const WeightStorage storage :
       {WeightStorage::bfloat16, WeightStorage::bfloat16_arithmetic}) {
    EXPECT_EQ(cache(storage, Device::cuda), whole / 2);
    EXPECT_EQ(cache(storage, Device::cpu), whole);
  }
}

TEST(MemoryPlan, ADeviceHoldsActivationsAndCache) {
  const MemoryPlan host =
      plan_memory(job(), plan_model(), 1, Device::cpu, {std::nullopt, 30}, false);
  const MemoryPlan device =
      plan_memory(job(), plan_model(), 1, Device::cuda, {std::nullopt, 30}, false);
  EXPECT_EQ(device.generation(), device.weights + device.gathered);
  EXPECT_EQ(device.training(), host.snapshot) << "weights, gradients and moments are there too";
  const MemoryPlan of_eight =
      plan_memory(job(), plan_model(), 8, Device::cuda, {std::nullopt, 30}, false);
  EXPECT_EQ(of_eight.training(), 3 * of_eight.weights);
  EXPECT_EQ(device.training_on_device(),
            host.state.total() + host.activations + device.loss + device.products);
  EXPECT_EQ(device.loss, static_cast<double>(device.rows * (64 * (4 + 4) + 1000 * 4)))
      << "hidden states, their gradients, logits";
  JobConfig offloaded = job();
  offloaded.train.optimizer.offload = true;
  const MemoryPlan copies =
      plan_memory(offloaded, plan_model(), 1, Device::cuda, {std::nullopt, 30}, false);
  EXPECT_EQ(copies.training(), host.training() - host.activations);
  EXPECT_EQ(copies.training_on_device(),
            2 * device.weights + host.activations + device.loss + device.products);
  EXPECT_EQ(device.generation_on_device() - device.products,
            host.generation() - host.weights - host.gathered);
}

double sum_of(const std::vector<DeviceRows::Row>& rows) {
  double sum = 0;
  for (const auto& [label, bytes] : rows) {
    EXPECT_GE(bytes, 0) << label;
    sum += bytes;
  }
  return sum;
}

TEST(MemoryPlan, TheRowsOfADeviceAreAllOfIt) {
  for (const std::int32_t stage : {0, 1, 2, 3}) {
    for (const bool offload : {false, true}) {
      JobConfig config = job();
      config.train.optimizer.zero_stage = stage;
      config.train.optimizer.offload = offload;
      config.train.teacher = TeacherKind::frozen;
      config.train.collapse.check_every = 5;
      const MemoryPlan plan =
          plan_memory(config, plan_model(), 2, Device::cuda, {std::nullopt, 30}, false);
      const DeviceRows rows = rows_on_device(plan);
      EXPECT_DOUBLE_EQ(sum_of(rows.generation), plan.generation_on_device());
      EXPECT_DOUBLE_EQ(sum_of(rows.training), plan.training_on_device());
      EXPECT_GT(plan.training_on_device(), 0);
    }
  }
  const MemoryPlan host =
      plan_memory(job(), plan_model(), 2, Device::cpu, {std::nullopt, 30}, false);
  EXPECT_TRUE(rows_on_device(host).generation.empty());
  EXPECT_TRUE(rows_on_device(host).training.empty());
}

TEST(MemoryPlan, WhatCannotFitIsRefusedWithBothFigures) {
  const MemoryPlan plan =
      plan_memory(job(), plan_model(), 2, Device::cpu, {std::nullopt, 30}, false);
  const double most = std::max(plan.generation(), plan.training());
  EXPECT_NO_THROW(expect_fits(plan, job(), {}, 2, static_cast<std::uint64_t>(2 * most)));
  EXPECT_THAT(test::message_of<EnvironmentError>([&] {
                expect_fits(plan, job(), {}, 2,
                            static_cast<std::uint64_t>(2 * plan.training()) - 1);
              }),
              AllOf(HasSubstr("training needs"), HasSubstr("train.tokens_per_rank (now 5000)"),
                    HasSubstr(fmt::format("{:.1f} MB for the 2", 2 * plan.training() / 1e6)),
                    HasSubstr(fmt::format("and {:.1f} MB are", 2 * plan.training() / 1e6))));
  EXPECT_THAT(
      [&] { expect_fits(plan, job(), {}, 1, static_cast<std::uint64_t>(plan.generation()) - 1); },
      ::testing::ThrowsMessage<EnvironmentError>(
          HasSubstr("lower generate.batch_prompts (now 4)")));
}

TEST(MemoryPlan, WhatDoesNotFitADeviceIsRefusedWithItsParts) {
  const MemoryPlan plan =
      plan_memory(job(), plan_model(), 2, Device::cuda, {std::nullopt, 30}, false);
  const double most = std::max(plan.generation_on_device(), plan.training_on_device());
  EXPECT_NO_THROW(expect_fits_device(plan, job(), {}, 2, static_cast<std::uint64_t>(2 * most) + 1));
  const auto refusal = [&](const PlannedPhases& phases, int ranks, double available) {
    return [&plan, phases, ranks, available] {
      expect_fits_device(plan, job(), phases, ranks, static_cast<std::uint64_t>(available));
    };
  };
  EXPECT_THAT(refusal({.generation = true, .training = false}, 2, plan.generation_on_device()),
              ::testing::ThrowsMessage<EnvironmentError>(
                  AllOf(HasSubstr("generation needs"), HasSubstr("which 2 ranks share"),
                        HasSubstr("generate.batch_prompts (now 4)"))));
  // Alone on its device, a rank can use a smaller cache.
  const double least = plan.generation_on_device() - plan.cache + plan.least_cache;
  EXPECT_LT(least, plan.generation_on_device());
  EXPECT_NO_THROW(refusal({.generation = true, .training = false}, 1, least + 1)());
  EXPECT_THAT(
      refusal({.generation = true, .training = false}, 1, least - 1),
      ::testing::ThrowsMessage<EnvironmentError>(
          AllOf(HasSubstr("generation needs"), HasSubstr("lower generate.max_new_tokens (now "))));
  EXPECT_THAT(refusal({.generation = false, .training = true}, 1, 0.9 * plan.training_on_device()),
              ::testing::ThrowsMessage<EnvironmentError>(
                  AllOf(HasSubstr("training needs"), HasSubstr("optimizer"),
                        HasSubstr("train.zero_stage (now 1)"))));
}

TEST(MemoryPlan, OnlyThePhasesThatAProcessRunsCount) {
  const MemoryPlan plan =
      plan_memory(job(), plan_model(), 2, Device::cpu, {std::nullopt, 30}, false);
  ASSERT_LT(plan.generation(), plan.training());
  const auto available = static_cast<std::uint64_t>(2 * plan.generation());
  const PlannedPhases generate{.generation = true, .training = false};
  const PlannedPhases train{.generation = false, .training = true};
  EXPECT_NO_THROW(expect_fits(plan, job(), generate, 2, available));
  EXPECT_THROW(expect_fits(plan, job(), generate, 2, available - 1), EnvironmentError);
  EXPECT_THROW(expect_fits(plan, job(), train, 2, available), EnvironmentError);
  EXPECT_THROW(expect_fits(plan, job(), {}, 2, available), EnvironmentError);
  EXPECT_NO_THROW(expect_fits(plan, job(), {.generation = false, .training = false}, 2, 1));
}

class DescribePlan : public ::testing::Test {
 protected:
  DescribePlan() {
    std::ofstream(root_.path() / "config.json")
        << R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
               "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
               "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
               "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0})";
    config_.model.source = root_.path();
    config_.run.directory = root_.path() / "run";
    config_.rounds[0].steps = 10;
    config_.rounds[1].steps = 20;
  }
  [[nodiscard]] std::string plan() const {
    return describe_plan(config_, {ranks_, 1}, Device::cpu, {1e9, 1e9, 1e9});
  }
  test::TemporaryDirectory root_;
  JobConfig config_ = job();
  int ranks_ = 1;
};

TEST_F(DescribePlan, StepsSayEverythingBeforeTheImport) {
  const std::string text = plan();
  EXPECT_THAT(text, AllOf(HasSubstr("60 prompts generated, 60 samples consumed in 10 steps of 6"),
                          HasSubstr("120 prompts generated, 120 samples consumed in 20 steps of 6"),
                          HasSubstr("at least 1 lease of at most"),
                          HasSubstr("time, estimated, all rounds")));
}

TEST_F(DescribePlan, TheMostStepsAndSamplesThatAreAllowedArePlanned) {
  config_.rounds[0].steps = kMostSteps;
  config_.train.batch_samples = kMostBatchSamples;
  EXPECT_THAT(plan(), HasSubstr("1048576000000000 prompts generated, 1048576000000000 samples"));
}

TEST_F(DescribePlan, EveryStateTakesMoreThanTwoOfEachBlock) {
  // 60 answers of 64 tokens with the longest prompts: 512 - 64.
  const auto megabytes_of = [](int states) {
    return fmt::format("at most {:.1f} MB of trajectories", 60 * (states * 64 + 512) * 4 / 1e6);
  };
  EXPECT_THAT(plan(), HasSubstr(megabytes_of(2)));
  config_.generate.store_states = StoredStates::all;
  EXPECT_THAT(plan(), HasSubstr(megabytes_of(17)));
}

TEST_F(DescribePlan, SamplesAndPromptsAreNotSplit) {
  const auto plan_of = [&](int ranks) {
    ranks_ = ranks;
    return plan();
  };
  const auto training_of = [&](int ranks) {
    const std::string text = plan_of(ranks);
    const std::size_t begin = text.rfind("to generate, ") + 13;
    return text.substr(begin, text.find(" to train", begin) - begin);
  };
  EXPECT_THAT(plan_of(3), Not(HasSubstr("samples are not split")));
  EXPECT_NE(training_of(1), training_of(6));
  EXPECT_EQ(training_of(6), training_of(512));
  EXPECT_THAT(
      plan_of(512),
      AllOf(HasSubstr("6 in a step are at most 1 on a rank, and 99 % of the ranks'"),
            HasSubstr("or use 6, which"),
            HasSubstr("a rank generates 1 of the prompts, up to 1 at once; 452 ranks have")));
  EXPECT_EQ(training_of(3), training_of(5));
  EXPECT_THAT(plan_of(5),
              AllOf(HasSubstr("at most 2 on a rank, and 40 % of"), HasSubstr("or use 3, which"),
                    HasSubstr("a rank generates 12 of the prompts, up to 4 at once\n")));
}

TEST_F(DescribePlan, MemoryOfAHostAndFilesAreThoseOfAllItsRanks) {
  const auto text = [&](PlannedRanks ranks) {
    return describe_plan(config_, ranks, Device::cpu, {1e9, 1e9, 1e9});
  };
  const MemoryPlan memory = plan_memory(config_, read_hf_config(root_.path()), 12, Device::cpu,
                                        {std::nullopt, 416}, false);
  EXPECT_THAT(text({12, 4}),
              HasSubstr(fmt::format("memory of a host with 4 of the ranks: generation "
                                    "{:.1f} MB, training {:.1f} MB",
                                    4e-6 * memory.generation(), 4e-6 * memory.training())));
  EXPECT_THAT(text({12, 4}),
              AllOf(HasSubstr("in 12 shards, the last 3 kept; at most"),
                    HasSubstr(fmt::format("in {} files at a time", (3 + 2) * (12 + 1))),
                    HasSubstr("most 500 steps")));
}

TEST(PlanTime, CountsTheMatricesThatAForwardReads) {
  TransformerConfig model = plan_model();
  for (const auto head_size : {std::optional<std::int64_t>(), std::optional<std::int64_t>(48)}) {
    model.own_head_size = head_size;
    const ParameterTable table(model, 1);
    std::int64_t weights = 0;
    for (const ParameterEntry& entry : table.entries()) {
      // A forward reads only some rows of the embedding.
      if (entry.decay && (model.tie_word_embeddings || entry.name != "model.embed_tokens.weight")) {
        weights += entry.shape.elements();
      }
    }
    EXPECT_EQ(matrix_weights(model), static_cast<double>(weights));
  }
}

TEST_F(DescribePlan, EpochsAreCountedPerThousandPromptsUntilTheirNumberIsKnown) {
  config_.rounds[1].steps.reset();
  config_.rounds[1].epochs = 1;
  EXPECT_THAT(plan(),
              AllOf(HasSubstr("figures for each 1000 prompts"),
                    HasSubstr("996 prompts generated, 996 samples consumed in 166 steps of 6"),
                    Not(HasSubstr("all rounds"))));
  config_.prompts.limit = 12;
  EXPECT_THAT(plan(), AllOf(HasSubstr("12 samples consumed in 2 steps of 6"),
                            HasSubstr("time, estimated, all rounds")));
}

TEST_F(DescribePlan, ADeviceThatIsNotHereIsCalculated) {
  const KnownDevice half{"Half", 2e12, 1e12, 1e12, 80e9, 1e11};
  const KnownDevice whole{"Whole", 4e12, 2e12, 2e12, 160e9, 2e11};
  const auto text = [&](const KnownDevice& device) {
    return describe_device_plan(config_, 2, device);
  };
  EXPECT_THAT(
      text(half),
      AllOf(HasSubstr("Half, calculated from its data sheet, nothing was measured: 80 GB, 1 "
                      "TFLOP/s in float32, 1000 GB/s, 100 GB/s to other devices"),
            HasSubstr("generation on the device: packed weights"),
            HasSubstr("training on the device: weights"),
            HasSubstr("data sheet, not measured, each rank: 1000.0 GFLOP/s in decoding, 1000.0 "
                      "in training, 1000.0 GB/s"),
            Not(HasSubstr("DOES NOT FIT")), Not(HasSubstr("measured here"))));
  // 2 · 64 · (3 · 64 + 3 · 128) + 1000 · 64 weights of four bytes: 137,728 · 4 / 1e12 s.
  EXPECT_THAT(text(half), HasSubstr("0.000551 ms at least"));
  EXPECT_THAT(text(whole), HasSubstr("0.000275 ms at least"));
  EXPECT_THAT(text(half),
              AllOf(Not(HasSubstr("assumed")),
                    HasSubstr("decodes with float32 products, 1 "
                              "TFLOP/s; \"bfloat16_arithmetic\" has 2, 2.0 times as many")));
  EXPECT_THAT(describe_device_plan(config_, 17, half),
              AllOf(HasSubstr("assumed: 3 nodes of 8 devices with 400 Gb/s each"),
                    HasSubstr("100 GB/s for what a rank sends"),
                    HasSubstr("memory of a host with 8 of the ranks")));
  config_.model.decode_weights = WeightStorage::bfloat16_arithmetic;
  EXPECT_THAT(text(half), Not(HasSubstr("float32 products")));
  KnownDevice tiny = half;
  tiny.memory_bytes = 2.9e9;  // too little for the libraries
  EXPECT_THAT(text(tiny), AllOf(HasSubstr("CUDA, cuBLAS and NCCL"), HasSubstr("DOES NOT FIT")));
}

TEST(DescribeDevicePlan, ThePapersRunFitsANodeOfEightGpusOf80GB) {
  const char* const source = std::getenv("JFORGE_SOURCE_DIR");
  ASSERT_NE(source, nullptr);
  const std::filesystem::path file =
      std::filesystem::path(source) / "launch/configs/paper_8xh100.toml";
  const test::TemporaryDirectory model;
  std::ofstream(model / "config.json")
      << R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
             "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
             "vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
             "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16"})";
  std::filesystem::copy(std::filesystem::path(source) / "launch/quickstart/model", model.path(),
                        std::filesystem::copy_options::skip_existing);
  std::filesystem::remove(model / "model.safetensors");
  JobConfig config = read_job_config(read_file(file), file.string(),
                                     {"train.early_stop_every=0", "model.device=auto"});
  config.model.source = model.path();
  EXPECT_NO_THROW(config.validate(8)) << "a rank has no samples";
  EXPECT_EQ(config.train.batch_samples * *config.rounds.front().steps, 40000);
  const KnownDevice* const device = find_known_device("H100");
  ASSERT_NE(device, nullptr);
  EXPECT_THAT(describe_device_plan(config, 8, *device),
              AllOf(HasSubstr("7615616512 parameters"), HasSubstr("training on the device"),
                    Not(HasSubstr("DOES NOT FIT"))));
  config.train.optimizer.zero_stage = 1;
  EXPECT_THAT(describe_device_plan(config, 8, *device), HasSubstr("DOES NOT FIT"));
}

TEST(DeviceLoss, HoldsOneGibibyteOfLogitsAtMost) {
  EXPECT_EQ(device_loss_rows(37), 2048);
  EXPECT_EQ(device_loss_rows(151936), 1766);
  EXPECT_EQ(device_loss_rows(std::int64_t{1} << 30), 64);
  EXPECT_EQ(device_loss_bytes(8192, 896, 151936, DType::bfloat16),
            1766 * (896 * (2 + 4) + std::int64_t{151936} * (4 + 2)));
}

TEST(KnownDevices, AreFoundByTheDriversNames) {
  EXPECT_EQ(find_known_device("NVIDIA H200"), find_known_device("H200"));
  ASSERT_NE(find_known_device("NVIDIA H100 80GB HBM3"), nullptr);
  EXPECT_EQ(find_known_device("NVIDIA H100 80GB HBM3")->bfloat16_flops, 989e12);
  EXPECT_EQ(find_known_device("NVIDIA A100-SXM4-80GB")->bytes_per_second, 2.0e12);
  EXPECT_EQ(find_known_device("NVIDIA A100-SXM4-40GB")->memory_bytes, 40e9);
  EXPECT_EQ(find_known_device("NVIDIA H100 PCIe")->bytes_per_second, 2.0e12);
  EXPECT_EQ(find_known_device("NVIDIA H100 NVL")->memory_bytes, 94e9);
  EXPECT_EQ(find_known_device("NVIDIA GH200 480GB"), nullptr);
  EXPECT_EQ(find_known_device("NVIDIA GeForce RTX 4070"), nullptr);
  EXPECT_EQ(find_known_device(""), nullptr);
}

class AvailableMemory : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << text;
  }
  test::TemporaryDirectory root_;
};

TEST_F(AvailableMemory, IsTheKernelsFigureWithoutALimit) {
  EXPECT_EQ(available_memory(root_.path()), std::nullopt);
  write("proc/meminfo", "MemTotal:       2000 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(available_memory(root_.path()), 1000U * 1024);
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "500\n");
  EXPECT_EQ(available_memory(root_.path()), 1000U * 1024);
  write("proc/meminfo", "MemAvailable: a lot\n");
  EXPECT_EQ(available_memory(root_.path()), std::nullopt);
}

TEST_F(AvailableMemory, IsTheLeastThatAGroupOrOneAboveItLeaves) {
  write("proc/meminfo", "MemAvailable: 1000 kB\n");
  write("proc/self/cgroup", "1:name=old:/x\n0::/slurm/job_1\n");
  write("sys/fs/cgroup/slurm/job_1/memory.max", "max\n");
  write("sys/fs/cgroup/slurm/job_1/memory.current", "1\n");
  write("sys/fs/cgroup/slurm/memory.max", "9000\n");
  write("sys/fs/cgroup/slurm/memory.current", "5000\n");
  EXPECT_EQ(available_memory(root_.path()), 4000U);
  write("sys/fs/cgroup/slurm/memory.stat", "anon 3000\ninactive_file 2000\n");
  EXPECT_EQ(available_memory(root_.path()), 6000U);
  write("sys/fs/cgroup/slurm/memory.current", "20000\n");
  EXPECT_EQ(available_memory(root_.path()), 0U);
}

TEST_F(AvailableMemory, KnowsTheFirstVersionOfGroups) {
  write("proc/meminfo", "MemAvailable: 1000 kB\n");
  write("proc/self/cgroup", "5:cpu,cpuacct:/slurm/x\n4:memory:/slurm/job_1\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "700000\n");
  EXPECT_EQ(available_memory(root_.path()), 1000U * 1024) << "no limit";
  write("sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", "9000\n");
  write("sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/slurm/job_1/memory.stat", "total_inactive_file 2000\n");
  EXPECT_EQ(available_memory(root_.path()), 6000U);
}

TEST_F(AvailableMemory, OfThisMachineIsSomething) {
  const auto here = available_memory();
  ASSERT_TRUE(here.has_value());
  EXPECT_GT(*here, 1U << 20);
}

}  // namespace
}  // namespace jforge
