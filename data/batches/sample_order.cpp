#include "data/batches/sample_order.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge {

void SampleOrderOptions::validate() const {
  if (num_samples < 1) {
    throw ConfigError(
        fmt::format("there are {} samples to train on: at least 1 is needed", num_samples));
  }
  if (batch_samples < 1) {
    throw ConfigError(
        fmt::format("train.batch_samples is {}: give a number of at least 1", batch_samples));
  }
}

std::vector<std::int64_t> epoch_permutation(std::uint64_t seed, std::uint64_t round,
                                            std::int64_t epoch, std::int64_t num_samples) {
  expect(num_samples >= 0 && epoch >= 0, "negative epoch or number of samples");
  std::vector<std::int64_t> order(static_cast<std::size_t>(num_samples));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  RandomStream stream(seed, RandomPurpose::sample_order, round, static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[stream.below(i)]);
  }
  return order;
}

std::int64_t steps_for_epochs(const SampleOrderOptions& options, double epochs) {
  options.validate();
  // Without the tolerance, rounding would turn 100 · 0.29 into 28.
  const double samples = std::floor(static_cast<double>(options.num_samples) * epochs + 1e-9);
  const auto steps = static_cast<std::int64_t>(samples) / options.batch_samples;
  if (steps < 1) {
    throw ConfigError(fmt::format(
        "{} epochs of {} samples give no full batch of {}: lower train.batch_samples, raise the "
        "epochs or import more prompts",
        epochs, options.num_samples, options.batch_samples));
  }
  return steps;
}

SampleOrder::SampleOrder(const SampleOrderOptions& options) : options_(options) {
  options_.validate();
}

std::int64_t SampleOrder::at(std::int64_t index) const {
  expect(index >= 0, "a negative place in the order of samples");
  const std::int64_t epoch = index / options_.num_samples;
  Epoch& cached = cache_[static_cast<std::size_t>(epoch) % cache_.size()];
  if (epoch != cached.epoch) {
    cached = {epoch, epoch_permutation(options_.seed, options_.round, epoch, options_.num_samples)};
  }
  return cached.permutation[static_cast<std::size_t>(index % options_.num_samples)];
}

std::vector<std::int64_t> consumed_samples(const SampleOrderOptions& options, std::int64_t steps) {
  const SampleOrder order(options);
  std::vector<bool> seen(static_cast<std::size_t>(options.num_samples), false);
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < steps * options.batch_samples && result.size() < seen.size(); ++i) {
    const std::int64_t sample = order.at(i);
    if (!seen[static_cast<std::size_t>(sample)]) {
      seen[static_cast<std::size_t>(sample)] = true;
      result.push_back(sample);
    }
  }
  return result;
}

}  // namespace jforge
