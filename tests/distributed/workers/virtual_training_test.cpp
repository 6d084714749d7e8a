// Any number of virtual ranks and any ZeRO stage trains like one process; a failing rank leaves no
// other waiting.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"
#include "tests/distributed/workers/late_collectives.h"
#include "tests/distributed/workers/zero_fixture.h"
#include "tests/support/kernel_calls.h"
#include "tests/support/shard_of.h"
#include "tests/support/virtual_world.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;
using namespace jforge::test;

struct Trained {
  std::vector<float> weights;
  std::vector<double> losses;
  std::int64_t micro_batches = 0;  ///< maximum of a step
};

TrainConfig config_for(int stage, DType compute, std::int64_t tokens_per_rank) {
  TrainConfig config;
  config.learning_rate = 1e-3;
  config.warmup_ratio = 0.25;
  config.batch_samples = 64;
  config.tokens_per_rank = tokens_per_rank;
  config.optimizer.weight_decay = 0.1F;
  config.optimizer.zero_stage = stage;
  config.compute = compute;
  config.gradient_norms_every = 2;
  return config;
}

/// A rank's model and trainer; `added` goes to its first weight.
struct TrainingRank {
  TrainingRank(const Communicator& comm, const TrainConfig& config,
               const TransformerConfig& transformer = tiny_config(), float added = 0)
      : shape(transformer), grid(comm, config.shard_ranks), model(grid.within.size(), shape) {
    model.weights[0] += added;
    trainer.emplace(TrainContext{shape, model.table, *kernels, comm, account, &grid},
                    shard_of(model.view(), model.table, grid.within.rank()), config);
  }
  TrainOutcome run(SampleSource& source, std::int64_t steps,
                   std::function<void(const StepMetrics&)> on_step,
                   std::function<void(std::int64_t)> save = {}) {
    TrainHooks hooks;
    hooks.stop_requested = [] { return false; };
    hooks.on_step = std::move(on_step);
    TrainPlan plan;
    plan.total_steps = steps;
    plan.checkpoint_every = save ? 1 : 0;
    hooks.save = std::move(save);
    return trainer->run(source, plan, hooks);
  }
  std::vector<float> weights() {
    gather_masters(trainer->store(), model.table, grid.within, model.view());
    return consolidated(model.table, model.weights);
  }

  const TransformerConfig shape;
  std::unique_ptr<KernelSet> kernels = make_cpu_kernel_set();
  MemoryAccount account{"virtual"};
  RankGrid grid;
  Model model;
  std::optional<DistillationTrainer> trainer;
};

/// All ranks must end with the same weights.
Trained train(int ranks, const TrainConfig& config, std::int64_t steps,
              const TransformerConfig& shape = tiny_config()) {
  Trained result;
  std::mutex writing;
  VirtualWorld(ranks).run([&](const Communicator& comm) {
    TrainingRank rank(comm, config, shape);
    SyntheticSource source(config.batch_samples * steps);
    Trained run;
    static_cast<void>(rank.run(source, steps, [&](const StepMetrics& metrics) {
      run.losses.push_back(metrics.loss);
      run.micro_batches = std::max(run.micro_batches, metrics.micro_batches);
    }));
    run.weights = rank.weights();
    const std::lock_guard lock(writing);
    if (result.weights.empty()) {
      result = run;
    }
    EXPECT_EQ(result.weights, run.weights);
  });
  return result;
}

double largest_difference(const std::vector<double>& left, const std::vector<double>& right) {
  double largest = left.size() == right.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    largest = std::max(largest, std::abs(left[i] / right[i] - 1));
  }
  return largest;
}

void expect_near(const Trained& run, const Trained& alone) {
  EXPECT_LT(relative_l2(run.weights, alone.weights), 1e-5);
  EXPECT_LT(largest_difference(run.losses, alone.losses), 1e-5);
}

