// The step loop equals one process, stops together, and never saves non-finite values.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/comm/collectives.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "tests/distributed/workers/zero_fixture.h"
#include "tests/support/digest.h"
#include "tests/support/kernel_calls.h"
#include "tests/support/mpi_test.h"
#include "tests/support/shard_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tested_kernel_set.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;
using namespace jforge::test;

TrainConfig config_for_tests() {
  TrainConfig config;
  config.learning_rate = 1e-3;
  config.warmup_ratio = 0.25;
  config.batch_samples = 8;
  config.tokens_per_rank = 64;
  config.ar_weight = 2;
  config.optimizer.weight_decay = 0.1F;
  return config;
}

class ZeroTrainerTest : public ::testing::Test {
 protected:
  struct Run {
    std::vector<float> weights;
    std::vector<StepMetrics> metrics;
    std::vector<std::int64_t> saved;
    TrainOutcome outcome = TrainOutcome::finished;
  };

  void TearDown() override { arm_faults("", comm_.rank()); }

  Run train(const TrainConfig& config, SampleSource& source, std::int64_t steps,
            TrainHooks hooks = {}, double peak_flops = 0) {
    return train_with(*kernels_, config, source, steps, std::move(hooks), peak_flops);
  }
  Run train_with(KernelSet& kernels, const TrainConfig& config, SampleSource& source,
                 std::int64_t steps, TrainHooks hooks = {}, double peak_flops = 0) {
    const RankGrid grid(comm_, config.shard_ranks);
    Model model(grid.within.size());
    const TransformerConfig shape = tiny_config();
    DistillationTrainer trainer({shape, model.table, kernels, comm_, account_, &grid},
                                shard_of(model.view(), model.table, grid.within.rank()), config);
    Run run;
    auto on_step = hooks.on_step;
    hooks.on_step = [&](const StepMetrics& metrics) {
      run.metrics.push_back(metrics);
      if (on_step) {
        on_step(metrics);
      }
    };
    hooks.save = [&](std::int64_t step) { saved_.push_back(step); };
    TrainPlan plan;
    plan.total_steps = steps;
    plan.checkpoint_every = 2;
    plan.peak = PeakFlops(peak_flops);
    run.outcome = trainer.run(source, plan, hooks);
    gather_masters(trainer.store(), model.table, grid.within, model.view());
    run.weights = consolidated(model.table, model.weights);
    run.saved = saved_;
    return run;
  }

  const Communicator& comm_ = test_world();
  int ranks_ = comm_.size();
  std::unique_ptr<KernelSet> kernels_ = make_tested_kernel_set();
  MemoryAccount account_{"trainer test"};
  std::vector<std::int64_t> saved_;
};

struct Reference {
  std::vector<float> weights;
  std::vector<double> losses;
  std::vector<double> norms;
};

/// Trains every sample alone and adds gradients, which any division of work must equal (invariant
/// I17).
Reference train_alone(const TrainConfig& config, std::int64_t steps, SyntheticSource& source,
                      KernelSet& kernels) {
  MemoryAccount account("reference");
  Model model(1);
  // The frozen teacher is a whole transformer over the whole batch.
  Model beginning(1);
  TrainingTransformer teacher(tiny_config(), beginning.table, kernels, account, {});
  FlatParameters taught(beginning.table, beginning.view(), kernels, account);
  const TransformerConfig shape = tiny_config();
  TrainingTransformer transformer(shape, model.table, kernels, account, {});
  ReferenceOptimizer optimizer(model.table, config.optimizer);
  Reference result;
  for (std::int64_t step = 1; step <= steps; ++step) {
    std::vector<float> gradients(model.weights.size(), 0.0F);
    double loss = 0;
    for (std::int64_t i = (step - 1) * config.batch_samples; i < step * config.batch_samples; ++i) {
      const TrainingSample sample = source.sample(i);
      const auto weight = 1.0F / static_cast<float>(config.batch_samples);
      PackedBatch batch;
      if (const auto* packed = std::get_if<PackedSample>(&sample)) {
        batch = pack_samples(std::span(packed, 1), config.packing(shape.eos_ids), weight);
      } else {
        const auto& causal = std::get<CausalSample>(sample);
        append_causal_sequence(batch, causal.tokens, causal.first_target, weight);
      }
      FlatParameters parameters(model.table, model.view(), kernels, account);
      FlatGradients sink(model.table, TensorView(gradients.data(), {model.table.flat_size()}),
                         kernels, account);
      TeacherForward apart;
      if (config.teacher == TeacherKind::frozen) {
        apart = {teacher.forward(batch, taught), &taught};
        for (LossItem& item : batch.loss_items) {
          item.teacher_row = item.clean_row;
        }
      }
      transformer.forward(batch, parameters);
      const auto sums =
          loss_and_backward(kernels, transformer, parameters, config.consistency_weight,
                            config.ar_weight, sink, apart, config.ar_loss);
      loss += static_cast<double>(config.consistency_weight) * sums.consistency +
              static_cast<double>(config.ar_weight) * sums.autoregressive;
    }
    result.losses.push_back(loss);
    result.norms.push_back(
        optimizer.step(model.weights, gradients, config.schedule(steps).at(step)));
  }
  result.weights = consolidated(model.table, model.weights);
  return result;
}

