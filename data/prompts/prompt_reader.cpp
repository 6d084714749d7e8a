#include "data/prompts/prompt_reader.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <utility>

#include "data/prompts/json_path_internal.h"
#include "data/prompts/record_stream.h"
#include "runtime/ascii.h"
#include "runtime/error.h"

namespace jforge {
namespace {

constexpr std::int64_t kFractionFrom = 100;
constexpr std::int64_t kProgressBytes = 1 << 20;

RecordValue to_value(simdjson::dom::element element) {
  RecordValue value;
  std::string_view text;
  if (element.get_string().get(text) == simdjson::SUCCESS) {
    value.text = std::string(text);
    value.number = parse_number(value.text);
    return value;
  }
  if (element.is_array()) {
    value.is_array = true;
    return value;
  }
  double number = 0;
  if (element.get_double().get(number) == simdjson::SUCCESS) {
    value.number = number;
  }
  value.text = simdjson::minify(element);
  return value;
}

/// Returns the length of a leading "NaN", "Infinity" or "-Infinity" (Python's json), else 0.
std::size_t no_number(std::string_view text) {
  for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
    if (text.starts_with(word)) {
      return word.size();
    }
  }
  return 0;
}

/// Returns an object's first field names for a message.
std::string field_names(simdjson::dom::element root) {
  constexpr std::size_t kMost = 8;
  simdjson::dom::object object;
  if (root.get_object().get(object) != simdjson::SUCCESS) {
    return "no fields: it is not an object";
  }
  std::vector<std::string_view> names;
  for (const auto& field : object) {
    if (names.size() < kMost) {
      names.push_back(field.key);
    }
  }
  return fmt::format("{}{}", fmt::join(names, ", "), object.size() > kMost ? ", …" : "");
}

/// Returns the first field that holds a text.
std::optional<std::string_view> text_of(simdjson::dom::element message, const char* name,
                                        const char* other) {
  std::string_view text;
  for (const char* const field : {name, other}) {
    const auto value = json_member(message, field);
    if (value && value->get(text) == simdjson::SUCCESS) {
      return text;
    }
  }
  return std::nullopt;
}

/// Appends a message's text parts to `text`; returns the reason on failure.
std::optional<std::string> join_parts(simdjson::dom::array parts, std::string& text) {
  for (const simdjson::dom::element part : parts) {
    const auto type = text_of(part, "type", "type");
    const auto words = text_of(part, "text", "text");
    if (type != "text" || !words) {
      return fmt::format("has a part of type \"{}\" under \"content\"; only text can be read",
                         type.value_or(""));
    }
    text += *words;
  }
  return std::nullopt;
}

/// Appends to `messages`; returns the reason on failure.
std::optional<std::string> read_conversation(simdjson::dom::element value, Conversation& messages) {
  std::string_view text;
  if (value.get_string().get(text) == simdjson::SUCCESS) {
    messages.push_back({"user", std::string(text)});
    return std::nullopt;
  }
  simdjson::dom::array list;
  if (value.get_array().get(list) != simdjson::SUCCESS) {
    return "is neither a text nor a list of chat messages";
  }
  // Messages after the last user message are answers, neither used nor checked.
  std::size_t used = 0;
  std::size_t count = 0;
  for (const simdjson::dom::element item : list) {
    ++count;
    if (item.is_string()) {
      return "is a list of texts, not of chat messages; name the one to take, as in \"/FIELD/0\"";
    }
    const auto role = text_of(item, "role", "from");
    used = role && (*role == "human" || *role == "user") ? count : used;
  }
  for (const simdjson::dom::element item : list) {
    const std::size_t number = messages.size() + 1;
    if (used > 0 && number > used) {
      break;
    }
    const auto content = text_of(item, "content", "value");
    auto role = text_of(item, "role", "from");
    std::string joined;
    simdjson::dom::array parts;
    const auto whole = json_member(item, "content");
    const bool has_parts = role && whole && whole->get(parts) == simdjson::SUCCESS;
    if (has_parts) {
      if (const auto reason = join_parts(parts, joined)) {
        return fmt::format("holds chat messages, but number {} {}", number, *reason);
      }
    }
    if ((!content && !has_parts) || !role) {
      return fmt::format("holds chat messages, but number {} has no text under \"{}\"", number,
                         role ? "content" : "role");
    }
    role = *role == "human" ? "user" : *role == "gpt" ? "assistant" : *role;
    if (*role != "system" && *role != "user" && *role != "assistant") {
      return fmt::format(
          "holds chat messages, but number {} is of \"{}\"; only system, user and assistant are "
          "known",
          number, *role);
    }
    messages.push_back({std::string(*role), has_parts ? joined : std::string(*content)});
  }
  return used > 0 ? std::nullopt : std::optional<std::string>("holds no user message");
}

class Reading {
 public:
  explicit Reading(const PromptReaderOptions& options)
      : options_(options), fields_(parse_fields(options.field)) {
    for (const std::string& rule : options.keep_if) {
      filters_.emplace_back(RecordFilter(rule));
      filter_paths_.emplace_back(filters_.back().path());
      result_.dropped.push_back({filters_.back().rule(), 0});
    }
    result_.dropped.push_back({"empty text", 0});
    if (options.order_by) {
      order_path_.emplace(*options.order_by);
    }
    if (options.text) {
      text_parts_ = parse_text_template(*options.text);
    }
    if (options.answer_field) {
      answer_fields_ = parse_fields(*options.answer_field);
    }
  }

