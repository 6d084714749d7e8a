#pragma once

/// The safetensors file format: u64 little-endian header length, JSON header, data without holes or
/// overlaps. A reader checks every bound before it touches a byte.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

struct SafetensorsEntry {
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< Byte range in the data section.
  std::uint64_t end = 0;
};

/// Read-only, memory-mapped. Throws DataError naming the file and tensor: truncated, header beyond
/// the file, overlapping or missing ranges, duplicate names, wrong sizes, unknown dtype.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  [[nodiscard]] const std::map<std::string, SafetensorsEntry>& entries() const noexcept;
  [[nodiscard]] bool contains(std::string_view name) const;
  /// Copies a tensor as float32 (F32, BF16 and F16 sources convert exactly). Throws DataError when
  /// the name is missing or the shape differs from `expected_shape`.
  void read_float32(std::string_view name, std::span<const std::int64_t> expected_shape,
                    std::span<float> output) const;
  /// A tensor of float32 or bfloat16 as the file holds it, in host memory for as long as this
  /// object; empty for other types and where the file does not align it. Errors as read_float32().
  [[nodiscard]] ConstTensorView mapped(std::string_view name, const Shape& expected_shape) const;

 private:
  struct Mapping;
  [[nodiscard]] const SafetensorsEntry& find(std::string_view name,
                                             std::span<const std::int64_t> expected_shape) const;
  std::unique_ptr<Mapping> mapping_;
};

/// A shape as the header and read_float32() have it.
[[nodiscard]] std::vector<std::int64_t> dims_of(const Shape& shape);

/// One tensor to write: float32 in memory, stored as `stored` (float32 or bfloat16, round to
/// nearest even).
struct SafetensorsTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;
  DType stored = DType::float32;
  /// Instead of `values`: asked for them when the tensor is written, so that one lies in memory at
  /// a time.
  std::function<std::span<const float>()> read{};
};

/// Publishes a file durably (runtime/durable_file.h). Tensors are laid out in the order given.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace jforge
