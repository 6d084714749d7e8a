// At every ZeRO stage the sharded optimizer equals the plain one, moves and takes the bytes of its
// formulas, and stops on NaN and memory corruption.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "runtime/comm/collectives.h"
#include "runtime/error.h"
#include "tests/distributed/workers/zero_fixture.h"
#include "tests/support/mpi_test.h"
#include "tests/support/shard_of.h"
#include "tests/support/tested_kernel_set.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;
using namespace jforge::test;

/// Returns any rank's gradient at one step.
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

/// Copies a tensor from the device of `kernels`.
template <class T = float>
std::vector<T> values_of(KernelSet& kernels, const ConstTensorView& view) {
  std::vector<T> values(view.bytes() / sizeof(T));
  kernels.queue().copy(view, TensorView(values.data(), view.dtype(), view.shape()));
  kernels.queue().synchronize();
  return values;
}

void set_values(KernelSet& kernels, const TensorView& view, const void* values) {
  kernels.queue().copy(ConstTensorView(values, view.dtype(), view.shape()), view);
  kernels.queue().synchronize();
}

void flip_bit(KernelSet& kernels, const TensorView& view, std::size_t byte) {
  std::vector<std::byte> bytes = values_of<std::byte>(kernels, view);
  bytes[byte] ^= std::byte{1};
  set_values(kernels, view, bytes.data());
}

TensorView writable(const ConstTensorView& view) {
  return {const_cast<void*>(view.raw()), view.dtype(), view.shape(), view.device()};
}

void pass(KernelSet& kernels, ParameterStore& store, const ParameterTable& table,
          std::vector<float> gradient) {
  const PassUses uses(table);
  const TensorView flat(gradient.data(), {table.flat_size()});
  for (const auto* half : {&uses.forward, &uses.backward}) {
    for (const auto& [kind, index] : *half) {
      if (kind == GroupUse::Kind::acquire) {
        static_cast<void>(store.acquire(index));
        store.release(index);
        continue;
      }
      const ParameterGroup& group = table.groups()[static_cast<std::size_t>(index)];
      const TensorView opened = store.open(index);
      const auto part = flat.rows(group.offset, group.offset + group.padded_size).span<float>();
      std::vector<float> sum =
          store.undefined(index) ? std::vector<float>(part.size()) : values_of(kernels, opened);
      for (std::size_t i = 0; i < part.size(); ++i) {
        sum[i] += part[i];
      }
      set_values(kernels, opened, sum.data());
      store.ready(index);
    }
  }
}

/// A model and its training state at one stage.
class Sharded {
 public:
  Sharded(const Communicator& world, KernelSet& set, OptimizerConfig config,
          DType compute = DType::float32, bool teacher = false)
      : comm(world),
        kernels(set),
        model(comm.size()),
        collectives(make_collectives(comm, kernels.device(), kernels.device(), account)),
        store(model.table, {.stage = config.zero_stage, .compute = compute, .teacher = teacher},
              kernels, *collectives, account, shard_of(model.view(), model.table, comm.rank())),
        optimizer(model.table, comm, account, store, config) {
    store.wait_for_weights();  // Tests count the bytes of what comes later.
  }

  ShardedAdamW::StepReport step(const std::vector<float>& gradient, double rate = 1e-2) {
    return step(std::vector<std::vector<float>>(1, gradient), rate);
  }
  ShardedAdamW::StepReport step(const std::vector<std::vector<float>>& micro_batches, double rate) {
    store.begin_step({.micro_batches = static_cast<std::int64_t>(micro_batches.size()),
                      .replica_hashes = optimizer.replica_hashes()});
    for (const std::vector<float>& gradient : micro_batches) {
      pass(kernels, store, model.table, gradient);
    }
    return optimizer.step(rate);
  }
  /// Returns the weights without padding.
  std::vector<float> weights() {
    store.wait_for_weights();
    gather_masters(store, model.table, comm, model.view());
    return consolidated(model.table, model.weights);
  }
  [[nodiscard]] std::vector<float> zeros() const {
    return std::vector<float>(model.weights.size(), 0.0F);
  }

  const Communicator& comm;
  KernelSet& kernels;
  MemoryAccount account{"sharded"};
  Model model;
  std::unique_ptr<Collectives> collectives;
  ParameterStore store;
  ShardedAdamW optimizer;
};