class VirtualTraining : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, VirtualTraining, ::testing::Values(2, 3, 8, 64));

TEST_P(VirtualTraining, EveryStageTrainsWhatOneProcessTrains) {
  const std::int64_t steps = GetParam() > 16 ? 3 : 10;
  const Trained alone = train(1, config_for(1, DType::float32, 1 << 16), steps);
  const Trained first = train(GetParam(), config_for(1, DType::float32, 1 << 16), steps);
  ASSERT_EQ(first.micro_batches, 1);
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    // With one micro-batch, additions have stage 1's order.
    const Trained whole = train(GetParam(), config_for(stage, DType::float32, 1 << 16), steps);
    EXPECT_EQ(whole.weights, first.weights);
    EXPECT_EQ(whole.losses, first.losses);
    const Trained cut = train(GetParam(), config_for(stage, DType::float32, 64), steps);
    expect_near(whole, alone);
    expect_near(cut, alone);
  }
}

TEST_P(VirtualTraining, TiedIdleOrInCopiesRanksTrainWhatOneProcessTrains) {
  const int ranks = GetParam();
  if (ranks > 8) {
    return;  // more ranks add no case
  }
  EXPECT_LT(Model(1, tiny_config(/*tied=*/true)).weights.size(), Model(1).weights.size());
  constexpr std::int64_t kSteps = 4;
  struct Case {
    std::int64_t batch_samples;
    std::int64_t tokens_per_rank;
    bool tied = false;  // The embedding's gradient stays open from the head's backward on.
    int shard_ranks = 0;
  };
  for (const Case& each : {Case{4 * ranks, 64, true}, Case{ranks - 1, 1 << 16},
                           Case{64, 64, false, 1}, Case{64, 64, false, 2}}) {
    if (each.shard_ranks > 0 && ranks % 2 != 0) {
      continue;
    }
    const TransformerConfig shape = tiny_config(each.tied);
    TrainConfig config = config_for(1, DType::float32, 1 << 16);
    config.batch_samples = each.batch_samples;
    config.allow_idle_ranks = true;
    for (const TeacherKind teacher : {TeacherKind::detached, TeacherKind::frozen}) {
      config.teacher = teacher;
      config.shard_ranks = 0;
      config.tokens_per_rank = 1 << 16;
      const Trained alone = train(1, config, kSteps, shape);
      config.shard_ranks = each.shard_ranks;
      config.tokens_per_rank = each.tokens_per_rank;
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << "stage " << stage << ", batch " << each.batch_samples
                                        << ", copies of " << each.shard_ranks);
        config.optimizer.zero_stage = stage;
        const Trained run = train(ranks, config, kSteps, shape);
        EXPECT_TRUE(!each.tied || run.micro_batches > 1);
        expect_near(run, alone);
      }
    }
  }
}

TEST_P(VirtualTraining, EveryStageHasTheSameFrozenTeacher) {
  if (GetParam() > 8) {
    return;  // more ranks add no case
  }
  constexpr std::int64_t kSteps = 4;
  const auto config = [](int stage, DType compute, std::int64_t tokens) {
    TrainConfig result = config_for(stage, compute, tokens);
    result.teacher = TeacherKind::frozen;
    return result;
  };
  const Trained alone = train(1, config(1, DType::float32, 1 << 16), kSteps);
  EXPECT_NE(alone.losses, train(1, config_for(1, DType::float32, 1 << 16), kSteps).losses);
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    const Trained first = train(GetParam(), config(1, compute, 1 << 16), kSteps);
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(dtype_name(compute) + " " + std::to_string(stage));
      const Trained whole = train(GetParam(), config(stage, compute, 1 << 16), kSteps);
      EXPECT_EQ(whole.weights, first.weights);
      EXPECT_EQ(whole.losses, first.losses);
      const Trained cut = train(GetParam(), config(stage, compute, 64), kSteps);
      EXPECT_LT(largest_difference(cut.losses, alone.losses),
                compute == DType::float32 ? 1e-5 : 5e-3);
    }
  }
}

