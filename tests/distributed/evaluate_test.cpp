// Compares the distributed evaluation with a plain reference.

#include <set>

#include "runtime/content_hash.h"
#include "tests/distributed/evaluate_fixture.h"

namespace jforge {
namespace {

using namespace jforge::test;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(EvaluateTest, EveryRankCountAndBatchSizeGivesTheReference) {
  const auto ar = reference("ar");
  const auto jacobi = reference("jacobi");
  // The test needs completions of several lengths and kinds.
  ASSERT_THAT(ar, Contains(::testing::Field(&SampleRecord::stopped_by_eos, true)));
  ASSERT_THAT(ar, Contains(::testing::Field(&SampleRecord::stopped_by_eos, false)));
  std::int64_t tokens = 0;
  std::int64_t jacobi_forwards = 0;
  for (std::size_t i = 0; i < ar.size(); ++i) {
    EXPECT_EQ(ar[i].text, jacobi[i].text);
    tokens += ar[i].tokens;
    jacobi_forwards += jacobi[i].forwards;
  }
  for (const std::int32_t batch : {1, 8, 32}) {
    config_.batch_prompts = batch;
    const std::string output = "batch-" + std::to_string(batch);
    ASSERT_TRUE(evaluate(output));
    const Json ar_figures = figures(output, "ar");
    const Json jacobi_figures = figures(output, "jacobi");
    EXPECT_EQ(read_text(files(output, "ar").merged()), merged_text(ar, ar_figures.at("settings")));
    EXPECT_EQ(read_text(files(output, "jacobi").merged()),
              merged_text(jacobi, jacobi_figures.at("settings")));
    EXPECT_THAT(files(output, "ar").parts(), IsEmpty());
    EXPECT_THAT(files(output, "jacobi").parts(), IsEmpty());
    EXPECT_THAT(complete(output), ElementsAre("base"));
    EXPECT_EQ(ar_figures.at("n"), kProblems);
    EXPECT_EQ(ar_figures.at("tokens"), tokens);
    EXPECT_EQ(ar_figures.at("tpf"), 1.0);
    EXPECT_GT(ar_figures.at("tokens_per_second"), 0.0);
    EXPECT_GT(ar_figures.at("tokens_per_second_with_prefill"), 0.0);
    EXPECT_FALSE(ar_figures.contains("disagreements_with_ar"));
    EXPECT_EQ(jacobi_figures.at("disagreements_with_ar"), 0);
    EXPECT_EQ(jacobi_figures.at("tokens"), tokens);
    EXPECT_EQ(jacobi_figures.at("forwards"), jacobi_forwards);
    EXPECT_EQ(jacobi_figures.at("block_size"), 8);
    EXPECT_EQ(jacobi_figures.at("window"), "running");
    EXPECT_EQ(jacobi_figures.at("max_new_tokens"), 24);
    EXPECT_EQ(jacobi_figures.at("scorer"), "gsm8k/plain/extract-4");
  }
  EXPECT_LT(jacobi_forwards, tokens);
  RecordProperty("merged", hash_hex(hash64(read_text(files("batch-8", "jacobi").merged()))));
}

TEST_F(EvaluateTest, AGridInOneRunGivesEachPointItsReference) {
  SweepConfig sweep;
  sweep.axes.at("block_size").values = {std::int64_t{2}, std::int64_t{5}, std::int64_t{16}};
  const std::vector<std::string> labels = {"jacobi.block_size=2", "jacobi.block_size=5",
                                           "jacobi.block_size=16"};
  for (const std::int32_t batch : {1, 8, 32}) {
    config_.batch_prompts = batch;
    const std::string output = "grid-" + std::to_string(batch);
    ASSERT_TRUE(evaluate(output, sweep_methods(sweep, config_.decoding, 42)));
    EXPECT_EQ(samples_of_all_ranks(), 4 * kProblems);
    EXPECT_EQ(last_.samples_done, 4 * kProblems);
    EXPECT_EQ(last_.samples_total, 4 * kProblems);
    std::vector<double> tpf;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      config_.decoding["block_size"] = sweep.axes.at("block_size").values[i];
      const Json result = figures(output, labels[i]);
      EXPECT_EQ(read_text(files(output, labels[i]).merged()),
                merged_text(reference("jacobi"), result.at("settings")));
      EXPECT_EQ(result.at("disagreements_with_ar"), 0);
      EXPECT_EQ(result.at("method"), "jacobi");
      EXPECT_LE(result.at("tpf_low"), result.at("tpf"));
      EXPECT_GE(result.at("tpf_high"), result.at("tpf"));
      tpf.push_back(result.at("tpf"));
    }
    EXPECT_LE(tpf[0], 2.0);
    EXPECT_GT(tpf[0], 1.0);
  }
  EXPECT_THAT(complete("grid-8"), ElementsAre("base"));
}

TEST_F(EvaluateTest, SeveralSamplesOfAProblemAreKeptApart) {
  config_.methods = {"jacobi"};
  ASSERT_TRUE(evaluate("single"));
  DecodingMethod method = make_decoding_method("jacobi", config_.decoding, 42);
  method.label = "sampled";
  method.samples_per_problem = 3;
  arm_alone("interrupt", 0, 4);
  ASSERT_FALSE(evaluate("out", {method}));
  const std::int64_t before = samples_of_all_ranks();
  clear_stop_request();
  test_world().barrier();
  ASSERT_TRUE(evaluate("out", {method}));
  EXPECT_EQ(before + samples_of_all_ranks(), 3 * kProblems);
  const auto single = files("single", "jacobi").read_merged();
  const auto records = files("out", "sampled").read_merged();
  ASSERT_EQ(records.size(), 3U * kProblems);
  std::int64_t other_drafts = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].index, static_cast<std::int64_t>(i / 3));
    EXPECT_EQ(records[i].sample, static_cast<std::int64_t>(i % 3));
    EXPECT_EQ(records[i].text, single[i / 3].text);
    if (i % 3 == 0) {
      EXPECT_EQ(records[i].forwards, single[i / 3].forwards);
    } else {
      other_drafts += records[i].forwards != single[i / 3].forwards ? 1 : 0;
    }
  }
  // Every sample has its own random stream.
  EXPECT_GT(other_drafts, 0);
  EXPECT_EQ(figures("out", "sampled").at("samples_per_problem"), 3);
  EXPECT_EQ(figures("out", "sampled").at("n"), kProblems);
}

