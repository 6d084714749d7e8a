#include "workers/train/peak_flops.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "runtime/text_seal.h"
#include "tests/benchmarks/machine_peaks.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

TEST(PeakFlops, AShareIsNeverAboveOne) {
  EXPECT_EQ(share_of_peak(3, 4), 0.75);
  EXPECT_EQ(share_of_peak(4, 4), 1.0);
  EXPECT_FALSE(share_of_peak(8.76, 4).has_value()) << "219 % of a peak is no peak";
  EXPECT_FALSE(share_of_peak(3, 0).has_value());
}

TEST(PeakFlops, ARateAboveThePeakBecomesThePeak) {
  PeakFlops peak(4);
  EXPECT_EQ(peak.share_of(2), 0.5);
  EXPECT_EQ(peak.share_of(5), 1.0);
  EXPECT_EQ(peak.share_of(4), 0.8) << "a later step is a share of what was reached";
  EXPECT_EQ(peak.total(), 5);
  PeakFlops unknown;
  EXPECT_FALSE(unknown.share_of(2).has_value());
}

TEST(PeakFlops, AKnownDeviceHasItsDataSheetsAndCountsOnce) {
  const std::vector<RankDevice> devices = {
      {"a/0", "NVIDIA H200"}, {"a/0", "NVIDIA H200"}, {"b/0", "NVIDIA A100-SXM4-80GB"}};
  EXPECT_EQ(data_sheet_flops(devices, DType::bfloat16), 989e12 + 312e12);
  EXPECT_EQ(data_sheet_flops(devices, DType::float32), 67e12 + 19.5e12);
  EXPECT_EQ(data_sheet_flops(std::vector<RankDevice>{{"a/0", "NVIDIA H200"}, {"a/1", "other"}},
                             DType::bfloat16),
            0);
}

TEST(RankPeaks, ADamagedFileIsAsGoodAsNone) {
  const test::TemporaryDirectory directory;
  const auto file = directory / "peak_flops.json";
  EXPECT_TRUE(read_rank_peaks(file).empty());
  std::ofstream(file) << R"({"version": 1, "flops_per_rank": {"one": 2.5e11}})";
  EXPECT_EQ(read_rank_peaks(file), (RankPeaks{{"one", 2.5e11}}));
  for (const char* damaged :
       {"", "{", "[]", R"({"version": 2, "flops_per_rank": {"one": 1}})", R"({"version": 1})",
        R"({"version": 1, "flops_per_rank": {"one": 1, "two": 0}})",
        R"({"version": 1, "flops_per_rank": {"one": "fast"}})"}) {
    std::ofstream(file) << damaged;
    EXPECT_TRUE(read_rank_peaks(file).empty()) << damaged;
  }
  std::string sealed = seal_json(R"({"version": 1, "flops_per_rank": {"one": 25}})");
  std::ofstream(file) << sealed;
  EXPECT_EQ(read_rank_peaks(file), (RankPeaks{{"one", 25}}));
  sealed.replace(sealed.find("25"), 2, "35");
  std::ofstream(file) << sealed;
  EXPECT_TRUE(read_rank_peaks(file).empty()) << "a flipped bit";
}

}  // namespace
}  // namespace jforge
