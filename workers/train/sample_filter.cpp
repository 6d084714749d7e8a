#include "workers/train/sample_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/error.h"
#include "workers/train/collapse.h"

namespace jforge {

namespace {

/// Shorter sentences repeat in good text too.
constexpr std::size_t kShortestSentence = 16;
constexpr std::string_view kBlanks = " \t\r\n";

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

bool SampleFilterConfig::active() const {
  return max_repetition < 1 || max_sentence_repeats > 0 || min_tokens > 0 || max_tokens ||
         require_eos || task;
}

void SampleFilterConfig::validate() const {
  if (!(max_repetition >= 0 && max_repetition <= 1)) {
    throw ConfigError(
        fmt::format("train.filter_repetition = {} must lie in [0, 1]", max_repetition));
  }
  if (max_sentence_repeats < 0) {
    throw ConfigError(fmt::format("train.filter_sentence_repeats = {} must not be negative",
                                  max_sentence_repeats));
  }
  if (min_tokens < 0) {
    throw ConfigError(fmt::format("train.filter_min_tokens = {} must not be negative", min_tokens));
  }
  if (max_tokens && *max_tokens < std::max<std::int64_t>(1, min_tokens)) {
    throw ConfigError(
        fmt::format("train.filter_max_tokens = {} must be at least 1 and train.filter_min_tokens",
                    *max_tokens));
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
                    "gsm8k, math, word_problems and ledger do not",
                    *task));
  }
}

std::string_view to_string(FilterVerdict verdict) {
  switch (verdict) {
    case FilterVerdict::kept:
      return "kept";
    case FilterVerdict::unfinished:
      return "no end of sequence";
    case FilterVerdict::too_short:
      return "too short";
    case FilterVerdict::too_long:
      return "too long";
    case FilterVerdict::repetition:
      return "repeated tokens";
    case FilterVerdict::sentences:
      return "repeated sentences";
    case FilterVerdict::no_reference:
      return "no reference answer";
    case FilterVerdict::wrong:
      return "wrong answer";
  }
  throw InternalError("unknown verdict of cleaning");
}

std::int64_t most_repeated_sentence(std::string_view text) {
  std::unordered_map<std::string_view, std::int64_t> counts;
  std::int64_t most = 0;
  const auto add = [&](std::string_view sentence) {
    const std::size_t first = sentence.find_first_not_of(kBlanks);
    if (first == std::string_view::npos) {
      return;
    }
    sentence = sentence.substr(first, sentence.find_last_not_of(kBlanks) + 1 - first);
    if (sentence.size() >= kShortestSentence) {
      most = std::max(most, ++counts[sentence]);
    }
  };
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool stop = text[i] == '.' || text[i] == '!' || text[i] == '?';
    if (text[i] == '\n' || (stop && i + 1 < text.size() && text[i + 1] == ' ')) {
      add(text.substr(begin, i + 1 - begin));
      begin = i + 1;
    }
  }
  add(text.substr(begin));
  return most;
}

FilterVerdict judge(const SampleFilterConfig& config, const Trajectory& trajectory,
                    const FilterMeans& means) {
  if (config.require_eos && trajectory.stop != StopReason::eos) {
    return FilterVerdict::unfinished;
  }
  const std::vector<TokenId> answer = answer_of(trajectory);
  if (std::ssize(answer) < config.min_tokens) {
    return FilterVerdict::too_short;
  }
  if (config.max_tokens && std::ssize(answer) > *config.max_tokens) {
    return FilterVerdict::too_long;
  }
  if (config.max_repetition < 1 && sequence_repetition(answer) > config.max_repetition) {
    return FilterVerdict::repetition;
  }
  if (!config.reads_text()) {
    return FilterVerdict::kept;
  }
  expect(means.tokenizer != nullptr, "cleaning by the text needs a tokenizer");
  const std::string text = means.tokenizer->decode(answer, /*skip_special=*/true);
  if (config.max_sentence_repeats > 0 &&
      most_repeated_sentence(text) > config.max_sentence_repeats) {
    return FilterVerdict::sentences;
  }
  return config.task ? judge_answer(text, trajectory.prompt_id, means) : FilterVerdict::kept;
}

}  // namespace jforge
