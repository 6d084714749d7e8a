#include <immintrin.h>

#include <deque>
#include <functional>
#include <utility>

#include "tests/cuda_emulator/arithmetic.h"
#include "tests/cuda_emulator/fault.h"
#include "tests/cuda_emulator/instruction.h"
#include "tests/cuda_emulator/warp.h"

namespace jforge::emulator {

namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f32 = float;
using f64 = double;

using Table = std::unordered_map<std::string_view, Operation>;

/// Owns the strings that the table's keys view.
std::string_view kept(std::string name) {
  static auto& names = *new std::deque<std::string>;
  return names.emplace_back(std::move(name));
}

void add(Table& table, std::string name, Execute execute, std::vector<Form> forms,
         Flow flow = Flow::plain, unsigned shared_bytes = 0) {
  table.emplace(kept(std::move(name)), Operation{execute, flow, std::move(forms), shared_bytes});
}

template <class Function>
void each_lane(LaneMask mask, Function function) {
  if (mask == kAllLanes) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      function(lane);
    }
    return;
  }
  for (; mask != 0; mask &= mask - 1) {
    function(static_cast<unsigned>(std::countr_zero(mask)));
  }
}

template <class Result, class Function, class... Values>
void map_lanes(LaneMask mask, Function function, Result* result, const Values*... values) {
  if (mask == kAllLanes) {
// An operand may alias the result in the same lane.
#pragma GCC ivdep
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      result[lane] = function(values[lane]...);
    }
    return;
  }
  each_lane(mask, [&](unsigned lane) { result[lane] = function(values[lane]...); });
}

/// result = function(values …), lane by lane.
template <class Result, class... Values, class Function>
void add_map(Table& table, std::string name, Function /*function*/) {
  add(table, std::move(name),
      [](Warp& warp, const Instruction& instruction, LaneMask mask) {
        Result* const result = warp.lanes<Result>(instruction.operands[0]);
        [&]<std::size_t... kAt>(std::index_sequence<kAt...> /*at*/) {
          map_lanes(mask, Function{}, result,
                    warp.lanes<const Values>(instruction.operands[1 + kAt])...);
        }
        (std::index_sequence_for<Values...>{});
      },
      {{Slot::result, sizeof(Result)}, {Slot::value, sizeof(Values)}...});
}

void set_predicate(Warp& warp, u32 operand, LaneMask mask, LaneMask value) {
  LaneMask& predicate = warp.predicate(operand);
  predicate = (predicate & ~mask) | (value & mask);
}

// --- integers and bits ---

template <class T>
void add_integers(Table& table, const std::string& type) {
  using Unsigned = std::make_unsigned_t<T>;
  add_map<T, T, T>(table, "add." + type, [](T a, T b) {
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  });
  add_map<T, T, T>(table, "sub." + type, [](T a, T b) {
    return static_cast<T>(static_cast<Unsigned>(a) - static_cast<Unsigned>(b));
  });
  const auto low = [](T a, T b) {  // Two 16-bit factors would become ints, which may overflow.
    return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
  };
  add_map<T, T, T>(table, "mul.lo." + type, low);
  add_map<T, T, T>(table, "mul.hi." + type, [](T a, T b) { return high_product(a, b); });
  add_map<T, T, T, T>(table, "mad.lo." + type, [](T a, T b, T c) {
    return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b) + static_cast<u64>(c));
  });
  add_map<T, T, T, T>(table, "mad.hi." + type, [](T a, T b, T c) {
    return static_cast<T>(static_cast<u64>(high_product(a, b)) + static_cast<u64>(c));
  });
  add_map<T, T, T>(table, "div." + type, [](T a, T b) { return quotient(a, b); });
  add_map<T, T, T>(table, "rem." + type, [](T a, T b) { return remainder_of(a, b); });
  add_map<T, T, T>(table, "min." + type, [](T a, T b) { return smaller(a, b); });
  add_map<T, T, T>(table, "max." + type, [](T a, T b) { return larger(a, b); });
  add_map<T, T, u32>(table, "shr." + type, [](T a, u32 by) { return shift_right(a, by); });
  if constexpr (std::is_signed_v<T>) {
    const auto negated = [](T a) { return static_cast<T>(Unsigned{0} - static_cast<Unsigned>(a)); };
    add_map<T, T>(table, "neg." + type, negated);
    add_map<T, T>(table, "abs." + type, [](T a) {
      return a < 0 ? static_cast<T>(Unsigned{0} - static_cast<Unsigned>(a)) : a;
    });
  }
}

template <class Wide, class T>
void add_wide_products(Table& table, const std::string& type) {
  using Unsigned = std::make_unsigned_t<Wide>;
  add_map<Wide, T, T>(table, "mul.wide." + type, [](T a, T b) {
    return static_cast<Wide>(static_cast<Wide>(a) * static_cast<Wide>(b));
  });
  add_map<Wide, T, T, Wide>(table, "mad.wide." + type, [](T a, T b, Wide c) {
    return static_cast<Wide>(static_cast<Unsigned>(static_cast<Wide>(a) * static_cast<Wide>(b)) +
                             static_cast<Unsigned>(c));
  });
}

template <class T>
void add_bits(Table& table, const std::string& bits) {
  add_map<T, T, T>(table, "and.b" + bits, [](T a, T b) { return static_cast<T>(a & b); });
  add_map<T, T, T>(table, "or.b" + bits, [](T a, T b) { return static_cast<T>(a | b); });
  add_map<T, T, T>(table, "xor.b" + bits, [](T a, T b) { return static_cast<T>(a ^ b); });
  add_map<T, T>(table, "not.b" + bits, [](T a) { return static_cast<T>(~a); });
  add_map<T, T, u32>(table, "shl.b" + bits, [](T a, u32 by) { return shift_left(a, by); });
  add_map<T, T, u32>(table, "shr.b" + bits, [](T a, u32 by) { return shift_right(a, by); });
  for (const char* const kind : {"b", "u", "s", "f"}) {
    add_map<T, T>(table, "mov." + (kind + bits), [](T a) { return a; });
  }
}

template <class T>
void add_selection(Table& table, const std::string& type) {
  add(table, "selp." + type,
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        T* const result = warp.lanes<T>(i.operands[0]);
        const T* const a = warp.lanes<T>(i.operands[1]);
        const T* const b = warp.lanes<T>(i.operands[2]);
        const LaneMask chosen = warp.predicate(i.operands[3]);
        each_lane(mask, [&](unsigned lane) {
          result[lane] = (chosen >> lane & 1U) != 0 ? a[lane] : b[lane];
        });
      },
      {{Slot::result, sizeof(T)},
       {Slot::value, sizeof(T)},
       {Slot::value, sizeof(T)},
       {Slot::predicate}});
}