TEST_F(ZeroTrainerTest, EqualsOneProcessAtAnyWorldSizeAndMicroBatchSizeWithEitherTeacher) {
  struct Case {
    std::int64_t budget;
    TeacherKind teacher = TeacherKind::detached;
    ArLoss ar_loss = ArLoss::cross_entropy;
  };
  for (const auto& [budget, teacher, ar_loss] :
       {Case{64}, Case{4096}, Case{64, TeacherKind::frozen}, Case{4096, TeacherKind::frozen},
        Case{64, TeacherKind::frozen, ArLoss::distillation},
        Case{4096, TeacherKind::frozen, ArLoss::distillation}}) {
    TrainConfig config = config_for_tests();
    config.tokens_per_rank = budget;
    config.teacher = teacher;
    config.ar_loss = ar_loss;
    SyntheticSource source(32);
    SyntheticSource alone_source(32);
    const Run run = train(config, source, 4);
    const Reference alone = train_alone(config, 4, alone_source, *kernels_);
    ASSERT_EQ(run.metrics.size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) {
      // Divergences are small differences of large values.
      EXPECT_NEAR(run.metrics[i].loss / alone.losses[i], 1.0,
                  ar_loss == ArLoss::distillation ? 1e-4 : 1e-5);
      EXPECT_NEAR(run.metrics[i].gradient_norm / alone.norms[i], 1.0, 1e-4);
      EXPECT_EQ(run.metrics[i].samples, 8);
      EXPECT_EQ(run.metrics[i].step, static_cast<std::int64_t>(i) + 1);
      EXPECT_GT(run.metrics[i].tokens_per_second, 0);
      EXPECT_GE(run.metrics[i].straggler_ratio, 1.0);
    }
    if (budget == 4096) {
      EXPECT_EQ(run.metrics[0].micro_batches, 1);
    } else if (ranks_ <= 2) {
      EXPECT_GT(run.metrics[0].micro_batches, 1);
    }
    // Adam's division by the second moment's root amplifies rounding of tiny gradients.
    EXPECT_LT(relative_l2(run.weights, alone.weights), 1e-4);
    EXPECT_GT(relative_l2(alone.weights, consolidated(Model(1).table, Model(1).weights)), 1e-2);
    EXPECT_EQ(run.saved, (std::vector<std::int64_t>{2, 4}));
    EXPECT_EQ(run.outcome, TrainOutcome::finished);
    saved_.clear();
  }
}

