#include "results/report/recorded_settings.h"

#include <gtest/gtest.h>

#include "model/decoding/decoding_method.h"

namespace jforge {
namespace {

/// An unknown setting would not be shown.
TEST(RecordedSettings, EveryMethodsSettingsAreKnown) {
  for (const std::string& name : decoding_method_names()) {
    const DecodingMethod method =
        make_decoding_method(name, {{"temperature", 0.5}, {"repetition_penalty", 1.25}}, 42);
    for (const auto& [key, value] : method.settings.items()) {
      const ReportJson alone = {{key, value}};
      EXPECT_EQ(differing_settings(ReportJson::object(), alone),
                key + " – → " + recorded_setting(alone, key))
          << name;
    }
  }
}

TEST(RecordedSettings, NumbersAreShownAsTheyAreWritten) {
  const ReportJson figures = {{"seed", 9007199254740993}, {"block_size", 65536},
                              {"temperature", 1.0},       {"spawn_ratio", 0.85},
                              {"window", "running"},      {"top_p", nullptr}};
  EXPECT_EQ(recorded_setting(figures, "seed"), "9007199254740993");
  EXPECT_EQ(recorded_setting(figures, "block_size"), "65536");
  EXPECT_EQ(recorded_setting(figures, "temperature"), "1");
  EXPECT_EQ(recorded_setting(figures, "spawn_ratio"), "0.85");
  EXPECT_EQ(recorded_setting(figures, "window"), "running");
  EXPECT_EQ(recorded_setting(figures, "top_p"), "–");
  EXPECT_EQ(recorded_setting(figures, "absent"), "–");
}

TEST(RecordedSettings, SamplingIsSaidAsFarAsItHasAnEffect) {
  EXPECT_EQ(sampling_text({{"block_size", 8}, {"samples_per_problem", 1}}), "");
  const ReportJson sampled = {{"temperature", 0.5},
                              {"top_p", 1.0},
                              {"top_k", 50},
                              {"repetition_penalty", 1.25},
                              {"samples_per_problem", 3}};
  EXPECT_EQ(sampling_text(sampled),
            "temperature 0.5, top k 50, repetition penalty 1.25, samples per problem 3");
  EXPECT_EQ(sampling_text(sampled, {"top_k", "temperature"}),
            "repetition penalty 1.25, samples per problem 3");
}

}  // namespace
}  // namespace jforge
