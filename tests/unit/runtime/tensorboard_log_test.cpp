#include "runtime/tensorboard_log.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

/// Payloads, with checked checksums.
std::vector<std::string> records(std::string_view bytes) {
  std::vector<std::string> found;
  while (!bytes.empty()) {
    EXPECT_GE(bytes.size(), 16U);
    const std::uint64_t length = little_endian(bytes.substr(0, 8));
    EXPECT_EQ(little_endian(bytes.substr(8, 4)), masked_crc32c(bytes.substr(0, 8)));
    const std::string_view data = bytes.substr(12, length);
    EXPECT_EQ(little_endian(bytes.substr(12 + length, 4)), masked_crc32c(data));
    found.emplace_back(data);
    bytes.remove_prefix(16 + length);
  }
  return found;
}

TEST(Crc32c, KnownAnswers) {
  // RFC 3720, B.4, and the check value of the algorithm's catalogue.
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
  std::string rising;
  for (int i = 0; i < 32; ++i) {
    rising.push_back(static_cast<char>(i));
  }
  EXPECT_EQ(crc32c(rising), 0x46DD794EU);
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(masked_crc32c(""), 0xA282EAD8U);
}

TEST(TensorboardLog, RecordsAreFramedEventsByteForByte) {
  const test::TemporaryDirectory directory;
  TensorboardLog log(directory.path(), 1700000000, 3, 300);
  EXPECT_TRUE(log.path().filename().string().starts_with("events.out.tfevents.1700000000."));
  EXPECT_TRUE(log.path().filename().string().ends_with(".3"));
  const std::array<Scalar, 2> scalars{{{"a", 1.0}, {"bc", -2.0}}};
  log.append(300, 0.5, scalars);
  const auto found = records(read_file(log.path()));
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].substr(9), std::string("\x1a\x0d") + "brain.Event:2");
  // Step 300, a session log of status START.
  EXPECT_EQ(found[1].substr(9), "\x10\xac\x02\x3a\x02\x08\x01");
  // wall_time 0.5, step 300, summary of two values.
  EXPECT_EQ(found[2], std::string("\x09\0\0\0\0\0\0\xe0\x3f"
                                  "\x10\xac\x02"
                                  "\x2a\x15"
                                  "\x0a\x08\x0a\x01"
                                  "a\x15\0\0\x80\x3f"
                                  "\x0a\x09\x0a\x02"
                                  "bc\x15\0\0\0\xc0",
                                  35));
}

TEST(TensorboardLog, ValuesThatAreNotFiniteStayInTheFile) {
  const test::TemporaryDirectory directory;
  TensorboardLog log(directory.path(), 1, 1, 1);
  const std::array<Scalar, 2> scalars{
      {{"x", std::nan("")}, {"y", std::numeric_limits<double>::infinity()}}};
  log.append(1, 1, scalars);
  EXPECT_EQ(records(read_file(log.path())).size(), 3U);
}

TEST(TensorboardLog, AnExistingFileIsNeverContinued) {
  const test::TemporaryDirectory directory;
  const TensorboardLog log(directory.path(), 1, 1, 1);
  EXPECT_THROW(TensorboardLog(directory.path(), 1, 1, 1), EnvironmentError);
  EXPECT_THROW(TensorboardLog(directory / "absent", 1, 1, 1), EnvironmentError);
}

}  // namespace
}  // namespace jforge
