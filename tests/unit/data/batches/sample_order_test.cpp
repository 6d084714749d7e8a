#include "data/batches/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/error.h"

namespace jforge {
namespace {

SampleOrderOptions options_with(std::int64_t samples, std::int64_t batch) {
  return {.seed = 42, .round = 1, .num_samples = samples, .batch_samples = batch};
}

TEST(EpochPermutation, IsAPermutationAndDependsOnItsKey) {
  for (const std::int64_t size : {1, 2, 7, 1000}) {
    auto order = epoch_permutation(42, 1, 0, size);
    std::sort(order.begin(), order.end());
    std::vector<std::int64_t> expected(static_cast<std::size_t>(size));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected);
  }
  const auto base = epoch_permutation(42, 1, 0, 1000);
  EXPECT_EQ(base, epoch_permutation(42, 1, 0, 1000));
  EXPECT_NE(base, epoch_permutation(43, 1, 0, 1000));
  EXPECT_NE(base, epoch_permutation(42, 2, 0, 1000));
  EXPECT_NE(base, epoch_permutation(42, 1, 1, 1000));
}

TEST(EpochPermutation, IsAboutUniform) {
  // Place of sample 0 in 5,000 epochs: 1,000 expected in each of 5, standard deviation 28.
  std::vector<int> places(5, 0);
  for (std::int64_t epoch = 0; epoch < 5000; ++epoch) {
    const auto order = epoch_permutation(1, 0, epoch, 5);
    ++places[static_cast<std::size_t>(std::find(order.begin(), order.end(), 0) - order.begin())];
  }
  for (const int count : places) {
    EXPECT_NEAR(count, 1000, 150);
  }
}

std::vector<std::int64_t> stream_of(const SampleOrderOptions& options, std::int64_t length) {
  const SampleOrder order(options);
  std::vector<std::int64_t> stream;
  for (std::int64_t place = 0; place < length; ++place) {
    stream.push_back(order.at(place));
  }
  return stream;
}

TEST(SampleOrder, EveryEpochHoldsEverySampleOnce) {
  const auto stream = stream_of(options_with(10, 4), 20);
  EXPECT_EQ(std::set<std::int64_t>(stream.begin(), stream.begin() + 10).size(), 10u);
  EXPECT_EQ(std::set<std::int64_t>(stream.begin() + 10, stream.end()).size(), 10u);
}

TEST(SampleOrder, PlacesAreTheSameInWhateverOrderTheyAreAskedFor) {
  const auto stream = stream_of(options_with(10, 4), 40);
  const SampleOrder other(options_with(10, 4));
  for (const std::int64_t place : {9, 10, 8, 11, 29, 30, 9, 39, 0, 20, 10}) {
    EXPECT_EQ(other.at(place), stream[static_cast<std::size_t>(place)]) << place;
  }
  EXPECT_THROW(static_cast<void>(other.at(-1)), InternalError);
}

TEST(ConsumedSamples, AreWhatTheStepsUseInOrder) {
  const auto options = options_with(100, 8);
  EXPECT_EQ(consumed_samples(options, 5), stream_of(options, 40));
  EXPECT_EQ(consumed_samples(options, 0).size(), 0u);
  EXPECT_EQ(consumed_samples(options, 12).size(), 96u);
  EXPECT_EQ(consumed_samples(options, 13).size(), 100u);
  EXPECT_EQ(consumed_samples(options, 1000000).size(), 100u);
}

TEST(SampleOrder, StepsAndBounds) {
  EXPECT_EQ(steps_for_epochs(options_with(100, 8), 1), 12);
  EXPECT_EQ(steps_for_epochs(options_with(100, 8), 2), 25);
  EXPECT_EQ(steps_for_epochs(options_with(100, 8), 0.5), 6);
  EXPECT_EQ(steps_for_epochs(options_with(100, 1), 0.29), 29);
  EXPECT_THROW(static_cast<void>(steps_for_epochs(options_with(7, 8), 1)), ConfigError);
  EXPECT_THROW(SampleOrder(options_with(0, 8)), ConfigError);
  EXPECT_THROW(SampleOrder(options_with(8, 0)), ConfigError);
}

}  // namespace
}  // namespace jforge