class ShardedAdamWTest : public ::testing::TestWithParam<int> {
 protected:
  [[nodiscard]] Sharded make(OptimizerConfig config, DType compute = DType::float32,
                             bool teacher = false) {
    config.zero_stage = GetParam();
    return {comm_, *kernels_, config, compute, teacher};
  }
  [[nodiscard]] std::vector<float> gradient(const Sharded& sharded, int step, double scale = 1) {
    return gradient_of(sharded.model.table, comm_.rank(), step, scale);
  }
  /// Returns the message of a step that fails, which must name the last rank.
  [[nodiscard]] std::string failure_of(Sharded& sharded, const std::vector<float>& gradient) const {
    const std::string message =
        message_of(ExitCode::numerical, [&] { static_cast<void>(sharded.step(gradient)); });
    EXPECT_THAT(message, HasSubstr("rank " + std::to_string(ranks_ - 1) + " ("));
    return message;
  }
  /// Returns this rank's shard of a moment; at stage 0 the moment is whole.
  [[nodiscard]] std::vector<float> shard_of(const Sharded& sharded, const TensorView& state) const {
    const std::vector<float> values = values_of(*kernels_, state);
    if (sharded.store.sharding().shards_state()) {
      return values;
    }
    return test::shard_of(ConstTensorView(values.data(), {std::ssize(values)}), sharded.model.table,
                          comm_.rank());
  }

  const Communicator& comm_ = test_world();
  int ranks_ = comm_.size();
  std::unique_ptr<KernelSet> kernels_ = make_tested_kernel_set();
};

INSTANTIATE_TEST_SUITE_P(Stage, ShardedAdamWTest, ::testing::Range(0, 4));

TEST_P(ShardedAdamWTest, EqualsUnshardedAdamW) {
  for (const double clip : {0.0, 1.0}) {
    OptimizerConfig config;
    config.weight_decay = 0.1F;
    config.clip_norm = clip;
    Sharded sharded = make(config);
    Model plain(1);
    ReferenceOptimizer reference(plain.table, config);
    for (int step = 1; step <= 5; ++step) {
      std::vector<float> sum(plain.weights.size(), 0.0F);
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto part = gradient_of(plain.table, rank, step, 0.1);
        for (std::size_t i = 0; i < sum.size(); ++i) {
          sum[i] += part[i];
        }
      }
      const auto report = sharded.step(gradient(sharded, step, 0.1));
      const double norm = reference.step(plain.weights, sum, 1e-2);
      EXPECT_NEAR(report.gradient_norm / norm, 1.0, 1e-6);
      EXPECT_EQ(clip > 0, report.clip_scale < 1.0F);
    }
    EXPECT_EQ(sharded.optimizer.updates(), 5);
    // float32 state against double: a few roundings per step.
    const std::vector<float> expected = consolidated(plain.table, plain.weights);
    EXPECT_LT(relative_l2(sharded.weights(), expected), 1e-6);
    EXPECT_GT(relative_l2(expected, consolidated(plain.table, Model(1).weights)), 1e-2);
  }
}

TEST_P(ShardedAdamWTest, HasTheBitsOfStageOneAndStateOfAnyStage) {
  Sharded one(comm_, *kernels_, {});
  Sharded other = make({});
  for (int step = 1; step <= 4; ++step) {
    const double norm = one.step(gradient(one, step)).gradient_norm;
    EXPECT_EQ(other.step(gradient(other, step)).gradient_norm, norm);
    EXPECT_EQ(other.weights(), one.weights());
    EXPECT_EQ(shard_of(other, other.optimizer.first_moment()),
              shard_of(one, one.optimizer.first_moment()));
    EXPECT_EQ(shard_of(other, other.optimizer.second_moment()),
              shard_of(one, one.optimizer.second_moment()));
  }
}

TEST_P(ShardedAdamWTest, MicroBatchesAddUp) {
  Sharded at_once = make({});
  Sharded in_parts = make({});
  for (int step = 1; step <= 3; ++step) {
    std::vector<std::vector<float>> parts;
    std::vector<float> sum = at_once.zeros();
    for (int part = 0; part < 3; ++part) {
      parts.push_back(gradient_of(at_once.model.table, comm_.rank(), 10 * step + part, 0.3));
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += parts.back()[i];
      }
    }
    static_cast<void>(at_once.step(sum, 1e-3));
    static_cast<void>(in_parts.step(parts, 1e-3));
  }
  if (GetParam() < 2) {
    EXPECT_EQ(in_parts.weights(), at_once.weights());
  } else {  // ranks are added first, then micro-batches
    EXPECT_LT(relative_l2(in_parts.weights(), at_once.weights()), 1e-5);
  }
}