/// mov between a register of T and its parts, lowest bits first.
template <class T, class Part, unsigned kParts>
void add_packing(Table& table, const std::string& name) {
  static_assert(sizeof(Part) * kParts == sizeof(T));
  add(table, name + " pack" + std::to_string(kParts),
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        T* const result = warp.lanes<T>(i.operands[0]);
        each_lane(mask, [&](unsigned lane) {
          T value = 0;
          for (unsigned part = 0; part < kParts; ++part) {
            const T bits = warp.lanes<Part>(i.operands[1 + part])[lane];
            value = static_cast<T>(value | bits << (8 * sizeof(Part) * part));
          }
          result[lane] = value;
        });
      },
      {{Slot::result, sizeof(T)}, {Slot::value, sizeof(Part), kParts}});
  add(table, name + " unpack" + std::to_string(kParts),
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        const T* const value = warp.lanes<T>(i.operands[kParts]);
        each_lane(mask, [&](unsigned lane) {
          const T bits = value[lane];
          for (unsigned part = 0; part < kParts; ++part) {
            warp.lanes<Part>(i.operands[part])[lane] =
                static_cast<Part>(bits >> (8 * sizeof(Part) * part));
          }
        });
      },
      {{Slot::result, sizeof(Part), kParts}, {Slot::value, sizeof(T)}});
}

void add_bit_operations(Table& table) {
  add_bits<u16>(table, "16");
  add_bits<u32>(table, "32");
  add_bits<u64>(table, "64");
  for (const char* const kind : {"b", "u", "s", "f"}) {
    add_selection<u32>(table, kind + std::string("32"));
    add_selection<u64>(table, kind + std::string("64"));
    if (*kind != 'f') {
      add_selection<u16>(table, kind + std::string("16"));
    }
  }
  add_packing<u32, u16, 2>(table, "mov.b32");
  add_packing<u64, u32, 2>(table, "mov.b64");
  add_packing<u64, u16, 4>(table, "mov.b64");
  add_map<u32, u32, u32, u32>(table, "prmt.b32",
                              [](u32 a, u32 b, u32 c) { return permuted(a, b, c); });
  add_map<u32, u32, u32, u32, u32>(
      table, "lop3.b32", [](u32 a, u32 b, u32 c, u32 t) { return looked_up(a, b, c, t); });
  add_map<u32, u32, u32, u32>(table, "bfe.u32",
                              [](u32 a, u32 b, u32 n) { return bit_field(a, b, n); });
  add_map<s32, s32, u32, u32>(table, "bfe.s32",
                              [](s32 a, u32 b, u32 n) { return bit_field(a, b, n); });
  add_map<u64, u64, u32, u32>(table, "bfe.u64",
                              [](u64 a, u32 b, u32 n) { return bit_field(a, b, n); });
  add_map<u32, u32, u32, u32, u32>(table, "bfi.b32", [](u32 a, u32 b, u32 begin, u32 length) {
    return with_bit_field(a, b, begin, length);
  });
  add_map<u64, u64, u64, u32, u32>(table, "bfi.b64", [](u64 a, u64 b, u32 begin, u32 length) {
    return with_bit_field(a, b, begin, length);
  });
  add_map<u32, u32>(table, "popc.b32", [](u32 a) { return static_cast<u32>(std::popcount(a)); });
  add_map<u32, u64>(table, "popc.b64", [](u64 a) { return static_cast<u32>(std::popcount(a)); });
  add_map<u32, u32>(table, "clz.b32", [](u32 a) { return static_cast<u32>(std::countl_zero(a)); });
  add_map<u32, u64>(table, "clz.b64", [](u64 a) { return static_cast<u32>(std::countl_zero(a)); });
  add_map<u32, u32>(table, "brev.b32", [](u32 a) { return reversed_bits(a); });
  add_map<u32, u32>(table, "bfind.u32", [](u32 a) {
    return a == 0 ? ~0U : 31U - static_cast<u32>(std::countl_zero(a));
  });
  add_map<u32, u32, u32, u32>(table, "shf.l.wrap.b32", [](u32 low, u32 high, u32 by) {
    return static_cast<u32>((u64{high} << 32 | low) << (by & 31U) >> 32);
  });
  add_map<u32, u32, u32, u32>(table, "shf.r.wrap.b32", [](u32 low, u32 high, u32 by) {
    return static_cast<u32>((u64{high} << 32 | low) >> (by & 31U));
  });
  add_map<u32, u32, u32, u32>(table, "shf.l.clamp.b32", [](u32 low, u32 high, u32 by) {
    return static_cast<u32>((u64{high} << 32 | low) << std::min(by, 32U) >> 32);
  });
  add_map<u32, u32, u32, u32>(table, "shf.r.clamp.b32", [](u32 low, u32 high, u32 by) {
    return static_cast<u32>((u64{high} << 32 | low) >> std::min(by, 32U));
  });
}

// --- floating point ---

template <class T>
void add_floats(Table& table, const std::string& type) {
  // Rounding to nearest is the default of add, sub and mul.
  for (const char* const rounding : {".rn.", "."}) {
    add_map<T, T, T>(table, "add" + (rounding + type), [](T a, T b) { return a + b; });
    add_map<T, T, T>(table, "sub" + (rounding + type), [](T a, T b) { return a - b; });
    add_map<T, T, T>(table, "mul" + (rounding + type), [](T a, T b) { return a * b; });
  }
  add_map<T, T, T, T>(table, "fma.rn." + type, [](T a, T b, T c) { return std::fma(a, b, c); });
  add_map<T, T, T>(table, "div.rn." + type, [](T a, T b) { return a / b; });
  add_map<T, T>(table, "rcp.rn." + type, [](T a) { return T{1} / a; });
  add_map<T, T>(table, "sqrt.rn." + type, [](T a) { return std::sqrt(a); });
  add_map<T, T>(table, "neg." + type, [](T a) { return -a; });
  add_map<T, T>(table, "abs." + type, [](T a) { return std::abs(a); });
  add_map<T, T, T>(table, "min." + type, [](T a, T b) { return smaller(a, b); });
  add_map<T, T, T>(table, "max." + type, [](T a, T b) { return larger(a, b); });
  add_map<T, T, T>(table, "copysign." + type, [](T a, T b) { return std::copysign(b, a); });
}

/// Exact to one unit in the last place; a device's may be two off.
template <class Function>
void add_approximation(Table& table, const std::string& name, Function /*function*/) {
  add_map<f32, f32>(table, name + ".approx.f32", [](f32 a) { return Function{}(a); });
  add_map<f32, f32>(table, name + ".approx.ftz.f32",
                    [](f32 a) { return flushed(Function{}(flushed(a))); });
}

void add_floating_point(Table& table) {
  add_floats<f32>(table, "f32");
  add_floats<f64>(table, "f64");
  add_map<f32, f32, f32, f32>(table, "fma.rm.f32",
                              [](f32 a, f32 b, f32 c) { return fma_down(a, b, c); });
  add_approximation(table, "ex2", [](f32 a) { return std::exp2(a); });
  add_approximation(table, "lg2", [](f32 a) { return std::log2(a); });
  add_approximation(table, "rcp", [](f32 a) { return 1.0F / a; });
  add_approximation(table, "sqrt", [](f32 a) { return std::sqrt(a); });
  add_approximation(table, "rsqrt", [](f32 a) { return 1.0F / std::sqrt(a); });
  add_approximation(table, "sin", [](f32 a) { return std::sin(a); });
  add_approximation(table, "cos", [](f32 a) { return std::cos(a); });
  add_map<f32, f32>(table, "tanh.approx.f32", [](f32 a) { return std::tanh(a); });
  for (const char* const name : {"div.approx.f32", "div.full.f32"}) {
    add_map<f32, f32, f32>(table, name, [](f32 a, f32 b) { return a / b; });
  }
  add_map<f64, f64>(table, "rcp.approx.ftz.f64", [](f64 a) { return reciprocal_seed(a); });
  add_map<u16, u16, u16, u16>(table, "fma.rn.bf16", [](u16 a, u16 b, u16 c) {
    return to_bfloat16_bits(std::fma(from_bfloat16(a), from_bfloat16(b), from_bfloat16(c)));
  });
  add_map<u32, u32, u32, u32>(table, "fma.rn.bf16x2", [](u32 a, u32 b, u32 c) {
    u32 result = 0;
    for (const unsigned half : {0U, 16U}) {
      const auto part = [half](u32 bits) { return from_bfloat16(static_cast<u16>(bits >> half)); };
      result |= u32{to_bfloat16_bits(std::fma(part(a), part(b), part(c)))} << half;
    }
    return result;
  });
}

