/// Greedy decoding and a training step of a random model, as shares of this machine's limits
/// (memory for decoding, products for training), which are measured in the same process. Prints
/// Markdown. Needs an idle machine; OMP_NUM_THREADS sets the threads. --device cuda: on a device,
/// against its data sheet (device_model.h).

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/decoding/decode_engine.h"
#include "model/decoding/greedy_decoder.h"
#include "model/transformer/flat_parameters.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/packed_layout.h"
#include "model/transformer/training_transformer.h"
#include "model/transformer/weight_init.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"
#include "runtime/machine_load.h"
#include "tests/benchmarks/allocation_counter.h"
#include "tests/benchmarks/device_model.h"
#include "tests/benchmarks/device_rows.h"
#include "tests/benchmarks/machine_peaks.h"
#include "tests/benchmarks/model_shapes.h"
#include "tests/support/shard_of.h"
#include "workers/train/sharded_adamw.h"

namespace jforge {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchmarkOptions {
  std::string shape;  ///< description of `model`
  TransformerConfig model;
  std::string only = "both";
  std::string compute = "float32";   ///< of training
  std::string device;                ///< empty: the host, as all fields below describe
  std::string storage = "bfloat16";  ///< of decoding's matrices on a device
  std::int64_t rows = 2048;          ///< maximum packed rows of the training batch
  int zero_stage = 1;                ///< of training on a device
  std::int64_t steps = 3;            ///< measured training steps, after a warm-up
  std::int64_t tokens = 64;          ///< measured tokens of decoding …
  std::int64_t warmup = 8;           ///< … after a warm-up
  std::int64_t prompt = 64;          ///< prompt tokens before decoding
  int repetitions = 10;              ///< runs of each peak; the best counts
  int read_megabytes = 1024;         ///< array of the bandwidth measurement
};

struct DecodingFigures {
  double tokens_per_second = 0;
  double bytes_per_token = 0;  ///< of weights, without the cache
  AllocationCount allocations;
  std::int64_t tokens = 0;
};

struct TrainingFigures {
  DType compute = DType::float32;
  std::int64_t rows = 0;
  std::int64_t kept_offsets = 0, ar_targets = 0;
  VocabularyLossSums losses;  ///< of the first step, the warm-up
  std::int64_t steps = 0;
  double flops = 0;  ///< of one step
  double step_seconds = 0, fastest_seconds = std::numeric_limits<double>::max();
  double processor_seconds = 0;  ///< per step, of all threads
  double forward_seconds = 0, backward_seconds = 0, optimizer_seconds = 0;  ///< per step
  AllocationCount packing, compute_allocations, optimizer;                  ///< of all steps
};

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Records time and allocations after each forward; allocates nothing.
class ObservedModel final : public DecodeModel {
 public:
  struct Mark {
    Clock::time_point time;
    AllocationCount allocations;
  };
  ObservedModel(DecodeModel& model, std::size_t forwards) : model_(model) {
    marks_.reserve(forwards);
  }
  [[nodiscard]] std::int32_t num_slots() const override { return model_.num_slots(); }
  [[nodiscard]] std::int32_t slot_capacity() const override { return model_.slot_capacity(); }
  [[nodiscard]] std::int32_t branch_rows() const override { return model_.branch_rows(); }
  [[nodiscard]] bool reserve(std::int32_t slot, std::int64_t positions,
                             std::int64_t branch_rows) override {
    return model_.reserve(slot, positions, branch_rows);
  }
  void release(std::int32_t slot) override { model_.release(slot); }
  void keep_branches(std::span<const CacheCopy> rows) override { model_.keep_branches(rows); }
  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override {
    model_.predict(rows, predictions);
    expect(marks_.size() < marks_.capacity(), "more forwards than expected");
    marks_.push_back({Clock::now(), allocation_count()});
  }
  [[nodiscard]] const std::vector<Mark>& marks() const { return marks_; }

