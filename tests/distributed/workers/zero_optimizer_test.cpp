// The sharded optimizer equals the plain one, moves the bytes its formula says, and stops on NaN
// and memory corruption.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "runtime/comm/collectives.h"
#include "runtime/error.h"
#include "tests/distributed/workers/zero_fixture.h"
#include "tests/support/mpi_test.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;
using namespace jforge::test;

/// Gradient of one rank at one step: any rank can compute any other's.
std::vector<float> gradient_of(const ParameterTable& table, int rank, int step, double scale) {
  std::vector<float> gradient(static_cast<std::size_t>(table.flat_size()), 0.0F);
  for (std::size_t e = 0; e < table.entries().size(); ++e) {
    const ParameterEntry& entry = table.entries()[e];
    RandomStream random(kSeed, RandomPurpose::test, static_cast<std::uint64_t>(100 * step + rank),
                        e);
    for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
      gradient[static_cast<std::size_t>(entry.offset + i)] =
          static_cast<float>(scale * random.normal());
    }
  }
  return gradient;
}

class ZeroOptimizerTest : public ::testing::Test {
 protected:
  ZeroOptimizer make(const OptimizerConfig& config) {
    return ZeroOptimizer(model_.table, *kernels_, comm_, account_, model_.view(), config);
  }
  void add(ZeroOptimizer& optimizer, const std::vector<float>& gradient) const {
    float* target = optimizer.gradients().data<float>();
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      target[i] += gradient[i];
    }
  }

  const Communicator& comm_ = test_world();
  int ranks_ = comm_.size();
  std::unique_ptr<KernelSet> kernels_ = make_cpu_kernel_set();
  MemoryAccount account_{"zero test"};
  Model model_{ranks_};
};

TEST_F(ZeroOptimizerTest, EqualsUnshardedAdamW) {
  for (const double clip : {0.0, 1.0}) {
    OptimizerConfig config;
    config.weight_decay = 0.1F;
    config.clip_norm = clip;
    Model sharded(ranks_);
    Model plain(1);
    ZeroOptimizer optimizer(sharded.table, *kernels_, comm_, account_, sharded.view(), config);
    ReferenceOptimizer reference(plain.table, config);
    for (int step = 1; step <= 5; ++step) {
      add(optimizer, gradient_of(sharded.table, comm_.rank(), step, 0.1));
      std::vector<float> sum(plain.weights.size(), 0.0F);
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto part = gradient_of(plain.table, rank, step, 0.1);
        for (std::size_t i = 0; i < sum.size(); ++i) {
          sum[i] += part[i];
        }
      }
      const auto report = optimizer.step(1e-2);
      const double norm = reference.step(plain.weights, sum, 1e-2);
      EXPECT_NEAR(report.gradient_norm / norm, 1.0, 1e-6);
      EXPECT_EQ(clip > 0, report.clip_scale < 1.0F);
    }
    EXPECT_EQ(optimizer.updates(), 5);
    // float32 state against double: a few roundings per step of moments that agree to 1e-7.
    EXPECT_LT(relative_l2(consolidated(sharded.table, sharded.weights),
                          consolidated(plain.table, plain.weights)),
              1e-6);
    EXPECT_GT(relative_l2(consolidated(plain.table, plain.weights),
                          consolidated(plain.table, Model(1).weights)),
              1e-2);
  }
}

TEST_F(ZeroOptimizerTest, GradientsAreZeroedAndPaddingStaysZero) {
  ZeroOptimizer optimizer = make({});
  add(optimizer, gradient_of(model_.table, comm_.rank(), 1, 1.0));
  static_cast<void>(optimizer.step(1e-2));
  for (const float value : optimizer.gradients().span<float>()) {
    ASSERT_EQ(value, 0.0F);
  }
  for (const ParameterGroup& group : model_.table.groups()) {
    for (std::int64_t i = group.offset + group.size; i < group.offset + group.padded_size; ++i) {
      ASSERT_EQ(model_.weights[static_cast<std::size_t>(i)], 0.0F);
    }
  }
}

