/// Generation of trajectories with random weights: many prompts against single ones, all blocks of
/// a prompt at once against one after another. Both share a model and alternate by forward, so that
/// other load slows both. Prints Markdown. --device cuda: positions per second on a device, against
/// its data sheet.

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/device_choice.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/weight_init.h"
#include "runtime/error.h"
#include "runtime/machine_load.h"
#include "runtime/tensor/buffer.h"
#include "tests/benchmarks/device_rows.h"
#include "tests/benchmarks/model_shapes.h"
#include "tests/benchmarks/repeated_weights.h"
#include "workers/generate/trajectory_generator.h"

namespace jforge {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchmarkOptions {
  TransformerConfig model;
  std::string shape;  ///< description of `model`
  std::string only = "both";
  std::string device;                 ///< empty: the host, as all fields below describe
  std::string storage = "bfloat16";   ///< of the matrices on a device
  std::int64_t batch = 32;            ///< prompts at once …
  std::int64_t single = 4;            ///< … against prompts one by one
  std::int64_t batch_blocks = 2;      ///< of each of those answers, n = 16
  std::int64_t parallel_rows = 128;   ///< prompts times block size of the other comparison …
  std::int64_t parallel_blocks = 16;  ///< … with answers of so many blocks: a noise window
  std::int64_t prompt = 64;           ///< prompt tokens
};

/// A range of another model's slots as a model.
class SlotRange final : public DecodeModel {
 public:
  SlotRange(DecodeModel& model, std::int32_t first, std::int32_t count)
      : model_(model), first_(first), count_(count) {}
  [[nodiscard]] std::int32_t num_slots() const override { return count_; }
  [[nodiscard]] std::int32_t slot_capacity() const override { return model_.slot_capacity(); }
  [[nodiscard]] std::int32_t branch_rows() const override { return model_.branch_rows(); }
  [[nodiscard]] bool reserve(std::int32_t slot, std::int64_t positions,
                             std::int64_t branch_rows) override {
    return model_.reserve(slot + first_, positions, branch_rows);
  }
  void release(std::int32_t slot) override { model_.release(slot + first_); }
  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override {
    rows_.assign(rows.begin(), rows.end());
    for (DecodeRow& row : rows_) {
      row.place.slot += first_;
    }
    model_.predict(rows_, predictions);
  }
  void keep_branches(std::span<const CacheCopy> rows) override {
    copies_.assign(rows.begin(), rows.end());
    for (CacheCopy& row : copies_) {
      row.slot += first_;
    }
    model_.keep_branches(copies_);
  }

 private:
  DecodeModel& model_;
  std::int32_t first_;
  std::int32_t count_;
  std::vector<DecodeRow> rows_;
  std::vector<CacheCopy> copies_;
};

/// A way of generating and its cost.
class Contestant {
 public:
  Contestant(DecodeModel& model, std::int32_t first_slot, const GenerateOptions& options,
             std::vector<GeneratePrompt> prompts)
      : slots_(model, first_slot, options.batch_prompts),
        generator_(slots_, options),
        prompts_(std::move(prompts)) {}

  [[nodiscard]] bool done() const { return next_ == prompts_.size() && generator_.running() == 0; }
  void step() {
    const auto begin = Clock::now();
    while (generator_.free_places() > 0 && next_ < prompts_.size()) {
      generator_.admit(prompts_[next_++]);
    }
    generator_.step();
    while (generator_.take_finished()) {
    }
    seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  [[nodiscard]] const GenerationCounts& counts() const { return generator_.counts(); }
  [[nodiscard]] double tokens_per_second() const {
    return static_cast<double>(counts().block_tokens) / seconds;
  }
  /// Returns rows per block, without prompts.
  [[nodiscard]] double rows_per_block(std::int32_t block_size) const {
    return static_cast<double>(counts().decoder.rows - counts().decoder.prefill_rows) * block_size /
           static_cast<double>(counts().block_tokens);
  }

  double seconds = 0;

 private:
  SlotRange slots_;
  TrajectoryGenerator generator_;
  std::vector<GeneratePrompt> prompts_;
  std::size_t next_ = 0;
};

/// The contestant with less time so far makes the next forward.
void run_in_turns(Contestant& left, Contestant& right) {
  while (!left.done() || !right.done()) {
    const bool first = right.done() || (!left.done() && left.seconds <= right.seconds);
    (first ? left : right).step();
  }
}

std::vector<GeneratePrompt> random_prompts(const BenchmarkOptions& options, std::int64_t count) {
  std::mt19937 generator(7);
  std::uniform_int_distribution<TokenId> any(
      0, static_cast<TokenId>(options.model.vocabulary_size - 1));
  std::vector<GeneratePrompt> prompts(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].id = static_cast<PromptId>(i);
    prompts[i].tokens.resize(static_cast<std::size_t>(options.prompt));
    for (TokenId& token : prompts[i].tokens) {
      token = any(generator);
    }
  }
  return prompts;
}

GenerateOptions generation(std::int32_t block_size, std::int64_t blocks, std::int64_t batch) {
  GenerateOptions options;
  options.block_size = block_size;
  options.max_new_tokens = blocks * block_size;
  options.batch_prompts = static_cast<std::int32_t>(batch);
  options.seed = 1;
  return options;
}

struct Weights {
  const TransformerConfig& config;
  const ParameterTable& table;
  ConstTensorView flat;
  KernelSet& kernels;
  MemoryAccount& account;