TEST_F(ZeroTrainerTest, StagesAndPlacesOfTheStateTrainAlike) {
  TrainConfig config = config_for_tests();
  config.gradient_norms_every = 0;
  SyntheticSource source(16, false);
  std::vector<float> first;
  std::uint64_t digest = 0;
  struct Case {
    bool offload;
    std::int64_t budget;
    int shard_ranks;
  };
  const int half = std::max(1, ranks_ / 2);
  for (const auto& [offload, budget, shard_ranks] :
       {Case{false, 4096, 0}, {true, 4096, 0}, {false, 64, 0}, {false, 64, half}, {true, 64, 1}}) {
    for (const int stage : {1, 0, 2, 3}) {
      SCOPED_TRACE(testing::Message()
                   << "stage " << stage << ", " << budget << " tokens, copies of " << shard_ranks);
      config.shard_ranks = shard_ranks;
      config.optimizer.zero_stage = stage;
      config.optimizer.offload = offload;
      config.tokens_per_rank = budget;
      const std::vector<float> weights = train(config, source, 2).weights;
      digest = digest_of(weights, digest);
      if (first.empty()) {
        first = weights;
      }
      // NCCL, the host's norm and several micro-batches add in other orders.
      const bool one_batch = budget > 64;
      EXPECT_LT(relative_l2(weights, first), one_batch ? 1e-6 : 1e-5);
      if (kernels_->device() == Device::cpu && one_batch) {
        EXPECT_EQ(weights, first);
      }
    }
  }
  config.shard_ranks = 0;
  EXPECT_GT(relative_l2(first, consolidated(Model(1).table, Model(1).weights)), 1e-3);
  // Weights are also gathered as bfloat16.
  config.compute = DType::bfloat16;
  const std::vector<float> narrow = train(config, source, 2).weights;
  EXPECT_GT(relative_l2(narrow, first), 1e-5);
  EXPECT_LT(relative_l2(narrow, first), 1e-2);
  if (comm_.rank() == 0) {
    print_digest(digest_of(narrow, digest));
  }
}

