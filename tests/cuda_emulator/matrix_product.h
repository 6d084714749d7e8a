#pragma once

#include <cstdint>
#include <optional>

#include "tests/cuda_emulator/device_memory.h"

namespace jforge::emulator {

enum class ElementType : std::uint8_t { float32, bfloat16 };
[[nodiscard]] constexpr std::size_t bytes_of(ElementType type) {
  return type == ElementType::float32 ? 4 : 2;
}

/// Column-major, as in cuBLAS.
struct Matrix {
  std::uint64_t address = 0;
  ElementType type = ElementType::float32;
  bool transposed = false;
  std::int64_t rows = 0;     ///< of op(matrix)
  std::int64_t columns = 0;  ///< of op(matrix)
  std::int64_t step = 0;     ///< between columns in memory

  /// Throws Fault unless all of it is device memory.
  [[nodiscard]] std::byte* data(DeviceMemory& memory, DeviceMemory::Use use,
                                const char* access) const;
  [[nodiscard]] std::int64_t offset(std::int64_t row, std::int64_t column) const {
    return transposed ? row * step + column : column * step + row;
  }
};

/// d [m, n] = round(alpha · a [m, k] · b [k, n] + beta · c [m, n] + bias [m]), sums in double; c is
/// not read if beta is 0.
struct MatrixProduct {
  Matrix a;
  Matrix b;
  Matrix c;
  Matrix d;
  float alpha = 1;
  float beta = 0;
  std::optional<Matrix> bias;  ///< [m, 1]

  void run(DeviceMemory& memory) const;
};

}  // namespace jforge::emulator