  [[nodiscard]] std::unique_ptr<InferenceTransformer> transformer(WeightStorage storage,
                                                                  std::int64_t slots,
                                                                  std::int64_t capacity,
                                                                  std::int64_t branch_rows) const {
    InferenceTransformer::Options options;
    options.num_slots = static_cast<std::int32_t>(slots);
    options.slot_capacity = static_cast<std::int32_t>(capacity);
    options.branch_rows = static_cast<std::int32_t>(branch_rows);
    options.weights = storage;
    return std::make_unique<InferenceTransformer>(config, table, flat, kernels, account, options);
  }
};

void compare_batches(const BenchmarkOptions& options, const Weights& weights) {
  constexpr std::int32_t kBlockSize = 16;
  fmt::print(
      "| weights | one by one, tokens/s | batch of {}, tokens/s | ratio | TPF |\n"
      "| --- | --- | --- | --- | --- |\n",
      options.batch);
  for (const auto& [storage, name] :
       {std::pair{WeightStorage::float32, "float32"},
        std::pair{WeightStorage::bfloat16, "bfloat16"},
        std::pair{WeightStorage::bfloat16_arithmetic, "bfloat16_arithmetic"},
        std::pair{WeightStorage::int8, "int8"}}) {
    const auto many = generation(kBlockSize, options.batch_blocks, options.batch);
    const auto model =
        weights.transformer(storage, options.batch + 1, many.required_positions(options.prompt), 0);
    Contestant single(*model, 0, generation(kBlockSize, options.batch_blocks, 1),
                      random_prompts(options, options.single));
    Contestant batch(*model, 1, many, random_prompts(options, options.batch));
    run_in_turns(single, batch);
    fmt::print("| {} | {:.1f} | {:.1f} | {:.2f} | {:.2f} |\n", name, single.tokens_per_second(),
               batch.tokens_per_second(), batch.tokens_per_second() / single.tokens_per_second(),
               batch.counts().cost_of_blocks().tokens_per_forward().value_or(0));
    std::fflush(stdout);
  }
}

void compare_methods(const BenchmarkOptions& options, const Weights& weights) {
  fmt::print(
      "\n| n | prompts | sequential: s, rows a block | parallel: s, rows a block | n²/3 + 2n | "
      "time "
      "ratio | rows ratio |\n| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const std::int32_t n : {16, 32, 64}) {
    const std::int64_t prompts = std::max<std::int64_t>(1, options.parallel_rows / n);
    const auto one = generation(n, options.parallel_blocks, prompts);
    auto all = one;
    all.method = GenerationMethod::parallel;
    const auto model =
        weights.transformer(WeightStorage::float32, 2 * prompts,
                            one.required_positions(options.prompt), all.required_branch_rows());
    Contestant sequential(*model, 0, one, random_prompts(options, prompts));
    Contestant parallel(*model, static_cast<std::int32_t>(prompts), all,
                        random_prompts(options, prompts));
    run_in_turns(sequential, parallel);
    fmt::print("| {} | {} | {:.1f}, {:.0f} | {:.1f}, {:.0f} | {:.0f} | {:.2f} | {:.2f} |\n", n,
               prompts, sequential.seconds, sequential.rows_per_block(n), parallel.seconds,
               parallel.rows_per_block(n), n * n / 3.0 + 2.0 * n,
               sequential.seconds / parallel.seconds,
               sequential.rows_per_block(n) / parallel.rows_per_block(n));
    std::fflush(stdout);
  }
}

/// Measures forwarded positions on a device, by each way of making trajectories.
void measure_positions(const BenchmarkOptions& options, const Weights& weights) {
  constexpr std::int32_t kBlockSize = 32;
  double matrices = 0;
  for (const ParameterEntry& entry : weights.table.entries()) {
    const bool looked_up =
        !options.model.tie_word_embeddings && entry.name == "model.embed_tokens.weight";
    matrices +=
        entry.shape.rank() == 2 && !looked_up ? static_cast<double>(entry.shape.elements()) : 0;
  }
  const WeightStorage storage = kDecodeStorages.at(options.storage);
  const KnownDevice* const sheet = device_sheet(weights.kernels);
  print_device_head(weights.kernels);
  for (const auto& [method, name] : {std::pair{GenerationMethod::sequential, "sequential"},
                                     std::pair{GenerationMethod::parallel, "parallel"}}) {
    GenerateOptions way = generation(kBlockSize, options.parallel_blocks, options.batch);
    way.method = method;
    const auto model = weights.transformer(
        storage, options.batch, way.required_positions(options.prompt), way.required_branch_rows());
    // Warms up kernels, graphs and memory.
    GenerateOptions short_way = way;
    short_way.max_new_tokens = kBlockSize;
    Contestant warm_up(*model, 0, short_way, random_prompts(options, options.batch));
    Contestant contestant(*model, 0, way, random_prompts(options, options.batch));
    for (Contestant* const one : {&warm_up, &contestant}) {
      while (!one->done()) {
        one->step();
      }
    }
    const double positions =
        static_cast<double>(contestant.counts().decoder.rows) / contestant.seconds;
    // Without attention's products, a few percent at these lengths.
    print_rate(
        fmt::format("trajectories, {}, {}, weights {}, {} prompts, n = {}, {:.4g} positions/s, "
                    "{:.4g} tokens/s (MFU)",
                    options.shape, name, options.storage, options.batch, kBlockSize, positions,
                    contestant.tokens_per_second()),
        2 * matrices * positions, sheet != nullptr ? sheet->flops(product_type(storage)) : 0, 1e12,
        "TFLOP/s", product_type(storage) == DType::bfloat16 ? 45 : 0);
  }
}

BenchmarkOptions parse(int argc, char** argv) {
  BenchmarkOptions options;
  CLI::App app{"Generation of trajectories, ways against each other; prints Markdown."};
  ShapeOptions shape;
  shape.add_to(app);
  app.option_defaults()->always_capture_default();
  app.add_option("--only", options.only, "both | batch | parallel")
      ->check(CLI::IsMember({"both", "batch", "parallel"}));
  app.add_option("--device", options.device, "cpu | cuda: positions per second there")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--storage", options.storage, "of the matrices with --device")
      ->check(CLI::IsMember(kDecodeStorages));
  const auto count = [&](const char* name, std::int64_t& value, const char* meaning) {
    app.add_option(name, value, meaning)->check(CLI::PositiveNumber);
  };
  count("--batch", options.batch, "prompts at once");
  count("--single", options.single, "prompts that are generated one by one");
  count("--batch-blocks", options.batch_blocks, "blocks of each of those answers");
  count("--parallel-rows", options.parallel_rows, "prompts times n, sequential against parallel");
  count("--parallel-blocks", options.parallel_blocks, "blocks of each of those answers");
  count("--prompt", options.prompt, "prompt tokens");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::usage));
  }
  options.model = shape.model();
  options.shape = shape.description();
  return options;
}

