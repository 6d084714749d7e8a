#include "tests/cuda_emulator/warp.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <tuple>

#include "tests/cuda_emulator/fault.h"

namespace jforge::emulator {

namespace {

constexpr std::uint32_t kNowhere = ~std::uint32_t{0};

std::string triple(const Dimensions& value) {
  return "(" + std::to_string(value[0]) + ", " + std::to_string(value[1]) + ", " +
         std::to_string(value[2]) + ")";
}

Dimensions unfold(std::uint32_t flat, const Dimensions& extent) {
  return {flat % extent[0], flat / extent[0] % extent[1], flat / extent[0] / extent[1]};
}

std::uint32_t volume(const Dimensions& extent) { return extent[0] * extent[1] * extent[2]; }

std::string place_note(const Kernel& kernel, std::uint32_t place) {
  return "PTX line " + std::to_string(kernel.lines[place]) + ": " + kernel.text[place];
}

std::vector<std::byte> registers_of(const Kernel& kernel) {
  auto& used = kernel.used_register_files;
  if (used.empty()) {
    return kernel.register_file;
  }
  std::vector<std::byte> registers = std::move(used.back());
  used.pop_back();
  return registers;
}

auto special_values(const BlockState& block, std::uint32_t thread) {
  const Dimensions tid = unfold(thread, block.launch.block);
  const auto& [grid, size] = std::tie(block.launch.grid, block.launch.block);
  const std::uint32_t lane = thread % kLanes;
  const LaneMask own = LaneMask{1} << lane;
  const LaneMask less = own - 1;
  const auto dynamic = static_cast<std::uint32_t>(block.launch.dynamic_shared);
  const auto& at = block.index;
  // clang-format off
  return std::array{tid[0], tid[1], tid[2], size[0], size[1], size[2], at[0], at[1], at[2],
                    grid[0], grid[1], grid[2], lane, thread / kLanes,
                    own, less, own | less, ~(own | less), ~less, dynamic};
  // clang-format on
}

}  // namespace

const char* name_of(FaultKind kind) {
  constexpr std::array kNames{"illegal address",   "race", "uninitialised memory",
                              "divergent barrier", "trap", "collective mismatch"};
  return kNames.at(static_cast<std::size_t>(kind));
}

Warp::Warp(BlockState& block, unsigned index)
    : block_(block),
      index_(index),
      registers_(registers_of(*block.launch.kernel)),
      local_(kLanes * block.launch.kernel->local_bytes) {
  const std::uint32_t lanes = std::min(kLanes, block.threads - index * kLanes);
  born_ = lanes == kLanes ? kAllLanes : (LaneMask{1} << lanes) - 1;
}

void Warp::begin_block() {
  live_ = born_;
  at_barrier_ = 0;
  meeting_ = 0;
  places_.fill(0);
  std::fill(local_.begin(), local_.end(), std::byte{0xff});
  for (Copies& copies : copies_) {
    copies.begun.clear();
    copies.groups.clear();
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const auto values = special_values(block_, index_ * kLanes + lane);
    for (const auto& [special, offset] : block_.launch.kernel->specials) {
      lanes<std::uint32_t>(offset)[lane] = values[special];
    }
  }
}

Warp::Group Warp::hindmost() const {
  if (const LaneMask lanes = runnable(); together(lanes)) {
    return {lanes, place_of_first(lanes), kNowhere};
  }
  Group group{0, kNowhere, kNowhere};
  for (LaneMask rest = runnable(); rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(rest));
    const std::uint32_t place = places_[lane];
    if (place < group.place) {
      group = {0, place, group.place};
    }
    if (place == group.place) {
      group.lanes |= LaneMask{1} << lane;
    } else {
      group.next_other = std::min(group.next_other, place);
    }
  }
  return group;
}

bool Warp::together(LaneMask lanes) const {
  const std::uint32_t first = place_of_first(lanes);
  LaneMask elsewhere = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    elsewhere |= LaneMask{places_[lane] != first} << lane;
  }
  return (elsewhere & lanes) == 0;
}

void Warp::set_place(LaneMask lanes, std::uint32_t place) {
  if (lanes == kAllLanes) {
    places_.fill(place);
    return;
  }
  for (; lanes != 0; lanes &= lanes - 1) {
    places_[static_cast<unsigned>(std::countr_zero(lanes))] = place;
  }
}

bool Warp::run(unsigned steps) {
  if (runnable() == 0) {
    return false;
  }
  while (runnable() != 0 && steps > 0) {
    run_group(hindmost(), steps);
  }
  return true;
}