// --- comparisons and predicates ---

template <class T, class Compare>
LaneMask compared(Warp& warp, const Instruction& i, LaneMask mask, std::size_t first) {
  const T* const a = warp.lanes<T>(i.operands[first]);
  const T* const b = warp.lanes<T>(i.operands[first + 1]);
  if (mask == kAllLanes) {
    alignas(kLanes) std::array<u8, kLanes> held;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      held[lane] = Compare{}(a[lane], b[lane]) ? 0xff : 0;
    }
    const auto all = _mm256_load_si256(reinterpret_cast<const __m256i*>(held.data()));
    return static_cast<LaneMask>(_mm256_movemask_epi8(all));
  }
  LaneMask result = 0;
  each_lane(mask, [&](unsigned lane) {
    result |= static_cast<LaneMask>(Compare{}(a[lane], b[lane])) << lane;
  });
  return result;
}

template <class T, class Compare, class Join>
void set_joined(Warp& warp, const Instruction& i, LaneMask mask) {
  const LaneMask own = compared<T, Compare>(warp, i, mask, 2);
  const LaneMask other = warp.predicate(i.operands[4]);
  set_predicate(warp, i.operands[0], mask, Join{}(own, other));
  set_predicate(warp, i.operands[1], mask, Join{}(~own, other));
}

template <class T, class Compare>
void add_comparison(Table& table, const std::string& name, const std::string& type,
                    Compare /*compare*/) {
  const std::vector<Form> forms{
      {Slot::predicate_result}, {Slot::value, sizeof(T)}, {Slot::value, sizeof(T)}};
  add(
      table, "setp." + name + "." + type,
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        const LaneMask result = compared<T, Compare>(warp, i, mask, 2);
        set_predicate(warp, i.operands[0], mask, result);
        set_predicate(warp, i.operands[1], mask, ~result);
      },
      forms);
  std::vector<Form> joined = forms;
  joined.push_back({Slot::predicate});
  add(table, "setp." + name + ".and." + type, set_joined<T, Compare, std::bit_and<>>, joined);
  add(table, "setp." + name + ".or." + type, set_joined<T, Compare, std::bit_or<>>, joined);
  add(table, "setp." + name + ".xor." + type, set_joined<T, Compare, std::bit_xor<>>, joined);
}

template <class T>
void add_comparisons(Table& table, const std::string& type) {
  add_comparison<T>(table, "eq", type, [](T a, T b) { return a == b; });
  add_comparison<T>(table, "lt", type, [](T a, T b) { return a < b; });
  add_comparison<T>(table, "le", type, [](T a, T b) { return a <= b; });
  add_comparison<T>(table, "gt", type, [](T a, T b) { return a > b; });
  add_comparison<T>(table, "ge", type, [](T a, T b) { return a >= b; });
  if constexpr (std::is_floating_point_v<T>) {
    // With NaN, eq to ge, num and this ne are false; equ to geu, neu and nan are true.
    add_comparison<T>(table, "ne", type, [](T a, T b) { return a < b || a > b; });
    add_comparison<T>(table, "equ", type, [](T a, T b) { return !(a < b || a > b); });
    add_comparison<T>(table, "neu", type, [](T a, T b) { return a != b; });
    add_comparison<T>(table, "ltu", type, [](T a, T b) { return !(a >= b); });
    add_comparison<T>(table, "leu", type, [](T a, T b) { return !(a > b); });
    add_comparison<T>(table, "gtu", type, [](T a, T b) { return !(a <= b); });
    add_comparison<T>(table, "geu", type, [](T a, T b) { return !(a < b); });
    add_comparison<T>(table, "num", type,
                      [](T a, T b) { return !std::isnan(a) && !std::isnan(b); });
    add_comparison<T>(table, "nan", type, [](T a, T b) { return std::isnan(a) || std::isnan(b); });
  } else {
    add_comparison<T>(table, "ne", type, [](T a, T b) { return a != b; });
  }
}

template <class Join>
void add_predicate_join(Table& table, const char* name) {
  add(table, name,
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        set_predicate(warp, i.operands[0], mask,
                      Join{}(warp.predicate(i.operands[1]), warp.predicate(i.operands[2])));
      },
      {{Slot::predicate}, {Slot::predicate}, {Slot::predicate}});
}

void add_predicates(Table& table) {
  add_comparisons<u16>(table, "u16");
  add_comparisons<s16>(table, "s16");
  add_comparisons<u32>(table, "u32");
  add_comparisons<s32>(table, "s32");
  add_comparisons<u64>(table, "u64");
  add_comparisons<s64>(table, "s64");
  add_comparisons<f32>(table, "f32");
  add_comparisons<f64>(table, "f64");
  for (const char* const name : {"eq", "ne"}) {
    for (const char* const bits : {"16", "32", "64"}) {
      const std::string prefix = "setp." + std::string(name);
      table.emplace(kept(prefix + ".b" + bits), table.at(prefix + ".u" + bits));
    }
  }
  add_predicate_join<std::bit_and<>>(table, "and.pred");
  add_predicate_join<std::bit_or<>>(table, "or.pred");
  add_predicate_join<std::bit_xor<>>(table, "xor.pred");
  add(table, "not.pred",
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        set_predicate(warp, i.operands[0], mask, ~warp.predicate(i.operands[1]));
      },
      {{Slot::predicate}, {Slot::predicate}});
  add(table, "mov.pred",
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        set_predicate(warp, i.operands[0], mask, warp.predicate(i.operands[1]));
      },
      {{Slot::predicate}, {Slot::predicate}});
}

// --- conversions ---

template <class To, class From>
void add_integer_conversion(Table& table, const std::string& to, const std::string& from) {
  if constexpr (sizeof(To) > 1 && sizeof(From) == 8) {
    add_map<To, From>(table, "cvt." + to + "." + from, [](From a) { return static_cast<To>(a); });
  } else if constexpr (sizeof(To) > 1) {
    // Registers may be wider than the source type, and are for 8 bits.
    add(table, "cvt." + to + "." + from,
        [](Warp& warp, const Instruction& i, LaneMask mask) {
          To* const result = warp.lanes<To>(i.operands[0]);
          if (i.width == sizeof(From)) {
            map_lanes(
                mask, [](From a) { return static_cast<To>(a); }, result,
                warp.lanes<const From>(i.operands[1]));
            return;
          }
          const u8* const bytes = warp.lanes<u8>(i.operands[1]);
          each_lane(mask, [&](unsigned lane) {
            From value;
            std::memcpy(&value, bytes + std::size_t{lane} * i.width, sizeof value);
            result[lane] = static_cast<To>(value);
          });
        },
        {{Slot::result, sizeof(To)}, {Slot::wider_value, std::max(sizeof(From), sizeof(u16))}});
  }
}

