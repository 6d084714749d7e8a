#pragma once

/// What the emulated device refuses or finds wrong.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace jforge::emulator {

/// PTX, an argument or an order of calls that the emulator does not know. Nothing is guessed: the
/// message names the instruction, modifier, register or call.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class FaultKind : std::uint8_t {
  illegal_address,       ///< Outside every allocation, freed, not yet allocated, misaligned.
  race,                  ///< Two threads, one writing, with no barrier between them.
  uninitialised_memory,  ///< Shared memory read before anything was written there.
  divergent_barrier,     ///< A barrier or warp operation that its threads do not all reach.
  trap,                  ///< The kernel stopped itself.
  collective_mismatch,   ///< Ranks whose calls to NCCL are not the same.
};
[[nodiscard]] const char* name_of(FaultKind kind);

/// A kernel's own fault, without the place, which only the launch knows.
struct Fault : std::runtime_error {
  Fault(FaultKind fault, const std::string& text, unsigned fault_lane = 0)
      : std::runtime_error(text), kind(fault), lane(fault_lane) {}
  FaultKind kind;
  unsigned lane;  ///< Of the warp that ran into it.
};

/// "race: …; kernel K, block (x, y, z), thread (x, y, z), PTX line n: INSTRUCTION" on one line.
struct LaunchFault : std::runtime_error {
  LaunchFault(FaultKind fault, const std::string& report)
      : std::runtime_error(report), kind(fault) {}
  FaultKind kind;
};

}  // namespace jforge::emulator
