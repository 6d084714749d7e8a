#include "workers/evaluate/evaluation_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "workers/evaluate/evaluation_summary.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

PromptId id_of(const SampleRecord& record) { return sample_id(record.index, record.sample); }

/// The benchmark's order.
auto order_of(const SampleRecord& record) { return std::pair(record.index, record.sample); }

std::string shown(const Json& figure, int digits) {
  return figure.is_number() ? fmt::format("{:.{}f}", figure.get<double>(), digits) : "unknown";
}

std::vector<TimedSample> parse_lines(const std::vector<std::string>& texts) {
  std::vector<TimedSample> samples;
  for (const std::string& text : texts) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      samples.push_back(parse_timed_sample(std::string_view(text).substr(begin, end - begin),
                                           "a rank's finished samples"));
      begin = end + 1;
    }
  }
  return samples;
}

/// The number that all samples' timings have in common; null when they have none in common.
Json common(const std::vector<TimedSample>& samples, std::int32_t SampleTiming::*number) {
  const std::int32_t first = samples.front().timing.*number;
  const bool same = std::ranges::all_of(
      samples, [&](const TimedSample& sample) { return sample.timing.*number == first; });
  return same ? Json(first) : Json(nullptr);
}

/// a / b where both are figures of evaluations at the same rank count and batch size.
Json speed_up(const Json& method, const Json& baseline, const char* key) {
  const auto same = [&](const char* setting) {
    return method.at(setting).is_number() && method.at(setting) == baseline.at(setting);
  };
  if (!same("ranks") || !same("batch_prompts") || !method.at(key).is_number() ||
      !baseline.at(key).is_number()) {
    return nullptr;
  }
  return method.at(key).get<double>() / baseline.at(key).get<double>();
}

}  // namespace

std::vector<PromptId> MethodRun::samples() const {
  std::vector<PromptId> ids;
  for (const Problem& problem : set.problems) {
    for (std::int32_t sample = 0; sample < method.samples_per_problem; ++sample) {
      ids.push_back(sample_id(problem.index, sample));
    }
  }
  return ids;
}

void EvaluationStore::claim(const std::string& weights, const std::filesystem::path& source,
                            bool refuse) const {
  make_directory(model_directory());
  const std::filesystem::path path = model_directory() / "model.json";
  if (std::filesystem::exists(path)) {
    const Json found = Json::parse(read_file(path), nullptr, false);
    if (!found.is_object() || !found.contains("weights") || !found.contains("source")) {
      throw DataError(
          fmt::format("{}: does not say which model's results lie there; remove the folder to "
                      "evaluate anew",
                      path.string()));
    }
    if (found["weights"] == weights) {
      return;
    }
    if (refuse) {
      throw ConfigError(
          fmt::format("{} holds results of another model ({}) under the name \"{}\"; name this one "
                      "with --name, "
                      "or choose another --out",
                      directory_.string(), found["source"].dump(), model_));
    }
    EvaluationSummary summary(directory_);
    summary.remove(model_);
    summary.publish();
  }
  publish_file(path, Json{{"weights", weights}, {"source", source.string()}}.dump() + "\n");
}

void EvaluationStore::plan(MethodRun& run) const {
  EvaluationSummary summary(directory_);
  run.current = summary.is_current(model_, run.task(), run.method.label, run.settings) &&
                run.files.merged_settings() == run.settings;
  if (run.current) {
    // A crash after the summary was written leaves them behind.
    run.files.remove_parts();
    return;
  }
  summary.set_complete(model_, false);
  summary.publish();
  run.attempt = run.files.next_attempt();
  for (const TimedSample& sample : finished_samples(run)) {
    run.done.push_back(id_of(sample.record));
  }
  spdlog::info("evaluate {} {} {}: {} problems, {} of {} samples done before", model_, run.task(),
               run.method.label, run.set.problems.size(), run.done.size(), run.samples().size());
}