template <class To>
void add_integer_conversions(Table& table, const std::string& to) {
  add_integer_conversion<To, u8>(table, to, "u8");
  add_integer_conversion<To, s8>(table, to, "s8");
  add_integer_conversion<To, u16>(table, to, "u16");
  add_integer_conversion<To, s16>(table, to, "s16");
  add_integer_conversion<To, u32>(table, to, "u32");
  add_integer_conversion<To, s32>(table, to, "s32");
  add_integer_conversion<To, u64>(table, to, "u64");
  add_integer_conversion<To, s64>(table, to, "s64");
  const auto from_floating = [&]<class From>(From /*type*/, const std::string& from) {
    add_map<To, From>(table, "cvt.rni." + to + "." + from,
                      [](From a) { return saturated<To>(std::nearbyint(a)); });
    add_map<To, From>(table, "cvt.rzi." + to + "." + from,
                      [](From a) { return saturated<To>(std::trunc(a)); });
    add_map<To, From>(table, "cvt.rmi." + to + "." + from,
                      [](From a) { return saturated<To>(std::floor(a)); });
    add_map<To, From>(table, "cvt.rpi." + to + "." + from,
                      [](From a) { return saturated<To>(std::ceil(a)); });
  };
  from_floating(f32{}, "f32");
  from_floating(f64{}, "f64");
  add_map<f32, To>(table, "cvt.rn.f32." + to, [](To a) { return static_cast<f32>(a); });
  add_map<f64, To>(table, "cvt.rn.f64." + to, [](To a) { return static_cast<f64>(a); });
}

void add_conversions(Table& table) {
  add_integer_conversions<u16>(table, "u16");
  add_integer_conversions<s16>(table, "s16");
  add_integer_conversions<u32>(table, "u32");
  add_integer_conversions<s32>(table, "s32");
  add_integer_conversions<u64>(table, "u64");
  add_integer_conversions<s64>(table, "s64");
  add_map<f64, f32>(table, "cvt.f64.f32", [](f32 a) { return static_cast<f64>(a); });
  add_map<f32, f64>(table, "cvt.rn.f32.f64", [](f64 a) { return static_cast<f32>(a); });
  add_map<f32, f32>(table, "cvt.sat.f32.f32",
                    [](f32 a) { return std::isnan(a) ? 0.0F : std::min(std::max(a, 0.0F), 1.0F); });
  const auto to_integral = [&]<class T>(T /*type*/, const std::string& type) {
    const std::string both = type + "." + type;
    add_map<T, T>(table, "cvt.rni." + both, [](T a) { return std::nearbyint(a); });
    add_map<T, T>(table, "cvt.rzi." + both, [](T a) { return std::trunc(a); });
    add_map<T, T>(table, "cvt.rmi." + both, [](T a) { return std::floor(a); });
    add_map<T, T>(table, "cvt.rpi." + both, [](T a) { return std::ceil(a); });
  };
  to_integral(f32{}, "f32");
  to_integral(f64{}, "f64");
  add_map<u16, f32>(table, "cvt.rn.bf16.f32", [](f32 a) { return to_bfloat16_bits(a); });
  add_map<u16, f32>(table, "cvt.rn.f16.f32", [](f32 a) { return to_float16_bits(a); });
  add_map<f32, u16>(table, "cvt.f32.bf16", [](u16 a) { return from_bfloat16(a); });
  add_map<f32, u16>(table, "cvt.f32.f16", [](u16 a) { return from_float16(a); });
  add_map<u32, f32, f32>(table, "cvt.rn.bf16x2.f32", [](f32 high, f32 low) {
    return u32{to_bfloat16_bits(high)} << 16 | to_bfloat16_bits(low);
  });
  add_map<u32, f32, f32>(table, "cvt.rn.f16x2.f32", [](f32 high, f32 low) {
    return u32{to_float16_bits(high)} << 16 | to_float16_bits(low);
  });
  for (const char* const type : {"u64", "s64", "b64"}) {
    const auto keep = [](u64 a) { return a; };
    add_map<u64, u64>(table, "cvta.global." + std::string(type), keep);
    add_map<u64, u64>(table, "cvta.to.global." + std::string(type), keep);
    add_map<u64, u64>(table, "cvta.shared." + std::string(type),
                      [](u64 a) { return a + kSharedWindow; });
    add_map<u64, u64>(table, "cvta.local." + std::string(type),
                      [](u64 a) { return a + kLocalWindow; });
    add_map<u64, u64>(table, "cvta.to.local." + std::string(type),
                      [](u64 a) { return a - kLocalWindow; });
    add_map<u64, u64>(table, "cvta.to.shared." + std::string(type),
                      [](u64 a) { return a - kSharedWindow; });
  }
}

// --- memory ---

enum class Space : u8 { global, shared, local, generic, parameter };

constexpr u64 kSharedWindowEnd = kSharedWindow + (u64{1} << 32);

const std::byte* parameter_at(const Warp& warp, u64 offset, std::size_t bytes, unsigned lane) {
  const std::span<const std::byte> parameters = warp.parameters();
  if (offset > parameters.size() || bytes > parameters.size() - offset) {
    throw Fault(FaultKind::illegal_address,
                "read of " + std::to_string(bytes) + " bytes past the kernel's parameters", lane);
  }
  return &parameters[offset];
}

/// Lets `lanes` from `lane` on use `bytes` each.
std::byte* global_at(Warp& warp, DeviceMemory::Use use, u64 address, std::size_t bytes,
                     const char* access, unsigned lane, unsigned lanes = 1) {
  if ((address & (bytes - 1)) != 0) [[unlikely]] {
    throw Fault(FaultKind::illegal_address,
                std::string("misaligned ") + access + " of " + std::to_string(bytes) +
                    " bytes at " + hexadecimal(address),
                lane);
  }
  return warp.memory().use(use, address, lanes * bytes, access, lane, lanes);
}

/// Converts the address of a generic access.
bool in_shared(Space space, u64& address) {
  if (space == Space::shared) {
    return true;
  }
  if (space == Space::generic && address >= kSharedWindow && address < kSharedWindowEnd) {
    address -= kSharedWindow;
    return true;
  }
  return false;
}

/// Converts the address of a generic access.
bool in_local(Space space, u64& address) {
  if (space == Space::local) {
    return true;
  }
  if (space == Space::generic && address >= kLocalWindow) {
    address -= kLocalWindow;
    return true;
  }
  return false;
}
bool is_local(Space space, u64 address) { return in_local(space, address); }
std::byte* local_at(Warp& warp, u64 offset, std::size_t bytes, const char* access, unsigned lane) {
  const std::span<std::byte> local = warp.local(lane);
  if (offset > local.size() || bytes > local.size() - offset || (offset & (bytes - 1)) != 0) {
    throw Fault(FaultKind::illegal_address,
                std::string(access) + " of " + std::to_string(bytes) + " bytes at local byte " +
                    std::to_string(static_cast<s64>(offset)) + " of " +
                    std::to_string(local.size()),
                lane);
  }
  return &local[offset];
}

