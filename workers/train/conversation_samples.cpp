#include "workers/train/conversation_samples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "data/prompts/prompt_reader.h"
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

std::string text_of(const Json& record, const std::string& field, const std::string& place) {
  if (!record.is_object() || !record.contains(field) || !record[field].is_string()) {
    throw DataError(fmt::format("{}: no text under \"{}\"", place, field));
  }
  return record[field].get<std::string>();
}

/// Last line of a text, for messages.
std::string shown_end(const std::string& text) {
  const std::size_t begin = text.find_last_of('\n', text.find_last_not_of('\n')) + 1;
  return Json(text.substr(std::min(begin, text.size())))
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Returns the generation prompt that `whole` continues. An answer with thoughts continues the
/// thinking prompt, because without thinking Qwen3's prompt ends with empty thoughts. Rejects
/// others: after such a prompt (DeepSeek-R1's opens thoughts) the model would never be asked to
/// continue as in the sample.
std::string continued_prompt(std::span<const ChatMessage> question, const std::string& whole,
                             const ChatTemplate& chat, const std::string& place) {
  std::string prompt = chat.render(question, true);
  if (whole.starts_with(prompt)) return prompt;
  std::string thinking = chat.render_thinking_prompt(question);
  if (whole.starts_with(thinking)) return thinking;
  throw ConfigError(fmt::format(
      "{}: the chat template of {} does not continue its generation prompt, which ends in {}, with "
      "this answer; put a template that prints an answer as the prompt begins it into "
      "chat_template.jinja, or take the record out",
      place, chat.origin(), shown_end(prompt)));
}

CausalSample make_sample(const QuestionAnswer& item, const ConversationFiles& source,
                         const BytePairTokenizer& tokenizer, const ChatTemplate& chat,
                         const std::string& place) {
  const ChatMessage messages[] = {{"user", item.question}, {"assistant", item.answer}};
  const std::string whole = chat.render_answered(messages);
  const std::string prompt = continued_prompt(std::span(messages, 1), whole, chat, place);
  CausalSample sample;
  sample.tokens = tokenizer.encode(prompt);
  sample.first_target = source.train_prompt ? 1 : static_cast<std::int64_t>(sample.tokens.size());
  std::vector<TokenId> answer = tokenizer.encode(std::string_view(whole).substr(prompt.size()));
  const auto end = std::ranges::find_first_of(answer, source.eos_ids);
  if (end == answer.end()) {
    throw ConfigError(
        fmt::format("{}: the chat template ends an answer with the tokens {}, none of which is an "
                    "end-of-sequence "
                    "token of the model ({}); add it to eos_token_id of a base model's "
                    "generation_config.json, or make it the tokenizer's eos_token for a new model",
                    place,
                    fmt::join(answer.end() - std::min<std::ptrdiff_t>(2, std::ssize(answer)),
                              answer.end(), ", "),
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
  std::vector<CausalSample> samples;
  std::size_t records = 0;
  for (const std::string& file : files.files) {
    RecordStream stream(file);
    for (RawRecord record; stream.next(record); ++records) {
      const std::string place = fmt::format("{}:{}", file, record.line);
      if (!record.unreadable.empty()) {
        throw DataError(fmt::format("{}: {}", place, record.unreadable));
      }
      Json json = try_bounded_json<Json>(record.text);
      if (json.is_discarded()) {
        json = try_bounded_json<Json>(strict_json(record.text));
      }
      if (json.is_discarded()) {
        throw DataError(place + ": not valid JSON");
      }
      const QuestionAnswer item{text_of(json, files.question_field, place),
                                text_of(json, files.answer_field, place)};
      if (item.answer.empty()) {
        throw DataError(
            fmt::format("{}: the text under \"{}\" is empty", place, files.answer_field));
      }
      CausalSample sample = make_sample(item, files, tokenizer, chat, place);
      if (std::cmp_less_equal(sample.tokens.size(), files.longest)) {
        samples.push_back(std::move(sample));
      }
    }
  }
  if (records == 0) {
    throw DataError(
        fmt::format("no sample to train on: {} holds no record", fmt::join(files.files, ", ")));
  }
  if (samples.empty()) {
    throw DataError(fmt::format(
        "no sample is left to train on: all {} are longer than {} = {}; raise it or give shorter "
        "texts",
        records, files.longest_key, files.longest));
  }
  log_info("{} samples, {} left out as too long", samples.size(), records - samples.size());
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
