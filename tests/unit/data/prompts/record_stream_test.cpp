#include "data/prompts/record_stream.h"

#include <bzlib.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using Records = std::vector<std::pair<std::int64_t, std::string>>;

class RecordStreamTest : public testing::Test {
 protected:
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
    return test::message_of<DataError>([&] { return all(); });
  }

  test::TemporaryDirectory directory_;
  fs::path path_ = directory_ / "records.json";
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
  EXPECT_THAT(failure("[1]\n[2]"), HasSubstr("after the end"));
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
  const auto refused = testing::AllOf(HasSubstr(path_.string()), HasSubstr("after the gzip data"));
  EXPECT_THAT(failure(first + flipped), refused);
  EXPECT_THAT(failure(first + "2\n"), refused);
  EXPECT_THAT(failure(first + second.substr(0, 1)), refused);
  EXPECT_THAT(failure(first + std::string(3, '\0') + second), refused);
  for (std::size_t size = 2; size < second.size(); ++size) {
    EXPECT_THAT(failure(first + second.substr(0, size)), HasSubstr("cut short")) << size;
  }
}

// The second member's mark is after, across and before the end of a 256 KiB buffer.
TEST_F(RecordStreamTest, MembersMayBeginAnywhereInTheBuffer) {
  put_gzip("2\n");
  const std::string second = packed();
  for (const std::size_t size : {(1U << 18) - 2, (1U << 18) - 1, 1U << 18}) {
    std::string text(size - 1000, 'x');
    std::string first;
    while (first.size() != size) {  // a byte more is a byte more in the file
      text.resize(text.size() + (first.empty() ? 0 : size - first.size()), 'x');
      put_gzip(text + "\n", "wb0");
      first = packed();
      ASSERT_LE(first.size(), size);
    }
    put(first + second);
    EXPECT_EQ(all(), (Records{{1, text}, {2, "2"}})) << size;
  }
}

std::string bzip2_of(const std::string& text) {
  std::string packed(text.size() + 1000, '\0');
  auto size = static_cast<unsigned>(packed.size());
  EXPECT_EQ(BZ2_bzBuffToBuffCompress(packed.data(), &size, const_cast<char*>(text.data()),
                                     static_cast<unsigned>(text.size()), 1, 0, 0),
            BZ_OK);
  return packed.substr(0, size);
}

std::string zstd_of(const std::string& text) {
  const std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(),
                                                                        ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(
      ZSTD_compress2(context.get(), packed.data(), packed.size(), text.data(), text.size()));
  return packed;
}

