#include "model/kernels/cpu/cpu_kernel_set.h"

#include <omp.h>

#include <cstdlib>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"

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

bool instruction_set_available(InstructionSet set) noexcept {
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (set == InstructionSet::avx2) {
    return avx2;
  }
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  return set == InstructionSet::avx512 ? avx512
                                       : avx512 && __builtin_cpu_supports("avx512bf16") != 0;
}

namespace {

struct Choice {
  const VectorKernels& kernels;
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
  }
  return {kAvx2Kernels,
          "the processor lacks AVX2 or FMA, which the CPU kernels need: run on an x86-64-v3 "
          "machine"};
}

}  // namespace

std::unique_ptr<KernelSet> make_cpu_kernel_set(InstructionSet set) {
  const Choice choice = choice_of(set);
  if (!instruction_set_available(set)) {
    throw EnvironmentError(choice.lacking);
  }
  return std::make_unique<CpuKernelSet>(choice.kernels);
}

std::unique_ptr<KernelSet> make_cpu_kernel_set() {
  for (const InstructionSet set : {InstructionSet::avx512_bf16, InstructionSet::avx512}) {
    if (instruction_set_available(set)) {
      return make_cpu_kernel_set(set);
    }
  }
  return make_cpu_kernel_set(InstructionSet::avx2);
}

}  // namespace jforge
