#include "runtime/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace jforge {
namespace {

TEST(NearestName, SuggestsOnlyWhatIsNear) {
  const std::vector<std::string> known{"run", "evaluate", "train", "decode"};
  EXPECT_EQ(nearest_name("evalute", known), "evaluate");
  EXPECT_EQ(nearest_name("trian", known), "train");
  EXPECT_EQ(nearest_name("rn", known), "run");
  EXPECT_EQ(nearest_name("rum", known), "run");
  EXPECT_EQ(nearest_name("serve", known), std::nullopt);
  EXPECT_EQ(nearest_name("xyz", known), std::nullopt);
  EXPECT_EQ(nearest_name("", known), std::nullopt);
  EXPECT_EQ(nearest_name("run", {}), std::nullopt);
}

TEST(NearestName, TheFirstOfEqualsWins) {
  const std::vector<std::string> known{"ab1", "ab2"};
  EXPECT_EQ(nearest_name("ab3", known), "ab1");
  EXPECT_EQ(did_you_mean("ab3", known), "; did you mean ab1?");
  EXPECT_EQ(did_you_mean("qqqqqq", known), "");
}

}  // namespace
}  // namespace jforge