TEST_P(VirtualTraining, InBfloat16AllStagesHaveTheSameBitsAndAreNearFloat32) {
  if (GetParam() > 8) {
    return;  // tested in float32 above
  }
  constexpr std::int64_t kSteps = 10;
  const Trained reference = train(GetParam(), config_for(1, DType::float32, 1 << 16), kSteps);
  const Trained first = train(GetParam(), config_for(1, DType::bfloat16, 1 << 16), kSteps);
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(stage);
    const Trained run = train(GetParam(), config_for(stage, DType::bfloat16, 1 << 16), kSteps);
    EXPECT_EQ(run.weights, first.weights);
    EXPECT_EQ(run.losses, first.losses);
  }
  // Eight significant bits, 2^-9 each, over ten steps.
  EXPECT_LT(largest_difference(first.losses, reference.losses), 5e-3);
  EXPECT_GT(largest_difference(first.losses, reference.losses), 0);
  EXPECT_LT(relative_l2(first.weights, reference.weights), 2e-2);
}

class VirtualPayload : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ShardRanks, VirtualPayload, ::testing::Values(0, 1, 2));

TEST_P(VirtualPayload, IsThatOfTheFormulaWithATeacher) {
  constexpr int kRanks = 4;
  VirtualWorld(kRanks).run([&](const Communicator& comm) {
    TrainConfig config = config_for(3, DType::bfloat16, 100);
    config.teacher = TeacherKind::frozen;
    config.gradient_norms_every = 0;
    config.optimizer.guard = {.check_replicas_every = 0, .check_state_every = 0};
    config.shard_ranks = GetParam();
    TrainingRank rank(comm, config);
    SyntheticSource source(config.batch_samples * 3);
    const auto on_step = [&](const StepMetrics& metrics) {
      EXPECT_GT(metrics.micro_batches, 1);
      if (metrics.step > 1) {  // the first also gathers the teacher's embedding and head
        EXPECT_EQ(static_cast<double>(metrics.payload_bytes),
                  kRanks * step_payload(rank.model.table, config.sharding(), metrics.micro_batches,
                                        rank.grid.across.size())
                               .total());
      }
    };
    EXPECT_EQ(rank.run(source, 3, on_step), TrainOutcome::finished);
  });
}

/// A sample of 30 rows, which rank 0 gets, then samples of 20.
class UnevenSource final : public SampleSource {
 public:
  explicit UnevenSource(std::int64_t size) : size_(size) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override {
    return index == 0 ? 30 : 20;
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override {
    RandomStream random(kSeed, RandomPurpose::test, 1, static_cast<std::uint64_t>(index));
    const auto draw = [&](std::size_t count) {
      std::vector<TokenId> ids(count);
      std::ranges::generate(ids, [&] { return token(random); });
      return ids;
    };
    PackedSample sample;
    sample.prompt_id = index;
    sample.block_size = 4;
    sample.window = 2;
    sample.prompt = draw(index == 0 ? 6 : 4);
    sample.clean = draw(index == 0 ? 12 : 8);
    sample.noisy = draw(sample.clean.size());
    return sample;
  }

 private:
  std::int64_t size_;
};

TEST(VirtualTermNorms, AreOfTheFirstMicroBatchOfRank0AlsoWhereOthersHaveMore) {
  const auto first_step = [](int ranks, int stage) {
    StepMetrics first;
    VirtualWorld(ranks).run([&](const Communicator& comm) {
      TrainConfig config = config_for(stage, DType::float32, 32);
      // 30 rows for rank 0, two micro-batches of 20 for the others.
      config.batch_samples = 2 * ranks - 1;
      UnevenSource source(config.batch_samples);
      const auto on_step = [&](const StepMetrics& metrics) {
        if (comm.rank() == 0) {
          first = metrics;
        }
      };
      static_cast<void>(TrainingRank(comm, config).run(source, 1, on_step));
    });
    return first;
  };
  const StepMetrics alone = first_step(1, 0);
  ASSERT_TRUE(alone.consistency_gradient_norm && alone.ar_gradient_norm);
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const StepMetrics several = first_step(3, stage);
    EXPECT_EQ(several.micro_batches, 2);
    ASSERT_TRUE(several.consistency_gradient_norm && several.ar_gradient_norm);
    EXPECT_NEAR(*several.consistency_gradient_norm / *alone.consistency_gradient_norm, 1, 1e-5);
    EXPECT_NEAR(*several.ar_gradient_norm / *alone.ar_gradient_norm, 1, 1e-5);
  }
}