  void record(const RawRecord& raw, std::int32_t file) {
    ++result_.records;
    if (const auto reason = accept(raw, file)) {
      const std::string name = options_.files[static_cast<std::size_t>(file)].string();
      result_.bad.push_back({name, raw.line, *reason});
    }
    expect_few_bad(options_, result_.bad, result_.records);
  }

  PromptReaderResult result_;

 private:
  /// Keeps or drops the record; returns the reason if it is unreadable.
  std::optional<std::string> accept(const RawRecord& raw, std::int32_t file) {
    if (!raw.unreadable.empty()) {
      return raw.unreadable;
    }
    simdjson::dom::element root;
    auto error = parser_.parse(raw.text).get(root);
    if (error) {
      // The error for long integers depends on simdjson's version, so any error is retried.
      error = parser_.parse(strict_json(raw.text)).get(root);
    }
    if (error) {
      return std::string(simdjson::error_message(error));
    }
    for (std::size_t i = 0; i < filters_.size(); ++i) {
      if (!filters_[i].matches(value_at(filter_paths_[i], root))) {
        ++result_.dropped[i].count;
        return std::nullopt;
      }
    }
    PromptCandidate candidate{{}, {}, file, raw.line};
    if (auto reason = options_.text ? read_text(root, candidate.messages)
                                    : read_field(root, candidate.messages)) {
      return reason;
    }
    std::string answer;
    if (const auto value = first_of(answer_fields_, root); value && !value->is_null()) {
      if (value->is_array() || value->is_object()) {
        return fmt::format("answer_field '{}' is neither a text nor a number",
                           *options_.answer_field);
      }
      answer = to_value(*value).text;
    }
    std::size_t bytes = answer.size();
    for (const ChatMessage& message : candidate.messages) {
      bytes += message.content.size();
    }
    if (bytes > kMaxPromptBytes) {
      return fmt::format("the text at '{}'{} has {} bytes; a prompt may have {}",
                         options_.text ? "prompts.text" : options_.field,
                         answer.empty() ? "" : ", with its answer,", bytes, kMaxPromptBytes);
    }
    if (candidate.messages.back().content.find_first_not_of(" \t\r\n") == std::string::npos) {
      ++result_.dropped.back().count;
      return std::nullopt;
    }
    if (order_path_) {
      candidate.key = order_key(value_at(*order_path_, root));
    }
    result_.candidates.push_back(std::move(candidate));
    if (!answer_fields_.empty()) {
      result_.answers.push_back(std::move(answer));
    }
    return std::nullopt;
  }

  std::optional<std::string> missing(const std::string& field, simdjson::dom::element root) {
    return fmt::format("no field '{}'; the record has {}", field, field_names(root));
  }

  /// Both append to `messages` and return the reason on failure.
  std::optional<std::string> read_field(simdjson::dom::element root, Conversation& messages) {
    const auto element = first_of(fields_, root);
    if (!element) {
      return missing(options_.field, root);
    }
    if (const auto reason = read_conversation(*element, messages)) {
      return fmt::format("field '{}' {}", options_.field, *reason);
    }
    return std::nullopt;
  }