 private:
  DecodeModel& model_;
  std::vector<Mark> marks_;
};

/// Returns the bytes that a forward of one row reads: all matrices, without an untied embedding.
double streamed_bytes(const TransformerConfig& config, const ParameterTable& table) {
  double elements = 0;
  for (const ParameterEntry& entry : table.entries()) {
    const bool looked_up = !config.tie_word_embeddings && entry.name == "model.embed_tokens.weight";
    elements +=
        entry.shape.rank() == 2 && !looked_up ? static_cast<double>(entry.shape.elements()) : 0;
  }
  return elements * sizeof(float);
}

DecodingFigures measure_decoding(const BenchmarkOptions& options, const ParameterTable& table,
                                 ConstTensorView weights, KernelSet& kernels) {
  MemoryAccount account("decoding");
  // The prefill makes the first token.
  const std::int64_t new_tokens = 1 + options.warmup + options.tokens;
  InferenceTransformer::Options inference;
  inference.num_slots = 1;
  inference.slot_capacity = static_cast<std::int32_t>(options.prompt + new_tokens);
  InferenceTransformer transformer(options.model, table, weights, kernels, account, inference);
  ObservedModel model(transformer, static_cast<std::size_t>(new_tokens) + 2);
  DecodeEngine engine(model, 1);
  std::vector<std::unique_ptr<SequenceDecoder>> sequence;
  sequence.push_back(
      make_greedy_decoder({.prompt = random_tokens(options.prompt, options.model.vocabulary_size),
                           .max_new_tokens = new_tokens}));
  const auto results = decode_all(engine, std::move(sequence));
  expect(std::cmp_equal(results.at(0).tokens.size(), new_tokens), "decoding ended early");
  const auto& marks = model.marks();
  const ObservedModel::Mark& last = marks.back();
  const ObservedModel::Mark& first =
      marks[marks.size() - 1 - static_cast<std::size_t>(options.tokens)];
  return {.tokens_per_second =
              static_cast<double>(options.tokens) / seconds_between(first.time, last.time),
          .bytes_per_token = streamed_bytes(options.model, table),
          .allocations = last.allocations - first.allocations,
          .tokens = options.tokens};
}

/// The base first.
constexpr std::array kStorages{std::pair{WeightStorage::float32, "float32"},
                               std::pair{WeightStorage::bfloat16, "bfloat16"},
                               std::pair{WeightStorage::bfloat16_arithmetic, "bfloat16 arithmetic"},
                               std::pair{WeightStorage::int8, "int8"}};

/// A forward pass of `rows` rows, by storage.
struct StorageFigures {
  std::int64_t rows = 0;
  std::array<std::vector<double>, kStorages.size()> seconds;  ///< of every turn's pass
  std::array<std::int64_t, kStorages.size()> differ{};  ///< rows with another token than float32
};

struct StorageMeasurement {
  std::vector<StorageFigures> figures;
  std::vector<double> reads;  ///< bytes/s of ReadArray in every turn
};

/// Rounds every matrix, so that all storages hold the same values.
void round_to_bfloat16(TensorView weights) {
  for (float& value : weights.span<float>()) {
    value = to_float(to_bfloat16(value));
  }
}

/// Measures passes of 1 to 128 rows. Every turn has one of each kind, beginning with another, and a
/// read of an array, because memory's speed changes with other load.
StorageMeasurement measure_storage(const BenchmarkOptions& options, const ParameterTable& table,
                                   TensorView weights, KernelSet& kernels) {
  constexpr std::array<std::int64_t, 7> kRows{1, 4, 8, 16, 32, 64, 128};
  round_to_bfloat16(weights);
  MemoryAccount account("decoding");
  const auto make = [&](WeightStorage storage) {
    return std::make_unique<InferenceTransformer>(
        options.model, table, weights, kernels, account,
        InferenceTransformer::Options{
            .slot_capacity = static_cast<std::int32_t>(options.prompt + kRows.back()),
            .weights = storage});
  };
  std::array<std::unique_ptr<InferenceTransformer>, kStorages.size()> models;
  std::ranges::transform(kStorages, models.begin(),
                         [&](const auto& storage) { return make(storage.first); });
  const auto tokens = random_tokens(options.prompt + kRows.back(), options.model.vocabulary_size);
  const auto rows_from = [&](std::int64_t begin, std::int64_t count) {
    std::vector<DecodeRow> rows;
    for (std::int64_t i = begin; i < begin + count; ++i) {
      rows.push_back({.token = tokens[static_cast<std::size_t>(i)],
                      .place = {0, static_cast<std::int32_t>(i)}});
    }
    return rows;
  };
  const auto pass = [&](InferenceTransformer& model, std::int64_t begin, std::int64_t count) {
    const std::vector<DecodeRow> rows = rows_from(begin, count);
    std::vector<TokenId> predictions(rows.size());
    const auto start = Clock::now();
    model.predict(rows, predictions);
    return std::pair(seconds_between(start, Clock::now()), predictions);
  };
  for (const auto& model : models) {
    (void)pass(*model, 0, options.prompt);
  }
  StorageMeasurement measurement;
  for (const std::int64_t rows : kRows) {
    measurement.figures.push_back({.rows = rows, .seconds = {}, .differ = {}});
  }
  const ReadArray array(options.read_megabytes);
  for (std::int64_t repeat = -options.warmup; repeat < options.tokens; ++repeat) {
    if (const double read = array.read(); repeat >= 0) {
      measurement.reads.push_back(read);
    }
    std::ranges::rotate(measurement.figures, measurement.figures.begin() + 1);
    for (StorageFigures& one : measurement.figures) {
      std::array<std::vector<TokenId>, kStorages.size()> predicted;
      for (std::size_t i = 0; i < models.size(); ++i) {
        auto [seconds, predictions] = pass(*models[i], options.prompt, one.rows);
        predicted[i] = std::move(predictions);
        if (repeat >= 0) {
          one.seconds[i].push_back(seconds);
        }
      }
      expect(predicted[0] == predicted[1], "float32 and bfloat16 predict different tokens");
      for (std::size_t i = 0; i < models.size(); ++i) {
        one.differ[i] = 0;
        for (std::size_t row = 0; row < predicted[0].size(); ++row) {
          one.differ[i] += predicted[i][row] == predicted[0][row] ? 0 : 1;
        }
      }
    }
  }
  std::ranges::sort(measurement.figures, {}, &StorageFigures::rows);
  return measurement;
}

/// Returns samples of 512 rows (a quarter prompt, the rest clean and noisy blocks of 16) up to
/// `rows`, or one smaller sample.
std::vector<PackedSample> training_samples(std::int64_t rows, std::int64_t vocabulary) {
  constexpr std::int32_t kBlock = 16;
  const std::int64_t length = std::min<std::int64_t>(rows, 512);
  const std::int64_t answer = (length - length / 4) / 2 / kBlock * kBlock;
  if (answer < kBlock) {
    throw ConfigError("--rows is too small for a sample; give at least 48");
  }
  std::vector<PackedSample> samples;
  for (std::int64_t begin = 0; begin + length <= rows; begin += length) {
    PackedSample sample;
    sample.prompt_id = static_cast<PromptId>(samples.size());
    sample.block_size = kBlock;
    sample.window = 4;
    sample.prompt = random_tokens(length - 2 * answer, vocabulary);
    sample.clean = random_tokens(answer, vocabulary);
    sample.noisy = random_tokens(answer, vocabulary);
    samples.push_back(std::move(sample));
  }
  return samples;
}

PackingOptions packing() {
  return {.mask = MaskKind::noise,
          .reduction = LossReduction::token_mean,
          .kept = KeptOffsets::from_first_difference};
}

float sample_weight(std::span<const PackedSample> samples) {
  return 1.0F / static_cast<float>(samples.size());
}

/// A transformer of one type with its input and cost.
struct MeasuredTraining {
  TrainingTransformer transformer;
  FlatParameters parameters;
  ResultSums losses;
  TensorView rounded;  ///< weights as bfloat16, rounded after each step; or empty
  TrainingFigures figures;
};

void training_step(const BenchmarkOptions& options, std::span<const PackedSample> samples,
                   bool counts, ConstTensorView weights, KernelSet& kernels, PackedBatch& batch,
                   ShardedAdamW& optimizer, MeasuredTraining& measured) {
  ParameterStore& store = optimizer.store();
  TrainingFigures& figures = measured.figures;
  const AllocationCount allocated_0 = allocation_count();
  const std::clock_t processor_0 = std::clock();
  const auto time_0 = Clock::now();
  store.begin_step({.replica_hashes = optimizer.replica_hashes()});
  batch.clear();
  append_samples(batch, samples, packing(), sample_weight(samples));
  const AllocationCount allocated_1 = allocation_count();
  (void)measured.transformer.forward(batch, measured.parameters);
  const auto time_1 = Clock::now();
  measured.losses.reset(2);
  measured.transformer.loss_and_backward(measured.parameters, {1, 1, measured.losses.part(0, 2)},
                                         store);
  const std::span<const double> losses = measured.losses.read();
  const AllocationCount allocated_2 = allocation_count();
  const auto time_2 = Clock::now();
  (void)optimizer.step(1e-6);
  store.wait_for_weights();
  if (!measured.rounded.empty()) {
    kernels.convert(weights, measured.rounded);
  }
  const auto time_3 = Clock::now();
  const AllocationCount allocated_3 = allocation_count();
  if (!counts) {  // warm-up
    figures.rows = batch.layout.num_rows;
    figures.kept_offsets = batch.kept_offsets;
    figures.ar_targets = batch.ar_targets;
    figures.losses = {losses[0], losses[1]};
    figures.flops = training_flops(LayerPlan(options.model), options.model.vocabulary_size, batch);
    return;
  }
  const auto add = [](AllocationCount& sum, AllocationCount more) {
    sum.calls += more.calls;
    sum.bytes += more.bytes;
  };
  add(figures.packing, allocated_1 - allocated_0);
  add(figures.compute_allocations, allocated_2 - allocated_1);
  add(figures.optimizer, allocated_3 - allocated_2);
  const double seconds = seconds_between(time_0, time_3);
  const auto steps = static_cast<double>(options.steps);
  figures.fastest_seconds = std::min(figures.fastest_seconds, seconds);
  figures.step_seconds += seconds / steps;
  figures.processor_seconds +=
      static_cast<double>(std::clock() - processor_0) / CLOCKS_PER_SEC / steps;
  figures.forward_seconds += seconds_between(time_0, time_1) / steps;
  figures.backward_seconds += seconds_between(time_1, time_2) / steps;
  figures.optimizer_seconds += seconds_between(time_2, time_3) / steps;
}

/// Steps the types turn by turn, so that other load slows all.
std::vector<TrainingFigures> measure_training(const BenchmarkOptions& options,
                                              const ParameterTable& table, TensorView weights,
                                              KernelSet& kernels, const Communicator& comm) {
  MemoryAccount account("training");
  const auto collectives = make_host_collectives(comm);
  ParameterStore store(table, {}, kernels, *collectives, account,
                       test::shard_of(weights, table, comm.rank()));
  const ConstTensorView masters = store.masters();
  ShardedAdamW optimizer(table, comm, account, store, {});
  const auto samples = training_samples(options.rows, options.model.vocabulary_size);
  PackedBatch batch;
  Buffer rounded;
  std::vector<std::unique_ptr<MeasuredTraining>> types;
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    if (options.compute != "both" && options.compute != dtype_name(compute)) {
      continue;
    }
    ConstTensorView lent = masters;
    if (compute == DType::bfloat16) {
      rounded = Buffer(static_cast<std::size_t>(table.flat_size()) * dtype_bytes(compute), account);
      kernels.convert(masters, rounded.view(compute, masters.shape()));
      lent = rounded.view(compute, masters.shape());
    }
    types.push_back(std::unique_ptr<MeasuredTraining>(new MeasuredTraining{
        .transformer{options.model, table, kernels, account, {.compute = compute}},
        .parameters{table, lent, kernels, account},
        .losses{kernels, account},
        .rounded =
            compute == DType::bfloat16 ? rounded.view(compute, masters.shape()) : TensorView(),
        .figures = {}}));
    types.back()->figures.compute = compute;
    types.back()->figures.steps = options.steps;
  }
  for (std::int64_t step = 0; step <= options.steps; ++step) {
    for (const auto& type : types) {
      training_step(options, samples, step > 0, masters, kernels, batch, optimizer, *type);
    }
  }
  std::vector<TrainingFigures> figures;
  for (const auto& type : types) {
    figures.push_back(type->figures);
  }
  return figures;
}

