#include "data/prompts/record_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>
#include <vector>

#include "runtime/error.h"
#include "runtime/phase_clock.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Records = std::vector<std::pair<std::int64_t, std::string>>;

class RecordStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::temp_directory_path() / ("jforge_stream_" + std::to_string(getpid()) + ".json");
  }
  void TearDown() override { fs::remove(path_); }

  void put(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  void put_gzip(const std::string& bytes, const char* mode = "wb") {
    const gzFile file = gzopen(path_.c_str(), mode);
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
  std::string packed() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  Records all() const {
    RecordStream stream(path_);
    RawRecord record;
    Records records;
    while (stream.next(record)) {
      records.emplace_back(record.line, record.text);
    }
    EXPECT_FALSE(stream.next(record));
    return records;
  }
  std::string failure(const std::string& bytes) {
    put(bytes);
    try {
      static_cast<void>(all());
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path path_;
};

TEST_F(RecordStreamTest, LinesWithMarkCrlfAndBlankLines) {
  const Records expected{{1, R"({"a":1})"}, {3, R"({"b":2})"}, {6, "not json"}};
  const std::string text = "\xEF\xBB\xBF{\"a\":1}\r\n\r\n  {\"b\":2} \n\n \t\nnot json";
  put(text);
  EXPECT_EQ(all(), expected);
  put_gzip(text);
  EXPECT_EQ(all(), expected);
}

TEST_F(RecordStreamTest, ArrayElementsAreFoundWhateverTheyHold) {
  put("\xEF\xBB\xBF \n[ {\"a\": [1, {\"b\": \"]}\\\"[\"}]},\n\"te\\\\\",3 ,true\n,\n[1,\n2]\n]\n "
      "\n");
  const Records expected{{2, R"({"a": [1, {"b": "]}\"["}]})"},
                         {3, R"("te\\")"},
                         {3, "3"},
                         {3, "true"},
                         {5, "[1,\n2]"}};
  EXPECT_EQ(all(), expected);
  put("[]");
  EXPECT_TRUE(all().empty());
}

TEST_F(RecordStreamTest, EmptyFilesHoldNoRecords) {
  for (const char* text : {"", "\n\n", "\xEF\xBB\xBF", " \r\n"}) {
    put(text);
    EXPECT_TRUE(all().empty());
  }
}

TEST_F(RecordStreamTest, LinesLongerThanTheBuffer) {
  const std::string big(3'000'000, 'x');
  put_gzip(big + "\n1\n" + big);
  EXPECT_EQ(all(), (Records{{1, big}, {2, "1"}, {3, big}}));
}

TEST_F(RecordStreamTest, BrokenArraysAreRefusedWithFileAndLine) {
  EXPECT_THAT(failure("[{\"a\":1},\n{\"b\""),
              testing::AllOf(HasSubstr(path_.string() + ":2"), HasSubstr("cut short")));
  EXPECT_THAT(failure("[1,\n\n2"), HasSubstr("cut short"));
  EXPECT_THAT(failure("["), HasSubstr("cut short"));
  EXPECT_THAT(failure("[1,]"), HasSubstr("missing between the commas"));
  EXPECT_THAT(failure("[1 2]"), HasSubstr("comma or ]"));
  EXPECT_THAT(failure("[1]\n[2]"), HasSubstr("behind the end"));
  EXPECT_THAT(failure("[}]"), HasSubstr("do not match"));
  EXPECT_THAT(failure("\xEF\xBBx"), HasSubstr("byte order mark"));
}

TEST_F(RecordStreamTest, DamagedGzipIsRefusedByName) {
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    text += std::to_string(i * 7919) + "\n";
  }
  put_gzip(text);
  const std::string whole = packed();
  EXPECT_THAT(failure(whole.substr(0, whole.size() / 2)), HasSubstr("cannot be read further"));
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 0x55;
  EXPECT_THAT(failure(flipped), HasSubstr(path_.string()));
}

TEST_F(RecordStreamTest, WhatStandsBehindAGzipMemberIsNotLost) {
  put_gzip("1\n");
  const std::string first = packed();
  put_gzip("2\n");
  const std::string second = packed();
  const Records both{{1, "1"}, {2, "2"}};
  put(first + second);
  EXPECT_EQ(all(), both);
  put(first + second + std::string(1000, '\0'));
  EXPECT_EQ(all(), both);
  std::string flipped = second;
  flipped[0] = static_cast<char>(flipped[0] ^ 0x01);
  const auto refused = testing::AllOf(HasSubstr(path_.string()), HasSubstr("behind the gzip data"));
  EXPECT_THAT(failure(first + flipped), refused);
  EXPECT_THAT(failure(first + "2\n"), refused);
  EXPECT_THAT(failure(first + second.substr(0, 1)), refused);
  EXPECT_THAT(failure(first + std::string(3, '\0') + second), refused);
  for (std::size_t size = 2; size < second.size(); ++size) {
    EXPECT_THAT(failure(first + second.substr(0, size)), HasSubstr("cut short")) << size;
  }
}

// The reader takes 256 KiB of the file at a time: the mark of the second member behind, across and
// before that border.
TEST_F(RecordStreamTest, MembersMayBeginAnywhereInTheBuffer) {
  put_gzip("2\n");
  const std::string second = packed();
  for (const std::size_t size : {(1U << 18) - 2, (1U << 18) - 1, 1U << 18}) {
    std::string text(size - 1000, 'x');
    std::string first;
    // Stored text: each byte more is one more in the file.
    while (first.size() != size) {
      text.resize(text.size() + (first.empty() ? 0 : size - first.size()), 'x');
      put_gzip(text + "\n", "wb0");
      first = packed();
      ASSERT_LE(first.size(), size);
    }
    put(first + second);
    EXPECT_EQ(all(), (Records{{1, text}, {2, "2"}})) << size;
  }
}

TEST_F(RecordStreamTest, AParquetFileIsNamedWithTheLineThatTurnsItIntoJsonLines) {
  put(std::string("PAR1\0\1rest", 10));
  try {
    RecordStream stream(path_);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("a Parquet file"),
                               testing::HasSubstr("pandas.read_parquet(\"" + path_.string()),
                               testing::HasSubstr(".jsonl.gz\"")));
  }
}

TEST_F(RecordStreamTest, TextOfTwoBytesALetterIsNamed) {
  for (const char* const mark : {"\xff\xfe", "\xfe\xff"}) {
    put(std::string(mark) + "{");
    try {
      (void)all();
      FAIL();
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("iconv -f UTF-16"));
    }
  }
}

TEST_F(RecordStreamTest, EveryRecordIsASignOfProgress) {
  PhaseClock clock;
  clock.follow_this_thread();
  put("1\n2\n3\n");
  const std::uint64_t before = clock.read().progress;
  (void)all();
  EXPECT_GE(clock.read().progress, before + 3);
}

TEST_F(RecordStreamTest, MissingFilesAndDirectoriesAreRefused) {
  EXPECT_THROW(RecordStream(path_.string() + ".none"), DataError);
  EXPECT_THROW(RecordStream(fs::temp_directory_path()), DataError);
}

}  // namespace
}  // namespace jforge
