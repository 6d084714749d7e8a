// Collectives of device tensors equal the host's, staged ones bit for bit.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "model/kernels/kernel_set.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/local_rank.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/phase_clock.h"
#include "runtime/tensor/cuda_memory.h"
#include "tests/distributed/comm/tensor_collective_cases.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi_test.h"
#include "tests/support/tested_kernel_set.h"
#include "tests/support/virtual_world.h"

namespace jforge {
namespace {

using namespace jforge::test;

class ThroughDevice final : public Collectives {
 public:
  ThroughDevice(KernelSet& kernels, Collectives& inner) : kernels_(kernels), inner_(inner) {}
  [[nodiscard]] Rank rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept override { return inner_.size(); }
  [[nodiscard]] Queue& queue() noexcept override { return inner_.queue(); }
  Work all_reduce_sum(TensorView values) override {
    return run(values, values,
               [&](const TensorView& in, const TensorView&) { return inner_.all_reduce_sum(in); });
  }
  Work reduce_scatter_sum(TensorView input, TensorView output) override {
    return run(input, output, [&](const TensorView& in, const TensorView& out) {
      return inner_.reduce_scatter_sum(in, out);
    });
  }
  Work all_gather(ConstTensorView input, TensorView output) override {
    const TensorView in(const_cast<void*>(input.raw()), input.dtype(), input.shape());
    return run(in, output, [&](const TensorView& from, const TensorView& to) {
      return inner_.all_gather(from, to);
    });
  }
  Work broadcast(TensorView values, Rank root) override {
    return run(values, values,
               [&](const TensorView& in, const TensorView&) { return inner_.broadcast(in, root); });
  }
  [[nodiscard]] PayloadBytes bytes() const noexcept override { return inner_.bytes(); }
  [[nodiscard]] double waited_seconds() const noexcept override { return inner_.waited_seconds(); }

 private:
  /// Then `part` must lie in `whole` on the device, too.
  static bool lies_in(const TensorView& part, const TensorView& whole) {
    const auto* const begin = static_cast<const std::byte*>(whole.raw());
    const auto* const at = static_cast<const std::byte*>(part.raw());
    return begin <= at && at + part.bytes() <= begin + whole.bytes() && whole.bytes() > 0;
  }

  template <class Operation>
  Work run(const TensorView& input, const TensorView& output, const Operation& operation) {
    const bool output_is_larger = output.bytes() >= input.bytes();
    const TensorView& larger = output_is_larger ? output : input;
    const TensorView& smaller = output_is_larger ? input : output;
    const bool aliased = lies_in(smaller, larger);
    const Buffer memory(larger.bytes() + (aliased ? 0 : smaller.bytes()), account_,
                        kernels_.device());
    const auto offset = aliased ? static_cast<const std::byte*>(smaller.raw()) -
                                      static_cast<const std::byte*>(larger.raw())
                                : static_cast<std::ptrdiff_t>(larger.bytes());
    const TensorView large(memory.data(), larger.dtype(), larger.shape(), kernels_.device());
    const TensorView small(memory.data() + offset, smaller.dtype(), smaller.shape(),
                           kernels_.device());
    Queue& queue = kernels_.queue();
    queue.copy(larger, large);
    queue.copy(smaller, small);
    inner_.queue().wait(queue.record());
    const Work work = output_is_larger ? operation(small, large) : operation(large, small);
    work.before(queue);
    queue.copy(large, larger);
    queue.copy(small, smaller);
    queue.synchronize();
    work.wait();
    return {};
  }