// ---- the report ---------------------------------------------------------------------------------

void row(const std::string& what, const std::string& value, const std::string& share = "") {
  fmt::print("| {} | {} | {} |\n", what, value, share);
}

std::string percent(double part, double whole) {
  return fmt::format("{:.1f} %", 100 * part / whole);
}

std::string share(double rate, double peak) {
  return share_of_peak(rate, peak) ? percent(rate, peak) : "unknown share (machine busy)";
}

std::string per_unit(const AllocationCount& count, std::int64_t units) {
  if (!allocations_are_counted()) {
    return "not counted in this build";
  }
  return fmt::format("{:.2f} ({:.0f} bytes)",
                     static_cast<double>(count.calls) / static_cast<double>(units),
                     static_cast<double>(count.bytes) / static_cast<double>(units));
}

/// Returns the sources' commit, with "-dirty" if they differ.
std::string source_commit() {
  std::FILE* const git =
      popen("git -C '" JFORGE_SOURCE_DIRECTORY "' describe --always --dirty 2>/dev/null", "r");
  std::array<char, 128> text{};
  const bool read = git != nullptr && std::fgets(text.data(), text.size(), git) != nullptr;
  if (git != nullptr) {
    pclose(git);
  }
  std::string commit = read ? text.data() : "unknown";
  std::erase(commit, '\n');
  return commit;
}

