#include "workers/train/peak_flops.h"

#include <gtest/gtest.h>

namespace jforge {
namespace {

TEST(PeakFlops, AShareIsNeverAboveOne) {
  EXPECT_EQ(share_of_peak(3, 4), 0.75);
  EXPECT_EQ(share_of_peak(4, 4), 1.0);
  EXPECT_FALSE(share_of_peak(8.76, 4).has_value()) << "219 % of a peak is no peak";
  EXPECT_FALSE(share_of_peak(3, 0).has_value());
}

TEST(PeakFlops, ARateAboveThePeakMakesItUnknown) {
  PeakFlops peak(4);
  EXPECT_EQ(peak.share_of(2), 0.5);
  EXPECT_FALSE(peak.share_of(5).has_value());
  EXPECT_FALSE(peak.share_of(2).has_value()) << "the measurement was wrong for every step";
  PeakFlops unknown(0);
  EXPECT_FALSE(unknown.share_of(2).has_value());
}

}  // namespace
}  // namespace jforge
