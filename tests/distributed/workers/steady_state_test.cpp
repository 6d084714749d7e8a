// Warm training steps and decoding allocate nothing, in our code or in libraries. A program of its
// own, because it replaces the C library's allocator.

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <utility>

#include "model/decoding/decode_engine.h"
#include "model/decoding/greedy_decoder.h"
#include "model/decoding/multi_block_decoder.h"
#include "model/kernels/result_sums.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/tensor_collectives.h"
#include "tests/benchmarks/allocation_counter.h"
#include "tests/distributed/workers/zero_fixture.h"
#include "tests/support/mpi_test.h"
#include "tests/support/shard_of.h"

namespace jforge {
namespace {

using namespace jforge::test;

/// Large enough for parallel regions in all kernels.
TransformerConfig wide_model() {
  TransformerConfig config = tiny_config();
  config.vocabulary_size = 2048;
  config.hidden_size = 64;
  config.num_heads = 4;
  config.intermediate_size = 160;
  return config;
}

std::vector<PackedSample> wide_samples() {
  std::vector<PackedSample> samples;
  for (std::int64_t i = 0; i < 4; ++i) {
    RandomStream random(kSeed, RandomPurpose::test, 1, static_cast<std::uint64_t>(i));
    const auto draw = [&](std::size_t count) {
      std::vector<TokenId> ids(count);
      for (TokenId& id : ids) {
        id = static_cast<TokenId>(3 + random.below(2000));
      }
      return ids;
    };
    PackedSample sample;
    sample.prompt_id = i;
    sample.block_size = 8;
    sample.window = 2;
    sample.prompt = draw(40 + static_cast<std::size_t>(i));
    sample.clean = draw(64);
    sample.noisy = draw(64);
    samples.push_back(std::move(sample));
  }
  return samples;
}

class SteadyStateTest : public ::testing::Test {
 protected:
  SteadyStateTest() {
    initialise_weights(table_, view(), kSeed, config_.num_layers);
#pragma omp parallel
    watch_this_thread();
  }
  void SetUp() override {
    if (!allocations_are_counted()) {
      GTEST_SKIP() << "a sanitizer's allocator is in use";
    }
  }
  [[nodiscard]] TensorView view() { return TensorView(weights_.data(), {table_.flat_size()}); }

  /// Warms up, then expects no allocation.
  template <class Work>
  void expect_no_allocation(const char* what, const Work& work) {
    for (int i = 0; i < 3; ++i) {
      work();
    }
    remember_allocations();
    const AllocationCount before = watched_allocation_count();
    for (int i = 0; i < 3; ++i) {
      work();
    }
    const AllocationCount count = watched_allocation_count() - before;
    forget_allocations(count.calls != 0);
    EXPECT_EQ(count.calls, 0) << what << ": " << count.bytes << " bytes";
  }