/// The same samples in every step except `odd`.
class SpikySource final : public SampleSource {
 public:
  SpikySource(std::int64_t batch_samples, std::int64_t steps, std::int64_t odd)
      : samples_(2 * batch_samples), batch_(batch_samples), size_(batch_ * steps), odd_(odd) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override {
    return samples_.length(place(index));
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override {
    return samples_.sample(place(index));
  }

 private:
  [[nodiscard]] std::int64_t place(std::int64_t index) const {
    return index % batch_ + (index / batch_ + 1 == odd_ ? batch_ : 0);
  }
  SyntheticSource samples_;
  std::int64_t batch_;
  std::int64_t size_;
  std::int64_t odd_;
};

constexpr std::int64_t kSpike = 20;

struct GuardedRun {
  std::vector<StepMetrics> metrics;
  /// After every step: weights without padding, rank 0's moments, updates.
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> moments;
  std::vector<std::int64_t> updates;
};

GuardedRun train_guarded(int ranks, int stage, DType compute, const SpikeGuardConfig& guard) {
  GuardedRun result;
  VirtualWorld(ranks).run([&](const Communicator& comm) {
    TrainConfig config = config_for(stage, compute, 1 << 16);
    config.learning_rate = 2e-2;
    config.batch_samples = 8;
    config.spike_guard = guard;
    TrainingRank rank(comm, config);
    SpikySource source(config.batch_samples, kSpike + 3, kSpike);
    GuardedRun run;
    const auto save = [&](std::int64_t) {
      run.weights.push_back(rank.weights());
      const std::span<const float> moment = rank.trainer->optimizer().second_moment().span<float>();
      run.moments.emplace_back(moment.begin(), moment.end());
      run.updates.push_back(rank.trainer->optimizer().updates());
    };
    const auto on_step = [&](const StepMetrics& metrics) { run.metrics.push_back(metrics); };
    EXPECT_EQ(rank.run(source, kSpike + 3, on_step, save), TrainOutcome::finished);
    if (comm.rank() == 0) {
      result = std::move(run);
    }
  });
  return result;
}

TEST(VirtualSpikes, AnUpdateIsLeftOutOnAllRanksAtEveryStage) {
  constexpr int kRanks = 3;
  const std::size_t at = kSpike - 1;
  const SpikeGuardConfig guard{.ratio = 3, .window = 4, .patience = 1};
  const GuardedRun first = train_guarded(kRanks, 1, DType::float32, guard);
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const GuardedRun run = train_guarded(kRanks, stage, DType::float32, guard);
    EXPECT_EQ(run.weights, first.weights);
    for (std::size_t i = 0; i < run.metrics.size(); ++i) {
      const StepMetrics& metrics = run.metrics[i];
      EXPECT_EQ(metrics.skipped, i == at) << i;
      EXPECT_EQ(metrics.skipped_steps, i >= at ? 1 : 0);
      EXPECT_EQ(metrics.spike_reference.has_value(), i >= 4);
      EXPECT_EQ(run.updates[i], static_cast<std::int64_t>(i) + (i >= at ? 0 : 1));
    }
    EXPECT_EQ(run.weights[at], run.weights[at - 1]);
    EXPECT_EQ(run.moments[at], run.moments[at - 1]);
    EXPECT_NE(run.weights[at + 1], run.weights[at]);
    EXPECT_GT(run.metrics[at].loss, 3 * *run.metrics[at].spike_reference);
  }
  // Without the guard the update is made.
  const GuardedRun rounded = train_guarded(2, 3, DType::bfloat16, {.ratio = 3, .window = 4});
  EXPECT_EQ(rounded.weights[at], rounded.weights[at - 1]);
  const GuardedRun without = train_guarded(1, 0, DType::float32, {});
  EXPECT_NE(without.weights[at], without.weights[at - 1]);
  EXPECT_FALSE(without.metrics[at].spike_reference);
}

