#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <source_location>
#include <string>
#include <vector>

#include "model/kernels/cuda/cuda_kernel_set.h"
#include "model/kernels/kernel_set.h"
#include "runtime/error.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/cuda_products.h"
#include "tests/support/message_of.h"
#include "tests/support/tested_kernel_set.h"

namespace jforge {
namespace {

bool device_is_emulated() {
  return ::dlsym(RTLD_DEFAULT, "jforge_emulated_heuristic_calls") != nullptr;
}

/// CUDA's header names these errors; the other ranks must learn at once.
TEST(CudaErrors, WhatEndsTheProcessCutsTheRankOff) {
  std::ifstream header(JFORGE_CUDA_INCLUDE "/driver_types.h");
  if (!header) {
    GTEST_SKIP() << "no CUDA headers on this machine";
  }
  const std::regex code(R"(^\s*(cudaError\w+)\s*=\s*(\d+))");
  const std::regex ends(R"(terminated[\s*]+and[\s*]+relaunched)");
  std::string comment;
  int seen = 0;
  for (std::string line; std::getline(header, line);) {
    std::smatch found;
    if (!std::regex_search(line, found, code)) {
      comment = line.find("/**") == std::string::npos ? comment + line : line;
      continue;
    }
    if (std::regex_search(comment, ends)) {
      ++seen;
      try {
        cuda_check(static_cast<cudaError_t>(std::stoi(found[2])), "compute");
        ADD_FAILURE() << found[1];
      } catch (const Error& error) {
        EXPECT_TRUE(error.cut_off()) << error.what();
      }
    }
    comment.clear();
  }
  EXPECT_GT(seen, 10);
}

TEST(CudaErrors, NameThePlaceOfTheCall) {
  const auto expect_place = [](const auto& failing_call,
                               std::source_location where = std::source_location::current()) {
    EXPECT_THAT(test::message_of<Error>(failing_call),
                ::testing::ContainsRegex(
                    " at [^ ]*/device_errors_test\\.cpp:" + std::to_string(where.line()) + "\\b"))
        << "no exception, line " << where.line();
  };
  expect_place([] { cuda_check(cudaErrorMemoryAllocation, "compute"); });
  expect_place([] { cuda_check(cudaErrorInvalidValue, "compute"); });
  expect_place([] { cublas_check(CUBLAS_STATUS_ALLOC_FAILED, "multiply"); });
  expect_place([] { cublas_check(CUBLAS_STATUS_INVALID_VALUE, "multiply"); });
}

class EmulatedSetting {
 public:
  EmulatedSetting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~EmulatedSetting() { unsetenv(name_); }
  EmulatedSetting(const EmulatedSetting&) = delete;
  EmulatedSetting& operator=(const EmulatedSetting&) = delete;