TEST_F(ZeroOptimizerTest, MovesTheBytesOfTheFormulaAndTakesTheMemoryOfTheFormula) {
  OptimizerConfig config;
  config.check_replicas_every = 0;
  ZeroOptimizer optimizer = make(config);
  const auto flat_bytes = static_cast<std::uint64_t>(model_.table.flat_size()) * sizeof(float);
  const auto ranks = static_cast<std::uint64_t>(ranks_);
  // Gradients 4P, moments 8P/N (weights, 4P, belong to the caller).
  EXPECT_EQ(account_.live_bytes(), flat_bytes + 2 * flat_bytes / ranks);

  const CollectiveBytes before = collective_bytes();
  static_cast<void>(optimizer.step(1e-3));
  const CollectiveBytes after = collective_bytes();
  // Handed over: the whole gradient, of which a ring moves (N−1)/N; the own shard, which reaches
  // N−1 others.
  const std::uint64_t reduced = after.reduce_scatter - before.reduce_scatter;
  const std::uint64_t gathered =
      after.all_gather - before.all_gather - sizeof(double);  // Without the norm's one number.
  EXPECT_EQ(reduced / ranks * (ranks - 1), optimizer.ring_payload_bytes());
  EXPECT_EQ(gathered * (ranks - 1), optimizer.ring_payload_bytes());
  EXPECT_EQ(after.all_reduce, before.all_reduce);
  EXPECT_EQ(after.broadcast, before.broadcast);
  // f · (g + w) · P with P the parameter count: padding costs less than 5 % even here
  // within 10 %.
  const double f = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  const double formula = f * (4 + 4) * static_cast<double>(model_.table.parameter_count());
  EXPECT_GE(2.0 * static_cast<double>(optimizer.ring_payload_bytes()), formula);
  EXPECT_LE(2.0 * static_cast<double>(optimizer.ring_payload_bytes()), 1.05 * formula);
}

TEST_F(ZeroOptimizerTest, NaNOnOneRankStopsAllBeforeAnythingChanges) {
  const Rank bad = ranks_ - 1;
  ZeroOptimizer optimizer = make({});
  add(optimizer, gradient_of(model_.table, comm_.rank(), 1, 1.0));
  static_cast<void>(optimizer.step(1e-2));
  const std::vector<float> weights = model_.weights;
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const TensorView gradients = optimizer.gradients();
    std::fill(gradients.span<float>().begin(), gradients.span<float>().end(), 0.0F);
    if (comm_.rank() == bad) {
      model_.table.tensor(gradients, "model.layers.1.mlp.up_proj.weight").data<float>()[5] = poison;
    }
    const std::string message =
        message_of(ExitCode::numerical, [&] { static_cast<void>(optimizer.step(1e-2)); });
    EXPECT_THAT(message, HasSubstr("rank " + std::to_string(bad) + " ("));
    EXPECT_THAT(message, HasSubstr("model.layers.1.mlp.up_proj.weight is not finite"));
    EXPECT_EQ(model_.weights, weights);
    EXPECT_EQ(optimizer.updates(), 1);
  }
}

TEST_F(ZeroOptimizerTest, AnOverflowingSumStopsAllBeforeAnythingChanges) {
  if (ranks_ == 1) {
    return;  // One finite gradient has a finite norm in double precision.
  }
  ZeroOptimizer optimizer = make({});
  const std::vector<float> weights = model_.weights;
  optimizer.gradients().data<float>()[0] = 3e38F;
  EXPECT_THAT(message_of(ExitCode::numerical, [&] { static_cast<void>(optimizer.step(1e-2)); }),
              HasSubstr("overflowed"));
  EXPECT_EQ(model_.weights, weights);
}

