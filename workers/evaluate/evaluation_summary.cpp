#include "workers/evaluate/evaluation_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kResamples = 1000;
constexpr double kTail = 0.025;

Json ratio(double numerator, double denominator) {
  return denominator > 0 ? Json(numerator / denominator) : Json(nullptr);
}

Json mean_tokens_per_forward(std::span<const TimedSample> samples) {
  double sum = 0;
  double count = 0;
  for (const auto& [record, timing] : samples) {
    if (record.forwards > 0) {
      sum += static_cast<double>(record.tokens) / static_cast<double>(record.forwards);
      count += 1;
    }
  }
  return ratio(sum, count);
}

}  // namespace

BootstrapInterval bootstrap_accuracy(std::span<const std::uint8_t> passed, std::uint64_t seed) {
  expect(!passed.empty(), "accuracy of no sample");
  const auto share = [&](std::int64_t passes) {
    return static_cast<double>(passes) / static_cast<double>(passed.size());
  };
  RandomStream stream(seed, RandomPurpose::bootstrap);
  std::vector<std::int64_t> passes(kResamples, 0);
  for (std::int64_t& sum : passes) {
    for (std::size_t i = 0; i < passed.size(); ++i) {
      sum += passed[static_cast<std::size_t>(stream.below(passed.size()))];
    }
  }
  std::ranges::sort(passes);
  const auto low = static_cast<std::size_t>(std::floor(kTail * kResamples));
  std::int64_t observed = 0;
  for (const std::uint8_t pass : passed) {
    observed += pass;
  }
  return {share(observed), share(passes[low]), share(passes[kResamples - 1 - low])};
}

EvaluationSeconds slowest_rank_seconds(std::span<const TimedSample> samples) {
  // Seconds only grow within an attempt, so a rank's largest reading is its last one.
  std::map<std::pair<std::int64_t, Rank>, EvaluationSeconds> ranks;
  for (const auto& [record, timing] : samples) {
    EvaluationSeconds& seconds = ranks[{timing.attempt, timing.rank}];
    seconds.decode = std::max(seconds.decode, timing.decode_seconds);
    seconds.with_prefill =
        std::max(seconds.with_prefill, timing.decode_seconds + timing.prefill_seconds);
  }
  std::map<std::int64_t, EvaluationSeconds> attempts;
  for (const auto& [place, seconds] : ranks) {
    EvaluationSeconds& slowest = attempts[place.first];
    slowest.decode = std::max(slowest.decode, seconds.decode);
    slowest.with_prefill = std::max(slowest.with_prefill, seconds.with_prefill);
  }
  EvaluationSeconds total;
  for (const auto& [attempt, seconds] : attempts) {
    total.decode += seconds.decode;
    total.with_prefill += seconds.with_prefill;
  }
  return total;
}

Json summarise_samples(std::span<const TimedSample> samples, std::uint64_t seed) {
  std::int64_t tokens = 0;
  std::int64_t forwards = 0;
  std::int64_t stopped_by_eos = 0;
  std::int64_t timeouts = 0;
  std::vector<std::uint8_t> passed;
  for (const auto& [record, timing] : samples) {
    tokens += record.tokens;
    forwards += record.forwards;
    stopped_by_eos += record.stopped_by_eos ? 1 : 0;
    timeouts += record.verdict == "timeout" ? 1 : 0;
    passed.push_back(record.verdict == "pass" ? 1 : 0);
  }
  const BootstrapInterval accuracy = bootstrap_accuracy(passed, seed);
  const EvaluationSeconds seconds = slowest_rank_seconds(samples);
  const auto generated = static_cast<double>(tokens);
  Json figures;
  figures["accuracy"] = accuracy.mean;
  figures["accuracy_low"] = accuracy.low;
  figures["accuracy_high"] = accuracy.high;
  figures["tpf"] = ratio(generated, static_cast<double>(forwards));
  figures["tpf_mean"] = mean_tokens_per_forward(samples);
  figures["tokens_per_second"] = ratio(generated, seconds.decode);
  figures["tokens_per_second_with_prefill"] = ratio(generated, seconds.with_prefill);
  figures["n"] = samples.size();
  figures["tokens"] = tokens;
  figures["forwards"] = forwards;
  figures["stopped_by_eos"] = stopped_by_eos;
  figures["timeouts"] = timeouts;
  figures["decode_seconds"] = seconds.decode;
  return figures;
}

std::int64_t count_disagreements(const std::vector<SampleRecord>& baseline,
                                 const std::vector<SampleRecord>& other) {
  expect(baseline.size() == other.size(), "methods evaluated on different numbers of problems");
  std::int64_t count = 0;
  for (std::size_t i = 0; i < baseline.size(); ++i) {
    expect(baseline[i].prompt_hash == other[i].prompt_hash, "methods evaluated on other problems");
    count += baseline[i].token_hash != other[i].token_hash ? 1 : 0;
  }
  return count;
}

EvaluationSummary::EvaluationSummary(const std::filesystem::path& evaluation_directory)
    : path_(evaluation_directory / "summary.json") {
  json_ = {{"models", Json::object()}, {"complete", Json::array()}};
  if (!std::filesystem::exists(path_)) {
    return;
  }
  Json found = Json::parse(read_file(path_), nullptr, false);
  const auto has = [&](const char* key, Json::value_t type) {
    return found.is_object() && found.contains(key) && found[key].type() == type;
  };
  if (!has("models", Json::value_t::object) || !has("complete", Json::value_t::array)) {
    throw DataError(fmt::format("{}: not an evaluation summary; remove the file to evaluate anew",
                                path_.string()));
  }
  json_ = std::move(found);
  on_disk_ = json_;
}

bool EvaluationSummary::is_current(const std::string& model, const std::string& task,
                                   const std::string& method, const std::string& settings) const {
  const Json::json_pointer place = Json::json_pointer() / "models" / model / task / method;
  if (!json_.contains(place / "settings")) {
    return false;
  }
  return json_.at(place / "settings") == settings;
}

void EvaluationSummary::set(const std::string& model, const std::string& task,
                            const std::string& method, Json figures) {
  expect(figures.contains("settings"), "figures without their settings");
  json_["models"][model][task][method] = std::move(figures);
}

void EvaluationSummary::set_figure(const std::string& model, const std::string& task,
                                   const std::string& method, const std::string& key, Json value) {
  const Json::json_pointer place = Json::json_pointer() / "models" / model / task / method;
  expect(json_.contains(place), "a figure for a method that is not in the summary");
  json_[place][key] = std::move(value);
}

void EvaluationSummary::set_complete(const std::string& model, bool complete) {
  Json& names = json_["complete"];
  const auto found = std::ranges::find(names, Json(model));
  if (complete && found == names.end()) {
    names.push_back(model);
  } else if (!complete && found != names.end()) {
    names.erase(found);
  }
}

void EvaluationSummary::publish() {
  if (json_ == on_disk_) {
    return;
  }
  publish_file(path_, json_.dump(2) + "\n");
  on_disk_ = json_;
}

}  // namespace jforge