  const Communicator& comm_ = test_world();
  TransformerConfig config_ = wide_model();
  ParameterTable table_{config_, comm_.size()};
  std::vector<float> weights_ = std::vector<float>(static_cast<std::size_t>(table_.flat_size()));
  std::unique_ptr<KernelSet> kernels_ = make_cpu_kernel_set();
  MemoryAccount account_{"steady state"};
};

TEST_F(SteadyStateTest, TheCounterCounts) {
  const AllocationCount before = watched_allocation_count();
  const auto memory = std::make_unique<std::vector<float>>(1000);
  const AllocationCount count = watched_allocation_count() - before;
  EXPECT_EQ(count.calls, 2);
  EXPECT_GE(count.bytes, 4000);
}

class SteadyStateOfStageTest : public SteadyStateTest, public ::testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Stage, SteadyStateOfStageTest, ::testing::Range(0, 4));

TEST_P(SteadyStateOfStageTest, PackingForwardLossBackwardAndUpdate) {
  const int stage = GetParam();
  const std::vector<PackedSample> samples = wide_samples();
  const PackingOptions packing{.eos_ids = {2}};
  struct Case {
    bool checkpointing;
    DType compute;
  };
  for (const auto [checkpointing, compute] :
       {Case{false, DType::float32}, Case{true, DType::float32}, Case{false, DType::bfloat16}}) {
    TrainingTransformer transformer(
        config_, table_, *kernels_, account_,
        {.activation_checkpointing = checkpointing, .compute = compute});
    const auto collectives = make_host_collectives(comm_);
    ParameterStore store(table_, {.stage = stage, .compute = compute}, *kernels_, *collectives,
                         account_, shard_of(view(), table_, comm_.rank()));
    ShardedAdamW optimizer(table_, comm_, account_, store, {.zero_stage = stage});
    PackedBatch batch;
    ResultSums losses(*kernels_, account_);
    expect_no_allocation("packing", [&] {
      batch.clear();
      append_samples(batch, samples, packing, 0.25F);
    });
    expect_no_allocation("forward, backward and update", [&] {
      store.begin_step({.replica_hashes = optimizer.replica_hashes()});
      (void)transformer.forward(batch, store);
      losses.reset(2);
      transformer.loss_and_backward(store, {1, 1, losses.part(0, 2)}, store);
      (void)losses.read();
      (void)optimizer.step(1e-4);
    });
  }
}

TEST_F(SteadyStateTest, QueuedCollectives) {
  const auto collectives = make_host_collectives(comm_);
  constexpr std::int64_t kBlock = 70'000;
  const std::int64_t whole = kBlock * comm_.size();
  std::vector<float> values(static_cast<std::size_t>(whole));
  std::vector<float> block(static_cast<std::size_t>(kBlock));
  const TensorView all(values.data(), {whole});
  const TensorView part(block.data(), {kBlock});
  expect_no_allocation("queued collectives", [&] {
    std::array<Work, 4> works{collectives->reduce_scatter_sum(all, part),
                              collectives->all_gather(part, all), collectives->all_reduce_sum(all),
                              collectives->broadcast(part, comm_.size() - 1)};
    for (const Work& work : works) {
      work.wait();
    }
  });
}

/// Makes samples and counts their allocations.
class CountedSamples final : public SampleSource {
 public:
  [[nodiscard]] std::int64_t size() const override { return 1000; }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override {
    return samples_[static_cast<std::size_t>(index % 4)].packed_length();
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override {
    const AllocationCount before = watched_allocation_count();
    TrainingSample copy = samples_[static_cast<std::size_t>(index % 4)];
    calls += (watched_allocation_count() - before).calls;
    return copy;
  }
  std::int64_t calls = 0;

 private:
  std::vector<PackedSample> samples_ = wide_samples();
};

TEST_F(SteadyStateTest, TheStepLoopAllocatesSamplesAlone) {
  for (const TeacherKind teacher : {TeacherKind::detached, TeacherKind::frozen}) {
    TrainConfig config;
    config.teacher = teacher;
    config.batch_samples = 8;
    config.tokens_per_rank = 400;
    config.spike_guard = {.ratio = 10, .window = 2};
    DistillationTrainer trainer({config_, table_, *kernels_, comm_, account_},
                                shard_of(view(), table_, comm_.rank()), config);
    CountedSamples source;
    std::optional<std::int64_t> before;
    std::int64_t allocated = -1;
    PhaseClock clock;
    TrainHooks hooks;
    hooks.clock = &clock;
    hooks.stop_requested = [] { return false; };
    hooks.on_step = [&](const StepMetrics& metrics) {
      const std::int64_t others = watched_allocation_count().calls - source.calls;
      if (metrics.step == 3) {
        before = others;
      } else if (metrics.step == 8) {
        allocated = others - before.value_or(0);
      }
    };
    TrainPlan plan;
    plan.total_steps = 8;
    EXPECT_EQ(trainer.run(source, plan, hooks), TrainOutcome::finished);
    EXPECT_GT(source.calls, 0);
    EXPECT_EQ(allocated, 0);
  }
}

/// Records the allocations after each forward.
class ObservedModel final : public DecodeModel {
 public:
  explicit ObservedModel(DecodeModel& model) : model_(model) { counts.reserve(1000); }
  [[nodiscard]] std::int32_t num_slots() const override { return model_.num_slots(); }
  [[nodiscard]] std::int32_t slot_capacity() const override { return model_.slot_capacity(); }
  [[nodiscard]] std::int32_t branch_rows() const override { return model_.branch_rows(); }
  [[nodiscard]] bool reserve(std::int32_t slot, std::int64_t positions,
                             std::int64_t branch_rows) override {
    return model_.reserve(slot, positions, branch_rows);
  }
  void release(std::int32_t slot) override { model_.release(slot); }
  void keep_branches(std::span<const CacheCopy> rows) override { model_.keep_branches(rows); }
  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override {
    model_.predict(rows, predictions);
    counts.push_back(watched_allocation_count().calls);
  }
  void predict_sampled(std::span<const DecodeRow> rows, std::span<const SampledRow> choices,
                       std::span<TokenId> predictions) override {
    model_.predict_sampled(rows, choices, predictions);
    counts.push_back(watched_allocation_count().calls);
  }
  std::vector<std::int64_t> counts;