void print_decoding(const DecodingFigures& figures, const MachinePeaks& peaks) {
  const double read = figures.tokens_per_second * figures.bytes_per_token;
  row("AR decoding, one sequence, tokens/s", fmt::format("{:.2f}", figures.tokens_per_second));
  row("AR decoding, weights read per token",
      fmt::format("{:.1f} MB", figures.bytes_per_token / 1e6));
  row("AR decoding, weights read per second", fmt::format("{:.2f} GB/s", read / 1e9),
      share(read, peaks.read_bandwidth) + " of read bandwidth");
  row("AR decoding, heap allocations per token", per_unit(figures.allocations, figures.tokens));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  std::ranges::transform(a, b, std::back_inserter(ratios), std::divides<>());
  return median(std::move(ratios));
}

void print_storage(const StorageMeasurement& measurement, double float32_bytes) {
  if (measurement.figures.empty()) {
    return;
  }
  row("read bandwidth, median of turns",
      fmt::format("{:.2f} GB/s", median(measurement.reads) / 1e9));
  const StorageFigures& single = measurement.figures.front();
  for (const StorageFigures& one : measurement.figures) {
    const std::string of = fmt::format("{} row{}", one.rows, one.rows == 1 ? "" : "s");
    for (std::size_t i = 0; i < kStorages.size(); ++i) {
      const std::vector<double>& own = one.seconds[i];
      std::vector<double> rates;
      std::ranges::transform(own, std::back_inserter(rates), [&](double seconds) {
        return float32_bytes / (i == 0 ? 1 : i < 3 ? 2 : 4) / seconds;
      });
      row(fmt::format("{}, {}: passes/s", of, kStorages[i].second),
          fmt::format("{:.2f} ({:.1f} rows/s)", 1 / median(own),
                      static_cast<double>(one.rows) / median(own)),
          fmt::format("{:.2f} GB/s, {:.1f} % of the turn's read; {:.2f} passes of 1 row",
                      median(rates) / 1e9, 100 * median_ratio(rates, measurement.reads),
                      median_ratio(own, single.seconds[i])));
      if (i > 0) {
        row(fmt::format("{}: {} against float32", of, kStorages[i].second),
            fmt::format("{:.2f}", median(one.seconds[0]) / median(own)),
            fmt::format("median of pairs {:.2f}, fastest passes {:.2f}",
                        median_ratio(one.seconds[0], own),
                        std::ranges::min(one.seconds[0]) / std::ranges::min(own)));
      }
      if (i > 1) {
        row(fmt::format("{}: other tokens in {}", of, kStorages[i].second),
            fmt::format("{} of {}", one.differ[i], one.rows));
      }
    }
  }
}

