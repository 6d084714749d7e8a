#include "launch/commands/plan_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "model/transformer/layer_plan.h"
#include "runtime/comm/collectives.h"
#include "runtime/tensor/buffer.h"
#include "workers/train/peak_flops.h"

namespace jforge {

namespace {

// Returns the FLOPs of attention's forward in all layers for a row that sees `context` positions.
double attention_flops(const TransformerConfig& model, double context) {
  return 4 * static_cast<double>(model.num_layers * LayerPlan(model).query) * context;
}

/// Returns the seconds of the fastest of some products with `rows` rows of a square of `size`.
/// `packed`: decoding's product, else `weight`'s own.
double best_product(KernelSet& kernels, MemoryAccount& account, std::int64_t rows,
                    const TensorView& weight, const PackedWeight* packed) {
  constexpr int kRepeats = 5;
  const std::int64_t size = weight.shape()[0];
  const auto bytes = static_cast<std::size_t>(rows * size) * sizeof(float);
  const Buffer x(bytes, account, kernels.device());
  const Buffer y(bytes, account, kernels.device());
  float first = 0;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (packed != nullptr) {
      kernels.invariant_linear(x.floats({rows, size}), *packed, {}, y.floats({rows, size}));
    } else {
      kernels.linear(x.floats({rows, size}), weight, {}, y.floats({rows, size}));
    }
    // Waits for the device.
    copy_tensor(y.floats({1}), TensorView(&first, {1}));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  return best;
}

}  // namespace

double matrix_weights(const TransformerConfig& model) {
  return static_cast<double>(model.num_layers * LayerPlan(model).elements(2) +
                             model.vocabulary_size * model.hidden_size);
}

double drafter_forwards(const TransformerConfig& model, const std::optional<DrafterShape>& shape,
                        bool recompute) {
  const double again = recompute ? 1 : 0;
  const auto* const head = shape ? std::get_if<HeadShape>(&*shape) : nullptr;
  if (head == nullptr) {
    return shape ? 2 + again : 0;
  }
  const auto logits = static_cast<double>(model.vocabulary_size * model.hidden_size);
  const double layers = matrix_weights(head_config(model, *head)) - logits;
  return ((3 + again) * layers + 2 * logits) / matrix_weights(model);
}

MachineSpeed sheet_speed(const KnownDevice& device, WeightStorage decoding, DType training,
                         int ranks, int of_copy) {
  return {.decoding_flops = device.flops(activation_type(decoding, Device::cuda)),
          .training_flops = device.flops(training),
          .bytes_per_second = device.bytes_per_second,
          .link_bytes_per_second = device.link(of_copy),
          .across_bytes_per_second =
              ranks <= kDevicesPerNode ? device.link_bytes_per_second : kNodeLinkBytesPerSecond};
}

double sending_seconds(const StepPayload& payload, const MachineSpeed& speed) {
  if (speed.link_bytes_per_second == 0) {
    return 0;
  }
  return payload.within() / speed.link_bytes_per_second +
         (payload.across > 0 ? payload.across / speed.across_bytes_per_second : 0);
}

MachineSpeed measure_speed(KernelSet& kernels, const Communicator& comm, WeightStorage decoding,
                           DType training, const std::filesystem::path& peaks) {
  const auto peak = [&](DType type) {
    constexpr bool kKeep = false;  // a plan leaves nothing behind
    return PeakFlops(kernels, comm, type, peaks, kKeep).total() / comm.size();
  };
  const Device device = kernels.device();
  MachineSpeed speed;
  speed.training_flops = peak(training);
  MemoryAccount account("speed measurement");
  // 64 MiB (1 GiB on a device) exceed most caches.
  const std::int64_t size = device == Device::cpu ? 4096 : 16384;
  const Buffer weight(static_cast<std::size_t>(size * size) * sizeof(float), account, device);
  comm.barrier();
  std::array<double, 2> sums = {
      static_cast<double>(weight.bytes()) /
          best_product(kernels, account, 1, weight.floats({size, size}), nullptr),
      0};
  if (device == Device::cpu) {
    // Neither rounded weights nor int8 have a product in training.
    constexpr std::int64_t kRows = 128;
    constexpr std::int64_t kSize = 1024;
    const TensorView small = weight.floats({kSize, kSize});
    const auto packed = kernels.pack_weight(small, decoding, account);
    sums[1] =
        2.0 * kRows * kSize * kSize / best_product(kernels, account, kRows, small, packed.get());
  }
  all_reduce_sum<double>(comm, sums);
  speed.bytes_per_second = sums[0] / comm.size();
  speed.decoding_flops =
      device == Device::cpu ? sums[1] / comm.size() : peak(activation_type(decoding, device));
  return speed;
}

RoundSeconds estimate_round(const TransformerConfig& model, const RoundWork& work,
                            const MachineSpeed& speed) {
  const double weights = matrix_weights(model);
  const auto answer = static_cast<double>(work.answer_tokens);
  const double useful = speed.decoding_flops * kPlannedEfficiency;
  RoundSeconds seconds;

  const double context = work.prompt_tokens + answer / 2;
  const auto pass = [&](std::int64_t sequences) {
    const auto rows = static_cast<double>(sequences * work.block_size);
    const double computing = rows * (2 * weights + attention_flops(model, context)) / useful;
    return sequences == 0
               ? 0
               : std::max(work.weight_bytes * weights / speed.bytes_per_second, computing);
  };
  const std::int64_t batch = std::max<std::int64_t>(1, work.batch_prompts);
  const double prefill = static_cast<double>(work.prompts_generated) * work.prompt_tokens *
                         (2 * weights + attention_flops(model, work.prompt_tokens / 2)) / useful;
  const auto whole = work.prompts_generated / batch;
  seconds.generate = prefill + answer * (static_cast<double>(whole) * pass(batch) +
                                         pass(work.prompts_generated % batch));

  const double clean_rows = work.prompt_tokens + answer;
  const double forwards = work.drafter_forwards > 0
                              ? clean_rows + answer * work.drafter_forwards
                              : (clean_rows + answer) * (work.recompute ? 4 : 3);
  const double computing = static_cast<double>(work.step_samples) * forwards *
                           (2 * weights + attention_flops(model, context)) /
                           (speed.training_flops * kPlannedEfficiency);
  seconds.train = static_cast<double>(work.steps) *
                  std::max(computing, sending_seconds(work.step_payload, speed));
  return seconds;
}

std::string duration_text(double seconds) {
  if (seconds < 90) {
    return fmt::format("{:.0f} s", seconds);
  }
  if (seconds < 90 * 60) {
    return fmt::format("{:.0f} min", seconds / 60);
  }
  if (seconds < 48 * 3600) {
    return fmt::format("{:.1f} h", seconds / 3600);
  }
  return fmt::format("{:.1f} days", seconds / 86400);
}

}  // namespace jforge