  KernelSet& kernels_;
  Collectives& inner_;
  MemoryAccount account_{"through a device"};
};

template <class T>
auto to_bits(T value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_float(value);
  } else {
    return value;
  }
}

void check_staged(KernelSet& kernels, const Communicator& comm) {
  MemoryAccount account("staged");
  {
    const auto staged = make_staged_collectives(comm, account);
    EXPECT_EQ(staged->device(), kernels.device());
    ThroughDevice through(kernels, *staged);
    check_every_operation<float>(comm, through);
    check_every_operation<BFloat16>(comm, through);
    EXPECT_EQ(account.live_bytes(MemoryUse::staging), comm.size() == 1 ? 0U : std::size_t{2} << 20);
  }
  EXPECT_EQ(account.live_bytes(), 0U);
}

TEST(StagedCollectives, EveryOperationHasTheBitsOfTheHosts) {
  const auto kernels = make_tested_kernel_set();
  check_staged(*kernels, test_world());
}

TEST(StagedCollectives, PayloadIsCountedByKind) {
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("staged");
  const auto staged = make_staged_collectives(test_world(), account);
  ThroughDevice through(*kernels, *staged);
  check_payload_of(test_world(), through);
}

/// From 16 ranks on, a ring whose summation order must not depend on the pieces.
TEST(StagedCollectives, ManyRanksAddInTheOrderOfTheWhole) {
  if (test_world().size() > 1) {
    return;
  }
  VirtualWorld(17).run([](const Communicator& comm) {
    const auto kernels = make_tested_kernel_set();
    check_staged(*kernels, comm);
  });
}

TEST(StagedCollectives, TensorsOfTheHostAreRefused) {
  if (test_world().size() == 1) {
    return;
  }
  MemoryAccount account("staged");
  const auto staged = make_staged_collectives(test_world(), account);
  std::vector<float> values(4);
  EXPECT_THROW(static_cast<void>(staged->all_reduce_sum(view_of(values))), InternalError);
}

bool nccl_is_there() {
  const auto kernels = make_tested_kernel_set();  // selects each rank's device
  MemoryAccount account("probe");
  try {
    return make_collectives(test_world(), Device::cuda, Device::cuda, account,
                            CollectivesChoice::nccl)
               ->size() > 1;
  } catch (const EnvironmentError&) {
    return false;
  }
}

bool has_device_for_each_rank() { return cuda_device_count() >= test_world().size(); }

/// Whole numbers have exact sums in any order.
template <class T>
void check_nccl(KernelSet& kernels, const Communicator& comm) {
  const auto nccl = make_nccl_collectives(comm);
  ThroughDevice through(kernels, *nccl);
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto me = static_cast<std::size_t>(comm.rank());
  const auto number = [](std::size_t rank, std::size_t i) {
    const auto value = static_cast<float>((rank * 7 + i) % 23);
    if constexpr (std::is_same_v<T, BFloat16>) {
      return to_bfloat16(value);
    } else {
      return value;
    }
  };
  for (const std::size_t count : {std::size_t{1}, std::size_t{257}, std::size_t{20'000}}) {
    std::vector<T> input(count * ranks);
    std::vector<T> sum(count * ranks);
    for (std::size_t i = 0; i < input.size(); ++i) {
      input[i] = number(me, i);
      float total = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const T term = number(rank, i);
        if constexpr (std::is_same_v<T, BFloat16>) {
          total += to_float(term);
        } else {
          total += term;
        }
      }
      if constexpr (std::is_same_v<T, BFloat16>) {
        sum[i] = to_bfloat16(total);
      } else {
        sum[i] = total;
      }
    }
    std::vector<T> values = input;
    through.all_reduce_sum(view_of(values)).wait();
    EXPECT_TRUE(same_bits<T>(values, sum)) << count;
    values = input;
    std::vector<T> block(count);
    through.reduce_scatter_sum(view_of(values), view_of(block)).wait();
    EXPECT_TRUE(same_bits<T>(block, std::span(sum).subspan(me * count, count))) << count;
    const auto own = std::span(values).subspan(me * count, count);
    through.reduce_scatter_sum(view_of(values), view_of(own)).wait();
    EXPECT_TRUE(same_bits<T>(own, std::span(sum).subspan(me * count, count))) << count;
    through.all_gather(view_of(own), view_of(values)).wait();
    EXPECT_TRUE(same_bits<T>(values, sum)) << count;
    values = input;
    through.broadcast(view_of(values), comm.size() - 1).wait();
    EXPECT_EQ(to_bits(values[0]), to_bits(number(ranks - 1, 0)));
  }
}

TEST(NcclCollectives, EveryOperationIsExactOnWholeNumbers) {
  if (!nccl_is_there()) {
    GTEST_SKIP() << "no NCCL, or ranks share a device";
  }
  const auto kernels = make_tested_kernel_set();
  check_nccl<float>(*kernels, test_world());
  check_nccl<BFloat16>(*kernels, test_world());
  const auto nccl = make_nccl_collectives(test_world());
  ThroughDevice through(*kernels, *nccl);
  check_payload_of(test_world(), through);
}

TEST(NcclCollectives, TheHostWaitsForAnOperationsEnd) {
  if (!nccl_is_there()) {
    GTEST_SKIP() << "no NCCL, or ranks share a device";
  }
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("waited for");
  const Buffer values(4096, account, Device::cuda);
  const auto nccl = make_nccl_collectives(test_world());
  const Work work = nccl->all_reduce_sum(values.floats({1024}));
  work.wait();
  EXPECT_TRUE(work.done());
}

/// Memory operations wait for NCCL's work, which the watchdog must not count as the rank's own.
TEST(NcclCollectives, MemoryBehindThemIsAWaitForOthers) {
  if (!nccl_is_there()) {
    GTEST_SKIP() << "no NCCL, or ranks share a device";
  }
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("behind others");
  const Buffer values(4096, account, Device::cuda);
  const TensorView view = values.floats({1024});
  std::vector<float> host(1024);
  const auto nccl = make_nccl_collectives(test_world());
  PhaseClock clock;
  clock.follow_this_thread();
  const auto expect_wait = [&](const char* what, const auto& call) {
    const Work work = nccl->all_reduce_sum(view);
    const std::uint64_t before = clock.read().progress;
    call();
    // once when the wait begins, once when it ends
    EXPECT_EQ(clock.read().progress, before + 2) << what;
    work.wait();
  };
  expect_wait("copy", [&] { copy_tensor(view, TensorView(host.data(), {1024})); });
  expect_wait("zero", [&] { zero_tensor(view); });
  Buffer more;
  expect_wait("allocate", [&] { more = Buffer(64, account, Device::cuda); });
  Buffer pinned(64, account, HostMemory::page_locked, MemoryUse::staging);
  expect_wait("free page-locked memory", [&] { pinned = Buffer(); });
}

TEST(NcclCollectives, TheirEndIsAWaitForOthers) {
  if (!nccl_is_there()) {
    GTEST_SKIP() << "no NCCL, or ranks share a device";
  }
  const auto kernels = make_tested_kernel_set();
  auto nccl = make_nccl_collectives(test_world());
  PhaseClock clock;
  clock.follow_this_thread();
  const std::uint64_t before = clock.read().progress;
  nccl.reset();
  EXPECT_EQ(clock.read().progress, before + 2);
}

/// The others could not tell a retry from their next call.
TEST(NcclCollectives, ACallThatFailsBehindNcclIsTheLast) {
  if (!nccl_is_there()) {
    GTEST_SKIP() << "no NCCL, or ranks share a device";
  }
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("given up");
  const Buffer values(4096, account, Device::cuda);
  const Rank last = test_world().size() - 1;
  {
    const auto nccl = make_nccl_collectives(test_world());
    const auto sum = [&] { return nccl->all_reduce_sum(values.floats({1024})); };
    sum().wait();
    arm_faults("throw@comm.issued:" + std::to_string(last) + ":1", test_world().rank());
    if (nccl->rank() == last) {
      EXPECT_THROW(static_cast<void>(sum()), InternalError);
      EXPECT_THROW(static_cast<void>(sum()), CommError);
    } else {
      EXPECT_THROW(
          {
            sum().wait();
            sum().wait();
          },
          CommError);
    }
  }
  arm_faults("", test_world().rank());
}

TEST(NcclCollectives, AreChosenWhereEachRankHasADeviceAndRefusedElsewhere) {
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("chosen");
  const bool there = nccl_is_there();
  if (!there && has_device_for_each_rank()) {
    GTEST_SKIP() << "no NCCL";
  }
  const auto chosen = make_collectives(test_world(), Device::cuda, Device::cuda, account);
  EXPECT_EQ(account.live_bytes() == 0, there || test_world().size() == 1);
  EXPECT_NO_THROW(static_cast<void>(
      make_collectives(test_world(), Device::cuda, Device::cuda, account, CollectivesChoice::mpi)));
}

TEST(WithoutNccl, RanksWithADeviceEachDoNotGoThroughHostMemoryUnasked) {
  if (nccl_problem().empty() || test_world().size() == 1 || !has_device_for_each_rank()) {
    GTEST_SKIP() << "NCCL is there, or ranks share a device";
  }
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("chosen");
  EXPECT_THAT(test::message_of<EnvironmentError>([&] {
                return make_collectives(test_world(), Device::cuda, Device::cuda, account);
              }),
              ::testing::HasSubstr(nccl_problem() + "; mend that, or set"));
  EXPECT_THROW(expect_collectives(test_world(), Device::cuda, CollectivesChoice::automatic),
               EnvironmentError);
  EXPECT_NO_THROW(expect_collectives(test_world(), Device::cuda, CollectivesChoice::mpi));
  EXPECT_NO_THROW(static_cast<void>(
      make_collectives(test_world(), Device::cuda, Device::cuda, account, CollectivesChoice::mpi)));
}

TEST(NcclCollectives, AnErrorsUnwindingDoesNotWaitForRanksThatNeverCome) {
  if (!nccl_is_there()) {
    GTEST_SKIP() << "no NCCL, or ranks share a device";
  }
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("abandoned");
  const Buffer values(4096, account, Device::cuda);
  test_world().barrier();
  try {
    const auto nccl = make_nccl_collectives(test_world());
    nccl->all_reduce_sum(values.floats({1024})).wait();  // connects the ranks
    if (nccl->rank() == 0) {
      const Work work = nccl->all_reduce_sum(values.floats({1024}));
      throw DataError("rank 0 fails");
    }
    throw DataError("rank 0 failed");  // as after agreeing on the failure
  } catch (const DataError&) {
  }
  test_world().barrier();
}

TEST(NcclCollectives, AGoneRankIsNoticedByTheWatchdogOfAHostThatWaits) {
  if (!nccl_is_there() || test_world().size() == 1) {
    GTEST_SKIP() << "no NCCL, or ranks share a device";
  }
  const bool emulated = ::dlsym(RTLD_DEFAULT, "jforge_emulated_keep_work") != nullptr;
  if (!emulated && ranks_on_host(test_world()) == test_world().size()) {
    GTEST_SKIP() << "NCCL hears of a peer that is gone over the network alone";
  }
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("gone");
  const Buffer values(4096, account, Device::cuda);
  const PhaseClock clock;
  const HangWatchdog watchdog(clock, [](const PhaseClock::Reading& /*reading*/) {});
  test_world().barrier();
  try {
    const auto nccl = make_nccl_collectives(test_world());
    nccl->all_reduce_sum(values.floats({1024})).wait();
    if (nccl->rank() + 1 == nccl->size()) {
      throw DataError("the last rank fails");
    }
    const Work work = nccl->all_reduce_sum(values.floats({1024}));
    work.before(kernels->queue());
    kernels->queue().synchronize();
    EXPECT_THROW(work.wait(), CommError);
    EXPECT_THROW(static_cast<void>(nccl->all_reduce_sum(values.floats({1024}))), CommError);
  } catch (const DataError&) {
  }
  test_world().barrier();
}

TEST(NcclCollectives, AMismatchIsNamed) {
  if (!nccl_is_there()) {
    GTEST_SKIP() << "no NCCL, or ranks share a device";
  }
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("mismatched");
  const Buffer values(4096, account, Device::cuda);
  enable_collective_checks(true);
  {
    const auto nccl = make_nccl_collectives(test_world());
    const bool odd = test_world().rank() == test_world().size() - 1;
    EXPECT_THROW(static_cast<void>(nccl->all_reduce_sum(values.floats({odd ? 11 : 10}))),
                 CommError);
    EXPECT_THROW(static_cast<void>(nccl->all_reduce_sum(values.floats({10}))), CommError);
  }
  enable_collective_checks(false);
}

}  // namespace
}  // namespace jforge