void print_training(const TrainingFigures& figures, const MachinePeaks& peaks) {
  const auto speed = [&](double seconds) { return figures.flops / seconds; };
  row(fmt::format("training step of {} rows, {}", figures.rows, dtype_name(figures.compute)),
      fmt::format("{:.3f} s ({:.3f} TFLOP)", figures.step_seconds, figures.flops / 1e12));
  row("training step, rows/s",
      fmt::format("{:.1f}", static_cast<double>(figures.rows) / figures.step_seconds));
  row("training step, kept offsets and AR targets",
      fmt::format("{}, {}", figures.kept_offsets, figures.ar_targets));
  row("first step's consistency and AR loss",
      fmt::format("{:.4f}, {:.4f}", figures.losses.consistency, figures.losses.autoregressive));
  const auto of_peak = [&](double seconds) {
    return figures.compute == DType::float32
               ? share(speed(seconds), peaks.sgemm()) + " of sgemm peak"
               : share(speed(seconds), peaks.bfloat16) + " of the bfloat16 peak";
  };
  row("training step, mean", fmt::format("{:.1f} GFLOP/s", speed(figures.step_seconds) / 1e9),
      of_peak(figures.step_seconds));
  row("training step, fastest", fmt::format("{:.1f} GFLOP/s", speed(figures.fastest_seconds) / 1e9),
      of_peak(figures.fastest_seconds));
  const auto part = [&](const char* what, double seconds) {
    row(what, fmt::format("{:.3f} s", seconds),
        percent(seconds, figures.step_seconds) + " of the step");
  };
  part("training step: packing and forward", figures.forward_seconds);
  part("training step: loss and backward", figures.backward_seconds);
  part("training step: optimizer, with its checks", figures.optimizer_seconds);
  row("heap allocations per step: packing the batch", per_unit(figures.packing, figures.steps));
  row("heap allocations per step: forward, loss, backward",
      per_unit(figures.compute_allocations, figures.steps));
  row("heap allocations per step: optimizer", per_unit(figures.optimizer, figures.steps));
}