TEST_F(EvaluateTest, SampledAnswersAreThoseOfOneSequenceAlone) {  // I23
  config_.decoding["temperature"] = 1.2;
  config_.decoding["top_p"] = 0.95;
  config_.methods = {"ar", "jacobi", "prompt_lookup"};
  config_.samples_per_problem = 2;
  const auto alone = reference("ar");
  std::string first;
  for (const std::int32_t batch : {1, 8}) {
    config_.batch_prompts = batch;
    const std::string output = "batch-" + std::to_string(batch);
    ASSERT_TRUE(evaluate(output));
    EXPECT_EQ(figures(output, "ar").at("samples_per_problem"), 2);
    EXPECT_EQ(figures(output, "jacobi").at("disagreements_with_ar"), 0);
    EXPECT_EQ(figures(output, "prompt_lookup").at("disagreements_with_ar"), 0);
    const auto records = files(output, "jacobi").read_merged();
    ASSERT_EQ(records.size(), 2U * kProblems);
    std::int64_t second_differs = 0;
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(records[2 * i].token_hash, alone[i].token_hash);
      second_differs += records[2 * i + 1].token_hash != alone[i].token_hash ? 1 : 0;
    }
    EXPECT_GT(second_differs, 0) << "every sample has noise of its own";
    const std::string text = read_text(files(output, "jacobi").merged());
    EXPECT_TRUE(first.empty() || text == first);
    first = text;
  }
  config_.decoding["temperature"] = 0.0;
  config_.samples_per_problem = 1;
  ASSERT_TRUE(evaluate("greedy"));
  EXPECT_NE(files("greedy", "ar").read_merged().front().token_hash, alone.front().token_hash);
}

