/// Compares PTX with the host's arithmetic.

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda_emulator/arithmetic.h"
#include "tests/cuda_emulator/fault.h"
#include "tests/cuda_emulator/warp.h"
#include "tests/support/message_of.h"

namespace jforge::emulator {
namespace {

using testing::HasSubstr;

template <class T>
using Values = std::vector<T>;

/// k(.u64 %rd0, .u64 %rd1) with `body`; %r0 is the thread index.
std::string kernel_text(const std::string& body, const std::string& shared = "") {
  return ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 p0, .param .u64 p1)\n"
         "{\n.reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<32>;\n.reg .f32 %f<16>;\n"
         ".reg .f64 %d<8>;\n.reg .b64 %rd<16>;\n" +
         shared + "ld.param.u64 %rd0, [p0];\nld.param.u64 %rd1, [p1];\nmov.u32 %r0, %tid.x;\n" +
         body + "\nret;\n}\n";
}

struct Machine {
  DeviceMemory memory;

  template <class T>
  std::uint64_t upload(const Values<T>& values) {
    const std::uint64_t address = memory.allocate(values.size() * sizeof(T));
    std::memcpy(memory.at(address, values.size() * sizeof(T), "upload"), values.data(),
                values.size() * sizeof(T));
    return address;
  }
  template <class T>
  Values<T> download(std::uint64_t address, std::size_t count) {
    Values<T> values(count);
    std::memcpy(values.data(), memory.at(address, count * sizeof(T), "download"),
                count * sizeof(T));
    return values;
  }
  void run_kernel(const std::string& text, std::uint32_t threads, std::uint64_t first = 0,
                  std::uint64_t second = 0, std::uint64_t seed = 0) {
    const Kernel kernel = parse_ptx(text).front();
    ASSERT_EQ(kernel.refused, "");
    Launch launch;
    launch.kernel = &kernel;
    launch.block = {threads, 1, 1};
    launch.parameters.resize(kernel.parameter_bytes);
    std::memcpy(launch.parameters.data(), &first, sizeof first);
    std::memcpy(launch.parameters.data() + sizeof first, &second, sizeof second);
    run(launch, memory, seed);
  }
  std::string fault_of(const std::string& text, std::uint32_t threads, std::uint64_t first = 0,
                       std::uint64_t second = 0) {
    return test::message_of<std::runtime_error>([&] { run_kernel(text, threads, first, second); });
  }
};

std::string register_type(std::size_t bytes) {
  return bytes == 2 ? ".b16" : bytes == 4 ? ".b32" : ".b64";
}

/// Inputs are %x0, %x1, …; the result is %y.
template <class Result, class... Inputs>
Values<Result> evaluate(const std::string& instruction, const Values<Inputs>&... inputs) {
  Machine machine;
  const std::size_t count = std::min({inputs.size()...});
  std::string body = ".reg " + register_type(sizeof(Result)) + " %y;\n";
  Values<std::uint64_t> addresses;
  std::size_t index = 0;
  const auto load = [&]<class T>(const Values<T>& values) {
    addresses.push_back(machine.upload(values));
    const std::string name = "%x" + std::to_string(index);
    const std::string type = register_type(sizeof(T));
    body += ".reg " + type + " " + name + ";\nld.global.u64 %rd2, [%rd1+" +
            std::to_string(8 * index) + "];\nmul.wide.u32 %rd3, %r0, " + std::to_string(sizeof(T)) +
            ";\nadd.s64 %rd2, %rd2, %rd3;\nld.global" + type + " " + name + ", [%rd2];\n";
    ++index;
  };
  (load(inputs), ...);
  body += instruction + "\nmul.wide.u32 %rd3, %r0, " + std::to_string(sizeof(Result)) +
          ";\nadd.s64 %rd3, %rd0, %rd3;\nst.global" + register_type(sizeof(Result)) +
          " [%rd3], %y;";
  const std::uint64_t result = machine.memory.allocate(count * sizeof(Result));
  machine.run_kernel(kernel_text(body), static_cast<std::uint32_t>(count), result,
                     machine.upload(addresses));
  return machine.download<Result>(result, count);
}

template <class T>
Values<T> samples(unsigned seed) {
  constexpr std::size_t kCount = 1000;
  std::mt19937_64 random(seed);
  Values<T> values;
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_floating_point_v<T>) {
    values = {T{0},
              -T{0},
              T{1},
              -T{1},
              Limits::max(),
              Limits::lowest(),
              Limits::min(),
              Limits::denorm_min(),
              Limits::infinity(),
              -Limits::infinity(),
              Limits::quiet_NaN()};
  } else {
    values = {T{0}, T{1}, static_cast<T>(-1), Limits::max(), Limits::min()};
  }
  std::shuffle(values.begin(), values.end(), random);
  while (values.size() < kCount) {
    const std::uint64_t bits = random();
    T value;
    std::memcpy(&value, &bits, sizeof value);
    if constexpr (std::is_floating_point_v<T>) {
      if (bits % 2 == 0) {  // Half of them near one, where sums cancel and round.
        value = static_cast<T>(static_cast<double>(static_cast<std::int64_t>(random())) * 0x1p-62);
      }
    }
    values.push_back(value);
  }
  return values;
}

