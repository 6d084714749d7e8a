#pragma once

/// Non-owning views of dense row-major tensors; a view never changes its shape.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>

#include "runtime/error.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

/// Values are on disk (checkpoints): append, never renumber.
enum class DType : std::uint8_t {
  float32 = 0,
  bfloat16 = 1,
  float16 = 2,
  int32 = 3,
  int64 = 4,
  uint8 = 5,
  float64 = 6,
  int8 = 7
};

enum class Device : std::uint8_t { cpu = 0, cuda = 1 };

[[nodiscard]] constexpr std::size_t dtype_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
      return 2;
    case DType::int64:
    case DType::float64:
      return 8;
    case DType::uint8:
    case DType::int8:
      return 1;
  }
  return 0;
}

[[nodiscard]] constexpr std::size_t storage_bytes(std::int64_t elements, DType dtype) noexcept {
  return static_cast<std::size_t>(elements) * dtype_bytes(dtype);
}
/// "float32", "bfloat16", …
[[nodiscard]] std::string dtype_name(DType dtype);

/// Up to four dimensions.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> dims) {
    for (const std::int64_t dim : dims) {
      dims_[static_cast<std::size_t>(rank_++)] = dim;
    }
  }
  [[nodiscard]] constexpr int rank() const noexcept { return rank_; }
  [[nodiscard]] constexpr std::int64_t operator[](int dim) const noexcept {
    return dims_[static_cast<std::size_t>(dim)];
  }
  /// 1 for rank 0.
  [[nodiscard]] constexpr std::int64_t elements() const noexcept {
    std::int64_t product = 1;
    for (int i = 0; i < rank_; ++i) {
      product *= dims_[static_cast<std::size_t>(i)];
    }
    return product;
  }
  constexpr bool operator==(const Shape&) const = default;
  /// "[2, 3]"
  [[nodiscard]] std::string to_string() const;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

namespace detail {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::uint8;
};

/// `Void` is `void` or `const void`.
template <class Void>
class BasicTensorView {
 public:
  template <class T>
  using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;

  BasicTensorView() = default;
  BasicTensorView(Void* data, DType dtype, Shape shape, Device device = Device::cpu) noexcept
      : data_(data), shape_(shape), dtype_(dtype), device_(device) {}
  /// A host view over typed memory: `TensorView(pointer, {rows, columns})`.
  template <class T>
  requires requires {
    DTypeOf<std::remove_const_t<T>>::value;
  } && std::convertible_to<T*, Void*> BasicTensorView(T* data, Shape shape)
  noexcept : data_(data), shape_(shape), dtype_(DTypeOf<std::remove_const_t<T>>::value) {}
  /// Converts a mutable view to a read-only one.
  template <class Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>)
      BasicTensorView(const BasicTensorView<Other>& other)
  noexcept  // NOLINT(google-explicit-constructor)
      : data_(other.raw()), shape_(other.shape()), dtype_(other.dtype()), device_(other.device()) {}

  [[nodiscard]] Void* raw() const noexcept { return data_; }
  [[nodiscard]] bool empty() const noexcept { return data_ == nullptr; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::int64_t dim(int index) const noexcept { return shape_[index]; }
  [[nodiscard]] std::int64_t elements() const noexcept { return shape_.elements(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return storage_bytes(elements(), dtype_); }
  /// Throws InternalError if T is not the element type.
  template <class T>
  [[nodiscard]] Element<T>* data(
      std::source_location where = std::source_location::current()) const {
    expect(dtype_ == DTypeOf<T>::value, "tensor element type differs from the one asked for",
           where);
    return static_cast<Element<T>*>(data_);
  }
  /// Throws InternalError for a device tensor.
  template <class T>
  [[nodiscard]] std::span<Element<T>> span(
      std::source_location where = std::source_location::current()) const {
    expect(device_ == Device::cpu, "a device tensor has no span on the host", where);
    return {data<T>(where), static_cast<std::size_t>(elements())};
  }
  /// Rows [begin, end) of the first dimension.
  [[nodiscard]] BasicTensorView rows(std::int64_t begin, std::int64_t end) const {
    expect(shape_.rank() >= 1 && 0 <= begin && begin <= end && end <= shape_[0],
           "row range outside the tensor");
    const std::size_t row_bytes =
        shape_[0] == 0 ? 0 : bytes() / static_cast<std::size_t>(shape_[0]);
    using Byte = Element<std::byte>;
    Shape shape;
    switch (shape_.rank()) {
      case 1:
        shape = Shape{end - begin};
        break;
      case 2:
        shape = Shape{end - begin, shape_[1]};
        break;
      case 3:
        shape = Shape{end - begin, shape_[1], shape_[2]};
        break;
      default:
        shape = Shape{end - begin, shape_[1], shape_[2], shape_[3]};
        break;
    }
    return {static_cast<Byte*>(data_) + static_cast<std::size_t>(begin) * row_bytes, dtype_, shape,
            device_};
  }
  [[nodiscard]] BasicTensorView reshaped(Shape shape) const {
    expect(shape.elements() == elements(), "reshape changes the number of elements");
    return {data_, dtype_, shape, device_};
  }

 private:
  Void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::float32;
  Device device_ = Device::cpu;
};
}  // namespace detail

using TensorView = detail::BasicTensorView<void>;
/// A TensorView converts to it.
using ConstTensorView = detail::BasicTensorView<const void>;

/// Throws InternalError "NAME has shape [..], expected [..]" on a mismatch.
void expect_shape(const ConstTensorView& view, const Shape& shape, const char* name,
                  std::source_location where = std::source_location::current());

}  // namespace jforge