TEST_F(EvaluateTest, AQuickRankTakesMore) {
  const std::int64_t even_share = 2 * kProblems / test_world().size();
  const bool quick = test_world().rank() == last_rank();
  const fs::path marker = path_ / "more_than_its_share";
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  // The others wait until the quick rank has more than its share.
  after_sample_ = [&] {
    if (quick && samples_ > even_share) {
      write_text(marker, "");
    }
    while (!quick && !fs::exists(marker) && std::chrono::steady_clock::now() < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(samples_of_all_ranks(), 2 * kProblems);
  if (quick && test_world().size() > 1) {
    EXPECT_GT(samples_, even_share);
  }
}

TEST_F(EvaluateTest, TasksMayHaveStylesOfTheirOwn) {
  config_.tasks = {"gsm8k", "gsm8k:cot_boxed"};
  config_.methods = {"ar"};
  ASSERT_TRUE(evaluate("out"));
  const Json tasks = Json::parse(read_text(path_ / "out/summary.json")).at("models").at("base");
  EXPECT_EQ(tasks.at("gsm8k").at("ar").at("scorer"), "gsm8k/plain/extract-4");
  EXPECT_EQ(tasks.at("gsm8k:cot_boxed").at("ar").at("scorer"), "gsm8k/cot_boxed/extract-5");
  EXPECT_TRUE(fs::exists(path_ / "out/base/gsm8k-cot_boxed.ar.jsonl"));
  EXPECT_EQ(files("out", "ar").read_merged().size(), static_cast<std::size_t>(kProblems));
}

TEST_F(EvaluateTest, MoreRanksThanProblemsIsNoDifference) {
  config_.limit = 1;
  ASSERT_TRUE(evaluate("out"));
  EXPECT_EQ(figures("out", "jacobi").at("n"), 1);
  EXPECT_EQ(files("out", "jacobi").read_merged().size(), 1U);
}

TEST_F(EvaluateTest, RightAnswersAreCounted) {
  ASSERT_TRUE(evaluate("first"));
  // Makes every number that the model says the gold answer.
  std::vector<std::string> answers;
  std::int64_t numbers = 0;
  for (const SampleRecord& record : files("first", "ar").read_merged()) {
    // Other answers than plain decimals stay wrong.
    const bool plain =
        record.answer && record.answer->find_first_not_of("0123456789") == std::string::npos;
    numbers += plain ? 1 : 0;
    answers.push_back(plain ? *record.answer : "123456789");
  }
  ASSERT_GT(numbers, 0);
  ASSERT_LT(numbers, kProblems);
  test_world().barrier();
  if (root()) {
    test::write_benchmark(path_ / "data", answers);
  }
  test_world().barrier();
  // Other gold answers must not meet the old verdicts.
  ASSERT_TRUE(evaluate("first"));
  const Json result = figures("first", "jacobi");
  const double accuracy = result.at("accuracy");
  EXPECT_DOUBLE_EQ(accuracy, static_cast<double>(numbers) / static_cast<double>(kProblems));
  EXPECT_LT(result.at("accuracy_low"), accuracy);
  EXPECT_GT(result.at("accuracy_high"), accuracy);
}

TEST_F(EvaluateTest, ModelsShareTheSummary) {
  ASSERT_TRUE(evaluate("out", "base"));
  const Json base = figures("out", "jacobi");
  const RandomModel other(6);
  ASSERT_TRUE(evaluate_model(config_, other.under_test("final", path_ / "model"),
                             {test_world(), *kernels_, clock_, account_, 42, true}, path_ / "out"));
  test_world().barrier();
  EXPECT_EQ(figures("out", "jacobi"), base);
  EXPECT_NE(figures("out", "jacobi", "final").at("settings"), base.at("settings"));
  EXPECT_THAT(complete("out"), ElementsAre("base", "final"));
}

TEST_F(EvaluateTest, RoundedWeightsAreOtherSettingsAndStorageAloneIsNot) {
  config_.methods = {"ar"};
  const auto settings_with = [&](WeightStorage storage) {
    ModelUnderTest model = model_.under_test("base", path_ / "model");
    model.decode_weights = storage;
    samples_ = 0;
    EXPECT_TRUE(evaluate_model(config_, model, context(true), path_ / "out"));
    test_world().barrier();
    auto settings = figures("out", "ar").at("settings").get<std::string>();
    test_world().barrier();
    return settings;
  };
  const std::string exact = settings_with(WeightStorage::automatic);
  EXPECT_GT(samples_of_all_ranks(), 0);
  EXPECT_EQ(settings_with(WeightStorage::float32), exact);
  EXPECT_EQ(samples_of_all_ranks(), 0) << "nothing was left to decode";
  const std::string rounded = settings_with(WeightStorage::bfloat16);
  EXPECT_NE(rounded, exact);
  EXPECT_GT(samples_of_all_ranks(), 0);
  const std::string arithmetic = settings_with(WeightStorage::bfloat16_arithmetic);
  EXPECT_NE(arithmetic, exact);
  EXPECT_NE(arithmetic, rounded);
  const std::string int8 = settings_with(WeightStorage::int8);
  EXPECT_THAT((std::set{exact, rounded, arithmetic, int8}), ::testing::SizeIs(4));
  kernels_ =
      make_cpu_kernel_set(kernels_->bfloat16_sums() == BFloat16Sums::pairs ? BFloat16Sums::groups
                                                                           : BFloat16Sums::pairs);
  EXPECT_EQ(settings_with(WeightStorage::bfloat16), rounded);
  EXPECT_NE(settings_with(WeightStorage::bfloat16_arithmetic), arithmetic);
  EXPECT_EQ(settings_with(WeightStorage::int8), int8) << "no order of sums";
}

TEST_F(EvaluateTest, BadInputFailsOnEveryRankWithItsName) {
  const EvaluateConfig good = config_;
  config_.methods = {"ar", "magic"};
  expect_failure<ConfigError>("out", "magic");
  config_ = good;
  config_.tasks = {"chess"};
  expect_failure<ConfigError>("out", "chess");
  config_ = good;
  // Names the first problem whose prompt leaves too little of the model's 512 positions.
  config_.max_new_tokens = 512;
  expect_failure<DataError>("out", "gsm8k/0");
  config_ = good;
  config_.data = path_ / "nowhere";
  expect_failure<DataError>("out", "nowhere");
  config_ = good;
  expect_failure<ConfigError>("out", "model", /*chatml=*/false);
  // A garbled line is not an input error: its sample is evaluated again.
  if (root()) {
    write_text(files("out", "ar").part(1, 0, 1), "garbled\n");
  }
  test_world().barrier();
  EXPECT_TRUE(evaluate("out"));
}

TEST_F(EvaluateTest, TheClockShowsPhasesAndIsGivenBack) {
  clock_.enter("evaluate base", 123);
  std::set<std::string> phases;
  double deadline = 0;
  ASSERT_TRUE(evaluate_model(config_, model_.under_test("base", path_ / "model"),
                             {test_world(),
                              *kernels_,
                              clock_,
                              account_,
                              42,
                              {.force_chatml = true},
                              [&](const EvaluationProgress&) {
                                phases.insert(clock_.read().phase);
                                deadline = clock_.read().deadline_seconds;
                              }},
                             path_ / "out"));
  test_world().barrier();
  // With several ranks, each sees only phases that it took part in.
  if (test_world().size() == 1) {
    EXPECT_THAT(phases, ElementsAre("evaluate base gsm8k ar", "evaluate base gsm8k jacobi"));
  }
  EXPECT_EQ(deadline, 123);
  EXPECT_EQ(clock_.read().phase, "evaluate base");
  EXPECT_EQ(clock_.read().deadline_seconds, 123);
}

}  // namespace
}  // namespace jforge
