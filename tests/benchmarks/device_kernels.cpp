#include "tests/benchmarks/device_kernels.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "model/transformer/cache_pages.h"
#include "model/transformer/packed_layout.h"
#include "tests/benchmarks/device_rows.h"
#include "tests/support/kernel_calls.h"

namespace jforge {

namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

class Tensors {
 public:
  explicit Tensors(KernelSet& kernels) : kernels_(kernels) {}

  TensorView take(DType dtype, Shape shape, float scale = 1.0F) {
    const auto bytes = static_cast<std::size_t>(shape.elements()) * dtype_bytes(dtype);
    memory_.push_back(std::make_unique<Buffer>(bytes, account_, kernels_.device()));
    const TensorView view = memory_.back()->view(dtype, shape);
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(
        static_cast<std::size_t>(std::min<std::int64_t>(shape.elements(), 1 << 20)));
    std::ranges::generate(values, [&] { return normal(generator); });
    const auto count = static_cast<std::int64_t>(values.size());
    const Buffer piece(values.size() * sizeof(float), account_, kernels_.device());
    copy_tensor(ConstTensorView(values.data(), Shape{count}), piece.floats({count}));
    for (std::int64_t begin = 0; begin < shape.elements(); begin += count) {
      const std::int64_t end = std::min(begin + count, shape.elements());
      kernels_.convert(piece.floats({count}).rows(0, end - begin),
                       view.reshaped({shape.elements()}).rows(begin, end));
    }
    kernels_.queue().synchronize();
    return view;
  }

 private:
  KernelSet& kernels_;
  MemoryAccount account_{"benchmark"};
  std::vector<std::unique_ptr<Buffer>> memory_;
};

class DeviceKernels {
 public:
  DeviceKernels(KernelSet& kernels, const DeviceKernelOptions& options)
      : kernels_(kernels), options_(options), sheet_(device_sheet(kernels)) {}

  void product(std::int64_t m, std::int64_t n, std::int64_t k) {
    Tensors tensors(kernels_);
    const TensorView x = tensors.take(options_.dtype, {m, k});
    const TensorView weight = tensors.take(options_.dtype, {n, k});
    const TensorView y = tensors.take(options_.dtype, {m, n});
    const double seconds =
        seconds_of(kernels_, repetitions(), [&] { kernels_.linear(x, weight, {}, y); });
    print_rate(name(fmt::format("product {} x {} x {}", m, n, k)),
               2.0 * static_cast<double>(m * n * k) / seconds, peak(), kTera, "TFLOP/s");
  }

  /// Takes the samples of tests/benchmarks/flex_attention.py: a prompt, clean and noisy blocks,
  /// windows of 8 blocks.
  void attention(const AttentionHeads& heads, std::int64_t samples, std::int64_t prompt,
                 std::int64_t blocks) {
    constexpr std::int32_t kBlock = 32;
    std::vector<PackedSample> packed(static_cast<std::size_t>(samples));
    for (PackedSample& sample : packed) {
      const auto answer = static_cast<std::size_t>(blocks * kBlock);
      sample.block_size = kBlock;
      sample.window = 8;
      sample.prompt.assign(static_cast<std::size_t>(prompt), 1);
      sample.clean.assign(answer, 2);
      sample.noisy.assign(answer, 3);
    }
    const PackedBatch batch = pack_samples(packed, {.mask = MaskKind::window}, 1);
    const std::int64_t rows = batch.layout.num_rows;
    double visible = 0;
    for (const AttentionSegment& segment : batch.layout.segments) {
      const auto of = static_cast<double>(segment.row_end - segment.row_begin);
      visible += of * static_cast<double>(segment.prefix_end - segment.prefix_begin +
                                          segment.row_begin - segment.causal_begin) +
                 of * (of + 1) / 2;
    }
    MemoryAccount account("plan");
    const auto plan = kernels_.make_plan(heads, account);
    plan->assign(batch);
    Tensors tensors(kernels_);
    const Shape queries{rows, heads.heads, heads.size};
    const Shape keys{rows, heads.key_heads, heads.size};
    const TensorView q = tensors.take(options_.dtype, queries);
    const TensorView k = tensors.take(options_.dtype, keys);
    const TensorView v = tensors.take(options_.dtype, keys);
    const TensorView output = tensors.take(options_.dtype, queries);
    const TensorView gradient = tensors.take(options_.dtype, queries);
    const TensorView dq = tensors.take(options_.dtype, queries);
    const TensorView dk = tensors.take(options_.dtype, keys);
    const TensorView dv = tensors.take(options_.dtype, keys);
    const TensorView sums = tensors.take(DType::float32, {rows, heads.heads});
    const double forward = seconds_of(
        kernels_, repetitions(), [&] { kernels_.packed_attention(*plan, q, k, v, output, sums); });
    const double backward = seconds_of(kernels_, repetitions(), [&] {
      kernels_.packed_attention_backward(*plan, gradient, q, k, v, output, sums, dq, dk, dv);
    });
    const double products = 2.0 * visible * static_cast<double>(heads.heads * heads.size);
    const auto what = [&](const char* pass) {
      return name(fmt::format("packed attention {}, {} rows, {:.0f} pairs, heads {}/{} of {}", pass,
                              rows, visible, heads.heads, heads.key_heads, heads.size));
    };
    print_rate(what("forward"), 2 * products / forward, peak(), kTera, "TFLOP/s");
    print_rate(what("backward"), 5 * products / backward, peak(), kTera, "TFLOP/s");
  }

