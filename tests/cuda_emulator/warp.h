#pragma once

/// Lanes at one place run together, the hindmost first, so that diverged lanes meet again.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/instruction.h"
#include "tests/cuda_emulator/shared_memory.h"

namespace jforge::emulator {

using Dimensions = std::array<std::uint32_t, 3>;

struct Launch {
  const Kernel* kernel = nullptr;
  Dimensions grid{1, 1, 1};
  Dimensions block{1, 1, 1};
  std::size_t dynamic_shared = 0;
  std::vector<std::byte> parameters;  ///< laid out as the kernel's .param space
};

/// Throws LaunchFault at the first fault. Seed 0 runs warps in order, another in a random order.
void run(const Launch& launch, DeviceMemory& memory, std::uint64_t seed = 0);

struct BlockState {
  const Launch& launch;
  DeviceMemory& memory;
  SharedMemory shared;
  Dimensions index{};
  std::uint32_t threads = 0;
  struct Barrier {
    std::uint32_t arrived = 0;
    std::uint32_t place = 0;  ///< where the first arrival waits
  };
  static constexpr std::size_t kBarriers = 16;
  std::array<Barrier, kBarriers> barriers;
};

class Warp {
 public:
  Warp(BlockState& block, unsigned index);

  void begin_block();
  /// Gives the registers to the next launch.
  [[nodiscard]] std::vector<std::byte> take_registers() { return std::move(registers_); }
  /// Runs about `steps` instructions. Returns false if nothing could run; throws Fault.
  bool run(unsigned steps);
  void pass_block_barrier(std::uint32_t barrier);

  [[nodiscard]] bool ended() const { return live_ == 0; }
  /// "thread 3 (PTX line 40: bar.sync 0)" of the first one, or "".
  [[nodiscard]] std::string waiting_note() const;
  [[nodiscard]] unsigned index() const { return index_; }
  [[nodiscard]] std::uint32_t place() const { return place_; }

  template <class T>
  [[nodiscard]] T* lanes(std::uint32_t offset) {
    return reinterpret_cast<T*>(registers_.data() + offset);
  }
  [[nodiscard]] LaneMask& predicate(std::uint32_t offset) { return *lanes<LaneMask>(offset); }
  [[nodiscard]] std::uint64_t address(const Address& address, unsigned lane) {
    const std::uint64_t base = address.narrow ? lanes<std::uint32_t>(address.base)[lane]
                                              : lanes<std::uint64_t>(address.base)[lane];
    return base + static_cast<std::uint64_t>(address.offset);
  }
  [[nodiscard]] DeviceMemory& memory() { return block_.memory; }
  [[nodiscard]] SharedMemory& shared() { return block_.shared; }
  [[nodiscard]] std::span<std::byte> local(unsigned lane) {
    const std::size_t bytes = local_.size() / kLanes;
    return {&local_[lane * bytes], bytes};
  }
  [[nodiscard]] std::span<const std::byte> parameters() const { return block_.launch.parameters; }
  [[nodiscard]] SharedAccess access(unsigned lane) const {
    return {index_ * kLanes + lane, gathered_, lane};
  }
  void pass_warp_barrier() { gathered_ = block_.shared.pass_warp_barrier(); }

  struct Copy {
    std::uint64_t to;
    std::uint64_t from;
    std::uint32_t bytes;
    std::uint32_t read;  ///< the rest is zero
  };
  struct Copies {
    std::vector<Copy> begun;
    std::vector<std::size_t> groups;  ///< where each ends
  };
  [[nodiscard]] Copies& copies(unsigned lane) { return copies_[lane]; }

 private:
  struct Group {
    LaneMask lanes;
    std::uint32_t place;
    std::uint32_t next_other;  ///< nearest place ahead with other lanes
  };
  [[nodiscard]] LaneMask runnable() const { return live_ & ~at_barrier_ & ~meeting_; }
  [[nodiscard]] Group hindmost() const;
  [[nodiscard]] std::uint32_t place_of_first(LaneMask lanes) const {
    return places_[static_cast<unsigned>(std::countr_zero(lanes))];
  }
  /// Also false for no lanes.
  [[nodiscard]] bool together(LaneMask lanes) const;
  /// Exactly a meeting's lanes are at it.
  [[nodiscard]] bool met(const Instruction& instruction, LaneMask lanes);
  void set_place(LaneMask lanes, std::uint32_t place);
  void run_group(Group group, unsigned& steps);
  void reach_barrier(const Instruction& instruction, LaneMask lanes);
  void meet(const Instruction& instruction, LaneMask lanes);

  BlockState& block_;
  unsigned index_;
  std::vector<std::byte> registers_;
  std::vector<std::byte> local_;  ///< of each lane, in order
  std::array<std::uint32_t, kLanes> places_{};
  std::array<LaneMask, kLanes> members_{};  ///< whom a meeting lane waits for
  LaneMask born_ = 0;
  LaneMask live_ = 0;
  LaneMask at_barrier_ = 0;
  LaneMask meeting_ = 0;
  std::uint32_t gathered_ = 0;  ///< when it passed its last barrier of its own
  std::uint32_t place_ = 0;
  std::array<Copies, kLanes> copies_;
};

}  // namespace jforge::emulator