/// Forwards to the store and throws at use number `fails_at`.
class FailingLoans final : public ParameterSource, public GradientSink {
 public:
  FailingLoans(ParameterStore& store, std::size_t fails_at) : store_(store), left_(fails_at) {}
  [[nodiscard]] ParameterSource& teacher() { return teacher_; }
  ConstTensorView acquire(std::int32_t group) override {
    count();
    return store_.acquire(group);
  }
  void release(std::int32_t group) override { store_.release(group); }
  TensorView open(std::int32_t group) override {
    count();
    return store_.open(group);
  }
  bool undefined(std::int32_t group) const override { return store_.undefined(group); }
  void ready(std::int32_t group) override {
    count();
    store_.ready(group);
  }
  [[nodiscard]] bool failed() const { return left_ == 0; }

 private:
  void count() {
    if (left_ > 0 && --left_ == 0) {
      throw std::runtime_error("fails here");
    }
  }
  struct Teacher final : ParameterSource {
    explicit Teacher(FailingLoans& owner) : loans(owner) {}
    ConstTensorView acquire(std::int32_t group) override {
      loans.count();
      return loans.store_.teacher().acquire(group);
    }
    void release(std::int32_t group) override { loans.store_.teacher().release(group); }
    FailingLoans& loans;
  };
  ParameterStore& store_;
  std::size_t left_;
  Teacher teacher_{*this};
};

PackedBatch batch_of(SyntheticSource& source, Rank rank, int pass) {
  PackedBatch batch;
  const auto sample = std::get<PackedSample>(source.sample(3 * (2 * rank + pass)));
  append_samples(batch, std::span(&sample, 1), {}, 1.0F);
  return batch;
}

/// Two micro-batches on each rank; rank `bad` fails at use `fails_at` (0: never).
struct StepOutcome {
  std::vector<float> weights;
  bool reached = false;  ///< there was such a use
};

