#include "launch/config/config_reference.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "launch/config/job_fields.h"

namespace jforge {
namespace {

TEST(ConfigReference, PageIsTheOneMadeFromTheFields) {
  const char* const source = std::getenv("JFORGE_SOURCE_DIR");
  const std::filesystem::path path =
      std::filesystem::path(source == nullptr ? "." : source) / "launch/configs/REFERENCE.md";
  std::ifstream stream(path);
  ASSERT_TRUE(stream) << path;
  const std::string page{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_EQ(page, reference_markdown())
      << "make it anew: jforge schema --reference > launch/configs/REFERENCE.md";
}

TEST(ConfigReference, EveryKeyHasAMeaningAndItsSection) {
  JobConfig job;
  job.rounds.resize(1);
  PretrainConfig pretrain;
  FinetuneConfig finetune;
  const auto schema = nlohmann::json::parse(config_schema());
  const std::string page = reference_markdown();
  for (const auto& fields :
       {job_fields(job), pretrain_fields(pretrain), finetune_fields(finetune)}) {
    for (const ConfigField& field : fields) {
      EXPECT_FALSE(field.meaning.empty()) << field.path();
      EXPECT_EQ(field.meaning.find('\n'), std::string::npos) << field.path();
      const bool round = field.section == "rounds.1";
      const auto& section = schema.at("properties").at(round ? "rounds" : field.section);
      const auto& keys = (round ? section.at("items") : section).at("properties");
      ASSERT_TRUE(keys.contains(field.key)) << field.path();
      EXPECT_NE(keys.at(field.key).at("description"), "") << field.path();
      EXPECT_EQ(keys.at(field.key).contains("default"), field.write().has_value()) << field.path();
      EXPECT_NE(page.find("| `" + field.key + "` |"), std::string::npos) << field.path();
    }
  }
}

TEST(ConfigReference, SchemaTellsTypesAndClosesObjects) {
  const auto schema = nlohmann::json::parse(config_schema());
  EXPECT_EQ(schema.at("additionalProperties"), false);
  const auto& sections = schema.at("properties");
  const auto& train = sections.at("train").at("properties");
  EXPECT_EQ(sections.at("train").at("additionalProperties"), false);
  EXPECT_EQ(train.at("learning_rate").at("type"), "number");
  EXPECT_EQ(train.at("batch_samples").at("type"), "integer");
  EXPECT_EQ(train.at("train_prompt").at("type"), "boolean");
  EXPECT_EQ(train.at("compat").at("enum"), nlohmann::json({"none", "repo", "paper"}));
  EXPECT_EQ(sections.at("rounds").at("type"), "array");
  EXPECT_EQ(sections.at("rounds").at("items").at("additionalProperties"), false);
  EXPECT_EQ(sections.at("prompts").at("properties").at("files").at("items").at("type"), "string");
  EXPECT_EQ(sections.at("sweep").at("properties").at("block_size").at("items").at("type"),
            "integer");
}

TEST(ConfigReference, LinksAreForThePageAlone) {
  EXPECT_NE(reference_markdown().find("](../../docs/evaluation.md#benchmarks)"), std::string::npos);
  EXPECT_EQ(config_schema().find("]("), std::string::npos);
  EXPECT_EQ(commented_config({}).find("]("), std::string::npos);
}

TEST(ConfigReference, CommentedConfigIsValidAndHoldsTheDefaults) {
  const ConfigStart start{
      .directory = "runs/\"a\"", .source = "models/b", .files = {"c.jsonl", "d.jsonl"}};
  const std::string text = commented_config(start);
  const JobConfig read = read_job_config(text, "new.toml", {});
  EXPECT_EQ(read.run.directory, "runs/\"a\"");
  EXPECT_EQ(read.model.source, "models/b");
  EXPECT_EQ(read.prompts.files, start.files);
  ASSERT_EQ(read.rounds.size(), 1U);
  EXPECT_NO_THROW(read.validate(1));

  // Commented keys are the defaults.
  std::string uncommented;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    const bool key =
        line.starts_with("# ") && equals != std::string::npos && line.find(' ', 2) == equals;
    uncommented += (key ? line.substr(2) : line) + "\n";
  }
  JobConfig all = read_job_config(uncommented, "all.toml", {});
  JobConfig some = read;
  EXPECT_EQ(write_toml(job_fields(all)), write_toml(job_fields(some)));
}

}  // namespace
}  // namespace jforge