/// Ends when the group reaches other lanes, diverges, waits, ends or has used up its steps.
void Warp::run_group(Group group, unsigned& steps) {
  const Instruction* const code = block_.launch.kernel->code.data();
  const std::size_t size = block_.launch.kernel->code.size();
  std::uint32_t place = group.place;
  while (place != group.next_other && steps > 0) {
    if (place >= size) {
      throw Refusal("kernel " + block_.launch.kernel->name + " runs past its last instruction");
    }
    const Instruction& instruction = code[place];
    place_ = place;
    --steps;
    LaneMask active = group.lanes;
    if (instruction.guarded) {
      const LaneMask guard = predicate(instruction.guard);
      active &= instruction.guard_negated ? ~guard : guard;
    }
    if (instruction.flow == Flow::plain) {
      if (active != 0) {
        instruction.execute(*this, instruction, active);
      }
      ++place;
      continue;
    }
    if (active == 0) {
      ++place;
      continue;
    }
    const LaneMask others = group.lanes & ~active;
    set_place(others, place + 1);
    switch (instruction.flow) {
      case Flow::branch:
        if (others == 0 && instruction.target < group.next_other) {
          place = instruction.target;
          continue;
        }
        set_place(active, instruction.target);
        return;
      case Flow::exit:
        live_ &= ~active;
        return;
      case Flow::block_barrier:
        set_place(active, place);
        reach_barrier(instruction, active);
        return;
      default:
        if (met(instruction, active)) {
          instruction.execute(*this, instruction, active);
          ++place;
          continue;
        }
        set_place(active, place);
        meet(instruction, active);
        return;
    }
  }
  set_place(group.lanes, place);
}

void Warp::reach_barrier(const Instruction& instruction, LaneMask lanes) {
  if (instruction.immediate >= BlockState::kBarriers) {
    throw Refusal("barrier " + std::to_string(instruction.immediate) + " does not exist");
  }
  BlockState::Barrier& barrier = block_.barriers[instruction.immediate];
  if (barrier.arrived == 0) {
    barrier.place = place_;
  } else if (barrier.place != place_) {
    throw Fault(FaultKind::divergent_barrier,
                "threads of the block wait at another place for the same barrier (" +
                    place_note(*block_.launch.kernel, barrier.place) + ")",
                static_cast<unsigned>(std::countr_zero(lanes)));
  }
  barrier.arrived += static_cast<std::uint32_t>(std::popcount(lanes));
  at_barrier_ |= lanes;
}

void Warp::pass_block_barrier(std::uint32_t barrier) {
  const std::vector<Instruction>& code = block_.launch.kernel->code;
  if (at_barrier_ != 0 && together(at_barrier_)) {
    const std::uint32_t place = place_of_first(at_barrier_);
    if (code[place].immediate == barrier) {
      set_place(at_barrier_, place + 1);
      at_barrier_ = 0;
    }
    return;
  }
  for (LaneMask rest = at_barrier_; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(rest));
    if (code[places_[lane]].immediate == barrier) {
      ++places_[lane];
      at_barrier_ &= ~(LaneMask{1} << lane);
    }
  }
}

bool Warp::met(const Instruction& instruction, LaneMask lanes) {
  if (lanes != live_ || lanes != born_) {
    return false;
  }
  if (!instruction.has_members) {
    return true;
  }
  const LaneMask* const members = this->lanes<LaneMask>(instruction.members);
  LaneMask missing = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    missing |= lanes >> lane & 1U ? ~members[lane] & born_ : 0;
  }
  return missing == 0;
}

/// Runs `instruction` once all lanes of a mask have arrived with it.
void Warp::meet(const Instruction& instruction, LaneMask lanes) {
  for (LaneMask rest = lanes; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(rest));
    const LaneMask own = LaneMask{1} << lane;
    members_[lane] =
        instruction.has_members ? this->lanes<LaneMask>(instruction.members)[lane] & born_ : born_;
    if ((members_[lane] & own) == 0) {
      throw Fault(FaultKind::divergent_barrier, "a lane takes part that its member mask leaves out",
                  lane);
    }
    if ((members_[lane] & ~live_) != 0) {
      throw Fault(FaultKind::divergent_barrier,
                  "lane " + std::to_string(std::countr_zero(members_[lane] & ~live_)) +
                      " is waited for but has left the kernel",
                  lane);
    }
  }
  meeting_ |= lanes;
  for (LaneMask rest = lanes; rest != 0;) {
    const auto lane = static_cast<unsigned>(std::countr_zero(rest));
    const LaneMask members = members_[lane];
    LaneMask present = 0;
    for (LaneMask others = meeting_; others != 0; others &= others - 1) {
      const auto other = static_cast<unsigned>(std::countr_zero(others));
      if (places_[other] == place_ && members_[other] == members) {
        present |= LaneMask{1} << other;
      }
    }
    if (present == members) {
      instruction.execute(*this, instruction, members);
      meeting_ &= ~members;
      set_place(members, place_ + 1);
    }
    rest &= ~(members | LaneMask{1} << lane);
  }
}

