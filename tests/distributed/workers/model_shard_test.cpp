// Every rank reads its own part; the failure of one fails all.

#include "workers/model_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "checkpoints/hf_model.h"
#include "checkpoints/safetensors.h"
#include "model/transformer/weight_init.h"
#include "runtime/comm/collectives.h"
#include "runtime/error.h"
#include "tests/distributed/checkpoints/shared_directory.h"
#include "tests/distributed/workers/zero_fixture.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi_test.h"
#include "tests/support/shard_of.h"
#include "tests/support/write_text.h"
#include "tests/unit/checkpoints/checkpoint_fixture.h"

namespace jforge {
namespace {

using namespace jforge::test;
using ::testing::HasSubstr;

class ModelShardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (comm_.rank() == 0) {
      std::vector<SafetensorsTensor> tensors;
      for (const ParameterEntry& entry : state_.table.entries()) {
        tensors.push_back({entry.name, checkpoint_tensors(state_.table)[tensors.size()].shape,
                           std::span(state_.weights)
                               .subspan(static_cast<std::size_t>(entry.offset),
                                        static_cast<std::size_t>(entry.shape.elements())),
                           DType::float32});
      }
      write_safetensors(weight_file(), tensors);
      simulate_checkpoint(root_.path(), 1, 5, 3, 4);
    }
    comm_.barrier();
  }

  std::filesystem::path weight_file() const { return root_.path() / "model.safetensors"; }
  Checkpoint checkpoint() const {
    return open_checkpoint(comm_, root_.path() / checkpoint_directory_name(1, 5));
  }
  void expect_weights(const ModelShard& model) const {
    const SimulatedState expected(comm_.size(), 4);
    const TensorView flat(const_cast<float*>(expected.weights.data()),
                          {expected.table.flat_size()});
    const auto found = model.weights();
    EXPECT_EQ(std::vector<float>(found.begin(), found.end()),
              shard_of(flat, model.table(), comm_.rank()));
    EXPECT_EQ(gathered(model), consolidated(expected.table, expected.weights));
  }
  /// Returns all tensors in table order.
  static std::vector<float> gathered(const ModelShard& model) {
    std::vector<float> values;
    model.gather([&](const ParameterReader& read) {
      for (const ParameterEntry& entry : model.table().entries()) {
        const auto part = read(entry).span<float>();
        values.insert(values.end(), part.begin(), part.end());
      }
    });
    return values;
  }
  /// Returns the error of `load`, equal on all ranks, of type input_data (exit code 3).
  template <class Load>
  std::string everybodys_error(const Load& load) const {
    const std::string said = message_of<DataError>(load);
    EXPECT_EQ(broadcast_text(comm_, said, 0), said);
    return said;
  }

  const Communicator& comm_ = test_world();
  SharedDirectory root_{comm_, "jforge-model-shard"};
  MemoryAccount account_{"model shard test"};
  SimulatedState state_{1, 4};
  ModelShard model_{tiny_config(), comm_, account_};
};

TEST_F(ModelShardTest, EveryRankHoldsItsShardAlone) {
  const std::size_t shard = storage_bytes(shard_vector_size(model_.table()), DType::float32);
  EXPECT_EQ(account_.live_bytes(), 0U);
  model_.load_hf(root_.path());
  EXPECT_EQ(account_.peak_bytes(), shard);
  model_.load_checkpoint(checkpoint());
  EXPECT_EQ(account_.peak_bytes(), shard);
  expect_weights(model_);
  EXPECT_EQ(account_.live_bytes(), shard);
  EXPECT_EQ(static_cast<double>(account_.peak_bytes()),
            static_cast<double>(shard) + gathered_bytes(model_.table()));
  model_.drop();
  EXPECT_EQ(account_.live_bytes(), 0U);
  EXPECT_TRUE(model_.weights().empty());
  model_.load_hf(root_.path());
  expect_weights(model_);
}

TEST_F(ModelShardTest, SharedHashingFindsTheHashOfOneProcess) {
  if (comm_.rank() == 0) {
    write_text(root_.path() / "config.json", "{}");
    write_text(root_.path() / "generation_config.json", "{\"eos_token_id\": 2}");
  }
  comm_.barrier();
  EXPECT_EQ(hf_model_hash(comm_, root_.path()), hf_model_hash(root_.path()));
}

TEST_F(ModelShardTest, NewWeightsDoNotDependOnTheRanks) {
  const TransformerConfig config = tiny_config();
  model_.initialise(3);
  Model whole(1);
  initialise_weights(whole.table, whole.view(), 3, config.num_layers);
  EXPECT_EQ(gathered(model_), consolidated(whole.table, whole.weights));
}

TEST_F(ModelShardTest, TakesAnothersBlocks) {
  model_.load_hf(root_.path());
  ModelShard other(tiny_config(), comm_, account_);
  const std::vector<ShardGroup> groups = shard_groups(other.table(), comm_.rank());
  other.take([&](std::int32_t group, const TensorView& target) {
    const ShardGroup& from = groups[static_cast<std::size_t>(group)];
    std::ranges::copy(model_.weights().subspan(static_cast<std::size_t>(from.shard_begin),
                                               static_cast<std::size_t>(from.size)),
                      target.data<float>());
  });
  expect_weights(other);
}

TEST_F(ModelShardTest, ARankThatFailsBetweenTwoGathersFailsAll) {
  model_.load_hf(root_.path());
  const Rank bad = comm_.size() - 1;
  const std::size_t entries = model_.table().entries().size();
  for (const std::size_t at : {std::size_t{0}, entries / 2, entries}) {
    const std::string said = message_of<DataError>([&] {
      model_.gather([&](const ParameterReader& read) {
        for (std::size_t entry = 0; entry <= entries; ++entry) {
          if (entry == at && comm_.rank() == bad) {
            throw DataError("fails here");
          }
          if (entry < entries) {
            static_cast<void>(read(model_.table().entries()[entry]));
          }
        }
      });
    });
    EXPECT_THAT(said, HasSubstr("rank " + std::to_string(bad) + " ("));
    EXPECT_THAT(said, HasSubstr("fails here"));
    // The ranks are still in step.
    expect_weights(model_);
  }
}

TEST_F(ModelShardTest, ADamagedModelIsEverybodysError) {
  comm_.barrier();
  if (comm_.rank() == 0) {
    std::filesystem::resize_file(weight_file(), std::filesystem::file_size(weight_file()) - 100);
  }
  comm_.barrier();
  EXPECT_THAT(everybodys_error([&] { model_.load_hf(root_.path()); }),
              HasSubstr("model.safetensors"));
}

TEST_F(ModelShardTest, WhatFailsInTheMiddleLeavesNobodyBehind) {
  // A verified shard is lost; not every rank needs it.
  const Checkpoint found = checkpoint();
  comm_.barrier();
  if (comm_.rank() == 0) {
    std::filesystem::resize_file(found.directory / shard_file_name(2, 3), 4096);
  }
  comm_.barrier();
  EXPECT_THAT(everybodys_error([&] { model_.load_checkpoint(found); }),
              HasSubstr("shard-00002-of-00003.h5"));
  // The ranks are still in step.
  model_.load_hf(root_.path());
  expect_weights(model_);
}

}  // namespace
}  // namespace jforge