StepOutcome step_with_failure(int ranks, const Sharding& sharding, Rank bad, std::size_t fails_at,
                              int shard_ranks = 0) {
  const int stage = sharding.stage;
  StepOutcome outcome;
  VirtualWorld(ranks).run([&](const Communicator& comm) {
    const TransformerConfig shape = tiny_config();
    const auto kernels = make_cpu_kernel_set();
    MemoryAccount account("virtual");
    const RankGrid grid(comm, shard_ranks);
    Model model(grid.within.size());
    const auto collectives = make_host_collectives(grid.within);
    const auto across = make_host_collectives(grid.across);
    ParameterStore store(model.table, sharding, *kernels, *collectives, account,
                         shard_of(model.view(), model.table, grid.within.rank()), across.get());
    ShardedAdamW optimizer(model.table, comm, account, store, {.zero_stage = stage});
    TrainingTransformer transformer(shape, model.table, *kernels, account, {});
    TrainingTransformer teacher(shape, model.table, *kernels, account, {.forward_only = true});
    SyntheticSource source(64);
    bool reached = false;
    const auto passes = [&](std::size_t failing_use) {
      store.begin_step({.micro_batches = 2, .replica_hashes = optimizer.replica_hashes()});
      FailingLoans loans(store, failing_use);
      try {
        for (int pass = 0; pass < 2; ++pass) {
          PackedBatch batch = batch_of(source, comm.rank(), pass);
          TeacherForward apart;
          if (sharding.teacher) {
            PackedBatch rows;
            take_teacher_rows(batch, rows, false);
            apart = {teacher.forward(rows, loans.teacher()), &loans.teacher()};
          }
          transformer.forward(batch, loans);
          loss_and_backward(*kernels, transformer, loans, 1, 1, loans, apart);
        }
      } catch (...) {
        reached = loans.failed();
        store.abandon();
        throw;
      }
    };
    std::string message = "nothing was thrown";
    try {
      together(comm, [&] { passes(comm.rank() == bad ? fails_at : 0); });
    } catch (const Error& error) {
      message = error.what();
    }
    if (message != "nothing was thrown") {
      EXPECT_THAT(message,
                  AllOf(HasSubstr("rank " + std::to_string(bad) + " ("), HasSubstr("fails here")));
      // Nothing has changed, so the step can be repeated.
      EXPECT_NO_THROW(store.finish_reductions(1));
      store.clear_gradients();
      together(comm, [&] { passes(0); });
    }
    static_cast<void>(optimizer.step(1e-3));
    gather_masters(store, model.table, grid.within, model.view());
    if (comm.rank() == bad) {
      outcome = {consolidated(model.table, model.weights), reached};
    }
  });
  return outcome;
}

TEST(VirtualFailures, CopiesThatDifferAreFound) {
  for (const int stage : {0, 1, 3}) {
    VirtualWorld(4).run([&](const Communicator& comm) {
      TrainConfig config = config_for(stage, DType::float32, 1 << 16);
      config.optimizer.guard.check_replicas_every = 1;
      config.shard_ranks = 2;
      // In rank 2's shard.
      TrainingRank rank(comm, config, tiny_config(), comm.rank() >= 2 ? 1 : 0);
      SyntheticSource source(config.batch_samples * 2);
      EXPECT_THAT(message_of<NumericalError>([&] { static_cast<void>(rank.run(source, 2, {})); }),
                  AllOf(HasSubstr("rank 2 ("), HasSubstr("weights owned by rank 0 differs")));
    });
  }
}

TEST(VirtualFailures, ARankOfACopyThatFailsAnywhereInAStepStrandsNobody) {
  constexpr int kRanks = 4;
  for (const int stage : {0, 1, 3}) {
    const Sharding sharding{.stage = stage};
    const std::vector<float> expected = step_with_failure(kRanks, sharding, 0, 0, 2).weights;
    std::size_t use = 1;
    for (bool reached = true; reached; use += 5) {
      SCOPED_TRACE(use);
      const auto bad = static_cast<Rank>(use % kRanks);
      const StepOutcome outcome = step_with_failure(kRanks, sharding, bad, use, 2);
      reached = outcome.reached;
      EXPECT_EQ(outcome.weights, expected);
    }
    EXPECT_GT(use, 15U);
  }
}

TEST(VirtualFailures, ARankThatFailsAnywhereInAStepStrandsNobody) {
  constexpr int kRanks = 3;
  for (const Sharding& sharding :
       {Sharding{.stage = 0}, Sharding{.stage = 1}, Sharding{.stage = 2}, Sharding{.stage = 3},
        Sharding{.stage = 2, .teacher = true}, Sharding{.stage = 3, .teacher = true}}) {
    SCOPED_TRACE(std::to_string(sharding.stage) + (sharding.teacher ? " with a teacher" : ""));
    const std::vector<float> expected = step_with_failure(kRanks, sharding, 0, 0).weights;
    std::size_t use = 1;
    for (bool reached = true; reached; ++use) {
      SCOPED_TRACE(use);
      const StepOutcome outcome =
          step_with_failure(kRanks, sharding, static_cast<Rank>(use % kRanks), use);
      reached = outcome.reached;
      EXPECT_EQ(outcome.weights, expected);
    }
    // Two passes over five groups: acquire in both halves, open and ready in the second; the
    // teacher's forward and head.
    EXPECT_GE(use, 2U * (5 + 4 + 5 + 5 + (sharding.teacher ? 5 + 1 : 0)));
  }
}

