#include "workers/evaluate/evaluation_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "model/decoding/cut_answers.h"
#include "runtime/bounded_json.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/text_seal.h"
#include "workers/evaluate/evaluation_summary.h"
#include "workers/evaluate/part_files.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kModelName = "model.json";

PromptId id_of(const SampleRecord& record) { return sample_id(record.index, record.sample); }

bool is_cut(const SampleRecord& record) { return !record.stopped_by_eos; }

auto order_of(const SampleRecord& record) { return std::pair(record.index, record.sample); }

std::string shown(const Json& figure, int digits) {
  return figure.is_number() ? fmt::format("{:.{}f}", figure.get<double>(), digits) : "unknown";
}

std::vector<TimedSample> parse_lines(const std::vector<std::string>& texts) {
  std::vector<TimedSample> samples;
  for (const std::string& text : texts) {
    (void)for_each_line_of(text, "a rank's finished samples",
                           [&](std::string_view line, const std::string& origin) {
                             samples.push_back(parse_timed_sample(line, origin));
                           });
  }
  return samples;
}

/// A timing field if equal for all samples, else null.
Json common(const std::vector<TimedSample>& samples, std::int32_t SampleTiming::*number) {
  const std::int32_t first = samples.front().timing.*number;
  const bool same = std::ranges::all_of(
      samples, [&](const TimedSample& sample) { return sample.timing.*number == first; });
  return same ? Json(first) : Json(nullptr);
}

/// model.json.
struct Claim {
  std::string weights;  ///< Empty: unknown.
  std::string source;
  bool sealed = false;
};

/// Falls back to the figures' weights if model.json is damaged.
Claim read_claim(const std::filesystem::path& path, const std::string& weights_of_figures) {
  try {
    const std::string text = read_sealed(path);
    const Json found = try_bounded_json<Json>(text);
    if (!found.is_object() || !found.contains("weights") || !found["weights"].is_string() ||
        !found.contains("source")) {
      throw DataError(path.string() + " does not say which model its results are of");
    }
    return {found["weights"].get<std::string>(), found["source"].dump(),
            examine_seal(text) == TextSeal::holds};
  } catch (const DataError& error) {
    log_warn("{}; it is written anew", error.what());
    return {weights_of_figures, "unknown", false};
  }
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
  EvaluationSummary::set_damaged_aside(directory_);
  const std::filesystem::path path = model_directory() / kModelName;
  const std::string of_figures = EvaluationSummary(directory_).weights_of(model_);
  if (std::filesystem::exists(path) || !of_figures.empty()) {
    const Claim found = read_claim(path, of_figures);
    const bool others = !found.weights.empty() && found.weights != weights;
    if (!others && found.sealed) {
      return;
    }
    if (others && refuse) {
      throw ConfigError(
          fmt::format("{} holds results of another model ({}) under the name \"{}\"; name this one "
                      "with --name, "
                      "or choose another --out",
                      directory_.string(), found.source, model_));
    }
    if (others) {
      EvaluationSummary summary(directory_);
      summary.remove(model_);
      summary.publish();
    }
  }
  const Json claim{{"weights", weights}, {"source", source.string()}};
  // A directory's name may be invalid UTF-8.
  publish_file(path, seal_json(claim.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"));
}

void EvaluationStore::plan(MethodRun& run) const {
  EvaluationSummary summary(directory_);
  run.current = summary.is_current(model_, run.task(), run.method.label, run.settings);
  if (run.current && !summary.holds_samples(model_, run.task(), run.method.label,
                                            run.files.merged_hash().value_or(""))) {
    log_warn("{} is lost, or does not match its checksum in summary.json: evaluated anew",
             run.files.merged().string());
    run.current = false;
  }
  if (run.current) {
    // Left by a crash after the summary was written.
    run.files.remove_parts();
    return;
  }
  summary.set_complete(model_, false);
  summary.publish();
  run.attempt = run.files.next_attempt();
  for (const TimedSample& sample : finished_samples(run)) {
    run.done.push_back(id_of(sample.record));
  }
  log_info("evaluate {} {} {}: {} problems, {} of {} samples done before", model_, run.task(),
           run.method.label, run.set.problems.size(), run.done.size(), run.samples().size());
}

/// Valid samples in the parts, one per id, in the benchmark's order.
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
    log_warn("evaluate {} {} {}: {} finished samples belong to other settings and do not count",
             model_, run.task(), run.method.label, others);
  }
  std::vector<TimedSample> samples;
  for (auto& [order, sample] : finished) {
    samples.push_back(std::move(sample));
  }
  return samples;
}

