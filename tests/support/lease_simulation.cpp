#include "tests/support/lease_simulation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <queue>
#include <utility>

#include "runtime/random.h"

namespace jforge::test {

namespace {

constexpr double kLeaseSeconds = 600;
/// Time between two requests of a rank that was told to wait.
constexpr double kRetrySeconds = 1;

double log_normal(RandomStream& random, double median, double sigma) {
  return median * std::exp(sigma * random.normal());
}

class Simulation {
 public:
  Simulation(const SimulatedJob& job, const std::vector<SimulatedPrompt>& prompts)
      : job_(job), prompts_(prompts), random_(job.seed, RandomPurpose::test, 7) {
    run_.commits.assign(prompts.size(), 0);
    double speed = 0;
    for (int rank = 0; rank < job.ranks; ++rank) {
      speed += job.sequences / slowness(rank);
    }
    double longest = 0;
    for (const SimulatedPrompt& prompt : prompts) {
      run_.work_seconds += prompt.answer_seconds;
      longest = std::max(longest, prompt.answer_seconds);
    }
    run_.bound_seconds = std::max(run_.work_seconds / speed, longest);
  }

  SimulatedRun run() {
    while (!life()) {
    }
    run_.seconds = now_;
    return std::move(run_);
  }

 private:
  struct OpenLease {
    Lease lease;
    std::size_t left;
    double spent = 0;  ///< seconds of sequences
  };
  struct Worker {
    std::deque<std::pair<PromptId, std::size_t>> waiting;  ///< with the index in open_
    int running = 0;
    bool retries = false;
  };
  enum class Kind { answer, commit, retry };
  struct Event {
    double time;
    std::int64_t number;  ///< breaks ties by planning order
    Kind kind;
    int rank;
    std::size_t lease;
    double took;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  [[nodiscard]] double slowness(int rank) const {
    const auto slow = static_cast<int>(std::lround(job_.straggler_share * job_.ranks));
    return rank < slow ? job_.straggler_factor : 1;
  }

  template <class Work>
  auto timed(const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    auto result = work();
    run_.queue_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++run_.queue_calls;
    return result;
  }

  void plan(double after, Kind kind, int rank, std::size_t lease = 0, double took = 0) {
    events_.push({now_ + after, number_++, kind, rank, lease, took});
  }

  /// Runs until everything is committed (true) or a rank dies.
  bool life() {
    std::vector<PendingPrompt> pending;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      if (run_.commits[i] == 0) {
        pending.push_back({static_cast<PromptId>(i), prompts_[i].prompt_tokens});
      }
    }
    LeaseQueue queue(std::move(pending), {.most = job_.most, .ranks = job_.ranks}, first_lease_);
    workers_.assign(static_cast<std::size_t>(job_.ranks), {});
    open_.clear();
    events_ = {};
    const double death = job_.deaths_per_hour > 0
                             ? now_ - std::log1p(-random_.uniform()) * 3600 / job_.deaths_per_hour
                             : std::numeric_limits<double>::infinity();
    double heartbeat = now_ + 1;
    for (int rank = 0; rank < job_.ranks; ++rank) {
      fill(queue, rank);
    }
    while (!queue.drained()) {
      const Event event = events_.top();
      if (event.time >= death) {
        now_ = death;
        end_life(queue);
        ++run_.deaths;
        now_ += job_.restart_seconds;
        return false;
      }
      events_.pop();
      now_ = event.time;
      for (; heartbeat <= now_; heartbeat += 1) {
        beat(queue, heartbeat);
      }
      handle(queue, event);
    }
    end_life(queue);
    return true;
  }

  /// All decoding ranks extend their leases.
  void beat(LeaseQueue& queue, double at) {
    for (int rank = 0; rank < job_.ranks; ++rank) {
      if (workers_[static_cast<std::size_t>(rank)].running > 0) {
        timed([&] {
          queue.extend(rank, at, kLeaseSeconds);
          return 0;
        });
      }
    }
    timed([&] { return queue.expire(at); });
  }

