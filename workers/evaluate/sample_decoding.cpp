#include "workers/evaluate/sample_decoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/sandbox/remembered_runs.h"
#include "workers/evaluate/sandbox/sandbox.h"

namespace jforge {

namespace {

constexpr auto kGradingPoll = std::chrono::milliseconds(5);
constexpr std::int32_t kWarmUpRows = 512;

}  // namespace

SampleDecoding::SampleDecoding(const EvaluateConfig& config, const EvaluationPlan& plan,
                               const EvaluationContext& context, MemoryAccount& account)
    : config_(config),
      plan_(plan),
      context_(context),
      account_(account),
      deadline_seconds_(context.clock.read().deadline_seconds),
      shares_(plan.runs().size()) {}

/// In lease order: by task and method, so that a rank rarely switches.
std::vector<SampleDecoding::WorkItem> SampleDecoding::items_left() const {
  const std::vector<MethodRun>& runs = plan_.runs();
  std::vector<WorkItem> items;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    if (runs[run].current) {
      continue;
    }
    const std::set<PromptId> done(runs[run].done.begin(), runs[run].done.end());
    for (const PromptId id : runs[run].samples()) {
      if (!done.contains(id)) {
        items.push_back({run, id});
      }
    }
  }
  return items;
}

std::vector<std::int64_t> SampleDecoding::group_ends() const {
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (i + 1 == items_.size() || items_[i + 1].run != items_[i].run) {
      ends.push_back(static_cast<std::int64_t>(i) + 1);
    }
  }
  return ends;
}

/// Collective. Throws before decoding if programs cannot run.
void SampleDecoding::build_grader() {
  const bool runs_code = std::ranges::any_of(
      plan_.sets(), [](const ProblemSet& set) { return set.task->runs_code(); });
  if (runs_code) {
    programs_ = share_host_programs(context_.comm);
  }
  together(context_.comm, [&] {
    if (runs_code) {
      SandboxOptions options;
      options.cancelled = [this] { return abandoned_ || stop_requested(); };
      options.waiting = [this] { ++waits_; };
      code_runner_ = remember_runs(std::make_unique<Sandbox>(options));
    }
    grader_.emplace(code_runner_.get(), programs_.threads, programs_.turns.get());
  });
}

void SampleDecoding::build_transformer() {
  const auto slots = std::min(static_cast<std::size_t>(config_.batch_prompts), items_.size());
  transformer_ =
      plan_.make_transformer(context_.kernels, account_, static_cast<std::int32_t>(slots));
  if (context_.kernels.device() != Device::cpu) {
    warm_up();
  }
}

/// A device's first pass loads code and allocates buffers, which must not count for a method.
void SampleDecoding::warm_up() {
  std::vector<DecodeRow> rows(
      static_cast<std::size_t>(std::min(transformer_->slot_capacity(), kWarmUpRows)));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].place.position = static_cast<std::int32_t>(i);
  }
  std::vector<TokenId> predictions(rows.size());
  transformer_->predict(rows, predictions);
  transformer_->release(0);
}

bool SampleDecoding::run() {
  items_ = items_left();
  if (items_.empty()) {
    return true;
  }
  build_grader();
  const PhaseClock::Reading caller = context_.clock.read();
  together(context_.comm, [&] { build_transformer(); });
  WorkQueue queue(context_.comm, group_ends(), config_.batch_prompts);
  // A waiting rank is never reported as hung; the slow rank's own clock detects a hang.
  const bool stopped = work_together(
      context_.comm, queue, [&] { decode_leases(queue); },
      [&] {
        context_.clock.enter(
            fmt::format("evaluate {} (waiting for other ranks)", plan_.model().name));
      });
  context_.clock.enter(caller.phase, caller.deadline_seconds);
  // Other ranks may have finished the last samples.
  if (!stopped && told_ < std::ssize(items_)) {
    tell_progress(plan_.runs()[items_.back().run], queue);
  }
  queue.close();
  transformer_.reset();
  return !agree(context_.comm, stopped || stop_requested(), {});
}

/// Returns when all leased samples are committed and none are left, or after a stop.
void SampleDecoding::decode_leases(WorkQueue& queue) {
  fault_point("evaluate.lease");
  while (const auto next = queue.peek(/*wait=*/true)) {
    const std::size_t run = items_[static_cast<std::size_t>(*next)].run;
    context_.clock.enter(fmt::format("evaluate {} {} {}", plan_.model().name,
                                     plan_.runs()[run].task(), plan_.runs()[run].method.label),
                         deadline_seconds_);
    decode_run(run, queue);
  }
  while (grader_->pending() && !queue.stopped()) {
    std::this_thread::sleep_for(kGradingPoll);
    attend_grading(queue);
  }
}

/// Limited so that all ranks get an equal number.
std::int32_t SampleDecoding::even_share(std::size_t run) const {
  const std::int64_t count =
      std::ranges::count_if(items_, [run](const WorkItem& item) { return item.run == run; });
  const std::int64_t share = (count + context_.comm.size() - 1) / context_.comm.size();
  return static_cast<std::int32_t>(std::min<std::int64_t>(config_.batch_prompts, share));
}