TEST_P(ShardedAdamWTest, MovesAndTakesTheBytesOfTheFormulas) {
  OptimizerConfig config;
  config.guard = {.check_replicas_every = 0, .check_state_every = 0};
  Sharded sharded = make(config);
  const Sharding sharding{.stage = GetParam()};
  const TrainingMemory memory = training_memory(sharded.model.table, sharding);
  // Buffers of a step's sums exist from the start, so that no rank runs out of memory later.
  EXPECT_GT(sharded.account.live_bytes(MemoryUse::other), 0U);
  EXPECT_LT(sharded.account.peak_bytes(MemoryUse::other), 1000U);
  EXPECT_EQ(static_cast<double>(sharded.account.peak_bytes() -
                                sharded.account.peak_bytes(MemoryUse::staging) -
                                sharded.account.peak_bytes(MemoryUse::other)),
            memory.total());
  EXPECT_EQ(static_cast<double>(sharded.account.live_bytes(MemoryUse::gradients)),
            memory.gradients);
  EXPECT_EQ(static_cast<double>(sharded.account.live_bytes(MemoryUse::optimizer)),
            memory.optimizer);
  EXPECT_EQ(static_cast<double>(sharded.account.live_bytes(MemoryUse::communication)),
            memory.communication);

  for (const std::int64_t micro_batches : {1, 3}) {
    const PayloadBytes before = sharded.collectives->bytes();
    static_cast<void>(sharded.step(
        std::vector(static_cast<std::size_t>(micro_batches), gradient(sharded, 1)), 1e-3));
    const PayloadBytes after = sharded.collectives->bytes();
    const StepPayload formula = step_payload(sharded.model.table, sharding, micro_batches);
    EXPECT_EQ(static_cast<double>(after.all_reduce - before.all_reduce), formula.all_reduce);
    EXPECT_EQ(static_cast<double>(after.reduce_scatter - before.reduce_scatter),
              formula.reduce_scatter);
    EXPECT_EQ(static_cast<double>(after.all_gather - before.all_gather), formula.all_gather);
    EXPECT_EQ(after.broadcast, before.broadcast);
  }
}

TEST_P(ShardedAdamWTest, GradientsBeginAtZeroAndPaddingStaysZero) {
  Sharded sharded = make({});
  static_cast<void>(sharded.step(gradient(sharded, 1)));
  EXPECT_EQ(sharded.step(sharded.zeros()).gradient_norm, 0.0);
  static_cast<void>(sharded.weights());
  for (const ParameterGroup& group : sharded.model.table.groups()) {
    for (std::int64_t i = group.offset + group.size; i < group.offset + group.padded_size; ++i) {
      ASSERT_EQ(sharded.model.weights[static_cast<std::size_t>(i)], 0.0F);
    }
  }
}

TEST_P(ShardedAdamWTest, NaNOnOneRankStopsAllBeforeAnythingChanges) {
  const Rank bad = ranks_ - 1;
  Sharded sharded = make({});
  static_cast<void>(sharded.step(gradient(sharded, 1)));
  const std::vector<float> weights = sharded.weights();
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> gradients = sharded.zeros();
    if (comm_.rank() == bad) {
      const ParameterEntry& entry = sharded.model.table.entry("model.layers.1.mlp.up_proj.weight");
      gradients[static_cast<std::size_t>(entry.offset) + 5] = poison;
    }
    EXPECT_THAT(failure_of(sharded, gradients),
                HasSubstr("model.layers.1.mlp.up_proj.weight is not finite"));
    EXPECT_EQ(sharded.weights(), weights);
    EXPECT_EQ(sharded.optimizer.updates(), 1);
    EXPECT_FALSE(sharded.optimizer.state_in_question()) << "a copy of it may be committed";
    sharded.store.clear_gradients();
  }
}

TEST_P(ShardedAdamWTest, AnOverflowingSumStopsAllBeforeAnythingChanges) {
  if (ranks_ == 1) {
    return;  // one finite gradient has a finite norm in double
  }
  Sharded sharded = make({});
  const std::vector<float> weights = sharded.weights();
  std::vector<float> gradients = sharded.zeros();
  gradients[0] = 3e38F;
  try {
    static_cast<void>(sharded.step(gradients));
    FAIL() << "nothing was thrown";
  } catch (const NumericalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("overflowed"));
    EXPECT_TRUE(error.on_all_ranks()) << "each rank would report it";
  }
  EXPECT_EQ(sharded.weights(), weights);
}

/// Checks every step, the default on a CPU.
OptimizerConfig checked() {
  OptimizerConfig config;
  config.guard = {.check_replicas_every = 1, .check_state_every = 1};
  return config;
}

