#include "runtime/tensor/tensor_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

TEST(Shape, ElementsEqualityAndText) {
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ(Shape({2, 3, 4}).elements(), 24);
  EXPECT_EQ(Shape({5, 0}).elements(), 0);
  EXPECT_EQ(Shape({1 << 20, 1 << 20}).elements(), std::int64_t{1} << 40);
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2}), Shape({2, 0}));
  EXPECT_EQ(Shape({2, 3}).to_string(), "[2, 3]");
  EXPECT_EQ(Shape{}.to_string(), "[]");
}

TEST(DTypes, BytesAndNames) {
  EXPECT_EQ(dtype_bytes(DType::float32), 4U);
  EXPECT_EQ(dtype_bytes(DType::bfloat16), 2U);
  EXPECT_EQ(dtype_bytes(DType::float16), 2U);
  EXPECT_EQ(dtype_bytes(DType::int32), 4U);
  EXPECT_EQ(dtype_bytes(DType::int64), 8U);
  EXPECT_EQ(dtype_bytes(DType::uint8), 1U);
  EXPECT_EQ(dtype_bytes(DType::float64), 8U);
  EXPECT_EQ(dtype_name(DType::bfloat16), "bfloat16");
  EXPECT_EQ(static_cast<int>(DType::float64), 6);  // Stored on disk: the numbers must never change.
  EXPECT_EQ(static_cast<int>(DType::uint8), 5);
  EXPECT_EQ(static_cast<int>(DType::int64), 4);
}

TEST(BFloat16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(to_float(to_bfloat16(1.0F)), 1.0F);
  EXPECT_EQ(to_bfloat16(1.0F + 0x1p-8F).bits, to_bfloat16(1.0F).bits);  // a tie: down to even
  EXPECT_EQ(to_float(to_bfloat16(1.0F + 0x3p-8F)), 1.0F + 0x1p-6F);     // a tie: up to even
  EXPECT_EQ(to_float(to_bfloat16(1.0F + 0x1p-8F + 0x1p-20F)), 1.0F + 0x1p-7F);
  EXPECT_TRUE(std::isinf(to_float(to_bfloat16(std::numeric_limits<float>::max()))));
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7F800001U)))));
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    if (!std::isnan(to_float(value))) {
      EXPECT_EQ(to_bfloat16(to_float(value)), value);
    }
  }
}

class TensorViewTest : public ::testing::Test {
 protected:
  TensorViewTest() : values_(24) { std::iota(values_.begin(), values_.end(), 0.0F); }
  std::vector<float> values_;
};

TEST_F(TensorViewTest, TypedAccess) {
  const TensorView view(values_.data(), {4, 6});
  EXPECT_EQ(view.dtype(), DType::float32);
  EXPECT_EQ(view.bytes(), 96U);
  EXPECT_EQ(view.dim(1), 6);
  EXPECT_EQ(view.data<float>()[7], 7.0F);
  EXPECT_EQ(view.span<float>().size(), 24U);
  EXPECT_THROW((void)view.data<std::int32_t>(), InternalError);
  view.data<float>()[7] = -1.0F;
  EXPECT_EQ(values_[7], -1.0F);
}

TEST_F(TensorViewTest, AReadOnlyViewSharesTheMemory) {
  const TensorView view(values_.data(), {4, 6});
  const ConstTensorView read = view;
  EXPECT_EQ(read.raw(), view.raw());
  EXPECT_EQ(read.shape(), view.shape());
  static_assert(std::is_same_v<decltype(read.data<float>()), const float*>);
  static_assert(!std::is_convertible_v<ConstTensorView, TensorView>);
}

TEST_F(TensorViewTest, RowsOfEveryRank) {
  const TensorView matrix(values_.data(), {4, 6});
  const TensorView rows = matrix.rows(1, 3);
  EXPECT_EQ(rows.shape(), Shape({2, 6}));
  EXPECT_EQ(rows.data<float>()[0], 6.0F);
  EXPECT_EQ(TensorView(values_.data(), {24}).rows(5, 7).data<float>()[1], 6.0F);
  EXPECT_EQ(TensorView(values_.data(), {2, 3, 4}).rows(1, 2).data<float>()[0], 12.0F);
  EXPECT_EQ(TensorView(values_.data(), {2, 3, 2, 2}).rows(1, 2).shape(), Shape({1, 3, 2, 2}));
  EXPECT_EQ(matrix.rows(4, 4).elements(), 0);
  EXPECT_THROW((void)matrix.rows(3, 5), InternalError);
  EXPECT_THROW((void)matrix.rows(-1, 2), InternalError);
  EXPECT_THROW((void)matrix.rows(3, 2), InternalError);
}

TEST_F(TensorViewTest, ReshapeKeepsTheElements) {
  const TensorView view(values_.data(), {4, 6});
  EXPECT_EQ(view.reshaped({2, 12}).data<float>()[13], 13.0F);
  EXPECT_THROW((void)view.reshaped({5, 5}), InternalError);
}

TEST_F(TensorViewTest, ExpectShapeNamesTensorAndShapes) {
  const TensorView view(values_.data(), {4, 6});
  EXPECT_NO_THROW(expect_shape(view, {4, 6}, "weights"));
  const std::string message = test::message_of<InternalError>([&] {
    expect_shape(view, {6, 4}, "weights");
  });
  EXPECT_THAT(message, ::testing::HasSubstr("weights has shape [4, 6], expected [6, 4]"));
  EXPECT_THAT(message, ::testing::HasSubstr("tensor_view_test.cpp"));
}

}  // namespace
}  // namespace jforge
