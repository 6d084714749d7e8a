/// Lanes that race inside a phase give other bits in another order.

#include <gtest/gtest.h>

#include "model/kernels/cuda/device_queue.h"
#include "model/transformer/flat_parameters.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/training_transformer.h"
#include "tests/gpu/device_tensor.h"
#include "tests/support/kernel_calls.h"
#include "tests/support/tested_kernel_set.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

using test::Floats;

Floats everything(LaneOrder order) {
  DeviceQueue::lane_order() = order;
  TinyModel model;
  const auto kernels = make_tested_kernel_set();
  Floats result(model.values.size(), 0.0F);
  const std::vector<PackedSample> samples{random_sample(5, 40, 8, 5, 2)};
  const PackedBatch batch = pack_samples(samples, {.mask = MaskKind::window}, 1.0F);
  TrainingTransformer transformer(model.config, model.table, *kernels, model.account, {});
  FlatParameters parameters(model.table, model.flat(), *kernels, model.account);
  FlatGradients sink(model.table, {result.data(), {model.table.flat_size()}}, *kernels,
                     model.account);
  transformer.forward(batch, parameters);
  test::loss_and_backward(*kernels, transformer, parameters, 1.0F, 1.0F, sink);
  InferenceTransformer inference(model.config, model.table, model.flat(), *kernels, model.account,
                                 {.num_slots = 1, .slot_capacity = 64, .max_rows = 0});
  std::vector<DecodeRow> rows;
  for (std::int32_t i = 0; i < 50; ++i) {
    rows.push_back({i % 37, {0, i}});
  }
  Floats logits(50 * 37);
  inference.logits(rows, {logits.data(), {50, 37}});
  std::vector<TokenId> tokens(50);
  inference.predict(rows, tokens);
  result.insert(result.end(), logits.begin(), logits.end());
  result.insert(result.end(), tokens.begin(), tokens.end());
  return result;
}

TEST(LaneOrder, ChangesNoBit) {
  const Floats ascending = everything(LaneOrder::ascending);
  EXPECT_TRUE(test::same_bits(ascending, everything(LaneOrder::descending)));
  EXPECT_TRUE(test::same_bits(ascending, everything(LaneOrder::interleaved)));
}

struct RacingBody {
  float* x;
  [[nodiscard]] static std::int64_t shared_bytes() { return 0; }
  template <class Group>
  void operator()(Group& group, std::int64_t /*block*/) const {
    group.each([&](std::int64_t lane) { x[lane] = x[(lane + 1) % group.lanes()] + 1.0F; });
  }
};

TEST(LaneOrder, ShowsARace) {
  MemoryAccount account("test");
  DeviceQueue queue(account);
  const auto run = [&](LaneOrder order) {
    DeviceQueue::lane_order() = order;
    Floats x(8, 0.0F);
    queue.launch(1, 8, RacingBody{x.data()}, "racing");
    return x;
  };
  EXPECT_NE(run(LaneOrder::ascending), run(LaneOrder::descending));
}

struct GreedyBody {
  [[nodiscard]] static std::int64_t shared_bytes() { return 16; }
  template <class Group>
  void operator()(Group& group, std::int64_t /*block*/) const {
    static_cast<void>(group.template shared<float>(5));
  }
};

TEST(LaneOrder, UndeclaredSharedMemoryIsFound) {
  MemoryAccount account("test");
  DeviceQueue queue(account);
  EXPECT_THROW(queue.launch(1, 8, GreedyBody{}, "greedy"), InternalError);
}

}  // namespace
}  // namespace jforge
