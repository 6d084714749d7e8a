// Checks, in the order that streams and events impose, that collectives and arithmetic of a step
// may run side by side.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "tests/distributed/workers/zero_fixture.h"
#include "tests/support/kernel_calls.h"
#include "tests/support/mpi_test.h"
#include "tests/support/shard_of.h"
#include "tests/support/tested_kernel_set.h"

namespace jforge {
namespace {

using namespace jforge::test;

template <class Function>
Function* emulators(const char* name) {
  auto* const function = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  expect(function != nullptr, "this test needs the emulated device");
  return function;
}

class GivenWork {
 public:
  GivenWork() { keep_(1); }
  ~GivenWork() { keep_(0); }
  GivenWork(const GivenWork&) = delete;
  GivenWork& operator=(const GivenWork&) = delete;

  [[nodiscard]] std::uint64_t count() const { return keep_(1); }
  template <class Is>
  [[nodiscard]] std::vector<std::uint64_t> among(std::uint64_t begin, std::uint64_t end,
                                                 const Is& is) const {
    std::vector<std::uint64_t> found;
    for (std::uint64_t work = begin; work < end; ++work) {
      if (is(std::string_view(name_(work)))) {
        found.push_back(work);
      }
    }
    return found;
  }
  /// Returns whether this holds in every legal order.
  [[nodiscard]] bool ordered(std::uint64_t earlier, std::uint64_t later) const {
    return ordered_(earlier, later) != 0;
  }

 private:
  std::uint64_t (*keep_)(int) = emulators<std::uint64_t(int)>("jforge_emulated_keep_work");
  const char* (*name_)(std::uint64_t) =
      emulators<const char*(std::uint64_t)>("jforge_emulated_work_name");
  int (*ordered_)(std::uint64_t, std::uint64_t) =
      emulators<int(std::uint64_t, std::uint64_t)>("jforge_emulated_work_ordered");
};

bool is_collective(std::string_view name) { return name.starts_with("NCCL"); }
bool is_arithmetic(std::string_view name) {
  return name.starts_with("kernel") || name == "a product";
}

/// Records the work that each call queues.
class NotedLoans final : public ParameterSource, public GradientSink {
 public:
  enum class Kind : std::uint8_t { acquire, release, ready };
  struct Call {
    Kind kind;
    std::int32_t group;
    std::uint64_t begin;
    std::uint64_t end;
  };
  NotedLoans(ParameterStore& store, const GivenWork& given) : store_(store), given_(given) {}
  [[nodiscard]] ConstTensorView acquire(std::int32_t group) override {
    const std::uint64_t begin = given_.count();
    const ConstTensorView view = store_.acquire(group);
    calls.push_back({Kind::acquire, group, begin, given_.count()});
    return view;
  }
  void release(std::int32_t group) override {
    store_.release(group);
    calls.push_back({Kind::release, group, given_.count(), given_.count()});
  }
  [[nodiscard]] TensorView open(std::int32_t group) override { return store_.open(group); }
  [[nodiscard]] bool undefined(std::int32_t group) const override {
    return store_.undefined(group);
  }
  void ready(std::int32_t group) override {
    const std::uint64_t begin = given_.count();
    store_.ready(group);
    calls.push_back({Kind::ready, group, begin, given_.count()});
  }
  /// Returns calls.size() if there is none.
  [[nodiscard]] std::size_t next(std::size_t at, Kind kind) const {
    while (at < calls.size() && calls[at].kind != kind) {
      ++at;
    }
    return at;
  }
  std::vector<Call> calls;

 private:
  ParameterStore& store_;
  const GivenWork& given_;
};

using Kind = NotedLoans::Kind;

class OverlapTest : public ::testing::TestWithParam<int> {
 protected:
  OverlapTest()
      : store_(model_.table, {.stage = GetParam()}, *kernels_, *collectives_, account_,
               shard_of(model_.view(), model_.table, comm_.rank())),
        optimizer_(model_.table, comm_, account_, store_, {.zero_stage = GetParam()}),
        transformer_(config_, model_.table, *kernels_, account_, {}) {}

