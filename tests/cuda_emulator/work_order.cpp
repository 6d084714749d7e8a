#include "tests/cuda_emulator/work_order.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <unordered_set>
#include <utility>

#include "tests/cuda_emulator/fault.h"

namespace jforge::emulator {

namespace {

thread_local std::uint64_t waits = 0;
thread_local bool given_since = false;
thread_local bool asked_since = false;  ///< and it was not done

void count_wait() {
  waits += given_since ? 1 : 0;
  given_since = false;
}

/// Asking twice with nothing queued in between counts as a wait.
void count_question() {
  if (std::exchange(asked_since, true)) {
    count_wait();
  }
}

}  // namespace

std::uint64_t WorkOrder::host_waits() { return waits; }

std::size_t WorkOrder::keep_stamps(bool keep) {
  keeps_stamps_ = keep;
  return stamps_.size();
}

WorkOrder::WorkOrder(std::string_view description) {
  default_stream_.line = before_.new_line();
  choose(description);
}

void WorkOrder::add_stream(Stream& stream) {
  stream.line = before_.new_line();
  streams_.push_back(&stream);
}

void WorkOrder::choose(std::string_view description) {
  constexpr std::string_view kRandom = "random:";
  kind_ = Kind::eager;
  if (description == "lazy") {
    kind_ = Kind::lazy;
  } else if (description.starts_with(kRandom)) {
    kind_ = Kind::random;
    const std::string_view text = description.substr(kRandom.size());
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (error != std::errc{} || end != text.data() + text.size()) {
      throw Refusal("order of work \"" + std::string(description) +
                    "\": the seed must be a number");
    }
    random_.seed(seed);
  } else if (description != "eager") {
    throw Refusal("order of work \"" + std::string(description) +
                  "\" is none of eager, lazy and random:SEED");
  }
}

void WorkOrder::remove_stream(const Stream& stream) {
  std::erase(streams_, &stream);
  before_.end_line(stream.line);
}

namespace {
bool possible(const Work& work) {
  return !work.done && std::all_of(work.after.begin(), work.after.end(), [](const auto& earlier) {
    return earlier->done;
  }) && (!work.ready || work.ready());
}
}  // namespace

std::shared_ptr<Work> WorkOrder::enqueue(Stream& stream, const std::string& name,
                                         std::function<void()> run, std::function<bool()> ready) {
  auto work = std::make_shared<Work>();
  work->run = std::move(run);
  work->ready = std::move(ready);
  work->stamp = before_.next(stream.line, name);
  const auto follow = [&](const std::shared_ptr<Work>& earlier) {
    if (earlier) {
      HappensBefore::join(work->stamp, earlier->stamp);
      if (!earlier->done) {
        work->after.push_back(earlier);
      }
    }
  };
  std::for_each(stream.waits_for.begin(), stream.waits_for.end(), follow);
  stream.waits_for.clear();
  follow(stream.last);
  if (&stream == &default_stream_) {
    for (const Stream* other : streams_) {
      if (other->blocking) {
        follow(other->last);
      }
    }
  } else if (stream.blocking) {
    follow(default_stream_.last);
  }
  stream.last = work;
  given_since = true;
  asked_since = false;
  if (keeps_stamps_) {
    stamps_.push_back(work->stamp);
  }
  begin(work);
  return work;
}

std::shared_ptr<Work> WorkOrder::enqueue_after(std::vector<std::shared_ptr<Work>> after,
                                               std::uint32_t line, const std::string& name,
                                               std::function<void()> run) {
  auto work = std::make_shared<Work>();
  work->run = std::move(run);
  work->stamp = before_.next(line, name);
  for (const auto& earlier : after) {
    HappensBefore::join(work->stamp, earlier->stamp);
  }
  work->after = std::move(after);
  begin(work);
  return work;
}

void WorkOrder::forget_capture(const Capture& capture) {
  for (Stream* const stream : streams_) {
    if (stream->place.capture.get() == &capture) {
      stream->place = {};
    }
  }
}

void WorkOrder::begin(const std::shared_ptr<Work>& work) {
  waiting_.push_back(work);
  if (kind_ == Kind::eager) {
    do_all_ready();
  } else if (kind_ == Kind::random) {
    constexpr std::uint64_t kOneIn = 4;  // Rarely, so that much work stays queued.
    while (random_() % kOneIn == 0 && do_any_ready()) {
    }
    sweep();
  }
}

void WorkOrder::do_now(const std::shared_ptr<Work>& work) {
  work->done = true;  // Done even if it throws.
  work->after.clear();
  work->ready = nullptr;
  const auto run = std::move(work->run);
  work->run = nullptr;
  current_ = work->stamp;
  run();
  current_ = {};
}

void WorkOrder::do_all_ready() {
  const std::vector<std::shared_ptr<Work>> works = waiting_;
  do_ready(works, works.size());
  sweep();
}

bool WorkOrder::do_ready(const std::vector<std::shared_ptr<Work>>& works, std::size_t most) {
  std::size_t count = 0;
  for (const auto& work : works) {
    if (count < most && possible(*work)) {
      do_now(work);
      ++count;
    }
  }
  return count != 0;
}

std::vector<std::shared_ptr<Work>> WorkOrder::needed(const std::shared_ptr<Work>& work) const {
  std::unordered_set<const Work*> found{work.get()};
  std::vector<const Work*> open{work.get()};
  while (!open.empty()) {
    const Work* const next = open.back();
    open.pop_back();
    for (const auto& earlier : next->after) {
      if (!earlier->done && found.insert(earlier.get()).second) {
        open.push_back(earlier.get());
      }
    }
  }
  std::vector<std::shared_ptr<Work>> result;
  for (const auto& candidate : waiting_) {
    if (!candidate->done && found.contains(candidate.get())) {
      result.push_back(candidate);
    }
  }
  return result;
}

bool WorkOrder::do_any_ready() {
  std::vector<std::shared_ptr<Work>> ready;
  for (const auto& work : waiting_) {
    if (possible(*work)) {
      ready.push_back(work);
    }
  }
  if (ready.empty()) {
    return false;
  }
  do_now(ready[random_() % ready.size()]);
  return true;
}

void WorkOrder::sweep() {
  std::erase_if(waiting_, [](const auto& work) { return work->done; });
}

void WorkOrder::wait(const std::shared_ptr<Work>& work) {
  if (!work) {
    return;
  }
  before_.host_saw(work->stamp);
  if (!work->done) {
    count_wait();
  }
  while (!work->done) {
    bool any = false;
    switch (kind_) {
      case Kind::random:
        any = do_any_ready();
        break;
      case Kind::lazy:
        any = do_ready(needed(work), waiting_.size());
        break;
      case Kind::eager:
        any = do_ready(std::vector(waiting_), waiting_.size());
        break;
    }
    if (!any) {
      idle_();
    }
  }
  sweep();
}

void WorkOrder::advance(const std::shared_ptr<Work>& work) {
  if (work && !work->done) {
    do_ready(needed(work), waiting_.size());
    sweep();
  }
}

void WorkOrder::wait_for_all() {
  while (!waiting_.empty()) {
    // A copy, because the list is swept meanwhile.
    const std::shared_ptr<Work> last = waiting_.back();
    wait(last);
  }
  before_.host_saw_all();
}

bool WorkOrder::ask(const std::shared_ptr<Work>& work) {
  if (!work) {
    return true;
  }
  if (work->done) {
    before_.host_saw(work->stamp);
    return true;
  }
  if (kind_ == Kind::random) {
    do_any_ready();
  } else {
    do_ready(needed(work), 1);
  }
  sweep();
  if (work->done) {
    before_.host_saw(work->stamp);
  } else {
    count_question();
  }
  return work->done;
}

void WorkOrder::abandon() {
  for (const auto& work : waiting_) {
    work->done = true;
    work->after.clear();
    work->ready = nullptr;
    work->run = nullptr;
  }
  waiting_.clear();
  before_.host_saw_all();
}

}  // namespace jforge::emulator
