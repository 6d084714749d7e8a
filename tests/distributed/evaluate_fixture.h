#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoding/decode_engine.h"
#include "model/decoding/decoding_method.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/comm/collectives.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/stop_signal.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi_test.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/workers/evaluate/evaluation_fixture.h"
#include "workers/evaluate/evaluation_summary.h"
#include "workers/evaluate/problem_set.h"
#include "workers/evaluate/sample_record.h"
#include "workers/evaluate/sweep.h"
#include "workers/evaluate/work_queue.h"

namespace jforge::test {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

inline constexpr std::int64_t kProblems = 19;

/// A small benchmark, a random model and its tokenizer, evaluated by all ranks.
class EvaluateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    install_signal_handlers();
    if (root()) {
      directory_.emplace();
    }
    path_ = broadcast_text(test_world(), root() ? directory_->path().string() : "", 0);
    if (root()) {
      test::write_byte_tokenizer(path_ / "model");
      test::write_benchmark(path_ / "data", std::vector<std::string>(kProblems, "7"));
    }
    test_world().barrier();
    config_.tasks = {"gsm8k"};
    config_.methods = {"ar", "jacobi"};
    config_.prompt_style = "plain";
    config_.data = path_ / "data";
    config_.decoding["block_size"] = std::int64_t{8};
    config_.max_new_tokens = 24;
    config_.batch_prompts = 2;
    config_.speed_problems = 0;  // tested by evaluate_speed_test.cpp
  }

  void TearDown() override {
    arm_faults("", test_world().rank());
    clear_stop_request();
    test_world().barrier();
  }

  [[nodiscard]] static bool root() { return test_world().rank() == 0; }
  [[nodiscard]] static Rank last_rank() { return test_world().size() - 1; }

  /// Arms `fault` for `rank`'s `sample`-th sample and returns it. The other ranks ask for leases
  /// three seconds later, because early askers get them.
  static std::string arm_alone(std::string_view fault, Rank rank, int sample) {
    const Rank here = test_world().rank();
    std::string armed = fmt::format("{}@evaluate:{}:{}", fault, rank, sample);
    arm_faults(here == rank ? armed : fmt::format("delay@evaluate.lease:{}:1", here), here);
    return armed;
  }

  bool evaluate(const std::string& output, const std::string& name = "base", bool chatml = true) {
    samples_ = 0;
    const bool finished = evaluate_model(config_, model_.under_test(name, path_ / "model"),
                                         context(chatml), path_ / output);
    test_world().barrier();
    return finished;
  }

  bool evaluate(const std::string& output, std::vector<DecodingMethod> methods) {
    samples_ = 0;
    const bool finished =
        evaluate_methods(config_, std::move(methods), model_.under_test("base", path_ / "model"),
                         context(true), path_ / output);
    test_world().barrier();
    return finished;
  }

  [[nodiscard]] EvaluationContext context(bool chatml) {
    return {.comm = test_world(),
            .kernels = *kernels_,
            .clock = clock_,
            .account = account_,
            .seed = 42,
            .chat_template = {.force_chatml = chatml},
            .on_progress = [this](const EvaluationProgress& progress) {
              samples_ = progress.samples_here;
              last_ = progress;
              if (after_sample_) {
                after_sample_();
              }
            }};
  }

  /// Samples decoded by all ranks in the last evaluate().
  [[nodiscard]] std::int64_t samples_of_all_ranks() const {
    std::int64_t sum = samples_;
    all_reduce_sum(test_world(), std::span(&sum, 1));
    return sum;
  }

  [[nodiscard]] SampleFiles files(const std::string& output, const std::string& method,
                                  const std::string& name = "base") const {
    return {path_ / output / name, "gsm8k", method};
  }
  [[nodiscard]] Json figures(const std::string& output, const std::string& method,
                             const std::string& name = "base") const {
    return Json::parse(read_text(path_ / output / "summary.json"))
        .at("models")
        .at(name)
        .at("gsm8k")
        .at(method);
  }
  [[nodiscard]] std::vector<std::string> complete(const std::string& output) const {
    return Json::parse(read_text(path_ / output / "summary.json"))
        .at("complete")
        .get<std::vector<std::string>>();
  }

  /// Decodes one problem after another, the reference for any evaluation.
  std::vector<SampleRecord> reference(const std::string& method_name) {
    TaskEncoder encoder(path_ / "model", {.force_chatml = true});
    const ProblemSet set =
        load_problem_set("gsm8k", config_, encoder, model_.config().vocabulary_size);
    const DecodingMethod method = make_decoding_method(method_name, config_.decoding, 42);
    MemoryAccount account("reference");
    InferenceTransformer transformer(model_.config(), model_.table(), model_.weights(), *kernels_,
                                     account, {.num_slots = 1, .slot_capacity = 200});
    std::vector<SampleRecord> records;
    for (const Problem& problem : set.problems) {
      DecodeEngine engine(transformer, 1);
      std::vector<std::unique_ptr<SequenceDecoder>> decoders;
      decoders.push_back(method.make(set.request(problem.index, model_.config().eos_ids)));
      const DecodeResult result = decode_all(engine, std::move(decoders)).at(0);
      SampleRecord record;
      record.index = problem.index;
      record.id = problem.record.id;
      record.prompt_hash = problem.hash;
      record.tokens = std::ssize(result.tokens);
      record.forwards = result.forwards;
      record.prefill_forwards = 1;
      record.stopped_by_eos = result.stop == StopReason::eos;
      record.token_hash = hash_hex(hash64(std::as_bytes(std::span(result.tokens))));
      record.prompt = problem.prompt_text;
      record.text = encoder.tokenizer().decode(result.tokens, true);
      const auto verdict =
          set.task->grade(set.task->extract(record.text, problem.record), problem.record, nullptr);
      record.answer = verdict.answer;
      record.verdict = to_string(verdict.status);
      record.reason = verdict.reason;
      records.push_back(std::move(record));
    }
    return records;
  }

  /// Returns the merged file of these records, with the existing file's settings.
  [[nodiscard]] std::string merged_text(std::vector<SampleRecord> records,
                                        const std::string& settings) const {
    std::string text;
    for (SampleRecord& record : records) {
      record.settings = settings;
      text += to_line(record, std::nullopt) + "\n";
    }
    return text;
  }

  /// Expects this error on every rank, and `part` in rank 0's message.
  template <class SomeError>
  void expect_failure(const std::string& output, const std::string& part, bool chatml = true) {
    EXPECT_THAT(message_of<SomeError>([&] { return evaluate(output, "base", chatml); }),
                HasSubstr(part));
    test_world().barrier();
  }

  std::optional<TemporaryDirectory> directory_;
  fs::path path_;
  EvaluateConfig config_;
  RandomModel model_;
  std::unique_ptr<KernelSet> kernels_ = make_cpu_kernel_set();
  PhaseClock clock_;
  MemoryAccount account_{"evaluation"};
  std::int64_t samples_ = 0;
  EvaluationProgress last_;
  std::function<void()> after_sample_;
};

}  // namespace jforge::test