template <class T>
void expect_equal(const Values<T>& found, const Values<T>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(found[i]) && std::isnan(expected[i])) {
        continue;
      }
    }
    ASSERT_EQ(std::memcmp(&found[i], &expected[i], sizeof(T)), 0)
        << what << ", case " << i << ": " << found[i] << " instead of " << expected[i];
  }
}

template <class Result, class Function, class... Inputs>
void expect_function(const std::string& instruction, Function function,
                     const Values<Inputs>&... inputs) {
  Values<Result> expected;
  const std::size_t count = std::min({inputs.size()...});
  for (std::size_t i = 0; i < count; ++i) {
    expected.push_back(function(inputs[i]...));
  }
  expect_equal(evaluate<Result>(instruction, inputs...), expected, instruction);
}

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

TEST(Ptx, IntegerProducts) {
  const auto a = samples<u32>(1);
  const auto b = samples<u32>(2);
  expect_function<u32>(
      "mul.lo.s32 %y, %x0, %x1;", [](u32 x, u32 y) { return x * y; }, a, b);
  expect_function<u32>(
      "mul.hi.u32 %y, %x0, %x1;", [](u32 x, u32 y) { return static_cast<u32>(u64{x} * y >> 32); },
      a, b);
  const auto signed_product = [](u32 x, u32 y) {
    return s64{static_cast<s32>(x)} * static_cast<s32>(y);
  };
  expect_function<u32>(
      "mul.hi.s32 %y, %x0, %x1;",
      [&](u32 x, u32 y) { return static_cast<u32>(signed_product(x, y) >> 32); }, a, b);
  expect_function<u64>(
      "mul.wide.u32 %y, %x0, %x1;", [](u32 x, u32 y) { return u64{x} * y; }, a, b);
  expect_function<s64>("mul.wide.s32 %y, %x0, %x1;", signed_product, a, b);
  expect_function<u32>(
      "mad.lo.s32 %y, %x0, %x1, %x0;", [](u32 x, u32 y) { return x * y + x; }, a, b);
  const auto c = samples<u64>(3);
  const auto d = samples<u64>(4);
  expect_function<u64>(
      "bfi.b64 %y, %x0, %x1, 28, 8;",
      [](u64 x, u64 y) { return (y & ~(u64{0xff} << 28)) | (x & 0xffU) << 28; }, c, d);
  expect_function<u64>(
      "mul.hi.u64 %y, %x0, %x1;",
      [](u64 x, u64 y) {
        const u64 low = (x & ~0U) * (y & ~0U);  // By halves, unlike the emulator.
        const u64 middle = (x >> 32) * (y & ~0U) + (low >> 32);
        const u64 other = (x & ~0U) * (y >> 32) + (middle & ~0U);
        return (x >> 32) * (y >> 32) + (middle >> 32) + (other >> 32);
      },
      c, d);
  const auto e = samples<u16>(5);
  expect_function<u32>(
      "mul.wide.u16 %y, %x0, %x0;", [](u16 x) { return u32{x} * x; }, e);
}

TEST(Ptx, IntegerQuotients) {
  const auto a = samples<s64>(1);
  auto b = samples<s64>(2);
  for (std::size_t i = 0; i < b.size(); i += 2) {
    b[i] >>= 40;
  }
  constexpr s64 kLeast = std::numeric_limits<s64>::min();
  expect_function<s64>(
      "div.s64 %y, %x0, %x1;",
      [](s64 x, s64 y) { return y == 0                   ? s64{-1}
                                : y == -1 && x == kLeast ? kLeast
                                                         : x / y; }, a,
      b);
  expect_function<s64>(
      "rem.s64 %y, %x0, %x1;", [](s64 x, s64 y) { return y == 0    ? x
                                                         : y == -1 ? s64{0}
                                                                   : x % y; },
      a, b);
}

