#include "workers/grade/verdict_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/unit/workers/grade/completion_fixture.h"

namespace jforge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class VerdictStoreTest : public ::testing::Test {
 protected:
  VerdictStoreTest() { make_directory(store.directory()); }

  [[nodiscard]] VerdictRecord verdict(std::int64_t index,
                                      const std::string& status = "pass") const {
    return {.index = index,
            .key = set.completions.at(static_cast<std::size_t>(index)).key,
            .verdict = status,
            .base_verdict = std::nullopt,
            .reason = status == "pass" ? "" : "wrong"};
  }
  [[nodiscard]] std::string line(std::int64_t index) const {
    return to_line(verdict(index)) + "\n";
  }
  void write_part(std::int64_t attempt, const std::string& text) const {
    replace_file(store.parts().part(attempt, 0, 1), text);
  }
  [[nodiscard]] std::vector<std::int64_t> found() const {
    std::vector<std::int64_t> indices;
    for (const VerdictRecord& record : store.read(set)) {
      indices.push_back(record.index);
    }
    return indices;
  }

  test::CompletionFixture fixture;
  CompletionSet set = fixture.load({"a", "b", "c", "d", "e", "f"});
  VerdictStore store{fixture.directory / "verdicts.json"};
};

TEST_F(VerdictStoreTest, VerdictsOfAllPartsCountOnce) {
  EXPECT_THAT(store.read(set), IsEmpty());
  write_part(1, line(4) + line(0));
  write_part(2, line(1) + line(4));
  replace_file(store.parts().part(2, 1, 2), line(5));
  EXPECT_THAT(found(), ElementsAre(0, 1, 4, 5));
  EXPECT_EQ(store.parts().next_attempt(), 3);
}

TEST_F(VerdictStoreTest, ATornLastLineIsLeftOutWhereverItIsCut) {
  const std::string next = line(1);
  for (std::size_t kept = 0; kept < next.size(); ++kept) {
    write_part(1, line(0) + next.substr(0, kept));
    EXPECT_THAT(found(), ElementsAre(0)) << kept;
  }
  write_part(1, line(0) + next);
  EXPECT_THAT(found(), ElementsAre(0, 1));
}

TEST_F(VerdictStoreTest, ADamagedLineCostsItsOwnVerdictOnly) {
  const std::string whole = line(0) + line(1) + line(2);
  const std::size_t begin = line(0).size();
  for (std::size_t byte = begin; byte + 1 < begin + line(1).size(); ++byte) {
    std::string damaged = whole;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 4);
    write_part(1, damaged);
    EXPECT_THAT(found(), ElementsAre(0, 2)) << byte;
  }
  write_part(1, "\n\x01garbled\n[1]\n" + line(2));
  EXPECT_THAT(found(), ElementsAre(2));
}

TEST_F(VerdictStoreTest, VerdictsOnOtherCompletionsDoNotCount) {
  VerdictRecord beyond = verdict(0);
  beyond.index = 6;
  VerdictRecord negative = verdict(0);
  negative.index = -1;
  VerdictRecord moved = verdict(0);
  moved.index = 3;
  write_part(1, line(0) + line(1) + to_line(beyond) + "\n" + to_line(negative) + "\n" +
                    to_line(moved) + "\n" + line(5));
  EXPECT_THAT(found(), ElementsAre(0, 1, 5));
  // The unchanged answers' verdicts stay.
  set = fixture.load({"a", "other", "c", "d", "e", "f", "g"});
  EXPECT_THAT(found(), ElementsAre(0, 5));
  fixture.write_problems("assert");
  set = fixture.load({"a", "b", "c", "d", "e", "f"});
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(VerdictStoreTest, TheFileDoesNotDependOnTheOrderOfVerdicts) {
  std::vector<VerdictRecord> verdicts;
  for (std::int64_t index = 0; index < 6; ++index) {
    verdicts.push_back(verdict(index, index < 2 ? "pass" : index == 2 ? "timeout" : "fail"));
  }
  const VerdictSummary summary = store.publish(set, verdicts);
  EXPECT_EQ(summary.problems, 3U);
  EXPECT_EQ(nlohmann::json::parse(summary.pass_at_1)["base"], 1.0 / 3);
  const std::string text = read_file(fixture.directory / "verdicts.json");
  const nlohmann::json file = nlohmann::json::parse(text);
  EXPECT_EQ(file["version"], "humaneval/completion/bare-check-3s");
  EXPECT_EQ(file["eval"]["HumanEval/2"][0]["base_status"], "timeout");
  EXPECT_EQ(file["eval"]["HumanEval/1"][1]["reason"], "wrong");
  std::ranges::reverse(verdicts);
  (void)store.publish(set, verdicts);
  EXPECT_EQ(read_file(fixture.directory / "verdicts.json"), text);
  verdicts.pop_back();
  EXPECT_THROW((void)store.publish(set, verdicts), InternalError);
}

TEST_F(VerdictStoreTest, TheDirectoryGoesWhenNothingIsLeftInIt) {
  write_part(1, line(0));
  store.remove_directory();
  EXPECT_THAT(found(), ElementsAre(0));
  store.parts().remove();
  store.remove_directory();
  EXPECT_FALSE(std::filesystem::exists(store.directory()));
}

}  // namespace
}  // namespace jforge
