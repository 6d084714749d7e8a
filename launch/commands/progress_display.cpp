#include "launch/commands/progress_display.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace jforge {

namespace {
constexpr double kTerminalInterval = 0.2;
constexpr int kBarWidth = 24;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
}  // namespace

std::string format_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 3600) {
    return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  }
  if (whole >= 60) {
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  return fmt::format("{} s", whole);
}

ProgressDisplay::ProgressDisplay(double interval_seconds)
    : terminal_(::isatty(STDERR_FILENO) != 0),
      interval_seconds_(terminal_ ? kTerminalInterval : interval_seconds) {}

void ProgressDisplay::begin(const std::string& phase) {
  end();
  phase_ = phase;
  start_ = std::chrono::steady_clock::now();
  shown_ = start_;
  first_step_ = -1;
  evaluated_.clear();
  evaluated_tokens_ = 0;
  last_shown_ = false;
}

bool ProgressDisplay::due(bool last) {
  if (last ? last_shown_ : seconds_since(shown_) < interval_seconds_) {
    return false;
  }
  last_shown_ = last;
  shown_ = std::chrono::steady_clock::now();
  return true;
}

void ProgressDisplay::show(double done, const std::string& text, bool last) {
  if (terminal_) {
    const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * kBarWidth);
    fmt::print(stderr, "\r\033[K{} [{:#<{}}{:.<{}}] {}", phase_, "", filled, "", kBarWidth - filled,
               text);
    bar_open_ = !last;
    if (last) {
      fmt::print(stderr, "\n");
    }
  } else {
    fmt::print(stderr, "{}: {}\n", phase_, text);
  }
  std::fflush(stderr);
}

void ProgressDisplay::import(const ImportProgress& progress) {
  if (!due(false)) {
    return;
  }
  const double megabytes = static_cast<double>(progress.bytes) / 1e6;
  const double elapsed = std::max(1e-9, seconds_since(start_));
  if (progress.candidates == 0) {
    show(0,
         fmt::format("{} records, {:.1f} MB read, {:.1f} MB/s", progress.records, megabytes,
                     megabytes / elapsed),
         false);
    return;
  }
  show(static_cast<double>(progress.encoded) / static_cast<double>(progress.candidates),
       fmt::format("{} records, {:.1f} MB read; {}/{} prompts tokenised", progress.records,
                   megabytes, progress.encoded, progress.candidates),
       false);
}

void ProgressDisplay::generation(const GenerationProgress& progress) {
  const bool last = progress.prompts_done == progress.prompts_total;
  if (progress.prompts_total == 0 || !due(last)) {
    return;
  }
  const double elapsed = std::max(1e-9, seconds_since(start_));
  if (progress.prompts_done == 0) {
    show(0,
         fmt::format("0/{} prompts, the first leases are being decoded since {}",
                     progress.prompts_total, format_duration(elapsed)),
         false);
    return;
  }
  const double done =
      static_cast<double>(progress.prompts_done) / static_cast<double>(progress.prompts_total);
  show(done,
       fmt::format("{}/{} prompts, {:.0f} tokens/s, TPF {:.2f}, ETA {}", progress.prompts_done,
                   progress.prompts_total, static_cast<double>(progress.tokens) / elapsed,
                   static_cast<double>(progress.tokens) /
                       static_cast<double>(std::max<std::int64_t>(1, progress.forwards)),
                   format_duration(elapsed * (1 - done) / done)),
       last);
}

void ProgressDisplay::step(const StepMetrics& metrics, std::int64_t total_steps) {
  if (first_step_ < 0) {
    first_step_ = metrics.step - 1;
  }
  const bool last = metrics.step == total_steps;
  if (!due(last)) {
    return;
  }
  const double per_step = seconds_since(start_) / static_cast<double>(metrics.step - first_step_);
  std::string text = fmt::format(
      "step {}/{}, loss {:.4f} (consistency {:.4f}, AR {:.4f}), grad norm {:.2f}, lr {:.2e}, "
      "{:.0f} tokens/s",
      metrics.step, total_steps, metrics.loss, metrics.consistency, metrics.autoregressive,
      metrics.gradient_norm, metrics.learning_rate, metrics.tokens_per_second);
  if (metrics.mfu) {
    text += fmt::format(", MFU {:.1f} %", 100 * *metrics.mfu);
  }
  if (metrics.straggler_ratio > 1.5) {
    text += fmt::format(", rank {} is {:.1f}x slower than the mean", metrics.slowest_rank,
                        metrics.straggler_ratio);
  }
  text += ", ETA " + format_duration(per_step * static_cast<double>(total_steps - metrics.step));
  show(static_cast<double>(metrics.step) / static_cast<double>(total_steps), text, last);
}

void ProgressDisplay::count_evaluated(const EvaluationProgress& progress) {
  std::int64_t& seen = evaluated_[progress.task + ' ' + progress.method];
  evaluated_tokens_ += progress.tokens - seen;
  seen = progress.tokens;
}

void ProgressDisplay::evaluation(const EvaluationProgress& progress) {
  count_evaluated(progress);
  const bool last = progress.samples_done == progress.samples_total;
  if (progress.samples_total == 0 || !due(last)) {
    return;
  }
  const double elapsed = std::max(1e-9, seconds_since(start_));
  const double done =
      static_cast<double>(progress.samples_done) / static_cast<double>(progress.samples_total);
  show(done,
       fmt::format("{} {}: {}/{} samples, {:.0f} tokens/s on this rank, TPF {:.2f}, ETA {}",
                   progress.task, progress.method, progress.samples_done, progress.samples_total,
                   static_cast<double>(evaluated_tokens_) / elapsed,
                   static_cast<double>(progress.tokens) /
                       static_cast<double>(std::max<std::int64_t>(1, progress.forwards)),
                   done > 0 ? format_duration(elapsed * (1 - done) / done) : "?"),
       last);
}

void ProgressDisplay::end() {
  if (bar_open_) {
    fmt::print(stderr, "\n");
    bar_open_ = false;
  }
}

}  // namespace jforge