BenchmarkOptions parse(int argc, char** argv) {
  CLI::App app("Speed of decoding and training against the machine's peaks", "model_benchmark");
  BenchmarkOptions options;
  ShapeOptions shape;
  shape.add_to(app);
  app.option_defaults()->always_capture_default();
  app.add_option("--only", options.only,
                 "both | decoding | training | storage (decoding, float32 and bfloat16 weights "
                 "turn by turn)")
      ->check(CLI::IsMember({"both", "decoding", "training", "storage"}));
  app.add_option("--compute", options.compute, "of training: float32 | bfloat16 | both, in turns")
      ->check(CLI::IsMember({"float32", "bfloat16", "both"}));
  app.add_option("--device", options.device,
                 "cpu | cuda: decoding and training there, against the device's data sheet")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--storage", options.storage, "of decoding's matrices with --device")
      ->check(CLI::IsMember(kDecodeStorages));
  app.add_option("--rows", options.rows, "packed rows of the training batch");
  app.add_option("--zero-stage", options.zero_stage, "of training with --device")
      ->check(CLI::Range(0, 3));
  app.add_option("--steps", options.steps, "measured steps, after one")->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "measured tokens")->check(CLI::PositiveNumber);
  app.add_option("--warmup", options.warmup, "tokens before them")->check(CLI::PositiveNumber);
  app.add_option("--prompt", options.prompt, "prompt tokens")->check(CLI::PositiveNumber);
  app.add_option("--repetitions", options.repetitions, "runs of each peak")
      ->check(CLI::PositiveNumber);
  app.add_option("--read-megabytes", options.read_megabytes, "array that is read")
      ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::usage));
  }
  options.model = shape.model();
  options.shape = shape.description();
  return options;
}

void print_head(const BenchmarkOptions& options, const ParameterTable& table,
                const std::string& command, int ranks) {
  const TransformerConfig& model = options.model;
  fmt::print("- command: `{}`\n- CPU: {}, {} threads\n- commit: {}\n", command, processor_name(),
             omp_get_max_threads(), source_commit());
  if (ranks > 1) {
    fmt::print("- ranks: {}; threads and figures are those of one while all work\n", ranks);
  }
  fmt::print(
      "- model: {}, random weights, float32, {} parameters (hidden {}, intermediate {}, {} layers, "
      "heads {}/{}, vocabulary {})\n\n",
      options.shape, table.parameter_count(), model.hidden_size, model.intermediate_size,
      model.num_layers, model.num_heads, model.num_kv_heads, model.vocabulary_size);
}