TEST(Ptx, ShiftsAndBits) {
  const auto a = samples<u32>(1);
  const auto b = samples<u32>(2);
  auto by = samples<u32>(3);
  for (u32& amount : by) {
    amount %= 70;
  }
  expect_function<u32>(
      "shl.b32 %y, %x0, %x1;", [](u32 x, u32 n) { return n > 31 ? 0 : x << n; }, a, by);
  expect_function<u32>(
      "shr.u32 %y, %x0, %x1;", [](u32 x, u32 n) { return n > 31 ? 0 : x >> n; }, a, by);
  expect_function<s32>(
      "shr.s32 %y, %x0, %x1;", [](u32 x, u32 n) { return static_cast<s32>(x) >> std::min(n, 31U); },
      a, by);
  expect_function<u32>(
      "shf.l.wrap.b32 %y, %x0, %x1, %x2;",
      [](u32 low, u32 high, u32 n) {
        n %= 32;
        return n == 0 ? high : high << n | low >> (32 - n);
      },
      a, b, by);
  expect_function<u32>(
      "shf.r.clamp.b32 %y, %x0, %x1, %x2;",
      [](u32 low, u32 high, u32 n) {
        return n >= 32 ? high : n == 0 ? low : low >> n | high << (32 - n);
      },
      a, b, by);
  expect_function<u32>(
      "lop3.b32 %y, %x0, %x1, %x2, 0xCA;", [](u32 x, u32 y, u32 z) { return (x & y) | (~x & z); },
      a, b, by);
  expect_function<u32>(
      "bfe.u32 %y, %x0, 5, 7;", [](u32 x) { return x >> 5 & 127U; }, a);
  expect_function<s32>(
      "bfe.s32 %y, %x0, 28, 9;", [](u32 x) { return static_cast<s32>(x) >> 28; }, a);
  expect_function<u32>(
      "bfi.b32 %y, %x0, %x1, 4, 8;", [](u32 x, u32 y) { return (y & ~0xff0U) | (x & 0xffU) << 4; },
      a, b);
  expect_function<u64>(
      "bfi.b64 %y, %x0, %x1, 36, 8;",
      [](u64 x, u64 y) { return (y & ~(u64{0xff} << 36)) | (x & 0xffU) << 36; }, samples<u64>(6),
      samples<u64>(7));
  expect_function<u32>(
      "mov.pred %p1, 0;\nmov.pred %p2, 1;\nselp.u32 %y, 1, %x0, %p1;\nselp.u32 %y, %y, 2, %p2;",
      [](u32 x) { return x; }, a);
  expect_function<u32>(
      "clz.b32 %y, %x0;", [](u32 x) { return static_cast<u32>(std::countl_zero(x)); }, a);
  expect_function<u32>(
      "prmt.b32 %y, %x0, %x1, 0x0123;", [](u32 x, u32 /*y*/) { return __builtin_bswap32(x); }, a,
      b);
  expect_function<u32>(
      "prmt.b32 %y, %x0, %x1, 0xFFF7;",
      [](u32 /*x*/, u32 y) { return static_cast<u32>(static_cast<s32>(y) >> 24); }, a, b);
}

TEST(Ptx, FloatingPointIsTheHosts) {
  const auto a = samples<float>(1);
  const auto b = samples<float>(2);
  auto c = samples<float>(3);
  for (std::size_t i = 0; i < c.size(); i += 3) {
    c[i] = -a[i] * b[i];  // leaves the product's rounding error
  }
  expect_function<float>(
      "fma.rn.f32 %y, %x0, %x1, %x2;", [](float x, float y, float z) { return std::fma(x, y, z); },
      a, b, c);
  expect_function<float>(
      "fma.rm.f32 %y, %x0, %x1, %x2;",
      [](float x, float y, float z) {
        std::fesetround(FE_DOWNWARD);
        const volatile float result = std::fma(x, y, z);
        std::fesetround(FE_TONEAREST);
        return result;
      },
      a, b, c);
  expect_function<float>(
      "div.rn.f32 %y, %x0, %x1;", [](float x, float y) { return x / y; }, a, b);
  expect_function<float>(
      "sqrt.rn.f32 %y, %x0;", [](float x) { return std::sqrt(x); }, a);
  expect_function<float>(
      "min.f32 %y, %x0, %x1;",
      [](float x, float y) {
        return x == 0 && y == 0 ? (std::signbit(x) ? x : y) : std::fmin(x, y);
      },
      a, b);
  const auto d = samples<double>(4);
  expect_function<double>(
      "fma.rn.f64 %y, %x0, %x0, %x0;", [](double x) { return std::fma(x, x, x); }, d);
}

TEST(Ptx, ApproximationsAreClose) {
  Values<float> x;
  for (int i = -4000; i < 4000; i += 9) {
    x.push_back(static_cast<float>(i) / 32.0F);
  }
  const auto powers = evaluate<float>("ex2.approx.ftz.f32 %y, %x0;", x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(x[i]));
    EXPECT_NEAR(powers[i], exact, exact * 0x1p-22) << x[i];
  }
  EXPECT_EQ(evaluate<float>("ex2.approx.ftz.f32 %y, %x0;", Values<float>{-127.0F}).front(), 0.0F);
  const auto d = samples<double>(5);
  const auto seeds = evaluate<double>("rcp.approx.ftz.f64 %y, %x0;", d);
  for (std::size_t i = 0; i < d.size(); ++i) {
    if (std::isnormal(d[i]) && std::isnormal(1.0 / d[i])) {
      EXPECT_NEAR(seeds[i] * d[i], 1.0, 0x1p-19);
      EXPECT_EQ(std::bit_cast<u64>(seeds[i]) & ~0U, 0U);
    }
  }
}

