#include "workers/evaluate/evaluation_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
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

/// `figure` of the problems that each resample chose, with repetition, out of `problems`.
template <class Figure>
BootstrapInterval bootstrap(std::size_t problems, std::uint64_t seed, double observed,
                            const Figure& figure) {
  RandomStream stream(seed, RandomPurpose::bootstrap);
  std::vector<double> figures(kResamples);
  std::vector<std::size_t> chosen(problems);
  for (double& resampled : figures) {
    for (std::size_t& problem : chosen) {
      problem = static_cast<std::size_t>(stream.below(problems));
    }
    resampled = figure(std::span<const std::size_t>(chosen));
  }
  std::ranges::sort(figures);
  const auto low = static_cast<std::size_t>(std::floor(kTail * kResamples));
  return {observed, figures[low], figures[kResamples - 1 - low]};
}

struct ProblemCost {
  double tokens = 0;
  double forwards = 0;

  ProblemCost& operator+=(const ProblemCost& other) {
    tokens += other.tokens;
    forwards += other.forwards;
    return *this;
  }
};

std::vector<ProblemCost> costs_by_problem(const std::vector<SampleRecord>& records) {
  std::vector<ProblemCost> costs;
  for (const SampleRecord& record : records) {
    expect(record.index == std::ssize(costs) || record.index + 1 == std::ssize(costs),
           "samples that are not sorted by problem");
    costs.resize(static_cast<std::size_t>(record.index) + 1);
    costs.back() += {static_cast<double>(record.tokens), static_cast<double>(record.forwards)};
  }
  return costs;
}

/// Right samples of each problem; all problems have the same number of samples.
struct ProblemVerdicts {
  std::int64_t samples_per_problem = 0;
  std::vector<std::int64_t> right = {};
  std::vector<std::int64_t> base_right = {};  ///< Empty where no record has a base verdict.
};

ProblemVerdicts verdicts_by_problem(std::span<const TimedSample> samples) {
  std::map<std::int64_t, std::int64_t> counts;
  std::map<std::int64_t, std::int64_t> right;
  std::map<std::int64_t, std::int64_t> base_right;
  for (const auto& [record, timing] : samples) {
    counts[record.index] += 1;
    right[record.index] += record.verdict == "pass" ? 1 : 0;
    if (record.base_verdict) {
      base_right[record.index] += *record.base_verdict == "pass" ? 1 : 0;
    }
  }
  expect(!counts.empty(), "figures of no sample");
  ProblemVerdicts verdicts;
  verdicts.samples_per_problem = counts.begin()->second;
  for (const auto& [index, count] : counts) {
    expect(count == verdicts.samples_per_problem, "problems with different numbers of samples");
    verdicts.right.push_back(right[index]);
  }
  for (const auto& [index, count] : base_right) {
    verdicts.base_right.push_back(count);
  }
  expect(verdicts.base_right.empty() || verdicts.base_right.size() == verdicts.right.size(),
         "some samples have a verdict on the base tests and others have none");
  return verdicts;
}

/// pass@k of each problem.
std::vector<double> passes(const std::vector<std::int64_t>& right, std::int64_t samples,
                           std::int64_t k) {
  std::vector<double> values;
  for (const std::int64_t count : right) {
    values.push_back(pass_at_k(samples, count, k));
  }
  return values;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// accuracy and its interval, base_accuracy, pass_at.
void add_accuracy(Json& figures, std::span<const TimedSample> samples, std::uint64_t seed) {
  const ProblemVerdicts verdicts = verdicts_by_problem(samples);
  const std::int64_t n = verdicts.samples_per_problem;
  const BootstrapInterval accuracy = bootstrap_mean(passes(verdicts.right, n, 1), seed);
  figures["accuracy"] = accuracy.mean;
  figures["accuracy_low"] = accuracy.low;
  figures["accuracy_high"] = accuracy.high;
  if (!verdicts.base_right.empty()) {
    figures["base_accuracy"] = mean(passes(verdicts.base_right, n, 1));
  }
  if (n > 1) {
    for (const std::int64_t k : {1, 2, 5, 10, 20, 50, 100, 200}) {
      if (k <= n) {
        figures["pass_at"][std::to_string(k)] = mean(passes(verdicts.right, n, k));
      }
    }
  }
  figures["n"] = verdicts.right.size();
  figures["samples_per_problem"] = n;
}

}  // namespace

