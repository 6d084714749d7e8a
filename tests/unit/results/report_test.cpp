#include "results/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/error.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryDirectory;
using Json = nlohmann::ordered_json;

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Json figures(double accuracy, double tpf, Json tokens_per_second) {
  return {{"accuracy", accuracy},
          {"tpf", tpf},
          {"tokens_per_second", std::move(tokens_per_second)},
          {"accuracy_low", accuracy - 0.03},
          {"accuracy_high", accuracy + 0.03},
          {"tokens_per_second_with_prefill", 77},
          {"tpf_ratio", tpf},
          {"tpf_ratio_low", tpf - 0.125},
          {"tpf_ratio_high", tpf + 0.125},
          {"ranks", 2},
          {"batch_prompts", 32},
          {"n", 200}};
}

void write_evaluation(const TemporaryDirectory& run) {
  const Json summary = {
      {"models",
       {{"base",
         {{"gsm8k", {{"ar", figures(0.905, 1, 100)}, {"jacobi", figures(0.905, 1.25, 90)}}}}},
        {"final",
         {{"gsm8k", {{"ar", figures(0.88, 1, 120)}, {"jacobi", figures(0.88, 2.5, nullptr)}}}}}}},
      {"complete", {"base", "final"}}};
  write(run / "evaluation/summary.json", summary.dump());
}

std::size_t code_points(const std::string& line) {
  std::size_t count = 0;
  for (const char byte : line) {
    count += (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U ? 1U : 0U;
  }
  return count;
}

/// The cells of the table line that begins with these.
std::vector<std::string> cells_of(const std::string& table, const std::vector<std::string>& first) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      continue;
    }
    std::vector<std::string> cells;
    std::istringstream parts(line.substr(1));
    for (std::string cell; std::getline(parts, cell, '|');) {
      const std::size_t begin = cell.find_first_not_of(' ');
      const std::size_t end = cell.find_last_not_of(' ');
      cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
    }
    if (cells.size() >= first.size() && std::equal(first.begin(), first.end(), cells.begin())) {
      return cells;
    }
  }
  ADD_FAILURE() << "no such line in\n" << table;
  return std::vector<std::string>(16);
}

TEST(Report, SpeedTableShowsEveryModelTaskAndMethod) {
  const TemporaryDirectory run;
  write_evaluation(run);
  const std::string table = write_report(run.path());
  auto cells = cells_of(table, {"gsm8k", "base", "jacobi"});
  EXPECT_EQ(cells[3], "1.25");
  EXPECT_EQ(cells[4], "1.25× (1.12–1.38)");
  EXPECT_EQ(cells[5], "90");
  EXPECT_EQ(cells[6], "77");
  EXPECT_EQ(cells[7], "0.90×");
  EXPECT_EQ(cells[8], "0.90×");
  EXPECT_EQ(cells[9], "90.5 %");
  EXPECT_EQ(cells[10], "87.5–93.5 %");
  EXPECT_EQ(cells[11], "200");
  cells = cells_of(table, {"gsm8k", "final", "jacobi"});
  EXPECT_EQ(cells[3], "2.50");
  // A figure that could not be measured.
  EXPECT_EQ(cells[5], "–");
  EXPECT_EQ(cells[7], "–");
  cells = cells_of(table, {"gsm8k", "final", "ar"});
  EXPECT_EQ(cells[7], "1.00×");
  EXPECT_EQ(cells[8], "1.20×") << "over the base model's";
  EXPECT_THAT(read(run / "report.md"), HasSubstr(table));
  for (const char* name : {"tpf", "accuracy", "speed"}) {
    EXPECT_THAT(read(run / ("figures/" + std::string(name) + ".svg")), HasSubstr("</svg>"));
  }
}

TEST(Report, SpeedsOfOtherRanksOrBatchesAreNotCompared) {
  const TemporaryDirectory run;
  Json summary;
  Json& methods = summary["models"]["final"]["gsm8k"];
  methods["ar"] = figures(0.9, 1, 100);
  methods["jacobi"] = figures(0.9, 2, 150);
  methods["ar"]["batch_prompts"] = 32;
  methods["jacobi"]["batch_prompts"] = 32;
  write(run / "evaluation/summary.json", summary.dump());
  EXPECT_EQ(cells_of(write_report(run.path()), {"gsm8k", "final", "jacobi"})[7], "1.50×");
  methods["jacobi"]["batch_prompts"] = 1;
  write(run / "evaluation/summary.json", summary.dump());
  EXPECT_EQ(cells_of(write_report(run.path()), {"gsm8k", "final", "jacobi"})[7], "–");
  // Null: samples of several rank counts, of which there is nothing to compare.
  methods["jacobi"]["batch_prompts"] = 32;
  methods["jacobi"]["ranks"] = methods["ar"]["ranks"] = nullptr;
  write(run / "evaluation/summary.json", summary.dump());
  EXPECT_EQ(cells_of(write_report(run.path()), {"gsm8k", "final", "jacobi"})[7], "–");
}