/// Parts are removed last, so that a crash loses nothing.
void EvaluationStore::merge(const MethodRun& run, const std::vector<std::string>& lines,
                            const Json& extra) const {
  // Uses the gathered lines: files of other machines may not be visible yet.
  std::vector<TimedSample> samples = parse_lines(lines);
  std::set<PromptId> finished_here;
  for (const TimedSample& sample : samples) {
    finished_here.insert(id_of(sample.record));
  }
  // An earlier part, evaluated again, may have become visible since plan().
  for (TimedSample& sample : finished_samples(run)) {
    if (!finished_here.contains(id_of(sample.record))) {
      samples.push_back(std::move(sample));
    }
  }
  std::ranges::sort(samples, {}, [](const TimedSample& sample) { return order_of(sample.record); });
  std::vector<PromptId> found;
  std::vector<SampleRecord> records;
  for (const TimedSample& sample : samples) {
    found.push_back(id_of(sample.record));
    records.push_back(sample.record);
    records.back().prompt = run.set.problem(id_of(sample.record)).prompt_text;
  }
  expect(found == run.samples(), "an evaluation that does not hold every sample once");
  run.files.publish_merged(records);
  const std::string samples_hash = run.files.merged_hash().value();

  Json figures = summarise_samples(samples, seed_);
  figures["method"] = run.method.name;
  for (const auto& [key, value] : run.method.settings.items()) {
    figures[key] = value;
  }
  figures["max_new_tokens"] = run.set.max_new_tokens;
  figures["prompt_style"] =
      run.set.choice.prompt_style.empty() ? "default" : run.set.choice.prompt_style;
  figures["scorer"] = run.set.task->version();
  figures["problems"] = run.set.hash;
  figures["ranks"] = common(samples, &SampleTiming::ranks);
  figures["batch_prompts"] = common(samples, &SampleTiming::batch_prompts);
  figures.update(extra);
  figures[EvaluationSummary::kSamplesHash] = samples_hash;
  figures["settings"] = run.settings;
  log_info("evaluate {} {} {}: accuracy {}, {} tokens per forward", model_, run.task(),
           run.method.label, shown(figures["accuracy"], 3), shown(figures["tpf"], 3));
  const auto ends = AnswerEnds{std::ssize(samples), std::ranges::count_if(records, is_cut)};
  // With stop texts, a cut answer may be complete.
  if (const auto warning = warning_of_cut_answers(
          fmt::format("evaluate {} {} {}", model_, run.task(), run.method.label), ends,
          "evaluate.max_new_tokens", run.set.max_new_tokens);
      warning && run.set.task->stop_texts().empty()) {
    log_warn("{}", *warning);
  }
  EvaluationSummary summary(directory_);
  if (run.method.label == kBaselineMethod &&
      !summary.is_current(model_, run.task(), run.method.label, run.settings)) {
    // Other methods were compared with the old baseline.
    summary.remove_comparisons(model_, run.task());
  }
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
    const bool comparable =
        run->method.equals_baseline &&
        run->method.sampling.chooses_as((*baseline)->method.sampling) &&
        run->method.samples_per_problem == (*baseline)->method.samples_per_problem;
    if (run != *baseline && comparable) {
      summary.set_figure(model_, run->task(), run->method.label, "disagreements_with_ar",
                         count_disagreements(expected, run->files.read_merged()));
    }
  }
  summary.publish();
}

void EvaluationStore::set_speed(const std::string& task, const std::string& method,
                                Json figures) const {
  EvaluationSummary summary(directory_);
  summary.set_figure(model_, task, method, "speed", std::move(figures));
  summary.publish();
}

void EvaluationStore::set_complete() const {
  EvaluationSummary summary(directory_);
  summary.set_complete(model_, true);
  summary.publish();
}

}  // namespace jforge
