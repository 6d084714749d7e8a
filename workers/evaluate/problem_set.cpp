#include "workers/evaluate/problem_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "data/tokenizer/unicode.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {

namespace {

std::string problem_hash(const TaskRecord& record, std::span<const TokenId> prompt) {
  std::uint64_t hash = 0;
  for (const auto& [key, value] : record.fields) {
    hash = hash64(value, hash64(key, hash));
  }
  return hash_hex(hash64(std::as_bytes(prompt), hash));
}

}  // namespace

TaskEncoder::TaskEncoder(std::filesystem::path model_directory, ChatTemplateOptions options)
    : model_directory_(std::move(model_directory)),
      options_(std::move(options)),
      tokenizer_(BytePairTokenizer::load(model_directory_)) {}

TemplatedPrompt TaskEncoder::encode(const TaskPrompt& prompt) {
  if (prompt.messages.empty()) {
    return {prompt.prefix, tokenizer_.encode_alone(prompt.prefix)};
  }
  if (!chat_template_) {
    chat_template_ = ChatTemplate::load(model_directory_, options_);
  }
  std::string text = chat_template_->render(prompt.messages, true) + prompt.prefix;
  std::vector<TokenId> ids = tokenizer_.encode(text);
  return {std::move(text), std::move(ids)};
}

const Problem& ProblemSet::problem(PromptId id) const {
  expect(id >= 0 && std::cmp_less(problem_of(id), problems.size()), "no such problem in the set");
  return problems[static_cast<std::size_t>(problem_of(id))];
}

DecodeRequest ProblemSet::request(PromptId id, const std::vector<TokenId>& eos_ids) const {
  return {
      .id = id, .prompt = problem(id).prompt, .max_new_tokens = max_new_tokens, .eos_ids = eos_ids};
}

std::string ProblemSet::text_of(std::span<const TokenId> completion,
                                const BytePairTokenizer& tokenizer) const {
  const auto end = std::ranges::find_first_of(completion, stop_tokens);
  return replaced_utf8(tokenizer.decode(std::span(completion.begin(), end), /*skip_special=*/true));
}

ProblemSet load_problem_set(const std::string& entry, const EvaluateConfig& config,
                            TaskEncoder& encoder, std::int64_t vocabulary_size) {
  ProblemSet set;
  set.choice = config.choice(entry);
  set.task = make_task(set.choice.name, {.prompt_style = set.choice.prompt_style});
  set.max_new_tokens = config.max_new_tokens.value_or(set.task->default_max_new_tokens());
  for (const std::string& text : set.task->stop_texts()) {
    if (const auto id = encoder.tokenizer().token_id(text)) {
      set.stop_tokens.push_back(*id);
    }
  }
  std::vector<TaskRecord> records = set.task->load(config.data);
  if (config.limit && std::cmp_less(*config.limit, records.size())) {
    records.resize(static_cast<std::size_t>(*config.limit));
  }
  std::uint64_t hash = 0;
  for (TaskRecord& record : records) {
    Problem problem;
    problem.index = static_cast<std::int64_t>(set.problems.size());
    TemplatedPrompt prompt = encoder.encode(set.task->prompt(record));
    problem.prompt = std::move(prompt.ids);
    problem.prompt_text = std::move(prompt.text);
    const auto highest = std::ranges::max_element(problem.prompt);
    if (highest == problem.prompt.end() || *highest >= vocabulary_size) {
      throw DataError(fmt::format(
          "problem {}: its prompt is {}; tokenizer and model do not belong together", record.id,
          problem.prompt.empty()
              ? std::string("empty")
              : fmt::format("token {} of a vocabulary of {}", *highest, vocabulary_size)));
    }
    problem.hash = problem_hash(record, problem.prompt);
    problem.record = std::move(record);
    hash = hash64(problem.hash, hash);
    set.problems.push_back(std::move(problem));
  }
  set.hash = hash_hex(hash);
  return set;
}

}  // namespace jforge
