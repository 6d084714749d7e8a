// Only rank 0 reads full weights, which reach every rank; its failure fails all.

#include "workers/model_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoints/hf_model.h"
#include "checkpoints/safetensors.h"
#include "runtime/comm/collectives.h"
#include "runtime/error.h"
#include "tests/distributed/checkpoints/shared_directory.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi_test.h"
#include "tests/unit/checkpoints/checkpoint_fixture.h"

namespace jforge {
namespace {

using namespace jforge::test;
using ::testing::HasSubstr;

class ModelStateTest : public ::testing::Test {
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
  /// Returns a path that only rank 0 finds.
  std::filesystem::path for_rank_0(const std::filesystem::path& path) const {
    return comm_.rank() == 0 ? path : path / "absent";
  }
  Checkpoint checkpoint() const {
    return open_checkpoint(comm_, root_.path() / checkpoint_directory_name(1, 5));
  }
  void expect_weights(const ModelState& model) const {
    const SimulatedState expected(comm_.size(), 4);
    const auto found = model.weights().span<float>();
    EXPECT_EQ(std::vector<float>(found.begin(), found.end()), expected.weights);
  }
  /// Returns the error of `load`, equal on all ranks, of type input_data (exit code 3).
  template <class Load>
  std::string everybodys_error(const Load& load) const {
    const std::string said = message_of<DataError>(load);
    EXPECT_EQ(broadcast_text(comm_, said, 0), said);
    EXPECT_THAT(said, HasSubstr("rank 0 ("));
    return said;
  }

  const Communicator& comm_ = test_world();
  SharedDirectory root_{comm_, "jforge-model-state"};
  MemoryAccount account_{"model state test"};
  SimulatedState state_{1, 4};
  ModelState model_{tiny_config(), comm_.size(), account_};
};

TEST_F(ModelStateTest, OnlyRank0ReadsAModelDirectory) {
  model_.load_hf(comm_, for_rank_0(root_.path()));
  expect_weights(model_);
}

TEST_F(ModelStateTest, OnlyRank0ReadsACheckpoint) {
  Checkpoint found = checkpoint();
  found.directory = for_rank_0(found.directory);
  model_.load_checkpoint(comm_, found);
  expect_weights(model_);
}

TEST_F(ModelStateTest, OneProcessLoadsAlone) {
  ModelState alone(tiny_config(), comm_.size(), account_);
  alone.load_hf(root_.path());
  expect_weights(alone);
  alone.initialise(3);
  alone.load_checkpoint(checkpoint());
  expect_weights(alone);
}

TEST_F(ModelStateTest, ADamagedModelIsEverybodysError) {
  comm_.barrier();
  if (comm_.rank() == 0) {
    std::filesystem::resize_file(weight_file(), std::filesystem::file_size(weight_file()) - 100);
  }
  comm_.barrier();
  EXPECT_THAT(everybodys_error([&] { model_.load_hf(comm_, root_.path()); }),
              HasSubstr("model.safetensors"));
}

TEST_F(ModelStateTest, WhatFailsInTheMiddleLeavesNobodyBehind) {
  // A verified shard is lost; the first group needs it.
  const Checkpoint found = checkpoint();
  comm_.barrier();
  if (comm_.rank() == 0) {
    std::filesystem::resize_file(found.directory / shard_file_name(2, 3), 4096);
  }
  comm_.barrier();
  EXPECT_THAT(everybodys_error([&] { model_.load_checkpoint(comm_, found); }),
              HasSubstr("shard-00002-of-00003.h5"));
  // The ranks are still in step.
  model_.load_hf(comm_, root_.path());
  expect_weights(model_);
}

}  // namespace
}  // namespace jforge
