#include "model/decoding/cut_answers.h"

#include <gtest/gtest.h>

namespace jforge {
namespace {

TEST(CutAnswers, MoreThanHalfAreTold) {
  EXPECT_FALSE(warning_of_cut_answers("generate round 1", {0, 0}, "key", 64));
  EXPECT_FALSE(warning_of_cut_answers("generate round 1", {10, 5}, "key", 64));
  EXPECT_TRUE(warning_of_cut_answers("generate round 1", {10, 6}, "key", 64)
                  .value_or("")
                  .starts_with("generate round 1: 6 of 10 answers were cut at key = 64 "));
}

}  // namespace
}  // namespace jforge
