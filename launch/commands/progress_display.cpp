#include "launch/commands/progress_display.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "runtime/console.h"

namespace jforge {

namespace {
using Clock = std::chrono::steady_clock;

constexpr double kTerminalInterval = 0.2;
constexpr double kPublishInterval = 2;
constexpr int kBarWidth = 24;

double seconds_shown_since(Clock::time_point start) {
  return std::max(1e-9, std::chrono::duration<double>(Clock::now() - start).count());
}

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(1, whole));
}

/// Seconds left; empty before any progress.
std::optional<double> time_left(double seconds, double done, double total) {
  return done > 0 ? std::optional(seconds * std::max(0.0, total - done) / done) : std::nullopt;
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

std::string describe(const PhaseProgress& progress) {
  std::string text = progress.total
                         ? fmt::format("{}/{} {}", progress.step, *progress.total, progress.unit)
                         : fmt::format("{} {}", progress.step, progress.unit);
  if (progress.eta_seconds) {
    text += fmt::format(", ETA {}{}", progress.eta_is_bound ? "at most " : "",
                        format_duration(*progress.eta_seconds));
  }
  if (progress.tokens_per_second) {
    text += fmt::format(", {:.0f} tokens/s", *progress.tokens_per_second);
  }
  return progress.detail.empty() ? text : text + ", " + progress.detail;
}

std::string bar_line(const PhaseProgress& progress, int columns) {
  // Some terminals wrap after a full line.
  const auto room = static_cast<std::size_t>(std::max(columns, 2) - 1);
  const double done = progress.total ? ratio(progress.step, *progress.total) : 0;
  const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * kBarWidth);
  const std::string text = describe(progress);
  std::string line = fmt::format("{} [{:#<{}}{:.<{}}] {}", progress.phase, "", filled, "",
                                 kBarWidth - filled, text);
  if (line.size() > room) {
    line = progress.phase + ": " + text;
  }
  return line.substr(0, room);
}

ProgressDisplay::ProgressDisplay(Publish publish, double interval_seconds)
    : publish_(std::move(publish)),
      terminal_(Terminal::of_standard_error()),
      interval_seconds_(terminal_ ? kTerminalInterval : interval_seconds) {}

void ProgressDisplay::begin(const std::string& phase) {
  end();
  phase_ = phase;
  start_ = shown_ = published_ = Clock::now();
  first_step_ = -1;
  first_tokens_.reset();
  first_encoded_.reset();
  evaluated_.clear();
  evaluated_tokens_ = 0;
  last_shown_ = false;
}

bool ProgressDisplay::due(bool last) {
  if (last && last_shown_) {
    return false;
  }
  show_now_ = last || seconds_shown_since(shown_) >= interval_seconds_;
  publish_now_ = publish_ && (last || seconds_shown_since(published_) >= kPublishInterval);
  if (show_now_) {
    shown_ = Clock::now();
  }
  if (publish_now_) {
    published_ = Clock::now();
  }
  last_shown_ = last;
  return show_now_ || publish_now_;
}

void ProgressDisplay::show(const PhaseProgress& progress, bool last) {
  if (publish_now_) {
    publish_(progress);
  }
  if (!show_now_) {
    return;
  }
  if (terminal_) {
    tell_bar(bar_line(progress, terminal_.columns()), last);
  } else {
    tell(stderr, fmt::format("{}: {}\n", progress.phase, describe(progress)));
  }
}

void ProgressDisplay::import(const ImportProgress& progress) {
  if (progress.candidates > 0 && !first_encoded_) {
    first_encoded_ = Clock::now();
  }
  if (!due(false)) {
    return;
  }
  const double megabytes = static_cast<double>(progress.bytes) / 1e6;
  PhaseProgress now{.phase = phase_, .unit = "records", .step = progress.records};
  if (progress.candidates == 0) {
    now.detail = fmt::format("{:.1f} MB read, {:.1f} MB/s", megabytes,
                             megabytes / seconds_shown_since(start_));
  } else {
    now.unit = "prompts tokenised";
    now.step = progress.encoded;
    now.total = progress.candidates;
    now.eta_seconds =
        time_left(seconds_shown_since(*first_encoded_), static_cast<double>(progress.encoded),
                  static_cast<double>(progress.candidates));
    now.detail = fmt::format("{} records, {:.1f} MB read", progress.records, megabytes);
  }
  show(now, false);
}

