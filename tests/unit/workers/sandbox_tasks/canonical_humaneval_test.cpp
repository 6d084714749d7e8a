#include <chrono>

#include "tests/unit/workers/sandbox_tasks/benchmark_fixture.h"

namespace jforge {
namespace {

TEST_F(BenchmarkTest, EveryCanonicalSolutionOfHumanevalPasses) {
  const auto task = make_task("humaneval");
  const auto records = task->load(data_);
  ASSERT_EQ(records.size(), 164u);
  const auto begin = std::chrono::steady_clock::now();
  expect_all(true, records, grade(*task, records, programs_of(records, canonical_program)));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("164 programs in {:.1f} s\n", seconds.count());
}

/// A chat model answers with whole programs in text.
TEST_F(BenchmarkTest, EveryFourthCanonicalSolutionOfHumanevalPassesInEachStyle) {
  for (const char* style : {"lm-eval", "evalplus"}) {
    const auto task = make_task("humaneval", {.prompt_style = style});
    const auto records = every(4, task->load(data_));
    expect_all(true, records, grade(*task, records, programs_of(records, canonical_program)));
  }
}

}  // namespace
}  // namespace jforge
