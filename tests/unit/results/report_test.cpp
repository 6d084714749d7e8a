#include "results/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "results/report/report_text.h"
#include "results/report/speed_figures.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/write_text.h"

namespace jforge {
namespace {

using test::TemporaryDirectory;
using test::write_text;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::ordered_json;

/// Speeds at one batch size: `tokens_per_second` ± 4, `speed_up` ± 0.125, or null.
Json speed(int batch, const Json& tokens_per_second, const Json& speed_up) {
  Json json = {{"batch_prompts", batch}, {"remark", nullptr}};
  const auto set = [&](const std::string& key, const Json& value, double half) {
    json[key] = value;
    json[key + "_low"] = value.is_number() ? Json(value.get<double>() - half) : Json(nullptr);
    json[key + "_high"] = value.is_number() ? Json(value.get<double>() + half) : Json(nullptr);
  };
  set("tokens_per_second", tokens_per_second, 4);
  set("tokens_per_second_with_prefill", 77, 2);
  set("speed_up", speed_up, 0.125);
  return json;
}

/// `speed_up` is null for greedy decoding or without a baseline.
Json figures(double accuracy, double tpf, const Json& tokens_per_second,
             const Json& speed_up = nullptr) {
  return {{"accuracy", accuracy},
          {"tpf", tpf},
          {"tokens_per_second", 12345},
          {"speed", Json::array({speed(1, tokens_per_second, speed_up)})},
          {"accuracy_low", accuracy - 0.03},
          {"accuracy_high", accuracy + 0.03},
          {"tpf_low", tpf - 0.125},
          {"tpf_high", tpf + 0.125},
          {"scorer", "gsm8k/plain/extract-2"},
          {"ranks", 2},
          {"batch_prompts", 32},
          {"n", 200}};
}

void write_evaluation(const TemporaryDirectory& run) {
  const Json summary = {
      {"models",
       {{"base",
         {{"gsm8k", {{"ar", figures(0.905, 1, 100)}, {"jacobi", figures(0.905, 1.25, 90, 0.75)}}}}},
        {"final",
         {{"gsm8k", {{"ar", figures(0.88, 1, 120)}, {"jacobi", figures(0.88, 2.5, nullptr)}}}}}}},
      {"complete", {"base", "final"}}};
  write_text(run / "evaluation/summary.json", summary.dump());
}

std::size_t code_points(const std::string& line) {
  std::size_t count = 0;
  for (const char byte : line) {
    count += (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U ? 1U : 0U;
  }
  return count;
}

/// Tables' lines as cells, without rules.
std::vector<std::vector<std::string>> lines_of(const std::string& text) {
  std::vector<std::vector<std::string>> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ")) {
      continue;
    }
    std::vector<std::string> cells;
    std::istringstream parts(line.substr(1));
    for (std::string cell; std::getline(parts, cell, '|');) {
      const std::size_t begin = cell.find_first_not_of(' ');
      const std::size_t end = cell.find_last_not_of(' ');
      cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
    }
    found.push_back(cells);
  }
  return found;
}

/// The cell under `head` in the row that begins with `first`.
std::string cell_of(const std::string& text, const std::vector<std::string>& first,
                    const std::string& head) {
  std::vector<std::string> heads;
  for (const auto& cells : lines_of(text)) {
    if (cells[0] == "model" || cells[0] == "task") {
      heads = cells;
    }
    const auto column = std::ranges::find(heads, head) - heads.begin();
    if (column < std::ssize(cells) &&
        std::equal(first.begin(), first.end(), cells.begin(), cells.begin() + std::ssize(first))) {
      return cells[static_cast<std::size_t>(column)];
    }
  }
  return "no such cell";
}

class Report : public ::testing::Test {
 protected:
  /// Writes the summary, unless there is none, and returns the report's tables of it.
  std::string evaluation() {
    if (!summary.is_null()) {
      write_text(run / "evaluation/summary.json", summary.dump());
    }
    return write_report(run.path()).evaluation;
  }
  std::string whole_report() {
    (void)evaluation();
    return read_file(run / "report.md");
  }

