#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/error.h"
#include "tests/support/mpi_test.h"

namespace jforge::test {

namespace {
const Communicator* world_of_tests = nullptr;

struct Options {
  int world_size = 0;
  /// A test's limit on a rank, below ctest's 300 s for a program, which would not say which test
  /// hangs.
  int deadline_seconds = 240;
};

std::optional<int> number_after(std::string_view argument, std::string_view name) {
  if (!argument.starts_with(name)) {
    return std::nullopt;
  }
  argument.remove_prefix(name.size());
  int value = 0;
  const auto [end, code] =
      std::from_chars(argument.data(), argument.data() + argument.size(), value);
  if (code != std::errc{} || end != argument.data() + argument.size() || value < 1) {
    throw ConfigError(std::string(name) + " needs a positive number");
  }
  return value;
}

/// GoogleTest has already taken its own options.
Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (const auto ranks = number_after(argv[i], "--world-size=")) {
      options.world_size = *ranks;
    } else if (const auto seconds = number_after(argv[i], "--test-deadline=")) {
      options.deadline_seconds = *seconds;
    } else {
      throw ConfigError(std::string("unknown option ") + argv[i] +
                        "; known: --world-size=N, --test-deadline=SECONDS");
    }
  }
  if (options.world_size == 0) {
    throw ConfigError("--world-size=N is missing: a distributed test says how many ranks it needs");
  }
  return options;
}

/// After every test all ranks learn who failed it; the watchdog ends a job whose rank never
/// arrives.
class AgreementListener : public ::testing::EmptyTestEventListener {
 public:
  AgreementListener(const Communicator& harness, PhaseClock& clock, int deadline_seconds)
      : harness_(harness), clock_(clock), deadline_seconds_(deadline_seconds) {}

  void OnTestStart(const ::testing::TestInfo& test) override {
    clock_.enter(std::string(test.test_suite_name()) + "." + test.name(), deadline_seconds_);
  }

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    // Rank 0 has GoogleTest's own printer.
    if (result.failed() && harness_.rank() != 0) {
      std::fprintf(stderr, "[rank %d] %s:%d: %s\n", harness_.rank(),
                   result.file_name() == nullptr ? "unknown file" : result.file_name(),
                   result.line_number(), result.message());
    }
  }

  void OnTestEnd(const ::testing::TestInfo& test) override {
    const std::int32_t mine = test.result()->Failed() ? 1 : 0;
    std::vector<std::int32_t> failed(static_cast<std::size_t>(harness_.size()));
    all_gather<std::int32_t>(harness_, std::span(&mine, 1), failed);
    std::string ranks;
    for (std::size_t rank = 0; rank < failed.size(); ++rank) {
      ranks += failed[rank] != 0 ? " " + std::to_string(rank) : "";
    }
    if (!ranks.empty() && mine == 0) {
      ADD_FAILURE() << "failed on rank(s)" << ranks;
    }
    if (!ranks.empty() && harness_.rank() == 0) {
      std::fprintf(stderr, "%s.%s failed on rank(s)%s\n", test.test_suite_name(), test.name(),
                   ranks.c_str());
    }
    clock_.enter("between tests", deadline_seconds_);
  }

 private:
  const Communicator& harness_;
  PhaseClock& clock_;
  int deadline_seconds_;
};

int run_tests(const Communicator& world, const Options& options) {
  if (world.size() != options.world_size) {
    std::fprintf(stderr, "this test needs %d ranks and runs on %d\n", options.world_size,
                 world.size());
    return 1;
  }
  // Separate, so that a test out of step does not confuse the harness.
  Communicator harness = world.duplicate();
  PhaseClock clock;
  clock.enter("before the first test", options.deadline_seconds);
  const HangWatchdog watchdog(clock, [&](const PhaseClock::Reading& reading) {
    std::fprintf(stderr, "rank %d hangs in %s for %.0f s\n", world.rank(), reading.phase.c_str(),
                 reading.age_seconds);
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(ExitCode::internal));
  });
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
  }
  listeners.Append(new AgreementListener(harness, clock, options.deadline_seconds));
  world_of_tests = &world;
  int result = RUN_ALL_TESTS();
  world_of_tests = nullptr;
  if (::testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::fprintf(stderr, "no test was selected\n");
    result = 1;
  }
  // A failure in an environment's set-up fails all ranks.
  std::int32_t worst = result;
  all_reduce_max(harness, std::span(&worst, 1));
  harness.close();
  return worst;
}
}  // namespace

const Communicator& test_world() {
  expect(world_of_tests != nullptr, "test_world() outside of a test");
  return *world_of_tests;
}

}  // namespace jforge::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    const auto options = jforge::test::parse_options(argc, argv);
    jforge::MpiSession session(&argc, &argv);
    const int result = jforge::test::run_tests(session.world(), options);
    session.finalize();
    return result;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    jforge::MpiSession::abort(1);
  }
}