BootstrapInterval bootstrap_mean(std::span<const double> values, std::uint64_t seed) {
  expect(!values.empty(), "a mean of nothing");
  const auto count = static_cast<double>(values.size());
  double observed = 0;
  for (const double value : values) {
    observed += value;
  }
  return bootstrap(values.size(), seed, observed / count, [&](std::span<const std::size_t> chosen) {
    double sum = 0;
    for (const std::size_t i : chosen) {
      sum += values[i];
    }
    return sum / count;
  });
}

std::optional<BootstrapInterval> bootstrap_tpf_ratio(const std::vector<SampleRecord>& baseline,
                                                     const std::vector<SampleRecord>& other,
                                                     std::uint64_t seed) {
  const std::vector<ProblemCost> first = costs_by_problem(baseline);
  const std::vector<ProblemCost> second = costs_by_problem(other);
  expect(first.size() == second.size(), "methods evaluated on different numbers of problems");
  // Ratio of the sums over the problems `chosen`; 0 where a side has no forward.
  const auto ratio_of = [&](std::span<const std::size_t> chosen) {
    ProblemCost base;
    ProblemCost compared;
    for (const std::size_t i : chosen) {
      base += first[i];
      compared += second[i];
    }
    const double denominator = compared.forwards * base.tokens;
    return denominator > 0 ? compared.tokens * base.forwards / denominator : 0.0;
  };
  std::vector<std::size_t> all(first.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const double observed = ratio_of(all);
  if (observed <= 0) {
    return std::nullopt;
  }
  return bootstrap(first.size(), seed, observed, ratio_of);
}

double pass_at_k(std::int64_t samples, std::int64_t right, std::int64_t k) {
  expect(0 <= right && right <= samples && 1 <= k && k <= samples, "pass@k of these counts");
  if (samples - right < k) {
    return 1;
  }
  double all_wrong = 1;
  for (std::int64_t i = samples - right + 1; i <= samples; ++i) {
    all_wrong *= 1 - static_cast<double>(k) / static_cast<double>(i);
  }
  return 1 - all_wrong;
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
  for (const auto& [record, timing] : samples) {
    tokens += record.tokens;
    forwards += record.forwards;
    stopped_by_eos += record.stopped_by_eos ? 1 : 0;
    timeouts += record.verdict == "timeout" ? 1 : 0;
  }
  const EvaluationSeconds seconds = slowest_rank_seconds(samples);
  const auto generated = static_cast<double>(tokens);
  Json figures;
  add_accuracy(figures, samples, seed);
  figures["tpf"] = ratio(generated, static_cast<double>(forwards));
  figures["tpf_mean"] = mean_tokens_per_forward(samples);
  figures["tokens_per_second"] = ratio(generated, seconds.decode);
  figures["tokens_per_second_with_prefill"] = ratio(generated, seconds.with_prefill);
  figures["tokens"] = tokens;
  figures["forwards"] = forwards;
  figures["stopped_by_eos"] = stopped_by_eos;
  figures["timeouts"] = timeouts;
  figures["decode_seconds"] = seconds.decode;
  return figures;
}

std::int64_t count_disagreements(const std::vector<SampleRecord>& baseline,
                                 const std::vector<SampleRecord>& other) {
  const auto first_samples = [](const std::vector<SampleRecord>& records) {
    std::vector<const SampleRecord*> first;
    for (const SampleRecord& record : records) {
      if (record.sample == 0) {
        first.push_back(&record);
      }
    }
    return first;
  };
  const auto expected = first_samples(baseline);
  const auto found = first_samples(other);
  expect(expected.size() == found.size(), "methods evaluated on different numbers of problems");
  std::int64_t count = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expect(expected[i]->prompt_hash == found[i]->prompt_hash,
           "methods evaluated on other problems");
    count += expected[i]->token_hash != found[i]->token_hash ? 1 : 0;
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

const Json& EvaluationSummary::figures(const std::string& model, const std::string& task,
                                       const std::string& method) const {
  const Json::json_pointer place = Json::json_pointer() / "models" / model / task / method;
  expect(json_.contains(place), "figures of a method that is not in the summary");
  return json_.at(place);
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

void EvaluationSummary::remove(const std::string& model) {
  json_["models"].erase(model);
  set_complete(model, false);
}

void EvaluationSummary::publish() {
  if (json_ == on_disk_) {
    return;
  }
  publish_file(path_, json_.dump(2) + "\n");
  on_disk_ = json_;
}

}  // namespace jforge