std::string Warp::waiting_note() const {
  const LaneMask waiting = at_barrier_ | meeting_;
  if (waiting == 0) {
    return {};
  }
  const auto lane = static_cast<unsigned>(std::countr_zero(waiting));
  return "thread " + std::to_string(index_ * kLanes + lane) + " waits (" +
         place_note(*block_.launch.kernel, places_[lane]) + ")";
}

namespace {

class BlockRunner {
 public:
  BlockRunner(const Launch& launch, DeviceMemory& memory, std::uint64_t seed)
      : block_{launch, memory, {}, {}, volume(launch.block), {}}, seed_(seed), random_(seed) {
    const std::uint32_t count = (block_.threads + kLanes - 1) / kLanes;
    warps_.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      warps_.emplace_back(block_, i);
    }
    order_.resize(count);
    std::iota(order_.begin(), order_.end(), 0U);
  }

  ~BlockRunner() {
    for (Warp& warp : warps_) {
      block_.launch.kernel->used_register_files.push_back(warp.take_registers());
    }
  }
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  void run(const Dimensions& index) {
    block_.index = index;
    const Kernel& kernel = *block_.launch.kernel;
    block_.shared.begin_block(kernel.static_shared + block_.launch.dynamic_shared,
                              kernel.shared_granule);
    block_.barriers.fill({});
    block_.memory.accessor.phase = 0;
    for (Warp& warp : warps_) {
      warp.begin_block();
    }
    const Warp* running = warps_.data();
    try {
      std::uint64_t rounds = 0;
      while (std::any_of(warps_.begin(), warps_.end(), [](const Warp& w) { return !w.ended(); })) {
        if (seed_ != 0) {
          std::shuffle(order_.begin(), order_.end(), random_);
        }
        bool progress = false;
        for (const unsigned i : order_) {
          running = &warps_[i];
          block_.memory.accessor.warp = i;
          progress = warps_[i].run(kSteps) || progress;
        }
        const bool passed = pass_barriers();
        if (!passed && !progress) {
          throw Fault(FaultKind::divergent_barrier, deadlock_note(), 0);
        }
        rounds = passed ? 0 : rounds + 1;
        if (rounds > kMostRounds) {
          throw Refusal("kernel " + block_.launch.kernel->name +
                        " does not end, or a block waits for a later one, which");
        }
      }
    } catch (const Fault& fault) {
      throw LaunchFault(fault.kind, report(fault, *running));
    }
  }

 private:
  static constexpr unsigned kSteps = 1U << 16;  ///< steps of a warp before the next one's turn
  /// rounds without a barrier: seconds of a spinning loop
  static constexpr std::uint64_t kMostRounds = 4096;

  bool pass_barriers() {
    bool passed = false;
    for (std::uint32_t i = 0; i < BlockState::kBarriers; ++i) {
      if (block_.barriers[i].arrived == block_.threads) {
        block_.barriers[i] = {};
        block_.shared.pass_block_barrier();
        ++block_.memory.accessor.phase;
        for (Warp& warp : warps_) {
          warp.pass_block_barrier(i);
        }
        passed = true;
      }
    }
    return passed;
  }

  [[nodiscard]] std::string deadlock_note() const {
    std::string note = "not all threads come:";
    unsigned gone = 0;
    for (const Warp& warp : warps_) {
      gone += warp.ended() ? 1 : 0;
      if (const std::string waits = warp.waiting_note(); !waits.empty()) {
        note += " " + waits + ";";
      }
    }
    return note + " " + std::to_string(gone) + " of " + std::to_string(warps_.size()) +
           " warps have left";
  }

  [[nodiscard]] std::string report(const Fault& fault, const Warp& warp) const {
    const std::uint32_t thread = warp.index() * kLanes + fault.lane;
    return std::string(name_of(fault.kind)) + ": " + fault.what() + "; kernel " +
           block_.launch.kernel->name + ", block " + triple(block_.index) + ", thread " +
           triple(unfold(thread, block_.launch.block)) + ", " +
           place_note(*block_.launch.kernel, warp.place());
  }

  BlockState block_;
  std::uint64_t seed_;
  std::mt19937_64 random_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;
};

}  // namespace

void run(const Launch& launch, DeviceMemory& memory, std::uint64_t seed) {
  BlockRunner runner(launch, memory, seed);
  for (std::uint32_t z = 0; z < launch.grid[2]; ++z) {
    for (std::uint32_t y = 0; y < launch.grid[1]; ++y) {
      for (std::uint32_t x = 0; x < launch.grid[0]; ++x) {
        memory.accessor.block = (z * launch.grid[1] + y) * launch.grid[0] + x;
        runner.run({x, y, z});
      }
    }
  }
}

}  // namespace jforge::emulator