 private:
  DecodeModel& model_;
};

TEST_F(SteadyStateTest, DecodingBetweenTheFirstTokensAndTheFirstAnswer) {
  InferenceTransformer::Options options;
  options.num_slots = 3;
  options.slot_capacity = 200;
  InferenceTransformer transformer(config_, table_, view(), *kernels_, account_, options);
  ObservedModel model(transformer);
  DecodeEngine engine(model, 3);
  const auto samples = wide_samples();
  for (std::int64_t id = 0; id < 3; ++id) {
    engine.admit(make_greedy_decoder(
        {.id = id, .prompt = samples[static_cast<std::size_t>(id)].prompt, .max_new_tokens = 30}));
  }
  while (!engine.take_finished()) {
    engine.step();
  }
  const std::size_t first_answer = model.counts.size();
  ASSERT_GT(first_answer, 25U);
  EXPECT_EQ(model.counts[first_answer - 2] - model.counts[10], 0);
}

/// An earlier pass over these prompts has grown the memory.
TEST_F(SteadyStateTest, MultiBlockDecodingBetweenTheFirstTokensAndTheFirstAnswer) {
  InferenceTransformer::Options options;
  options.num_slots = 3;
  options.slot_capacity = 200;
  options.branch_rows = 3 * 8;
  InferenceTransformer transformer(config_, table_, view(), *kernels_, account_, options);
  ObservedModel model(transformer);
  DecodeEngine engine(model, 3);
  const auto samples = wide_samples();
  const auto run = [&](const SamplingOptions& sampling) {
    for (std::int64_t id = 0; id < 3; ++id) {
      engine.admit(make_multi_block_decoder({.id = id,
                                             .prompt = samples[static_cast<std::size_t>(id)].prompt,
                                             .max_new_tokens = 60,
                                             .sampling = sampling},
                                            {.block_size = 8, .blocks = 3, .spawn_ratio = 0.25}));
    }
    while (!engine.take_finished()) {
      engine.step();
    }
    const std::size_t first_answer = model.counts.size();
    while (engine.running() > 0) {
      engine.step();
    }
    while (engine.take_finished()) {
    }
    return first_answer;
  };
  const SamplingOptions sampled{
      .temperature = 1, .top_p = 0.9, .top_k = 20, .repetition_penalty = 1.2};
  for (const SamplingOptions& sampling :
       {SamplingOptions{}, SamplingOptions{.temperature = 1}, sampled}) {
    (void)run(sampling);
    model.counts.clear();
    const std::size_t first_answer = run(sampling);
    ASSERT_GT(first_answer, 5U);
    EXPECT_EQ(model.counts[first_answer - 2] - model.counts[0], 0);
  }
}

}  // namespace
}  // namespace jforge
