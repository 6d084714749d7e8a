#include "workers/grade/completion_grading.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "runtime/append_log.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/host_programs.h"
#include "workers/evaluate/sandbox/grading_pool.h"
#include "workers/evaluate/sandbox/remembered_runs.h"
#include "workers/evaluate/sandbox/sandbox.h"
#include "workers/evaluate/work_queue.h"

namespace jforge {

namespace {

constexpr std::chrono::seconds kProgressInterval{10};
constexpr std::chrono::milliseconds kGradingPoll{5};
constexpr std::int64_t kMostPerLease = 16;

class CompletionGrading {
 public:
  CompletionGrading(const CompletionSet& set, const VerdictStore& store, const GradingPlan& plan,
                    const GradingContext& context)
      : set_(set), store_(store), plan_(plan), context_(context) {}

  bool run(std::string& lines) {
    const Communicator& comm = context_.comm;
    if (set_.task->runs_code()) {
      build_sandbox();
    }
    WorkQueue queue(comm, {std::ssize(plan_.open)}, kMostPerLease);
    context_.clock.enter("grade");
    // A waiting rank is never reported as hung; the slow rank's own clock detects a hang.
    const bool stopped = work_together(
        comm, queue, [&] { grade_leases(queue); },
        [&] { context_.clock.enter("grade (waiting for other ranks)"); });
    queue.close();
    lines = std::move(lines_);
    return !agree(comm, stopped || stop_requested(), {});
  }

 private:
  void build_sandbox() {
    programs_ = share_host_programs(context_.comm, context_.jobs.value_or(0));
    together(context_.comm, [&] {
      SandboxOptions options;
      options.cancelled = [this] { return abandoned_ || stop_requested(); };
      options.waiting = [this] { ++waits_; };
      runner_ = remember_runs(std::make_unique<Sandbox>(options));
    });
  }

  void grade_leases(WorkQueue& queue) {
    fault_point("grade.lease");
    std::int64_t pending = 0;
    GradingPool pool(runner_.get(), programs_.threads, programs_.turns.get());
    // Destroyed before the pool: the programs must end before the pool waits for them.
    const Abandon abandon(abandoned_);
    const auto attend_while = [&](const auto& condition) {
      for (pending -= attend(pool, queue); !queue.stopped() && condition();
           pending -= attend(pool, queue)) {
        std::this_thread::sleep_for(kGradingPoll);
      }
    };
    while (const auto next = queue.peek(/*wait=*/true)) {
      queue.pop();
      attend_while([&] { return pool.full(); });
      if (queue.stopped()) {
        break;
      }
      const std::int64_t index = plan_.open[static_cast<std::size_t>(*next)];
      const Completion& completion = set_.completions[static_cast<std::size_t>(index)];
      pool.submit(index, *set_.task, completion.answer, set_.problem_of(completion));
      pending += 1;
    }
    attend_while([&] { return pending > 0; });
  }

  /// Stores new verdicts and returns their number; reports progress and forwards a stop.
  std::int64_t attend(GradingPool& pool, WorkQueue& queue) {
    const std::vector<GradedAnswer> graded = pool.take();
    for (const GradedAnswer& one : graded) {
      keep(one);
      queue.finished();
    }
    if (std::exchange(signs_, pool.signs_of_life() + waits_) != signs_) {
      context_.clock.progress();
    }
    if (stop_requested()) {
      queue.stop();
    }
    if (std::chrono::steady_clock::now() - shown_ > kProgressInterval &&
        context_.comm.rank() == 0) {
      shown_ = std::chrono::steady_clock::now();
      log_info("{}: {} of {} completions graded", set_.task->name(),
               std::ssize(set_.completions) - std::ssize(plan_.open) + queue.finished_by_all(),
               set_.completions.size());
    }
    return std::ssize(graded);
  }

  void keep(const GradedAnswer& graded) {
    if (!log_) {
      log_.emplace(store_.parts().part(plan_.attempt, context_.comm.rank(), context_.comm.size()));
    }
    const Completion& completion = set_.completions[static_cast<std::size_t>(graded.ticket)];
    VerdictRecord record{.index = graded.ticket,
                         .key = completion.key,
                         .verdict = std::string(to_string(graded.verdict.status)),
                         .base_verdict = std::nullopt,
                         .reason = graded.verdict.reason,
                         .rules = graded.verdict.rules};
    if (graded.verdict.status != VerdictStatus::pass && !completion.hint.empty()) {
      record.reason += "; " + completion.hint;
    }
    if (graded.verdict.base_status) {
      record.base_verdict = to_string(*graded.verdict.base_status);
    }
    const std::string line = to_line(record);
    log_->append(line);
    lines_ += line;
    lines_ += '\n';
    fault_point("grade");
  }

  class Abandon {
   public:
    explicit Abandon(std::atomic<bool>& flag) : flag_(flag) {}
    ~Abandon() { flag_ = true; }
    Abandon(const Abandon&) = delete;
    Abandon& operator=(const Abandon&) = delete;

   private:
    std::atomic<bool>& flag_;
  };

  const CompletionSet& set_;
  const VerdictStore& store_;
  const GradingPlan& plan_;
  const GradingContext& context_;
  HostPrograms programs_;
  std::atomic<bool> abandoned_ = false;
  std::atomic<std::uint64_t> waits_ = 0;  ///< Signs of life of running programs.
  std::unique_ptr<CodeRunner> runner_;
  std::optional<AppendLog> log_;  ///< Opened for the first verdict.
  std::string lines_;
  std::uint64_t signs_ = 0;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

}  // namespace

GradingPlan share_plan(const Communicator& comm, const CompletionSet& set,
                       const VerdictStore& store, const std::vector<VerdictRecord>& done) {
  nlohmann::json text;
  together(comm, [&] {
    if (comm.rank() == 0) {
      std::vector<std::int64_t> indices;
      indices.reserve(done.size());
      for (const VerdictRecord& record : done) {
        indices.push_back(record.index);
      }
      text = {{"attempt", store.parts().next_attempt()}, {"done", indices}};
    }
  });
  const nlohmann::json shared =
      parse_bounded_json(broadcast_text(comm, text.dump(), 0), "rank 0's plan");
  GradingPlan plan;
  plan.attempt = json_integer<std::int64_t>(shared.at("attempt"));
  const auto indices = shared.at("done").get<std::set<std::int64_t>>();
  for (std::int64_t index = 0; index < std::ssize(set.completions); ++index) {
    if (!indices.contains(index)) {
      plan.open.push_back(index);
    }
  }
  return plan;
}

bool grade_completions(const CompletionSet& set, const VerdictStore& store, const GradingPlan& plan,
                       const GradingContext& context, std::string& lines) {
  return CompletionGrading(set, store, plan, context).run(lines);
}

}  // namespace jforge