/// Throws at the `fails_at`-th question for a length (0: never).
class ForgetfulSource final : public SampleSource {
 public:
  ForgetfulSource(std::int64_t size, int fails_at) : samples_(size), left_(fails_at) {}
  [[nodiscard]] std::int64_t size() const override { return samples_.size(); }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override {
    if (left_ > 0 && --left_ == 0) {
      throw DataError("no such length");
    }
    return samples_.length(index);
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override {
    return samples_.sample(index);
  }

 private:
  SyntheticSource samples_;
  mutable int left_;
};

TEST(VirtualFailures, ALengthThatOneRankCannotTellStopsAllBeforeTheFirstStep) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kSteps = 2;
  const auto run = [&](const Communicator& comm, int fails_at) {
    TrainConfig config = config_for(3, DType::float32, 1 << 16);
    config.batch_samples = 6;
    ForgetfulSource source(config.batch_samples * kSteps, comm.rank() == 1 ? fails_at : 0);
    TrainingRank rank(comm, config);
    std::int64_t steps = 0;
    const std::string message = message_of(ExitCode::input_data, [&] {
      EXPECT_EQ(rank.run(source, kSteps, [&](const StepMetrics&) { ++steps; }),
                TrainOutcome::finished);
    });
    return std::pair{message, steps};
  };
  VirtualWorld(kRanks).run([&](const Communicator& comm) {
    const auto [message, steps] = run(comm, 12);  // the last of the plan
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1 ("), HasSubstr("no such length")));
    EXPECT_EQ(steps, 0);
  });
  VirtualWorld(kRanks).run([&](const Communicator& comm) {
    const auto [message, steps] = run(comm, 13);  // not reached within the steps
    EXPECT_EQ(message, "nothing thrown");
    EXPECT_EQ(steps, kSteps);
  });
}

/// Returns masters after two steps, a failed one, a third, a load while weights are gathered, and a
/// step; then those after another step, gathered into another vector.
std::vector<float> trained_through_everything(int stage, DType compute, bool late) {
  constexpr int kRanks = 3;
  std::vector<float> result;
  VirtualWorld(kRanks).run([&](const Communicator& comm) {
    const TransformerConfig shape = tiny_config();
    const auto kernels = make_cpu_kernel_set();
    MemoryAccount account("virtual");
    Model model(kRanks);
    Model loaded(kRanks);
    initialise_weights(loaded.table, loaded.view(), kSeed + 1, shape.num_layers);
    Model gathered(kRanks);
    const std::vector<float> shard = shard_of(loaded.view(), loaded.table, comm.rank());
    const std::unique_ptr<Collectives> collectives =
        late ? std::make_unique<LateCollectives>(comm) : make_host_collectives(comm);
    ParameterStore store(model.table, {.stage = stage, .compute = compute}, *kernels, *collectives,
                         account, shard_of(model.view(), model.table, comm.rank()));
    ShardedAdamW optimizer(model.table, comm, account, store, {.zero_stage = stage});
    TrainingTransformer transformer(shape, model.table, *kernels, account, {.compute = compute});
    SyntheticSource source(64);
    const auto passes = [&](std::size_t fails_at) {
      store.begin_step({.micro_batches = 2, .replica_hashes = optimizer.replica_hashes()});
      FailingLoans loans(store, fails_at);
      for (int pass = 0; pass < 2; ++pass) {
        PackedBatch batch = batch_of(source, comm.rank(), pass);
        transformer.forward(batch, loans);
        loss_and_backward(*kernels, transformer, loans, 1, 1, loans);
      }
    };
    const auto step = [&] {
      passes(0);
      static_cast<void>(optimizer.step(1e-2));
    };
    step();
    step();
    EXPECT_THROW(passes(30), std::runtime_error);  // in the second micro-batch
    store.abandon();
    store.finish_reductions(3);
    store.clear_gradients();
    step();
    optimizer.load_weights(shard, 3);
    step();
    gather_masters(store, model.table, comm, model.view());
    std::vector<float> seen = model.weights;
    step();
    gather_masters(store, model.table, comm, gathered.view());
    seen.insert(seen.end(), gathered.weights.begin(), gathered.weights.end());
    optimizer.load_weights(shard, 5);  // the store dies during this gather
    if (comm.rank() == 0) {
      result = seen;
    }
  });
  return result;
}

TEST(VirtualWaits, ResultsAreReadOnlyAfterTheirCollectiveWasWaitedFor) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(dtype_name(compute) + " " + std::to_string(stage));
      EXPECT_EQ(trained_through_everything(stage, compute, true),
                trained_through_everything(stage, compute, false));
    }
  }
}