 private:
  const char* name_;
};

/// Such an algorithm is avoided; if every algorithm has other sums, decoding is refused.
TEST(CudaErrors, AProductWhoseRowsDependOnOthersIsFoundWhenItsWeightIsPacked) {
  if (!device_is_emulated()) {
    GTEST_SKIP() << "a real device is what it is";
  }
  constexpr std::int64_t kRows = 40;
  constexpr std::int64_t kColumns = 48;
  constexpr std::int64_t kDepth = 64;
  MemoryAccount account("rows");
  const auto rows_agree = [&] {
    const auto kernels = make_tested_kernel_set();
    const Buffer values(static_cast<std::size_t>((kRows + kColumns) * kDepth) * sizeof(float),
                        account, Device::cuda);
    std::vector<float> numbers(static_cast<std::size_t>((kRows + kColumns) * kDepth));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<float>(i * 37 % 101) / 64 - 0.7F;
    }
    const TensorView all = values.floats({kRows + kColumns, kDepth});
    copy_tensor(ConstTensorView(numbers.data(), all.shape()), all);
    const auto weight = kernels->pack_weight(all.rows(kRows, kRows + kColumns),
                                             WeightStorage::bfloat16_arithmetic, account);
    const Buffer results(static_cast<std::size_t>(2 * kRows * kColumns) * sizeof(float), account,
                         Device::cuda);
    const TensorView both = results.floats({2 * kRows, kColumns});
    kernels->invariant_linear(all.rows(0, kRows), *weight, {}, both.rows(0, kRows));
    for (std::int64_t row = 0; row < kRows; ++row) {
      kernels->invariant_linear(all.rows(row, row + 1), *weight, {},
                                both.rows(kRows + row, kRows + row + 1));
    }
    std::vector<float> found(static_cast<std::size_t>(both.elements()));
    copy_tensor(both, TensorView(found.data(), both.shape()));
    return std::equal(found.begin(), found.begin() + std::ssize(found) / 2,
                      found.begin() + std::ssize(found) / 2);
  };
  EXPECT_TRUE(rows_agree());
  {
    const EmulatedSetting setting("JFORGE_EMULATED_ROW_BITS", "algorithm");
    EXPECT_TRUE(rows_agree());
  }
  const EmulatedSetting setting("JFORGE_EMULATED_ROW_BITS", "rows");
  EXPECT_THAT(test::message_of<EnvironmentError>([&] { return rows_agree(); }),
              ::testing::HasSubstr("model.decode_weights = \"bfloat16\""));
}

/// cuBLAS reports only that its launch failed.
TEST(CudaErrorsDeathTest, AProductOnABrokenDeviceNamesWhatBrokeIt) {
  if (!device_is_emulated()) {
    GTEST_SKIP() << "a real device is not broken on purpose";
  }
  const auto multiply = [] {
    const auto kernels = make_tested_kernel_set();
    MemoryAccount account("broken");
    const Buffer values(3 * 64 * 64 * sizeof(float), account, Device::cuda);
    const TensorView all = values.floats({192, 64});
    static_cast<void>(cudaMemsetAsync(values.data(), 0, values.bytes() + 1, nullptr));
    static_cast<void>(cudaStreamSynchronize(nullptr));
    try {
      kernels->linear(all.rows(0, 64), all.rows(64, 128), {}, all.rows(128, 192));
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(error.cut_off() ? 0 : 1);
    }
    std::_Exit(2);
  };
  EXPECT_EXIT(multiply(), ::testing::ExitedWithCode(0),
              "CUDA: .*: illegal address.* at .*/cuda_products\\.cpp:[0-9]");
}

/// A T4, before anything is loaded.
TEST(CudaErrors, ADeviceThatIsOlderThanTheKernelsIsRefused) {
  if (!device_is_emulated()) {
    GTEST_SKIP() << "a real device is what it is";
  }
  ASSERT_EQ(setenv("JFORGE_EMULATED_CAPABILITY", "75", 1), 0);
  try {
    const auto kernels = make_cuda_kernel_set(0);
    ADD_FAILURE() << "no exception";
  } catch (const EnvironmentError& error) {
    using ::testing::HasSubstr;
    EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr(" has compute capability 7.5, and "),
                                               HasSubstr(" need 8.0"), HasSubstr("model.device")));
  }
  ASSERT_EQ(setenv("JFORGE_EMULATED_CAPABILITY", "120", 1), 0);
  EXPECT_NO_THROW(static_cast<void>(make_cuda_kernel_set(0)));
  ASSERT_EQ(unsetenv("JFORGE_EMULATED_CAPABILITY"), 0);
}

TEST(CudaErrors, ADriverThatIsTooOldForTheCodeIsNotOurMistake) {
  EXPECT_THAT(test::message_of<EnvironmentError>(
                  [&] { cuda_check(cudaErrorUnsupportedPtxVersion, "multiply"); }),
              ::testing::HasSubstr("install an NVIDIA driver"));
}

TEST(CudaErrors, AKernelThatNeedsMoreSharedMemoryThanThereIsSaysSo) {
  if (!device_is_emulated()) {
    GTEST_SKIP() << "a real device has what it has";
  }
  ASSERT_EQ(setenv("JFORGE_EMULATED_SHARED_KIB", "99", 1), 0);
  EXPECT_NO_THROW(expect_shared_memory(99 << 10, "attention"));
  try {
    expect_shared_memory((103 << 10) + 1, "attention");
    ADD_FAILURE() << "no exception";
  } catch (const EnvironmentError& error) {
    using ::testing::HasSubstr;
    EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("attention: the kernel needs 104 KiB"),
                                               HasSubstr("has 99; "), HasSubstr("model.compute")));
  }
  ASSERT_EQ(unsetenv("JFORGE_EMULATED_SHARED_KIB"), 0);
}

}  // namespace
}  // namespace jforge
