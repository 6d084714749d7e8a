#include "model/kernels/cpu/cpu_kernel_set.h"

#include <cpuid.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/vector_kernels_internal.h"

namespace jforge {

float* Scratch::at_least(std::int64_t count) {
  if (count > size_) {
    data_.reset();
    size_ = 0;
    const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(float) + 63) / 64 * 64;
    data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (data_ == nullptr) {
      throw EnvironmentError(
          "not enough memory for " + std::to_string(bytes) +
          " bytes of kernel scratch: lower train.tokens_per_rank or generate.batch_prompts");
    }
    size_ = count;
  }
  return data_.get();
}

void Scratch::Free::operator()(float* p) const noexcept { std::free(p); }

void CpuKernelSet::reserve_threads(std::int64_t floats) {
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  if (thread_scratch_.size() < threads) {
    thread_scratch_.resize(threads);
  }
  for (Scratch& scratch : thread_scratch_) {
    scratch.at_least(floats);
  }
}

void CpuKernelSet::release_work_space() {
  thread_scratch_.clear();
  for (Scratch* scratch :
       {&product_sums_, &rounded_input_, &widened_, &attention_keys_, &attention_values_,
        &key_gradients_, &value_gradients_, &loss_hidden_, &loss_logits_, &loss_gradient_}) {
    *scratch = Scratch();
  }
}

float* CpuKernelSet::thread_floats(std::int64_t floats) {
  return thread_scratch_[static_cast<std::size_t>(omp_get_thread_num())].at_least(floats);
}

namespace {

class HostPlan final : public PackedPlan {
 public:
  using PackedPlan::PackedPlan;

 private:
  void place(const PackedBatch& /*batch*/, PlannedRows& /*rows*/) override {}
};

class HostDecodePlan final : public DecodePlan {
 public:
  HostDecodePlan(const AttentionHeads& heads, DType cache, std::int64_t max_rows)
      : DecodePlan(heads, cache, max_rows) {
    expect(cache == DType::float32, "the CPU keeps keys and values as float32");
  }

 private:
  void place(PlannedRows& /*rows*/, PlannedRows& /*kept*/) override {}
};

}  // namespace

std::unique_ptr<DecodePlan> CpuKernelSet::make_decode_plan(const AttentionHeads& heads, DType cache,
                                                           std::int64_t max_rows,
                                                           MemoryAccount& /*account*/) {
  return std::make_unique<HostDecodePlan>(heads, cache, max_rows);
}

std::unique_ptr<PackedPlan> CpuKernelSet::make_plan(const AttentionHeads& heads,
                                                    MemoryAccount& /*account*/) {
  return std::make_unique<HostPlan>(heads);
}

namespace {

bool amx_available() noexcept {
  // Linux gives a process the tiles' registers only if it asks (arch_prctl(2)).
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  // CPUID leaf 7, EDX; clang 14's __builtin_cpu_supports() does not know them.
  constexpr unsigned kBfloat16 = 1U << 22U;
  constexpr unsigned kTiles = 1U << 24U;
  constexpr unsigned kInt8 = 1U << 25U;
  static const bool available = [] {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    constexpr unsigned kAll = kBfloat16 | kTiles | kInt8;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAll) == kAll &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return available;
}

}  // namespace

bool instruction_set_available(InstructionSet set) noexcept {
  switch (set) {
    case InstructionSet::avx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case InstructionSet::avx512:
      return instruction_set_available(InstructionSet::avx2) &&
             __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0;
    case InstructionSet::avx512_bf16:
      return instruction_set_available(InstructionSet::avx512) &&
             __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
    case InstructionSet::amx_bf16:
      return instruction_set_available(InstructionSet::avx512_bf16) && amx_available();
  }
  return false;
}

namespace {

struct Choice {
  VectorKernels kernels;
  const char* lacking;  ///< Error message.
};

Choice choice_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx2:
      break;
    case InstructionSet::avx512:
      return {kAvx512Kernels, "the processor lacks AVX-512 F, VL, DQ or BW: use the AVX2 kernels"};
    case InstructionSet::avx512_bf16:
      return {kAvx512Bf16Kernels, "the processor lacks AVX-512 BF16: use the AVX-512 kernels"};
    case InstructionSet::amx_bf16: {
      VectorKernels kernels = kAvx512Bf16Kernels;
      kernels.group_product = amx_group_product;
      kernels.quantise = amx_quantise;
      kernels.int8_product = amx_int8_product;
      return {kernels, "the processor lacks AMX: use the AVX-512 kernels"};
    }
  }
  return {kAvx2Kernels,
          "the processor lacks AVX2 or FMA, which the CPU kernels need: run on an x86-64-v3 "
          "machine"};
}