TEST_F(RecordStreamTest, Bzip2AndZstandardAreUnpackedAndTheirDamageIsFound) {
  using Pack = std::string (*)(const std::string&);
  for (const auto& [name, pack] : {std::pair<const char*, Pack>("bzip2", bzip2_of),
                                   std::pair<const char*, Pack>("Zstandard", zstd_of)}) {
    SCOPED_TRACE(name);
    std::string text;  // more than the buffers hold
    std::uint32_t state = 1;
    for (int i = 0; i < 120'000; ++i) {
      state = state * 1664525 + 1013904223;
      text += std::to_string(state) + "\n";
    }
    const std::string whole = pack(text);
    put(whole + pack("") + pack("last") + std::string(100, '\0'));
    const Records records = all();
    ASSERT_EQ(records.size(), 120'001U);
    EXPECT_EQ(records[119'999].second, std::to_string(state));
    EXPECT_EQ(records.back().second, "last");
    const std::string small = pack("1\n");
    for (std::size_t size = 5; size < small.size(); ++size) {
      EXPECT_THAT(failure(small.substr(0, size)), HasSubstr("cut short")) << size;
    }
    EXPECT_THAT(failure(whole.substr(0, whole.size() / 2)),
                AllOf(HasSubstr(path_.string()), HasSubstr("cut short"), HasSubstr("after line")));
    std::string flipped = whole;
    flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 0x55);
    EXPECT_THAT(failure(flipped), AllOf(HasSubstr(path_.string()), HasSubstr("is damaged")));
    EXPECT_THAT(failure(small + "2\n"), HasSubstr(std::string("after the ") + name));
  }
}

TEST_F(RecordStreamTest, AZstandardFrameThatAsksForTooMuchMemoryIsRefused) {
  // A frame with a window of 2 GiB.
  EXPECT_THAT(failure(std::string("\x28\xB5\x2F\xFD\x00\xA8", 6) + std::string(100, '\1')),
              HasSubstr("too much memory"));
  const std::string skipped("\x50\x2A\x4D\x18\x04\0\0\0abcd", 12);
  put(skipped + zstd_of("1"));
  EXPECT_EQ(all(), (Records{{1, "1"}}));
}

class CsvStreamTest : public RecordStreamTest {
 protected:
  void SetUp() override {
    RecordStreamTest::SetUp();
    path_.replace_extension(".csv");
  }
};

// Expected: Python's csv.DictReader.
TEST_F(CsvStreamTest, RowsAreObjectsAsPythonReadsThem) {
  const std::string text =
      "\xEF\xBB\xBF"
      "a,\"b\"\"\",c\r\n\"x, \"\"y\"\"\",plain,\"two\r\nlines\"\r\n1,,\"\"\n\n q \" "
      "z,\"a\"b\"c, \"d\"\rlast,\xC3\xA9,\"\x01\t\\\"";
  const Records expected{
      {2, R"({"a":"x, \"y\"","b\"":"plain","c":"two\u000d\u000alines"})"},
      {4, R"({"a":"1","b\"":"","c":""})"},
      {6, R"({"a":" q \" z","b\"":"ab\"c","c":" \"d\""})"},
      {6, "{\"a\":\"last\",\"b\\\"\":\"\xC3\xA9\",\"c\":\"\\u0001\\u0009\\\\\"}"}};
  put(text);
  EXPECT_EQ(all(), expected);
  path_ += ".gz";
  put_gzip(text);
  EXPECT_EQ(all(), expected);
  fs::remove(path_);
  path_.replace_extension();
  put("a\n\n\"\"\n");
  EXPECT_EQ(all(), (Records{{3, R"({"a":""})"}}));
  for (const char* const nothing : {"", "a,b", "a,b\n\n"}) {
    put(nothing);
    EXPECT_TRUE(all().empty());
  }
}

TEST_F(CsvStreamTest, BrokenFilesAreRefusedAndBrokenRowsMarked) {
  EXPECT_THAT(failure("a,b\n1,2\n3,\"4\n5,6\n"),
              AllOf(HasSubstr(path_.string()), HasSubstr("begins in line 3 does not end")));
  EXPECT_THAT(failure("a,b,a\n1,2,3\n"), HasSubstr("two columns 'a'"));
  put("a,b\n1\n1,2\n1,2,3,4\n");
  RecordStream stream(path_);
  RawRecord record;
  ASSERT_TRUE(stream.next(record));
  EXPECT_EQ(record.unreadable, "the row has 1 fields, the header 2");
  ASSERT_TRUE(stream.next(record));
  EXPECT_EQ(record.unreadable, "");
  ASSERT_TRUE(stream.next(record));
  EXPECT_EQ(record.line, 4);
  EXPECT_EQ(record.unreadable, "the row has 4 fields, the header 2");
  EXPECT_FALSE(stream.next(record));
}