  /// Compares the loss with its three products: logits, gradient of the rows, gradient of the head.
  void loss(std::int64_t pairs, std::int64_t hidden_size, std::int64_t vocabulary) {
    const std::int64_t rows = 2 * pairs;
    Tensors tensors(kernels_);
    const TensorView hidden = tensors.take(options_.dtype, {rows, hidden_size});
    const TensorView head = tensors.take(options_.dtype, {vocabulary, hidden_size}, 0.02F);
    const TensorView hidden_gradient = tensors.take(options_.dtype, {rows, hidden_size});
    const TensorView head_gradient = tensors.take(DType::float32, {vocabulary, hidden_size});
    std::vector<LossItem> items;
    for (std::int64_t i = 0; i < pairs; ++i) {
      items.push_back({.clean_row = static_cast<std::int32_t>(i),
                       .target = static_cast<TokenId>(i % vocabulary),
                       .ar_weight = 1,
                       .student_row = static_cast<std::int32_t>(pairs + i),
                       .consistency_weight = 1});
    }
    const test::TestPlan plan(kernels_, test::kOneHead,
                              test::batch_of(test::causal_layout(rows), items));
    MemoryAccount account("sums");
    ResultSums sums(kernels_, account);
    sums.reset(2);
    const double loss = seconds_of(kernels_, repetitions(), [&] {
      kernels_.vocabulary_loss(*plan, hidden, head, {1, 1, sums.part(0, 2)}, hidden_gradient,
                               head_gradient);
    });
    // Chunks need no more memory than a gradient of the head.
    const std::int64_t chunk = std::min(rows, std::max<std::int64_t>(1, hidden_size));
    const TensorView logits = tensors.take(options_.dtype, {chunk, vocabulary});
    const double products = seconds_of(kernels_, repetitions(), [&] {
      for (std::int64_t begin = 0; begin < rows; begin += chunk) {
        const std::int64_t end = std::min(begin + chunk, rows);
        const TensorView piece = logits.rows(0, end - begin);
        kernels_.linear(hidden.rows(begin, end), head, {}, piece);
        kernels_.linear_backward_input(piece, head, hidden_gradient.rows(begin, end), false);
        kernels_.linear_backward_weight(piece, hidden.rows(begin, end), head_gradient, {}, true);
      }
    });
    print_times(name(fmt::format("vocabulary loss, {} rows, vocabulary {}", rows, vocabulary)),
                loss, "its products", products, "1.25 at most");
    print_rate(name("the loss's products"),
               6.0 * static_cast<double>(rows * hidden_size * vocabulary) / products, peak(), kTera,
               "TFLOP/s");
  }

  void row_wise(std::int64_t rows, std::int64_t hidden_size, std::int64_t intermediate) {
    Tensors tensors(kernels_);
    const double memory = sheet_ != nullptr ? sheet_->bytes_per_second : 0;
    const auto element = static_cast<double>(dtype_bytes(options_.dtype));
    const TensorView gate = tensors.take(options_.dtype, {rows, intermediate});
    const TensorView up = tensors.take(options_.dtype, {rows, intermediate});
    const TensorView y = tensors.take(options_.dtype, {rows, intermediate});
    double seconds = seconds_of(kernels_, repetitions(), [&] { kernels_.swiglu(gate, up, y); });
    print_rate(name("SwiGLU"), 3 * element * static_cast<double>(rows * intermediate) / seconds,
               memory, kGiga, "GB/s");
    const TensorView residual = tensors.take(DType::float32, {rows, hidden_size});
    const TensorView weight = tensors.take(options_.dtype, {hidden_size});
    const TensorView normed = tensors.take(options_.dtype, {rows, hidden_size});
    seconds = seconds_of(kernels_, repetitions(),
                         [&] { kernels_.rms_norm(residual, weight, 1e-6F, normed, {}); });
    print_rate(name("RMS norm"), (4 + element) * static_cast<double>(rows * hidden_size) / seconds,
               memory, kGiga, "GB/s");
    const TensorView branch = tensors.take(DType::float32, {rows, hidden_size});
    seconds = seconds_of(kernels_, repetitions(), [&] {
      kernels_.add_rms_norm(branch, residual, weight, 1e-6F, normed, {});
    });
    print_rate(name("addition and RMS norm"),
               (12 + element) * static_cast<double>(rows * hidden_size) / seconds, memory, kGiga,
               "GB/s");
  }