/// Lanes whose neighbours go to the same or the following address are checked and noted together.
struct Addresses {
  Addresses(Warp& warp, const Address& address, LaneMask mask, std::size_t size) {
    const auto place = [&](auto base) { return base + static_cast<u64>(address.offset); };
    if (address.narrow) {
      map_lanes(kAllLanes, place, at, warp.lanes<const u32>(address.base));
    } else {
      map_lanes(kAllLanes, place, at, warp.lanes<const u64>(address.base));
    }
    const __m256i bytes = _mm256_set1_epi64x(static_cast<s64>(size));
    for (unsigned lane = 0; lane < kLanes; lane += 4) {
      const __m256i own = _mm256_load_si256(reinterpret_cast<const __m256i*>(at + lane));
      const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + lane + 1));
      const auto equal = [&](__m256i a) {
        const __m256d bits = _mm256_castsi256_pd(_mm256_cmpeq_epi64(a, next));
        return static_cast<LaneMask>(_mm256_movemask_pd(bits)) << lane;
      };
      alike |= equal(own);
      following |= equal(_mm256_add_epi64(own, bytes));
    }
    alike &= mask & mask >> 1;
    following &= mask & mask >> 1;
  }
  [[nodiscard]] bool scattered(LaneMask mask) const {
    return 2 * std::popcount(alike | following) < std::popcount(mask);
  }
  alignas(sizeof(__m256i)) u64 at[kLanes + 1];
  LaneMask alike = 0;  ///< bit l: so are lane l and the next
  LaneMask following = 0;
};
unsigned lanes_from(unsigned lane, LaneMask pairs) {
  return 1 + static_cast<unsigned>(std::countr_one(pairs >> lane));
}

/// Where lanes read or write: in a row from `first` on, or, with `at`, each at its offset.
struct Places {
  std::byte* operator()(unsigned lane) const {
    return base + (at != nullptr ? at[lane] : (lane - first) * bytes);
  }
  std::byte* base;
  std::size_t bytes;
  unsigned first = 0;
  const u64* at = nullptr;
};
/// Moves values between registers and `places`, which are alike for all lanes or not.
using Move = void (*)(Warp&, const Instruction&, LaneMask lanes, bool alike, const Places& places);

template <class T, class Register, unsigned kCount, class From>
void put_rows(Warp& warp, const Instruction& i, LaneMask mask, bool alike, const From& from) {
  T values[kCount];
  Register* rows[kCount];
  for (unsigned part = 0; part < kCount; ++part) {
    rows[part] = warp.lanes<Register>(i.operands[part]);
  }
  if (alike) {
    std::memcpy(values, from(static_cast<unsigned>(std::countr_zero(mask))), sizeof values);
    for (unsigned part = 0; part < kCount; ++part) {
      const auto value = static_cast<Register>(values[part]);
      each_lane(mask, [row = rows[part], value](unsigned lane) { row[lane] = value; });
    }
    return;
  }
  each_lane(mask, [&](unsigned lane) {
    std::memcpy(values, from(lane), sizeof values);
    for (unsigned part = 0; part < kCount; ++part) {
      rows[part][lane] = static_cast<Register>(values[part]);
    }
  });
}
/// Into registers of T or wider.
template <class T, unsigned kCount, class From>
void put(Warp& warp, const Instruction& i, LaneMask mask, bool alike, const From& from) {
  if (i.width == sizeof(T)) {
    put_rows<T, T, kCount>(warp, i, mask, alike, from);
  } else if constexpr (std::is_integral_v<T>) {
    i.width == sizeof(u16)   ? put_rows<T, u16, kCount>(warp, i, mask, alike, from)
    : i.width == sizeof(u32) ? put_rows<T, u32, kCount>(warp, i, mask, alike, from)
                             : put_rows<T, u64, kCount>(warp, i, mask, alike, from);
  }
}

/// Calls `move` for lanes at a time.
template <Space kSpace>
void each_place(Warp& warp, DeviceMemory::Use use, const Instruction& i, std::size_t bytes,
                LaneMask mask, Move move) {
  const Addresses addresses(warp, i.addresses[0], mask, bytes);
  if (kSpace == Space::shared && addresses.scattered(mask)) {
    std::byte* const shared =
        warp.shared().use_each(use, warp.access(0), addresses.at, bytes, mask);
    move(warp, i, mask, false, {shared, bytes, 0, addresses.at});
    return;
  }
  const bool read = use == DeviceMemory::Use::read;
  const char* const access = read ? "read" : "write";
  for (LaneMask left = mask; left != 0;) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    u64 address = addresses.at[lane];
    const bool local = is_local(kSpace, address);
    unsigned lanes = local ? 1 : lanes_from(lane, addresses.following);
    const unsigned readers = local || !read ? 0 : lanes_from(lane, addresses.alike);
    const bool alike = readers > 1;
    std::byte* place = nullptr;
    if (in_shared(kSpace, address)) {
      place = warp.shared().use(use, warp.access(lane), address, bytes, lanes);
      if (alike) {  // A third reader adds nothing to the record.
        static_cast<void>(warp.shared().use(use, warp.access(lane + 1), address, bytes));
      }
    } else if (in_local(kSpace, address)) {
      place = local_at(warp, address, bytes, access, lane);
    } else {
      lanes = warp.memory().covers(address, lanes * bytes) ? lanes : 1;
      place = global_at(warp, use, address, bytes, access, lane, lanes);
    }
    lanes = alike ? readers : lanes;
    const auto together = static_cast<LaneMask>(((u64{1} << lanes) - 1) << lane);
    move(warp, i, together, alike, {place, bytes, lane});
    left &= ~together;
  }
}

template <Space kSpace, class T, unsigned kCount>
void load(Warp& warp, const Instruction& i, LaneMask mask) {
  constexpr std::size_t kBytes = sizeof(T) * kCount;
  if constexpr (kSpace == Space::parameter) {
    const Addresses addresses(warp, i.addresses[0], mask, kBytes);
    put<T, kCount>(warp, i, mask, addresses.alike == (mask & mask >> 1), [&](unsigned lane) {
      return parameter_at(warp, addresses.at[lane], kBytes, lane);
    });
  } else {
    each_place<kSpace>(warp, DeviceMemory::Use::read, i, kBytes, mask, put<T, kCount, Places>);
  }
}

template <class T, unsigned kCount>
void get(Warp& warp, const Instruction& i, LaneMask lanes, bool /*alike*/, const Places& places) {
  const std::byte* rows[kCount];
  for (unsigned part = 0; part < kCount; ++part) {
    rows[part] = warp.lanes<std::byte>(i.operands[part]);
  }
  each_lane(lanes, [&](unsigned lane) {
    std::byte* const place = places(lane);
    for (unsigned part = 0; part < kCount; ++part) {
      std::memcpy(place + part * sizeof(T), rows[part] + std::size_t{lane} * i.width, sizeof(T));
    }
  });
}

template <Space kSpace, class T, unsigned kCount>
void store(Warp& warp, const Instruction& i, LaneMask mask) {
  each_place<kSpace>(warp, DeviceMemory::Use::write, i, sizeof(T) * kCount, mask, get<T, kCount>);
}