  const TemporaryDirectory run;
  Json summary;
};

TEST_F(Report, BeginsWithTheResult) {
  write_evaluation(run);
  EXPECT_THAT(whole_report(),
              HasSubstr("\n\nOn gsm8k the model `final` makes 2.50 tokens per forward pass (base "
                        "1.25) by jacobi. Of its answers 88.0 % are right (base 90.5 "
                        "%).\n\n"));
  const TemporaryDirectory one;
  Json faster = figures(0.5, 1.5, 140, 1.25);
  faster["block_size"] = 4;
  const Json methods = {
      {"ar", figures(0.5, 1, 100)}, {"jacobi", figures(0.5, 2, 90, 0.75)}, {"mr", faster}};
  write_text(one / "evaluation/summary.json",
             Json{{"models", {{"m", {{"math", methods}}}}}, {"complete", {"m"}}}.dump());
  static_cast<void>(write_report(one.path()));
  EXPECT_THAT(read_file(one / "report.md"),
              HasSubstr("\n\nOn math the model `m` makes 1.50 tokens per forward pass by mr with "
                        "block size 4, 140 tokens/s at batch 1, 1.25 times its ordinary decoding. "
                        "Of its answers 50.0 % are right.\n\n"))
      << "the fastest by the clock, not by TPF";
}

/// Expected: Python's csv.writer.
TEST_F(Report, FiguresAreWrittenAsCsv) {
  summary = {{"models",
              {{"a,\"b\"",
                {{"gsm8k", {{"ar", {{"accuracy", 0.5}, {"remark", "two\nlines"}, {"n", 200}}}}},
                 {"math",
                  {{"jacobi",
                    {{"accuracy", nullptr}, {"speed", Json::array({{{"speed_up", 1.25}}})}}}}}}}}}};
  (void)evaluation();
  EXPECT_EQ(read_file(run / "evaluation/results.csv"),
            "model,task,method,accuracy,remark,n,speed.0.speed_up\r\n"
            "\"a,\"\"b\"\"\",gsm8k,ar,0.5,\"two\nlines\",200,\r\n"
            "\"a,\"\"b\"\"\",math,jacobi,,,,1.25\r\n");
}

TEST_F(Report, TablesShowEveryModelTaskAndMethod) {
  write_evaluation(run);
  const std::string tables = evaluation();
  EXPECT_THAT(tables, HasSubstr("### gsm8k (plain, extract-2), 200 problems\n"));
  const std::vector<std::string> base = {"base", "jacobi"};
  EXPECT_EQ(cell_of(tables, base, "TPF"), "1.25 (1.12–1.38)");
  EXPECT_EQ(cell_of(tables, base, "tokens/s, batch 1"), "90");
  EXPECT_EQ(cell_of(tables, base, "over AR, batch 1"), "0.75× (0.62–0.88)");
  EXPECT_EQ(cell_of(tables, base, "accuracy"), "90.5 % (87.5–93.5)");
  EXPECT_EQ(cell_of(tables, {"final", "jacobi"}, "TPF"), "2.50 (2.38–2.62)");
  EXPECT_EQ(cell_of(tables, {"final", "jacobi"}, "tokens/s, batch 1"), "–");
  EXPECT_EQ(cell_of(tables, {"final", "jacobi"}, "over AR, batch 1"), "–");
  EXPECT_EQ(cell_of(tables, {"final", "ar"}, "over AR, batch 1"), "–");
  const std::string report = read_file(run / "report.md");
  EXPECT_THAT(report, HasSubstr(tables));
  EXPECT_EQ(report.find("| tokens/s"), report.rfind("| tokens/s")) << "speeds are shown twice";
  for (const char* name : {"tpf", "accuracy", "speed"}) {
    EXPECT_THAT(read_file(run / ("figures/" + std::string(name) + ".svg")), HasSubstr("</svg>"));
  }
}

TEST_F(Report, TheFigureOfTpfHasIntervals) {
  write_evaluation(run);
  (void)evaluation();
  const auto error_bars = [&] {
    const std::string svg = read_file(run / "figures/tpf.svg");
    const std::regex stroke("#222222");
    return std::distance(std::sregex_iterator(svg.begin(), svg.end(), stroke), {});
  };
  EXPECT_EQ(error_bars(), 2) << "two bars of jacobi";
  summary = Json::parse(read_file(run / "evaluation/summary.json"));
  summary["models"]["base"]["gsm8k"]["jacobi"].erase("tpf_low");
  (void)evaluation();
  EXPECT_EQ(error_bars(), 1);
}

TEST_F(Report, SpeedsAreShownAtEachBatchAndOnlyFromRepeats) {
  Json& methods = summary["models"]["final"]["gsm8k"];
  methods["ar"] = figures(0.9, 1, 100);
  methods["jacobi"] = figures(0.9, 2, 150, 1.5);
  methods["ar"]["speed"].push_back(speed(32, 1000, nullptr));
  methods["jacobi"]["speed"].push_back(speed(32, 250, 0.25));
  methods["jacobi"]["speed"][1]["remark"] = "load average of 3.1 per core";
  const auto speed_at_batch = [&](const std::string& batch) {
    return cell_of(evaluation(), {"final", "jacobi"}, "over AR, batch " + batch);
  };
  EXPECT_EQ(speed_at_batch("1"), "1.50× (1.38–1.62)");
  EXPECT_EQ(speed_at_batch("32"), "0.25× (0.12–0.38)");
  EXPECT_THAT(evaluation(),
              HasSubstr("fastest by the clock, final at batch 1: jacobi, 1.50× AR (1.38–1.62)\n"));
  EXPECT_THAT(evaluation(), HasSubstr("fastest by the clock, final at batch 32: AR; the next is "
                                      "jacobi, 0.25× AR (0.12–0.38)\n"));
  EXPECT_THAT(evaluation(), HasSubstr("**Speeds at batch 32 mean little: load average of 3.1 per "
                                      "core.**\n"));
  EXPECT_THAT(evaluation(), Not(HasSubstr("12345"))) << "of the accuracy's passes";
  EXPECT_THAT(read_file(run / "figures/speed.svg"), HasSubstr("#222222")) << "error bars";
  methods["ar"].erase("speed");
  methods["jacobi"].erase("speed");
  EXPECT_THAT(evaluation(), Not(HasSubstr("tokens/s")));
  EXPECT_THAT(read_file(run / "report.md"), HasSubstr("- speed: not measured"));
}

TEST(FastestByClock, NamesAWinnerOrSaysThatThereIsNone) {
  const auto with_speed = [](const Json& tokens_per_second, const Json& speed_up) {
    return Json{{"speed", Json::array({speed(1, tokens_per_second, speed_up)})}};
  };
  const Json ar = with_speed(100, nullptr);
  const auto fastest = [&](const std::vector<double>& speed_ups, bool with_baseline = true) {
    std::vector<Json> held;
    std::vector<NamedFigures> methods;
    for (const double speed_up : speed_ups) {
      held.push_back(with_speed(100 * speed_up, with_baseline ? Json(speed_up) : Json(nullptr)));
    }
    for (std::size_t i = 0; i < held.size(); ++i) {
      methods.push_back({std::string(1, static_cast<char>('a' + i)), &held[i]});
    }
    return fastest_by_clock({"AR", with_baseline ? &ar : nullptr}, methods, 1);
  };
  EXPECT_EQ(fastest({1.5, 1.25, 3}), "c, 3.00× AR (2.88–3.12)");
  EXPECT_EQ(fastest({0.5, 0.75}), "AR; the next is b, 0.75× AR (0.62–0.88)");
  EXPECT_EQ(fastest({1.0625}), "AR and a cannot be told apart: 1.06× AR (0.94–1.19)");
  EXPECT_EQ(fastest({1.5, 1.375, 1.0}),
            "a, 1.50× AR (1.38–1.62); not told apart from it: b, 1.38× AR (1.25–1.50)");
  EXPECT_EQ(fastest({1.5, 2}, false), "b, 200 tokens/s (196–204)");
  EXPECT_TRUE(fastest({}).empty());
  const Json slow = with_speed(50, 0.75);  // slower on average, but not certainly
  Json unsure = with_speed(50, 0.5);
  unsure["speed"][0]["speed_up_high"] = 1.25;
  const std::string close = fastest_by_clock({"AR", &ar}, {{"slow", &slow}, {"b", &unsure}}, 1);
  EXPECT_EQ(close, "AR; not told apart from it: b, 0.50× AR (0.38–1.25)");
}

TEST(FastestByClock, TokensPerSecondOfOtherRanksDoNotCompare) {
  const auto measured_on = [](double ranks, double threads, const Json& speed_up) {
    Json one = speed(1, 100, speed_up);
    one["ranks"] = ranks;
    one["threads"] = threads;
    return Json{{"speed", Json::array({one})}};
  };
  const Json here = measured_on(1, 2, 1.5);
  const Json there = measured_on(4, 1, 2);
  EXPECT_FALSE(fastest_by_clock({"AR"}, {{"a", &here}, {"b", &here}}, 1).empty());
  EXPECT_TRUE(fastest_by_clock({"AR"}, {{"a", &here}, {"b", &there}}, 1).empty());
  EXPECT_THAT(speed_remarks({&here, &there}),
              HasSubstr("**Speeds at batch 1 were measured apart, on 1 rank of 2 threads and on 4 "
                        "ranks of 1 thread"));
  EXPECT_TRUE(speed_remarks({&here, &here}).empty());

  const TemporaryDirectory run;
  for (const bool apart : {false, true}) {
    Json summary;
    summary["models"]["final"]["gsm8k"]["jacobi"] = figures(0.9, 2, 100, 1.5);
    summary["models"]["final"]["gsm8k"]["mr"] = figures(0.9, 2, 100, 2);
    summary["models"]["final"]["gsm8k"]["jacobi"]["speed"] = here["speed"];
    summary["models"]["final"]["gsm8k"]["mr"]["speed"] = (apart ? there : here)["speed"];
    write_text(run / "evaluation/summary.json", summary.dump());
    const std::string tables = write_report(run.path()).evaluation;
    if (apart) {
      EXPECT_EQ(cell_of(tables, {"final", "mr"}, "batch 1 on"), "4 ranks of 1 thread");
    } else {
      EXPECT_THAT(tables, Not(HasSubstr("rank of")));
    }
  }
}

TEST_F(Report, OtherProblemsAndOtherSamplingHaveTablesOfTheirOwn) {
  Json& methods = summary["models"]["final"]["gsm8k"];
  methods["a"] = figures(0.9, 1, 100);
  methods["b"] = figures(0.5, 2, 100);
  methods["c"] = figures(0.25, 3, 100);
  methods["a"]["temperature"] = 1;  // the first heading is a prefix of the others
  methods["a"]["problems"] = "01";
  methods["b"]["problems"] = "01";
  methods["c"]["problems"] = "02";
  const std::string tables = evaluation();
  std::vector<std::string> parts;
  for (std::size_t at = tables.find("### "); at != std::string::npos;) {
    const std::size_t end = tables.find("### ", at + 1);
    parts.push_back(tables.substr(at, end - at));
    at = end;
  }
  ASSERT_EQ(parts.size(), 3U) << tables;
  EXPECT_THAT(parts[0], testing::AllOf(HasSubstr("temperature 1"), HasSubstr("| a "),
                                       Not(HasSubstr("| b "))));
  EXPECT_THAT(parts[1], testing::AllOf(HasSubstr("| b "), Not(HasSubstr("other ones"))));
  EXPECT_THAT(parts[2], testing::AllOf(HasSubstr("| c "), HasSubstr("(other ones than above)")));
}

TEST_F(Report, AblationSetsTrainedModelsSideBySide) {
  for (const auto& [model, tpf] :
       std::vector<std::pair<std::string, double>>{{"base", 1.25}, {"final", 4}, {"cllm", 5}}) {
    summary["models"][model]["gsm8k"]["ar"] = figures(0.9, 1, 100);
    summary["models"][model]["gsm8k"]["jacobi"] = figures(0.8, tpf, 300, 3);
  }
  const std::string report = whole_report();
  const std::string ablation = report.substr(report.find("## Ablation"));
  const std::vector<std::string> row = {"gsm8k", "final", "jacobi"};
  EXPECT_EQ(cell_of(ablation, row, "accuracy"), "80.0 % (77.0–83.0)");
  EXPECT_EQ(cell_of(ablation, row, "TPF"), "4.00 (3.88–4.12)");
  EXPECT_EQ(cell_of(ablation, row, "forwards/token"), "0.25");
  EXPECT_EQ(cell_of(ablation, row, "over its AR, batch 1"), "3.00× (2.88–3.12)");
  summary["models"].erase("cllm");
  EXPECT_THAT(whole_report(), HasSubstr("- ablation table"));
  EXPECT_THAT(read_file(run / "report.md"), Not(HasSubstr("## Ablation")));
}

TEST_F(Report, ScorersBaseTestsAndDisagreementsAreShown) {
  Json& task = summary["models"]["final"]["humaneval+"];
  task["ar"] = figures(0.5, 1, 100);
  task["ar"]["scorer"] = "humaneval+/v1";
  task["jacobi"] = figures(0.5, 2, 100);
  task["jacobi"]["scorer"] = "humaneval+/v2";
  task["jacobi"]["disagreements_with_ar"] = 3;
  task["jacobi"]["base_accuracy"] = 0.625;
  const std::string tables = evaluation();
  EXPECT_EQ(cell_of(tables, {"final", "jacobi"}, "base tests"), "62.5 %");
  const std::string report = read_file(run / "report.md");
  for (const char* part : {"come from different scorers", "### humaneval+ (v1), 200 problems",
                           "### humaneval+ (v2), 200 problems", "3 problems"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
}

TEST_F(Report, SampledAnswersHaveTablesOfTheirOwnThatSaySo) {
  Json& methods = summary["models"]["final"]["gsm8k"];
  methods["ar"] = figures(0.9, 1, 100);
  methods["mr"] = figures(0.5, 2, 150, 1.5);
  EXPECT_EQ(cell_of(evaluation(), {"final", "mr"}, "TPF"), "2.00 (1.88–2.12)");
  EXPECT_THAT(read_file(run / "report.md"), Not(HasSubstr("do not compare")));
  methods["mr"].update(
      {{"temperature", 1.0}, {"top_p", 0.9}, {"top_k", 0}, {"samples_per_problem", 3}});
  const std::string tables = evaluation();
  const std::string greedy = "### gsm8k (plain, extract-2), 200 problems\n";
  const std::string sampled =
      "### gsm8k (plain, extract-2), 200 problems, temperature 1, top p 0.9, samples per problem "
      "3\n";
  EXPECT_THAT(tables, HasSubstr(greedy));
  EXPECT_THAT(tables, HasSubstr(sampled));
  EXPECT_LT(tables.find("| ar "), tables.find(sampled));
  EXPECT_EQ(tables.find("| ar ", tables.find(sampled)), std::string::npos) << "in greedy's alone";
  const std::string report = read_file(run / "report.md");
  EXPECT_THAT(report, HasSubstr("**gsm8k: the tables' answers were not all sampled alike"));
  EXPECT_THAT(report.substr(report.find("## How it was measured")), HasSubstr(sampled));
}

TEST_F(Report, EverySettingOfAMethodIsShown) {
  Json& mr = summary["models"]["final"]["gsm8k"]["mr_lookup"];
  mr = figures(0.9, 2, 150);
  const std::vector<std::pair<std::string, std::string>> settings = {
      {"blocks", "2"},      {"spawn ratio", "0.85"}, {"verification size", "4"},
      {"ngram pool", "8"},  {"match length", "3"},   {"window", "multi_block"},
      {"block size", "64"}, {"seed", "42"},          {"max new tokens", "24"}};
  mr.update({{"block_size", 64},
             {"window", "multi_block"},
             {"blocks", 2},
             {"spawn_ratio", 0.85},
             {"verification_size", 4},
             {"ngram_pool", 8},
             {"seed", 42},
             {"match_length", 3},
             {"max_new_tokens", 24}});
  const std::string report = whole_report();
  const std::string measured = report.substr(report.find("## How it was measured"));
  for (const auto& [head, value] : settings) {
    EXPECT_EQ(cell_of(measured, {"final", "mr_lookup"}, head), value) << head;
  }
  EXPECT_THAT(measured, Not(HasSubstr("lookahead"))) << "which this method has not";
}

TEST_F(Report, AccuracyByEachRuleIsShownBesideTheFirstOnes) {
  summary["models"]["final"]["math500"]["ar"] = figures(0.5, 1, 100);
  summary["models"]["final"]["math500"]["ar"]["rule_accuracy"] = {{"string", 0.5},
                                                                  {"minerva", 0.52}};
  summary["models"]["final"]["gsm8k"]["ar"] = figures(0.25, 1, 100);
  const std::string report = whole_report();
  const auto lines = lines_of(report);
  const auto shown = [&](const std::vector<std::string>& cells) {
    return std::ranges::find(lines, cells) != lines.end();
  };
  EXPECT_TRUE(shown({"task", "model", "method", "rule", "accuracy"}));
  for (const auto& [rule, accuracy] : std::vector<std::pair<std::string, std::string>>{
           {"string", "50.0 %"}, {"minerva", "52.0 %"}}) {
    EXPECT_TRUE(shown({"math500", "final", "ar", rule, accuracy})) << rule;
  }
  EXPECT_THAT(report, HasSubstr("what evalchemy reports"));
  summary["models"]["final"].erase("math500");
  EXPECT_THAT(whole_report(), Not(HasSubstr("evalchemy")));
}

/// Lines of a table have the same width, which fits a terminal.
void expect_tables_fit(const std::string& text) {
  std::size_t width = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("|")) {
      width = 0;
      continue;
    }
    width = width == 0 ? code_points(line) : width;
    EXPECT_EQ(code_points(line), width) << line;
    EXPECT_LE(width, kTableWidth) << line;
  }
}

TEST_F(Report, TablesLineUpAndFitTheirWidth) {
  for (const char* model : {"base", "Qwen2.5-Coder-7B-Instruct-two"}) {
    for (const char* method : {"ar", "jacobi.block_size=128,verification_size=4"}) {
      Json all = figures(0.9, 12.25, 1234567, 1.5);
      all["disagreements_with_ar"] = 1000;
      all.update({{"base_accuracy", 0.95},
                  {"block_size", 128},
                  {"window", "shrinking"},
                  {"max_new_tokens", 2048},
                  {"stopped_by_eos", 200},
                  {"timeouts", 3}});
      summary["models"][model]["humaneval_plus:evalplus"][method] = all;
    }
  }
  summary["models"]["other"] = summary["models"]["base"];
  const std::string tables = evaluation();
  expect_tables_fit(read_file(run / "report.md"));
  EXPECT_NE(cell_of(tables, {"base", "ar"}, "over AR, batch 1"), "no such cell");
}

TEST(MarkdownTable, LeavesOutEmptyColumnsAndCutsWideOnes) {
  EXPECT_EQ(markdown_table({{"key", "empty", "full"}, {"a", "–", "1"}, {"b", "", "–"}}),
            "| key | full |\n|-----|------|\n| a   | 1    |\n| b   | –    |\n");
  const std::string wide(50, 'w');
  const std::string table = markdown_table({{"k", "first", "second"}, {"–", wide, wide}}, 1);
  expect_tables_fit(table);
  EXPECT_EQ(lines_of(table).size(), 4U);
  EXPECT_EQ(lines_of(table)[2], (std::vector<std::string>{"k", "second"}));
  // The maximum width gives one table, one more two.
  const auto parts = [](std::size_t letters) {
    return lines_of(markdown_table({{"key", "a", "b"}, {"1", "2", std::string(letters, 'x')}}))
               .size() /
           2;
  };
  EXPECT_EQ(parts(kTableWidth - 16), 1U);
  EXPECT_EQ(parts(kTableWidth - 15), 2U);
  EXPECT_THROW((void)markdown_table({{"a", "b"}, {"1"}}), InternalError);
}

/// A model may be called "a|b".
TEST(MarkdownTable, ACellsBarsAndLineBreaksDoNotBreakTheTable) {
  EXPECT_EQ(markdown_table({{"model", "n"}, {"a|b\nc", "1"}, {"||", "2"}}),
            "| model  | n   |\n|--------|-----|\n| a\\|b c | 1   |\n| \\|\\|   | 2   |\n");
}

TEST(MarkdownTable, TextIsClippedBetweenCharacters) {
  EXPECT_EQ(clipped("12345", 5), "12345");
  EXPECT_EQ(clipped("123456", 5), "1234…");
  EXPECT_EQ(clipped("äöüßé", 5), "äöüßé");
  EXPECT_EQ(clipped("äöüßéx", 5), "äöüß…");
  EXPECT_EQ(clipped("→→", 1), "…");
}

TEST_F(Report, EveryPartThatIsThereIsShown) {
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
  write_text(run / "metrics.1.jsonl", metrics);
  write_text(run / "round-1/generation.json", Json{{"block_size", 16},
                                                   {"prompts", 321},
                                                   {"tokens", 4567},
                                                   {"block_tpf", 1.25},
                                                   {"flipped_blocks", 0},
                                                   {"ended_by_eos", 300}}
                                                  .dump());
  write_text(run / "round-1/cleaning.json",
             Json{{"kept", 300}, {"dropped", {{{"rule", "too short"}, {"count", 21}}}}}.dump());
  write_text(
      run / "prompts_import.json",
      Json{{"records", 500}, {"kept", 321}, {"dropped", {{{"rule", "too long"}, {"count", 179}}}}}
          .dump());
  write_text(run / "run.json", Json{{"status", "finished"}, {"commit", "abc"}}.dump());
  const std::string report = whole_report();
  for (const char* part :
       {"## Accuracy and speed", "## Training", "8.0000 → 2.0000", "2500", "## Trajectories",
        "| 1     | 16         | 321     | 4567   | 1.25      | 0              | 93.5 %             "
        "      |",
        "| round | kept | too short |", "| 1     | 300  | 21        |", "## Prompts",
        "500 read, 321 kept", "too long", "179", "## Run", "abc"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
  EXPECT_THAT(report, Not(HasSubstr("finished")));  // The status would soon be outdated.
  const std::string merged = read_file(run / "metrics.jsonl");
  EXPECT_EQ(std::ranges::count(merged, '\n'), 4);
  for (const char* name : {"tpf", "loss_consistency", "loss_autoregressive"}) {
    EXPECT_THAT(report, HasSubstr("(figures/" + std::string(name) + ".svg)"));
    EXPECT_THAT(read_file(run / ("figures/" + std::string(name) + ".svg")), HasSubstr("</svg>"));
  }
}

TEST_F(Report, RoundsFollowEachOtherOnTheStepAxisAndLossesAreSmoothed) {
  std::string metrics;
  for (int round = 1; round <= 2; ++round) {
    for (int step = 1; step <= 60; ++step) {
      Json row = {{"round", round}, {"step", step}, {"consistency", step % 2 == 0 ? 2 : 1}};
      if (step % 20 == 0) {
        row["held_out_accuracy"] = round == 1 ? 0.954 : 0.996;
      }
      metrics += row.dump() + "\n";
    }
  }
  write_text(run / "metrics.1.jsonl", metrics);
  (void)evaluation();
  const std::string losses = read_file(run / "figures/loss_consistency.svg");
  for (const char* text : {">round 1<", ">round 2<", ">120<", "stroke-opacity"}) {
    EXPECT_THAT(losses, HasSubstr(text));
  }
  // The smoothed line begins after the raw one has settled.
  const std::regex line("points=\"([0-9.]+),[^\"]*,([0-9.]+) [0-9.]+,([0-9.]+) \"");
  std::vector<double> begins;
  std::vector<double> jumps;
  for (std::sregex_iterator found(losses.begin(), losses.end(), line), end; found != end; ++found) {
    begins.push_back(std::stod((*found)[1]));
    jumps.push_back(std::abs(std::stod((*found)[2]) - std::stod((*found)[3])));
  }
  ASSERT_EQ(begins.size(), 4U);
  EXPECT_GT(jumps[0], 250);
  EXPECT_LT(jumps[1], 100);
  EXPECT_GT(begins[2], begins[0] + 250);
  const std::string accuracy = read_file(run / "figures/held_out_accuracy.svg");
  EXPECT_THAT(accuracy,
              testing::AllOf(HasSubstr(">96<"), HasSubstr(">99<"), Not(HasSubstr(">90<"))));
  EXPECT_FALSE(std::filesystem::exists(run / "figures/held_out_tpf.svg"));
}

/// As by `jforge finetune`: round 0 has no teacher.
TEST_F(Report, OrdinaryTrainingHasNoConsistencyLoss) {
  std::string metrics;
  for (int step = 1; step <= 4; ++step) {
    metrics += Json{{"round", 0},
                    {"step", step},
                    {"consistency", 0.0},
                    {"autoregressive", 8.0 / step},
                    {"tokens_per_second", 1000}}
                   .dump() +
               "\n";
  }
  write_text(run / "metrics.1.jsonl", metrics);
  const std::string report = whole_report();
  EXPECT_THAT(report, HasSubstr("8.0000 → 2.0000"));
  EXPECT_THAT(report, HasSubstr("(figures/loss_autoregressive.svg)"));
  EXPECT_THAT(report, Not(HasSubstr("onsistency")));
  EXPECT_FALSE(std::filesystem::exists(run / "figures/loss_consistency.svg"));
}

TEST_F(Report, WhatARunDoesNotHoldIsSaid) {
  EXPECT_THAT(write_report(run.path()).evaluation, IsEmpty());
  const std::string report = read_file(run / "report.md");
  EXPECT_THAT(report, HasSubstr("# jforge_test_"));
  for (const char* part :
       {"## Not in this report", "- accuracy and speed", "- decoding settings",
        "no sweep in this run", "- training curves", "- trajectories", "- prompts", "- run.json"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
  EXPECT_THAT(report, Not(HasSubstr(".svg")));
}

TEST_F(Report, GarbledFilesAreNamed) {
  for (const char* name : {"evaluation/summary.json", "sweep/sweep.json", "run.json",
                           "prompts_import.json", "round-1/generation.json", "metrics.1.jsonl"}) {
    const TemporaryDirectory garbled;
    write_text(garbled / name, "{\"half\": \n");
    EXPECT_THAT(test::message_of<DataError>([&] { return write_report(garbled.path()); }),
                HasSubstr(name))
        << "accepted: " << name;
  }
}

TEST_F(Report, AnUnwritableDirectoryIsAnEnvironmentError) {
  write_text(run / "figures", "");  // in the place of a directory
  EXPECT_THROW((void)write_report(run.path()), EnvironmentError);
}

}  // namespace
}  // namespace jforge
