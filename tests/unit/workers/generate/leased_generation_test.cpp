#include "workers/generate/leased_generation.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "runtime/error.h"
#include "tests/unit/workers/generate/generator_fixture.h"

namespace jforge::test {
namespace {

/// Answers from a script, then waits until every granted lease is committed, then drained; requests
/// and answers must alternate.
class FakeCoordinator {
 public:
  FakeCoordinator(std::vector<GeneratePrompt> prompts, FakeDecodeModel& model) : model_(model) {
    for (GeneratePrompt& prompt : prompts) {
      prompts_[prompt.id] = std::move(prompt.tokens);
    }
  }

  LeaseHooks hooks() {
    LeaseHooks hooks;
    hooks.request = [this](bool stop, bool idle) {
      idle_requests += idle ? 1 : 0;
      EXPECT_FALSE(asked_) << "two open requests";
      asked_ = true;
      stops_told += stop ? 1 : 0;
      asked_at_call_ = model_.calls();
      log.push_back(stop ? "stop" : "ask");
    };
    hooks.take = [this] {
      EXPECT_TRUE(asked_) << "no open request";
      asked_ = false;
      calls_while_asking.push_back(model_.calls() - asked_at_call_);
      return answer();
    };
    hooks.prompt = [this](PromptId id) {
      log.push_back("start " + std::to_string(id));
      return prompts_.at(id);
    };
    hooks.commit = [this](const Lease& lease, std::vector<Trajectory> trajectories) {
      log.push_back("commit " + std::to_string(lease.id));
      const bool is_new = committed.emplace(lease.id, lease.attempt).second;
      EXPECT_TRUE(is_new || stops_told > 0 || commit_every > 0) << "lease " << lease.id;
      EXPECT_TRUE(std::ranges::is_sorted(trajectories, {}, &Trajectory::prompt_id));
      std::multiset<PromptId> asked(lease.prompts.begin(), lease.prompts.end());
      std::multiset<PromptId> made;
      for (Trajectory& trajectory : trajectories) {
        made.insert(trajectory.prompt_id);
        trajectories_.push_back(std::move(trajectory));
      }
      EXPECT_EQ(asked, made) << "lease " << lease.id;
    };
    hooks.before_idle = [this] { log.push_back("idle"); };
    hooks.on_forward = [this] { forwards += 1; };
    hooks.stop_requested = [this] { return stop_requested ? stop_requested() : false; };
    hooks.commit_due = [this] { return commit_every > 0 && forwards % commit_every == 0; };
    return hooks;
  }

  void grant(LeaseId id, std::vector<PromptId> prompts, std::int32_t attempt = 0) {
    script.push_back({LeaseAnswer::granted, {id, attempt, std::move(prompts)}});
  }
  void grant_all(std::span<const GeneratePrompt> prompts, std::size_t size) {
    for (std::size_t begin = 0; begin < prompts.size(); begin += size) {
      std::vector<PromptId> ids;
      for (std::size_t i = begin; i < std::min(begin + size, prompts.size()); ++i) {
        ids.push_back(prompts[i].id);
      }
      grant(static_cast<LeaseId>(begin / size), std::move(ids));
    }
  }

  [[nodiscard]] std::vector<Trajectory> trajectories() const {
    std::vector<Trajectory> sorted = trajectories_;
    std::ranges::sort(sorted, {}, &Trajectory::prompt_id);
    return sorted;
  }
  [[nodiscard]] std::ptrdiff_t place_of(const std::string& event) const {
    return std::ranges::find(log, event) - log.begin();
  }
  [[nodiscard]] bool asked() const { return asked_; }

  std::deque<LeaseReply> script;
  std::function<bool()> stop_requested;
  double stop_seconds = 0;
  std::int64_t commit_every = 0;  ///< Forwards; 0: whole leases only.
  std::vector<std::string> log;
  std::map<LeaseId, std::int32_t> committed;
  std::vector<std::int64_t> calls_while_asking;  ///< forwards between each request and its answer
  std::int64_t forwards = 0;
  int stops_told = 0;
  int waits = 0;
  int idle_requests = 0;

 private:
  LeaseReply answer() {
    if (stops_told > 0) {
      return {LeaseAnswer::stop, {}};
    }
    if (!script.empty()) {
      LeaseReply reply = std::move(script.front());
      script.pop_front();
      if (reply.answer == LeaseAnswer::granted) {
        granted_.insert(reply.lease.prompts.begin(), reply.lease.prompts.end());
      }
      return reply;
    }
    const bool drained = trajectories_.size() == granted_.size();
    waits += drained ? 0 : 1;
    return {drained ? LeaseAnswer::drained : LeaseAnswer::wait, {}};
  }

