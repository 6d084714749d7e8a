/// Cost of a checkpoint for the training loop: without a save, with a blocking one, and with a
/// background one, turn by turn in one run.
///
///   launch/scripts/local_mpirun.sh -n 1 build/…/tests/benchmarks/checkpoint_benchmark DIRECTORY
///   [MEBIBYTES_OF_WEIGHTS [REPEATS [THREADS]]]
///
/// DIRECTORY is on the measured file system. A loop is matrix products of all ranks, first on all
/// cores of the rank but one, then on all (or on THREADS only), 25 times as long as the save. The
/// fastest loop of each kind counts, including the rest of its save. Prints a Markdown table; a
/// checkpoint has three times the weights' bytes. Needs an idle machine.

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "checkpoints/checkpoint_writer.h"
#include "checkpoints/shard_slices.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"
#include "runtime/tensor/buffer.h"

namespace jforge {
namespace {

using Clock = std::chrono::steady_clock;

/// length of a loop in saves
constexpr double kLoopSaves = 25;

enum class Saving : std::uint8_t { none, waited_for, background };

/// Returns a model whose float32 weights take about `bytes`.
TransformerConfig model_of(std::int64_t bytes) {
  TransformerConfig model;
  model.vocabulary_size = 8192;
  model.hidden_size = 512;
  model.intermediate_size = 2048;
  model.num_heads = 8;
  model.num_kv_heads = 8;
  model.max_position_embeddings = 64;
  model.tie_word_embeddings = true;
  model.num_layers = std::max<std::int64_t>(1, bytes / (17 << 20));
  return model;
}

class Loop {
 public:
  Loop(const Communicator& comm, const std::filesystem::path& directory, std::int64_t bytes)
      : comm_(comm),
        table_(model_of(bytes), comm.size()),
        weights_(static_cast<std::size_t>(table_.flat_size()), 0.5F),
        first_(static_cast<std::size_t>(shard_vector_size(table_)), 0.25F),
        second_(first_.size(), 0.125F),
        kernels_(make_cpu_kernel_set()),
        writer_(comm, directory, {.every_steps = 1, .keep_last = 1, .keep_every = 0}, account_) {}

  [[nodiscard]] double checkpoint_bytes() const {
    return 12 * static_cast<double>(table_.parameter_count());
  }

  /// Returns the seconds of the slowest rank.
  double run(Saving saving, int steps) {
    comm_.barrier();
    const auto start = Clock::now();
    for (int step = 0; step < steps; ++step) {
      compute();
      if (step == 1 && saving != Saving::none) {
        CheckpointState state;
        state.round = 1;
        state.step = ++saved_;
        state.phase = "benchmark";
        writer_.save(state, {table_, ConstTensorView(weights_.data(), Shape{table_.flat_size()}),
                             ConstTensorView(first_.data(), Shape{shard_vector_size(table_)}),
                             ConstTensorView(second_.data(), Shape{shard_vector_size(table_)})});
        if (saving == Saving::waited_for) {
          writer_.finish();
        }
      }
      if (saving == Saving::background) {
        static_cast<void>(writer_.poll());
      }
    }
    writer_.finish();
    comm_.barrier();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  /// Takes about 50 ms on one core.
  void compute() {
    constexpr std::int64_t kSize = 1024;
    for (int i = 0; i < 3; ++i) {
      kernels_->linear(x_.floats({kSize, kSize}), weight_.floats({kSize, kSize}), {},
                       y_.floats({kSize, kSize}));
    }
  }

  static constexpr std::size_t kBytes = std::size_t{4} << 20;
  const Communicator& comm_;
  MemoryAccount account_{"checkpoint benchmark"};
  ParameterTable table_;
  std::vector<float> weights_;
  std::vector<float> first_;
  std::vector<float> second_;
  Buffer x_{kBytes, account_};
  Buffer weight_{kBytes, account_};
  Buffer y_{kBytes, account_};
  std::unique_ptr<KernelSet> kernels_;
  CheckpointWriter writer_;
  std::int64_t saved_ = 0;
};

void measure(const Communicator& comm, Loop& loop, int threads, int repeats) {
  constexpr std::array kKinds = {Saving::none, Saving::waited_for, Saving::background};
  omp_set_num_threads(threads);
  const int probe = 20;
  const double step = loop.run(Saving::none, probe) / probe;
  const double save = loop.run(Saving::waited_for, probe) - probe * step;
  // Long enough for a writer thread with a hundredth of a core.
  const int steps = std::max(probe, static_cast<int>(kLoopSaves * save / step));
  std::array<double, kKinds.size()> best{};
  best.fill(std::numeric_limits<double>::infinity());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
      best[kind] = std::min(best[kind], loop.run(kKinds[kind], steps));
    }
  }
  if (comm.rank() == 0) {
    const double waited = best[1] - best[0];
    const double background = best[2] - best[0];
    fmt::print("| {} of {} | {:.3f} s | {:.3f} s ({:.2f} GB/s) | {:.3f} s | {:.1f} % |\n", threads,
               omp_get_num_procs(), best[0], waited, loop.checkpoint_bytes() / waited / 1e9,
               background, 100 * background / waited);
  }
}

int run(int argc, char** argv) {
  expect(argc >= 2,
         "usage: checkpoint_benchmark DIRECTORY [MEBIBYTES_OF_WEIGHTS [REPEATS [THREADS]]]");
  MpiSession session(&argc, &argv);
  const Communicator& comm = session.world();
  const std::filesystem::path directory = std::filesystem::path(argv[1]) / "checkpoint-benchmark";
  const std::int64_t bytes = (argc > 2 ? std::atoll(argv[2]) : 256) << 20;
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 7;
  if (comm.rank() == 0) {
    std::filesystem::remove_all(directory);  // left by an interrupted run
  }
  comm.barrier();
  {
    Loop loop(comm, directory, bytes);
    if (comm.rank() == 0) {
      fmt::print("{} ranks, a checkpoint of {:.0f} MB in {}\n\n", comm.size(),
                 loop.checkpoint_bytes() / 1e6, directory.string());
      fmt::print(
          "| computing threads of cores | loop | a save waited for adds | in the background it "
          "adds | share |\n| --- | --- | --- | --- | --- |\n");
    }
    const int cores = omp_get_num_procs();
    const std::vector<int> counts = argc > 4 ? std::vector<int>{std::atoi(argv[4])}
                                             : std::vector<int>{std::max(1, cores - 1), cores};
    for (const int threads : counts) {
      measure(comm, loop, threads, repeats);
    }
  }
  comm.barrier();
  if (comm.rank() == 0) {
    std::filesystem::remove_all(directory);
  }
  session.finalize();
  return 0;
}

}  // namespace
}  // namespace jforge

int main(int argc, char** argv) {
  try {
    return jforge::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint_benchmark: {}\n", error.what());
    return 1;
  }
}
