#include "launch/commands/progress_display.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace jforge {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(FormatDuration, SecondsMinutesHours) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(12.4), "12 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1 min 00 s");
  EXPECT_EQ(format_duration(200), "3 min 20 s");
  EXPECT_EQ(format_duration(3599), "59 min 59 s");
  EXPECT_EQ(format_duration(3600), "1 h 00 min");
  EXPECT_EQ(format_duration(3725), "1 h 02 min");
  EXPECT_EQ(format_duration(-5), "0 s");  // an estimate may overshoot
}

StepMetrics step(std::int64_t number) {
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = 1.5;
  metrics.consistency = 0.5;
  metrics.autoregressive = 0.1;
  return metrics;
}

// Captured standard error is a file, so this is the form of a pipe or a Slurm log.
TEST(ProgressDisplay, PipesGetWholeLinesAndTheLastStepAlways) {
  CaptureStderr();
  ProgressDisplay display(1000);
  display.begin("train round 1");
  display.step(step(1), 3);
  display.step(step(2), 3);
  display.step(step(3), 3);
  display.end();
  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text,
              HasSubstr("train round 1: step 3/3, loss 1.5000 (consistency 0.5000, AR 0.1000)"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST(ProgressDisplay, ShowsEveryStepWhenTheIntervalIsOver) {
  CaptureStderr();
  ProgressDisplay display(0);
  display.begin("train round 1");
  for (std::int64_t number = 1; number <= 3; ++number) {
    display.step(step(number), 3);
  }
  const std::string text = GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_THAT(text, HasSubstr("ETA 0 s"));
}

TEST(ProgressDisplay, GenerationShowsPromptsAndTokensPerForward) {
  CaptureStderr();
  ProgressDisplay display(0);
  display.begin("generate round 2");
  display.generation({0, 0, 0, 0});  // no round is open: nothing to show
  display.generation({5, 10, 300, 200});
  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("generate round 2: 5/10 prompts"));
  EXPECT_THAT(text, HasSubstr("TPF 1.50"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(ProgressDisplay, GenerationShowsLifeBeforeTheFirstLeaseIsCommitted) {
  CaptureStderr();
  ProgressDisplay display(0);
  display.begin("generate round 1");
  display.generation({0, 10, 0, 0});
  EXPECT_EQ(GetCapturedStderr(),
            "generate round 1: 0/10 prompts, the first leases are being decoded since 0 s\n");
}

// The last prompts are committed by any rank, and rank 0 may be told of it several times.
TEST(ProgressDisplay, GenerationEndsWithOneLineForAllPrompts) {
  CaptureStderr();
  ProgressDisplay display(1000);
  display.begin("generate round 1");
  display.generation({5, 10, 300, 200});
  display.generation({10, 10, 600, 400});
  display.generation({10, 10, 600, 400});
  display.end();
  display.begin("generate round 2");
  display.generation({4, 4, 60, 40});
  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("generate round 1: 10/10 prompts"));
  EXPECT_THAT(text, HasSubstr("TPF 1.50, ETA 0 s\n"));
  EXPECT_THAT(text, HasSubstr("generate round 2: 4/4 prompts"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(ProgressDisplay, ImportShowsWhatIsReadThenWhatIsTokenised) {
  CaptureStderr();
  ProgressDisplay display(0);
  display.begin("import");
  display.import({.records = 1200, .bytes = 5'250'000, .encoded = 0, .candidates = 0});
  display.import({.records = 2000, .bytes = 9'000'000, .encoded = 4096, .candidates = 10000});
  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("import: 1200 records, 5.2 MB read, "));
  EXPECT_THAT(text, HasSubstr(" MB/s\n"));
  EXPECT_THAT(text, HasSubstr("2000 records, 9.0 MB read; 4096/10000 prompts tokenised\n"));
}

TEST(ProgressDisplay, EvaluationShowsTokensPerSecondAndTimeLeftAndEndsOnce) {
  CaptureStderr();
  ProgressDisplay display(1000);
  display.begin("evaluate final");
  const auto progress = [](std::string task, std::int64_t done, std::int64_t tokens) {
    return EvaluationProgress{.task = std::move(task),
                              .method = "jacobi",
                              .samples_done = done,
                              .samples_total = 3,
                              .samples_here = done,
                              .tokens = tokens,
                              .forwards = tokens / 2};
  };
  display.evaluation(progress("gsm8k", 1, 40));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  display.evaluation(progress("math", 2, 60));
  display.evaluation(progress("math", 3, 100));
  display.evaluation(progress("math", 3, 100));
  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text, testing::MatchesRegex("evaluate final: math jacobi: 3/3 samples, [0-9]+ "
                                          "tokens/s on this rank, TPF 2.00, ETA 0 s\n"));
  const double rate = std::stod(text.substr(text.find("samples, ") + 9));
  EXPECT_GT(rate, 0);
  EXPECT_LE(rate, 140 / 0.02) << "140 tokens in 20 ms or more";
}

TEST(ProgressDisplay, StragglersAreNamed) {
  CaptureStderr();
  ProgressDisplay display(0);
  display.begin("train round 1");
  StepMetrics metrics = step(1);
  metrics.slowest_rank = 3;
  metrics.straggler_ratio = 2.5;
  display.step(metrics, 2);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("rank 3 is 2.5x slower"));
}

}  // namespace
}  // namespace jforge