TEST(Ptx, ComparisonsWithNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Values<float> a{1, 2, 2, nan, 1, nan};
  const Values<float> b{2, 1, 2, 1, nan, nan};
  const auto expect_bits = [&](const std::string& comparison, const Values<u32>& expected) {
    expect_equal(
        evaluate<u32>("setp." + comparison + ".f32 %p1, %x0, %x1;\nselp.u32 %y, 1, 0, %p1;", a, b),
        expected, comparison);
  };
  expect_bits("eq", {0, 0, 1, 0, 0, 0});
  expect_bits("ne", {1, 1, 0, 0, 0, 0});
  expect_bits("lt", {1, 0, 0, 0, 0, 0});
  expect_bits("ge", {0, 1, 1, 0, 0, 0});
  expect_bits("equ", {0, 0, 1, 1, 1, 1});
  expect_bits("neu", {1, 1, 0, 1, 1, 1});
  expect_bits("ltu", {1, 0, 0, 1, 1, 1});
  expect_bits("geu", {0, 1, 1, 1, 1, 1});
  expect_bits("num", {1, 1, 1, 0, 0, 0});
  expect_bits("nan", {0, 0, 0, 1, 1, 1});
  expect_equal(evaluate<u32>("setp.gt.u32 %p3, %r0, 1;\n"
                             "setp.lt.and.f32 %p1|%p2, %x0, %x1, %p3;\n"
                             "selp.u32 %r1, 1, 0, %p1;\nselp.u32 %y, 2, %r1, %p2;",
                             a, b),
               {0, 0, 2, 2, 2, 2}, "setp with two results");
  expect_equal(evaluate<u32>("mov.pred %p1, 0;\nmov.pred %p2, -1;\n"
                             "selp.u32 %r1, 1, 2, %p1;\nselp.u32 %y, %r1, 3, %p2;",
                             a, b),
               {2, 2, 2, 2, 2, 2}, "literal predicates");
}

TEST(Ptx, Conversions) {
  const auto a = samples<float>(1);
  const auto within = [](double low, double high, double x) {
    return std::isnan(x) ? 0.0 : std::clamp(x, low, high);
  };
  expect_function<s32>(
      "cvt.rzi.s32.f32 %y, %x0;",
      [&](float x) { return static_cast<s32>(within(-0x1p31, 0x1p31 - 1, std::trunc(double{x}))); },
      a);
  expect_function<u32>(
      "cvt.rni.u32.f32 %y, %x0;",
      [&](float x) { return static_cast<u32>(within(0, 0x1p32 - 1, std::nearbyint(double{x}))); },
      a);
  expect_function<float>(
      "cvt.sat.f32.f32 %y, %x0;",
      [&](float x) { return static_cast<float>(within(0, 1, double{x})); }, a);
  const auto d = samples<double>(2);
  expect_function<float>(
      "cvt.rn.f32.f64 %y, %x0;", [](double x) { return static_cast<float>(x); }, d);
  expect_function<double>(
      "cvt.rpi.f64.f64 %y, %x0;", [](double x) { return std::ceil(x); }, d);
  expect_function<double>(
      "cvt.rzi.f64.f64 %y, %x0;", [](double x) { return std::trunc(x); }, d);
  expect_function<float>(
      "cvt.rn.f32.s64 %y, %x0;", [](s64 x) { return static_cast<float>(x); }, samples<s64>(3));
  expect_function<s64>(
      "cvt.s64.s32 %y, %x0;", [](s32 x) { return s64{x}; }, samples<s32>(4));
  expect_function<s64>(
      "cvt.s64.s32 %y, %x0;", [](s64 x) { return s64{static_cast<s32>(x)}; }, samples<s64>(4));
  expect_function<s32>(
      "cvt.s32.s8 %y, %x0;", [](u32 x) { return s32{static_cast<std::int8_t>(x)}; },
      samples<u32>(5));
}