  FakeDecodeModel& model_;
  std::map<PromptId, std::vector<TokenId>> prompts_;
  std::set<PromptId> granted_;
  std::vector<Trajectory> trajectories_;
  std::int64_t asked_at_call_ = 0;
  bool asked_ = false;
};

struct Bench {
  explicit Bench(std::size_t count, std::int32_t places = 4)
      : given(prompts(count)),
        model(fake_model(places)),
        generator(model,
                  [&] {
                    GenerateOptions chosen = options(StoredStates::all);
                    chosen.batch_prompts = places;
                    return chosen;
                  }()),
        coordinator(given, model) {}
  bool run() {
    return LeasedGeneration(generator, coordinator.hooks(), coordinator.stop_seconds).run();
  }

  std::vector<GeneratePrompt> given;
  FakeDecodeModel model;
  TrajectoryGenerator generator;
  FakeCoordinator coordinator;
};

void expect_finished_are_committed(const Bench& bench, std::span<const Trajectory> expected) {
  EXPECT_FALSE(bench.coordinator.asked()) << "no request stays open";
  const auto made = bench.coordinator.trajectories();
  EXPECT_EQ(std::ssize(made), bench.generator.counts().prompts) << "every finished prompt, once";
  for (const Trajectory& trajectory : made) {
    expect_equal(trajectory,
                 *std::ranges::find(expected, trajectory.prompt_id, &Trajectory::prompt_id));
  }
}

TEST(LeasedGeneration, TrajectoriesDoNotDependOnTheLeases) {
  Bench whole(40);
  const auto expected = generate(whole.generator, whole.given);
  ASSERT_TRUE(expected.has_value());
  for (const std::size_t size : {1U, 3U, 7U, 40U}) {
    for (const std::int32_t places : {1, 4, 64}) {
      Bench bench(40, places);
      bench.coordinator.grant_all(bench.given, size);
      EXPECT_TRUE(bench.run());
      EXPECT_FALSE(bench.coordinator.asked());
      EXPECT_EQ(bench.coordinator.committed.size(), (40 + size - 1) / size);
      EXPECT_EQ(bench.generator.counts().prompts, 40);
      EXPECT_EQ(bench.coordinator.stops_told, 0);
      const auto made = bench.coordinator.trajectories();
      ASSERT_EQ(made.size(), expected->size()) << "leases of " << size;
      for (std::size_t i = 0; i < made.size(); ++i) {
        expect_equal(made[i], (*expected)[i]);
      }
    }
  }
}

TEST(LeasedGeneration, WhatIsFinishedOfALeaseIsCommittedWhenItIsDue) {
  Bench whole(40);
  const auto expected = generate(whole.generator, whole.given);
  Bench bench(40);
  bench.coordinator.grant_all(bench.given, 40);
  bench.coordinator.commit_every = 10;
  EXPECT_TRUE(bench.run());
  EXPECT_GT(std::ranges::count(bench.coordinator.log, "commit 0"), 3);
  expect_finished_are_committed(bench, *expected);
}

// A long answer must not leave other places empty.
TEST(LeasedGeneration, TheBatchStaysFullOverTheEndOfALease) {
  constexpr std::size_t kLease = 5;
  std::int64_t apart = 0;
  for (std::size_t begin = 0; begin < 40; begin += kLease) {
    Bench alone(40);
    alone.coordinator.grant_all(std::span(alone.given).subspan(begin, kLease), kLease);
    EXPECT_TRUE(alone.run());
    apart += alone.model.calls();
  }
  Bench unbroken(40);
  ASSERT_TRUE(generate(unbroken.generator, unbroken.given).has_value());
  Bench together(40);
  together.coordinator.grant_all(together.given, kLease);
  EXPECT_TRUE(together.run());
  EXPECT_LT(together.model.calls(), apart * 4 / 5);
  EXPECT_LE(together.model.calls(), unbroken.model.calls() + 2) << "nearly as without leases";
}

TEST(LeasedGeneration, AsksWhenTheLastPromptStartsAndDecodesWhileTheAnswerTravels) {
  Bench bench(24);
  bench.coordinator.grant_all(bench.given, 6);
  EXPECT_TRUE(bench.run());
  const auto& log = bench.coordinator.log;
  ASSERT_EQ(log[0], "idle") << "what is left behind is done before it waits";
  ASSERT_EQ(log[1], "ask");
  for (std::size_t last = 5; last < 24; last += 6) {
    const auto started =
        bench.coordinator.place_of("start " + std::to_string(bench.given[last].id));
    ASSERT_GT(started, 0);
    EXPECT_EQ(log[static_cast<std::size_t>(started) - 1], "ask");
    EXPECT_LT(started, bench.coordinator.place_of("commit " + std::to_string(last / 6)));
  }
  const auto& calls = bench.coordinator.calls_while_asking;
  ASSERT_GE(calls.size(), 5U);
  EXPECT_EQ(calls[0], 0) << "an empty batch waits";
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_GE(calls[i], 1) << "answer " << i;
  }
}

TEST(LeasedGeneration, AStopHereTellsTheCoordinatorAndCommitsWhatIsFinished) {
  Bench whole(40);
  const auto expected = generate(whole.generator, whole.given);
  for (const double seconds : {0.0, 1e6}) {
    for (const int steps : {1, 9, 20, 35}) {
      Bench bench(40);
      bench.coordinator.grant_all(bench.given, 7);
      bench.coordinator.stop_seconds = seconds;
      int asked = 0;
      bench.coordinator.stop_requested = [&] { return ++asked > steps; };
      EXPECT_FALSE(bench.run());
      EXPECT_EQ(bench.coordinator.stops_told, 1);
      const auto stop = bench.coordinator.log.begin() + bench.coordinator.place_of("stop");
      EXPECT_TRUE(std::none_of(stop, bench.coordinator.log.end(), [](const std::string& event) {
        return event == "ask" || event.starts_with("start");
      }));
      EXPECT_LT(bench.generator.counts().prompts, 40);
      EXPECT_EQ(bench.generator.running() > 0, seconds == 0) << "running answers had the time";
      EXPECT_EQ(bench.coordinator.forwards > steps + 1, seconds > 0);
      expect_finished_are_committed(bench, *expected);
    }
  }
}

TEST(LeasedGeneration, AStopFromTheCoordinatorEndsDecoding) {
  Bench whole(12);
  const auto expected = generate(whole.generator, whole.given);
  Bench bench(12);
  bench.coordinator.grant_all(std::span(bench.given).first(6), 3);
  bench.coordinator.script.push_back({LeaseAnswer::stop, {}});
  EXPECT_FALSE(bench.run());
  EXPECT_EQ(bench.coordinator.stops_told, 0) << "it knows";
  EXPECT_LT(bench.generator.counts().prompts, 6);
  expect_finished_are_committed(bench, *expected);
}

TEST(LeasedGeneration, WaitsForLeasesThatMayComeBack) {
  Bench bench(6);
  bench.coordinator.grant(0, {bench.given[0].id, bench.given[1].id});
  for (int i = 0; i < 3; ++i) {
    bench.coordinator.script.push_back({LeaseAnswer::wait, {}});
  }
  bench.coordinator.grant(4, {bench.given[2].id}, 1);
  int asked = 0;
  bench.coordinator.stop_requested = [&] {
    ++asked;
    return false;
  };
  EXPECT_TRUE(bench.run());
  EXPECT_EQ(bench.coordinator.committed, (std::map<LeaseId, std::int32_t>{{0, 0}, {4, 1}}));
  EXPECT_GE(bench.coordinator.idle_requests, 2) << "with an empty batch, answers may come late";
  EXPECT_GT(asked, bench.model.calls()) << "a stop is noticed while waiting";
  EXPECT_EQ(bench.coordinator.forwards, bench.model.calls()) << "waiting is no forward";
}

TEST(LeasedGeneration, AStopIsNoticedWhileNothingIsLeased) {
  Bench bench(1);
  for (int i = 0; i < 1000; ++i) {
    bench.coordinator.script.push_back({LeaseAnswer::wait, {}});
  }
  int asked = 0;
  bench.coordinator.stop_requested = [&] { return ++asked == 3; };
  EXPECT_FALSE(bench.run());
  EXPECT_EQ(bench.coordinator.stops_told, 1);
  EXPECT_EQ(bench.model.calls(), 0);
}

// This rank was frozen, and another rank has completed its lease.
TEST(LeasedGeneration, ALostLeaseIsNotDecodedToTheEnd) {
  Bench bench(2);
  bench.coordinator.grant(0, {bench.given[0].id, bench.given[1].id});
  bench.coordinator.script.push_back({LeaseAnswer::drained, {}});
  EXPECT_TRUE(bench.run());
  EXPECT_TRUE(bench.coordinator.committed.empty());
}

TEST(LeasedGeneration, AnExpiredLeaseThatComesBackGoesOnAsTheNewAttempt) {
  Bench bench(6);
  std::vector<PromptId> first;
  for (const GeneratePrompt& prompt : bench.given) {
    first.push_back(prompt.id);
  }
  bench.coordinator.grant(7, first);
  bench.coordinator.grant(7, first, 1);
  EXPECT_TRUE(bench.run());
  EXPECT_EQ(bench.coordinator.committed, (std::map<LeaseId, std::int32_t>{{7, 1}}));
  EXPECT_EQ(bench.generator.counts().prompts, 6) << "nothing is decoded twice";
}

TEST(LeasedGeneration, FailuresOfTheHooksComeThrough) {
  Bench bench(4);
  bench.coordinator.grant_all(bench.given, 2);
  LeaseHooks hooks = bench.coordinator.hooks();
  hooks.commit = [](const Lease&, std::vector<Trajectory>) {
    throw EnvironmentError("no space left");
  };
  EXPECT_THROW((void)LeasedGeneration(bench.generator, hooks, 0).run(), EnvironmentError);
}

TEST(LeasedGeneration, BrokenLeasesAreRefused) {
  Bench empty(1);
  empty.coordinator.grant(0, {});
  EXPECT_THROW((void)empty.run(), InternalError);
  Bench twice(6);
  twice.coordinator.grant(0, {twice.given[0].id, twice.given[1].id});
  twice.coordinator.grant(1, {twice.given[1].id});
  EXPECT_THROW((void)twice.run(), InternalError);
}

}  // namespace
}  // namespace jforge::test
