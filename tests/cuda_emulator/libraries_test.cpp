/// Results and detected misuse. Runs with the emulated libraries.

#include <cublasLt.h>
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "tests/cuda_emulator/emulated_device_test.h"
#include "tests/cuda_emulator/faulty_kernels.cuh"

namespace jforge::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

std::uint64_t heuristic_calls() {
  void* const count = dlsym(RTLD_DEFAULT, "jforge_emulated_heuristic_calls");
  return count == nullptr ? 0 : reinterpret_cast<std::uint64_t (*)()>(count)();
}

float bfloat16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
std::uint16_t bfloat16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

/// d [m, n] = a [m, k] · b [k, n] + beta · d + bias.
class Product : public EmulatedDevice {
 protected:
  static constexpr std::int64_t kM = 6;
  static constexpr std::int64_t kN = 5;
  static constexpr std::int64_t kK = 96;
  static constexpr std::size_t kSpace = 4096;

  void SetUp() override {
    EmulatedDevice::SetUp();
    for (std::byte** const memory : {&a_, &b_, &d_, &bias_, &workspace_}) {
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(memory), kSpace), cudaSuccess);
    }
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    set_order("lazy");
    EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_SUCCESS);
    for (std::byte* const memory : {a_, b_, d_, bias_, workspace_}) {
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
    }
    EmulatedDevice::TearDown();
  }

  struct Call {
    cublasLtMatmulDesc_t description = nullptr;
    cublasLtMatrixLayout_t a = nullptr;
    cublasLtMatrixLayout_t b = nullptr;
    cublasLtMatrixLayout_t d = nullptr;
    cublasLtMatmulHeuristicResult_t found{};
  };
  struct Kind {
    cudaDataType in = CUDA_R_32F;
    cudaDataType out = CUDA_R_32F;
    bool transpose_a = false;
    bool transpose_b = false;
    bool with_bias = false;
    std::uint32_t alignment = 256;
    std::int64_t columns = kN;
    /// Parts may be rounded before the bias is added.
    [[nodiscard]] bool narrow_bias() const { return with_bias && out == CUDA_R_16BF; }
  };
  Call prepare(const Kind& kind) {
    Call call;
    EXPECT_EQ(cublasLtMatmulDescCreate(&call.description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
      EXPECT_EQ(cublasLtMatmulDescSetAttribute(call.description, attribute, &value, sizeof value),
                CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, kind.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, kind.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (kind.with_bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias_));
    }
    const auto layout = [](cublasLtMatrixLayout_t* made, cudaDataType type, bool transposed,
                           std::int64_t rows, std::int64_t columns) {
      const auto first = static_cast<std::uint64_t>(transposed ? columns : rows);
      const auto second = static_cast<std::uint64_t>(transposed ? rows : columns);
      EXPECT_EQ(
          cublasLtMatrixLayoutCreate(made, type, first, second, static_cast<std::int64_t>(first)),
          CUBLAS_STATUS_SUCCESS);
    };
    layout(&call.a, kind.in, kind.transpose_a, kM, kK);
    layout(&call.b, kind.in, kind.transpose_b, kK, kind.columns);
    layout(&call.d, kind.out, false, kM, kind.columns);
    cublasLtMatmulPreference_t preference = nullptr;
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    const std::uint64_t most = kSpace;
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(
                  preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                             &kind.alignment, sizeof kind.alignment),
        CUBLAS_STATUS_SUCCESS);
    const std::uint32_t reductions =
        kind.narrow_bias() ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_MASK;
    EXPECT_EQ(
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &reductions, sizeof reductions),
        CUBLAS_STATUS_SUCCESS);
    int found = 0;
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, call.description, call.a, call.b, call.d,
                                             call.d, preference, 1, &call.found, &found),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(found, 1);
    EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
    return call;
  }
  static void destroy(const Call& call) {
    EXPECT_EQ(cublasLtMatmulDescDestroy(call.description), CUBLAS_STATUS_SUCCESS);
    for (cublasLtMatrixLayout_t layout : {call.a, call.b, call.d}) {
      EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
    }
  }
  cublasStatus_t multiply(const Call& call, const cublasLtMatmulAlgo_t& algorithm, float beta,
                          std::size_t workspace, std::size_t b_shift = 0) {
    const float one = 1.0F;
    return cublasLtMatmul(handle_, call.description, &one, a_, call.a, b_ + b_shift, call.b, &beta,
                          d_, call.d, d_, call.d, &algorithm, workspace_, workspace, first_);
  }

  static float value(std::int64_t i) { return static_cast<float>(i * 7 % 11 - 5); }
  static void fill(std::byte* device, cudaDataType type, std::int64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * sizeof(float));
    std::size_t size = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const float number = value(i);
      const std::uint16_t half = bfloat16_bits(number);
      const void* const from =
          type == CUDA_R_32F ? static_cast<const void*>(&number) : static_cast<const void*>(&half);
      const std::size_t width = type == CUDA_R_32F ? sizeof number : sizeof half;
      std::memcpy(&bytes[size], from, width);
      size += width;
    }
    ASSERT_EQ(cudaMemcpy(device, bytes.data(), size, cudaMemcpyHostToDevice), cudaSuccess);
  }
  void fill_all(const Kind& kind) {
    fill(a_, kind.in, kM * kK);
    fill(b_, kind.in, kK * kN);
    fill(d_, kind.out, kM * kN);
    fill(bias_, kind.out, kM);
  }
  static float expected(const Kind& kind, float beta, std::int64_t row, std::int64_t column) {
    float sum = beta * value(column * kM + row) + (kind.with_bias ? value(row) : 0.0F);
    for (std::int64_t k = 0; k < kK; ++k) {
      sum += value(kind.transpose_a ? row * kK + k : k * kM + row) *
             value(kind.transpose_b ? k * kN + column : column * kK + k);
    }
    return kind.out == CUDA_R_32F ? sum : bfloat16_value(bfloat16_bits(sum));
  }
  [[nodiscard]] std::vector<float> result(cudaDataType type) const {
    std::vector<float> values(kM * kN);
    if (type == CUDA_R_32F) {
      EXPECT_EQ(
          cudaMemcpy(values.data(), d_, values.size() * sizeof(float), cudaMemcpyDeviceToHost),
          cudaSuccess);
      return values;
    }
    std::vector<std::uint16_t> halves(kM * kN);
    EXPECT_EQ(cudaMemcpy(halves.data(), d_, halves.size() * 2, cudaMemcpyDeviceToHost),
              cudaSuccess);
    std::transform(halves.begin(), halves.end(), values.begin(), bfloat16_value);
    return values;
  }
  std::string failure() { return report_of(cudaStreamSynchronize(first_)); }

  cublasLtHandle_t handle_ = nullptr;
  std::byte* a_ = nullptr;
  std::byte* b_ = nullptr;
  std::byte* d_ = nullptr;
  std::byte* bias_ = nullptr;
  std::byte* workspace_ = nullptr;
};

