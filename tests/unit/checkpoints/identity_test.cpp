#include "checkpoints/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string refusal(const Identity& recorded, const Identity& present,
                    const std::vector<std::string>& accepted = {}) {
  return test::message_of<ConfigError>(
      [&] { expect_same_identity("runs/a", recorded, present, accepted); });
}

TEST(Identity, DifferencesListKeyOldAndNew) {
  const Identity recorded = {{"model", "abc"}, {"run.seed", "42"}};
  EXPECT_TRUE(identity_differences(recorded, recorded).empty());
  EXPECT_THAT(identity_differences(recorded, {{"model", "xyz"}, {"train.learning_rate", "1e-5"}}),
              ElementsAre(IdentityDifference{"model", "abc", "xyz"},
                          IdentityDifference{"run.seed", "42", "absent"},
                          IdentityDifference{"train.learning_rate", "absent", "1e-5"}));
}

TEST(Identity, AnAbsentKeyIsNotTheSameAsATextThatSaysSo) {
  EXPECT_EQ(identity_differences({{"prompts.system", "absent"}}, {}).size(), 1U);
  EXPECT_EQ(identity_differences({{"prompts.system", ""}}, {}).size(), 1U);
}

TEST(Identity, RefusalNamesHolderAndEveryKeyOnOneLine) {
  const std::string text = refusal({{"a", "1"}, {"b", "2"}}, {{"a", "7"}, {"b", "2"}, {"c", "3"}});
  EXPECT_THAT(text,
              AllOf(HasSubstr("runs/a"), HasSubstr("a: 1 → 7"), HasSubstr("c: absent → 3"),
                    HasSubstr("--accept-change"), Not(HasSubstr("b:")), Not(HasSubstr("\n"))));
}

TEST(Identity, OnlyTheAcceptedKeysMayChange) {
  const Identity recorded = {{"rounds.1.window", "2"}, {"rounds.1.window_x", "2"}};
  const Identity present = {{"rounds.1.window", "4"}, {"rounds.1.window_x", "4"}};
  EXPECT_THAT(refusal(recorded, present, {"rounds.1.window"}),
              AllOf(HasSubstr("rounds.1.window_x: 2 → 4"), Not(HasSubstr("rounds.1.window: "))));
  EXPECT_EQ(refusal(recorded, present, {"rounds.1.window", "rounds.1.window_x"}), "nothing thrown");
}

TEST(Identity, ASectionNamesAllItsKeys) {
  const Identity present = {
      {"rounds.1.steps", "4"}, {"rounds.1.mask", "noise"}, {"rounds.10.steps", "4"}};
  EXPECT_THAT(refusal({}, present, {"rounds.1"}),
              AllOf(HasSubstr("rounds.10.steps"), Not(HasSubstr("rounds.1."))));
  EXPECT_EQ(refusal({}, present, {"rounds.1", "rounds.10"}), "nothing thrown");
  EXPECT_THAT(refusal({}, present, {"rounds.1."}), HasSubstr("rounds.1.steps"));
}

TEST(Identity, AnEarlierAcceptedChangeHoldsForWhatIsOlder) {
  const std::vector<IdentityDifference> earlier = {
      {"a", "1", "2"}, {"b", "1", "9"}, {"a", "2", "3"}};
  const auto holds = [&](const std::string& recorded, const std::string& present) {
    try {
      expect_same_identity("runs/a", {{"a", recorded}}, {{"a", present}}, {}, earlier);
    } catch (const ConfigError&) {
      return false;
    }
    return true;
  };
  EXPECT_TRUE(holds("1", "3"));
  EXPECT_TRUE(holds("2", "3"));
  EXPECT_FALSE(holds("3", "1"));
  EXPECT_FALSE(holds("1", "2"));
  EXPECT_FALSE(holds("1", "9"));
}

TEST(Identity, AcceptedChangesAreRecordedInOrder) {
  const IdentityRecord first{{{"train.rate", "1"}, {"run.seed", "4"}}, {}};
  const IdentityRecord second = continue_identity(
      "runs/a", first, {{"train.rate", "2"}, {"run.seed", "4"}}, {"train.rate"}, true);
  EXPECT_THAT(second.accepted, ElementsAre(IdentityDifference{"train.rate", "1", "2"}));
  EXPECT_EQ(continue_identity("runs/a", second, second.identity, {}, true), second);
  const IdentityRecord third = continue_identity(
      "runs/a", second, {{"train.rate", "1"}, {"run.seed", "4"}}, {"train.rate"}, true);
  EXPECT_THAT(third.accepted, ElementsAre(IdentityDifference{"train.rate", "1", "2"},
                                          IdentityDifference{"train.rate", "2", "1"}));
  EXPECT_THROW(static_cast<void>(continue_identity("runs/a", third, second.identity, {}, true)),
               ConfigError);
}

TEST(Identity, WhatImportedPromptsDependOnIsNeverAccepted) {
  for (const std::string key :
       {"prompts.limit", "prompts.digest", "tokenizer.hash", "model.hash"}) {
    const IdentityRecord before{{{key, "1"}}, {}};
    Identity present = {{key, "2"}};
    present.changes["prompts.limit"].fixed_from = FixedFrom::import;
    EXPECT_THAT(refusal(before.identity, present), Not(HasSubstr("--accept-change")));
    const IdentityRecord after = continue_identity("runs/a", before, present, {key}, false);
    EXPECT_EQ(after.identity.at(key), "2");
    EXPECT_THAT(after.accepted, ElementsAre(IdentityDifference{key, "1", "2"}));
    EXPECT_THAT(test::message_of<ConfigError>(
                    [&] { return continue_identity("runs/a", before, present, {key}, true); }),
                AllOf(HasSubstr(key), HasSubstr("1 → 2"), HasSubstr("another run.directory")))
        << key;
  }
}

TEST(Identity, RecordRoundTripsAndDamageIsRefused) {
  IdentityRecord record{{{"run.seed", "4"}, {"prompts.system", "\"\""}}, {}};
  EXPECT_EQ(IdentityRecord::from_json(record.to_json(), "f"), record);
  EXPECT_THAT(record.to_json(), Not(HasSubstr("accepted")));
  record.accepted = {{"run.seed", "absent", "4"}};
  EXPECT_EQ(IdentityRecord::from_json(record.to_json(), "f"), record);
  for (const char* const text :
       {"", "[]", R"({"run.seed": 4})", R"({"accepted": [1]})",
        R"({"accepted": [{"key": "a", "from": "b"}]})", "null", "5", R"({"accepted": 5})",
        R"({"accepted": {"a": "b"}})", R"({"status": "running"})"}) {
    EXPECT_THAT(test::message_of<DataError>(
                    [&] { return IdentityRecord::from_json(text, "runs/a/identity.json"); }),
                HasSubstr("runs/a/identity.json"))
        << text;
  }
}

TEST(Identity, EveryFlippedBitOfARecordIsFoundOrChangesNothing) {
  const IdentityRecord record{{{"run.seed", "4"}, {"model.hash", "00ff"}},
                              {{"run.seed", "1", "4"}}};
  const std::string text = record.to_json();
  for (std::size_t byte = 0; byte < text.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
      try {
        EXPECT_EQ(IdentityRecord::from_json(damaged, "f"), record) << byte << " " << bit;
      } catch (const DataError&) {
      }
    }
  }
}

TEST(Identity, AKeyThatIsGoneIsRefusedToo) {
  EXPECT_THAT(refusal({{"rounds.1.steps", "5"}}, {}), HasSubstr("rounds.1.steps: 5 → absent"));
}

}  // namespace
}  // namespace jforge