void run(const BenchmarkOptions& options, const std::string& command,
         const Communicator* communicator) {
  const int ranks = communicator == nullptr ? 1 : communicator->size();
  const bool speaks = communicator == nullptr || communicator->rank() == 0;
  const ParameterTable table(options.model, ranks);
  if (speaks) {
    print_head(options, table, command, ranks);
  }
  MachinePeaks peaks = measure_peaks(options.repetitions, options.read_megabytes);
  MemoryAccount account("weights");
  Buffer memory(static_cast<std::size_t>(table.flat_size()) * sizeof(float), account);
  const TensorView weights = memory.floats({table.flat_size()});
  initialise_weights(table, weights, 1, options.model.num_layers);
  const std::unique_ptr<KernelSet> kernels = make_cpu_kernel_set();
  std::optional<DecodingFigures> decoding;
  std::vector<TrainingFigures> training;
  StorageMeasurement storage;
  if (options.only == "storage") {
    storage = measure_storage(options, table, weights, *kernels);
  } else if (options.only != "training") {
    decoding = measure_decoding(options, table, weights, *kernels);
  }
  if (communicator != nullptr) {
    training = measure_training(options, table, weights, *kernels, *communicator);
  }
  peaks = best_of(peaks, measure_peaks(options.repetitions, options.read_megabytes));

  if (!speaks) {
    return;
  }
  fmt::print("| measurement | value | share |\n| --- | --- | --- |\n");
  row("sgemm peak, 1024³", fmt::format("{:.1f} GFLOP/s", peaks.sgemm_1024 / 1e9));
  row("sgemm peak, 2048³", fmt::format("{:.1f} GFLOP/s", peaks.sgemm_2048 / 1e9));
  row("bfloat16 peak, 2048³", fmt::format("{:.1f} GFLOP/s", peaks.bfloat16 / 1e9));
  row("read bandwidth", fmt::format("{:.2f} GB/s", peaks.read_bandwidth / 1e9));
  if (decoding) {
    print_decoding(*decoding, peaks);
  }
  print_storage(storage, streamed_bytes(options.model, table));
  for (const TrainingFigures& figures : training) {
    print_training(figures, peaks);
  }
  if (training.size() == 2) {
    const TrainingFigures& slow = training.front();
    const TrainingFigures& fast = training.back();
    row("bfloat16 against float32, mean and fastest step",
        fmt::format("{:.2f}, {:.2f} times", slow.step_seconds / fast.step_seconds,
                    slow.fastest_seconds / fast.fastest_seconds));
    row("bfloat16 against float32, processor time",
        fmt::format("{:.2f} times", slow.processor_seconds / fast.processor_seconds));
    row("bfloat16 against float32, without the optimizer",
        fmt::format("{:.2f} times", (slow.step_seconds - slow.optimizer_seconds) /
                                        (fast.step_seconds - fast.optimizer_seconds)));
  }
}

void run_there(const BenchmarkOptions& options, const Communicator* comm) {
  if (options.compute == "both") {
    throw ConfigError("--device measures one type: --compute float32 or bfloat16");
  }
  run_device_model({.model = options.model,
                    .shape = options.shape,
                    .device = options.device == "cpu" ? DeviceChoice::cpu : DeviceChoice::cuda,
                    .decoding = options.only != "training",
                    .training = comm != nullptr,
                    .compute = options.compute == "float32" ? DType::float32 : DType::bfloat16,
                    .storage = kDecodeStorages.at(options.storage),
                    .zero_stage = options.zero_stage,
                    .rows = options.rows,
                    .steps = options.steps,
                    .prompt = options.prompt,
                    .tokens = options.tokens},
                   comm);
}

int guarded_main(int argc, char** argv) {
  std::string command = "model_benchmark";
  for (int i = 1; i < argc; ++i) {
    command += std::string(" ") + argv[i];
  }
  try {
    const BenchmarkOptions options = parse(argc, argv);
    const auto measure = [&](const Communicator* comm) {
      options.device.empty() ? run(options, command, comm) : run_there(options, comm);
    };
    if (options.only == "decoding" || options.only == "storage") {
      measure(nullptr);
    } else {
      MpiSession session(&argc, &argv);
      measure(&session.world());
      session.finalize();
    }
    return 0;
  } catch (const Error& error) {
    std::cerr << "model_benchmark: " << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace jforge

int main(int argc, char** argv) { return jforge::guarded_main(argc, argv); }
