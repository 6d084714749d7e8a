#include "data/tasks/python_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/error.h"

namespace jforge {
namespace {

using ::testing::ElementsAre;

// Numbers of CPython 3.11.
TEST(PythonRandom, DrawsWhatPythonDraws) {
  PythonRandom random(1234);
  EXPECT_THAT(random.sample(7473, 5), ElementsAre(6374, 3610, 957, 61, 742));
  EXPECT_THAT(random.sample(7473, 5), ElementsAre(7462, 6610, 4769, 286, 5501));
  EXPECT_THAT(random.sample(7473, 5), ElementsAre(5677, 687, 806, 6279, 2905));
  EXPECT_THAT(random.sample(7473, 5), ElementsAre(1939, 142, 252, 6461, 129));
  for (int question = 4; question < 1318; ++question) {
    static_cast<void>(random.sample(7473, 5));
  }
  EXPECT_THAT(random.sample(7473, 5), ElementsAre(220, 4179, 6064, 5599, 5541));
}

TEST(PythonRandom, DrawsFromFewAsPythonDoes) {
  PythonRandom few(1234);
  EXPECT_THAT(few.sample(7, 5), ElementsAre(6, 3, 0, 4, 5));
  EXPECT_THAT(few.sample(7, 5), ElementsAre(6, 4, 0, 5, 3));
  PythonRandom limit(1234);
  EXPECT_THAT(limit.sample(21, 5), ElementsAre(14, 3, 0, 2, 1));
  EXPECT_THAT(limit.sample(22, 5), ElementsAre(21, 2, 3, 11, 7));
  EXPECT_THROW(static_cast<void>(limit.sample(4, 5)), InternalError);
}

}  // namespace
}  // namespace jforge
