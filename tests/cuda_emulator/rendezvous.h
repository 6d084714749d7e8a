#pragma once

/// Exchanges a communicator's calls and input bytes in shared memory, without blocking.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace jforge::emulator {

struct CollectiveCall {
  std::uint32_t kind = 0;
  std::uint32_t type = 0;
  std::uint32_t operation = 0;
  std::uint32_t root = 0;
  std::uint64_t count = 0;
  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};

class Rendezvous {
 public:
  static constexpr unsigned kMostRanks = 8;
  enum class State : std::uint32_t { absent, joined, ended, aborted };

  [[nodiscard]] static std::string new_name();

  /// Throws Refusal if the shared memory cannot be opened.
  Rendezvous(const std::string& name, unsigned ranks, unsigned own, int device);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Unlinks the names when all ranks are there. Throws Refusal if they disagree on their number or
  /// share a device.
  bool complete();

  /// Calls come in order from 0. Overwrites the input of number − 2: the rank has seen all of
  /// number − 1.
  void give(std::uint64_t number, const CollectiveCall& call, std::span<const std::byte> input);
  /// If not, tells the others that this rank waits.
  [[nodiscard]] bool given_by_all(std::uint64_t number);
  /// Another rank waits for the calls before this one.
  [[nodiscard]] std::uint64_t wanted() const;
  [[nodiscard]] CollectiveCall call_of(unsigned rank, std::uint64_t number) const;
  void take(unsigned rank, std::uint64_t number, std::span<std::byte> input) const;

  void leave(State state);
  /// Such as "rank 2 has ended before its call 7", or "".
  [[nodiscard]] std::string missing(std::uint64_t number) const;

  [[nodiscard]] unsigned ranks() const { return ranks_; }
  [[nodiscard]] unsigned own() const { return own_; }

 private:
  static constexpr std::size_t kSlots = 2;
  struct Rank {
    std::atomic<State> state;
    std::atomic<std::uint32_t> ranks;
    std::atomic<std::int32_t> device;
    std::atomic<std::uint32_t> opened;  ///< has opened the others' inputs
    std::atomic<std::uint64_t> given;
    std::atomic<std::uint64_t> waits_for;
    std::array<CollectiveCall, kSlots> calls;
  };
  struct Shared {
    std::array<Rank, kMostRanks> ranks;
  };
  /// Locked for life; the system releases a dead rank's lock.
  struct Files {
    int life = -1;
    std::array<int, kSlots> inputs{-1, -1};
  };
  [[nodiscard]] std::string file_name(unsigned rank, std::size_t which) const;
  void remove_names() const;
  [[nodiscard]] bool alive(unsigned rank) const;

  std::string name_;
  unsigned ranks_;
  unsigned own_;
  Shared* shared_ = nullptr;
  std::array<Files, kMostRanks> files_;
};

}  // namespace jforge::emulator