TEST(Ptx, Bfloat16RoundsToTheNearestEven) {
  const auto bits = [](u32 value) { return std::bit_cast<float>(value); };
  const Values<float> values{bits(0x3f808000), bits(0x3f818000), bits(0x3f808001),
                             bits(0x3f807fff), bits(0x7f7fffff), bits(0xff800000),
                             bits(0x7fc12345), bits(0x00000001), -0.0F};
  const Values<u16> expected{0x3f80, 0x3f82, 0x3f81, 0x3f80, 0x7f80, 0xff80, 0x7fff, 0, 0x8000};
  expect_equal(evaluate<u16>("cvt.rn.bf16.f32 %y, %x0;", values), expected, "cvt.rn.bf16.f32");
  expect_equal(
      evaluate<u32>("cvt.rn.bf16x2.f32 %y, %x0, %x1;", Values<float>{1.0F}, Values<float>{-2.0F}),
      {0x3f80c000}, "cvt.rn.bf16x2.f32");
  expect_function<float>(
      "mov.b16 %h1, %x0;\ncvt.f32.bf16 %y, %h1;",
      [](u16 x) { return std::bit_cast<float>(u32{x} << 16); }, samples<u16>(1));
}

TEST(Ptx, DivergedLanesMeetAgain) {
  Values<u32> x(64);
  Values<u32> expected(64);
  for (u32 i = 0; i < 64; ++i) {
    x[i] = i * 7 % 13;
    u32 steps = 0;
    for (u32 n = x[i] + 1; n != 1; ++steps) {
      n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    }
    expected[i] = steps;
  }
  // Counts each lane's steps to 1; then the warp meets.
  const std::string loop =
      "add.u32 %r1, %x0, 1;\nmov.u32 %y, 0;\n"
      "$loop: setp.eq.u32 %p1, %r1, 1;\n@%p1 bra $done;\nadd.u32 %y, %y, 1;\n"
      "and.b32 %r2, %r1, 1;\nsetp.ne.u32 %p2, %r2, 0;\n@%p2 bra $odd;\n"
      "shr.u32 %r1, %r1, 1;\nbra $loop;\n"
      "$odd: mad.lo.u32 %r1, %r1, 3, 1;\nbra.uni $loop;\n"
      "$done: setp.ge.u32 %p3, %r0, 0;\n";
  expect_equal(evaluate<u32>(loop, x), expected, "loop");
  expect_equal(evaluate<u32>(loop + "vote.sync.ballot.b32 %y, %p3, 0xffffffff;", x),
               Values<u32>(64, ~0U), "ballot after the loop");
}

TEST(Ptx, ShufflesAndVotes) {
  Values<u32> x(32);
  for (u32 i = 0; i < 32; ++i) {
    x[i] = 100 + i;
  }
  const auto expect_sources = [&](const std::string& operands, auto source) {
    Values<u32> expected;
    for (u32 lane = 0; lane < 32; ++lane) {
      expected.push_back(100 + source(lane));
    }
    expect_equal(evaluate<u32>("shfl.sync." + operands + ", 0xffffffff;", x), expected, operands);
  };
  expect_sources("bfly.b32 %y, %x0, 5, 31", [](u32 lane) { return lane ^ 5U; });
  expect_sources("down.b32 %y, %x0, 3, 31", [](u32 l) { return l + 3 < 32 ? l + 3 : l; });
  expect_sources("up.b32 %y, %x0, 3, 0", [](u32 l) { return l >= 3 ? l - 3 : l; });
  expect_sources("idx.b32 %y, %x0, 9, 31", [](u32 /*lane*/) { return 9U; });
  // Segments of eight lanes: c = (32 − 8) << 8 | 7.
  expect_sources("down.b32 %y, %x0, 2, 0x1807", [](u32 l) { return l % 8 < 6 ? l + 2 : l; });
  expect_equal(evaluate<u32>("shfl.sync.down.b32 %r1|%p1, %x0, 30, 31, 0xffffffff;\n"
                             "vote.sync.ballot.b32 %y, %p1, 0xffffffff;",
                             x),
               Values<u32>(32, 3U), "lanes whose source is in the warp");
  expect_equal(evaluate<u32>("redux.sync.add.u32 %y, %x0, 0xffffffff;", x),
               Values<u32>(32, 32 * 100 + 496), "redux");
}