TEST_F(Product, EqualsTheSum) {
  for (const auto& [in, out] :
       {std::pair{CUDA_R_32F, CUDA_R_32F}, {CUDA_R_16BF, CUDA_R_32F}, {CUDA_R_16BF, CUDA_R_16BF}}) {
    for (const unsigned choice : {0U, 1U, 2U, 3U, 4U, 7U}) {
      const Kind kind{in, out, (choice & 1U) != 0, (choice & 2U) != 0, (choice & 4U) != 0};
      const Call call = prepare(kind);
      EXPECT_EQ(call.found.workspaceSize > 0, !kind.narrow_bias());
      for (const float beta : {0.0F, 1.0F}) {
        fill_all(kind);
        ASSERT_EQ(multiply(call, call.found.algo, beta, kSpace), CUBLAS_STATUS_SUCCESS);
        ASSERT_EQ(failure(), "no fault");
        const std::vector<float> values = result(out);
        for (std::int64_t i = 0; i < kM * kN; ++i) {
          EXPECT_EQ(values[static_cast<std::size_t>(i)], expected(kind, beta, i % kM, i / kM));
        }
      }
      destroy(call);
    }
  }
}

TEST_F(Product, CountsWhatIsAsked) {
  const std::uint64_t before = heuristic_calls();
  destroy(prepare({}));
  EXPECT_EQ(heuristic_calls(), before + 1);
}

