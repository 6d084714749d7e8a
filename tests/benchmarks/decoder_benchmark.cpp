/// Host time of decoding, for which a device waits: a pass without the model's calls. The model is
/// a function of token and position; `rows` and `tokens` count rows and accepted tokens of a pass.
/// Needs an idle machine.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "model/decoding/decode_engine.h"
#include "model/decoding/decoding_method.h"
#include "model/decoding/parallel_trajectory_decoder.h"

namespace jforge {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPromptTokens = 128;
constexpr std::int64_t kNewTokens = 512;
constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kVocabulary = 151'936;  // Qwen2.5

/// The successor of three of four positions depends only on the position, so that a pass accepts
/// some tokens; the others' also on their token. Measures its own time.
class CheapModel final : public DecodeModel {
 public:
  explicit CheapModel(std::int32_t slots) : slots_(slots) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    logits_.resize(static_cast<std::size_t>(kVocabulary));
    std::ranges::generate(logits_, [&] { return normal(generator); });
  }
  [[nodiscard]] std::int32_t num_slots() const override { return slots_; }
  [[nodiscard]] std::int32_t slot_capacity() const override { return 4096; }
  [[nodiscard]] std::int32_t branch_rows() const override { return 4096; }
  [[nodiscard]] bool reserve(std::int32_t /*slot*/, std::int64_t /*positions*/,
                             std::int64_t /*branch_rows*/) override {
    return true;
  }
  void release(std::int32_t /*slot*/) override {}
  void keep_branches(std::span<const CacheCopy> /*rows*/) override {}
  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override {
    const Clock::time_point begin = Clock::now();
    std::size_t output = 0;
    for (const DecodeRow& row : rows) {
      if (row.wants_output) {
        predictions[output++] = successor(row);
      }
    }
    inside_ += Clock::now() - begin;
  }
  /// Sampling counts as host time, making logits does not.
  void predict_sampled(std::span<const DecodeRow> rows, std::span<const SampledRow> choices,
                       std::span<TokenId> predictions) override {
    std::size_t output = 0;
    for (const DecodeRow& row : rows) {
      if (row.wants_output) {
        const Clock::time_point begin = Clock::now();
        given_ = logits_;
        given_[static_cast<std::size_t>(successor(row))] = 16.0F;
        inside_ += Clock::now() - begin;
        predictions[output] = sampler_.choose(given_, choices[output]);
        ++output;
      }
    }
  }
  [[nodiscard]] std::chrono::duration<double> inside() const noexcept { return inside_; }

 private:
  static TokenId successor(const DecodeRow& row) {
    const std::int64_t token = row.place.position % 4 == 0 ? row.token : 0;
    return static_cast<TokenId>((token * 31 + std::int64_t{row.place.position} * 7 + 3) % 997);
  }

  std::int32_t slots_;
  std::vector<float> logits_;
  std::vector<float> given_;
  TokenSampler sampler_;
  std::chrono::duration<double> inside_{};
};

using MakeDecoder = std::function<std::unique_ptr<SequenceDecoder>(DecodeRequest)>;

/// An iteration is a pass of `range(0)` sequences.
void host_time(benchmark::State& state, const MakeDecoder& make) {
  const auto sequences = static_cast<std::int32_t>(state.range(0));
  CheapModel model(sequences);
  DecodeEngine engine(model, sequences);
  PromptId next = 0;
  const auto fill = [&] {
    while (engine.free_slots() > 0) {
      DecodeRequest request{.id = next++, .max_new_tokens = kNewTokens};
      request.prompt.resize(kPromptTokens);
      std::iota(request.prompt.begin(), request.prompt.end(),
                static_cast<TokenId>(request.id % 97));
      engine.admit(make(std::move(request)));
    }
  };
  for (auto _ : state) {
    fill();
    const std::chrono::duration<double> before = model.inside();
    const Clock::time_point begin = Clock::now();
    engine.step();
    while (engine.take_finished()) {
    }
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    state.SetIterationTime((elapsed - (model.inside() - before)).count());
  }
  const DecodeStatistics& statistics = engine.statistics();
  const auto steps = static_cast<double>(statistics.steps);
  state.counters["rows"] = static_cast<double>(statistics.rows - statistics.prefill_rows) / steps;
  state.counters["tokens"] = static_cast<double>(statistics.tokens) / steps;
}

void add(const std::string& name, const MakeDecoder& make) {
  auto* const added =
      benchmark::RegisterBenchmark(name.c_str(), [make](auto& state) { host_time(state, make); });
  added->Arg(1)->Arg(16)->Arg(64)->ArgName("sequences")->UseManualTime();
  added->Unit(benchmark::kMicrosecond);
}

void add_all() {
  DecodingSettings settings = default_decoding_settings();
  settings["block_size"] = std::int64_t{kBlockSize};
  for (const std::string& name : decoding_method_names()) {
    add(name, make_decoding_method(name, settings, 1).make);
  }
  settings["temperature"] = 1.0;
  for (const double top_p : {1.0, 0.95}) {
    settings["top_p"] = top_p;
    for (const char* const name : {"ar", "jacobi"}) {
      add(fmt::format("{} sampled, top_p {}", name, top_p),
          make_decoding_method(name, settings, 1).make);
    }
  }
  add("parallel trajectories", [](DecodeRequest request) {
    ParallelTrajectoryOptions options;
    options.block_size = kBlockSize;
    return make_parallel_trajectory_decoder(std::move(request), options);
  });
}

}  // namespace
}  // namespace jforge

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  jforge::add_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