TEST(Ptx, MatricesThroughTheTensorCore) {
  Machine machine;
  std::mt19937 random(7);
  Values<u16> a(16 * 16);
  Values<u16> b(16 * 8);  // b[k][n]
  for (Values<u16>* const matrix : {&a, &b}) {
    for (u16& value : *matrix) {
      value = to_bfloat16_bits(std::normal_distribution<float>()(random));
    }
  }
  Values<u16> both = a;
  both.insert(both.end(), b.begin(), b.end());
  const std::string body =
      // 768 bytes to shared memory: 24 a lane, in three copies of eight.
      "mov.u32 %r1, s;\nmul.lo.u32 %r2, %r0, 24;\nadd.u32 %r3, %r1, %r2;\n"
      "cvt.u64.u32 %rd2, %r2;\nadd.s64 %rd2, %rd1, %rd2;\n"
      "cp.async.ca.shared.global [%r3], [%rd2], 8;\n"
      "cp.async.ca.shared.global [%r3+8], [%rd2+8], 8;\n"
      "cp.async.ca.shared.global [%r3+16], [%rd2+16], 8;\n"
      "cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;\n"
      // Row l mod 16, columns from 8 (l / 16).
      "and.b32 %r4, %r0, 15;\nshl.b32 %r4, %r4, 5;\nshr.u32 %r5, %r0, 4;\nshl.b32 %r5, %r5, 4;\n"
      "add.u32 %r6, %r1, %r4;\nadd.u32 %r6, %r6, %r5;\n"
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r6];\n"
      "and.b32 %r7, %r0, 15;\nshl.b32 %r7, %r7, 4;\nadd.u32 %r7, %r7, %r1;\n"
      "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r14, %r15}, [%r7+512];\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, "
      "{%r10, %r11, %r12, %r13}, {%r14, %r15}, {0f3F800000, 0f3F800000, 0f3F800000, 0f3F800000};\n"
      "mul.wide.u32 %rd3, %r0, 16;\nadd.s64 %rd3, %rd0, %rd3;\n"
      "st.global.v4.f32 [%rd3], {%f0, %f1, %f2, %f3};";
  const std::uint64_t result = machine.memory.allocate(16 * 8 * sizeof(float));
  machine.run_kernel(kernel_text(body, ".shared .align 16 .b8 s[768];\n"), 32, result,
                     machine.upload(both));
  const auto found = machine.download<float>(result, 16 * 8);
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t part = 0; part < 4; ++part) {
      const std::size_t row = lane / 4 + part / 2 * 8;
      const std::size_t column = lane % 4 * 2 + part % 2;
      double sum = 1.0;
      for (std::size_t k = 0; k < 16; ++k) {
        sum += static_cast<double>(from_bfloat16(a[row * 16 + k])) *
               static_cast<double>(from_bfloat16(b[k * 8 + column]));
      }
      EXPECT_EQ(found[lane * 4 + part], static_cast<float>(sum)) << row << ", " << column;
    }
  }
}

TEST(Ptx, AtomicsOfAllThreads) {
  Machine machine;
  const std::uint64_t sums = machine.upload(Values<u32>{0, 5});
  machine.run_kernel(kernel_text("red.global.add.u32 [%rd0], 1;\n"
                                 "atom.global.cas.b32 %r1, [%rd0+4], 5, %r0;"),
                     100, sums);
  EXPECT_THAT(machine.download<u32>(sums, 2), testing::ElementsAre(100, 0));
}

/// The amount is known only at run time.
TEST(Ptx, LocalMemory) {
  Machine machine;
  const std::uint64_t out = machine.memory.allocate(64 * sizeof(u32));
  const std::string text = kernel_text(
      "mov.u64 %rd1, depot;\ncvta.local.u64 %rd2, %rd1;\n"
      "st.local.v4.u32 [%rd1], {%r0, %r0, %r0, 7};\nadd.u32 %r1, %r0, 100;\n"
      "and.b32 %r2, %r0, 3;\nmul.wide.u32 %rd3, %r2, 4;\nadd.s64 %rd3, %rd2, %rd3;\n"
      "st.u32 [%rd3], %r1;\nld.local.u32 %r3, [%rd1+12];\n"
      "mul.wide.u32 %rd4, %r0, 4;\nadd.s64 %rd4, %rd0, %rd4;\nst.global.u32 [%rd4], %r3;",
      ".local .align 16 .b8 depot[16];\n");
  machine.run_kernel(text, 64, out);
  const std::vector<u32> values = machine.download<u32>(out, 64);
  for (u32 i = 0; i < 64; ++i) {
    EXPECT_EQ(values[i], i % 4 == 3 ? i + 100 : 7);
  }
  EXPECT_THAT(machine.fault_of(kernel_text("mov.u64 %rd1, depot;\nst.local.u32 [%rd1+16], %r0;",
                                           ".local .align 16 .b8 depot[16];\n"),
                               8),
              HasSubstr("write of 4 bytes at local byte 16 of 16"));
}

// --- faults ---

constexpr const char* kShared = ".shared .align 4 .b8 s[512];\n";
const std::string own_word =  // %r1: the thread's word of s
    "mov.u32 %r1, s;\nmad.lo.u32 %r1, %r0, 4, %r1;\n";

