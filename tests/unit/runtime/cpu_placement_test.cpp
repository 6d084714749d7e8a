#include "runtime/cpu_placement.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

cpu_set_t allowed() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

// In a child: two existing threads and a later one must be on `expected`.
void expect_processors(const std::string& text, bool found, const cpu_set_t& expected) {
  const test::TemporaryDirectory directory;
  const auto file = directory.path() / "local_cpulist";
  std::ofstream(file) << text;
  EXPECT_EXIT(
      {
        std::promise<void> placed;
        std::promise<cpu_set_t> other;
        std::thread thread([&] {
          placed.get_future().wait();
          other.set_value(allowed());
        });
        bool right = stay_near(file) == found;
        placed.set_value();
        thread.join();
        cpu_set_t later;
        std::thread([&] { later = allowed(); }).join();
        const cpu_set_t before = other.get_future().get();
        const cpu_set_t own = allowed();
        right = right && CPU_EQUAL(&before, &expected) && CPU_EQUAL(&own, &expected) &&
                CPU_EQUAL(&later, &expected);
        std::_Exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "")
      << text;
}

TEST(CpuPlacement, KeepsAllThreadsOnTheListedProcessors) {
  const cpu_set_t all = allowed();
  int last = -1;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    last = CPU_ISSET(i, &all) ? i : last;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  const std::string name = std::to_string(last);
  expect_processors(name + "\n", true, one);
  expect_processors(name + "-" + name + ",5000-5003\n", true, one);
  expect_processors("0-4095\n", true, all);
}

TEST(CpuPlacement, ChangesNothingWithoutACommonProcessorOrAList) {
  const cpu_set_t all = allowed();
  expect_processors(std::to_string(CPU_SETSIZE - 1) + "\n", false, all);
  for (const char* text : {"", "\n", "a", "0,,1", "0-b\n", "-1"}) {
    expect_processors(text, true, all);
  }
  EXPECT_TRUE(stay_near("/nowhere/local_cpulist"));
}

}  // namespace
}  // namespace jforge
