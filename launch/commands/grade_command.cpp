// Verdicts for completions that exist already: no model, any number of ranks.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "coordinator/control_plane.h"
#include "data/prompts/record_stream.h"
#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/json_tree.h"
#include "launch/commands/commands.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/host_programs.h"
#include "workers/evaluate/sandbox/grading_pool.h"
#include "workers/evaluate/sandbox/sandbox.h"
#include "workers/evaluate/work_queue.h"

namespace jforge {

namespace {

constexpr std::chrono::seconds kProgressInterval{10};
constexpr std::chrono::milliseconds kGradingPoll{5};
constexpr std::int64_t kMostPerLease = 16;
/// Longer than this no program runs or waits without a sign of life.
constexpr double kHangSeconds = 600;

struct Completion {
  std::size_t problem = 0;  ///< Index into the task's records.
  std::optional<std::string> answer;
};

/// The names by which completions may call a problem: its task_id, and where it is one problem's
/// only the part of that behind the last '/', alone or behind the suite's name ("Mbpp/11" for
/// MBPP's 11). What belongs to another suite is no name.
class ProblemNames {
 public:
  explicit ProblemNames(const std::vector<TaskRecord>& records) {
    std::map<std::string, int, std::less<>> uses;
    for (std::size_t index = 0; index < records.size(); ++index) {
      names_.push_back(name_of(records[index]));
      suites_.push_back(suite_of(records[index].id));
      places_.emplace(names_.back(), index);
      ++uses[last_part(names_.back())];
    }
    for (std::size_t index = 0; index < names_.size(); ++index) {
      if (const std::string part = last_part(names_[index]); uses[part] == 1) {
        parts_.emplace(part, index);
      }
    }
  }

  [[nodiscard]] const std::string& name(std::size_t problem) const { return names_[problem]; }
  [[nodiscard]] std::optional<std::size_t> find(const std::string& id) const {
    if (const auto place = places_.find(id); place != places_.end()) {
      return place->second;
    }
    const auto part = parts_.find(last_part(id));
    if (part == parts_.end() ||
        (id.find('/') != std::string::npos && suite_of(id) != suites_[part->second])) {
      return std::nullopt;
    }
    return part->second;
  }

 private:
  static std::string name_of(const TaskRecord& record) {
    const auto field = record.fields.find("task_id");
    return field == record.fields.end() ? record.id : field->second;
  }
  static std::string last_part(const std::string& id) { return id.substr(id.rfind('/') + 1); }