TEST_P(ShardedAdamWTest, AFlippedBitInOwnedStateIsFoundByTheNextUpdate) {
  const Rank bad = ranks_ - 1;
  for (const std::string what : {"weights", "first moment", "second moment"}) {
    Sharded sharded = make(checked());
    static_cast<void>(sharded.step(gradient(sharded, 1)));
    sharded.store.wait_for_weights();
    if (comm_.rank() == bad) {
      const TensorView target = what == "weights" ? sharded.store.master(sharded.store.owned()[1])
                                : what == "first moment" ? sharded.optimizer.first_moment()
                                                         : sharded.optimizer.second_moment();
      flip_bit(*kernels_, target, 3 * sizeof(float));
    }
    const std::string message = failure_of(sharded, gradient(sharded, 2));
    EXPECT_TRUE(sharded.optimizer.state_in_question()) << "no copy of it may be committed";
    // At stage 0 other ranks hold a replica of the first shard's weights.
    EXPECT_THAT(message, HasSubstr(what == "weights" && GetParam() == 0 && bad != 0
                                       ? "its replica of the weights owned by rank 0 differs"
                                       : what + " of shard"));
  }
}

TEST_P(ShardedAdamWTest, AFlippedBitInOwnedBfloat16WeightsIsFoundOnTheirOwner) {
  if (GetParam() == 3) {
    return;  // the store lends gathered weights, not its own
  }
  const Rank bad = ranks_ - 1;
  Sharded sharded = make(checked(), DType::bfloat16);
  static_cast<void>(sharded.step(gradient(sharded, 1)));
  sharded.store.wait_for_weights();
  if (comm_.rank() == bad) {
    const TensorView whole = writable(sharded.store.acquire(1));
    flip_bit(*kernels_, block_of(whole, bad, ranks_), 3 * sizeof(BFloat16));
  }
  EXPECT_THAT(failure_of(sharded, gradient(sharded, 2)),
              HasSubstr("compute weights of shard " + std::to_string(bad)));
}

TEST_P(ShardedAdamWTest, AFlippedBitInTheFrozenTeacherIsFound) {
  if (GetParam() == 3) {
    return;  // the store lends gathered weights, not its own
  }
  const Rank bad = ranks_ - 1;
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const Rank owner : std::set<Rank>{0, bad}) {
      Sharded sharded = make(checked(), compute, true);
      static_cast<void>(sharded.step(gradient(sharded, 1)));
      if (comm_.rank() == bad) {
        const TensorView whole = writable(sharded.store.teacher().acquire(1));
        flip_bit(*kernels_, block_of(whole, owner, ranks_), 4 * sizeof(BFloat16));
      }
      EXPECT_THAT(failure_of(sharded, gradient(sharded, 2)),
                  HasSubstr(owner == bad ? "frozen teacher of shard " + std::to_string(bad)
                                         : "its replica of the weights owned by rank 0 differs"));
    }
  }
}

TEST_P(ShardedAdamWTest, StateIsCheckedWhereThatIsDue) {
  OptimizerConfig config;
  config.guard.check_replicas_every = 0;
  for (const std::int64_t every : {0, 2}) {
    config.guard.check_state_every = every;
    for (const int flipped_after : {1, 2}) {
      Sharded sharded = make(config);
      for (int step = 1; step <= flipped_after; ++step) {
        static_cast<void>(sharded.step(gradient(sharded, step)));
      }
      flip_bit(*kernels_, sharded.optimizer.first_moment(), 3 * sizeof(float));
      const auto next = [&] { static_cast<void>(sharded.step(gradient(sharded, 9))); };
      if (every == 2 && flipped_after == 2) {
        EXPECT_THAT(message_of(ExitCode::numerical, next), HasSubstr("first moment of shard"));
      } else {
        EXPECT_NO_THROW(next());
      }
    }
  }
}

TEST_P(ShardedAdamWTest, UnlessToldOtherwiseADeviceChecksStateSeldom) {
  OptimizerConfig config;
  config.guard.check_replicas_every = 0;
  Sharded sharded = make(config);
  static_cast<void>(sharded.step(gradient(sharded, 1)));
  flip_bit(*kernels_, sharded.optimizer.first_moment(), 3 * sizeof(float));
  const auto next = [&] { static_cast<void>(sharded.step(gradient(sharded, 2))); };
  if (kernels_->device() == Device::cpu) {
    EXPECT_THAT(message_of(ExitCode::numerical, next), HasSubstr("first moment of shard"));
  } else {
    EXPECT_NO_THROW(next());
  }
}