TEST_F(ZeroOptimizerTest, AFlippedBitInOwnedStateIsFoundBeforeTheNextUpdate) {
  const Rank bad = ranks_ - 1;
  for (const char* what : {"weights", "first moment", "second moment"}) {
    Model model(ranks_);
    ZeroOptimizer optimizer(model.table, *kernels_, comm_, account_, model.view(), {});
    add(optimizer, gradient_of(model.table, comm_.rank(), 1, 1.0));
    static_cast<void>(optimizer.step(1e-2));
    if (comm_.rank() == bad) {
      float* target = what == std::string("weights")
                          ? model.weights.data() + model.table.shard_range(1, bad).begin
                      : what == std::string("first moment")
                          ? optimizer.first_moment().data<float>()
                          : optimizer.second_moment().data<float>();
      reinterpret_cast<std::uint32_t*>(target)[3] ^= 1U;
    }
    const std::string message =
        message_of(ExitCode::numerical, [&] { static_cast<void>(optimizer.step(1e-2)); });
    EXPECT_THAT(message, HasSubstr("rank " + std::to_string(bad) + " ("));
    EXPECT_THAT(message, HasSubstr(std::string(what) + " of shard"));
  }
}

TEST_F(ZeroOptimizerTest, ABitFlippedOnceInAReplicaIsFoundAlthoughTheNextGatherHealsIt) {
  if (ranks_ == 1) {
    return;  // No replicas.
  }
  const Rank bad = ranks_ - 1;
  for (const std::int64_t every : {1, 3}) {
    for (int flipped_before = 1; flipped_before <= 4; ++flipped_before) {
      Model model(ranks_);
      OptimizerConfig config;
      config.check_replicas_every = every;
      ZeroOptimizer optimizer(model.table, *kernels_, comm_, account_, model.view(), config);
      std::string message = "never found";
      int done = 0;
      for (int step = 0; step < 8 && message == "never found"; ++step) {
        if (step == flipped_before && comm_.rank() == bad) {
          reinterpret_cast<std::uint32_t*>(model.weights.data() +
                                           model.table.shard_range(0, 0).begin)[7] ^= 1U;
        }
        try {
          static_cast<void>(optimizer.step(1e-2));
          ++done;
        } catch (const NumericalError& error) {
          message = error.what();
        }
      }
      EXPECT_THAT(message, HasSubstr("rank " + std::to_string(bad) +
                                     ": its replica of the weights owned by rank 0"));
      // Before the next comparison's update: comparisons precede updates 1, 1 + every, ….
      const auto interval = static_cast<int>(every);
      EXPECT_EQ(done, (flipped_before + interval - 1) / interval * interval);
    }
  }
}

TEST_F(ZeroOptimizerTest, ReplicasAreNotComparedWhenThatIsTurnedOff) {
  OptimizerConfig config;
  config.check_replicas_every = 0;
  ZeroOptimizer optimizer = make(config);
  const std::uint64_t before = collective_bytes().all_gather;
  static_cast<void>(optimizer.step(1e-2));
  const std::uint64_t without = collective_bytes().all_gather - before;
  config.check_replicas_every = 1;
  ZeroOptimizer checked = make(config);
  const std::uint64_t again = collective_bytes().all_gather;
  static_cast<void>(checked.step(1e-2));
  EXPECT_EQ(
      collective_bytes().all_gather - again,
      without + (ranks_ == 1 ? 0 : static_cast<std::uint64_t>(ranks_)) * sizeof(std::int64_t));
}

TEST_F(ZeroOptimizerTest, LoadGathersWeightsAndRefusesWrongSizes) {
  ZeroOptimizer optimizer = make({});
  const auto size = static_cast<std::size_t>(shard_vector_size(model_.table));
  const std::vector<float> shard(size, static_cast<float>(comm_.rank() + 1));
  const std::vector<float> short_shard(size - 1);
  EXPECT_THROW(optimizer.load(short_shard, shard, shard, 3), InternalError);
  optimizer.load(shard, shard, shard, 3);
  EXPECT_EQ(optimizer.updates(), 3);
  for (int owner = 0; owner < ranks_; ++owner) {
    EXPECT_EQ(model_.weights[static_cast<std::size_t>(model_.table.shard_range(2, owner).begin)],
              static_cast<float>(owner + 1));
  }
}

TEST_F(ZeroOptimizerTest, ATableForAnotherNumberOfRanksIsRefused) {
  Model other(ranks_ + 1);
  EXPECT_THROW(ZeroOptimizer(other.table, *kernels_, comm_, account_, other.view(), {}),
               InternalError);
}

}  // namespace
}  // namespace jforge
