// Grades existing completions, without a model.

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "coordinator/control_plane.h"
#include "coordinator/run_lock.h"
#include "launch/commands/commands.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/console.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/part_files.h"
#include "workers/grade/completion_grading.h"
#include "workers/grade/completion_set.h"
#include "workers/grade/verdict_store.h"

namespace jforge {

namespace {

/// Hang limit: maximum time without progress.
constexpr double kHangSeconds = 600;

class GradeSession {
 public:
  GradeSession(const GradeOptions& options, const MpiSession& session)
      : options_(options),
        comm_(session.world().duplicate()),
        clock_(session.clock()),
        control_(comm_, clock_, {}),
        store_(options.out) {
    clock_.set_deadline(kHangSeconds);
  }
  ~GradeSession() { release_output(); }
  GradeSession(const GradeSession&) = delete;
  GradeSession& operator=(const GradeSession&) = delete;

  /// Collective. Returns false if a stop was requested.
  [[nodiscard]] bool run() {
    clock_.enter("read the completions");
    together(comm_, [&] {
      set_ = load_completions(
          {options_.task, options_.data, options_.completions, options_.allow_missing});
    });
    expect_same(comm_, set_);
    clock_.enter("take the output");
    if (agree(comm_, stop_requested(), [&] { take_output(); })) {
      return false;
    }
    broadcast<int>(comm_, std::span(&finished_, 1), 0);
    if (finished_ != 0) {
      return true;
    }
    const GradingPlan plan = share_plan(comm_, set_, store_, verdicts_);
    std::string lines;
    // All may be graded but not published.
    if (!plan.open.empty() &&
        !grade_completions(set_, store_, plan, {comm_, clock_, options_.jobs}, lines)) {
      return false;
    }
    clock_.enter("write the verdicts");
    const std::vector<std::string> shares = gather_texts(comm_, lines, 0);
    together(comm_, [&] { publish(shares); });
    return true;
  }

  /// Collective.
  [[nodiscard]] ExitCode finish(bool finished) {
    if (!finished && root()) {
      log_warn("stopped; every verdict so far is safe, run the same command again to go on");
    }
    release_output();
    clock_.enter("close", CoordinatorConfig().heartbeat_limit_seconds);
    control_.close(comm_);
    comm_.close();
    return finished ? ExitCode::ok : ExitCode::interrupted;
  }

 private:
  [[nodiscard]] bool root() const noexcept { return comm_.rank() == 0; }

  /// Only rank 0 loads the verdicts of earlier calls.
  void take_output() {
    if (!root()) {
      return;
    }
    if (std::filesystem::is_directory(options_.out)) {
      throw ConfigError(fmt::format("--out {} is a directory: name a file", options_.out.string()));
    }
    for (const auto& [option, input] :
         {std::pair("--completions", &options_.completions), std::pair("--data", &options_.data)}) {
      std::error_code error;  // Ignored: a missing file is a different file.
      if (std::filesystem::equivalent(options_.out, *input, error)) {
        throw ConfigError(fmt::format(
            "--out {} is the file of {}, which the verdicts would replace: name another file",
            options_.out.string(), option));
      }
    }
    // It may be a benchmark's file in --data.
    if (std::filesystem::is_regular_file(options_.out) &&
        !std::filesystem::is_empty(options_.out) && !is_verdict_file(options_.out)) {
      throw ConfigError(fmt::format(
          "--out {} is there and holds no verdicts, which would replace it: name another file, or "
          "remove it",
          options_.out.string()));
    }
    if (const std::optional<VerdictSummary> before = store_.finished(set_)) {
      finished_ = 1;
      tell(stdout, fmt::format("{}: all {} completions were graded before, pass@1 {}; {} stays\n",
                               set_.version, set_.completions.size(), before->pass_at_1,
                               options_.out.string()));
      return;
    }
    make_directory(store_.directory());
    lock_ = std::make_unique<RunLock>(store_.directory());
    verdicts_ = store_.read(set_);
    log_info("grade {}: {} of {} completions graded before", set_.task->name(), verdicts_.size(),
             set_.completions.size());
  }

  /// Keeps parts that a later call needs.
  void release_output() noexcept {
    if (lock_) {
      lock_.reset();
      store_.remove_directory();
    }
  }

  /// Removes the parts last, so that a crash loses nothing.
  void publish(const std::vector<std::string>& shares) {
    if (!root()) {
      return;
    }
    for (const std::string& lines : shares) {
      (void)for_each_line_of(lines, "a rank's verdicts",
                             [&](std::string_view line, const std::string& origin) {
                               verdicts_.push_back(parse_verdict_record(line, origin));
                             });
    }
    const VerdictSummary summary = store_.publish(set_, verdicts_);
    store_.parts().remove();
    tell(stdout, fmt::format("{}: {} completions of {} problems, pass@1 {}\nVerdicts: {}\n",
                             set_.version, set_.completions.size(), summary.problems,
                             summary.pass_at_1, options_.out.string()));
  }

  const GradeOptions& options_;
  Communicator comm_;
  PhaseClock& clock_;
  ControlPlane control_;
  CompletionSet set_;
  VerdictStore store_;
  int finished_ = 0;                     ///< 1 if earlier calls have graded everything.
  std::unique_ptr<RunLock> lock_;        ///< Rank 0 only.
  std::vector<VerdictRecord> verdicts_;  ///< Rank 0 only.
};

}  // namespace

ExitCode grade_command(const GradeOptions& options, const MpiSession& session) {
  GradeSession grading(options, session);
  return grading.finish(grading.run());
}

}  // namespace jforge