/// `size` samples, which repeat the first `batch` of them.
class RepeatedSource final : public SampleSource {
 public:
  RepeatedSource(std::int64_t batch, std::int64_t size) : batch_(batch), size_(size) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override {
    return source_.length(index % batch_);
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override {
    return source_.sample(index % batch_);
  }

 private:
  std::int64_t batch_;
  std::int64_t size_;
  SyntheticSource source_{1000};
};

/// The host queues a whole step and waits once for its results, which may be offloaded gradients
/// (up to stage 1; later stages add them meanwhile). Only the emulated device counts waits.
TEST_F(ZeroTrainerTest, AWarmStepWaitsForItsDeviceOnce) {
  using Count = std::uint64_t (*)();
  const auto waits = reinterpret_cast<Count>(::dlsym(RTLD_DEFAULT, "jforge_emulated_host_waits"));
  const auto count = [&] { return waits != nullptr ? waits() : 0; };
  for (const auto& [stage, offload] : std::vector<std::pair<int, bool>>{
           {0, false}, {1, false}, {2, false}, {3, false}, {0, true}, {1, true}}) {
    SCOPED_TRACE(testing::Message() << stage << (offload ? ", offloaded" : ""));
    TrainConfig config = config_for_tests();
    config.optimizer.zero_stage = stage;
    config.optimizer.offload = offload;
    config.teacher = stage % 2 == 1 ? TeacherKind::frozen : TeacherKind::detached;
    config.compute = stage == 2 ? DType::bfloat16 : DType::float32;
    RepeatedSource source(config.batch_samples, 1000 * config.batch_samples);
    std::uint64_t before = 0;
    std::uint64_t all = 0;
    TrainHooks hooks;
    hooks.on_step = [&](const StepMetrics& metrics) {
      const std::uint64_t now = count();
      if (metrics.step > 2) {
        EXPECT_LE(now - before, 1U) << "step " << metrics.step;
        all += now - before;
      }
      before = now;
    };
    static_cast<void>(train(config, source, 4, hooks));
    // The communication thread waits for offloaded gradients.
    if (waits != nullptr && (!offload || ranks_ == 1)) {
      EXPECT_GT(all, 0U);
    }
  }
}

/// Although the failing rank has announced reductions and gathers.
TEST_F(ZeroTrainerTest, AFailureInAStepStrandsNobodyAtAnyStage) {
  const std::string last = ":" + std::to_string(ranks_ - 1) + ":";
  const auto fails = [&](int stage, const std::string& place, int visit) {
    const std::string fault = "throw@" + place + last + std::to_string(visit);
    SCOPED_TRACE(testing::Message() << "stage " << stage << ", " << fault);
    TrainConfig config = config_for_tests();
    config.optimizer.zero_stage = stage;
    config.gradient_norms_every = 0;
    arm_faults(fault, comm_.rank());
    SyntheticSource source(16);
    EXPECT_THAT(
        message_of(ExitCode::internal, [&] { static_cast<void>(train(config, source, 2)); }),
        HasSubstr("rank " + std::to_string(ranks_ - 1) + " ("));
  };
  for (const int stage : {0, 1, 2, 3}) {
    fails(stage, "train.reduce", 3);
    fails(stage, "train.begin", 2);
    fails(stage, "train.accumulate", 2);
  }
  // The first group, one read ahead, one of the backward pass.
  for (const int visit : {1, 4, 6}) {
    fails(3, "train.gather", visit);
  }
}

/// NCCL has taken a collective that this rank cannot complete; a repeat would pair it with another.
TEST_F(ZeroTrainerTest, AFailureInABackwardBehindACollectivesCallEndsAllRanks) {
  const Rank last = ranks_ - 1;
  for (const int stage : {1, 3}) {
    SCOPED_TRACE(stage);
    TrainConfig config = config_for_tests();
    config.optimizer.zero_stage = stage;
    config.gradient_norms_every = 0;
    // At stage 1 the store shares its first weights, group by group.
    const std::size_t before = stage == 1 ? Model(ranks_).table.groups().size() : 0;
    arm_faults("throw@comm.issued:" + std::to_string(last) + ":" + std::to_string(before + 4),
               comm_.rank());
    SyntheticSource source(16);
    bool cut_off = false;
    try {
      static_cast<void>(train(config, source, 2));
    } catch (const Error& error) {
      cut_off = error.cut_off();
    }
    std::vector<std::uint8_t> acted = {faults_armed() ? std::uint8_t{0} : std::uint8_t{1}};
    broadcast<std::uint8_t>(comm_, acted, last);
    EXPECT_EQ(cut_off, acted[0] != 0);
  }
}

TEST_F(ZeroTrainerTest, AFrozenTeacherIsTheDetachedOneInTheFirstStepOnly) {
  TrainConfig config = config_for_tests();
  config.learning_rate = 1e-2;
  SyntheticSource source(24, false);
  const Run detached = train(config, source, 3);
  config.teacher = TeacherKind::frozen;
  const Run frozen = train(config, source, 3);
  // The same weights and rows in other products' shapes: only rounding differs.
  EXPECT_NEAR(frozen.metrics[0].consistency / detached.metrics[0].consistency, 1, 1e-5);
  EXPECT_NEAR(frozen.metrics[0].autoregressive / detached.metrics[0].autoregressive, 1, 1e-6);
  EXPECT_NEAR(frozen.metrics[0].gradient_norm / detached.metrics[0].gradient_norm, 1, 1e-5);
  EXPECT_GT(std::abs(frozen.metrics[2].consistency / detached.metrics[2].consistency - 1), 1e-3);
  EXPECT_EQ(frozen.metrics[0].tokens, detached.metrics[0].tokens);
}

TEST_F(ZeroTrainerTest, DistilledCleanRowsBeginWithoutLossAndStayNearerToTheTeacher) {
  TrainConfig config = config_for_tests();
  constexpr std::int64_t kSteps = 12;
  config.learning_rate = 3e-3;
  config.teacher = TeacherKind::frozen;
  config.ar_loss = ArLoss::distillation;
  SyntheticSource source(kSteps * config.batch_samples, false);
  const auto last_divergence = [&](float ar_weight) {
    config.ar_weight = ar_weight;
    const Run run = train(config, source, kSteps);
    EXPECT_NEAR(run.metrics[0].autoregressive, 0, 1e-6) << "the teacher itself";
    return run.metrics[kSteps - 1].autoregressive;
  };
  const double held = last_divergence(20);
  const double free = last_divergence(1e-6F);
  EXPECT_GT(free, 1e-3);
  EXPECT_LT(held, 0.7 * free);
}

/// The next step's loss shows the masters' update.
TEST_F(ZeroTrainerTest, TwoRunsInBfloat16HaveTheSameBitsAndTheCpusLosses) {
  TrainConfig config = config_for_tests();
  const auto cpu = make_cpu_kernel_set();
  for (const TeacherKind teacher : {TeacherKind::detached, TeacherKind::frozen}) {
    config.teacher = teacher;
    const auto run_on = [&](KernelSet& kernels, DType compute) {
      SyntheticSource source(24);
      config.compute = compute;
      return train_with(kernels, config, source, 3).metrics;
    };
    const std::vector<StepMetrics> first = run_on(*kernels_, DType::bfloat16);
    const std::vector<StepMetrics> second = run_on(*kernels_, DType::bfloat16);
    const std::vector<StepMetrics> reference = run_on(*cpu, DType::bfloat16);
    const std::vector<StepMetrics> exact = run_on(*cpu, DType::float32);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(first[i].loss, second[i].loss);
      EXPECT_EQ(first[i].gradient_norm, second[i].gradient_norm);
      // bfloat16 has 8 bits: rounding moves a loss by less than a unit of its last place, a norm by
      // a few.
      EXPECT_NEAR(first[i].loss / reference[i].loss, 1, 2e-3);
      EXPECT_NEAR(first[i].gradient_norm / reference[i].gradient_norm, 1, 2e-2);
      EXPECT_NE(first[i].loss, exact[i].loss) << "not computed in bfloat16";
    }
  }
}

