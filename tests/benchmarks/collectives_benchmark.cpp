/// Collectives of runtime/comm compared with plain MPI calls:
///
///   launch/scripts/local_mpirun.sh -n 2 build/…/tests/benchmarks/collectives_benchmark
///   [MAX_MEBIBYTES]
///
/// Prints a Markdown table: GB/s of payload (bytes of the whole vector over the slowest rank's best
/// time) of both, on the same buffers turn by turn, and their ratio. A second table compares the
/// operations of runtime/comm/tensor_collectives.h on their own thread with those on the calling
/// thread.
///
///   … collectives_benchmark [MAX_MEBIBYTES] --device cuda
///
/// measures tensors on the ranks' devices against the devices' link.

#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "model/kernels/device_choice.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/local_rank.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/error.h"
#include "runtime/tensor/buffer.h"
#include "tests/benchmarks/device_rows.h"

namespace jforge {
namespace {

using Clock = std::chrono::steady_clock;

struct Buffers {
  std::vector<float> whole;
  std::vector<float> part;
};

/// Two ways to leave the same values in the buffers.
struct Contest {
  std::string name;
  std::function<void(Buffers&)> ours;
  std::function<void(Buffers&)> plain;
};

void checked(int code, const char* what) {
  expect(code == MPI_SUCCESS, std::string(what) + " failed");
}

int count_of(const std::vector<float>& values) {
  expect(values.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
         "plain MPI calls take at most 2^31 − 1 elements");
  return static_cast<int>(values.size());
}

std::vector<Contest> contests(const Communicator& comm) {
  return {{"all_reduce", [&](Buffers& b) { all_reduce_sum<float>(comm, b.whole); },
           [](Buffers& b) {
             checked(MPI_Allreduce(MPI_IN_PLACE, b.whole.data(), count_of(b.whole), MPI_FLOAT,
                                   MPI_SUM, MPI_COMM_WORLD),
                     "MPI_Allreduce");
           }},
          {"reduce_scatter", [&](Buffers& b) { reduce_scatter_sum<float>(comm, b.whole, b.part); },
           [](Buffers& b) {
             checked(MPI_Reduce_scatter_block(b.whole.data(), b.part.data(), count_of(b.part),
                                              MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
                     "MPI_Reduce_scatter_block");
           }},
          {"all_gather", [&](Buffers& b) { all_gather<float>(comm, b.part, b.whole); },
           [](Buffers& b) {
             checked(MPI_Allgather(b.part.data(), count_of(b.part), MPI_FLOAT, b.whole.data(),
                                   count_of(b.part), MPI_FLOAT, MPI_COMM_WORLD),
                     "MPI_Allgather");
           }},
          {"broadcast", [&](Buffers& b) { broadcast<float>(comm, b.whole, 0); },
           [](Buffers& b) {
             checked(MPI_Bcast(b.whole.data(), count_of(b.whole), MPI_FLOAT, 0, MPI_COMM_WORLD),
                     "MPI_Bcast");
           }}};
}

TensorView view_of(std::vector<float>& values) {
  return TensorView(values.data(), {static_cast<std::int64_t>(values.size())});
}

std::vector<Contest> queued_contests(const Communicator& comm, Collectives& queued) {
  return {{"all_reduce", [&](Buffers& b) { queued.all_reduce_sum(view_of(b.whole)).wait(); },
           [&](Buffers& b) { all_reduce_sum<float>(comm, b.whole); }},
          {"reduce_scatter",
           [&](Buffers& b) { queued.reduce_scatter_sum(view_of(b.whole), view_of(b.part)).wait(); },
           [&](Buffers& b) { reduce_scatter_sum<float>(comm, b.whole, b.part); }},
          {"all_gather",
           [&](Buffers& b) { queued.all_gather(view_of(b.part), view_of(b.whole)).wait(); },
           [&](Buffers& b) { all_gather<float>(comm, b.part, b.whole); }},
          {"broadcast", [&](Buffers& b) { queued.broadcast(view_of(b.whole), 0).wait(); },
           [&](Buffers& b) { broadcast<float>(comm, b.whole, 0); }}};
}

Buffers fresh(std::size_t elements, const Communicator& comm) {
  Buffers buffers{std::vector<float>(elements),
                  std::vector<float>(elements / static_cast<std::size_t>(comm.size()))};
  const auto start = static_cast<float>(comm.rank() + 1);
  // Sums of small whole numbers are exact, so results must be equal.
  for (std::size_t i = 0; i < elements; ++i) {
    buffers.whole[i] = start + static_cast<float>(i % 17);
  }
  std::iota(buffers.part.begin(), buffers.part.begin() + 1, start);
  return buffers;
}

void expect_equal_results(const Contest& contest, std::size_t elements, const Communicator& comm) {
  Buffers ours = fresh(elements, comm);
  Buffers plain = fresh(elements, comm);
  contest.ours(ours);
  contest.plain(plain);
  // reduce_scatter may use its input as scratch.
  const bool equal =
      ours.part == plain.part && (contest.name == "reduce_scatter" || ours.whole == plain.whole);
  expect(equal, contest.name + " and the plain MPI call give different results");
}

double timed(const std::function<void(Buffers&)>& work, Buffers& buffers,
             const Communicator& comm) {
  comm.barrier();
  const auto begin = Clock::now();
  work(buffers);
  std::array<double, 1> seconds = {std::chrono::duration<double>(Clock::now() - begin).count()};
  all_reduce_max<double>(comm, seconds);
  return seconds[0];
}

void compete(const Contest& contest, std::size_t elements, const Communicator& comm) {
  expect_equal_results(contest, elements, comm);
  Buffers buffers = fresh(elements, comm);
  const int repeats = elements > (std::size_t{1} << 22) ? 5 : 30;
  double ours = std::numeric_limits<double>::infinity();
  double plain = ours;
  for (int i = 0; i < repeats; ++i) {
    ours = std::min(ours, timed(contest.ours, buffers, comm));
    plain = std::min(plain, timed(contest.plain, buffers, comm));
    buffers = fresh(elements, comm);  // repeated sums would overflow
  }
  if (comm.rank() == 0) {
    const auto bytes = static_cast<double>(elements * sizeof(float));
    fmt::print("| {} | {:.3f} | {:.3f} | {:.3f} | {:.2f} |\n", contest.name, bytes / (1 << 20),
               bytes / ours / 1e9, bytes / plain / 1e9, plain / ours);
  }
}

/// Collective.
bool by_nccl(const Communicator& comm, Device device) {
  try {
    expect_collectives(comm, device, CollectivesChoice::nccl);
    return true;
  } catch (const EnvironmentError&) {
    return false;
  }
}

/// Bytes that a rank sends per second, at the ring optimum. The devices' link is the bound with
/// NCCL; without NCCL data go through host memory.
void measure_on_devices(const Communicator& comm, std::size_t largest_bytes) {
  const std::unique_ptr<KernelSet> kernels = make_kernel_set(DeviceChoice::cuda, local_rank(comm));
  if (comm.rank() == 0) {
    print_device_head(*kernels);
  }
  const KnownDevice* const sheet =
      by_nccl(comm, kernels->device()) ? device_sheet(*kernels) : nullptr;
  MemoryAccount account("benchmark");
  const auto collectives = make_collectives(comm, kernels->device(), kernels->device(), account);
  const auto ranks = static_cast<std::size_t>(comm.size());
  const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  for (std::size_t bytes = std::min<std::size_t>(largest_bytes, 1 << 20); bytes <= largest_bytes;
       bytes *= 16) {
    const auto part = static_cast<std::int64_t>(bytes / sizeof(float) / ranks);
    const auto size = part * comm.size();
    const auto memory = static_cast<std::size_t>(size) * sizeof(float);
    const Buffer whole_buffer(memory, account, kernels->device());
    const Buffer part_buffer(memory / ranks, account, kernels->device());
    const TensorView whole = whole_buffer.floats({size});
    const TensorView piece = part_buffer.floats({part});
    kernels->queue().synchronize();
    struct Operation {
      const char* name;
      double sent;  ///< by each rank, per byte of the vector
      std::function<void()> call;
    };
    const std::array<Operation, 3> operations{
        Operation{"all_reduce", 2 * share, [&] { collectives->all_reduce_sum(whole).wait(); }},
        Operation{"reduce_scatter", share,
                  [&] { collectives->reduce_scatter_sum(whole, piece).wait(); }},
        Operation{"all_gather", share, [&] { collectives->all_gather(piece, whole).wait(); }}};
    for (const Operation& operation : operations) {
      double best = std::numeric_limits<double>::infinity();
      for (int run = 0; run < 6; ++run) {
        comm.barrier();
        const auto begin = Clock::now();
        operation.call();
        kernels->queue().synchronize();
        std::array<double, 1> seconds = {
            std::chrono::duration<double>(Clock::now() - begin).count()};
        all_reduce_max<double>(comm, seconds);
        best = std::min(best, seconds[0]);
      }
      if (comm.rank() == 0) {
        print_rate(fmt::format("{} of {} MiB, {} ranks", operation.name,
                               static_cast<double>(memory) / (1 << 20), ranks),
                   operation.sent * static_cast<double>(memory) / best,
                   sheet != nullptr ? sheet->link_bytes_per_second : 0, 1e9, "GB/s");
      }
    }
  }
}

int run(int argc, char** argv) {
  std::size_t largest = 64;
  std::string device = "cpu";
  CLI::App app{"Collectives beside plain MPI calls, or of tensors on devices; prints Markdown."};
  app.add_option("MAX_MEBIBYTES", largest, "the largest vector")->check(CLI::Range(1, 4096));
  app.add_option("--device", device, "cpu | cuda: where the tensors lie")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  MpiSession session(&argc, &argv);
  const Communicator& comm = session.world();
  if (device == "cuda") {
    measure_on_devices(comm, largest << 20);
    session.finalize();
    return 0;
  }
  const auto table = [&](const char* ours, const char* other, const std::vector<Contest>& rows) {
    if (comm.rank() == 0) {
      fmt::print(
          "{0} ranks on {1}\n\n| operation | MiB | {2} GB/s | {3} GB/s | {2} : {3} |\n"
          "| --- | --- | --- | --- | --- |\n",
          comm.size(), host_name(), ours, other);
    }
    for (const Contest& contest : rows) {
      for (std::size_t bytes = 4096; bytes <= largest << 20; bytes *= 16) {
        const auto ranks = static_cast<std::size_t>(comm.size());
        compete(contest, bytes / sizeof(float) / ranks * ranks, comm);
      }
    }
  };
  table("ours", "MPI", contests(comm));
  {
    const auto queued = make_host_collectives(comm);
    table("queued", "called", queued_contests(comm, *queued));
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
    fmt::print(stderr, "collectives_benchmark: {}\n", error.what());
    jforge::MpiSession::abort(1);
  }
}
