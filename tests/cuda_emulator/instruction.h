#pragma once

/// PTX as the emulator executes it: one instruction for the lanes of a warp that stand at it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace jforge::emulator {

inline constexpr unsigned kLanes = 32;
/// Bit l: lane l of the warp.
using LaneMask = std::uint32_t;
inline constexpr LaneMask kAllLanes = ~LaneMask{0};

class Warp;
struct Instruction;
using Execute = void (*)(Warp& warp, const Instruction& instruction, LaneMask lanes);

enum class Flow : std::uint8_t {
  plain,
  branch,
  exit,
  block_barrier,
  meeting,  ///< Runs when all member lanes have come: shuffles, votes, warp barriers, mma.
};

/// [base + offset]; the base is a register of 32 or 64 bits.
struct Address {
  std::uint32_t base = 0;
  bool narrow = false;
  std::int64_t offset = 0;
};

/// Operands are byte offsets into the warp's register file, where each register, constant and
/// special register has a value per lane (a predicate: one LaneMask).
struct Instruction {
  Execute execute = nullptr;
  Flow flow = Flow::plain;
  bool guarded = false;
  bool guard_negated = false;
  std::uint32_t guard = 0;
  std::array<std::uint32_t, 16> operands{};
  std::array<Address, 2> addresses{};
  std::uint32_t target = 0;  ///< Of a branch: index of an instruction.
  std::uint32_t immediate = 0;
  std::uint32_t width = 0;    ///< Bytes of the registers of a Slot::wider operand.
  std::uint32_t members = 0;  ///< Of a meeting: operand with the member mask, where has_members.
  bool has_members = false;
};

/// What an operand of an operation may be.
enum class Slot : std::uint8_t {
  value,                 ///< Register, constant, special register or symbol.
  result,                ///< Register or _.
  wider_value,           ///< As value and result, in registers at least as wide as the type.
  wider_result,          //
  predicate,             ///< One predicate register.
  predicate_result,      ///< p or p|q: two operands, q being the opposite.
  result_and_predicate,  ///< r or r|p: two operands.
  address,
  label,
  immediate,  ///< A number in the instruction.
  members,    ///< As value: the lanes that meet here.
};
struct Form {
  Slot slot;
  unsigned width = 4;            ///< Bytes of one element.
  unsigned count = 1;            ///< More than 1: {a, b, …}.
  bool may_be_left_out = false;  ///< A value that is then all ones.
};
struct Operation {
  Execute execute;
  Flow flow;
  std::vector<Form> forms;
  unsigned shared_bytes = 0;  ///< The narrowest piece that it may take from shared memory.
};

/// Every operation that the emulator knows, by its complete name with all modifiers: what is not
/// here is refused. `mov` between a register and its parts has the keys "mov.b64 pack2",
/// "mov.b64 unpack2" and so on.
[[nodiscard]] const std::unordered_map<std::string_view, Operation>& operations();

/// Where generic addresses of shared memory begin.
inline constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 60;
/// And a thread's own memory.
inline constexpr std::uint64_t kLocalWindow = std::uint64_t{1} << 61;

enum class Special : std::uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  lanemask_eq,
  lanemask_lt,
  lanemask_le,
  lanemask_gt,
  lanemask_ge,
  dynamic_smem_size,
};

struct Kernel {
  struct Parameter {
    std::size_t offset;
    std::size_t bytes;
  };
  std::string name;
  std::string refused;  ///< What in it is not known, with its line; empty: it may be launched.
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes = 0;
  std::size_t static_shared = 0;    ///< Dynamic shared memory begins here.
  std::size_t local_bytes = 0;      ///< Of each thread.
  std::size_t shared_granule = 16;  ///< No access to shared memory is narrower.
  std::vector<Instruction> code;
  std::vector<std::string> text;         ///< Of each instruction, for messages.
  std::vector<std::uint32_t> lines;      ///< Of each instruction in the PTX.
  std::vector<std::byte> register_file;  ///< Of a warp before it begins: the constants.
  /// Of warps that have ended: the constants are as they were.
  mutable std::vector<std::vector<std::byte>> used_register_files;
  std::vector<std::pair<Special, std::uint32_t>> specials;  ///< Used ones and their place.
};

/// Every kernel of a PTX text. One that is not known in all its parts is there as refused; throws
/// Refusal for what is not known outside the kernels.
[[nodiscard]] std::vector<Kernel> parse_ptx(std::string_view text);

}  // namespace jforge::emulator
