// A resumed run equals an uninterrupted one: bit for bit with the same ranks, else in relative L2.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/checkpoint_writer.h"
#include "runtime/error.h"
#include "tests/distributed/checkpoints/shared_directory.h"
#include "tests/distributed/workers/zero_fixture.h"
#include "tests/support/mpi_test.h"
#include "tests/support/shard_of.h"
#include "tests/unit/checkpoints/checkpoint_fixture.h"
#include "workers/train/training_checkpoint.h"

namespace jforge {
namespace {

using namespace jforge::test;

/// With the parameter, an adapter beside a frozen model.
class CheckpointResumeTest : public ::testing::TestWithParam<bool> {
 protected:
  struct Result {
    std::vector<float> weights;  ///< consolidated
    std::vector<double> losses;
    std::vector<float> first;  ///< this rank's shard vector
    std::vector<float> second;
  };

  void SetUp() override {
    config_.learning_rate = 1e-3;
    config_.batch_samples = 8;
    config_.tokens_per_rank = 96;
    if (GetParam()) {
      config_.drafter = Drafter::adapter;
      config_.adapter.rank = 3;
      config_.mask = MaskKind::clean;
      config_.ar_weight = 0;
    }
  }

  [[nodiscard]] Model trained_model(int shards) const {
    return {config_.table(shape_, shards), shape_.num_layers};
  }
  [[nodiscard]] TrainContext context(const Model& model) {
    return {.model = shape_,
            .table = model.table,
            .kernels = *kernels_,
            .comm = comm_,
            .account = account_,
            .frozen = GetParam() ? std::optional(FrozenModel{base_.table, lent_}) : std::nullopt};
  }

  /// Trains from the newest checkpoint, if any, to `total` steps, or stops after step `stop_after`.
  Result train(std::int64_t total, std::int64_t stop_after) {
    Model model = trained_model(comm_.size());
    DistillationTrainer trainer(context(model), shard_of(model.view(), model.table, comm_.rank()),
                                config_);
    TrainPlan plan;
    plan.total_steps = total;
    plan.checkpoint_every = 2;
    plan.steps_done = resume(trainer.optimizer(), model.table);
    CheckpointWriter writer(comm_, root_.path(), {}, account_);
    Result result;
    TrainHooks hooks;
    hooks.on_step = [&](const StepMetrics& metrics) { result.losses.push_back(metrics.loss); };
    hooks.at_boundary = [&] { static_cast<void>(writer.poll()); };
    hooks.stop_requested = [&] {
      return static_cast<std::int64_t>(result.losses.size()) + plan.steps_done >= stop_after - 1;
    };
    hooks.save = [&](std::int64_t step) {
      CheckpointState state;
      state.round = 1;
      state.step = step;
      state.phase = "train";
      save_training(writer, state, model.table, trainer.optimizer());
    };
    SyntheticSource source(8 * total);
    static_cast<void>(trainer.run(source, plan, hooks));
    writer.finish();
    const auto first = trainer.optimizer().first_moment().span<float>();
    const auto second = trainer.optimizer().second_moment().span<float>();
    result.first.assign(first.begin(), first.end());
    result.second.assign(second.begin(), second.end());
    gather_masters(trainer.store(), model.table, comm_, model.view());
    result.weights = consolidated(model.table, model.weights);
    return result;
  }

  std::int64_t resume(ShardedAdamW& optimizer, const ParameterTable& table) {
    const CheckpointSearch search = find_newest_checkpoint(comm_, root_.path());
    if (!search.newest) {
      return 0;
    }
    resume_training(comm_, *search.newest, table, optimizer, account_);
    return search.newest->manifest.state.step;
  }

  void clear() {
    comm_.barrier();
    if (comm_.rank() == 0) {
      std::filesystem::remove_all(root_.path());
      std::filesystem::create_directories(root_.path());
    }
    comm_.barrier();
  }

