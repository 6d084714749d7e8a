#pragma once

/// Warp-wide tensor-core instructions (sm_80 and newer). All but the copies need all 32 lanes.
///
/// In an 8×8 matrix of 16-bit elements lane l holds elements 2 (l mod 4) and the next of row l / 4
/// in one register. m16n8k16 takes A [16, 16] as four of them (rows 0–7 and 8–15 of columns 0–7,
/// then of columns 8–15), B [16, 8] as two of Bᵀ (steps 0–7, then 8–15), and C [16, 8] in float32:
/// lane l holds columns 2 (l mod 4) and the next of row l / 4, then of row l / 4 + 8.

#include <cstdint>

namespace jforge {

inline constexpr unsigned kWarpLanes = 32;
inline constexpr unsigned kEveryLane = 0xffffffffU;

struct FragmentA {
  std::uint32_t words[4];
};
struct FragmentB {
  std::uint32_t words[2];
};
struct Accumulator {
  float values[4];
};

[[nodiscard]] __device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Copies 16 bytes past the L1 cache, or zeros if not `valid`; `global` must be aligned anyway.
__device__ __forceinline__ void copy_async(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
/// Waits until at most `kLeft` of this lane's groups are in flight; for others' add a barrier.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft) : "memory");
}

/// Lanes 8 m … 8 m + 7 give the 16-byte aligned row addresses of matrix m.
__device__ __forceinline__ void load_matrices(std::uint32_t address, std::uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
/// Transposes each matrix.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t address,
                                                         std::uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

/// c += a · b: exact products, float32 sums.
__device__ __forceinline__ void multiply_add(Accumulator& c, const FragmentA& a,
                                             const FragmentB& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c.values[0]), "+f"(c.values[1]), "+f"(c.values[2]), "+f"(c.values[3])
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]),
        "r"(b.words[1]));
}

/// To nearest even, the first in the lower half.
[[nodiscard]] __device__ __forceinline__ std::uint32_t pack_bfloat16(float low, float high) {
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
[[nodiscard]] __device__ __forceinline__ float low_bfloat16(std::uint32_t word) {
  return __uint_as_float(word << 16);
}
[[nodiscard]] __device__ __forceinline__ float high_bfloat16(std::uint32_t word) {
  return __uint_as_float(word & 0xffff0000U);
}

/// 2^x to 2 ulps; 0 for −∞ and subnormal results.
[[nodiscard]] __device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace jforge