  /// Allocates memory, which waits for the device.
  void SetUp() override {
    passes();
    static_cast<void>(optimizer_.step(1e-3));
    loans_.calls.clear();
  }
  void passes() {
    store_.begin_step(
        {.micro_batches = micro_batches_, .replica_hashes = optimizer_.replica_hashes()});
    SyntheticSource source(64);
    losses_.reset(2);
    for (std::int64_t pass = 0; pass < micro_batches_; ++pass) {
      const auto sample = std::get<PackedSample>(source.sample(3 * (2 * comm_.rank() + pass)));
      batch_.clear();
      append_samples(batch_, std::span(&sample, 1), {}, 1.0F);
      transformer_.forward(batch_, loans_);
      transformer_.loss_and_backward(loans_, {1, 1, losses_.part(0, 2)}, loans_);
    }
  }
  [[nodiscard]] std::vector<std::uint64_t> arithmetic_between(std::size_t first,
                                                              std::size_t second) const {
    return given_.among(loans_.calls[first].end, loans_.calls[second].begin, is_arithmetic);
  }
  [[nodiscard]] std::vector<std::uint64_t> collectives_of(std::size_t call) const {
    return given_.among(loans_.calls[call].begin, loans_.calls[call].end, is_collective);
  }
  void expect_unordered(const std::vector<std::uint64_t>& earlier,
                        const std::vector<std::uint64_t>& later, const std::string& what) const {
    for (const std::uint64_t a : earlier) {
      for (const std::uint64_t b : later) {
        ASSERT_FALSE(given_.ordered(a, b)) << what << " waits";
      }
    }
  }