/// A fake pyarrow whose ParquetFile("…").iter_batches() returns `batches`.
class ParquetStreamTest : public RecordStreamTest {
 protected:
  void SetUp() override {
    RecordStreamTest::SetUp();
    put(std::string("PAR1\0\1rest", 10));
  }
  void TearDown() override {
    unsetenv("PYTHONPATH");
    RecordStreamTest::TearDown();
  }
  void put_pyarrow(const std::string& package, const std::string& batches) {
    fs::create_directory(modules_.path() / "pyarrow");
    std::ofstream(modules_.path() / "pyarrow" / "__init__.py") << package;
    std::ofstream(modules_.path() / "pyarrow" / "parquet.py")
        << "import os\n"
           "class Batch(list):\n"
           "    to_pylist = list.copy\n"
           "class ParquetFile:\n"
           "    def __init__(self, path): self.path = path\n"
           "    def iter_batches(self, batch_size):\n        "
        << batches << "\n";
    setenv("PYTHONPATH", modules_.path().c_str(), 1);
  }
  template <class Kind>
  std::string refusal() const {
    return test::message_of<Kind>([&] { return all(); });
  }

  test::TemporaryDirectory modules_;
};

TEST_F(ParquetStreamTest, RowsComeThroughAPipe) {
  put_pyarrow(
      "",
      R"(yield from (Batch([{"a": "\n\u00e9", "b": [1, float("nan")]}]), Batch([{"a": b"x"}])))");
  EXPECT_EQ(all(),
            (Records{{1, "{\"a\": \"\\n\xC3\xA9\", \"b\": [1, NaN]}"}, {2, R"({"a": "x"})"}}));
}

TEST_F(ParquetStreamTest, WhatGoesWrongIsSaidInOneLine) {
  put_pyarrow("", R"(yield Batch([{"a": 1}]); raise ValueError("bad\npage"))");
  EXPECT_EQ(refusal<DataError>(), path_.string() + ": cannot be read behind row 1: bad page");
  put_pyarrow("", "os.kill(os.getpid(), 9); yield");
  EXPECT_THAT(refusal<EnvironmentError>(), HasSubstr("killed by signal 9"));
  put_pyarrow("raise ImportError", "");
  EXPECT_THAT(refusal<EnvironmentError>(),
              AllOf(HasSubstr(path_.string()), HasSubstr("python3 -m pip install pyarrow")));
  const std::string before = std::getenv("PATH");
  setenv("PATH", modules_.path().c_str(), 1);
  const std::string missing = refusal<EnvironmentError>();
  setenv("PATH", before.c_str(), 1);
  EXPECT_THAT(missing, HasSubstr("pip install pyarrow"));
}

TEST_F(ParquetStreamTest, AStreamMayEndBeforeItsFile) {
  put_pyarrow("", "while True: yield Batch([{}])");
  RecordStream stream(path_);
  RawRecord record;
  EXPECT_TRUE(stream.next(record));
}

TEST_F(ParquetStreamTest, WholeAndCutFilesOfPyarrow) {
  if (std::system("python3 -c 'import pyarrow' 2>/dev/null") != 0) {
    GTEST_SKIP() << "python3 has no pyarrow";
  }
  const std::string program =
      "import sys, pyarrow, pyarrow.parquet as p\n"
      "rows = [{'id': i, 'turns': [{'from': 'human', 'value': 'q' * i}]} for i in range(1000)]\n"
      "p.write_table(pyarrow.Table.from_pylist(rows), sys.argv[1], row_group_size=300)\n";
  ASSERT_EQ(std::system(("python3 -c \"" + program + "\" " + path_.string()).c_str()), 0);
  const Records records = all();
  ASSERT_EQ(records.size(), 1000U);
  EXPECT_EQ(records[3],
            Records::value_type(4, R"({"id": 3, "turns": [{"from": "human", "value": "qqq"}]})"));
  const std::string whole = packed();
  EXPECT_THAT(failure(whole.substr(0, whole.size() - 20)),
              AllOf(HasSubstr(path_.string()), HasSubstr("cannot be read behind row 0")));
}

TEST_F(RecordStreamTest, TextOfTwoBytesALetterIsNamed) {
  for (const char* const mark : {"\xff\xfe", "\xfe\xff"}) {
    put(std::string(mark) + "{");
    EXPECT_THAT(test::message_of<DataError>([&] { return all(); }),
                testing::HasSubstr("iconv -f UTF-16"));
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
