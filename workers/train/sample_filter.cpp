#include "workers/train/sample_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "workers/train/collapse.h"

namespace jforge {

namespace {

/// Fixed points up to the eos.
std::vector<TokenId> answer_of(const Trajectory& trajectory) {
  std::vector<TokenId> answer;
  for (const TrajectoryBlock& block : trajectory.blocks) {
    answer.insert(answer.end(), block.states.end() - trajectory.block_size, block.states.end());
  }
  if (trajectory.eos_position >= 0) {
    answer.resize(std::min(answer.size(), static_cast<std::size_t>(trajectory.eos_position)));
  }
  return answer;
}

FilterVerdict judge_answer(std::string_view text, PromptId prompt, const FilterMeans& means) {
  expect(means.task != nullptr && means.prompts != nullptr,
         "cleaning by a task needs it and the prompts' reference answers");
  const std::string reference = means.prompts->answer(prompt);
  const std::optional<TaskRecord> record = means.task->reference_record(reference);
  if (reference.empty() || !record) {
    return FilterVerdict::no_reference;
  }
  try {
    const Verdict verdict = means.task->grade(means.task->extract(text, *record), *record, nullptr);
    return verdict.status == VerdictStatus::pass ? FilterVerdict::kept : FilterVerdict::wrong;
  } catch (const DataError&) {
    return FilterVerdict::no_reference;  // not an answer of this task
  }
}

}  // namespace

bool SampleFilterConfig::active() const { return max_repetition < 1 || require_eos || task; }

void SampleFilterConfig::validate() const {
  if (!(max_repetition >= 0 && max_repetition <= 1)) {
    throw ConfigError(
        fmt::format("train.filter_repetition = {} must lie in [0, 1]", max_repetition));
  }
  if (!task) {
    return;
  }
  std::unique_ptr<Task> checked;
  try {
    checked = make_task(*task);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("train.filter_task: {}", error.what()));
  }
  if (!checked->reference_record("1")) {
    throw ConfigError(
        fmt::format("train.filter_task = \"{}\": its check needs more than a reference answer; "
                    "gsm8k, math and ledger do not",
                    *task));
  }
}

std::string_view to_string(FilterVerdict verdict) {
  switch (verdict) {
    case FilterVerdict::kept:
      return "kept";
    case FilterVerdict::unfinished:
      return "no end of sequence";
    case FilterVerdict::repetition:
      return "repeated tokens";
    case FilterVerdict::no_reference:
      return "no reference answer";
    case FilterVerdict::wrong:
      return "wrong answer";
  }
  throw InternalError("unknown verdict of cleaning");
}

FilterVerdict judge(const SampleFilterConfig& config, const Trajectory& trajectory,
                    const FilterMeans& means) {
  if (config.require_eos && trajectory.stop != StopReason::eos) {
    return FilterVerdict::unfinished;
  }
  const std::vector<TokenId> answer = answer_of(trajectory);
  if (config.max_repetition < 1 && sequence_repetition(answer) > config.max_repetition) {
    return FilterVerdict::repetition;
  }
  if (!config.task) {
    return FilterVerdict::kept;
  }
  expect(means.tokenizer != nullptr, "cleaning by the text needs a tokenizer");
  return judge_answer(means.tokenizer->decode(answer, /*skip_special=*/true), trajectory.prompt_id,
                      means);
}

}  // namespace jforge
