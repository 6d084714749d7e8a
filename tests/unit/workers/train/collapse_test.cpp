#include "workers/train/collapse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <vector>

#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

using Tokens = std::vector<TokenId>;

TEST(SequenceRepetition, IsOneMinusDistinctOverAllNGrams) {
  Tokens different(20);
  std::iota(different.begin(), different.end(), 0);
  EXPECT_EQ(sequence_repetition(different), 0);
  Tokens loop(20);  // 17 4-grams, three of them distinct
  for (std::size_t i = 0; i < loop.size(); ++i) {
    loop[i] = static_cast<TokenId>(i % 3);
  }
  EXPECT_DOUBLE_EQ(sequence_repetition(loop), 1 - 3.0 / 17);
  EXPECT_DOUBLE_EQ(sequence_repetition(Tokens(20, 7)), 1 - 1.0 / 17);
  // By hand: 1212, 2121, 1212, 2123.
  EXPECT_DOUBLE_EQ(sequence_repetition(Tokens{1, 2, 1, 2, 1, 2, 3}), 1 - 3.0 / 4);
  EXPECT_DOUBLE_EQ(sequence_repetition(Tokens{1, 2, 1, 2}, 1), 0.5);
  EXPECT_EQ(sequence_repetition(Tokens{5, 5, 5, 5}), 0) << "one 4-gram";
  EXPECT_EQ(sequence_repetition(Tokens{}), 0);
}

TEST(DistinctShare, IsDistinctTokensOverTokens) {
  EXPECT_DOUBLE_EQ(distinct_share(Tokens{1, 2, 1, 3}), 0.75);
  EXPECT_EQ(distinct_share(Tokens(8, 1)), 1.0 / 8);
  EXPECT_EQ(distinct_share(Tokens{}), 1);
}

TEST(CollapseConfig, NamesTheKeyThatIsWrong) {
  const auto refusal = [](const std::function<void(CollapseConfig&)>& change) -> std::string {
    CollapseConfig config;
    change(config);
    return test::message_of<ConfigError>([&] { config.validate(); });
  };
  EXPECT_EQ(refusal([](auto&) {}), "nothing thrown");
  EXPECT_THAT(refusal([](auto& c) { c.check_every = -1; }),
              HasSubstr("train.collapse_check_every"));
  EXPECT_THAT(refusal([](auto& c) { c.threshold = 0; }), HasSubstr("train.collapse_threshold"));
  EXPECT_THAT(refusal([](auto& c) { c.threshold = 1.5; }), HasSubstr("train.collapse_threshold"));
}

}  // namespace
}  // namespace jforge