TEST(Report, AblationSetsTrainedModelsSideBySide) {
  const TemporaryDirectory run;
  Json summary;
  for (const auto& [model, tpf] :
       std::vector<std::pair<std::string, double>>{{"base", 1.25}, {"final", 4}, {"cllm", 5}}) {
    summary["models"][model]["gsm8k"]["ar"] = figures(0.9, 1, 100);
    summary["models"][model]["gsm8k"]["jacobi"] = figures(0.8, tpf, 300);
  }
  write(run / "evaluation/summary.json", summary.dump());
  (void)write_report(run.path());
  const std::string report = read(run / "report.md");
  const std::string ablation = report.substr(report.find("## Ablation"));
  const auto cells = cells_of(ablation, {"gsm8k", "final"});
  EXPECT_EQ(cells[2], "jacobi");
  EXPECT_EQ(cells[3], "80.0 %");
  EXPECT_EQ(cells[5], "0.25");
  EXPECT_EQ(cells[6], "4.00");
  EXPECT_EQ(cells[7], "3.00×");
  // With one trained model there is nothing to compare, and the report says so.
  summary["models"].erase("cllm");
  write(run / "evaluation/summary.json", summary.dump());
  (void)write_report(run.path());
  EXPECT_THAT(read(run / "report.md"), HasSubstr("- ablation table"));
  EXPECT_THAT(read(run / "report.md"), Not(HasSubstr("## Ablation")));
}

TEST(Report, ScorersSamplesAndDisagreementsAreShown) {
  const TemporaryDirectory run;
  Json summary;
  Json& task = summary["models"]["final"]["humaneval+"];
  task["ar"] = figures(0.5, 1, 100);
  task["ar"]["scorer"] = "humaneval+/v1";
  task["jacobi"] = figures(0.5, 2, 100);
  task["jacobi"]["scorer"] = "humaneval+/v2";
  task["jacobi"]["disagreements_with_ar"] = 3;
  task["jacobi"]["base_accuracy"] = 0.625;
  task["jacobi"]["samples_per_problem"] = 10;
  task["jacobi"]["pass_at"] = {{"1", 0.5}, {"10", 0.75}};
  write(run / "evaluation/summary.json", summary.dump());
  (void)write_report(run.path());
  const std::string report = read(run / "report.md");
  for (const char* part : {"come from different scorers", "humaneval+/v1", "humaneval+/v2",
                           "3 problems", "(base tests 62.5 %)", "pass@1 50.0 %, pass@10 75.0 %"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
}

TEST(Report, TableColumnsLineUp) {
  const TemporaryDirectory run;
  write_evaluation(run);
  std::istringstream lines(write_report(run.path()));
  std::string line;
  std::getline(lines, line);
  const std::size_t width = code_points(line);
  while (std::getline(lines, line)) {
    EXPECT_EQ(code_points(line), width) << line;
  }
}

TEST(Report, EveryPartThatIsThereIsShown) {
  const TemporaryDirectory run;
  write_evaluation(run);
  std::string metrics;
  for (int step = 1; step <= 4; ++step) {
    metrics += Json{{"round", 1},
                    {"step", step},
                    {"consistency", 8.0 / step},
                    {"autoregressive", 0.5},
                    {"tokens_per_second", 1000 * step}}
                   .dump() +
               "\n";
  }
  write(run / "metrics.1.jsonl", metrics);
  write(run / "round-1/generation.json", Json{{"block_size", 16},
                                              {"prompts", 321},
                                              {"tokens", 4567},
                                              {"tpf", 1.2},
                                              {"tokens_per_second", 999},
                                              {"flipped_blocks", 0}}
                                             .dump());
  write(run / "prompts_import.json",
        Json{{"records", 500}, {"kept", 321}, {"dropped", {{{"rule", "too long"}, {"count", 179}}}}}
            .dump());
  write(run / "run.json", Json{{"status", "finished"}, {"commit", "abc"}}.dump());
  (void)write_report(run.path());
  const std::string report = read(run / "report.md");
  for (const char* part :
       {"## Accuracy and speed", "## Training", "8.0000 → 2.0000", "3000", "## Trajectories", "321",
        "4567", "## Prompts", "500 read, 321 kept", "too long", "179", "## Run", "abc"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
  // The status is of the moment of writing and would be wrong a moment later.
  EXPECT_THAT(report, Not(HasSubstr("finished")));
  // All attempts' steps, each once.
  const std::string merged = read(run / "metrics.jsonl");
  EXPECT_EQ(std::ranges::count(merged, '\n'), 4);
  // Every picture that the report shows is there.
  for (const char* name : {"tpf", "loss_consistency", "loss_autoregressive"}) {
    EXPECT_THAT(report, HasSubstr("(figures/" + std::string(name) + ".svg)"));
    EXPECT_THAT(read(run / ("figures/" + std::string(name) + ".svg")), HasSubstr("</svg>"));
  }
}

TEST(Report, WhatARunDoesNotHoldIsSaid) {
  const TemporaryDirectory run;
  EXPECT_THAT(write_report(run.path()), IsEmpty());
  const std::string report = read(run / "report.md");
  EXPECT_THAT(report, HasSubstr("# jforge_test_"));
  for (const char* part :
       {"## Not in this report", "- accuracy and speed", "- decoding settings",
        "no sweep in this run", "- training curves", "- trajectories", "- prompts", "- run.json"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
  EXPECT_THAT(report, Not(HasSubstr(".svg")));
}

TEST(Report, GarbledFilesAreNamed) {
  for (const char* name : {"evaluation/summary.json", "sweep/sweep.json", "run.json",
                           "prompts_import.json", "round-1/generation.json", "metrics.1.jsonl"}) {
    const TemporaryDirectory run;
    write(run / name, "{\"half\": \n");
    try {
      (void)write_report(run.path());
      ADD_FAILURE() << "accepted: " << name;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
}

TEST(Report, AnUnwritableDirectoryIsAnEnvironmentError) {
  const TemporaryDirectory run;
  // A file where the figures' directory must be.
  write(run / "figures", "");
  EXPECT_THROW((void)write_report(run.path()), EnvironmentError);
}

}  // namespace
}  // namespace jforge