  /// "mbpp" of "Mbpp/11" and of "mbpp_plus@0.1.0/0": the name without its variant, in lower case.
  static std::string suite_of(const std::string& id) {
    std::string suite;
    for (const char c : id.substr(0, id.rfind('/'))) {
      if (c == '_' || c == '@') {
        break;
      }
      suite += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return suite;
  }

  std::vector<std::string> names_;
  std::vector<std::string> suites_;
  std::map<std::string, std::size_t, std::less<>> places_;
  std::map<std::string, std::size_t, std::less<>> parts_;
};

std::string text_of(const JsonNode* node, JsonNode::Kind other = JsonNode::Kind::text) {
  return node != nullptr && (node->kind == JsonNode::Kind::text || node->kind == other)
             ? node->text
             : std::string();
}

std::vector<Completion> read_completions(const std::filesystem::path& path, const Task& task,
                                         const std::vector<TaskRecord>& records,
                                         const ProblemNames& names) {
  RecordStream stream(path);
  RawRecord raw;
  std::vector<Completion> completions;
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("{}:{}: {}", path.string(), raw.line, what));
  };
  while (stream.next(raw)) {
    const auto node = raw.too_long ? std::nullopt : parse_json(raw.text);
    if (!node || node->kind != JsonNode::Kind::object) {
      refuse("not a JSON object");
    }
    const std::string id = text_of(node->find("task_id"), JsonNode::Kind::number);
    if (id.empty()) {
      refuse("no 'task_id'");
    }
    const auto problem = names.find(id);
    if (!problem) {
      refuse(fmt::format("task '{}' has no problem '{}'", task.name(), id));
    }
    const JsonNode* solution = node->find("solution");
    const JsonNode* text = solution != nullptr ? solution : node->find("completion");
    if (text == nullptr || text->kind != JsonNode::Kind::text) {
      refuse("no text 'completion' or 'solution'");
    }
    Completion completion{*problem, std::nullopt};
    if (!task.runs_code()) {
      completion.answer = task.extract(text->text, records[*problem]);
    } else if (solution != nullptr) {
      completion.answer = text->text;
    } else {
      completion.answer = program_from_completion(records[*problem], text->text);
    }
    completions.push_back(std::move(completion));
  }
  return completions;
}

void require_all(const std::vector<Completion>& completions, const ProblemNames& names,
                 std::size_t problems, const std::filesystem::path& path) {
  std::vector<bool> seen(problems, false);
  for (const Completion& completion : completions) {
    seen[completion.problem] = true;
  }
  const auto missing = static_cast<std::size_t>(std::count(seen.begin(), seen.end(), false));
  if (missing > 0) {
    const auto first =
        static_cast<std::size_t>(std::find(seen.begin(), seen.end(), false) - seen.begin());
    throw DataError(fmt::format(
        "{}: {} of {} problems have no completion (the first is {}): complete the file, or use "
        "--allow-missing to grade what is there",
        path.string(), missing, problems, names.name(first)));
  }
}

nlohmann::json to_json(const Verdict& verdict) {
  nlohmann::json entry;
  entry["base_status"] = to_string(verdict.base_status.value_or(verdict.status));
  if (verdict.base_status) {
    entry["plus_status"] = to_string(verdict.status);
  }
  entry["reason"] = verdict.reason;
  return entry;
}

/// Mean over problems of the share of their completions that pass: with n completions of which c
/// pass, 1 - C(n - c, 1) / C(n, 1) = c / n (Chen et al., 2021).
nlohmann::json pass_at_1(const nlohmann::json& problems) {
  nlohmann::json result = nlohmann::json::object();
  for (const std::string kind : {"base", "plus"}) {
    double sum = 0;
    bool present = !problems.empty();
    for (const auto& [id, entries] : problems.items()) {
      std::int64_t passed = 0;
      for (const nlohmann::json& entry : entries) {
        const auto status = entry.find(kind + "_status");
        present = present && status != entry.end();
        passed += status != entry.end() && *status == "pass" ? 1 : 0;
      }
      sum += static_cast<double>(passed) / static_cast<double>(entries.size());
    }
    if (present) {
      result[kind] = sum / static_cast<double>(problems.size());
    }
  }
  return result;
}

class GradeSession {
 public:
  GradeSession(const GradeOptions& options, const Communicator& comm)
      : options_(options), comm_(comm), task_(make_task(options.task)) {}

  void prepare() {
    records_ = task_->load(options_.data);
    names_.emplace(records_);
    completions_ = read_completions(options_.completions, *task_, records_, *names_);
    if (!options_.allow_missing) {
      require_all(completions_, *names_, records_.size(), options_.completions);
    }
    if (task_->runs_code()) {
      SandboxOptions options;
      options.cancelled = [this] {
        ++waits_;
        return abandoned_ || stop_requested();
      };
      sandbox_ = std::make_unique<Sandbox>(options);
    }
  }

  [[nodiscard]] bool runs_code() const { return task_->runs_code(); }

  /// Collective. What this rank grades, as lines of "INDEX VERDICT"; a stop on any rank ends it
  /// early on all, with false.
  [[nodiscard]] bool grade(const HostPrograms& programs, PhaseClock& clock, std::string& lines) {
    WorkQueue queue(comm_, {std::ssize(completions_)}, kMostPerLease);
    clock.enter("grade", kHangSeconds);
    // Another rank may need longer; that it hangs is for its own clock to say.
    const bool stopped = work_together(
        comm_, queue, [&] { lines = grade_leases(programs, queue, clock); },
        [&] { clock.enter("grade, waiting for other ranks", 0); });
    queue.close();
    return !agree(comm_, stopped || stop_requested(), {});
  }

