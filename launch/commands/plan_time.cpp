#include "launch/commands/plan_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

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

double best_read_speed(KernelSet& kernels) {
  // 64 MiB (1 GiB on a device) exceed most caches.
  const std::int64_t size = kernels.device() == Device::cpu ? 4096 : 16384;
  constexpr int kRepeats = 5;
  MemoryAccount account("speed measurement");
  const auto row_bytes = static_cast<std::size_t>(size) * sizeof(float);
  const Buffer x(row_bytes, account, kernels.device());
  const Buffer weight(row_bytes * static_cast<std::size_t>(size), account, kernels.device());
  const Buffer y(row_bytes, account, kernels.device());
  float first = 0;
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernels.linear(x.floats({1, size}), weight.floats({size, size}), {}, y.floats({1, size}));
    // Waits for the device.
    copy_tensor(y.floats({1}), TensorView(&first, {1}));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(weight.bytes()) / seconds.count());
  }
  return best;
}

}  // namespace

double matrix_weights(const TransformerConfig& model) {
  return static_cast<double>(model.num_layers * LayerPlan(model).elements(2) +
                             model.vocabulary_size * model.hidden_size);
}

MachineSpeed sheet_speed(const KnownDevice& device, DType decoding, DType training, int ranks) {
  return {.flops = device.flops(decoding) * ranks,
          .training_flops = device.flops(training) * ranks,
          .bytes_per_second = device.bytes_per_second * ranks};
}

MachineSpeed measure_speed(KernelSet& kernels, const Communicator& comm, DType training,
                           const std::filesystem::path& peaks) {
  constexpr bool kKeep = false;  // a plan leaves nothing behind
  MachineSpeed speed;
  speed.flops = PeakFlops(kernels, comm, DType::float32, peaks, kKeep).total();
  speed.training_flops = training == DType::float32
                             ? speed.flops
                             : PeakFlops(kernels, comm, training, peaks, kKeep).total();
  comm.barrier();
  std::array<double, 1> bytes = {best_read_speed(kernels)};
  all_reduce_sum<double>(comm, bytes);
  speed.bytes_per_second = bytes[0];
  return speed;
}

RoundSeconds estimate_round(const TransformerConfig& model, const RoundWork& work,
                            const MachineSpeed& speed, int ranks) {
  const double weights = matrix_weights(model);
  const auto answer = static_cast<double>(work.answer_tokens);
  const double useful = speed.flops * kPlannedEfficiency;
  const double training_useful = speed.training_flops * kPlannedEfficiency;
  RoundSeconds seconds;

  // Speeds are of all ranks: one pass of each reads the weights `ranks` times.
  const double sequences = static_cast<double>(work.batch_prompts) * ranks;
  const double rows = sequences * work.block_size;
  const double context = work.prompt_tokens + answer / 2;
  const double reading = work.weight_bytes * weights * ranks / speed.bytes_per_second;
  const double computing = rows * (2 * weights + attention_flops(model, context)) / useful;
  const double prefill = static_cast<double>(work.prompts_generated) * work.prompt_tokens *
                         (2 * weights + attention_flops(model, work.prompt_tokens / 2)) / useful;
  const double passes = answer * static_cast<double>(work.prompts_generated) / sequences;
  seconds.generate = prefill + passes * std::max(reading, computing);

  const double sample_rows = work.prompt_tokens + 2 * answer;
  const double passes_per_row = work.recompute ? 4 : 3;  // forward, backward = 2 forwards
  seconds.train = static_cast<double>(work.samples_trained) * sample_rows * passes_per_row *
                  (2 * weights + attention_flops(model, context)) / training_useful;
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
