#include "workers/evaluate/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoints/directory_checksums.h"
#include "checkpoints/jacobi_decoding.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/write_text.h"

namespace jforge {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;

TunedCandidate candidate(std::string_view name, std::int64_t block_size, double speed_up,
                         std::optional<SpeedInterval> interval) {
  return {.method = make_decoding_method(name, {{"block_size", block_size}}, 0),
          .tokens_per_forward = 2,
          .pass_cost = 1.5,
          .tokens_per_second = 100 * speed_up,
          .speed_up = speed_up,
          .interval = interval};
}

Tuning tuning(double low) {
  return {.machine = "a processor, 2 threads",
          .batch_prompts = 1,
          .candidates = {candidate("ar", 1, 1, SpeedInterval{1, 1, 1}),
                         candidate("jacobi", 4, 1.2, SpeedInterval{1.2, low, 1.3}),
                         candidate("jacobi", 8, 1.9, std::nullopt),  // One pass alone.
                         candidate("mr", 8, 1.1, SpeedInterval{1.1, 1.05, 1.2})}};
}

std::vector<std::string> labels(const std::vector<DecodingMethod>& methods) {
  std::vector<std::string> result;
  for (const DecodingMethod& method : methods) {
    result.push_back(method.label);
  }
  return result;
}

TEST(Tuning, CandidatesAreBlockSizesOfTheMethodsThatDraft) {
  const std::vector<std::string> methods = {"ar", "jacobi"};
  DecodingSettings fixed = default_decoding_settings();
  fixed["temperature"] = 0.5;
  const std::vector<DecodingMethod> found = block_size_candidates(methods, fixed, 7);
  EXPECT_THAT(labels(found),
              ElementsAre("ar", "jacobi.block_size=2", "jacobi.block_size=4", "jacobi.block_size=8",
                          "jacobi.block_size=16", "jacobi.block_size=32", "jacobi.block_size=64"));
  EXPECT_EQ(found[2].settings.at("block_size"), 4);
  EXPECT_EQ(found[2].settings.at("seed"), 7);
  EXPECT_EQ(found[0].sampling.temperature, 0.5F) << "AR is sampled, too";
  EXPECT_EQ(labels(tuning_candidates(methods, fixed, 7)), labels(found));
  const std::vector<std::string> several = {"mr"};
  const std::vector<DecodingMethod> blocks = tuning_candidates(several, fixed, 7);
  ASSERT_EQ(blocks.size(), 19);
  EXPECT_EQ(blocks[5].label, "mr.block_size=4.blocks=1.verification_size=4");
  EXPECT_EQ(blocks[5].settings.at("blocks"), 1);
  EXPECT_EQ(blocks[5].settings.at("verification_size"), 4);
  const std::vector<std::string> trees = {"draft_tree"};
  EXPECT_EQ(labels(tuning_candidates(trees, fixed, 7))[4],
            "draft_tree.block_size=4.min_probability=0.3.tree_rows=4");
}

TEST(Tuning, ChoosesTheFastestOfTheRepeatedAndArUnlessItIsFasterForSure) {
  EXPECT_EQ(tuning(1.1).choice().method.label, "jacobi");
  EXPECT_EQ(tuning(1.1).choice().method.settings.at("block_size"), 4);
  EXPECT_EQ(tuning(0.99).choice().method.name, "ar");
  EXPECT_EQ(tuning(0.99).fastest().method.name, "jacobi");
  EXPECT_EQ(tuning(0.99).fastest("mr").method.settings.at("block_size"), 8);
}

class RecordTuning : public ::testing::Test {
 protected:
  void SetUp() override {
    write_jacobi_decoding(directory_.path(), 32, {{"enable_thinking", true}});
    write_checksums(directory_.path());
  }
  ordered_json settings() const {
    return ordered_json::parse(read_file(directory_ / kJacobiDecodingFile));
  }

  test::TemporaryDirectory directory_;
};

TEST_F(RecordTuning, KeepsTheRestOfTheExport) {
  EXPECT_EQ(exported_block_size(directory_.path()), 32);
  ASSERT_TRUE(record_tuning(directory_.path(), tuning(1.1)));
  EXPECT_TRUE(check_checksums(directory_.path()));
  EXPECT_THAT(unlisted_files(directory_.path()), ElementsAre());
  EXPECT_EQ(exported_block_size(directory_.path()), 4);
  EXPECT_EQ(settings().at("template_arguments"), ordered_json({{"enable_thinking", true}}));
  EXPECT_EQ(settings().at("measured").at(0).at("method"), "jacobi");
  EXPECT_EQ(settings().at("measured").at(0).at("speed_up_low"), 1.1);
}

TEST_F(RecordTuning, ReplacesTheEntryOfItsMachineAndBatchAlone) {
  ASSERT_TRUE(record_tuning(directory_.path(), tuning(1.1)));
  Tuning other = tuning(1.1);
  other.batch_prompts = 8;
  other.candidates[1].method = make_decoding_method("jacobi", {{"block_size", 2L}}, 0);
  ASSERT_TRUE(record_tuning(directory_.path(), other));
  EXPECT_EQ(exported_block_size(directory_.path()), 4) << "a batch is no default";
  other = tuning(0.9);
  ASSERT_TRUE(record_tuning(directory_.path(), other));
  const ordered_json measured = settings().at("measured");
  ASSERT_EQ(measured.size(), 2);
  EXPECT_EQ(measured[0].at("method"), "ar");
  EXPECT_EQ(measured[1].at("batch_prompts"), 8);
  other.machine = "another";
  ASSERT_TRUE(record_tuning(directory_.path(), other));
  EXPECT_EQ(settings().at("measured").size(), 3);
}

TEST_F(RecordTuning, LeavesOtherDirectoriesAlone) {
  std::filesystem::remove(directory_ / kJacobiDecodingFile);
  EXPECT_FALSE(record_tuning(directory_.path(), tuning(1.1)));
  EXPECT_FALSE(std::filesystem::exists(directory_ / kJacobiDecodingFile));
  EXPECT_EQ(exported_block_size(directory_.path()), std::nullopt);
}

TEST_F(RecordTuning, RefusesAMalformedFile) {
  for (const char* text : {"[]", "{", R"({"block_size": 0})", R"({"block_size": 2.5})", "{}"}) {
    test::write_text(directory_ / kJacobiDecodingFile, text);
    EXPECT_THROW((void)exported_block_size(directory_.path()), DataError) << text;
  }
}

// Exports of earlier versions list the file; a run's export.json holds the list's hash.
TEST_F(RecordTuning, TheListOfChecksumsStaysAsItIs) {
  test::write_text(directory_ / kJacobiDecodingFile, R"({"method": "jacobi", "block_size": 16})");
  write_checksums(directory_.path());
  const std::string list = read_file(directory_ / kChecksumsName);
  EXPECT_THAT(list, ::testing::HasSubstr(kJacobiDecodingFile));
  ASSERT_TRUE(record_tuning(directory_.path(), tuning(1.1)));
  EXPECT_TRUE(check_checksums(directory_.path()));
  EXPECT_EQ(read_file(directory_ / kChecksumsName), list);
  std::string damaged = read_file(directory_ / kJacobiDecodingFile);
  damaged[damaged.find("4,")] = '8';
  test::write_text(directory_ / kJacobiDecodingFile, damaged);
  EXPECT_THROW((void)check_checksums(directory_.path()), DataError);
}

}  // namespace
}  // namespace jforge
