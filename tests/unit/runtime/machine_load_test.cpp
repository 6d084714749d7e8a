#include "runtime/machine_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

TEST(MachineLoad, IsReadFromProc) {
  const test::TemporaryDirectory proc;
  std::ofstream(proc / "loadavg") << "6.00 3.10 1.00 4/512 4711\n";
  std::ofstream(proc / "cpuinfo") << "processor\t: 0\ncpu MHz\t\t: 1000.000\nflags\t: fpu\n"
                                     "processor\t: 1\ncpu MHz\t\t: 3000.000\n";
  const MachineLoad load = read_machine_load(proc.path());
  EXPECT_DOUBLE_EQ(load.load_per_core.value(),
                   6.0 / static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)));
  EXPECT_DOUBLE_EQ(load.megahertz.value(), 2000);
}

TEST(MachineLoad, WhatIsNotSaidIsLeftOut) {
  const test::TemporaryDirectory proc;
  EXPECT_FALSE(read_machine_load(proc.path()).load_per_core.has_value());
  EXPECT_FALSE(read_machine_load(proc.path()).megahertz.has_value());
  std::ofstream(proc / "loadavg") << "busy\n";
  std::ofstream(proc / "cpuinfo") << "cpu MHz\t\t: unknown\nCPU revision\t: 1\n";
  EXPECT_FALSE(read_machine_load(proc.path()).load_per_core.has_value());
  EXPECT_FALSE(read_machine_load(proc.path()).megahertz.has_value());
}

TEST(MachineLoad, NamesTheProcessor) {
  const test::TemporaryDirectory proc;
  EXPECT_EQ(processor_name(proc.path()), "unknown processor");
  std::ofstream(proc / "cpuinfo") << "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n";
  EXPECT_EQ(processor_name(proc.path()), "Some CPU @ 2 GHz");
}

TEST(MachineLoad, ThisMachineHasALoad) { EXPECT_GE(read_machine_load().load_per_core.value(), 0); }

}  // namespace
}  // namespace jforge
