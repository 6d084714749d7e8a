#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "launch/config/job_fields.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

fs::path configs_directory() {
  const char* const source = std::getenv("JFORGE_SOURCE_DIR");
  return fs::path(source == nullptr ? "." : source) / "launch/configs";
}

std::string content(const fs::path& path) {
  std::ifstream stream(path);
  EXPECT_TRUE(stream) << path;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::vector<fs::path> config_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(configs_directory())) {
    if (entry.path().extension() == ".toml") {
      files.push_back(entry.path());
    }
  }
  return files;
}

JobConfig job(const std::string& name) {
  return read_job_config(content(configs_directory() / name), name, {});
}

TEST(ConfigFiles, AllReadAndValidate) {
  const std::vector<fs::path> files = config_files();
  ASSERT_GE(files.size(), 5U);
  for (const fs::path& path : files) {
    SCOPED_TRACE(path.string());
    const std::string text = content(path);
    if (text.find("\n[pretrain]") != std::string::npos) {
      EXPECT_NO_THROW(read_pretrain_config(text, path.string(), {}).validate());
    } else if (text.find("\n[finetune]") != std::string::npos) {
      EXPECT_NO_THROW(read_finetune_config(text, path.string(), {}).validate());
    } else if (text.find("\n[sweep]") != std::string::npos &&
               text.find("\n[prompts]") == std::string::npos) {
      const JobConfig config = read_job_config(text, path.string(), {});
      EXPECT_NO_THROW(config.evaluate.validate());
      EXPECT_NO_THROW(config.sweep.validate());
    } else {
      EXPECT_NO_THROW(read_job_config(text, path.string(), {"model.device=auto"}).validate(1));
    }
  }
}

TEST(ConfigFiles, EachStartsWithAComment) {
  for (const fs::path& path : config_files()) {
    EXPECT_TRUE(content(path).starts_with("# ")) << path << " does not say what it is for";
  }
}

TEST(ConfigFiles, ThePaperSettingIsThePapers) {
  const JobConfig config = job("paper.toml");
  EXPECT_EQ(config.recipe, Recipe::jacobi_forcing);
  EXPECT_EQ(config.train.batch_samples, 4);
  ASSERT_EQ(config.rounds.size(), 2U);
  EXPECT_EQ(config.train_config(1).learning_rate, 1e-6);
  EXPECT_EQ(config.rounds[0].block_size, 16);
  EXPECT_EQ(config.rounds[0].noise_window, 16);
  EXPECT_EQ(config.rounds[0].steps, 10000);
  EXPECT_EQ(config.rounds[1].block_size, 32);
  EXPECT_EQ(config.rounds[1].noise_window, 8);
  EXPECT_EQ(config.rounds[1].steps, 10000);
  EXPECT_EQ(config.generate.max_new_tokens, 2048);
}

// Such a run takes days, in which no user reads its answers.
TEST(ConfigFiles, LargeExamplesWatchTheirAnswers) {
  for (const char* const name :
       {"paper.toml", "paper_8xh100.toml", "opencodeinstruct.toml", "openthoughts2_math.toml"}) {
    const JobConfig config = job(name);
    EXPECT_EQ(config.recipe, Recipe::jacobi_forcing) << name;
    EXPECT_LT(config.train.filter.max_repetition, 1) << name;
    EXPECT_GT(config.train.collapse.check_every, 0) << name;
    EXPECT_GT(config.train.early_stop.every, 0) << name;
  }
}

// Their arms differ only by what the scripts set.
TEST(ConfigFiles, StudiesBeginWithARecipe) {
  for (const char* const name : {"ablations.toml", "study_real.toml"}) {
    EXPECT_EQ(job(name).recipe, Recipe::jacobi_forcing) << name;
  }
}

TEST(ConfigFiles, DataSetsNameTheirFields) {
  EXPECT_EQ(job("opencodeinstruct.toml").prompts.field, "input");
  EXPECT_THAT(job("opencodeinstruct.toml").prompts.keep_if,
              ::testing::ElementsAre("average_test_score >= 1.0"));
  EXPECT_EQ(job("openthoughts2_math.toml").prompts.field, "/conversations/0/value");
}

// Otherwise the run would stop at its first lease.
TEST(ConfigFiles, LongestSamplesFitIntoAMicroBatch) {
  for (const char* const name :
       {"paper.toml", "paper_8xh100.toml", "opencodeinstruct.toml", "openthoughts2_math.toml"}) {
    const JobConfig config = job(name);
    ASSERT_TRUE(config.prompts.max_prompt_tokens.has_value()) << name;
    EXPECT_LE(*config.prompts.max_prompt_tokens + 2 * config.generate.max_new_tokens,
              config.train.tokens_per_rank)
        << name;
  }
}

}  // namespace
}  // namespace jforge