void ProgressDisplay::generation(const GenerationProgress& progress, std::int64_t max_new_tokens,
                                 bool parallel) {
  // Heartbeats come once a second, so a short round may end first.
  const std::int64_t tokens_made = std::max(progress.tokens_made, progress.tokens);
  if (tokens_made > 0 && !first_tokens_) {
    first_tokens_ = progress.tokens > 0 ? start_ : Clock::now();
    tokens_then_ = progress.tokens > 0 ? 0 : tokens_made;
  }
  const bool last = progress.prompts_done == progress.prompts_total;
  if (progress.prompts_total == 0 || !due(last)) {
    return;
  }
  PhaseProgress now{.phase = phase_,
                    .unit = "prompts",
                    .step = progress.prompts_done,
                    .total = progress.prompts_total};
  if (!first_tokens_) {
    now.detail = "no token yet since " + format_duration(seconds_shown_since(start_));
    show(now, last);
    return;
  }
  const double seconds = seconds_shown_since(*first_tokens_);
  const auto made = static_cast<double>(tokens_made - tokens_then_);
  // Tokens of an answer: the committed mean, else the maximum.
  const double answer = progress.prompts_done > 0 ? ratio(progress.tokens, progress.prompts_done)
                                                  : static_cast<double>(max_new_tokens);
  const double left =
      answer * static_cast<double>(progress.prompts_total) - static_cast<double>(tokens_made);
  now.tokens_per_second = made > 0 ? std::optional(made / seconds) : std::nullopt;
  now.eta_seconds = last ? 0 : time_left(seconds, made, made + std::max(0.0, left));
  now.eta_is_bound = progress.prompts_done == 0;
  const DecodingCost blocks{
      .sequences = progress.prompts_done, .tokens = progress.tokens, .forwards = progress.forwards};
  now.detail = fmt::format("{} tokens", tokens_made);
  if (!parallel) {
    now.detail += fmt::format(
        ", block TPF {:.2f}",
        blocks.tokens_per_forward().value_or(ratio(progress.tokens_made, progress.forwards_made)));
  }
  show(now, last);
}

void ProgressDisplay::step(const StepMetrics& metrics, std::int64_t total_steps) {
  if (first_step_ < 0) {
    first_step_ = metrics.step - 1;
  }
  const bool last = metrics.step == total_steps;
  if (!due(last)) {
    return;
  }
  PhaseProgress now{.phase = phase_, .unit = "steps", .step = metrics.step, .total = total_steps};
  now.eta_seconds =
      time_left(seconds_shown_since(start_), static_cast<double>(metrics.step - first_step_),
                static_cast<double>(total_steps - first_step_));
  now.tokens_per_second = metrics.tokens_per_second;
  now.detail = fmt::format(
      "loss {:.4f} (consistency {:.4f}, AR {:.4f}), grad norm {:.2f}, lr {:.2e}", metrics.loss,
      metrics.consistency, metrics.autoregressive, metrics.gradient_norm, metrics.learning_rate);
  if (metrics.skipped_steps > 0) {
    now.detail += fmt::format(", {} update{} left out", metrics.skipped_steps,
                              metrics.skipped_steps == 1 ? "" : "s");
  }
  if (metrics.held_out_tpf) {
    now.detail += fmt::format(", held-out TPF {:.2f}", *metrics.held_out_tpf);
  }
  if (metrics.mfu) {
    now.detail += fmt::format(", MFU {:.1f} %", 100 * *metrics.mfu);
  }
  if (metrics.payload_bytes > 0 && metrics.milliseconds > 0) {
    now.detail += fmt::format(", {:.1f} MB sent, {:.0f} % waited for them",
                              static_cast<double>(metrics.payload_bytes) / 1e6,
                              100 * metrics.communication_milliseconds / metrics.milliseconds);
  }
  if (metrics.straggler_ratio > 1.5) {
    now.detail += fmt::format(", rank {} is {:.1f}x slower than the mean", metrics.slowest_rank,
                              metrics.straggler_ratio);
  }
  show(now, last);
}

void ProgressDisplay::count_evaluated(const EvaluationProgress& progress) {
  std::int64_t& seen = evaluated_[progress.task + ' ' + progress.method];
  evaluated_tokens_ += progress.cost.tokens - seen;
  seen = progress.cost.tokens;
}

void ProgressDisplay::evaluation(const EvaluationProgress& progress) {
  count_evaluated(progress);
  const bool last = progress.samples_done == progress.samples_total;
  if (progress.samples_total == 0 || !due(last)) {
    return;
  }
  const double elapsed = seconds_shown_since(start_);
  PhaseProgress now{.phase = phase_,
                    .unit = "samples",
                    .step = progress.samples_done,
                    .total = progress.samples_total};
  now.eta_seconds = time_left(elapsed, static_cast<double>(progress.samples_done),
                              static_cast<double>(progress.samples_total));
  now.detail = fmt::format("{} {}: {:.0f} tokens/s on this rank, TPF {:.2f}", progress.task,
                           progress.method, static_cast<double>(evaluated_tokens_) / elapsed,
                           progress.cost.tokens_per_forward().value_or(0));
  show(now, last);
}

void ProgressDisplay::end() { end_bar(); }

}  // namespace jforge
