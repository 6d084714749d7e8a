#include "checkpoints/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "runtime/read_file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SafetensorsTest : public ::testing::Test {
 protected:
  fs::path write_raw(const std::string& header, const std::string& data) {
    return write_raw(header.size(), header, data);
  }
  fs::path write_raw(std::uint64_t length, const std::string& header, const std::string& data) {
    const fs::path path = directory_ / "raw.safetensors";
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    std::ofstream(path, std::ios::binary) << bytes << header << data;
    return path;
  }
  static std::string refusal(const fs::path& path) {
    return test::message_of<DataError>([&] { const SafetensorsFile file(path); });
  }

  test::TemporaryDirectory scratch_;
  const fs::path directory_ = scratch_.path();
};

TEST_F(SafetensorsTest, WritesAndReadsFloat32Exactly) {
  const std::vector<float> first{
      1.5F,   -0.0F, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(),
      3e-20F, -7.25F};
  const std::vector<float> second{42.0F};
  const fs::path path = directory_ / "a.safetensors";
  const std::vector<SafetensorsTensor> tensors{{"z.first", {2, 3}, first, DType::float32},
                                               {"a.second", {1}, second, DType::float32}};
  write_safetensors(path, tensors, {{"format", "pt"}});

  const SafetensorsFile file(path);
  ASSERT_EQ(file.entries().size(), 2U);
  EXPECT_EQ(file.entries().at("z.first").begin, 0U);  // the caller's order, not the names'
  EXPECT_TRUE(file.contains("a.second"));
  EXPECT_FALSE(file.contains("__metadata__"));
  std::vector<float> read(6);
  file.read_float32("z.first", std::vector<std::int64_t>{2, 3}, read);
  EXPECT_EQ(std::memcmp(read.data(), first.data(), first.size() * sizeof(float)), 0);
}

TEST_F(SafetensorsTest, StoresBfloat16RoundedToNearestEven) {
  const auto bits = [](std::uint32_t value) { return std::bit_cast<float>(value); };
  const std::vector<float> values{bits(0x3F808000U), bits(0x3F818000U), bits(0x3F808001U),
                                  bits(0x3F807FFFU), bits(0x7F7FFFFFU), bits(0x7F800001U),
                                  bits(0xFF800000U), bits(0x00008000U), bits(0x80018000U)};
  const std::vector<std::uint32_t> expected{0x3F800000U, 0x3F820000U, 0x3F810000U,
                                            0x3F800000U, 0x7F800000U, 0x7FC00000U,
                                            0xFF800000U, 0x00000000U, 0x80020000U};
  const fs::path path = directory_ / "b.safetensors";
  const std::vector<SafetensorsTensor> tensors{{"x", {9}, values, DType::bfloat16}};
  write_safetensors(path, tensors);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.entries().at("x").dtype, DType::bfloat16);
  std::vector<float> read(values.size());
  file.read_float32("x", std::vector<std::int64_t>{9}, read);
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(read[i]), expected[i]) << "value " << i;
  }
}

/// IEEE binary16 by definition.
double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST_F(SafetensorsTest, ConvertsEveryFloat16Exactly) {
  std::string data(65536 * 2, '\0');
  for (std::uint32_t value = 0; value < 65536; ++value) {
    const auto bits = static_cast<std::uint16_t>(value);
    std::memcpy(data.data() + value * 2, &bits, 2);
  }
  const SafetensorsFile file(
      write_raw(R"({"x":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})", data));
  std::vector<float> read(65536);
  file.read_float32("x", std::vector<std::int64_t>{65536}, read);
  for (std::uint32_t value = 0; value < 65536; ++value) {
    const auto bits = static_cast<std::uint16_t>(value);
    if ((bits & 0x7C00U) != 0x7C00U) {
      ASSERT_EQ(static_cast<double>(read[value]), half_value(bits)) << value;
      ASSERT_EQ(std::signbit(read[value]), (bits & 0x8000U) != 0) << value;
    } else if ((bits & 0x3FFU) == 0) {
      ASSERT_TRUE(std::isinf(read[value])) << value;
    } else {
      ASSERT_TRUE(std::isnan(read[value])) << value;
    }
  }
}

TEST_F(SafetensorsTest, ReadsPaddedHeadersAndEmptyTensors) {
  const SafetensorsFile file(write_raw(
      R"({"x":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},"y":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}   )",
      std::string(8, '\0')));
  file.read_float32("x", std::vector<std::int64_t>{0, 4}, {});
  std::vector<float> value(1);
  EXPECT_THROW(file.read_float32("y", std::vector<std::int64_t>{}, value), DataError);
}

TEST_F(SafetensorsTest, RefusesMissingTensorAndWrongShapeByName) {
  const SafetensorsFile file(
      write_raw(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, '\0')));
  std::vector<float> values(2);
  const auto message = [&](const char* name, std::vector<std::int64_t> shape) {
    return test::message_of<DataError>([&] { file.read_float32(name, shape, values); });
  };
  EXPECT_THAT(message("absent", {2}), HasSubstr("absent"));
  EXPECT_THAT(message("x", {1, 2}), HasSubstr("shape [2], expected [1, 2]"));
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  const std::vector<float> values(6, 1.0F);
  const fs::path path = directory_ / "whole.safetensors";
  const std::vector<SafetensorsTensor> tensors{{"x", {6}, values, DType::float32}};
  write_safetensors(path, tensors);
  const std::string bytes = read_file(path);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const fs::path cut = directory_ / "cut.safetensors";
    std::ofstream(cut, std::ios::binary) << bytes.substr(0, length);
    ASSERT_THAT(refusal(cut), HasSubstr("cut.safetensors")) << length;
  }
  EXPECT_THAT(refusal(directory_ / "absent.safetensors"), HasSubstr("absent.safetensors"));
  EXPECT_THAT(refusal(directory_), HasSubstr("regular file"));
}