template <class Function>
void each_type(Function add_type) {
  add_type(s8{}, "s8");
  add_type(s16{}, "s16");
  add_type(s32{}, "s32");
  add_type(s64{}, "s64");
  add_type(f32{}, "f32");
  add_type(f64{}, "f64");
  for (const char* const kind : {"b", "u"}) {
    add_type(u8{}, kind + std::string("8"));
    add_type(u16{}, kind + std::string("16"));
    add_type(u32{}, kind + std::string("32"));
    add_type(u64{}, kind + std::string("64"));
  }
}

template <Space kSpace>
constexpr unsigned shared_bytes(std::size_t bytes) {
  return kSpace == Space::shared || kSpace == Space::generic ? static_cast<unsigned>(bytes) : 0;
}

/// Loads or stores of 1, 2 and 4 elements.
template <Space kSpace, bool kLoads>
void add_accesses(Table& table, const std::string& name) {
  each_type([&]<class T>(T /*type*/, const std::string& type) {
    const auto add_some = [&]<unsigned kCount>(std::integral_constant<unsigned, kCount> /*count*/,
                                               const char* vector) {
      Execute execute = nullptr;
      std::vector<Form> forms{{Slot::address}};
      if constexpr (kLoads) {
        execute = load<kSpace, T, kCount>;
        forms.insert(forms.begin(), {Slot::wider_result, sizeof(T), kCount});
      } else {
        execute = store<kSpace, T, kCount>;
        forms.push_back({Slot::wider_value, sizeof(T), kCount});
      }
      add(table, name + vector + type, execute, std::move(forms), Flow::plain,
          shared_bytes<kSpace>(kCount * sizeof(T)));
    };
    add_some(std::integral_constant<unsigned, 1>{}, ".");
    add_some(std::integral_constant<unsigned, 2>{}, ".v2.");
    if constexpr (sizeof(T) <= 4) {
      add_some(std::integral_constant<unsigned, 4>{}, ".v4.");
    }
  });
}

/// old = *address; *address = update(old, b[, c]), lane after lane; the result operand comes first.
template <Space kSpace, class T, class Update, bool kThree, bool kResult>
void atomic(Warp& warp, const Instruction& i, LaneMask mask) {
  constexpr std::size_t kFirst = kResult ? 1 : 0;
  each_lane(mask, [&](unsigned lane) {
    u64 address = warp.address(i.addresses[0], lane);
    std::byte* const at =
        in_shared(kSpace, address)
            ? warp.shared().use(DeviceMemory::Use::update, warp.access(lane), address, sizeof(T))
            : global_at(warp, DeviceMemory::Use::update, address, sizeof(T), "atomic access", lane);
    T old;
    std::memcpy(&old, at, sizeof old);
    const T b = warp.lanes<T>(i.operands[kFirst])[lane];
    T value;
    if constexpr (kThree) {
      value = Update{}(old, b, warp.lanes<T>(i.operands[kFirst + 1])[lane]);
    } else {
      value = Update{}(old, b);
    }
    std::memcpy(at, &value, sizeof value);
    if constexpr (kResult) {
      warp.lanes<T>(i.operands[0])[lane] = old;
    }
  });
}

template <class T, bool kThree = false, class Update>
void add_atomic(Table& table, const std::string& operation, Update /*update*/) {
  std::vector<Form> forms{{Slot::address}, {Slot::value, sizeof(T)}};
  if (kThree) {
    forms.push_back({Slot::value, sizeof(T)});
  }
  std::vector<Form> with_result = forms;
  with_result.insert(with_result.begin(), {Slot::result, sizeof(T)});
  const auto in_space = [&]<Space kSpace>(std::integral_constant<Space, kSpace> /*space*/,
                                          const std::string& name) {
    add(table, "atom" + name + operation, atomic<kSpace, T, Update, kThree, true>, with_result,
        Flow::plain, shared_bytes<kSpace>(sizeof(T)));
    add(table, "red" + name + operation, atomic<kSpace, T, Update, kThree, false>, forms,
        Flow::plain, shared_bytes<kSpace>(sizeof(T)));
  };
  in_space(std::integral_constant<Space, Space::global>{}, ".global.");
  in_space(std::integral_constant<Space, Space::shared>{}, ".shared.");
  in_space(std::integral_constant<Space, Space::generic>{}, ".");
}

template <class T>
void add_arithmetic_atomics(Table& table, const std::string& type) {
  add_atomic<T>(table, "add." + type, [](T a, T b) { return static_cast<T>(a + b); });
  if constexpr (std::is_integral_v<T>) {
    add_atomic<T>(table, "min." + type, [](T a, T b) { return smaller(a, b); });
    add_atomic<T>(table, "max." + type, [](T a, T b) { return larger(a, b); });
  }
}
template <class T>
void add_bit_atomics(Table& table, const std::string& type) {
  add_atomic<T>(table, "and." + type, [](T a, T b) { return static_cast<T>(a & b); });
  add_atomic<T>(table, "or." + type, [](T a, T b) { return static_cast<T>(a | b); });
  add_atomic<T>(table, "xor." + type, [](T a, T b) { return static_cast<T>(a ^ b); });
  add_atomic<T>(table, "exch." + type, [](T /*a*/, T b) { return b; });
  add_atomic<T, true>(table, "cas." + type, [](T a, T b, T c) { return a == b ? c : a; });
}

void add_memory(Table& table) {
  for (const char* const name : {"ld.global", "ld.global.nc", "ld.global.ca", "ld.global.cg",
                                 "ld.global.cs", "ld.volatile.global"}) {
    add_accesses<Space::global, true>(table, name);
  }
  for (const char* const name :
       {"st.global", "st.global.wb", "st.global.cg", "st.global.cs", "st.volatile.global"}) {
    add_accesses<Space::global, false>(table, name);
  }
  for (const char* const kind : {"", ".volatile"}) {
    add_accesses<Space::shared, true>(table, "ld" + std::string(kind) + ".shared");
    add_accesses<Space::shared, false>(table, "st" + std::string(kind) + ".shared");
  }
  add_accesses<Space::local, true>(table, "ld.local");
  add_accesses<Space::local, false>(table, "st.local");
  add_accesses<Space::generic, true>(table, "ld");
  add_accesses<Space::generic, false>(table, "st");
  add_accesses<Space::parameter, true>(table, "ld.param");
  add_arithmetic_atomics<u32>(table, "u32");
  add_arithmetic_atomics<s32>(table, "s32");
  add_arithmetic_atomics<u64>(table, "u64");
  add_arithmetic_atomics<f32>(table, "f32");
  add_arithmetic_atomics<f64>(table, "f64");
  add_bit_atomics<u32>(table, "b32");
  add_bit_atomics<u64>(table, "b64");
}

// --- copies that arrive later ---