  const Communicator& comm_ = test_world();
  SharedDirectory root_{comm_, "jforge-resume"};
  std::unique_ptr<KernelSet> kernels_ = make_cpu_kernel_set();
  MemoryAccount account_{"resume test"};
  const TransformerConfig shape_ = tiny_config();
  TrainConfig config_;
  Model base_{comm_.size()};
  FlatParameters lent_{base_.table, base_.view(), *kernels_, account_};
};

TEST_P(CheckpointResumeTest, ResumedEqualsUninterruptedBitForBit) {
  const Result whole = train(7, 100);
  ASSERT_EQ(whole.losses.size(), 7U);
  for (const std::int64_t stop_after : {1, 3, 4, 6}) {
    SCOPED_TRACE(stop_after);
    clear();
    const Result before = train(7, stop_after);
    ASSERT_LT(before.losses.size(), 7U);
    const Result after = train(7, 100);
    EXPECT_EQ(after.weights, whole.weights);
    EXPECT_EQ(after.first, whole.first);
    EXPECT_EQ(after.second, whole.second);
    std::vector<double> losses = before.losses;
    losses.insert(losses.end(), after.losses.begin(), after.losses.end());
    EXPECT_EQ(losses, whole.losses);
  }
}

TEST_P(CheckpointResumeTest, TheUpdateCountMattersSoTheComparisonCanFail) {
  const Result whole = train(4, 100);
  clear();
  static_cast<void>(train(4, 2));
  // A forgotten bias correction must not pass as a proper resume.
  Model model = trained_model(comm_.size());
  DistillationTrainer trainer(context(model), {}, config_);
  const std::int64_t done = resume(trainer.optimizer(), model.table);
  gather_masters(trainer.store(), model.table, comm_, model.view());
  trainer.optimizer().load_weights(shard_of(model.view(), model.table, comm_.rank()), 0);
  SyntheticSource source(32);
  TrainPlan plan;
  plan.total_steps = 4;
  plan.steps_done = done;
  static_cast<void>(trainer.run(source, plan, {}));
  gather_masters(trainer.store(), model.table, comm_, model.view());
  EXPECT_NE(consolidated(model.table, model.weights), whole.weights);
}

TEST_P(CheckpointResumeTest, ARankThatCannotReadIsEverybodysError) {
  static_cast<void>(train(4, 2));
  const CheckpointSearch search = find_newest_checkpoint(comm_, root_.path());
  comm_.barrier();
  const Rank bad = comm_.size() - 1;
  if (comm_.rank() == bad) {
    std::filesystem::remove(search.newest->directory / shard_file_name(bad, comm_.size()));
  }
  comm_.barrier();
  Model model = trained_model(comm_.size());
  const std::vector<float> before = model.weights;
  const auto collectives = make_host_collectives(comm_);
  ParameterStore store(model.table, {}, *kernels_, *collectives, account_,
                       shard_of(model.view(), model.table, comm_.rank()));
  ShardedAdamW optimizer(model.table, comm_, account_, store, {});
  EXPECT_THAT(
      message_of(ExitCode::input_data,
                 [&] { resume_training(comm_, *search.newest, model.table, optimizer, account_); }),
      ::testing::HasSubstr("rank " + std::to_string(bad) + " ("));
  gather_masters(store, model.table, comm_, model.view());
  EXPECT_EQ(model.weights, before);
}

TEST_P(CheckpointResumeTest, WeightsAloneLoadAtAnyShardCount) {
  const Result trained = train(3, 100);
  const CheckpointSearch search = find_newest_checkpoint(comm_, root_.path());
  const Model model = trained_model(1);
  EXPECT_EQ(consolidated(model.table, read_weights(*search.newest, model.table)), trained.weights);
}

TEST_P(CheckpointResumeTest, ACheckpointOfAnotherWorldSizeResumes) {
  const Result whole = train(6, 100);
  clear();
  static_cast<void>(train(6, 3));
  const CheckpointSearch search = find_newest_checkpoint(comm_, root_.path());
  ASSERT_TRUE(search.newest.has_value());
  ASSERT_EQ(search.newest->manifest.state.step, 3);
  // Rewrites it for three ranks: the same tensors in other slices.
  constexpr int kOther = 3;
  const std::filesystem::path other_root = root_.path() / "other";
  const std::filesystem::path directory = other_root / checkpoint_directory_name(1, 3);
  if (comm_.rank() == 0) {
    const ParameterTable table = config_.table(shape_, kOther);
    std::filesystem::create_directories(directory);
    CheckpointManifest manifest = search.newest->manifest;
    manifest.world_size = kOther;
    manifest.shards.clear();
    for (int rank = 0; rank < kOther; ++rank) {
      const auto slices = shard_slices(table, rank);
      std::vector<float> packed[3];
      for (int v = 0; v < 3; ++v) {
        const auto values = read_shard(*search.newest, table, rank, static_cast<ShardVector>(v));
        for (const ShardSlice& slice : slices) {
          packed[v].insert(packed[v].end(), values.begin() + slice.shard_begin,
                           values.begin() + slice.shard_begin + slice.size());
        }
      }
      manifest.shards.push_back(write_shard(directory, {1, 3, kOther, rank, manifest.nonce}, slices,
                                            {packed[0], packed[1], packed[2]}));
    }
    commit_checkpoint(directory, manifest);
    std::filesystem::remove_all(root_.path() / checkpoint_directory_name(1, 3));
    std::filesystem::remove_all(root_.path() / checkpoint_directory_name(1, 2));
    std::filesystem::rename(directory, root_.path() / checkpoint_directory_name(1, 3));
  }
  comm_.barrier();
  const Result resumed = train(6, 100);
  EXPECT_EQ(resumed.losses.size(), 3U);
  // The state's bits do not depend on the writer's world size.
  EXPECT_EQ(resumed.weights, whole.weights);
}

INSTANTIATE_TEST_SUITE_P(ModelAndAdapter, CheckpointResumeTest, ::testing::Bool());

}  // namespace
}  // namespace jforge