TEST_F(SafetensorsTest, RefusesHeaderLengthsOutOfBounds) {
  EXPECT_THAT(refusal(write_raw(1000, "{}", "")), HasSubstr("header claims 1000"));
  EXPECT_THAT(refusal(write_raw(std::numeric_limits<std::uint64_t>::max(), "{}", "")),
              HasSubstr("header claims"));
  const fs::path path = write_raw(std::uint64_t{200} << 20, "{}", "");
  fs::resize_file(path, std::uint64_t{300} << 20);  // sparse: the length itself must be refused
  EXPECT_THAT(refusal(path), HasSubstr("limit"));
}

TEST_F(SafetensorsTest, RefusesDamagedHeaders) {
  const std::string eight(8, '\0');
  const std::string four_of_x = R"("x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const auto entry = [](const std::string& fields) { return R"({"x":{)" + fields + "}}"; };
  struct Case {
    std::string header;
    std::string data;
    std::string expected;
  };
  const std::vector<Case> cases{
      {"", "", "JSON object"},
      {"[]", "", "JSON object"},
      {R"({"x":)", "", "not valid JSON"},
      {"{\"x\xff\":1}", "", "not valid JSON"},
      {R"({"x":[[[[[[[[1]]]]]]]]})", "", "nested"},
      {"{" + four_of_x + "," + four_of_x + "}", eight.substr(4), "twice"},
      {entry(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), eight.substr(4),
       "twice"},
      {R"({"x":3})", "", "exactly dtype"},
      {entry(R"("dtype":"F32","shape":[1])"), "", "exactly dtype"},
      {entry(R"("dtype":"F9","shape":[1],"data_offsets":[0,4])"), eight.substr(4), "F9"},
      {entry(R"("dtype":7,"shape":[1],"data_offsets":[0,4])"), eight.substr(4),
       "dtype 7 is not read"},
      {entry(R"("dtype":"F64","shape":[1],"data_offsets":[0,8])"), eight,
       "dtype \"F64\" is not read; F32, F16 and BF16 are"},
      {entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), eight.substr(4), "shape"},
      {entry(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), eight.substr(4), "shape"},
      {entry(R"("dtype":"F32","shape":4,"data_offsets":[0,4])"), eight.substr(4), "shape"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), eight, "data_offsets"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), eight, "data_offsets"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), eight, "data_offsets"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), eight.substr(4), "does not fit"},
      {entry(R"("dtype":"BF16","shape":[2],"data_offsets":[0,8])"), eight, "does not fit"},
      {entry(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])"), "",
       "does not fit"},
      {entry(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), eight, "truncated"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), eight, "hole"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), eight, "belong to none"},
      {"{" + four_of_x + R"(,"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       eight.substr(4), "overlapping"},
      {"{" + four_of_x + R"(,"y":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})", eight,
       "overlapping"},
      {R"({"__metadata__":{"a":1}})", "", "__metadata__"},
  };
  for (const Case& damaged : cases) {
    EXPECT_THAT(refusal(write_raw(damaged.header, damaged.data)), HasSubstr(damaged.expected))
        << damaged.header;
  }
}

TEST_F(SafetensorsTest, WritesTensorsOfMoreThanOneChunk) {
  std::vector<float> values((std::size_t{1} << 18) + 3);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 251) - 120.0F;
  }
  const auto count = static_cast<std::int64_t>(values.size());
  const fs::path path = directory_ / "chunks.safetensors";
  write_safetensors(path, std::vector<SafetensorsTensor>{{"f", {count}, values, DType::float32},
                                                         {"h", {count}, values, DType::bfloat16}});
  const SafetensorsFile file(path);
  for (const char* name : {"f", "h"}) {
    std::vector<float> back(values.size());
    file.read_float32(name, std::vector{count}, back);
    EXPECT_EQ(back, values) << name;
  }
}

TEST_F(SafetensorsTest, AFullDiskIsAnEnvironmentErrorAndLeavesNothing) {
  const std::vector<float> values(std::size_t{1} << 12);
  {
    const test::FileSizeLimit limit(8 << 10);
    EXPECT_THROW(
        write_safetensors(directory_ / "full.safetensors",
                          std::vector<SafetensorsTensor>{{"x", {1 << 12}, values, DType::float32}}),
        EnvironmentError);
  }
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(SafetensorsTest, WritingRefusesWhatItCannotStore) {
  const std::vector<float> values(4);
  const fs::path path = directory_ / "never.safetensors";
  const auto write = [&](std::vector<SafetensorsTensor> tensors) {
    write_safetensors(path, tensors);
  };
  EXPECT_THROW(write({{"x", {3}, values, DType::float32}}), InternalError);
  EXPECT_THROW(write({{"x", {4}, values, DType::int32}}), InternalError);
  EXPECT_THROW(write({{"x", {4}, values, DType::float32}, {"x", {4}, values, DType::float32}}),
               InternalError);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_THROW(write_safetensors(directory_ / "no" / "such" / "x.safetensors", {}),
               EnvironmentError);
}

}  // namespace
}  // namespace jforge
