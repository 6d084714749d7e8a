#pragma once

/// A tiny random Qwen2, synthetic samples, and a plain optimizer as reference.

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/kernels/kernel_set.h"
#include "model/transformer/flat_parameters.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/training_transformer.h"
#include "model/transformer/weight_init.h"
#include "runtime/random.h"
#include "runtime/tensor/buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/tiny_config.h"
#include "workers/train/distillation_trainer.h"

namespace jforge::test {

inline constexpr std::uint64_t kSeed = 11;

/// Any token except the first three, one of which ends sequences.
inline TokenId token(RandomStream& random) {
  return static_cast<TokenId>(
      3 + random.below(static_cast<std::uint64_t>(tiny_config().vocabulary_size - 3)));
}

/// Random prompts and blocks; if `mixed`, every third one a plain causal sequence. The same on all
/// ranks.
class SyntheticSource : public SampleSource {
 public:
  explicit SyntheticSource(std::int64_t size, bool mixed = true) : size_(size), mixed_(mixed) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override {
    const TrainingSample sample = make(index);
    if (const auto* packed = std::get_if<PackedSample>(&sample)) {
      return packed->packed_length();
    }
    return static_cast<std::int64_t>(std::get<CausalSample>(sample).tokens.size());
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override {
    asked.push_back(index);
    return make(index);
  }
  std::vector<std::int64_t> asked;

 private:
  [[nodiscard]] TrainingSample make(std::int64_t index) const {
    RandomStream random(kSeed, RandomPurpose::test, 0, static_cast<std::uint64_t>(index));
    const auto draw = [&](std::uint64_t count) {
      std::vector<TokenId> ids(count);
      for (TokenId& id : ids) {
        id = token(random);
      }
      return ids;
    };
    if (mixed_ && index % 3 == 2) {
      return CausalSample{draw(6 + random.below(20)), 1};
    }
    PackedSample sample;
    sample.prompt_id = index;
    sample.block_size = 4;
    sample.window = 2;
    sample.prompt = draw(3 + random.below(8));
    sample.clean = draw(4 * (1 + random.below(4)));
    sample.noisy = sample.clean;
    for (std::size_t i = 0; i < sample.noisy.size(); i += 2) {
      sample.noisy[i] = token(random);
    }
    return sample;
  }
  std::int64_t size_;
  bool mixed_;
};

struct Model {
  explicit Model(int shards, const TransformerConfig& config = tiny_config())
      : Model(ParameterTable(config, shards), config.num_layers) {}
  Model(ParameterTable own, std::int64_t num_layers)
      : table(std::move(own)), weights(static_cast<std::size_t>(table.flat_size())) {
    initialise_weights(table, view(), kSeed, num_layers);
  }
  [[nodiscard]] TensorView view() { return TensorView(weights.data(), {table.flat_size()}); }
  ParameterTable table;
  std::vector<float> weights;
};

/// Concatenates the tensors without padding, to compare shard counts.
inline std::vector<float> consolidated(const ParameterTable& table, std::span<const float> flat) {
  std::vector<float> values;
  for (const ParameterEntry& entry : table.entries()) {
    values.insert(values.end(), flat.begin() + entry.offset,
                  flat.begin() + entry.offset + entry.shape.elements());
  }
  return values;
}

/// ‖a − b‖ / ‖b‖
inline double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return a.size() == b.size() ? std::sqrt(difference / norm) : 1.0;
}

/// AdamW in double, straight from the paper (Loshchilov & Hutter 2019).
class ReferenceOptimizer {
 public:
  ReferenceOptimizer(const ParameterTable& table, const OptimizerConfig& config)
      : table_(table),
        config_(config),
        first_(static_cast<std::size_t>(table.flat_size())),
        second_(first_.size()) {}

  /// Returns the gradient norm before clipping.
  double step(std::span<float> weights, std::span<const float> gradients, double rate) {
    double squares = 0;
    for (const float g : gradients) {
      squares += static_cast<double>(g) * static_cast<double>(g);
    }
    const double norm = std::sqrt(squares);
    const double clip =
        config_.clip_norm > 0 && norm > config_.clip_norm ? config_.clip_norm / norm : 1.0;
    const auto beta1 = static_cast<double>(config_.beta1);
    const auto beta2 = static_cast<double>(config_.beta2);
    ++steps_;
    for (const ParameterEntry& entry : table_.entries()) {
      for (std::int64_t e = entry.offset; e < entry.offset + entry.shape.elements(); ++e) {
        const auto i = static_cast<std::size_t>(e);
        const double g = clip * static_cast<double>(gradients[i]);
        first_[i] = beta1 * first_[i] + (1 - beta1) * g;
        second_[i] = beta2 * second_[i] + (1 - beta2) * g * g;
        const double m = first_[i] / (1 - std::pow(beta1, steps_));
        const double v = second_[i] / (1 - std::pow(beta2, steps_));
        const double decay = entry.decay ? static_cast<double>(config_.weight_decay) : 0.0;
        const auto w = static_cast<double>(weights[i]);
        weights[i] = static_cast<float>(
            w - rate * (m / (std::sqrt(v) + static_cast<double>(config_.epsilon)) + decay * w));
      }
    }
    return norm;
  }

 private:
  const ParameterTable& table_;
  OptimizerConfig config_;
  std::vector<double> first_;
  std::vector<double> second_;
  int steps_ = 0;
};

}  // namespace jforge::test
