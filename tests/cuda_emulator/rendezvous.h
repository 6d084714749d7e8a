#pragma once

/// Where the processes of one communicator meet: what each has called, and the bytes it gives, in
/// shared memory. Nothing here waits.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace jforge::emulator {

/// One collective call of a rank, as far as all ranks must agree on it.
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

  /// A name that no other has, with nothing behind it yet.
  [[nodiscard]] static std::string new_name();

  /// Throws Refusal when the memory cannot be had.
  Rendezvous(const std::string& name, unsigned ranks, unsigned own, int device);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Whether all have come; the names are then taken away. Throws Refusal when they do not agree on
  /// their number, or two ranks chose one device.
  bool complete();

  /// The input of the own call `number`; calls are numbered from 0 and all are given in order. The
  /// input of number - 2 is overwritten: who gives this one has seen all of number - 1.
  void give(std::uint64_t number, const CollectiveCall& call, std::span<const std::byte> input);
  /// Whether all have given call `number`. Otherwise they are told that somebody waits.
  [[nodiscard]] bool given_by_all(std::uint64_t number);
  /// Calls up to this one, not included, are waited for by another rank.
  [[nodiscard]] std::uint64_t wanted() const;
  [[nodiscard]] CollectiveCall call_of(unsigned rank, std::uint64_t number) const;
  void take(unsigned rank, std::uint64_t number, std::span<std::byte> input) const;

  void leave(State state);
  /// "rank 2 has ended before its call 7", or empty: who will never give call `number`.
  [[nodiscard]] std::string missing(std::uint64_t number) const;

  [[nodiscard]] unsigned ranks() const { return ranks_; }
  [[nodiscard]] unsigned own() const { return own_; }

 private:
  static constexpr std::size_t kSlots = 2;
  struct Rank {
    std::atomic<State> state;
    std::atomic<std::uint32_t> ranks;
    std::atomic<std::int32_t> device;
    std::atomic<std::uint32_t> opened;  ///< Has opened what the others give.
    std::atomic<std::uint64_t> given;
    std::atomic<std::uint64_t> waits_for;
    std::array<CollectiveCall, kSlots> calls;
  };
  struct Shared {
    std::array<Rank, kMostRanks> ranks;
  };
  /// Held by its own rank while that lives, which the system takes back from the dead.
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