TEST(PtxFaults, OutOfBounds) {
  Machine machine;
  const std::uint64_t data = machine.memory.allocate(400);
  const std::string text = kernel_text(
      "mul.wide.u32 %rd2, %r0, 4;\nadd.s64 %rd2, %rd0, %rd2;\n"
      "st.global.u32 [%rd2], %r0;");
  machine.run_kernel(text, 100, data);
  const std::string fault = machine.fault_of(text, 128, data);
  EXPECT_THAT(fault, HasSubstr("illegal address: write of 4 bytes at " + hexadecimal(data + 400) +
                               ", 0 bytes past the end of the 400 bytes at " + hexadecimal(data)));
  EXPECT_THAT(fault, HasSubstr("kernel k, block (0, 0, 0), thread (100, 0, 0), PTX line 17: "
                               "st.global.u32 [%rd2], %r0"));
  EXPECT_THAT(machine.fault_of(text, 1, data + 2), HasSubstr("misaligned write of 4 bytes"));
  int host = 0;
  EXPECT_THAT(machine.fault_of(text, 1, reinterpret_cast<std::uint64_t>(&host)),
              HasSubstr("which is not device memory"));
  EXPECT_THAT(machine.fault_of(kernel_text("st.shared.u32 [%r0+508], %r0;", kShared), 8),
              HasSubstr("write of 4 bytes at shared byte 509 of 512"));
  EXPECT_THAT(machine.fault_of(kernel_text("st.shared.u32 [%r0+2], %r0;", kShared), 8),
              HasSubstr("misaligned write of 4 bytes at shared byte 2"));
  EXPECT_THAT(machine.fault_of(kernel_text(own_word + "st.shared.u32 [%r1], %r0;", kShared), 129),
              HasSubstr("write of 4 bytes at shared byte 512 of 512; kernel k, block (0, 0, 0), "
                        "thread (128, 0, 0)"));
}

TEST(PtxFaults, UseAfterFree) {
  Machine machine;
  const std::uint64_t data = machine.memory.allocate(64);
  machine.memory.free(data);
  EXPECT_THAT(machine.fault_of(kernel_text("ld.global.u32 %r1, [%rd0+8];"), 32, data),
              HasSubstr("read of 4 bytes at " + hexadecimal(data + 8) +
                        ", inside the 64 bytes at " + hexadecimal(data) + ", which were freed"));
  EXPECT_THROW(machine.memory.free(data), Fault);
}

/// Thread t writes word t and reads word t ^ `other`.
std::string exchange(u32 other, const std::string& between) {
  return kernel_text(own_word + "st.shared.u32 [%r1], %r0;\n" + between + "xor.b32 %r2, %r0, " +
                         std::to_string(other) +
                         ";\nmov.u32 %r3, s;\nmad.lo.u32 %r3, %r2, 4, %r3;\n"
                         "ld.shared.u32 %r4, [%r3];",
                     kShared);
}

TEST(PtxFaults, RacesInSharedMemory) {
  Machine machine;
  EXPECT_EQ(machine.fault_of(exchange(64, "bar.sync 0;\n"), 128), "nothing thrown");
  EXPECT_THAT(machine.fault_of(exchange(64, ""), 128),
              testing::AnyOf(HasSubstr("race"), HasSubstr("uninitialised")));
  EXPECT_THAT(
      machine.fault_of(exchange(1, ""), 128),
      HasSubstr("race: read from shared byte 4 on is not ordered after the write by thread 1; "
                "kernel k, block (0, 0, 0), thread (0, 0, 0)"));
  // A warp barrier does not suffice between warps.
  EXPECT_EQ(machine.fault_of(exchange(1, "bar.warp.sync 0xffffffff;\n"), 128), "nothing thrown");
  EXPECT_THAT(machine.fault_of(exchange(64, "bar.warp.sync 0xffffffff;\n"), 128),
              testing::AnyOf(HasSubstr("race"), HasSubstr("uninitialised")));
  const std::string reread = "ld.shared.u32 %r2, [s];\n";
  const std::string begin = "setp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 [s], %r0;\nbar.sync 0;\n";
  EXPECT_EQ(
      machine.fault_of(
          kernel_text(begin + reread + "bar.sync 0;\n@%p1 st.shared.u32 [s], 1;", kShared), 64),
      "nothing thrown");
  EXPECT_THAT(
      machine.fault_of(kernel_text(begin + reread +
                                       "setp.eq.u32 %p2, %r0, 40;\n"
                                       "@%p2 st.shared.u32 [s], 1;",
                                   kShared),
                       64),
      HasSubstr("race: write from shared byte 0 on is not ordered after the reads by several "
                "warps"));
  EXPECT_EQ(machine.fault_of(kernel_text(begin + "red.shared.add.u32 [s], 1;", kShared), 128),
            "nothing thrown");
  // Both count as readers, so that a write needs a barrier.
  for (const int lane : {0, 31}) {
    const std::string write =
        "setp.eq.u32 %p2, %r0, " + std::to_string(lane) + ";\n@%p2 st.shared.u32 [s], 1;\n";
    const std::string race =
        "race: write from shared byte 0 on is not ordered after the reads by warp 0";
    const std::string sync = "bar.warp.sync 0xffffffff;\n";
    EXPECT_THAT(machine.fault_of(kernel_text(begin + reread + write, kShared), 32),
                HasSubstr(race));
    EXPECT_EQ(machine.fault_of(kernel_text(begin + reread + sync + write, kShared), 32),
              "nothing thrown");
    EXPECT_THAT(machine.fault_of(kernel_text(begin + reread + sync + reread + write, kShared), 32),
                HasSubstr(race));
  }
}