TEST_F(ZeroTrainerTest, GradientNormsOfBothTermsAreMeasuredAndChangeNothing) {
  TrainConfig config = config_for_tests();
  config.gradient_norms_every = 2;
  SyntheticSource source(24, false);
  const Run run = train(config, source, 3);
  ASSERT_EQ(run.metrics.size(), 3U);
  EXPECT_TRUE(run.metrics[0].consistency_gradient_norm && run.metrics[0].ar_gradient_norm);
  EXPECT_FALSE(run.metrics[1].consistency_gradient_norm || run.metrics[1].ar_gradient_norm);
  EXPECT_TRUE(run.metrics[2].consistency_gradient_norm && run.metrics[2].ar_gradient_norm);

  config.gradient_norms_every = 0;
  SyntheticSource again(24, false);
  const Run without = train(config, again, 3);
  EXPECT_EQ(without.weights, run.weights);
  EXPECT_FALSE(without.metrics[0].consistency_gradient_norm);
}

TEST_F(ZeroTrainerTest, GradientNormsOfTheTermsAreThoseOfTrainingOneTermAlone) {
  if (ranks_ > 1) {
    return;  // needs a micro-batch that is the whole batch
  }
  TrainConfig config = config_for_tests();
  config.tokens_per_rank = 4096;
  config.gradient_norms_every = 1;
  SyntheticSource source(8, false);
  const StepMetrics both = train(config, source, 1).metrics[0];
  ASSERT_TRUE(both.consistency_gradient_norm && both.ar_gradient_norm);
  TrainConfig only = config;
  only.ar_weight = 0;
  EXPECT_NEAR(*both.consistency_gradient_norm / train(only, source, 1).metrics[0].gradient_norm, 1,
              1e-5);
  only = config;
  only.consistency_weight = 0;
  const StepMetrics ar = train(only, source, 1).metrics[0];
  EXPECT_NEAR(*both.ar_gradient_norm / ar.gradient_norm, 1, 1e-5);
  EXPECT_FALSE(ar.ar_gradient_norm) << "measured although there is one term only";
}

TEST_F(ZeroTrainerTest, EveryMicroBatchAndStepIsASignOfProgress) {
  TrainConfig config = config_for_tests();
  config.tokens_per_rank = 4096;
  config.gradient_norms_every = 0;
  PhaseClock clock;
  TrainHooks hooks;
  hooks.clock = &clock;
  SyntheticSource source(8);
  const Run run = train(config, source, 1, hooks);
  ASSERT_EQ(run.metrics[0].micro_batches, 1);
  EXPECT_EQ(clock.read().progress, 2U);
}

TEST_F(ZeroTrainerTest, EachSampleOfTheBatchIsTrainedOnce) {
  SyntheticSource source(21);  // the last batch has five samples
  TrainConfig config = config_for_tests();
  const Run run = train(config, source, 3);
  EXPECT_EQ(run.metrics.back().samples, 5);
  std::vector<std::int64_t> counts(21, 0);
  for (const std::int64_t index : source.asked) {
    ++counts[static_cast<std::size_t>(index)];
  }
  all_reduce_sum<std::int64_t>(comm_, counts);
  EXPECT_EQ(counts, std::vector<std::int64_t>(21, 1));
}