void run(const BenchmarkOptions& options) {
  const TransformerConfig& config = options.model;
  const ParameterTable table(config, 1);
  fmt::print(
      "- CPU: {}, {} threads, load of {:.2f} per core before it\n- model: {}, random weights, {} "
      "parameters\n- prompts of {} tokens\n\n",
      processor_name(), omp_get_max_threads(), read_machine_load().load_per_core.value_or(0),
      options.shape, table.parameter_count(), options.prompt);
  MemoryAccount account("benchmark");
  Buffer memory(static_cast<std::size_t>(table.flat_size()) * sizeof(float), account);
  const TensorView flat = memory.floats({table.flat_size()});
  if (options.device.empty()) {
    initialise_weights(table, flat, 1, config.num_layers);
  } else {
    repeat_weights(table, flat);
  }
  const std::unique_ptr<KernelSet> kernels =
      make_kernel_set(options.device == "cuda" ? DeviceChoice::cuda : DeviceChoice::cpu, 0);
  const Weights weights{config, table, flat, *kernels, account};
  if (!options.device.empty()) {
    return measure_positions(options, weights);
  }
  if (options.only != "parallel") {
    compare_batches(options, weights);
  }
  if (options.only != "batch") {
    compare_methods(options, weights);
  }
}

int guarded_main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const Error& error) {
    std::cerr << "trajectory_benchmark: " << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace jforge

int main(int argc, char** argv) { return jforge::guarded_main(argc, argv); }