TEST(PtxFaults, UninitialisedSharedMemory) {
  Machine machine;
  EXPECT_THAT(
      machine.fault_of(kernel_text("setp.lt.u32 %p1, %r0, 30;\n" + own_word +
                                       "@%p1 st.shared.u32 [%r1], 0;\nld.shared.u32 %r2, [%r1];",
                                   kShared),
                       32),
      HasSubstr("uninitialised memory: shared byte 120 is read before anything was written there; "
                "kernel k, block (0, 0, 0), thread (30, 0, 0)"));
}

TEST(PtxFaults, CopiesThatWereNotWaitedFor) {
  Machine machine;
  const std::uint64_t data = machine.upload(Values<u32>(32, 9));
  const std::string copy = own_word +
                           "mul.wide.u32 %rd2, %r0, 4;\nadd.s64 %rd2, %rd0, %rd2;\n"
                           "cp.async.ca.shared.global [%r1], [%rd2], 4;\ncp.async.commit_group;\n";
  const std::string use = "ld.shared.u32 %r2, [%r1];";
  EXPECT_EQ(
      machine.fault_of(kernel_text(copy + "cp.async.wait_group 0;\n" + use, kShared), 32, data),
      "nothing thrown");
  for (const char* const wait : {"", "cp.async.wait_group 1;\n"}) {
    EXPECT_THAT(machine.fault_of(kernel_text(copy + wait + use, kShared), 32, data),
                HasSubstr("is not ordered after the cp.async that thread 0 has not waited for"));
  }
}

TEST(PtxFaults, BarriersThatNotAllReach) {
  Machine machine;
  EXPECT_THAT(machine.fault_of(kernel_text("setp.lt.u32 %p1, %r0, 32;\n@%p1 bar.sync 0;\n"
                                           "bar.sync 0;"),
                               64),
              HasSubstr("divergent barrier: threads of the block wait at another place for the "
                        "same barrier (PTX line 16: @%p1 bar.sync 0)"));
  EXPECT_THAT(
      machine.fault_of(kernel_text("setp.ge.u32 %p1, %r0, 40;\n@%p1 ret;\nbar.sync 0;"), 64),
      HasSubstr("divergent barrier: not all threads come: thread 0 waits"));
  EXPECT_THAT(machine.fault_of(kernel_text("setp.ge.u32 %p1, %r0, 16;\n@%p1 ret;\n"
                                           "shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffffffff;"),
                               32),
              HasSubstr("lane 16 is waited for but has left the kernel"));
  EXPECT_THAT(machine.fault_of(kernel_text("shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0x0000ffff;"), 32),
              HasSubstr("a lane takes part that its member mask leaves out"));
}

TEST(PtxFaults, WhatIsNotKnownIsRefusedByName) {
  const auto refusal = [](const std::string& statement) {
    const std::string refused = parse_ptx(kernel_text(statement)).front().refused;
    return refused.empty() ? std::string("taken") : refused;
  };
  EXPECT_EQ(refusal("add.u32 %r1, %r0, 1;"), "taken");
  EXPECT_EQ(refusal("wgmma.fence.sync.aligned;"),
            "PTX line 15: instruction `wgmma.fence.sync.aligned` in `wgmma.fence.sync.aligned` is "
            "not known to the emulator");
  EXPECT_THAT(refusal("add.sat.s32 %r1, %r0, 1;"), HasSubstr("instruction `add.sat.s32`"));
  EXPECT_THAT(refusal("add.rz.f32 %f1, %f0, %f0;"), HasSubstr("instruction `add.rz.f32`"));
  EXPECT_THAT(refusal("mov.u32 %r1, %smid;"), HasSubstr("special register `%smid`"));
  EXPECT_THAT(refusal("bar.sync 0, 64;"), HasSubstr("number of operands of `bar.sync 0, 64`"));
  EXPECT_THAT(refusal("add.u32 %r1, %r0, %q;"), HasSubstr("`%q`"));
  EXPECT_THAT(refusal("add.u64 %rd2, %r0, %rd1;"), HasSubstr("register `%r0` of 32 bits"));
  EXPECT_THAT(refusal("bra $nowhere;"), HasSubstr("label `$nowhere`"));
  EXPECT_THAT(refusal(".const .b8 d[8];"), HasSubstr("directive `.const .b8 d[8]`"));
  EXPECT_THROW(static_cast<void>(parse_ptx(".global .b32 g;\n")), Refusal);
}

}  // namespace
}  // namespace jforge::emulator
