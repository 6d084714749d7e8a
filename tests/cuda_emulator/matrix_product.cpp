#include "tests/cuda_emulator/matrix_product.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tests/cuda_emulator/arithmetic.h"

namespace jforge::emulator {

namespace {

float element(const std::byte* data, ElementType type, std::int64_t index) {
  const std::byte* const from = data + static_cast<std::size_t>(index) * bytes_of(type);
  if (type == ElementType::float32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return from_bfloat16(bits);
}

void set_element(std::byte* data, ElementType type, std::int64_t index, double value) {
  std::byte* const to = data + static_cast<std::size_t>(index) * bytes_of(type);
  const auto rounded = static_cast<float>(value);
  if (type == ElementType::float32) {
    std::memcpy(to, &rounded, sizeof rounded);
    return;
  }
  const std::uint16_t bits = to_bfloat16_bits(rounded);
  std::memcpy(to, &bits, sizeof bits);
}

constexpr std::size_t kTileRows = 8;
constexpr std::int64_t kTileColumns = 4;
using Tile = std::array<double, kTileRows>;
using Sums = std::array<Tile, kTileColumns>;

void multiply(const Tile* a, const std::vector<std::array<double, kTileColumns>>& factors,
              Sums& to) {
  Sums sums{};
  for (const auto& factor : factors) {
    for (std::size_t j = 0; j < kTileColumns; ++j) {
      for (std::size_t i = 0; i < kTileRows; ++i) {
        sums[j][i] += (*a)[i] * factor[j];
      }
    }
    ++a;
  }
  to = sums;
}

}  // namespace

std::byte* Matrix::data(DeviceMemory& memory, DeviceMemory::Use use, const char* access) const {
  const std::size_t size = bytes_of(type);
  const std::int64_t count = transposed ? rows : columns;
  const auto column = static_cast<std::size_t>(transposed ? columns : rows) * size;
  const std::size_t apart = static_cast<std::size_t>(step) * size;
  std::byte* const begin =
      memory.at(address, static_cast<std::size_t>(count - 1) * apart + column, access);
  // Gaps between columns belong to others.
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    static_cast<void>(memory.use(use, address + i * apart, column, access));
  }
  return begin;
}

void MatrixProduct::run(DeviceMemory& memory) const {
  if (d.rows == 0 || d.columns == 0) {
    return;
  }
  const auto rows = static_cast<std::size_t>(d.rows);
  const auto depth = static_cast<std::size_t>(a.columns);
  // Tiles of sums stay in registers; A lies as they read it.
  std::vector<Tile> a_tiles((rows + kTileRows - 1) / kTileRows * depth);
  const std::byte* b_data = nullptr;
  if (depth != 0) {
    const std::byte* const a_data = a.data(memory, DeviceMemory::Use::read, "product reads A,");
    b_data = b.data(memory, DeviceMemory::Use::read, "product reads B,");
    for (std::size_t k = 0; k < depth; ++k) {
      for (std::size_t i = 0; i < rows; ++i) {
        a_tiles[i / kTileRows * depth + k][i % kTileRows] = element(
            a_data, a.type, a.offset(static_cast<std::int64_t>(i), static_cast<std::int64_t>(k)));
      }
    }
  }
  const std::byte* const c_data =
      beta == 0.0F ? nullptr : c.data(memory, DeviceMemory::Use::read, "product reads C,");
  std::byte* const d_data = d.data(memory, DeviceMemory::Use::write, "product writes D,");
  std::vector<double> added(rows);
  if (bias) {
    const std::byte* const bias_data =
        bias->data(memory, DeviceMemory::Use::read, "product reads its bias,");
    for (std::size_t i = 0; i < rows; ++i) {
      added[i] = element(bias_data, bias->type, static_cast<std::int64_t>(i));
    }
  }
  std::vector<std::array<double, kTileColumns>> factors(depth);
  Sums sums;
  for (std::int64_t first = 0; first < d.columns; first += kTileColumns) {
    const auto columns = static_cast<std::size_t>(std::min(kTileColumns, d.columns - first));
    for (std::size_t k = 0; k < depth; ++k) {
      for (std::size_t j = 0; j < columns; ++j) {
        factors[k][j] =
            element(b_data, b.type,
                    b.offset(static_cast<std::int64_t>(k), first + static_cast<std::int64_t>(j)));
      }
    }
    for (std::size_t i = 0; i < rows; ++i) {
      if (i % kTileRows == 0) {
        multiply(a_tiles.data() + i / kTileRows * depth, factors, sums);
      }
      const auto row = static_cast<std::int64_t>(i);
      for (std::size_t j = 0; j < columns; ++j) {
        const auto column = first + static_cast<std::int64_t>(j);
        const double old = c_data == nullptr ? 0.0
                                             : static_cast<double>(beta) *
                                                   element(c_data, c.type, c.offset(row, column));
        set_element(d_data, d.type, d.offset(row, column),
                    alpha * sums[j][i % kTileRows] + old + added[i]);
      }
    }
  }
}

}  // namespace jforge::emulator
