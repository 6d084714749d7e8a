#include "tests/support/virtual_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/transport_internal.h"
#include "runtime/error.h"

namespace jforge {

namespace {

using Handle = Communicator::Handle;

/// A wait for a rank that has ended.
struct PeerEnded : CommError {
  using CommError::CommError;
};

class Group;

/// Shared by all ranks of a run. The lock does not cover the copying of blocks.
struct SharedWorld {
  explicit SharedWorld(int ranks) : ended(static_cast<std::size_t>(ranks), false) {}
  void end(Rank rank, bool by_exception);

  std::mutex mutex;
  std::vector<bool> ended;
  std::optional<Rank> failed;  ///< The first to end by an exception.
  std::vector<Group*> groups;
  VirtualWorld::Traffic traffic;
};

/// A block in transit. Belongs to its sender while empty or posted.
struct Slot {
  enum class State { empty, posted, copying };
  State state = State::empty;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// One communicator.
class Group {
 public:
  /// `ranks`: the members' ranks in the world.
  Group(SharedWorld& shared, std::vector<Rank> ranks)
      : world(shared),
        in_world(std::move(ranks)),
        members(in_world.size()),
        slots_(members.size() * members.size()) {
    const std::lock_guard lock(world.mutex);
    world.groups.push_back(this);
  }
  ~Group() {
    const std::lock_guard lock(world.mutex);
    std::erase(world.groups, this);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Returns one group of `ranks` for the `number`-th split() of its members, whose first is
  /// `first` here.
  std::shared_ptr<Group> split(int number, Rank first, std::vector<Rank> ranks) {
    const std::lock_guard lock(parts_mutex_);
    const std::pair key(number, first);
    auto& [group, taken] = parts_[key];
    if (group == nullptr) {
      group = std::make_shared<Group>(world, std::move(ranks));
    }
    std::shared_ptr<Group> result = group;
    if (++taken == group->members.size()) {
      parts_.erase(key);
    }
    return result;
  }

  Slot& slot(Rank from, Rank to) {
    return slots_[static_cast<std::size_t>(from) * members.size() + static_cast<std::size_t>(to)];
  }

  struct Member {
    std::condition_variable changed;
    std::deque<ReceivedMessage> messages;
    std::size_t untaken = 0;  ///< Blocks of the running exchange not taken yet.
  };
  Member& member(Rank rank) { return members[static_cast<std::size_t>(rank)]; }

  SharedWorld& world;
  const std::vector<Rank> in_world;
  std::vector<Member> members;

 private:
  std::vector<Slot> slots_;
  std::mutex parts_mutex_;
  std::map<std::pair<int, Rank>, std::pair<std::shared_ptr<Group>, std::size_t>> parts_;
};

void SharedWorld::end(Rank rank, bool by_exception) {
  const std::lock_guard lock(mutex);
  ended[static_cast<std::size_t>(rank)] = true;
  if (by_exception && !failed.has_value()) {
    failed = rank;
  }
  for (Group* group : groups) {
    for (Group::Member& member : group->members) {
      member.changed.notify_all();
    }
  }
}

class VirtualHandle final : public Handle {
 public:
  VirtualHandle(std::shared_ptr<Group> group, Rank own_rank) : group_(std::move(group)) {
    rank = own_rank;
    size = static_cast<int>(group_->members.size());
  }

  void post(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) override {
    outgoing_.assign(outgoing.begin(), outgoing.end());
    incoming_.assign(incoming.begin(), incoming.end());
    const std::lock_guard lock(world().mutex);
    group_->member(rank).untaken = outgoing_.size();
    for (const Outgoing& block : outgoing_) {
      Slot& slot = group_->slot(rank, block.to);
      expect(slot.state == Slot::State::empty, "two blocks at once from one rank to another");
      slot = {Slot::State::posted, block.data, block.bytes};
      VirtualWorld::Traffic& traffic = world().traffic;
      ++traffic.messages;
      traffic.bytes += block.bytes;
      traffic.largest_bytes = std::max(traffic.largest_bytes, block.bytes);
      group_->member(block.to).changed.notify_all();
    }
  }

  void finish() override {
    std::unique_lock lock(world().mutex);
    try {
      while (!advance(lock)) {
        group_->member(rank).changed.wait(lock);
      }
    } catch (...) {
      withdraw(lock);
      throw;
    }
  }

  [[nodiscard]] std::unique_ptr<Handle> split(int color) override {
    std::vector<int> colors(static_cast<std::size_t>(size));
    detail::all_gather_values<int>(*this, color, colors);
    std::vector<Rank> ranks;
    std::optional<Rank> first;
    Rank own = 0;
    for (Rank other = 0; other < size; ++other) {
      if (colors[static_cast<std::size_t>(other)] == color) {
        first = first.value_or(other);
        own = other == rank ? static_cast<Rank>(ranks.size()) : own;
        ranks.push_back(group_->in_world[static_cast<std::size_t>(other)]);
      }
    }
    return std::make_unique<VirtualHandle>(group_->split(splits_++, *first, std::move(ranks)), own);
  }

  void close() override {}

  void send(Rank destination, int tag, std::span<const std::byte> payload) override {
    ReceivedMessage message{rank, tag, {payload.begin(), payload.end()}};
    const std::lock_guard lock(world().mutex);
    group_->member(destination).messages.push_back(std::move(message));
  }

