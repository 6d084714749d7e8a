#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "data/batches/packed_sample.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/flat_parameters.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/weight_init.h"
#include "runtime/random.h"
#include "runtime/tensor/bfloat16.h"
#include "tests/support/tiny_config.h"

namespace jforge {

/// Weights ten times the usual, so that attention and loss are far from uniform.
struct TinyModel {
  explicit TinyModel(bool tied = false, ModelFamily family = ModelFamily::qwen2)
      : TinyModel(test::tiny_config(tied, family)) {}
  explicit TinyModel(const TransformerConfig& own)
      : config(own), table(config, 2), values(static_cast<std::size_t>(table.flat_size())) {
    initialise_weights(table, flat(), 11, config.num_layers);
    RandomStream stream(3, RandomPurpose::test);
    for (const ParameterEntry& entry : table.entries()) {
      for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
        float& value = values[static_cast<std::size_t>(entry.offset + i)];
        value = entry.shape.rank() == 2 ? 10.0F * value
                                        : value + 0.2F * static_cast<float>(stream.normal());
      }
    }
  }
  [[nodiscard]] TensorView flat() { return {values.data(), {table.flat_size()}}; }
  /// Adds to `gradients`, of the size of `values`.
  [[nodiscard]] FlatGradients sink(std::vector<float>& gradients,
                                   FlatGradients::OnReady on_ready = {}) {
    return {table, {gradients.data(), {table.flat_size()}}, *kernels, account, std::move(on_ready)};
  }

  TransformerConfig config;
  ParameterTable table;
  std::vector<float> values;
  std::unique_ptr<KernelSet> kernels = make_cpu_kernel_set();
  MemoryAccount account{"test"};
  FlatParameters parameters{table, flat(), *kernels, account};
};

/// A tiny model with an adapter whose B is not zero.
struct DraftedModel : TinyModel {
  explicit DraftedModel(ModelFamily family, const AdapterShape& adapter = {.rank = 3, .alpha = 6})
      : TinyModel(false, family),
        shape(adapter),
        adapter_table(config, shape, 2),
        additions(static_cast<std::size_t>(adapter_table.flat_size())) {
    initialise_weights(adapter_table, adapter_flat(), 13, config.num_layers);
    RandomStream stream(4, RandomPurpose::test);
    for (const ParameterEntry& entry : adapter_table.entries()) {
      for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
        additions[static_cast<std::size_t>(entry.offset + i)] +=
            0.1F * static_cast<float>(stream.normal());
      }
    }
  }
  [[nodiscard]] TensorView adapter_flat() { return {additions.data(), {std::ssize(additions)}}; }
  [[nodiscard]] DrafterSource source() const {
    return {shape, adapter_table, [this](const ParameterEntry& entry) {
              return ConstTensorView(additions.data() + entry.offset, entry.shape);
            }};
  }

  AdapterShape shape;
  ParameterTable adapter_table;
  std::vector<float> additions;
  FlatParameters lent{adapter_table, adapter_flat(), *kernels, account};
};

/// A tiny model with a head.
struct HeadedModel : TinyModel {
  explicit HeadedModel(bool tied, ModelFamily family = ModelFamily::qwen2,
                       HeadShape own = {.layers = 2, .features = {0, 1}, .mask_token = 36})
      : TinyModel(tied, family),
        shape(std::move(own)),
        head_config(jforge::head_config(config, shape)),
        head_table(config, shape, 2),
        weights(static_cast<std::size_t>(head_table.flat_size())) {
    initialise_weights(head_table, head_flat(), 17, shape.layers);
    RandomStream stream(5, RandomPurpose::test);
    for (const ParameterEntry& entry : head_table.entries()) {
      for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
        float& value = weights[static_cast<std::size_t>(entry.offset + i)];
        value = entry.shape.rank() == 2 ? 8.0F * value
                                        : value + 0.2F * static_cast<float>(stream.normal());
      }
    }
  }
  [[nodiscard]] TensorView head_flat() { return {weights.data(), {std::ssize(weights)}}; }
  [[nodiscard]] DrafterSource source() const {
    return {shape, head_table, [this](const ParameterEntry& entry) {
              return ConstTensorView(weights.data() + entry.offset, entry.shape);
            }};
  }

  HeadShape shape;
  TransformerConfig head_config;
  ParameterTable head_table;
  std::vector<float> weights;
  FlatParameters lent{head_table, head_flat(), *kernels, account};
};

struct RoundedModel {
  explicit RoundedModel(const TinyModel& model)
      : shorts(model.values.size()), floats(model.values.size()) {
    std::ranges::transform(model.values, shorts.begin(), to_bfloat16);
    std::ranges::transform(shorts, floats.begin(), to_float);
  }
  [[nodiscard]] ConstTensorView flat(DType compute) const {
    const Shape shape{std::ssize(floats)};
    return compute == DType::float32 ? ConstTensorView(floats.data(), shape)
                                     : ConstTensorView(shorts.data(), shape);
  }
  [[nodiscard]] FlatParameters parameters(TinyModel& model, DType compute) const {
    return {model.table, flat(compute), *model.kernels, model.account};
  }
  std::vector<BFloat16> shorts;
  std::vector<float> floats;
};

inline std::vector<TokenId> random_tokens(RandomStream& stream, std::int64_t count,
                                          std::int64_t vocabulary = 37) {
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(stream.below(static_cast<std::uint64_t>(vocabulary))));
  }
  return tokens;
}

/// Noisy blocks share a random prefix with the clean ones.
inline PackedSample random_sample(std::uint64_t seed, std::int64_t prompt, std::int32_t block_size,
                                  std::int64_t blocks, std::int32_t window) {
  RandomStream stream(seed, RandomPurpose::test, 1);
  PackedSample sample;
  sample.prompt_id = static_cast<PromptId>(seed);
  sample.block_size = block_size;
  sample.window = window;
  sample.prompt = random_tokens(stream, prompt);
  sample.clean = random_tokens(stream, block_size * blocks);
  sample.noisy = random_tokens(stream, block_size * blocks);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const auto same =
        static_cast<std::int64_t>(stream.below(static_cast<std::uint64_t>(block_size) + 1));
    std::copy_n(sample.clean.begin() + block * block_size, same,
                sample.noisy.begin() + block * block_size);
  }
  return sample;
}

}  // namespace jforge