  std::optional<std::string> read_text(simdjson::dom::element root, Conversation& messages) {
    std::string text;
    for (const TextPart& part : text_parts_) {
      text += part.literal;
      if (part.name.empty()) {
        continue;
      }
      const auto element = first_of(part.fields, root);
      if (!element) {
        return missing(part.name, root);
      }
      if (element->is_array() || element->is_object()) {
        return fmt::format("field '{}' is neither a text nor a number", part.name);
      }
      text += element->is_null() ? "" : to_value(*element).text;
    }
    messages.push_back({"user", std::move(text)});
    return std::nullopt;
  }

  /// Prefers fields that are not null, because merged data sets have null for missing columns.
  std::optional<simdjson::dom::element> first_of(const std::vector<JsonPath>& fields,
                                                 simdjson::dom::element root) {
    std::optional<simdjson::dom::element> element;
    for (std::size_t i = 0; i < fields.size() && (!element || element->is_null()); ++i) {
      const auto found = fields[i].find(root, scratch_);
      element = found ? found : element;
    }
    return element;
  }

  std::optional<RecordValue> value_at(const JsonPath& path, simdjson::dom::element root) {
    const auto element = path.find(root, scratch_);
    return element ? std::optional(to_value(*element)) : std::nullopt;
  }

  const PromptReaderOptions& options_;
  std::vector<JsonPath> fields_;
  std::vector<TextPart> text_parts_;
  std::vector<JsonPath> answer_fields_;
  std::vector<RecordFilter> filters_;
  std::vector<JsonPath> filter_paths_;
  std::optional<JsonPath> order_path_;
  simdjson::dom::parser parser_;
  JsonPath::Scratch scratch_;
};

}  // namespace

std::string strict_json(std::string_view text) {
  constexpr std::size_t kLong = 19;
  std::string result;
  result.reserve(text.size() + 64);
  bool in_string = false;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (const std::size_t size = in_string ? 0 : no_number(text.substr(at)); size > 0) {
      result += "null";
      at += size;
      continue;
    }
    if (in_string || !is_digit(c)) {
      const std::size_t size = in_string && c == '\\' && at + 1 < text.size() ? 2 : 1;
      in_string = in_string != (c == '"');
      result += text.substr(at, size);
      at += size;
      continue;
    }
    std::size_t end = std::min(text.find_first_not_of("0123456789", at), text.size());
    const std::size_t digits = end - at;
    const std::size_t rest = std::min(text.find_first_not_of("0123456789.eE+-", end), text.size());
    const bool integer = rest == end;
    result += text.substr(at, rest - at);
    result += integer && digits >= kLong ? ".0" : "";
    at = rest;
  }
  return result;
}

void expect_few_bad(const PromptReaderOptions& options, const std::vector<BadRecord>& bad,
                    std::int64_t records) {
  const auto count = static_cast<std::int64_t>(bad.size());
  // A fraction of few records could stop a good import early.
  const bool enough = records >= kFractionFrom || options.max_bad_fraction == 0;
  if (enough &&
      static_cast<double>(count) > options.max_bad_fraction * static_cast<double>(records)) {
    const BadRecord& first = bad.front();
    throw DataError(fmt::format(
        "{} of {} records so far cannot be read (prompts.max_bad_fraction allows {:.3g} "
        "of all); the first is {}:{}: {}",
        count, records, options.max_bad_fraction, first.file, first.line, first.reason));
  }
}

PromptReaderResult read_prompts(
    const PromptReaderOptions& options,
    const std::function<void(std::int64_t records, std::int64_t bytes)>& progress) {
  Reading reading(options);
  RawRecord record;
  std::int64_t earlier_bytes = 0;
  std::int64_t reported = 0;
  for (std::size_t file = 0; file < options.files.size(); ++file) {
    RecordStream stream(options.files[file]);
    while (stream.next(record)) {
      // Padding lets simdjson parse in place.
      record.text.reserve(record.text.size() + simdjson::SIMDJSON_PADDING);
      reading.record(record, static_cast<std::int32_t>(file));
      const std::int64_t bytes = earlier_bytes + stream.bytes_read();
      if (progress && bytes - reported >= kProgressBytes) {
        progress(reading.result_.records, bytes);
        reported = bytes;
      }
    }
    earlier_bytes += stream.bytes_read();
  }
  reading.result_.bytes = earlier_bytes;
  return std::move(reading.result_);
}

}  // namespace jforge
