#include "workers/evaluate/sample_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/text_seal.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/workers/evaluate/evaluation_fixture.h"

namespace jforge {
namespace {

using test::read_text;
using test::TemporaryDirectory;
using test::write_text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SampleRecord sample(std::int64_t index) {
  SampleRecord record;
  record.index = index;
  record.id = "gsm8k/" + std::to_string(index);
  record.prompt_hash = "00112233445566ff";
  record.settings = "aabbccddeeff0011";
  record.tokens = 12;
  record.forwards = 5;
  record.prefill_forwards = 1;
  record.stopped_by_eos = index % 2 == 0;
  record.token_hash = "0123456789abcdef";
  record.answer = index % 3 == 0 ? std::nullopt : std::optional<std::string>("42");
  record.verdict = "fail";
  record.reason = "42 instead of 41";
  record.sample = index % 2;
  record.base_verdict = index % 2 == 0 ? std::nullopt : std::optional<std::string>("pass");
  if (index % 2 == 1) {
    record.rules = {{"string", false}, {"minerva", true}};
  }
  record.text = "line\nwith \"quotes\" and é";
  return record;
}

SampleTiming timing(std::int64_t attempt, Rank rank) {
  return {.attempt = attempt,
          .rank = rank,
          .ranks = 2,
          .batch_prompts = 8,
          .decode_seconds = 1.25,
          .prefill_seconds = 0.1};
}

template <class Call>
std::string message_of(const Call& call) {
  return test::message_of<DataError>(call);
}

TEST(SampleRecord, LinesReadBackAsTheyWereWritten) {
  for (const std::int64_t index : {0, 1, 2, 3}) {
    const std::string line = to_line(sample(index), timing(3, 1));
    EXPECT_EQ(line.find('\n'), std::string::npos);
    const TimedSample read = parse_timed_sample(line, "here");
    EXPECT_EQ(read.record, sample(index));
    EXPECT_EQ(read.timing, timing(3, 1));
  }
  // As in files of earlier versions.
  EXPECT_FALSE(nlohmann::json::parse(to_line(sample(1), std::nullopt)).contains("prompt"));
  SampleRecord with_prompt = sample(1);
  with_prompt.prompt = "<|im_start|>user\n";
  EXPECT_EQ(parse_timed_sample(to_line(with_prompt, timing(3, 1)), "here").record, with_prompt);
}

TEST(SampleRecord, MergedLinesHoldNoTiming) {
  const auto json = nlohmann::json::parse(to_line(sample(1), std::nullopt));
  for (const char* key :
       {"attempt", "rank", "ranks", "batch_prompts", "decode_seconds", "prefill_seconds"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
  EXPECT_EQ(json.at("stop"), "length");
  EXPECT_TRUE(nlohmann::json::parse(to_line(sample(0), std::nullopt)).at("answer").is_null());
}

TEST(SampleRecord, BytesThatAreNoTextBecomeReplacementCharacters) {
  SampleRecord record = sample(1);
  record.text = "cut \xC3";
  const std::string line = to_line(record, timing(1, 0));
  EXPECT_EQ(parse_timed_sample(line, "here").record.text, "cut \xEF\xBF\xBD");
}

TEST(SampleRecord, EveryDamageIsRefusedWithItsOrigin) {
  const std::string good = to_line(sample(1), timing(1, 0));
  EXPECT_THAT(message_of([&] { (void)parse_timed_sample(good.substr(0, 40), "x.part:7"); }),
              HasSubstr("x.part:7"));
  const nlohmann::json whole = nlohmann::json::parse(good);
  for (const auto& [key, value] : whole.items()) {
    if (key == "checksum") {
      continue;  // an earlier version's
    }
    nlohmann::json missing = whole;
    missing.erase(key);
    EXPECT_THAT(message_of([&] { (void)parse_timed_sample(missing.dump(), "f:1"); }),
                HasSubstr("f:1"))
        << key << " missing";
    nlohmann::json wrong = whole;
    wrong[key] = nlohmann::json::array();
    EXPECT_THAT(message_of([&] { (void)parse_timed_sample(wrong.dump(), "f:1"); }),
                HasSubstr("f:1"))
        << key << " of another type";
  }
  nlohmann::json unknown = whole;
  unknown["stop"] = "tired";
  EXPECT_THAT(message_of([&] { (void)parse_timed_sample(unknown.dump(), "f:1"); }),
              HasSubstr("f:1"));
  EXPECT_THAT(message_of([] { (void)parse_timed_sample("[]", "f:1"); }), HasSubstr("f:1"));
}

TEST(SampleFiles, PartsAreFoundInTheOrderOfAttempts) {
  const TemporaryDirectory directory;
  const SampleFiles files(directory.path(), "gsm8k", "jacobi");
  EXPECT_THAT(files.parts(), IsEmpty());
  EXPECT_EQ(files.next_attempt(), 1);
  EXPECT_THAT(SampleFiles(directory / "absent", "gsm8k", "ar").parts(), IsEmpty());
  write_text(files.part(10, 0, 1), "");
  write_text(files.part(2, 1, 2), "");
  write_text(files.part(2, 0, 2), "");
  write_text(SampleFiles(directory.path(), "gsm8k", "jacobi_shrinking").part(11, 0, 1), "");
  write_text(directory / "gsm8k.jacobi.attempt-x.rank-0-of-1.part", "");
  write_text(directory / "gsm8k.jacobi.attempt-12.rank-0-of-1.part.bak", "");
  write_text(directory / "gsm8k.jacobi.jsonl", "");
  EXPECT_THAT(files.parts(),
              ElementsAre(files.part(2, 0, 2), files.part(2, 1, 2), files.part(10, 0, 1)));
  EXPECT_EQ(files.next_attempt(), 11);
  files.remove_parts();
  EXPECT_THAT(files.parts(), IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(files.merged()));
}

TEST(SampleFiles, NamesAreSafeInFileNames) {
  const SampleFiles files("out", "mbpp_plus@0.1.0:eval/plus", "jacobi.block_size=8");
  EXPECT_EQ(files.merged(),
            std::filesystem::path("out") / "mbpp_plus-0.1.0-eval-plus.jacobi.block_size=8.jsonl");
  const TemporaryDirectory directory;
  const SampleFiles real(directory.path(), "mbpp_plus@0.1.0", "jacobi.block_size=8");
  write_text(real.part(3, 0, 1), "");
  EXPECT_THAT(real.parts(), ElementsAre(real.part(3, 0, 1)));
  EXPECT_EQ(real.next_attempt(), 4);
}

TEST(SampleFiles, ATornLastLineIsLeftOut) {
  const TemporaryDirectory directory;
  const SampleFiles files(directory.path(), "gsm8k", "ar");
  const std::string whole = to_line(sample(4), timing(1, 0)) + "\n";
  const std::string next = to_line(sample(5), timing(1, 0));
  for (const std::size_t kept : {std::size_t{0}, std::size_t{1}, next.size() / 2, next.size()}) {
    write_text(files.part(1, 0, 1), whole + next.substr(0, kept));
    const auto samples = files.read_parts();
    ASSERT_EQ(samples.size(), 1U) << kept;
    EXPECT_EQ(samples[0].record, sample(4));
  }
}

TEST(SampleFiles, ADamagedLineInTheMiddleIsNamed) {
  const TemporaryDirectory directory;
  const SampleFiles files(directory.path(), "gsm8k", "ar");
  const std::string line = to_line(sample(4), timing(1, 0));
  write_text(files.part(1, 0, 1), line + "\n" + line.substr(3) + "\n" + line + "\n");
  const std::vector<TimedSample> read = files.read_parts();
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[1].record, sample(4));
}

TEST(SampleFiles, NoFlippedBitOfAPartCountsAsASample) {
  const TemporaryDirectory directory;
  const SampleFiles files(directory.path(), "gsm8k", "ar");
  const std::string line = to_line(sample(2), timing(1, 0)) + "\n";
  write_text(files.part(1, 0, 1), line);
  verify_sealed_lines(files.part(1, 0, 1));
  for (std::size_t byte = 0; byte < line.size(); ++byte) {
    std::string damaged = line;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (byte % 8)));
    write_text(files.part(1, 0, 1), damaged);
    EXPECT_THROW(verify_sealed_lines(files.part(1, 0, 1)), DataError) << byte;
    for (const TimedSample& read : files.read_parts()) {  // the seal itself was hit
      EXPECT_EQ(read.record, sample(2)) << byte;
    }
  }
}

TEST(SampleFiles, MergedFileRoundTripAndDamage) {
  const TemporaryDirectory directory;
  const SampleFiles files(directory.path(), "gsm8k", "ar");
  const std::vector<SampleRecord> records = {sample(0), sample(1), sample(2)};
  files.publish_merged(records);
  EXPECT_EQ(files.read_merged(), records);
  const auto hash = files.merged_hash();
  const std::string text = read_text(files.merged());
  write_text(files.merged(), text.substr(0, text.size() - 5));
  EXPECT_THAT(message_of([&] { (void)files.read_merged(); }), HasSubstr("gsm8k.ar.jsonl"));
  write_text(files.merged(), "{}\n" + text);
  EXPECT_THAT(message_of([&] { (void)files.read_merged(); }), HasSubstr("gsm8k.ar.jsonl:1"));
  EXPECT_NE(files.merged_hash(), hash);
  write_text(files.merged(), text);
  EXPECT_EQ(files.merged_hash(), hash);
  std::filesystem::remove(files.merged());
  EXPECT_EQ(files.merged_hash(), std::nullopt);
}

}  // namespace
}  // namespace jforge