  [[nodiscard]] std::optional<ReceivedMessage> try_receive() override {
    const std::lock_guard lock(world().mutex);
    std::deque<ReceivedMessage>& waiting = group_->member(rank).messages;
    if (waiting.empty()) {
      if (world().failed.has_value()) {
        throw PeerEnded(fmt::format("virtual rank {} failed", *world().failed));
      }
      return std::nullopt;
    }
    ReceivedMessage message = std::move(waiting.front());
    waiting.pop_front();
    return message;
  }

  [[nodiscard]] HostPlace place_on_host() override { return {rank, size}; }

  void abandon() noexcept override {
    const std::lock_guard lock(world().mutex);
    abandoned_ = true;
    group_->member(rank).changed.notify_all();
  }

  [[nodiscard]] double patience_seconds() const noexcept override { return 0; }

 private:
  [[nodiscard]] SharedWorld& world() const noexcept { return group_->world; }

  /// Takes blocks that have come. Returns whether the exchange is done; throws if it never can be.
  bool advance(std::unique_lock<std::mutex>& lock) {
    for (;;) {
      const auto there = std::find_if(incoming_.begin(), incoming_.end(), [&](const auto& block) {
        return group_->slot(block.from, rank).state == Slot::State::posted;
      });
      if (there == incoming_.end()) {
        break;
      }
      take(lock, *there);
      std::swap(*there, incoming_.back());
      incoming_.pop_back();
    }
    if (incoming_.empty() && group_->member(rank).untaken == 0) {
      return true;
    }
    if (abandoned_) {
      throw CommError("a collective was abandoned because this rank failed");
    }
    for (const Incoming& block : incoming_) {
      expect_alive(block.from);
    }
    for (const Outgoing& block : outgoing_) {
      if (group_->slot(rank, block.to).state == Slot::State::posted) {
        expect_alive(block.to);
      }
    }
    return false;
  }

  void take(std::unique_lock<std::mutex>& lock, const Incoming& block) {
    Slot& slot = group_->slot(block.from, rank);
    if (slot.bytes != block.bytes) {
      throw CommError(fmt::format("rank {} sends {} bytes where rank {} expects {}", block.from,
                                  slot.bytes, rank, block.bytes));
    }
    slot.state = Slot::State::copying;
    lock.unlock();
    if (block.bytes > 0) {
      std::memcpy(block.data, slot.data, block.bytes);
    }
    lock.lock();
    slot.state = Slot::State::empty;
    if (Group::Member& sender = group_->member(block.from); --sender.untaken == 0) {
      sender.changed.notify_all();
    }
  }

  void expect_alive(Rank peer) const {
    if (world().ended[static_cast<std::size_t>(group_->in_world[static_cast<std::size_t>(peer)])]) {
      throw PeerEnded(
          fmt::format("virtual rank {} waits for rank {}, which has ended", rank, peer));
    }
  }

  /// After an error no rank may read memory that this one is about to free.
  void withdraw(std::unique_lock<std::mutex>& lock) {
    for (const Outgoing& block : outgoing_) {
      Slot& slot = group_->slot(rank, block.to);
      if (slot.state == Slot::State::posted) {
        slot.state = Slot::State::empty;
        --group_->member(rank).untaken;
      }
    }
    group_->member(rank).changed.wait(lock, [&] { return group_->member(rank).untaken == 0; });
  }

  std::shared_ptr<Group> group_;
  int splits_ = 0;
  bool abandoned_ = false;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
};

}  // namespace

VirtualWorld::VirtualWorld(int ranks) : ranks_(ranks) {
  constexpr int kMaxRanks = 64;
  expect(1 <= ranks && ranks <= kMaxRanks, "a virtual world has 1 to 64 ranks");
}

void VirtualWorld::run(const std::function<void(const Communicator&)>& work) {
  SharedWorld shared(ranks_);
  std::vector<Rank> all(static_cast<std::size_t>(ranks_));
  std::iota(all.begin(), all.end(), 0);
  auto group = std::make_shared<Group>(shared, all);
  struct Outcome {
    std::exception_ptr failure;
    bool because_of_another = false;
  };
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks_));
  const auto run_rank = [&](Rank rank) {
    Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    try {
      const Communicator comm(std::make_unique<VirtualHandle>(group, rank));
      work(comm);
    } catch (const PeerEnded&) {
      outcome = {std::current_exception(), true};
    } catch (...) {
      outcome = {std::current_exception(), false};
    }
    shared.end(rank, outcome.failure != nullptr);
  };
  std::vector<std::thread> threads;
  threads.reserve(outcomes.size());
  std::exception_ptr no_thread;
  for (Rank rank = 0; rank < ranks_; ++rank) {
    try {
      threads.emplace_back(run_rank, rank);
    } catch (...) {
      no_thread = std::current_exception();
      for (Rank missing = rank; missing < ranks_; ++missing) {
        shared.end(missing, true);
      }
      break;
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  traffic_ = shared.traffic;
  if (no_thread != nullptr) {
    std::rethrow_exception(no_thread);
  }
  for (const bool because_of_another : {false, true}) {
    for (const Outcome& outcome : outcomes) {
      if (outcome.failure != nullptr && outcome.because_of_another == because_of_another) {
        std::rethrow_exception(outcome.failure);
      }
    }
  }
}

}  // namespace jforge