  /// Compares with reading keys and values once. Caches alternate, so that none is still in the
  /// second-level cache.
  void cached_attention(const AttentionHeads& heads, std::int64_t sequences, std::int64_t rows,
                        std::int64_t keys) {
    const DType type = kernels_.device() == Device::cpu ? DType::float32 : options_.dtype;
    const test::FullSlots slots(sequences, cache_pages(keys));
    Tensors tensors(kernels_);
    const Shape shape = slots.shape(heads.key_heads, heads.size);
    const auto bytes = static_cast<double>(
        storage_bytes(2 * sequences * keys * heads.key_heads * heads.size, type));
    constexpr double kBytesBetween = 256e6;
    std::vector<LayerCache> caches(
        options_.tiny ? 2 : static_cast<std::size_t>(std::ceil(kBytesBetween / bytes)));
    for (LayerCache& cache : caches) {
      cache = {tensors.take(type, shape), tensors.take(type, shape)};
    }
    std::vector<CacheRow> places;
    for (std::int64_t row = 0; row < sequences * rows; ++row) {
      places.push_back({.slot = static_cast<std::int32_t>(row / rows),
                        .position = static_cast<std::int32_t>(keys - rows + row % rows)});
    }
    MemoryAccount account("plan");
    const auto plan = kernels_.make_decode_plan(heads, type, std::ssize(places), account);
    plan->assign(
        {.tokens = {}, .places = places, .kept = {}, .copies = {}, .table = slots.table()});
    const Shape queries{std::ssize(places), heads.heads, heads.size};
    const TensorView q = tensors.take(DType::float32, queries);
    const TensorView output = tensors.take(DType::float32, queries);
    std::size_t turn = 0;
    const double seconds = seconds_of(kernels_, repetitions(), [&] {
      const LayerCache& cache = caches[turn++ % caches.size()];
      kernels_.cached_attention(*plan, DecodeRows::all, q, cache, output);
    });
    print_rate(fmt::format("cached attention, {}, {} of {} keys, {} rows each, heads {}/{} of {}",
                           dtype_name(type), sequences, keys, rows, heads.heads, heads.key_heads,
                           heads.size),
               bytes / seconds, sheet_ != nullptr ? sheet_->bytes_per_second : 0, kGiga, "GB/s");
  }

 private:
  [[nodiscard]] std::string name(const std::string& what) const {
    return fmt::format("{}, {}", what, dtype_name(options_.dtype));
  }
  [[nodiscard]] double peak() const {
    return sheet_ != nullptr ? sheet_->flops(options_.dtype) : 0;
  }
  [[nodiscard]] int repetitions() const { return options_.tiny ? 1 : 20; }

  KernelSet& kernels_;
  const DeviceKernelOptions& options_;
  const KnownDevice* sheet_;
};

}  // namespace

void run_device_kernels(const DeviceKernelOptions& options) {
  const std::unique_ptr<KernelSet> kernels = make_kernel_set(options.device, 0);
  print_device_head(*kernels);
  DeviceKernels device(*kernels, options);
  if (options.tiny) {
    device.product(64, 32, 48);
    device.attention({.heads = 4, .key_heads = 2, .size = 64}, 1, 16, 2);
    device.loss(4, 32, 96);
    device.row_wise(16, 32, 64);
    device.cached_attention({.heads = 4, .key_heads = 2, .size = 64}, 2, 3, 150);
    return;
  }
  device.product(8192, 8192, 8192);
  // Layers of Qwen2.5-0.5B and 7B over a micro-batch.
  device.product(8192, 4864, 896);
  device.product(8192, 18944, 3584);
  device.attention({.heads = 14, .key_heads = 2, .size = 64}, 4, 512, 24);
  device.attention({.heads = 28, .key_heads = 4, .size = 128}, 4, 512, 24);
  device.loss(1024, 896, 151936);
  device.loss(1024, 3584, 152064);
  device.row_wise(8192, 3584, 18944);
  constexpr AttentionHeads kHeads{.heads = 28, .key_heads = 4, .size = 128};
  device.cached_attention(kHeads, 1, 1, 4096);
  device.cached_attention(kHeads, 64, 1, 4096);
  device.cached_attention(kHeads, 1, 64, 4096);
}

}  // namespace jforge