/// As late as the order allows, so that early reads are found.
void finish_copies(Warp& warp, unsigned lane, std::size_t left) {
  auto& [begun, groups] = warp.copies(lane);
  if (groups.size() <= left) {
    return;
  }
  const std::size_t ready = groups.size() - left;
  const std::size_t end = groups[ready - 1];
  for (std::size_t at = 0; at < end; ++at) {
    const Warp::Copy& copy = begun[at];
    std::byte* const to = warp.shared().finish_copy(warp.access(lane), copy.to, copy.bytes);
    if (copy.read != 0) {
      std::memcpy(to, warp.memory().at(copy.from, copy.read, "cp.async", lane), copy.read);
    }
    std::memset(to + copy.read, 0, copy.bytes - copy.read);
  }
  begun.erase(begun.begin(), begun.begin() + static_cast<std::ptrdiff_t>(end));
  groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(ready));
  std::for_each(groups.begin(), groups.end(), [&](std::size_t& group) { group -= end; });
}

void commit_copies(Warp& warp, LaneMask mask) {
  each_lane(mask, [&](unsigned lane) {
    Warp::Copies& copies = warp.copies(lane);
    copies.groups.push_back(copies.begun.size());
  });
}

void add_copies(Table& table) {
  const auto copy = [](Warp& warp, const Instruction& i, LaneMask mask) {
    each_lane(mask, [&](unsigned lane) {
      const u64 to = warp.address(i.addresses[0], lane);
      const u64 from = warp.address(i.addresses[1], lane);
      const u32 read = std::min(warp.lanes<u32>(i.operands[0])[lane], i.immediate);
      if (from % i.immediate != 0) {
        throw Fault(FaultKind::illegal_address, "misaligned cp.async from " + hexadecimal(from),
                    lane);
      }
      if (read != 0) {
        static_cast<void>(warp.memory().use(DeviceMemory::Use::read, from, read, "cp.async", lane));
      }
      warp.shared().begin_copy(warp.access(lane), to, i.immediate);
      warp.copies(lane).begun.push_back({to, from, i.immediate, read});
    });
  };
  for (const char* const cached : {"ca", "cg"}) {
    for (const char* const hint : {"", ".L2::64B", ".L2::128B", ".L2::256B"}) {
      add(table, "cp.async." + std::string(cached) + ".shared.global" + hint, copy,
          {{Slot::address}, {Slot::address}, {Slot::immediate}, {Slot::value, 4, 1, true}},
          Flow::plain, 4);
    }
  }
  add(table, "cp.async.commit_group",
      [](Warp& warp, const Instruction& /*i*/, LaneMask mask) { commit_copies(warp, mask); }, {});
  add(table, "cp.async.wait_group",
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        each_lane(mask, [&](unsigned lane) { finish_copies(warp, lane, i.immediate); });
      },
      {{Slot::immediate}});
  add(table, "cp.async.wait_all",
      [](Warp& warp, const Instruction& /*i*/, LaneMask mask) {
        commit_copies(warp, mask);
        each_lane(mask, [&](unsigned lane) { finish_copies(warp, lane, 0); });
      },
      {});
}

// --- what a warp does together ---

enum class Shuffle : u8 { up, down, bfly, idx };

template <Shuffle kMode>
void shuffle(Warp& warp, const Instruction& i, LaneMask mask) {
  std::array<u32, kLanes> values{};
  std::memcpy(values.data(), warp.lanes<u32>(i.operands[2]), sizeof values);
  LaneMask valid = 0;
  each_lane(mask, [&](unsigned lane) {
    const u32 b = warp.lanes<u32>(i.operands[3])[lane] & 31U;
    const u32 c = warp.lanes<u32>(i.operands[4])[lane];
    const u32 segment = c >> 8 & 31U;
    const u32 least = lane & segment;
    const u32 bound = least | (c & 31U & ~segment);
    u32 source = 0;
    bool inside = false;
    if constexpr (kMode == Shuffle::up) {
      inside = lane >= b + bound;
      source = lane - b;
    } else {
      source = kMode == Shuffle::down   ? lane + b
               : kMode == Shuffle::bfly ? lane ^ b
                                        : least | (b & ~segment);
      inside = source <= bound;
    }
    if (!inside) {
      source = lane;
    }
    if ((mask >> source & 1U) == 0) {
      throw Fault(FaultKind::divergent_barrier,
                  "shuffle reads lane " + std::to_string(source) + ", which takes no part", lane);
    }
    warp.lanes<u32>(i.operands[0])[lane] = values[source];
    valid |= static_cast<LaneMask>(inside) << lane;
  });
  set_predicate(warp, i.operands[1], mask, valid);
}

template <class T, class Combine>
void add_reduction(Table& table, const std::string& name, Combine /*combine*/) {
  add(
      table, "redux.sync." + name,
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        const T* const values = warp.lanes<T>(i.operands[1]);
        T result = values[static_cast<unsigned>(std::countr_zero(mask))];
        each_lane(mask & (mask - 1),
                  [&](unsigned lane) { result = Combine{}(result, values[lane]); });
        each_lane(mask, [&](unsigned lane) { warp.lanes<T>(i.operands[0])[lane] = result; });
      },
      {{Slot::result}, {Slot::value}, {Slot::members}}, Flow::meeting);
}

/// Lane l gets the 16-bit numbers 2 (l mod 4) and the next of row l / 4 or, transposed, column l /
/// 4.
template <unsigned kMatrices, bool kTransposed>
void load_matrix(Warp& warp, const Instruction& i, LaneMask /*mask*/) {
  constexpr unsigned kSide = 8;
  for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
    std::array<std::array<u16, kSide>, kSide> rows;
    for (unsigned row = 0; row < kSide; ++row) {
      const unsigned lane = matrix * kSide + row;
      u64 address = warp.address(i.addresses[0], lane);
      std::memcpy(
          rows[row].data(),
          warp.shared().use(DeviceMemory::Use::read, warp.access(lane), address, sizeof rows[0]),
          sizeof rows[0]);
    }
    u32* const result = warp.lanes<u32>(i.operands[matrix]);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned across = lane / 4;
      const unsigned along = lane % 4 * 2;
      result[lane] = kTransposed ? rows[along][across] | u32{rows[along + 1][across]} << 16
                                 : rows[across][along] | u32{rows[across][along + 1]} << 16;
    }
  }
}

