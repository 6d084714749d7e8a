/// Faults that the emulated device finds in PTX. What PTX computes is held to the CPU's bits by the
/// kernels (emulated.kernel_agreement).

#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/cuda_emulator/fault.h"
#include "tests/cuda_emulator/warp.h"
#include "tests/support/message_of.h"

namespace jforge::emulator {
namespace {

using testing::HasSubstr;

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

  std::uint64_t upload(const std::vector<std::uint32_t>& values) {
    const std::size_t bytes = values.size() * sizeof(values[0]);
    const std::uint64_t address = memory.allocate(bytes);
    std::memcpy(memory.at(address, bytes, "upload"), values.data(), bytes);
    return address;
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
  EXPECT_THAT(machine.fault_of(kernel_text("mov.u64 %rd1, depot;\nst.local.u32 [%rd1+16], %r0;",
                                           ".local .align 16 .b8 depot[16];\n"),
                               8),
              HasSubstr("write of 4 bytes at local byte 16 of 16"));
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
std::string exchange(std::uint32_t other, const std::string& between) {
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
  const std::uint64_t data = machine.upload(std::vector<std::uint32_t>(32, 9));
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