/// In ascending order.
constexpr std::pair<InstructionSet, std::string_view> kSets[] = {
    {InstructionSet::avx2, "avx2"},
    {InstructionSet::avx512, "avx512"},
    {InstructionSet::avx512_bf16, "avx512_bf16"},
    {InstructionSet::amx_bf16, "amx_bf16"}};

/// Returns the widest set that the processor has and JFORGE_CPU allows.
InstructionSet find_widest_set() {
  const char* const named = std::getenv("JFORGE_CPU");
  const std::string_view limit = named == nullptr ? kSets[3].second : named;
  InstructionSet widest = InstructionSet::avx2;
  for (const auto& [set, name] : kSets) {
    if (instruction_set_available(set)) {
      widest = set;
    }
    if (name == limit) {
      return widest;
    }
  }
  throw EnvironmentError("the environment has JFORGE_CPU = " + std::string(limit) +
                         ": give avx2, avx512, avx512_bf16 or amx_bf16, or unset it");
}

InstructionSet widest_set() {
  static const InstructionSet widest = find_widest_set();
  return widest;
}

/// Returns the time of a training product that one thread computes in its cache, in seconds: that
/// of the fastest of some.
double product_seconds(const VectorKernels& vector, BFloat16Sums sums, DType type) {
  constexpr std::int64_t kRows = 24;
  constexpr std::int64_t kColumns = 64;
  constexpr std::int64_t kDepth = 512;
  CpuKernelSet kernels(vector, sums);
  const std::vector<float> operand(kColumns * kDepth);  // Half of it as bfloat16.
  std::vector<float> result(kRows * kColumns);
  const auto view = [&](std::int64_t rows) {
    return type == DType::float32
               ? ConstTensorView(operand.data(), Shape{rows, kDepth})
               : ConstTensorView(reinterpret_cast<const BFloat16*>(operand.data()),
                                 Shape{rows, kDepth});
  };
  double fastest = std::numeric_limits<double>::max();
  for (int run = 0; run < 12; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    kernels.linear(view(kRows), view(kColumns), {},
                   TensorView(result.data(), Shape{kRows, kColumns}), false);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    fastest = std::min(fastest, time.count());
  }
  return fastest;
}

/// The widest set with the faster of its products by pairs: two FMA can be faster than the
/// instruction for bfloat16.
VectorKernels fastest_kernels() {
  const InstructionSet set = widest_set();
  VectorKernels kernels = choice_of(set).kernels;
  const auto seconds = [](const VectorKernels& vector) {
    return product_seconds(vector, BFloat16Sums::pairs, DType::bfloat16);
  };
  if (set >= InstructionSet::avx512_bf16 && seconds(kAvx512Kernels) < seconds(kernels)) {
    kernels.pair_product = kAvx512Kernels.pair_product;
  }
  return kernels;
}

/// The same in all of a process.
const VectorKernels& machine_kernels() {
  static const VectorKernels kernels = fastest_kernels();
  return kernels;
}

}  // namespace

BFloat16Sums fastest_bfloat16_sums() {
  return widest_set() == InstructionSet::amx_bf16 ? BFloat16Sums::groups : BFloat16Sums::pairs;
}

double bfloat16_against_float32(BFloat16Sums sums) {
  const VectorKernels& kernels = machine_kernels();
  return product_seconds(kernels, sums, DType::float32) /
         product_seconds(kernels, sums, DType::bfloat16);
}

std::unique_ptr<KernelSet> make_cpu_kernel_set(InstructionSet set, BFloat16Sums sums) {
  const Choice choice = choice_of(set);
  if (!instruction_set_available(set)) {
    throw EnvironmentError(choice.lacking);
  }
  return std::make_unique<CpuKernelSet>(choice.kernels, sums);
}

std::unique_ptr<KernelSet> make_cpu_kernel_set(BFloat16Sums sums) {
  if (!instruction_set_available(InstructionSet::avx2)) {
    return make_cpu_kernel_set(InstructionSet::avx2, sums);
  }
  return std::make_unique<CpuKernelSet>(machine_kernels(), sums);
}

}  // namespace jforge