/// d = a · b + c of a 16×kDepth and a kDepth×8 matrix in PTX's layout, rounded once from double; a
/// tensor core truncates in between.
template <unsigned kDepth, float (*kConvert)(u16)>
void multiply_matrices(Warp& warp, const Instruction& i, LaneMask /*mask*/) {
  constexpr unsigned kA = kDepth / 4;  // registers of two numbers
  constexpr unsigned kB = kDepth / 8;
  double a[16][kDepth];
  double b[kDepth][8];
  const auto half = [](u32 bits, unsigned which) {
    return static_cast<double>(kConvert(static_cast<u16>(bits >> (16 * which))));
  };
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (unsigned part = 0; part < kA; ++part) {
      const u32 bits = warp.lanes<u32>(i.operands[4 + part])[lane];
      for (unsigned which = 0; which < 2; ++which) {
        a[lane / 4 + part % 2 * 8][lane % 4 * 2 + which + part / 2 * 8] = half(bits, which);
      }
    }
    for (unsigned part = 0; part < kB; ++part) {
      const u32 bits = warp.lanes<u32>(i.operands[4 + kA + part])[lane];
      for (unsigned which = 0; which < 2; ++which) {
        b[lane % 4 * 2 + which + part * 8][lane / 4] = half(bits, which);
      }
    }
  }
  double sums[16][8];
  const auto each_sum = [&](auto function) {
    for (unsigned part = 0; part < 4; ++part) {
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        function(part, lane, sums[lane / 4 + part / 2 * 8][lane % 4 * 2 + part % 2]);
      }
    }
  };
  each_sum([&](unsigned part, unsigned lane, double& sum) {
    sum = warp.lanes<f32>(i.operands[4 + kA + kB + part])[lane];
  });
  for (unsigned k = 0; k < kDepth; ++k) {
    for (unsigned row = 0; row < 16; ++row) {
      for (unsigned column = 0; column < 8; ++column) {
        sums[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  each_sum([&](unsigned part, unsigned lane, double sum) {
    warp.lanes<f32>(i.operands[part])[lane] = static_cast<f32>(sum);
  });
}

template <unsigned kDepth>
void add_matrix_products(Table& table, const std::string& shape) {
  const std::vector<Form> forms{{Slot::result, 4, 4},
                                {Slot::value, 4, kDepth / 4},
                                {Slot::value, 4, kDepth / 8},
                                {Slot::value, 4, 4}};
  const std::string name = "mma.sync.aligned." + shape + ".row.col.f32.";
  add(table, name + "bf16.bf16.f32", multiply_matrices<kDepth, from_bfloat16>, forms,
      Flow::meeting);
  add(table, name + "f16.f16.f32", multiply_matrices<kDepth, from_float16>, forms, Flow::meeting);
}

template <unsigned kMatrices>
void add_matrix_loads(Table& table) {
  const std::string name = "ldmatrix.sync.aligned.m8n8.x" + std::to_string(kMatrices);
  const std::vector<Form> forms{{Slot::result, 4, kMatrices}, {Slot::address}};
  add(table, name + ".shared.b16", load_matrix<kMatrices, false>, forms, Flow::meeting);
  add(table, name + ".trans.shared.b16", load_matrix<kMatrices, true>, forms, Flow::meeting);
}

void add_meetings(Table& table) {
  add(
      table, "bar.warp.sync",
      [](Warp& warp, const Instruction& /*i*/, LaneMask /*mask*/) { warp.pass_warp_barrier(); },
      {{Slot::members}}, Flow::meeting);
  const std::vector<Form> shuffled{
      {Slot::result_and_predicate}, {Slot::value}, {Slot::value}, {Slot::value}, {Slot::members}};
  add(table, "shfl.sync.up.b32", shuffle<Shuffle::up>, shuffled, Flow::meeting);
  add(table, "shfl.sync.down.b32", shuffle<Shuffle::down>, shuffled, Flow::meeting);
  add(table, "shfl.sync.bfly.b32", shuffle<Shuffle::bfly>, shuffled, Flow::meeting);
  add(table, "shfl.sync.idx.b32", shuffle<Shuffle::idx>, shuffled, Flow::meeting);
  add(
      table, "vote.sync.ballot.b32",
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        const LaneMask votes = warp.predicate(i.operands[1]) & mask;
        each_lane(mask, [&](unsigned lane) { warp.lanes<u32>(i.operands[0])[lane] = votes; });
      },
      {{Slot::result}, {Slot::predicate}, {Slot::members}}, Flow::meeting);
  add(
      table, "vote.sync.any.pred",
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        const bool any = (warp.predicate(i.operands[1]) & mask) != 0;
        set_predicate(warp, i.operands[0], mask, any ? kAllLanes : 0);
      },
      {{Slot::predicate}, {Slot::predicate}, {Slot::members}}, Flow::meeting);
  add(
      table, "vote.sync.all.pred",
      [](Warp& warp, const Instruction& i, LaneMask mask) {
        const bool all = (warp.predicate(i.operands[1]) & mask) == mask;
        set_predicate(warp, i.operands[0], mask, all ? kAllLanes : 0);
      },
      {{Slot::predicate}, {Slot::predicate}, {Slot::members}}, Flow::meeting);
  add_reduction<u32>(table, "add.u32", [](u32 a, u32 b) { return a + b; });
  add_reduction<u32>(table, "add.s32", [](u32 a, u32 b) { return a + b; });
  add_reduction<u32>(table, "min.u32", [](u32 a, u32 b) { return std::min(a, b); });
  add_reduction<u32>(table, "max.u32", [](u32 a, u32 b) { return std::max(a, b); });
  add_reduction<s32>(table, "min.s32", [](s32 a, s32 b) { return std::min(a, b); });
  add_reduction<s32>(table, "max.s32", [](s32 a, s32 b) { return std::max(a, b); });
  add_reduction<u32>(table, "and.b32", [](u32 a, u32 b) { return a & b; });
  add_reduction<u32>(table, "or.b32", [](u32 a, u32 b) { return a | b; });
  add_reduction<u32>(table, "xor.b32", [](u32 a, u32 b) { return a ^ b; });
  add_matrix_loads<1>(table);
  add_matrix_loads<2>(table);
  add_matrix_loads<4>(table);
  add_matrix_products<8>(table, "m16n8k8");
  add_matrix_products<16>(table, "m16n8k16");
}

void add_flow(Table& table) {
  add(table, "bra", nullptr, {{Slot::label}}, Flow::branch);
  add(table, "bra.uni", nullptr, {{Slot::label}}, Flow::branch);
  add(table, "ret", nullptr, {}, Flow::exit);
  add(table, "exit", nullptr, {}, Flow::exit);
  add(table, "bar.sync", nullptr, {{Slot::immediate}}, Flow::block_barrier);
  add(table, "barrier.sync", nullptr, {{Slot::immediate}}, Flow::block_barrier);
  // Blocks run one after another and accesses are in order.
  for (const char* const fence :
       {"membar.cta", "membar.gl", "membar.sys", "fence.acq_rel.cta", "fence.acq_rel.gpu",
        "fence.acq_rel.sys", "fence.sc.cta", "fence.sc.gpu", "fence.sc.sys"}) {
    add(table, fence, [](Warp& /*w*/, const Instruction& /*i*/, LaneMask /*mask*/) {}, {});
  }
  add(table, "trap",
      [](Warp& /*w*/, const Instruction& /*i*/, LaneMask mask) {
        throw Fault(FaultKind::trap, "the kernel stopped itself",
                    static_cast<unsigned>(std::countr_zero(mask)));
      },
      {});
}

Table make_table() {
  Table table;
  add_integers<u16>(table, "u16");
  add_integers<s16>(table, "s16");
  add_integers<u32>(table, "u32");
  add_integers<s32>(table, "s32");
  add_integers<u64>(table, "u64");
  add_integers<s64>(table, "s64");
  add_wide_products<u32, u16>(table, "u16");
  add_wide_products<s32, s16>(table, "s16");
  add_wide_products<u64, u32>(table, "u32");
  add_wide_products<s64, s32>(table, "s32");
  add_bit_operations(table);
  add_floating_point(table);
  add_predicates(table);
  add_conversions(table);
  add_memory(table);
  add_copies(table);
  add_meetings(table);
  add_flow(table);
  return table;
}

}  // namespace

const std::unordered_map<std::string_view, Operation>& operations() {
  static const Table kTable = make_table();
  return kTable;
}

}  // namespace jforge::emulator
