#include "runtime/text_seal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const json kRecord = {{"status", "running"}, {"seconds", 1e-05}, {"list", {1, 2, {{"a", "}\n"}}}}};

std::vector<std::string> sealed_texts() {
  return {seal_json(kRecord.dump()),
          seal_json(kRecord.dump() + "\n"),
          seal_json(kRecord.dump(2) + "\n"),
          seal_json("{}"),
          seal_json("{}\n"),
          seal_toml("a = 1\n# a note\n"),
          seal_toml("")};
}

TEST(TextSeal, SealedTextsHoldAndStayWhatTheyWere) {
  for (const std::string& text : sealed_texts()) {
    EXPECT_EQ(examine_seal(text), TextSeal::holds) << text;
  }
  for (const int indent : {-1, 1, 2}) {
    json found = json::parse(seal_json(kRecord.dump(indent)));
    EXPECT_EQ(found.at("checksum").get<std::string>().size(), 16U);
    found.erase("checksum");
    EXPECT_EQ(found, kRecord);
  }
  EXPECT_EQ(seal_json("{\n  \"a\": 1\n}\n").find("{\n  \"a\": 1,\n  \"checksum\": \""), 0U);
  EXPECT_EQ(seal_toml("a = 1\n").find("a = 1\n# checksum: "), 0U);
}

TEST(TextSeal, EveryFlippedBitIsFound) {
  for (const std::string& text : sealed_texts()) {
    for (std::size_t byte = 0; byte < text.size(); ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string damaged = text;
        damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
        EXPECT_NE(examine_seal(damaged), TextSeal::holds) << text << " byte " << byte;
      }
    }
  }
}

TEST(TextSeal, TruncatedAndForeignTextsDoNotHold) {
  const std::string text = seal_json(kRecord.dump(2) + "\n");
  for (std::size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_NE(examine_seal(std::string_view(text).substr(0, size)), TextSeal::holds) << size;
  }
  for (const char* foreign :
       {"", "\n", "{}", "[1]", "5", "null", "\"checksum\":\"0123456789abcdef\"}",
        "{\"checksum\": \"0123456789abcdeg\"\n}", "\xff\xfe", "# checksum: 1\n"}) {
    EXPECT_NE(examine_seal(foreign), TextSeal::holds) << foreign;
  }
  EXPECT_EQ(examine_seal("{\"a\":1}"), TextSeal::absent);
  std::string other = text;
  other[other.find("running")] = 'R';
  EXPECT_EQ(examine_seal(other), TextSeal::broken);
}

class SealedFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) const {
    const auto path = directory_.path() / "record";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  static std::string refusal(const std::function<void()>& work) {
    return test::message_of<DataError>(work);
  }
  test::TemporaryDirectory directory_;
};

TEST_F(SealedFile, ReadersTakeWhatHasNoSealAndVerificationNamesIt) {
  const auto path = write("{\"a\":1}\n");
  EXPECT_EQ(read_sealed(path), "{\"a\":1}\n");
  EXPECT_THAT(refusal([&] { verify_sealed(path); }), HasSubstr(path.string() + " has no checksum"));
  std::string text = seal_json(kRecord.dump());
  write(text);
  EXPECT_EQ(read_sealed(path), text);
  verify_sealed(path);
  text[3] = 'x';
  write(text);
  for (const auto& work : {std::function<void()>([&] { (void)read_sealed(path); }),
                           std::function<void()>([&] { verify_sealed(path); })}) {
    EXPECT_THAT(refusal(work), HasSubstr(path.string() + " is damaged"));
  }
}

TEST_F(SealedFile, LinesAreVerifiedOneByOne) {
  const std::string line = seal_json(kRecord.dump()) + "\n";
  verify_sealed_lines(write(""));
  verify_sealed_lines(write(line + line));
  for (std::size_t cut = 1; cut < line.size(); ++cut) {  // torn by a kill
    verify_sealed_lines(write(line + line.substr(0, line.size() - 1 - cut)));
  }
  const std::string text = line + line;
  for (std::size_t byte = 0; byte < text.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
      const auto path = write(damaged);
      EXPECT_THAT(refusal([&] { verify_sealed_lines(path); }), HasSubstr(path.string() + ":"))
          << "byte " << byte << " bit " << bit;
    }
  }
}

}  // namespace
}  // namespace jforge
