#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace jforge::emulator {

inline constexpr unsigned kLanes = 32;
using LaneMask = std::uint32_t;  ///< Bit l: lane l of the warp.
inline constexpr LaneMask kAllLanes = ~LaneMask{0};

class Warp;
struct Instruction;
using Execute = void (*)(Warp& warp, const Instruction& instruction, LaneMask lanes);

enum class Flow : std::uint8_t {
  plain,
  branch,
  exit,
  block_barrier,
  meeting,  ///< runs when all member lanes have arrived: shuffles, votes, warp barriers, mma
};

/// [base + offset]; the base is a 32- or 64-bit register.
struct Address {
  std::uint32_t base = 0;
  bool narrow = false;
  std::int64_t offset = 0;
};

/// Operands are byte offsets into the warp's register file, with a value per lane (a predicate: one
/// LaneMask).
struct Instruction {
  Execute execute = nullptr;
  Flow flow = Flow::plain;
  bool guarded = false;
  bool guard_negated = false;
  std::uint32_t guard = 0;
  std::array<std::uint32_t, 16> operands{};
  std::array<Address, 2> addresses{};
  std::uint32_t target = 0;  ///< of a branch: index of an instruction
  std::uint32_t immediate = 0;
  std::uint32_t width = 0;    ///< bytes of the registers of a Slot::wider operand
  std::uint32_t members = 0;  ///< of a meeting: operand with the member mask
  bool has_members = false;
};

enum class Slot : std::uint8_t {
  value,        ///< register, constant, special register or symbol
  result,       ///< register or _
  wider_value,  ///< like value and result, in registers at least as wide
  wider_result,
  predicate,             ///< one predicate register
  predicate_result,      ///< p or p|q: two operands, q is the opposite
  result_and_predicate,  ///< r or r|p: two operands
  address,
  label,
  immediate,  ///< a number in the instruction
  members,    ///< like value: the lanes that meet here
};
struct Form {
  Slot slot;
  unsigned width = 4;            ///< bytes of one element
  unsigned count = 1;            ///< more than 1: {a, b, …}
  bool may_be_left_out = false;  ///< a value that is then all ones
};
struct Operation {
  Execute execute;
  Flow flow;
  std::vector<Form> forms;
  unsigned shared_bytes = 0;  ///< narrowest access to shared memory
};

/// Keys are full names with modifiers; `mov` between a register and its parts has keys such as
/// "mov.b64 pack2".
[[nodiscard]] const std::unordered_map<std::string_view, Operation>& operations();

/// start of generic addresses of shared memory
inline constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 60;
/// start of generic addresses of local memory
inline constexpr std::uint64_t kLocalWindow = std::uint64_t{1} << 61;

/// In the order of Warp's values for them.
inline constexpr std::array<std::string_view, 20> kSpecialRegisters{
    "%tid.x",       "%tid.y",       "%tid.z",       "%ntid.x",      "%ntid.y",
    "%ntid.z",      "%ctaid.x",     "%ctaid.y",     "%ctaid.z",     "%nctaid.x",
    "%nctaid.y",    "%nctaid.z",    "%laneid",      "%warpid",      "%lanemask_eq",
    "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%dynamic_smem_size"};

struct Kernel {
  struct Parameter {
    std::size_t offset;
    std::size_t bytes;
  };
  std::string name;
  std::string refused;  ///< unsupported part with its line; empty: launchable
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes = 0;
  std::size_t static_shared = 0;  ///< dynamic shared memory begins here
  std::size_t local_bytes = 0;
  std::size_t shared_granule = 16;  ///< no access to shared memory is narrower
  std::vector<Instruction> code;
  std::vector<std::string> text;         ///< by instruction, for messages
  std::vector<std::uint32_t> lines;      ///< by instruction, in the PTX
  std::vector<std::byte> register_file;  ///< a new warp's: the constants
  /// Reused from ended warps: the constants are unchanged.
  mutable std::vector<std::vector<std::byte>> used_register_files;
  /// Those in use, by their index in kSpecialRegisters, with their offsets.
  std::vector<std::pair<std::size_t, std::uint32_t>> specials;
};

/// Marks unsupported kernels as refused. Throws Refusal for other unsupported text.
[[nodiscard]] std::vector<Kernel> parse_ptx(std::string_view text);

}  // namespace jforge::emulator