TEST_F(ZeroTrainerTest, NoStepHasMoreThanTheWholePeak) {
  SyntheticSource source(32);
  const TrainConfig config = config_for_tests();
  for (const StepMetrics& metrics : train(config, source, 2, {}, 1e18).metrics) {
    ASSERT_TRUE(metrics.mfu.has_value());
    EXPECT_GT(*metrics.mfu, 0);
    EXPECT_LE(*metrics.mfu, 1);
  }
  // At 1 FLOP/s every step exceeds the peak, which the first one then sets.
  const std::vector<StepMetrics> steps = train(config, source, 2, {}, 1).metrics;
  EXPECT_EQ(steps.at(0).mfu, 1.0);
  EXPECT_GT(steps.at(1).mfu.value(), 0);
  EXPECT_LE(steps.at(1).mfu.value(), 1);
  for (const StepMetrics& metrics : train(config, source, 2).metrics) {
    EXPECT_FALSE(metrics.mfu.has_value());
  }
}

TEST_F(ZeroTrainerTest, LossFalls) {
  TrainConfig config = config_for_tests();
  config.learning_rate = 2e-2;
  RepeatedSource source(8, 1000);
  const Run run = train(config, source, 60);
  EXPECT_LT(run.metrics.back().loss, 0.6 * run.metrics.front().loss);
}

TEST_F(ZeroTrainerTest, TheSftControlForwardsNoNoisyRows) {
  TrainConfig config = config_for_tests();
  SyntheticSource source(8, false);
  const Run both = train(config, source, 1);
  config.consistency_weight = 0;
  const Run control = train(config, source, 1);
  EXPECT_EQ(control.metrics[0].consistency, 0);
  EXPECT_EQ(control.metrics[0].kept_offsets, 0);
  EXPECT_LT(control.metrics[0].tokens, both.metrics[0].tokens);
  EXPECT_EQ(control.metrics[0].ar_targets, both.metrics[0].ar_targets);
  // Clean rows do not see noisy ones: the AR loss is the full packing's (I10, I15).
  EXPECT_NEAR(control.metrics[0].autoregressive / both.metrics[0].autoregressive, 1.0, 1e-5);
}

TEST_F(ZeroTrainerTest, AStopOnOneRankStopsAllAfterTheRunningStepAndASave) {
  SyntheticSource source(80);
  TrainHooks hooks;
  int asked = 0;
  hooks.stop_requested = [&] {
    return comm_.rank() == ranks_ - 1 && ++asked >= 5;
  };  // asked twice a step: in step 3
  const Run run = train(config_for_tests(), source, 10, hooks);
  EXPECT_EQ(run.outcome, TrainOutcome::interrupted);
  EXPECT_EQ(run.metrics.size(), 3U);
  EXPECT_EQ(run.saved, (std::vector<std::int64_t>{2, 3}));
}

TEST_F(ZeroTrainerTest, AProbeThatEndsTheRoundMakesItsStepTheLast) {
  SyntheticSource source(80);
  TrainHooks hooks;
  hooks.probe = [](StepMetrics& metrics) {
    metrics.held_out_tpf = 1.5 * static_cast<double>(metrics.step);
    return metrics.step == 3;
  };
  const Run run = train(config_for_tests(), source, 10, hooks);
  EXPECT_EQ(run.outcome, TrainOutcome::finished);
  EXPECT_EQ(run.metrics.size(), 3U);
  EXPECT_EQ(run.metrics.back().held_out_tpf, 4.5) << "on_step hears what the probe found";
  EXPECT_EQ(run.saved, (std::vector<std::int64_t>{2, 3}));
}

TEST_F(ZeroTrainerTest, InjectedNaNStopsAllNamesTheRankAndIsNeverSaved) {
  const Rank bad = ranks_ - 1;
  arm_faults("nan@train:" + std::to_string(bad) + ":2", comm_.rank());
  SyntheticSource source(80);
  const std::string message = message_of(
      ExitCode::numerical, [&] { static_cast<void>(train(config_for_tests(), source, 10)); });
  EXPECT_THAT(message, HasSubstr("rank " + std::to_string(bad) + " ("));
  EXPECT_THAT(message, HasSubstr("is not finite before update 2"));
  EXPECT_TRUE(saved_.empty());
}