  void handle(LeaseQueue& queue, const Event& event) {
    Worker& worker = workers_[static_cast<std::size_t>(event.rank)];
    switch (event.kind) {
      case Kind::answer: {
        OpenLease& open = open_[event.lease];
        open.spent += event.took;
        if (--open.left == 0) {
          plan(job_.commit_seconds, Kind::commit, event.rank, event.lease);
          return;
        }
        --worker.running;
        break;
      }
      case Kind::commit: {
        commit(queue, open_[event.lease]);
        --worker.running;
        break;
      }
      case Kind::retry:
        worker.retries = false;
        break;
    }
    fill(queue, event.rank);
  }

  void commit(LeaseQueue& queue, OpenLease& open) {
    if (timed([&] { return queue.request_commit(open.lease); }).prompts.empty()) {
      return;
    }
    timed([&] {
      queue.committed(open.lease.id, open.lease.attempt, now_);
      return 0;
    });
    for (const PromptId id : open.lease.prompts) {
      ++run_.commits[static_cast<std::size_t>(id)];
    }
    open.spent = 0;  // not wasted
    ++committed_leases_;
  }

  void fill(LeaseQueue& queue, int rank) {
    Worker& worker = workers_[static_cast<std::size_t>(rank)];
    while (worker.running < job_.sequences) {
      if (worker.waiting.empty() && !ask(queue, rank)) {
        if (!worker.retries) {
          worker.retries = true;
          plan(kRetrySeconds, Kind::retry, rank);
        }
        return;
      }
      const auto [id, lease] = worker.waiting.front();
      worker.waiting.pop_front();
      ++worker.running;
      const double took = prompts_[static_cast<std::size_t>(id)].answer_seconds * slowness(rank);
      plan(took, Kind::answer, rank, lease, took);
      if (worker.waiting.empty()) {
        static_cast<void>(ask(queue, rank));
      }
    }
  }

  bool ask(LeaseQueue& queue, int rank) {
    auto lease = timed([&] { return queue.grant(rank, now_, kLeaseSeconds); });
    if (!lease) {
      return false;
    }
    ++run_.leases;
    const std::size_t place = open_.size();
    for (const PromptId id : lease->prompts) {
      workers_[static_cast<std::size_t>(rank)].waiting.emplace_back(id, place);
    }
    first_lease_ = std::max(first_lease_, lease->id + 1);
    open_.push_back({std::move(*lease), 0});
    open_.back().left = open_.back().lease.prompts.size();
    run_.most_in_flight =
        std::max(run_.most_in_flight, static_cast<std::int64_t>(open_.size()) - committed_leases_);
    return true;
  }

  /// Counts the time of uncommitted leases and running sequences as wasted.
  void end_life(const LeaseQueue& queue) {
    for (const OpenLease& open : open_) {
      run_.repeated_seconds += open.spent;
    }
    for (; !events_.empty(); events_.pop()) {
      const Event& event = events_.top();
      if (event.kind == Kind::answer) {
        run_.repeated_seconds += event.took - (event.time - now_);
      }
    }
    run_.repeats += queue.repeats();
    committed_leases_ = 0;
  }

  const SimulatedJob& job_;
  const std::vector<SimulatedPrompt>& prompts_;
  RandomStream random_;
  SimulatedRun run_;
  double now_ = 0;
  std::int64_t number_ = 0;
  LeaseId first_lease_ = 0;
  std::int64_t committed_leases_ = 0;
  std::vector<Worker> workers_;
  std::deque<OpenLease> open_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

std::vector<SimulatedPrompt> simulated_prompts(std::int64_t count, double tokens_per_second,
                                               std::uint64_t seed) {
  constexpr double kLongest = 2048;
  std::vector<SimulatedPrompt> prompts;
  RandomStream random(seed, RandomPurpose::test, 8);
  for (std::int64_t i = 0; i < count; ++i) {
    SimulatedPrompt prompt;
    prompt.prompt_tokens = std::llround(log_normal(random, 50, 0.6));
    prompt.answer_seconds = std::min(kLongest, log_normal(random, 200, 0.75)) / tokens_per_second;
    prompts.push_back(prompt);
  }
  return prompts;
}

SimulatedRun simulate(const SimulatedJob& job, const std::vector<SimulatedPrompt>& prompts) {
  return Simulation(job, prompts).run();
}

}  // namespace jforge::test
