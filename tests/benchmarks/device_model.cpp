#include "tests/benchmarks/device_model.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoding/decode_engine.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/multi_block_decoder.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/error.h"
#include "tests/benchmarks/device_rows.h"
#include "tests/benchmarks/repeated_weights.h"
#include "tests/support/shard_of.h"
#include "workers/train/distillation_trainer.h"

namespace jforge {

std::vector<TokenId> random_tokens(std::int64_t count, std::int64_t vocabulary) {
  static std::mt19937 generator(7);
  std::uniform_int_distribution<TokenId> any(0, static_cast<TokenId>(vocabulary - 1));
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::ranges::generate(tokens, [&] { return any(generator); });
  return tokens;
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// Returns the elements of all matrices of a forward.
double matrix_elements(const TransformerConfig& config, const ParameterTable& table) {
  double elements = 0;
  for (const ParameterEntry& entry : table.entries()) {
    const bool looked_up = !config.tie_word_embeddings && entry.name == "model.embed_tokens.weight";
    elements +=
        entry.shape.rank() == 2 && !looked_up ? static_cast<double>(entry.shape.elements()) : 0;
  }
  return elements;
}

class Sequence {
 public:
  Sequence(DecodeModel& model, std::vector<TokenId> tokens)
      : model_(model), tokens_(std::move(tokens)) {}

  /// Forwards tokens [begin, begin + count); returns the last one's prediction.
  TokenId forward(std::int64_t begin, std::int64_t count) {
    rows_.clear();
    for (std::int64_t i = begin; i < begin + count; ++i) {
      rows_.push_back({.token = tokens_[static_cast<std::size_t>(i)],
                       .place = {.position = static_cast<std::int32_t>(i)}});
    }
    predictions_.resize(rows_.size());
    model_.predict(rows_, predictions_);
    return predictions_.back();
  }
  void set(std::int64_t position, TokenId token) {
    tokens_[static_cast<std::size_t>(position)] = token;
  }

 private:
  DecodeModel& model_;
  std::vector<TokenId> tokens_;
  std::vector<DecodeRow> rows_;
  std::vector<TokenId> predictions_;
};

struct DraftPass {
  std::string_view rows;
  bool multi_block = false;
  SamplingOptions sampling = {};
};

constexpr std::int64_t kWarm = 8;  ///< warm-up passes

/// Returns the new tokens that measuring drafts of 16 needs.
std::int64_t draft_tokens(const DeviceModelOptions& options) {
  return 16 * (options.tokens + kWarm + 1);
}

double seconds_of_draft_pass(const DeviceModelOptions& options, DecodeModel& model,
                             const DraftPass& pass) {
  DecodeEngine engine(model, 1);
  DecodeRequest request{.prompt = random_tokens(options.prompt, options.model.vocabulary_size),
                        .max_new_tokens = draft_tokens(options),
                        .sampling = pass.sampling};
  engine.admit(
      pass.multi_block
          ? make_multi_block_decoder(std::move(request), {.block_size = 16, .ngram_pool = 64})
          : make_jacobi_decoder(std::move(request),
                                {.block_size = 16, .window = DraftWindow::running}));
  while (engine.statistics().forwards < kWarm) {
    engine.step();
  }
  const Clock::time_point begin = Clock::now();
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    engine.step();
  }
  return seconds_since(begin) / static_cast<double>(options.tokens);
}

void measure_decoding(const DeviceModelOptions& options, const ParameterTable& table,
                      ConstTensorView weights, KernelSet& kernels) {
  MemoryAccount account("decoding");
  const std::int64_t positions =
      options.prompt + std::max(options.tokens + kWarm, options.rows_in_flight);
  InferenceTransformer model(options.model, table, weights, kernels, account,
                             {.slot_capacity = static_cast<std::int32_t>(
                                  std::max(positions, options.prompt + draft_tokens(options))),
                              .branch_rows = 64,
                              .weights = options.storage});
  Sequence sequence(model, random_tokens(positions, options.model.vocabulary_size));
  (void)sequence.forward(0, options.prompt);
  Clock::time_point begin;
  for (std::int64_t i = 0; i < kWarm + options.tokens; ++i) {
    if (i == kWarm) {
      begin = Clock::now();
    }
    // A prediction reaches the host before the next forward, so forwards do not overlap.
    const TokenId next = sequence.forward(options.prompt + i, 1);
    if (options.prompt + i + 1 < positions) {
      sequence.set(options.prompt + i + 1, next);
    }
  }
  const double seconds = seconds_since(begin) / static_cast<double>(options.tokens);
  const double element = options.storage == WeightStorage::float32 ? 4 : 2;
  const std::string weights_name =
      fmt::format("{}, weights {}", options.shape, storage_name(options.storage));
  const KnownDevice* const sheet = device_sheet(kernels);
  print_rate(
      fmt::format("AR decoding, one sequence, {:.4g} tokens/s, {}", 1 / seconds, weights_name),
      element * matrix_elements(options.model, table) / seconds,
      sheet != nullptr ? sheet->bytes_per_second : 0, 1e9, "GB/s", 80);

  const auto pass = [&](std::int64_t rows) {
    std::vector<double> seconds_of_pass;
    for (std::int64_t i = 0; i < kWarm + options.tokens; ++i) {
      const auto start = Clock::now();
      (void)sequence.forward(options.prompt, rows);
      if (i >= kWarm) {
        seconds_of_pass.push_back(seconds_since(start));
      }
    }
    return median(std::move(seconds_of_pass));
  };
  const double one = pass(1);
  // Without tensor cores, arithmetic bounds so many rows, not memory.
  const bool tensor_cores = product_type(options.storage) == DType::bfloat16;
  print_times(fmt::format("{} rows in flight, {}", options.rows_in_flight, weights_name),
              pass(options.rows_in_flight), "1 row", one, tensor_cores ? "1.15 at most" : "none");
  model.release(0);
  for (const DraftPass& drafts :
       {DraftPass{.rows = "a draft of 16"},
        DraftPass{.rows = "2 blocks of 16 and 3 alternatives", .multi_block = true},
        DraftPass{.rows = "a draft of 16, sampled",
        .sampling = {.temperature = 1, .top_p = 0.9, .repetition_penalty = 1.1}}}) {
    print_times(fmt::format("a pass over {}, {}", drafts.rows, weights_name),
                seconds_of_draft_pass(options, model, drafts), "1 row", one, "none");
  }
}

/// Samples of about 1,024 rows: a quarter prompt, the rest clean and noisy blocks of 32.
class RandomSamples final : public SampleSource {
 public:
  RandomSamples(std::int64_t count, std::int64_t rows, std::int64_t vocabulary) {
    constexpr std::int32_t kBlock = 32;
    const std::int64_t answer = std::max<std::int64_t>(1, 3 * rows / 8 / kBlock) * kBlock;
    for (std::int64_t i = 0; i < count; ++i) {
      PackedSample sample;
      sample.prompt_id = static_cast<PromptId>(i);
      sample.block_size = kBlock;
      sample.window = 8;
      sample.prompt = random_tokens(std::max<std::int64_t>(1, rows / 4), vocabulary);
      sample.clean = random_tokens(answer, vocabulary);
      sample.noisy = random_tokens(answer, vocabulary);
      samples_.push_back(std::move(sample));
    }
  }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(samples_); }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override {
    const PackedSample& sample = samples_[static_cast<std::size_t>(index)];
    return std::ssize(sample.prompt) + std::ssize(sample.clean) + std::ssize(sample.noisy);
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override {
    return samples_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::span<const PackedSample> first(std::int64_t count) const {
    return {samples_.data(), static_cast<std::size_t>(count)};
  }

 private:
  std::vector<PackedSample> samples_;
};

/// `checked`: hashes the state in every step, as a run does by default.
void measure_training(const DeviceModelOptions& options, const ParameterTable& table,
                      TensorView weights, KernelSet& kernels, const Communicator& comm,
                      bool checked) {
  constexpr std::int64_t kWarmSteps = 2;
  const std::int64_t sample_rows = std::min<std::int64_t>(options.rows, 1024);
  const std::int64_t batch = std::max<std::int64_t>(1, options.rows / sample_rows) * comm.size();
  RandomSamples samples(batch * (kWarmSteps + options.steps), sample_rows,
                        options.model.vocabulary_size);
  TrainConfig config;
  config.batch_samples = batch;
  config.tokens_per_rank = options.rows + samples.length(0);
  config.compute = options.compute;
  config.gradient_norms_every = 0;
  config.optimizer.zero_stage = options.zero_stage;
  config.optimizer.guard.check_state_every = checked ? 1 : 0;
  MemoryAccount account("training");
  DistillationTrainer trainer({options.model, table, kernels, comm, account},
                              test::shard_of(weights, table, comm.rank()), config);
  std::vector<double> milliseconds;
  std::int64_t rows = 0;
  TrainHooks hooks;
  hooks.on_step = [&](const StepMetrics& step) {
    rows = step.tokens;
    if (step.step > kWarmSteps) {
      milliseconds.push_back(step.milliseconds);
    }
  };
  (void)trainer.run(samples, {.total_steps = kWarmSteps + options.steps}, hooks);
  if (comm.rank() != 0) {
    return;
  }
  const double seconds = median(milliseconds) / 1e3;
  const double flops =
      training_flops(LayerPlan(options.model), options.model.vocabulary_size,
                     pack_samples(samples.first(batch), config.packing(options.model.eos_ids), 1));
  const KnownDevice* const sheet = device_sheet(kernels);
  const double peak = sheet != nullptr ? sheet->flops(options.compute) * comm.size() : 0;
  print_rate(
      fmt::format("training step of {} rows on {} rank{}, {}, {}, ZeRO {}, state {}, {:.4g} rows/s "
                  "(MFU)",
                  rows, comm.size(), comm.size() == 1 ? "" : "s", options.shape,
                  dtype_name(options.compute), options.zero_stage,
                  checked ? "checked" : "not checked", static_cast<double>(rows) / seconds),
      flops / seconds, peak, 1e12, "TFLOP/s", options.compute == DType::bfloat16 ? 50 : 0);
}

}  // namespace

void run_device_model(const DeviceModelOptions& options, const Communicator* comm) {
  const int rank = comm == nullptr ? 0 : comm->rank();
  const std::unique_ptr<KernelSet> kernels = make_kernel_set(options.device, rank);
  const ParameterTable table(options.model, comm == nullptr ? 1 : comm->size());
  if (rank == 0) {
    fmt::print("- model: {} parameters, random weights\n", table.parameter_count());
    print_device_head(*kernels);
  }
  MemoryAccount account("weights");
  const Buffer memory(static_cast<std::size_t>(table.flat_size()) * sizeof(float), account);
  const TensorView weights = memory.floats({table.flat_size()});
  repeat_weights(table, weights);
  if (options.decoding && rank == 0) {
    measure_decoding(options, table, weights, *kernels);
  }
  if (options.training && comm != nullptr) {
    for (const bool checked : {true, false}) {
      measure_training(options, table, weights, *kernels, *comm, checked);
    }
  }
}

}  // namespace jforge