TEST_F(ZeroTrainerTest, ARunOfSpikesEndsItOnAllRanksWithOneMessage) {
  TrainConfig config = config_for_tests();
  // Norms of random samples differ, so nearly every step is a "spike".
  config.spike_guard = {.ratio = 1 + 1e-12, .window = 1, .patience = 1};
  config.learning_rate = 0.5;
  config.warmup_ratio = 0;
  SyntheticSource source(80);
  std::int64_t last = 0;
  TrainHooks hooks;
  hooks.on_step = [&](const StepMetrics& metrics) {
    last = metrics.step;
    EXPECT_EQ(metrics.skipped, metrics.step > 1);
  };
  const std::string message =
      message_of(ExitCode::numerical, [&] { static_cast<void>(train(config, source, 10, hooks)); });
  EXPECT_THAT(message, HasSubstr("2 steps in a row, up to step 3, were left out"));
  EXPECT_EQ(last, 3);
  EXPECT_EQ(saved_, std::vector<std::int64_t>{2});
}

TEST_F(ZeroTrainerTest, AReportThatFailsOnOneRankStopsAllAndNoStopHidesIt) {
  for (const auto& [at_step, stopped] : {std::pair(1, false), {3, false}, {2, true}}) {
    SyntheticSource source(80);
    TrainHooks hooks;
    int asked = 0;
    hooks.stop_requested = [&] {
      return ++asked >= 3 && stopped;
    };  // asked twice a step: in step 2
    hooks.on_step = [&](const StepMetrics& metrics) {
      if (comm_.rank() == ranks_ - 1 && metrics.step == at_step) {
        throw EnvironmentError("metrics.jsonl: disk full");
      }
    };
    saved_.clear();
    EXPECT_THAT(message_of(ExitCode::environment,
                           [&] { static_cast<void>(train(config_for_tests(), source, 3, hooks)); }),
                HasSubstr("metrics.jsonl: disk full"));
    EXPECT_TRUE(!stopped || saved_ == std::vector<std::int64_t>{2});
  }
}

TEST_F(ZeroTrainerTest, PlansThatCannotBeRunAreRefusedBeforeTheFirstStep) {
  SyntheticSource source(16);
  const auto refusal = [&](const TrainConfig& config, std::int64_t steps) {
    return message_of(ExitCode::usage, [&] { static_cast<void>(train(config, source, steps)); });
  };
  EXPECT_THAT(refusal(config_for_tests(), 3), HasSubstr("has no samples"));
  TrainConfig narrow = config_for_tests();
  narrow.tokens_per_rank = 8;
  EXPECT_THAT(refusal(narrow, 1), HasSubstr("train.tokens_per_rank is 8"));
  EXPECT_TRUE(source.asked.empty());
  if (ranks_ > 1) {
    TrainConfig single = config_for_tests();
    single.batch_samples = 1;
    EXPECT_THAT(refusal(single, 1), HasSubstr("train.allow_idle_ranks"));
    single.allow_idle_ranks = true;
    EXPECT_EQ(train(single, source, 2).metrics.size(), 2U);
  }
}

TEST(JobPeak, IsMeasuredOnceAndKeptAndRaised) {
  const Communicator& comm = test_world();
  const auto kernels = make_tested_kernel_set();
  const auto ranks = static_cast<double>(comm.size());
  std::optional<test::TemporaryDirectory> directory;
  std::string name;
  if (comm.rank() == 0) {
    directory.emplace();
    name = (*directory / "peak_flops.json").string();
  }
  const std::filesystem::path file = broadcast_text(comm, name, 0);
  const auto ask = [&](DType operands, bool keep = true) {
    PeakFlops peak(*kernels, comm, operands, file, keep);
    comm.barrier();
    return peak;
  };
  EXPECT_GT(ask(DType::float32, false).total(), 0);
  EXPECT_FALSE(std::filesystem::exists(file)) << "a plan leaves nothing behind";
  comm.barrier();

  PeakFlops first = ask(DType::float32);
  EXPECT_EQ(read_rank_peaks(file).size(), 1U) << "all ranks are of one kind here";
  EXPECT_EQ(ask(DType::float32).total(), ranks * read_rank_peaks(file).begin()->second)
      << "the file's, not measured again";
  comm.barrier();
  const double reached = 3 * first.total();
  EXPECT_EQ(first.share_of(reached), 1.0);
  comm.barrier();
  EXPECT_GE(ask(DType::float32).total(), 0.999 * reached);
  if (kernels->device() == Device::cpu) {
    EXPECT_GT(ask(DType::bfloat16).total(), 0);
    EXPECT_EQ(read_rank_peaks(file).size(), 2U);
  }
  comm.barrier();
}

}  // namespace
}  // namespace jforge
