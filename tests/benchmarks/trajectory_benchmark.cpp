/// Generation of trajectories with random weights, block after block and all blocks of a prompt at
/// once: positions per second against the device's data sheet. Prints Markdown.

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/device_choice.h"
#include "model/transformer/inference_transformer.h"
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
  std::string device = "cpu";
  std::string storage = "bfloat16";   ///< of the matrices
  std::int64_t batch = 32;            ///< prompts at once
  std::int64_t parallel_blocks = 16;  ///< of each answer: a noise window
  std::int64_t prompt = 64;           ///< prompt tokens
};

/// A way of generating and its cost.
class Contestant {
 public:
  Contestant(DecodeModel& model, const GenerateOptions& options,
             std::vector<GeneratePrompt> prompts)
      : generator_(model, options), prompts_(std::move(prompts)) {}

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

  double seconds = 0;

 private:
  TrajectoryGenerator generator_;
  std::vector<GeneratePrompt> prompts_;
  std::size_t next_ = 0;
};

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

/// Measures forwarded positions by each way of making trajectories.
void measure_positions(const BenchmarkOptions& options, const ParameterTable& table,
                       const TensorView& flat, KernelSet& kernels, MemoryAccount& account) {
  constexpr std::int32_t kBlockSize = 32;
  double matrices = 0;
  for (const ParameterEntry& entry : table.entries()) {
    const bool looked_up =
        !options.model.tie_word_embeddings && entry.name == "model.embed_tokens.weight";
    matrices +=
        entry.shape.rank() == 2 && !looked_up ? static_cast<double>(entry.shape.elements()) : 0;
  }
  const WeightStorage storage = kDecodeStorages.at(options.storage);
  const KnownDevice* const sheet = device_sheet(kernels);
  print_device_head(kernels);
  for (const auto& [method, name] : {std::pair{GenerationMethod::sequential, "sequential"},
                                     std::pair{GenerationMethod::parallel, "parallel"}}) {
    GenerateOptions way = generation(kBlockSize, options.parallel_blocks, options.batch);
    way.method = method;
    InferenceTransformer model(
        options.model, table, flat, kernels, account,
        {.num_slots = way.batch_prompts,
         .slot_capacity = static_cast<std::int32_t>(way.required_positions(options.prompt)),
         .branch_rows = static_cast<std::int32_t>(way.required_branch_rows()),
         .weights = storage});
    // Warms up kernels, graphs and memory.
    GenerateOptions short_way = way;
    short_way.max_new_tokens = kBlockSize;
    Contestant warm_up(model, short_way, random_prompts(options, options.batch));
    Contestant contestant(model, way, random_prompts(options, options.batch));
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
  CLI::App app{"Generation of trajectories by both ways; prints Markdown."};
  ShapeOptions shape;
  shape.add_to(app);
  app.option_defaults()->always_capture_default();
  app.add_option("--device", options.device, "cpu | cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--storage", options.storage, "of the matrices")
      ->check(CLI::IsMember(kDecodeStorages));
  const auto count = [&](const char* name, std::int64_t& value, const char* meaning) {
    app.add_option(name, value, meaning)->check(CLI::PositiveNumber);
  };
  count("--batch", options.batch, "prompts at once");
  count("--parallel-blocks", options.parallel_blocks, "blocks of each answer");
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
  repeat_weights(table, flat);
  const std::unique_ptr<KernelSet> kernels =
      make_kernel_set(options.device == "cuda" ? DeviceChoice::cuda : DeviceChoice::cpu, 0);
  measure_positions(options, table, flat, *kernels, account);
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
