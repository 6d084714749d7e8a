#include "launch/commands/progress_display.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace jforge {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
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

/// Returns what `show` makes a display print, to a file, in this phase.
template <class Show>
std::string shown(const char* phase, double interval_ms, const Show& show) {
  CaptureStderr();
  ProgressDisplay display({}, interval_ms);
  display.begin(phase);
  show(display);
  return GetCapturedStderr();
}

TEST(ProgressDisplay, PipesGetWholeLinesAndTheLastStepAlways) {
  const std::string text = shown("train round 1", 1000, [](ProgressDisplay& display) {
    display.step(step(1), 3);
    display.step(step(2), 3);
    display.step(step(3), 3);
    display.end();
  });
  EXPECT_THAT(text, AllOf(HasSubstr("train round 1: 3/3 steps, ETA 0 s, "),
                          HasSubstr("loss 1.5000 (consistency 0.5000, AR 0.1000)")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST(ProgressDisplay, ShowsEveryStepWhenTheIntervalIsOver) {
  const std::string text = shown("train round 1", 0, [](ProgressDisplay& display) {
    for (std::int64_t number = 1; number <= 3; ++number) {
      display.step(step(number), 3);
    }
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_THAT(text, HasSubstr("ETA 0 s"));
}

TEST(ProgressDisplay, GenerationShowsPromptsAndTokensPerForward) {
  const std::string text = shown("generate round 2", 0, [](ProgressDisplay& display) {
    display.generation({}, 100);  // no round is open
    display.generation({5, 10, 305, 200, 450, 300}, 100);
  });
  EXPECT_THAT(text, HasSubstr("generate round 2: 5/10 prompts"));
  EXPECT_THAT(text, HasSubstr("block TPF 1.50"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(ProgressDisplay, GenerationShowsTokensAndTimeLeftBeforeTheFirstLeaseIsCommitted) {
  const std::string text = shown("generate round 1", 0, [](ProgressDisplay& display) {
    display.generation({0, 10, 0, 0, 0, 0}, 100);
    display.generation({0, 10, 0, 0, 100, 40}, 100);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    display.generation({0, 10, 0, 0, 300, 120}, 100);
  });
  EXPECT_THAT(text, HasSubstr("generate round 1: 0/10 prompts, no token yet since 0 s\n"));
  EXPECT_THAT(text,
              ContainsRegex("0/10 prompts, ETA at most [0-9]+ s, [0-9]+ tokens/s, 300 tokens, "
                            "block TPF 2.50\n"));
}

// Committed answers have 100 tokens on average.
TEST(ProgressDisplay, TheTimeLeftIsWhatTheCommittedAnswersSay) {
  CaptureStderr();
  std::vector<PhaseProgress> published;
  ProgressDisplay display([&](const PhaseProgress& progress) { published.push_back(progress); }, 0);
  display.begin("generate round 1");
  while (published.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    display.generation({1, 10, 100, 50, 300, 150}, 1000);
  }
  static_cast<void>(GetCapturedStderr());
  const PhaseProgress& last = published.back();
  EXPECT_EQ(last.phase, "generate round 1");
  EXPECT_EQ(last.step, 1);
  EXPECT_EQ(last.total, 10);
  EXPECT_FALSE(last.eta_is_bound);
  ASSERT_TRUE(last.eta_seconds && last.tokens_per_second);
  EXPECT_NEAR(*last.eta_seconds * *last.tokens_per_second, 700, 1e-6);
}

TEST(ProgressDisplay, WhatIsPublishedIsBoundedButTheLastComesAlways) {
  CaptureStderr();
  std::vector<std::int64_t> steps;
  ProgressDisplay display([&](const PhaseProgress& progress) { steps.push_back(progress.step); },
                          0);
  display.begin("train round 1");
  for (std::int64_t number = 1; number <= 200; ++number) {
    display.step(step(number), 200);
  }
  static_cast<void>(GetCapturedStderr());
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back(), 200);
  EXPECT_LT(steps.size(), 100U);
}

TEST(BarLine, StaysWithinTheTerminal) {
  const PhaseProgress progress{.phase = "train round 1",
                               .unit = "steps",
                               .step = 30,
                               .total = 120,
                               .eta_seconds = 200,
                               .detail = "loss 1.2345"};
  const std::string text = "30/120 steps, ETA 3 min 20 s, loss 1.2345";
  EXPECT_EQ(bar_line(progress, 200), "train round 1 [######..................] " + text);
  EXPECT_EQ(bar_line(progress, 60), "train round 1: " + text) << "the bar goes first";
  EXPECT_EQ(bar_line(progress, 41), "train round 1: 30/120 steps, ETA 3 min 2");
  for (int columns = 1; columns < 100; ++columns) {
    EXPECT_LT(bar_line(progress, columns).size(), static_cast<std::size_t>(std::max(columns, 2)));
  }
}

// Rank 0 may learn of the last commits several times.
TEST(ProgressDisplay, GenerationEndsWithOneLineForAllPrompts) {
  const std::string text = shown("generate round 1", 1000, [](ProgressDisplay& display) {
    display.generation({5, 10, 305, 200, 400, 300}, 100);
    display.generation({10, 10, 610, 400, 600, 400}, 100);
    display.generation({10, 10, 610, 400, 600, 400}, 100);
    display.end();
    display.begin("generate round 2");
    display.generation({4, 4, 64, 40, 60, 40}, 100, /*parallel=*/true);
  });
  EXPECT_THAT(text, HasSubstr("generate round 1: 10/10 prompts"));
  EXPECT_THAT(text, HasSubstr("10/10 prompts, ETA 0 s, "));
  EXPECT_THAT(text, HasSubstr("block TPF 1.50\n"));
  EXPECT_THAT(text, HasSubstr("generate round 2: 4/4 prompts"));
  EXPECT_EQ(text.find("block TPF", text.find("round 2")), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(ProgressDisplay, ImportShowsWhatIsReadThenWhatIsTokenised) {
  const std::string text = shown("import", 0, [](ProgressDisplay& display) {
    display.import({.records = 1200, .bytes = 5'250'000, .encoded = 0, .candidates = 0});
    display.import({.records = 2000, .bytes = 9'000'000, .encoded = 4096, .candidates = 10000});
  });
  EXPECT_THAT(text, HasSubstr("import: 1200 records, 5.2 MB read, "));
  EXPECT_THAT(text, HasSubstr(" MB/s\n"));
  EXPECT_THAT(text,
              ContainsRegex("import: 4096/10000 prompts tokenised, ETA [0-9]+ s, 2000 records, "
                            "9.0 MB read\n"));
}

TEST(ProgressDisplay, EvaluationShowsTokensPerSecondAndTimeLeftAndEndsOnce) {
  const std::string text = shown("evaluate final", 1000, [](ProgressDisplay& display) {
    const auto progress = [](std::string task, std::int64_t done, std::int64_t tokens) {
      return EvaluationProgress{
          .task = std::move(task),
          .method = "jacobi",
          .samples_done = done,
          .samples_total = 3,
          .samples_here = done,
          .cost = {.sequences = 2, .tokens = tokens, .forwards = tokens / 2 - 1}};
    };
    display.evaluation(progress("gsm8k", 1, 40));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    display.evaluation(progress("math", 2, 60));
    display.evaluation(progress("math", 3, 100));
    display.evaluation(progress("math", 3, 100));
  });
  EXPECT_THAT(text, testing::MatchesRegex("evaluate final: 3/3 samples, ETA 0 s, math jacobi: "
                                          "[0-9]+ tokens/s on this rank, TPF 2.00\n"));
  const double rate = std::stod(text.substr(text.find("jacobi: ") + 8));
  EXPECT_GT(rate, 0);
  EXPECT_LE(rate, 140 / 0.02) << "140 tokens in 20 ms or more";
}

TEST(ProgressDisplay, CommunicationIsShownWhereThereIsAny) {
  CaptureStderr();
  ProgressDisplay display({}, 0);
  display.begin("train round 1");
  StepMetrics metrics = step(1);
  display.step(metrics, 2);
  EXPECT_THAT(GetCapturedStderr(), Not(HasSubstr("sent")));
  CaptureStderr();
  metrics = step(2);
  metrics.milliseconds = 200;
  metrics.communication_milliseconds = 50;
  metrics.payload_bytes = 12'300'000;
  display.step(metrics, 2);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("12.3 MB sent, 25 % waited for them"));
}

TEST(ProgressDisplay, StragglersAreNamed) {
  CaptureStderr();
  ProgressDisplay display({}, 0);
  display.begin("train round 1");
  StepMetrics metrics = step(1);
  metrics.slowest_rank = 3;
  metrics.straggler_ratio = 2.5;
  display.step(metrics, 2);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("rank 3 is 2.5x slower"));
}

}  // namespace
}  // namespace jforge