  const Communicator& comm_ = test_world();
  std::unique_ptr<KernelSet> kernels_ = make_tested_kernel_set();
  MemoryAccount account_{"overlap"};
  const TransformerConfig config_ = tiny_config();
  Model model_{comm_.size()};
  std::unique_ptr<Collectives> collectives_ = make_collectives(
      comm_, kernels_->device(), kernels_->device(), account_, CollectivesChoice::nccl);
  ParameterStore store_;
  ShardedAdamW optimizer_;
  TrainingTransformer transformer_;
  ResultSums losses_{*kernels_, account_};
  PackedBatch batch_;
  GivenWork given_;
  NotedLoans loans_{store_, given_};
  std::int64_t micro_batches_ = GetParam() >= 2 ? 2 : 1;
};

TEST(NcclVersion, ThoseThatAreTooOldOrHangAreRefused) {
  for (const int fit : {21901, 22105, 22407, 22702, 22809}) {
    EXPECT_EQ(nccl_version_problem(fit), "") << fit;
  }
  for (const int unfit : {21805, 22501, 22602}) {
    EXPECT_NE(nccl_version_problem(unfit).find(std::to_string(unfit)), std::string::npos) << unfit;
  }
}

INSTANTIATE_TEST_SUITE_P(Stage, OverlapTest, ::testing::Range(0, 4));

TEST_P(OverlapTest, AGroupIsReducedBesideTheBackwardBelow) {
  passes();
  int reductions = 0;
  for (std::size_t ready = loans_.next(0, Kind::ready); ready < loans_.calls.size();) {
    const std::size_t below = loans_.next(ready + 1, Kind::ready);
    const std::vector<std::uint64_t> reduction = collectives_of(ready);
    // A forward or nothing follows the embedding.
    if (!reduction.empty() && below < loans_.calls.size() && loans_.calls[ready].group > 0) {
      const std::vector<std::uint64_t> backward = arithmetic_between(ready, below);
      EXPECT_FALSE(backward.empty());
      expect_unordered(reduction, backward,
                       "the backward below group " + std::to_string(loans_.calls[ready].group));
      ++reductions;
    }
    ready = below;
  }
  const int groups = static_cast<int>(model_.table.groups().size());
  EXPECT_EQ(reductions, (groups - 1) * static_cast<int>(micro_batches_));
  static_cast<void>(optimizer_.step(1e-3));
}

/// Stage 3 only.
TEST_P(OverlapTest, AGroupIsGatheredBesideTheOneBefore) {
  passes();
  static_cast<void>(optimizer_.step(1e-3));
  if (GetParam() < 3) {
    return;
  }
  std::vector<std::uint64_t> ahead;
  for (std::size_t call = loans_.next(0, Kind::acquire); call < loans_.calls.size();
       call = loans_.next(call + 1, Kind::acquire)) {
    const std::size_t release = loans_.next(call, Kind::release);
    const std::vector<std::uint64_t> own = arithmetic_between(call, release);
    const std::vector<std::uint64_t> gathered = collectives_of(call);
    const std::string what = "the arithmetic of group " + std::to_string(loans_.calls[call].group);
    EXPECT_FALSE(own.empty());
    if (call == 0) {
      ASSERT_EQ(gathered.size(), 4U) << "its own and the next; each gives, then takes";
      ahead.assign(gathered.begin() + 2, gathered.end());
    } else {
      for (const std::uint64_t work : ahead) {
        EXPECT_TRUE(given_.ordered(work, own.front())) << what << " does not wait for its weights";
      }
      ASSERT_LE(gathered.size(), 2U) << "more than the next";
      ahead = gathered;
    }
    expect_unordered(ahead, own, what);
  }
}

/// Stages 1 and 2 only.
TEST_P(OverlapTest, UpdatedWeightsAreGatheredBesideTheNextForward) {
  passes();
  const std::uint64_t before = given_.count();
  static_cast<void>(optimizer_.step(1e-3));
  const std::vector<std::uint64_t> shared = given_.among(before, given_.count(), is_collective);
  const std::size_t begin = loans_.calls.size();
  passes();
  static_cast<void>(optimizer_.step(1e-3));
  if (GetParam() == 0 || GetParam() == 3) {
    EXPECT_TRUE(shared.empty());
    return;
  }
  const std::size_t groups = model_.table.groups().size();
  ASSERT_EQ(shared.size(), 2 * groups) << "each gives, then takes";
  for (std::size_t call = loans_.next(begin, Kind::acquire);
       loans_.calls[call].group + 1 < static_cast<std::int32_t>(groups);
       call = loans_.next(call + 1, Kind::acquire)) {
    const auto group = static_cast<std::size_t>(loans_.calls[call].group);
    const std::vector<std::uint64_t> own =
        arithmetic_between(call, loans_.next(call, Kind::release));
    ASSERT_FALSE(own.empty());
    EXPECT_TRUE(given_.ordered(shared[2 * group + 1], own.front()));
    expect_unordered({shared.begin() + static_cast<std::ptrdiff_t>(2 * group + 2), shared.end()},
                     own, "the forward of group " + std::to_string(group));
  }
}

/// The watchdog must not count the wait as the rank's own work.
TEST_P(OverlapTest, WholeWeightsAreAWaitForOthers) {
  if (GetParam() > 0) {
    return;  // Only stage 0 gathers masters.
  }
  const std::vector<float> shard(static_cast<std::size_t>(shard_vector_size(model_.table)));
  store_.wait_for_weights();
  PhaseClock clock;
  clock.follow_this_thread();
  Communicator told = comm_.duplicate();
  if (comm_.rank() == 0) {  // until rank 0 has seen the others wait
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (int missing = comm_.size() - 1;
         missing > 0 && std::chrono::steady_clock::now() < patience;) {
      missing -= told.try_receive() ? 1 : 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::atomic<bool> said = false;
  std::atomic<bool> over = false;
  std::thread watch([&] {
    while (!over && !said && comm_.rank() != 0) {
      if (clock.read().waiting) {
        said = true;
        told.send(0, 1, {});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  store_.load(shard);
  over = true;
  watch.join();
  EXPECT_TRUE(said || comm_.rank() == 0);
  comm_.barrier();
  while (told.try_receive()) {  // late reports
  }
  told.close();
}

/// The last gather must report it, too.
TEST_P(OverlapTest, AFailedLastGatherIsHeardOf) {
  if (GetParam() > 0) {
    return;  // Only stage 0 gathers masters.
  }
  const std::vector<float> shard(static_cast<std::size_t>(shard_vector_size(model_.table)));
  store_.load(shard);
  const std::string last = "1:+" + std::to_string(model_.table.groups().size());
  ::setenv("JFORGE_EMULATED_NCCL_FAILURE", last.c_str(), 1);
  try {
    store_.load(shard);
    EXPECT_EQ(comm_.rank(), 0) << "the failing rank was not told";
  } catch (const CommError& error) {
    EXPECT_TRUE(error.cut_off()) << error.what();
  }
  ::unsetenv("JFORGE_EMULATED_NCCL_FAILURE");
}

}  // namespace
}  // namespace jforge