TEST_F(Product, AnAlgorithmOfAnotherProblemIsRefused) {
  const Call call = prepare({});
  Kind wider;
  wider.columns = kN + 1;
  const Call other = prepare(wider);
  EXPECT_EQ(multiply(call, other.found.algo, 0.0F, kSpace), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(failure(), HasSubstr("an algorithm that was asked for another problem"));
  destroy(call);
  destroy(other);
}

TEST_F(Product, AnAlgorithmIsAskedForWithTheBiasInPlace) {
  Kind kind;
  kind.with_bias = true;
  Call call = prepare(kind);
  const void* const none = nullptr;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(call.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                           &none, sizeof none),
            CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreference_t preference = nullptr;
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  int found = 0;
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, call.description, call.a, call.b, call.d,
                                           call.d, preference, 1, &call.found, &found),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(failure(), HasSubstr("epilogue BIAS without a bias"));
  EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
  destroy(call);
}

TEST_F(Product, ABiasBehindRoundedPartsIsRefused) {
  Kind kind{CUDA_R_16BF, CUDA_R_16BF};
  kind.with_bias = true;
  Call call = prepare(kind);
  cublasLtMatmulPreference_t any = nullptr;
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&any), CUBLAS_STATUS_SUCCESS);
  const std::uint64_t most = kSpace;
  ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(any, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &most, sizeof most),
            CUBLAS_STATUS_SUCCESS);
  int found = 0;
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, call.description, call.a, call.b, call.d,
                                           call.d, any, 1, &call.found, &found),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(failure(), HasSubstr("rounded to bfloat16 before their bias is added"));
  EXPECT_EQ(cublasLtMatmulPreferenceDestroy(any), CUBLAS_STATUS_SUCCESS);
  destroy(call);
}

TEST_F(Product, ATooSmallWorkspaceIsRefused) {
  const Call call = prepare({});
  EXPECT_EQ(multiply(call, call.found.algo, 0.0F, call.found.workspaceSize - 1),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(failure(), HasSubstr("for an algorithm that needs 240"));
  destroy(call);
}

TEST_F(Product, TheAlignmentPromisedMustHold) {
  Kind kind;
  kind.alignment = 4;
  fill_all(kind);
  const Call call = prepare(kind);
  EXPECT_EQ(multiply(call, call.found.algo, 0.0F, kSpace, 4), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(failure(), "no fault");
  destroy(call);
  const Call strict = prepare({});
  EXPECT_EQ(multiply(strict, strict.found.algo, 0.0F, kSpace, 4), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(failure(), HasSubstr("matrix B at"));
  destroy(strict);
}

TEST_F(Product, MatricesAreBounded) {
  const Call call = prepare({});
  EXPECT_EQ(multiply(call, call.found.algo, 0.0F, kSpace, kSpace - 256), CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(failure(), HasSubstr("illegal address: product reads B, of 1920 bytes"));
  destroy(call);
}

TEST_F(Product, WritesItsWorkspace) {
  fill_all({});
  const Call call = prepare({});
  ASSERT_EQ(cudaMemset(workspace_, 0, kSpace), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(multiply(call, call.found.algo, 0.0F, kSpace), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(failure(), "no fault");
  std::array<unsigned char, 2> kept{};
  ASSERT_EQ(cudaMemcpy(kept.data(), workspace_, 1, cudaMemcpyDeviceToHost), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(&kept[1], workspace_ + call.found.workspaceSize, 1, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(kept[0], 0xff);
  EXPECT_EQ(kept[1], 0);
  destroy(call);
}

TEST_F(Product, WhatIsNotKnownIsRefusedByName) {
  const Call call = prepare({});
  const std::uint32_t epilogue = CUBLASLT_EPILOGUE_GELU;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(call.description, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                           &epilogue, sizeof epilogue),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply(call, call.found.algo, 0.0F, kSpace), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(failure(), HasSubstr("cublasLtMatmul with epilogue 32"));
  destroy(call);
}

TEST_F(Product, AWorkspaceOfTwoStreamsIsARace) {
  fill_all({});
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const Call call = prepare({});
  ASSERT_EQ(multiply(call, call.found.algo, 0.0F, kSpace), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaMemsetAsync(workspace_, 0, kSpace, second_), cudaSuccess);
  EXPECT_THAT(report_of(cudaDeviceSynchronize()),
              HasSubstr("race: product writes its workspace, of byte 0 of the 4096 bytes at"));
  destroy(call);
}

class Pools : public EmulatedDevice {
 protected:
  void SetUp() override {
    EmulatedDevice::SetUp();
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    ASSERT_EQ(cudaMemPoolCreate(&pool_, &properties), cudaSuccess);
  }
  void TearDown() override {
    set_order("lazy");
    EXPECT_EQ(cudaMemPoolDestroy(pool_), cudaSuccess);
    EmulatedDevice::TearDown();
  }
  std::uint64_t attribute(cudaMemPoolAttr which) {
    std::uint64_t value = 0;
    EXPECT_EQ(cudaMemPoolGetAttribute(pool_, which, &value), cudaSuccess);
    return value;
  }
  float* allocate(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocFromPoolAsync(&memory, bytes, pool_, first_), cudaSuccess);
    return static_cast<float*>(memory);
  }

  cudaMemPool_t pool_ = nullptr;
};

TEST_F(Pools, CountWhatIsUsedAndKept) {
  std::uint64_t threshold = ~std::uint64_t{0};
  ASSERT_EQ(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold),
            cudaSuccess);
  float* const memory = allocate(kBytes);
  EXPECT_EQ(attribute(cudaMemPoolAttrUsedMemCurrent), kBytes);
  ASSERT_EQ(cudaFreeAsync(memory, first_), cudaSuccess);
  EXPECT_EQ(attribute(cudaMemPoolAttrUsedMemCurrent), 0U);
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemCurrent), kBytes);
  ASSERT_EQ(cudaMemPoolTrimTo(pool_, 0), cudaSuccess);
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemCurrent), 0U);
  EXPECT_EQ(attribute(cudaMemPoolAttrUsedMemHigh), kBytes);
}

TEST_F(Pools, AFullDeviceSaysSo) {
  std::size_t available = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&memory, available + 1, pool_, first_),
            cudaErrorMemoryAllocation);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
}

