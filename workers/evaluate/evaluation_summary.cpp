#include "workers/evaluate/evaluation_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "data/tasks/score_interval.h"
#include "runtime/bounded_json.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/random.h"
#include "runtime/text_seal.h"

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
    if (const auto tpf = cost_of(record).tokens_per_forward()) {
      sum += *tpf;
      count += 1;
    }
  }
  return ratio(sum, count);
}

std::vector<DecodingCost> costs_by_problem(std::span<const TimedSample> samples) {
  std::map<std::int64_t, DecodingCost> costs;
  for (const auto& [record, timing] : samples) {
    costs[record.index] += cost_of(record);
  }
  std::vector<DecodingCost> result;
  for (const auto& [index, cost] : costs) {
    result.push_back(cost);
  }
  return result;
}

struct ProblemVerdicts {
  std::int64_t samples_per_problem = 0;
  std::vector<std::int64_t> right = {};
  std::vector<std::int64_t> base_right = {};  ///< Empty without base verdicts.
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
  // Old records have no base verdict for a completion without a program.
  for (const auto& [index, count] : counts) {
    if (!base_right.empty()) {
      verdicts.base_right.push_back(base_right[index]);
    }
  }
  return verdicts;
}

double share_of(const std::vector<std::int64_t>& right, std::int64_t samples_per_problem) {
  const auto solved = std::accumulate(right.begin(), right.end(), std::int64_t{0});
  return static_cast<double>(solved) / static_cast<double>(std::ssize(right) * samples_per_problem);
}

std::vector<std::pair<std::string, double>> rule_shares(std::span<const TimedSample> samples) {
  std::vector<std::pair<std::string, double>> shares;
  for (const auto& [rule, right] : samples.front().record.rules) {
    shares.emplace_back(rule, 0.0);
  }
  for (const auto& [record, timing] : samples) {
    expect(record.rules.size() == shares.size(), "samples judged by different rules");
    for (std::size_t i = 0; i < shares.size(); ++i) {
      expect(record.rules[i].first == shares[i].first, "samples judged by different rules");
      shares[i].second += record.rules[i].second ? 1 : 0;
    }
  }
  for (auto& [rule, share] : shares) {
    share /= static_cast<double>(samples.size());
  }
  return shares;
}

void add_accuracy(Json& figures, std::span<const TimedSample> samples) {
  const ProblemVerdicts verdicts = verdicts_by_problem(samples);
  const double accuracy = share_of(verdicts.right, verdicts.samples_per_problem);
  const ScoreInterval interval = wilson_interval(accuracy, std::ssize(verdicts.right));
  figures["accuracy"] = accuracy;
  figures["accuracy_low"] = interval.low;
  figures["accuracy_high"] = interval.high;
  if (!verdicts.base_right.empty()) {
    figures["base_accuracy"] = share_of(verdicts.base_right, verdicts.samples_per_problem);
  }
  for (const auto& [rule, share] : rule_shares(samples)) {
    figures["rule_accuracy"][rule] = share;
  }
  figures["n"] = verdicts.right.size();
  figures["samples_per_problem"] = verdicts.samples_per_problem;
}

}  // namespace

std::optional<BootstrapInterval> bootstrap_tpf(std::span<const DecodingCost> problems,
                                               std::uint64_t seed) {
  const DecodingCost all = std::accumulate(problems.begin(), problems.end(), DecodingCost{},
                                           [](DecodingCost sum, const DecodingCost& c) {
                                             sum += c;
                                             return sum;
                                           });
  const std::optional<double> observed = all.tokens_per_forward();
  if (!observed) {
    return std::nullopt;
  }
  RandomStream stream(seed, RandomPurpose::bootstrap);
  std::vector<double> figures;
  for (std::size_t resample = 0; resample < kResamples; ++resample) {
    DecodingCost chosen;
    for (std::size_t i = 0; i < problems.size(); ++i) {
      chosen += problems[static_cast<std::size_t>(stream.below(problems.size()))];
    }
    // Resamples without forwards have no figure of their own.
    figures.push_back(chosen.tokens_per_forward().value_or(*observed));
  }
  std::ranges::sort(figures);
  const auto low = static_cast<std::size_t>(std::floor(kTail * kResamples));
  return BootstrapInterval{*observed, figures[low], figures[kResamples - 1 - low]};
}

