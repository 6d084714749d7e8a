#include "workers/grade/verdict_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/text_seal.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

VerdictRecord verdict(std::int64_t index, bool plus) {
  return {.index = index,
          .key = "00112233445566ff",
          .verdict = "fail",
          .base_verdict = plus ? std::optional<std::string>("pass") : std::nullopt,
          .reason = "input 3: \"a\" instead of \xC3\xA9",
          .rules =
              plus ? std::vector<std::pair<std::string, bool>>()
                   : std::vector<std::pair<std::string, bool>>{{"string", false}, {"value", true}}};
}

std::string message_of(const std::string& line) {
  return test::message_of<DataError>([&] { return parse_verdict_record(line, "x.part:7"); });
}

TEST(VerdictRecord, LinesReadBackAsTheyWereWritten) {
  for (const bool plus : {false, true}) {
    const std::string line = to_line(verdict(5, plus));
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_EQ(parse_verdict_record(line, "here"), verdict(5, plus));
  }
}

TEST(VerdictRecord, BytesThatAreNoTextBecomeReplacementCharacters) {
  VerdictRecord record = verdict(1, true);
  record.reason = "cut \xC3";
  EXPECT_EQ(parse_verdict_record(to_line(record), "here").reason, "cut \xEF\xBF\xBD");
}

TEST(VerdictRecord, EveryFlippedBitAndEveryCutIsRefused) {
  const std::string line = to_line(verdict(1, true));
  for (std::size_t byte = 0; byte < line.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = line;
      damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
      EXPECT_THAT(message_of(damaged), HasSubstr("x.part:7")) << byte << " " << bit;
    }
    EXPECT_THAT(message_of(line.substr(0, byte)), HasSubstr("x.part:7")) << byte;
    EXPECT_THAT(message_of(line.substr(byte + 1)), HasSubstr("x.part:7")) << byte;
  }
  EXPECT_THAT(message_of(line + " "), HasSubstr("x.part:7"));
  EXPECT_THAT(message_of(line + line), HasSubstr("x.part:7"));
}

TEST(VerdictRecord, SealedTextThatIsNoVerdictIsRefused) {
  nlohmann::json whole = nlohmann::json::parse(to_line(verdict(1, true)));
  whole.erase("checksum");
  EXPECT_EQ(parse_verdict_record(seal_json(whole.dump()), "here"), verdict(1, true));
  EXPECT_THAT(message_of(whole.dump()), HasSubstr("checksum is missing"));
  for (const auto& [key, value] : whole.items()) {
    nlohmann::json missing = whole;
    missing.erase(key);
    EXPECT_THAT(message_of(seal_json(missing.dump())), HasSubstr("x.part:7")) << key;
    for (const nlohmann::json& wrong :
         {nlohmann::json::array(), nlohmann::json(1.5), nlohmann::json("1")}) {
      nlohmann::json other = whole;
      other[key] = wrong;
      if (wrong.is_string() && (key == "key" || key == "reason")) {
        continue;
      }
      EXPECT_THAT(message_of(seal_json(other.dump())), HasSubstr("x.part:7")) << key << wrong;
    }
  }
  for (const char* status : {"", "passed", "PASS"}) {
    nlohmann::json other = whole;
    other["verdict"] = status;
    EXPECT_THAT(message_of(seal_json(other.dump())), HasSubstr("x.part:7")) << status;
  }
  EXPECT_THAT(message_of(seal_json("{}")), HasSubstr("x.part:7"));
  EXPECT_THAT(message_of(""), HasSubstr("x.part:7"));
}

}  // namespace
}  // namespace jforge