/// It is still taken, so the allocation fails at once.
TEST_F(Pools, AnAllocationDoesNotWaitForFrees) {
  constexpr std::size_t kMost = std::size_t{600} << 10;
  ASSERT_EQ(setenv("JFORGE_EMULATED_MIB", "1", 1), 0);
  set_order("lazy");
  float* const memory = allocate(kMost);
  ASSERT_EQ(cudaFreeAsync(memory, first_), cudaSuccess);
  void* more = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&more, kMost, pool_, first_), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(cudaMallocFromPoolAsync(&more, kMost, pool_, first_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(more, first_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  ASSERT_EQ(unsetenv("JFORGE_EMULATED_MIB"), 0);
}

TEST_F(Pools, AFreeWaitsForEveryUse) {
  const auto status = [&](bool with_wait) {
    upload();
    float* const scratch = allocate(kBytes);
    launch_double(x_, scratch, kCount, first_);
    EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
    launch_double(scratch, y_, kCount, second_);
    EXPECT_EQ(cudaEventRecord(event_, second_), cudaSuccess);
    if (with_wait) {
      EXPECT_EQ(cudaStreamWaitEvent(first_, event_, 0), cudaSuccess);
    }
    EXPECT_TRUE(cudaFreeAsync(scratch, first_) == cudaSuccess || !with_wait);
    static_cast<void>(cudaStreamSynchronize(first_));
    const cudaError_t second = cudaStreamSynchronize(second_);
    static_cast<void>(cudaGetLastError());
    return second;
  };
  for (const std::string& order : every_order()) {
    set_order(order);
    EXPECT_EQ(status(true), cudaSuccess) << order;
    EXPECT_EQ(download()[5], 4.0F * values_[5]);
  }
  for (const std::string& order : every_order()) {
    set_order(order);
    EXPECT_NE(status(false), cudaSuccess) << order;
    EXPECT_THAT(report_of(cudaDeviceSynchronize()),
                AnyOf(HasSubstr("which were freed"), HasSubstr("race: free of byte 0 of")));
  }
}

}  // namespace
}  // namespace jforge::test