/// Flips a bit of rank `bad`'s replica of rank 0's weights.
void flip_replica(Sharded& sharded, Rank bad) {
  if (sharded.collectives->rank() == bad) {
    sharded.store.wait_for_weights();
    flip_bit(sharded.kernels, writable(sharded.store.acquire(0)), 7 * sizeof(float));
  }
}

TEST_P(ShardedAdamWTest, ABitFlippedInAReplicaIsFoundWhereThatIsDue) {
  if (ranks_ == 1 || GetParam() == 3) {
    return;  // no replicas, or none between passes
  }
  const Rank bad = ranks_ - 1;
  OptimizerConfig config;
  config.guard.check_state_every = 0;  // at stage 0 a replica is state, too
  for (const std::int64_t every : {1, 2}) {
    config.guard.check_replicas_every = every;
    Sharded sharded = make(config);
    static_cast<void>(sharded.step(gradient(sharded, 1)));
    static_cast<void>(sharded.step(gradient(sharded, 2)));
    flip_replica(sharded, bad);
    EXPECT_THAT(failure_of(sharded, gradient(sharded, 3)),
                HasSubstr("its replica of the weights owned by rank 0 differs"));
  }
}

TEST_P(ShardedAdamWTest, ComparingReplicasSendsEightBytesARank) {
  OptimizerConfig config;
  config.guard.check_replicas_every = 0;
  Sharded unchecked = make(config);
  config.guard.check_replicas_every = 1;
  Sharded checked = make(config);
  const auto gathered = [&](Sharded& sharded) {
    sharded.store.begin_step({.replica_hashes = sharded.optimizer.replica_hashes()});
    pass(*kernels_, sharded.store, sharded.model.table, gradient(sharded, 1));
    sharded.store.finish_reductions(1);
    const std::uint64_t before = collective_bytes().all_gather;
    static_cast<void>(sharded.optimizer.step(1e-2));
    sharded.store.wait_for_weights();
    return collective_bytes().all_gather - before;
  };
  const std::uint64_t without = gathered(unchecked);
  EXPECT_EQ(gathered(checked), without + (ranks_ == 1 ? 0 : sizeof(std::int64_t)));
}

TEST_P(ShardedAdamWTest, LoadReachesAllRanksAndRefusesWrongSizes) {
  Sharded sharded = make({});
  const auto size = static_cast<std::size_t>(shard_vector_size(sharded.model.table));
  const std::vector<float> shard(size, static_cast<float>(comm_.rank() + 1));
  const std::vector<float> short_shard(size - 1);
  const TensorView moments[] = {sharded.optimizer.first_moment(),
                                sharded.optimizer.second_moment()};
  EXPECT_THROW(sharded.optimizer.load_moment(short_shard, moments[0]), InternalError);
  EXPECT_THROW(sharded.optimizer.load_weights(short_shard, 3), InternalError);
  for (const TensorView& moment : moments) {
    sharded.optimizer.load_moment(shard, moment);
  }
  sharded.optimizer.load_weights(shard, 3);
  EXPECT_EQ(sharded.optimizer.updates(), 3);
  static_cast<void>(sharded.weights());
  for (int owner = 0; owner < ranks_; ++owner) {
    EXPECT_EQ(
        sharded.model
            .weights[static_cast<std::size_t>(sharded.model.table.shard_range(2, owner).begin)],
        static_cast<float>(owner + 1));
  }
  // The next checkpoint holds the loaded state.
  EXPECT_TRUE(std::ranges::equal(shard_of(sharded, sharded.optimizer.first_moment()), shard));
}

TEST_P(ShardedAdamWTest, GroupsOutOfTurnAreRefused) {
  Sharded sharded = make({});
  // Before a step, other ranks' waits are unknown.
  EXPECT_THROW(sharded.store.abandon(), InternalError);
  sharded.store.begin_step({});
  EXPECT_THROW(sharded.store.ready(1), InternalError);
  if (GetParam() == 3) {
    EXPECT_THROW(static_cast<void>(sharded.store.acquire(1)), InternalError);
  }
  sharded.store.abandon();
}

TEST_P(ShardedAdamWTest, ATableForAnotherNumberOfRanksIsRefused) {
  MemoryAccount account("other");
  Model other(ranks_ + 1);
  const auto collectives = make_collectives(comm_, kernels_->device(), kernels_->device(), account);
  EXPECT_THROW(
      ParameterStore(other.table, {.stage = GetParam()}, *kernels_, *collectives, account, {}),
      InternalError);
}

}  // namespace
}  // namespace jforge
