#include "workers/train/conversation_samples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "data/prompts/record_stream.h"
#include "runtime/bounded_json.h"
#include "runtime/error.h"
#include "runtime/log.h"

namespace jforge {

namespace {

using Json = nlohmann::json;

struct QuestionAnswer {
  std::string question;
  std::string answer;
};

std::vector<QuestionAnswer> read_question_answers(const ConversationFiles& source) {
  std::vector<QuestionAnswer> items;
  for (const std::string& file : source.files) {
    RecordStream stream(file);
    RawRecord record;
    while (stream.next(record)) {
      const Json json = try_bounded_json<Json>(record.text);
      const auto text = [&](const std::string& field) {
        if (!json.is_object() || !json.contains(field) || !json[field].is_string()) {
          throw DataError(fmt::format("{}:{}: no text under \"{}\"", file, record.line, field));
        }
        return json[field].get<std::string>();
      };
      QuestionAnswer item{text(source.question_field), text(source.answer_field)};
      if (item.answer.empty()) {
        throw DataError(fmt::format("{}:{}: the text under \"{}\" is empty", file, record.line,
                                    source.answer_field));
      }
      items.push_back(std::move(item));
    }
  }
  return items;
}

CausalSample make_sample(const QuestionAnswer& item, const ConversationFiles& source,
                         const BytePairTokenizer& tokenizer, const ChatTemplate& chat) {
  const ChatMessage messages[] = {{"user", item.question}, {"assistant", item.answer}};
  const std::string prompt = chat.render(std::span(messages, 1), true);
  const std::string whole = chat.render(messages, false);
  if (!whole.starts_with(prompt)) {
    throw ConfigError("the chat template does not continue its generation prompt with the answer");
  }
  CausalSample sample;
  sample.tokens = tokenizer.encode(prompt);
  sample.first_target = source.train_prompt ? 1 : static_cast<std::int64_t>(sample.tokens.size());
  std::vector<TokenId> answer = tokenizer.encode(std::string_view(whole).substr(prompt.size()));
  const auto end = std::ranges::find_first_of(answer, source.eos_ids);
  if (end == answer.end()) {
    throw ConfigError(fmt::format(
        "the chat template ends an answer with the tokens {}, none of which is an end-of-sequence "
        "token of the model ({}); add it to eos_token_id of a base model's "
        "generation_config.json, or make it the tokenizer's eos_token for a new model",
        fmt::join(answer.end() - std::min<std::ptrdiff_t>(2, std::ssize(answer)), answer.end(),
                  ", "),
        fmt::join(source.eos_ids, ", ")));
  }
  if (!source.whole_end) {
    answer.erase(end + 1, answer.end());
  }
  sample.tokens.insert(sample.tokens.end(), answer.begin(), answer.end());
  return sample;
}

}  // namespace

std::vector<CausalSample> read_conversations(const ConversationFiles& files,
                                             const BytePairTokenizer& tokenizer,
                                             const ChatTemplate& chat) {
  const std::vector<QuestionAnswer> items = read_question_answers(files);
  if (items.empty()) {
    throw DataError(
        fmt::format("no sample to train on: {} holds no record", fmt::join(files.files, ", ")));
  }
  std::vector<CausalSample> samples;
  for (const QuestionAnswer& item : items) {
    CausalSample sample = make_sample(item, files, tokenizer, chat);
    if (std::cmp_less_equal(sample.tokens.size(), files.longest)) {
      samples.push_back(std::move(sample));
    }
  }
  if (samples.empty()) {
    throw DataError(fmt::format(
        "no sample is left to train on: all {} are longer than {} = {}; raise it or give shorter "
        "texts",
        items.size(), files.longest_key, files.longest));
  }
  spdlog::info("{} samples, {} left out as too long", samples.size(),
               items.size() - samples.size());
  return samples;
}

ConversationSamples::ConversationSamples(std::vector<CausalSample> samples,
                                         const SampleOrderOptions& order, std::int64_t steps)
    : order_(order), steps_(steps), samples_(std::move(samples)) {
  expect(std::cmp_equal(samples_.size(), order.num_samples), "the order is of other samples");
}

std::int64_t ConversationSamples::size() const { return steps_ * order_.options().batch_samples; }

std::int64_t ConversationSamples::length(std::int64_t index) const {
  return static_cast<std::int64_t>(at(index).tokens.size());
}

TrainingSample ConversationSamples::sample(std::int64_t index) { return at(index); }

const CausalSample& ConversationSamples::at(std::int64_t index) const {
  return samples_[static_cast<std::size_t>(order_.at(index))];
}

}  // namespace jforge
