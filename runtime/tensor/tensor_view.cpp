#include "runtime/tensor/tensor_view.h"

namespace jforge {

std::string dtype_name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
    case DType::float64:
      return "float64";
    case DType::int8:
      return "int8";
  }
  return "unknown";
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string((*this)[i]);
  }
  return text + "]";
}

void expect_shape(const ConstTensorView& view, const Shape& shape, const char* name,
                  std::source_location where) {
  if (view.shape() != shape) [[unlikely]] {
    expect(false,
           std::string(name) + " has shape " + view.shape().to_string() + ", expected " +
               shape.to_string(),
           where);
  }
}

}  // namespace jforge