  /// On rank 0: all ranks' lines into the verdict file.
  void publish(const std::vector<std::string>& shares) const {
    std::vector<nlohmann::json> verdicts(completions_.size());
    for (const std::string& lines : shares) {
      for (std::size_t begin = 0, end = 0; (end = lines.find('\n', begin)) != std::string::npos;
           begin = end + 1) {
        const std::size_t space = lines.find(' ', begin);
        verdicts.at(std::stoull(lines.substr(begin, space - begin))) =
            nlohmann::json::parse(lines.substr(space + 1, end - space - 1));
      }
    }
    nlohmann::json problems = nlohmann::json::object();
    for (std::size_t index = 0; index < completions_.size(); ++index) {
      expect(!verdicts[index].is_null(), "every completion has a verdict");
      problems[names_->name(completions_[index].problem)].push_back(std::move(verdicts[index]));
    }
    nlohmann::json file;
    file["task"] = task_->name();
    file["version"] = task_->version();
    file["pass@1"] = pass_at_1(problems);
    fmt::print("{}: {} completions of {} problems, pass@1 {}\nVerdicts: {}\n", task_->version(),
               completions_.size(), problems.size(), file["pass@1"].dump(), options_.out.string());
    file["eval"] = std::move(problems);
    if (options_.out.has_parent_path()) {
      make_directory(options_.out.parent_path());
    }
    publish_file(options_.out, file.dump(1, ' ', false, kReplace) + "\n");
  }

 private:
  [[nodiscard]] std::string grade_leases(const HostPrograms& programs, WorkQueue& queue,
                                         PhaseClock& clock) {
    std::string lines;
    std::int64_t pending = 0;
    std::uint64_t signs = 0;
    auto shown = std::chrono::steady_clock::now();
    GradingPool pool(sandbox_.get(), programs.threads, programs.turns.get());
    // Behind the pool, so that its programs end before it waits for them.
    const Abandon abandon{abandoned_};
    const auto attend = [&] {
      for (const GradedAnswer& one : pool.take()) {
        lines += fmt::format("{} {}\n", one.ticket, dump(to_json(one.verdict)));
        queue.finished();
        pending -= 1;
      }
      if (std::exchange(signs, pool.signs_of_life() + waits_) != signs) {
        clock.progress();
      }
      if (stop_requested()) {
        queue.stop();
      }
      if (std::chrono::steady_clock::now() - shown > kProgressInterval && comm_.rank() == 0) {
        shown = std::chrono::steady_clock::now();
        spdlog::info("{}: {} of {} completions graded", task_->name(), queue.finished_by_all(),
                     completions_.size());
      }
      return !queue.stopped();
    };
    const auto attend_while = [&](const auto& condition) {
      while (attend() && condition()) {
        std::this_thread::sleep_for(kGradingPoll);
      }
    };
    while (const auto next = queue.peek(/*wait=*/true)) {
      fault_point("grade");
      queue.pop();
      attend_while([&] { return pool.full(); });
      if (queue.stopped()) {
        break;
      }
      const Completion& completion = completions_[static_cast<std::size_t>(*next)];
      pool.submit(*next, *task_, completion.answer, records_[completion.problem]);
      pending += 1;
    }
    attend_while([&] { return pending > 0; });
    return lines;
  }

  /// Sets a flag at its end.
  struct Abandon {
    std::atomic<bool>& flag;
    ~Abandon() { flag = true; }
  };

  static constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  static std::string dump(const nlohmann::json& value) {
    return value.dump(-1, ' ', true, kReplace);
  }

  const GradeOptions& options_;
  const Communicator& comm_;
  std::unique_ptr<Task> task_;
  std::vector<TaskRecord> records_;
  std::optional<ProblemNames> names_;
  std::vector<Completion> completions_;
  std::atomic<bool> abandoned_ = false;
  std::atomic<std::uint64_t> waits_ = 0;  ///< For programs that run, each within its own limits.
  std::unique_ptr<Sandbox> sandbox_;
};

}  // namespace

ExitCode grade_command(const GradeOptions& options, const MpiSession& session) {
  Communicator comm = session.world().duplicate();
  PhaseClock& clock = session.clock();
  ControlPlane control(comm, clock, {});
  clock.enter("read the completions", 0);
  std::optional<GradeSession> grading;
  together(comm, [&] {
    grading.emplace(options, comm);
    grading->prepare();
  });
  HostPrograms programs;
  if (grading->runs_code()) {
    programs = share_host_programs(comm, options.jobs.value_or(0));
  }
  std::string lines;
  const bool finished = grading->grade(programs, clock, lines);
  together(comm, [&] {
    if (!finished) {
      throw Interrupted("stopped on request; no verdicts were written: run again");
    }
  });
  clock.enter("write the verdicts", 0);
  const std::vector<std::string> shares = gather_texts(comm, lines, 0);
  together(comm, [&] {
    if (comm.rank() == 0) {
      grading->publish(shares);
    }
  });
  clock.enter("close", CoordinatorConfig().heartbeat_limit_seconds);
  control.close(comm);
  comm.close();
  return ExitCode::ok;
}

}  // namespace jforge