EvaluationSeconds slowest_rank_seconds(std::span<const TimedSample> samples) {
  // Seconds are cumulative: a rank's largest reading is its last.
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
  DecodingCost cost;
  std::int64_t stopped_by_eos = 0;
  std::int64_t timeouts = 0;
  for (const auto& [record, timing] : samples) {
    cost += cost_of(record);
    stopped_by_eos += record.stopped_by_eos ? 1 : 0;
    timeouts += record.verdict == "timeout" ? 1 : 0;
  }
  const EvaluationSeconds seconds = slowest_rank_seconds(samples);
  Json figures;
  add_accuracy(figures, samples);
  const auto tpf = bootstrap_tpf(costs_by_problem(samples), seed);
  figures["tpf"] = tpf ? Json(tpf->observed) : Json(nullptr);
  figures["tpf_low"] = tpf ? Json(tpf->low) : Json(nullptr);
  figures["tpf_high"] = tpf ? Json(tpf->high) : Json(nullptr);
  figures["tpf_mean"] = mean_tokens_per_forward(samples);
  figures["tpf_with_prefill"] = json_or_null(cost.tokens_per_forward_with_prefill());
  figures["tokens_per_second"] =
      ratio(static_cast<double>(cost.tokens - cost.sequences), seconds.decode);
  figures["tokens_per_second_with_prefill"] =
      ratio(static_cast<double>(cost.tokens), seconds.with_prefill);
  figures["tokens"] = cost.tokens;
  figures["forwards"] = cost.forwards;
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

namespace {
bool is_nested_object(const Json& json, int levels) {
  return json.is_object() && (levels == 0 || std::ranges::all_of(json, [&](const Json& member) {
                                return is_nested_object(member, levels - 1);
                              }));
}
}  // namespace

EvaluationSummary::EvaluationSummary(const std::filesystem::path& evaluation_directory)
    : path_(evaluation_directory / "summary.json") {
  json_ = {{"models", Json::object()}, {"complete", Json::array()}};
  if (!std::filesystem::exists(path_)) {
    return;
  }
  const std::string text = read_sealed(path_);
  Json found = try_bounded_json<Json>(text);
  const auto has = [&](const char* key, Json::value_t type) {
    return found.is_object() && found.contains(key) && found[key].type() == type;
  };
  if (!has("models", Json::value_t::object) || !has("complete", Json::value_t::array) ||
      !is_nested_object(found["models"], 3)) {
    throw DataError(fmt::format("{}: not an evaluation summary; remove the file to evaluate anew",
                                path_.string()));
  }
  found.erase(kSealKey);
  json_ = std::move(found);
  if (examine_seal(text) == TextSeal::holds) {
    on_disk_ = json_;
  }
}

void EvaluationSummary::set_damaged_aside(const std::filesystem::path& evaluation_directory) {
  try {
    static_cast<void>(EvaluationSummary(evaluation_directory));
  } catch (const DataError& error) {
    log_warn("{}; it is set aside as *.damaged, and its models are evaluated anew", error.what());
    const std::filesystem::path path = evaluation_directory / "summary.json";
    std::filesystem::rename(path, path.string() + ".damaged");
  }
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

void EvaluationSummary::for_each(
    const std::function<void(const Place&, const Json& figures)>& tell) const {
  for (const auto& [model, tasks] : json_["models"].items()) {
    for (const auto& [task, methods] : tasks.items()) {
      for (const auto& [method, figures] : methods.items()) {
        tell({model, task, method}, figures);
      }
    }
  }
}

bool EvaluationSummary::holds_samples(const std::string& model, const std::string& task,
                                      const std::string& method, const std::string& hash) const {
  return figures(model, task, method).value(kSamplesHash, Json()) == hash;
}

std::string EvaluationSummary::weights_of(const std::string& model) const {
  const Json tasks = json_["models"].value(model, Json::object());
  for (const Json& methods : tasks) {
    for (const Json& figures : methods) {
      if (const auto weights = figures.find("weights");
          weights != figures.end() && weights->is_string()) {
        return weights->get<std::string>();
      }
    }
  }
  return {};
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

void EvaluationSummary::remove_comparisons(const std::string& model, const std::string& task) {
  const Json::json_pointer place = Json::json_pointer() / "models" / model / task;
  if (!json_.contains(place)) {
    return;
  }
  for (Json& figures : json_[place]) {
    figures.erase("disagreements_with_ar");
    const auto speeds = figures.find("speed");
    if (speeds == figures.end() || !speeds->is_array()) {
      continue;
    }
    for (Json& speed : *speeds) {
      for (const auto& [key, figure] : speed.items()) {
        if (key.starts_with("speed_up")) {
          figure = nullptr;
        }
      }
    }
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
  publish_file(path_, seal_json(json_.dump(2) + "\n"));
  on_disk_ = json_;
}

}  // namespace jforge