void SampleDecoding::decode_run(std::size_t run, WorkQueue& queue) {
  DecodeEngine engine(*transformer_, even_share(run));
  do {
    admit_leased(engine, run, queue);
    if (engine.running() == 0) {
      return;
    }
    engine.step();
    while (const auto result = engine.take_finished()) {
      hand_to_grader(run, *result, engine.statistics(), queue);
    }
    context_.clock.progress(samples_here_);
    attend_grading(queue);
  } while (!queue.stopped());
}

/// Stops at a lease of another task or method.
void SampleDecoding::admit_leased(DecodeEngine& engine, std::size_t run_index, WorkQueue& queue) {
  const MethodRun& run = plan_.runs()[run_index];
  while (engine.free_slots() > 0) {
    const auto next = queue.peek(/*wait=*/engine.running() == 0);
    if (!next || items_[static_cast<std::size_t>(*next)].run != run_index) {
      return;
    }
    queue.pop();
    const PromptId id = items_[static_cast<std::size_t>(*next)].id;
    engine.admit(run.method.make(run.set.request(id, plan_.model().config.eos_ids)));
  }
}

void SampleDecoding::hand_to_grader(std::size_t run_index, const DecodeResult& result,
                                    const DecodeStatistics& statistics, WorkQueue& queue) {
  while (grader_->full() && !queue.stopped()) {
    std::this_thread::sleep_for(kGradingPoll);
    attend_grading(queue);
  }
  if (queue.stopped()) {
    return;
  }
  const MethodRun& run = plan_.runs()[run_index];
  grader_->add(*run.set.task, run.set.problem(result.id).record,
               decoded_sample(run_index, result, statistics));
  commit_graded(queue);
}

/// Fills the fields known before grading.
GradedSample SampleDecoding::decoded_sample(std::size_t run, const DecodeResult& result,
                                            const DecodeStatistics& statistics) const {
  const ProblemSet& set = plan_.runs()[run].set;
  const Problem& problem = set.problem(result.id);
  GradedSample graded{.run = run, .sample = {}};
  SampleRecord& record = graded.sample.record;
  record.index = problem.index;
  record.sample = sample_of(result.id);
  record.id = problem.record.id;
  record.prompt_hash = problem.hash;
  record.settings = plan_.runs()[run].settings;
  record.tokens = static_cast<std::int64_t>(result.tokens.size());
  record.forwards = result.forwards;
  record.prefill_forwards = result.prefill_forwards;
  record.stopped_by_eos = result.stop == StopReason::eos;
  record.token_hash = hash_hex(hash64(std::as_bytes(std::span(result.tokens))));
  record.text = set.text_of(result.tokens, plan_.tokenizer());
  graded.sample.timing = {.attempt = plan_.runs()[run].attempt,
                          .rank = context_.comm.rank(),
                          .ranks = context_.comm.size(),
                          .batch_prompts = config_.batch_prompts,
                          .decode_seconds = statistics.decode_seconds,
                          .prefill_seconds = statistics.prefill_seconds};
  return graded;
}

/// Commits graded samples, reports progress and forwards a stop.
void SampleDecoding::attend_grading(WorkQueue& queue) {
  commit_graded(queue);
  const std::uint64_t signs = grader_->signs_of_life() + waits_;
  if (std::exchange(grading_signs_, signs) != signs) {
    context_.clock.progress(samples_here_);
  }
  if (stop_requested()) {
    queue.stop();
  }
}

void SampleDecoding::commit_graded(WorkQueue& queue) {
  for (const GradedSample& graded : grader_->take()) {
    commit(graded, queue);
  }
}

void SampleDecoding::commit(const GradedSample& graded, WorkQueue& queue) {
  const MethodRun& run = plan_.runs()[graded.run];
  Share& share = shares_[graded.run];
  if (!share.log) {
    share.log.emplace(run.files.part(run.attempt, context_.comm.rank(), context_.comm.size()));
  }
  const std::string line = to_line(graded.sample.record, graded.sample.timing);
  share.log->append(line);
  share.lines += line;
  share.lines += '\n';
  share.cost += cost_of(graded.sample.record);
  samples_here_ += 1;
  queue.finished();
  context_.clock.progress(samples_here_);
  tell_progress(run, queue);
  fault_point("evaluate");
}

void SampleDecoding::tell_progress(const MethodRun& run, const WorkQueue& queue) {
  told_ = queue.finished_by_all();
  if (context_.on_progress) {
    const Share& share = shares_[static_cast<std::size_t>(&run - plan_.runs().data())];
    context_.on_progress({.task = run.task(),
                          .method = run.method.label,
                          .samples_done = told_,
                          .samples_total = std::ssize(items_),
                          .samples_here = samples_here_,
                          .cost = share.cost});
  }
}

}  // namespace jforge