/// Samples in the parts that count for this run, each once, in the benchmark's order.
std::vector<TimedSample> EvaluationStore::finished_samples(const MethodRun& run) const {
  std::map<std::pair<std::int64_t, std::int64_t>, TimedSample> finished;
  std::size_t others = 0;
  for (TimedSample& sample : run.files.read_parts()) {
    const SampleRecord& record = sample.record;
    if (record.settings != run.settings || record.index < 0 ||
        std::cmp_greater_equal(record.index, run.set.problems.size()) || record.sample < 0 ||
        record.sample >= run.method.samples_per_problem ||
        record.prompt_hash != run.set.problem(id_of(record)).hash) {
      ++others;
      continue;
    }
    finished.emplace(order_of(record), std::move(sample));
  }
  if (others > 0) {
    spdlog::warn("evaluate {} {} {}: {} finished samples belong to other settings and do not count",
                 model_, run.task(), run.method.label, others);
  }
  std::vector<TimedSample> samples;
  for (auto& [order, sample] : finished) {
    samples.push_back(std::move(sample));
  }
  return samples;
}

/// The order matters: parts go last, so that a crash in between loses nothing.
void EvaluationStore::merge(const MethodRun& run, const std::vector<std::string>& lines,
                            const Json& extra) const {
  // What this attempt made came over the wire, for another machine's file may not be visible yet.
  std::vector<TimedSample> samples = parse_lines(lines);
  for (TimedSample& sample : finished_samples(run)) {
    if (sample.timing.attempt != run.attempt) {
      samples.push_back(std::move(sample));
    }
  }
  std::ranges::sort(samples, {}, [](const TimedSample& sample) { return order_of(sample.record); });
  std::vector<PromptId> found;
  std::vector<SampleRecord> records;
  for (const TimedSample& sample : samples) {
    found.push_back(id_of(sample.record));
    records.push_back(sample.record);
  }
  expect(found == run.samples(), "an evaluation that does not hold every sample once");
  run.files.publish_merged(records);

  Json figures = summarise_samples(samples, seed_);
  figures["method"] = run.method.name;
  for (const auto& [key, value] : run.method.settings.items()) {
    figures[key] = value;
  }
  figures["max_new_tokens"] = run.set.max_new_tokens;
  figures["prompt_style"] =
      run.set.choice.prompt_style.empty() ? "default" : run.set.choice.prompt_style;
  figures["scorer"] = run.set.task->version();
  figures["ranks"] = common(samples, &SampleTiming::ranks);
  figures["batch_prompts"] = common(samples, &SampleTiming::batch_prompts);
  figures.update(extra);
  figures["settings"] = run.settings;
  spdlog::info("evaluate {} {} {}: accuracy {}, {} tokens per forward, {} tokens/s", model_,
               run.task(), run.method.label, shown(figures["accuracy"], 3),
               shown(figures["tpf"], 3), shown(figures["tokens_per_second"], 0));
  EvaluationSummary summary(directory_);
  summary.set(model_, run.task(), run.method.label, std::move(figures));
  summary.publish();
  run.files.remove_parts();
}

void EvaluationStore::compare(const std::vector<const MethodRun*>& runs) const {
  const auto baseline = std::ranges::find_if(
      runs, [](const MethodRun* run) { return run->method.label == kBaselineMethod; });
  if (baseline == runs.end()) {
    return;
  }
  const std::vector<SampleRecord> expected = (*baseline)->files.read_merged();
  EvaluationSummary summary(directory_);
  for (const MethodRun* run : runs) {
    if (run == *baseline) {
      continue;
    }
    const std::string& task = run->task();
    const std::string& label = run->method.label;
    const auto set = [&](const char* key, Json value) {
      summary.set_figure(model_, task, label, key, std::move(value));
    };
    const std::vector<SampleRecord> records = run->files.read_merged();
    if (run->method.equals_baseline) {
      set("disagreements_with_ar", count_disagreements(expected, records));
    }
    const Json& of_baseline = summary.figures(model_, task, (*baseline)->method.label);
    const Json& figures = summary.figures(model_, task, label);
    set("speed_up", speed_up(figures, of_baseline, "tokens_per_second"));
    set("speed_up_with_prefill", speed_up(figures, of_baseline, "tokens_per_second_with_prefill"));
    const auto ratio = bootstrap_tpf_ratio(expected, records, seed_);
    set("tpf_ratio", ratio ? Json(ratio->mean) : Json(nullptr));
    set("tpf_ratio_low", ratio ? Json(ratio->low) : Json(nullptr));
    set("tpf_ratio_high", ratio ? Json(ratio->high) : Json(nullptr));
  }
  summary.publish();
}

void EvaluationStore::set_complete() const {
  EvaluationSummary summary(directory_);
  summary.set_complete(model_, true);
  summary.publish();
}

}  // namespace jforge