TEST(TrainingMemoryOfLargeModels, IsWhatTheFormulasSay) {
  const TransformerConfig model{.vocabulary_size = 152064,
                                .hidden_size = 3584,
                                .intermediate_size = 18944,
                                .num_layers = 28,
                                .num_heads = 28,
                                .num_kv_heads = 4,
                                .max_position_embeddings = 32768,
                                .eos_ids = {}};
  constexpr int kRanks = 8;
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const int number : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const int stage = number % 4;
      const Sharding sharding{.stage = stage, .compute = compute, .teacher = number >= 4};
      SCOPED_TRACE(dtype_name(compute) + " " + std::to_string(number));
      VirtualWorld(kRanks).run([&](const Communicator& comm) {
        const auto kernels = make_cpu_kernel_set();
        const ParameterTable table(model, kRanks);
        MemoryAccount account("7B", MemoryAccount::Backing::count_only);
        const auto collectives = make_host_collectives(comm);
        ParameterStore store(table, sharding, *kernels, *collectives, account, {});
        const ShardedAdamW optimizer(table, comm, account, store, {.zero_stage = stage});
        const TrainingMemory memory = training_memory(table, sharding);
        EXPECT_EQ(static_cast<double>(account.peak_bytes(MemoryUse::weights)), memory.weights);
        EXPECT_EQ(static_cast<double>(account.peak_bytes(MemoryUse::gradients)), memory.gradients);
        EXPECT_EQ(static_cast<double>(account.peak_bytes(MemoryUse::optimizer)), memory.optimizer);
        EXPECT_EQ(static_cast<double>(account.peak_bytes(MemoryUse::communication)),
                  memory.communication);
        EXPECT_EQ(static_cast<double>(account.peak_bytes(MemoryUse::teacher)), memory.teacher);
        EXPECT_EQ(memory.teacher, sharding.teacher ? memory.weights : 0);
        // The published formulas, without buffers: 2P + 4P + 12P/N and so on.
        const double whole = static_cast<double>(table.parameter_count());
        const double shard = whole / kRanks;
        const double w = static_cast<double>(dtype_bytes(compute));
        const double masters = compute == DType::float32 ? 0 : 4;
        const std::array<double, 4> published = {
            (w + 4 + masters + 8) * whole, (w + 4) * whole + (masters + 8) * shard,
            w * whole + (4 + masters + 8) * shard, (w + 4 + masters + 8) * shard};
        EXPECT_NEAR((memory.total() - memory.communication - memory.teacher) /
                        published[static_cast<std::size_t>(stage)],
                    1, 1e-3);
      });
    }
  }
}

}  // namespace
}  // namespace jforge
