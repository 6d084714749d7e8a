#pragma once

/// The safetensors format: u64 little-endian header length, JSON header, data without holes or
/// overlaps. The reader checks every bound before it accesses data.

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

/// A mapped file. Throws DataError naming file and tensor for anything invalid.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  [[nodiscard]] const std::map<std::string, SafetensorsEntry>& entries() const noexcept;
  [[nodiscard]] bool contains(std::string_view name) const;
  /// Copies F32, BF16 or F16 exactly. Throws DataError for another dtype, name or shape.
  void read_float32(std::string_view name, std::span<const std::int64_t> expected_shape,
                    std::span<float> output) const;
  /// Returns a float32 or bfloat16 tensor inside the mapping, valid for this object's lifetime;
  /// empty for other types and unaligned data.
  [[nodiscard]] ConstTensorView mapped(std::string_view name, const Shape& expected_shape) const;

 private:
  struct Mapping;
  [[nodiscard]] const SafetensorsEntry& find(std::string_view name,
                                             std::span<const std::int64_t> expected_shape) const;
  std::unique_ptr<Mapping> mapping_;
};

[[nodiscard]] std::vector<std::int64_t> dims_of(const Shape& shape);

/// Stored as float32 or bfloat16 (rounded to nearest even).
struct SafetensorsTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;
  DType stored = DType::float32;
  /// Used instead of `values`: called on writing, so only one tensor is in memory.
  std::function<std::span<const float>()> read{};
};

/// Durably publishes a file with the tensors in the given order.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace jforge
