#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace jforge::emulator {

/// Unsupported PTX, argument or order of calls.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class FaultKind : std::uint8_t {
  illegal_address,       ///< outside every allocation, freed, not yet allocated, misaligned
  race,                  ///< two threads, one writing, with no barrier between them
  uninitialised_memory,  ///< shared memory read before any write
  divergent_barrier,     ///< a barrier or warp operation that some of its threads miss
  trap,
  collective_mismatch,  ///< ranks whose NCCL calls differ
};
[[nodiscard]] const char* name_of(FaultKind kind);

/// Only the launch knows its place.
struct Fault : std::runtime_error {
  Fault(FaultKind fault, const std::string& text, unsigned fault_lane = 0)
      : std::runtime_error(text), kind(fault), lane(fault_lane) {}
  FaultKind kind;
  unsigned lane;
};

/// "race: …; kernel K, block (x, y, z), thread (x, y, z), PTX line n: INSTRUCTION".
struct LaunchFault : std::runtime_error {
  LaunchFault(FaultKind fault, const std::string& report)
      : std::runtime_error(report), kind(fault) {}
  FaultKind kind;
};

}  // namespace jforge::emulator
