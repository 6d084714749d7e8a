#include "data/tokenizer/chat_template.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <mutex>
#include <optional>

#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/tokenizer_files.h"
#include "data/tokenizer/unicode.h"
#include "runtime/bounded_json.h"
#include "runtime/contained_file.h"
#include "runtime/error.h"
#include "runtime/python_process.h"

namespace jforge {

const char* chat_template_source();  // chat_template.py

namespace {

constexpr std::string_view kPlainChatMl =
    R"({% for message in messages %})"
    R"({{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}})"
    R"({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

constexpr const char* kDay = "strftime_now";

/// Refuses arguments that the template's text does not name, because they would have no effect.
void expect_named(const TemplateArguments& arguments, std::string_view jinja,
                  const std::string& origin) {
  for (const auto& [name, value] : arguments) {
    if (jinja.find(name) == std::string_view::npos) {
      throw ConfigError(
          fmt::format("{}: its chat template does not name {}, which the template arguments set; "
                      "remove it from them, or spell it as the template does",
                      origin, name));
    }
  }
}

/// The template failed; what() names its line.
struct TemplateError : DataError {
  explicit TemplateError(const nlohmann::json& answer)
      : DataError(fmt::format("line {}: {}", answer.at("line").get<int>(),
                              answer.at("reason").get<std::string>())),
        reason(answer.at("reason")),
        raised(answer.at("raised")) {}
  std::string reason;
  bool raised;  ///< By raise_exception.
};

/// Accepts YYYY-MM-DD from year 1000 on.
bool is_day(std::string_view text) {
  std::array<int, 3> parts{};
  constexpr std::array<std::size_t, 4> kBegins = {0, 5, 8, 11};
  for (std::size_t i = 0; i < 3 && text.size() == 10; ++i) {
    const std::string_view part = text.substr(kBegins[i], kBegins[i + 1] - kBegins[i] - 1);
    const char* const end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data(), end, parts[i]);
    if (error != std::errc() || stop != end || (i < 2 && *end != '-')) return false;
  }
  const auto [year, month, day] = parts;
  return year >= 1000 && month > 0 && day > 0 &&
         std::chrono::year_month_day(std::chrono::year(year),
                                     std::chrono::month(static_cast<unsigned>(month)),
                                     std::chrono::day(static_cast<unsigned>(day)))
             .ok();
}

nlohmann::json read_json(const std::filesystem::path& directory, const char* name) {
  if (!holds_contained_file(directory, name)) return nlohmann::json::object();
  const auto path = directory / name;
  return parse_json_object(read_file_or_gz(path), path.string());
}

std::optional<std::string> read_template(const std::filesystem::path& directory,
                                         const nlohmann::json& config, const std::string& origin) {
  for (const char* name : {"additional_chat_templates/default.jinja", "chat_template.jinja"}) {
    if (holds_contained_file(directory, name)) return read_file_or_gz(directory / name);
  }
  const nlohmann::json& value = json_member(config, "chat_template");
  if (value.is_null()) return std::nullopt;
  if (value.is_object()) {
    const nlohmann::json& text = json_member(value, "default");
    if (text.is_null()) return std::nullopt;
    return json_string(text, origin, "chat_template 'default'");
  }
  if (!value.is_array()) return json_string(value, origin, "chat_template");
  for (const nlohmann::json& entry : value) {
    json_only_known(entry, {"name", "template"}, origin, "an entry of chat_template");
    if (json_string(json_member(entry, "name"), origin, "chat_template name") == "default") {
      return json_string(json_member(entry, "template"), origin, "chat_template 'default'");
    }
  }
  return std::nullopt;
}

/// Adds or replaces special tokens, each "text" or {"content": "text", …}. Other members that end
/// in "_token" are flags.
void add_tokens(const nlohmann::json& object, const std::string& origin,
                ChatTemplate::Tokens& tokens) {
  constexpr auto kNamed = std::to_array<std::string_view>(
      {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"});
  for (const auto& [name, value] : object.items()) {
    const bool named = std::ranges::find(kNamed, name) != kNamed.end();
    if (!named && !(name.ends_with("_token") && value.is_string())) continue;
    std::erase_if(tokens, [&, &name = name](const auto& token) { return token.first == name; });
    if (value.is_null()) continue;
    tokens.emplace_back(
        name, json_string(value.is_object() ? json_member(value, "content") : value, origin, name));
  }
}

ChatTemplate::Tokens read_tokens(const std::filesystem::path& directory,
                                 const nlohmann::json& config) {
  ChatTemplate::Tokens tokens;
  const std::string origin = (directory / "tokenizer_config.json").string();
  add_tokens(config, origin, tokens);
  if (const nlohmann::json& more = json_member(config, "extra_special_tokens"); more.is_object()) {
    add_tokens(more, origin, tokens);
  }
  if (json_member(config, "added_tokens_decoder").is_null()) {
    constexpr const char* kMap = "special_tokens_map.json";
    add_tokens(read_json(directory, kMap), (directory / kMap).string(), tokens);
  }
  return tokens;
}

/// Reads tokenizer.json or, without it, tokenizer_config.json.
bool has_chatml_tokens(const std::filesystem::path& directory, const nlohmann::json& config) {
  nlohmann::json tokens = json_member(config, "added_tokens_decoder");
  if (holds_contained_file(directory, "tokenizer.json")) {
    tokens = json_member(read_json(directory, "tokenizer.json"), "added_tokens");
  }
  const auto has = [&](const char* text) {
    return std::any_of(tokens.begin(), tokens.end(), [&](const nlohmann::json& token) {
      return token.is_object() && json_member(token, "content") == text;
    });
  };
  return has("<|im_start|>") && has("<|im_end|>");
}

}  // namespace

class ChatTemplate::Process {
 public:
  explicit Process(const std::string& origin)
      : python_(chat_template_source(), {},
                {origin, "its chat template is rendered by Python's jinja2",
                 "apt-get install python3-jinja2"}) {}

  /// Returns this process's, a new one if the last one has ended.
  static std::shared_ptr<Process> shared(const std::string& origin) {
    static std::mutex mutex;
    static std::shared_ptr<Process> process;
    const std::lock_guard lock(mutex);
    if (!process || process->ended_) process = std::make_shared<Process>(origin);
    return process;
  }

  /// Returns its number. Throws as ask().
  std::size_t add(std::string_view jinja, const nlohmann::json& day) {
    const std::lock_guard lock(mutex_);
    return std::stoul(ask({{"template", jinja}, {"day", day}}));
  }

  /// Throws as ask().
  std::string render(std::size_t number, const nlohmann::json& variables) {
    const std::lock_guard lock(mutex_);
    return ask({{"number", number}, {"variables", variables}});
  }

 private:
  /// Throws TemplateError, EnvironmentError.
  std::string ask(const nlohmann::json& request) {
    python_.write(request.dump() + "\n");
    std::string line;
    try {
      for (std::array<char, 1 << 16> bytes; !line.ends_with('\n');) {
        const std::size_t count = python_.read(bytes);
        if (count == 0) throw EnvironmentError("the renderer of chat templates has ended");
        line.append(bytes.data(), count);
      }
    } catch (const Error&) {
      ended_ = true;
      throw;
    }
    const auto answer = parse_bounded_json(line, "the renderer of chat templates");
    if (!answer.contains("text")) throw TemplateError(answer);
    return answer.at("text");
  }

  std::mutex mutex_;
  PythonProcess python_;
  std::atomic<bool> ended_ = false;
};

bool is_template_argument(std::string_view name) {
  constexpr auto kOwn = std::to_array<std::string_view>(
      {"messages", "add_generation_prompt", "tools", "documents", "raise_exception"});
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !name.empty() && letter(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); }) &&
         std::ranges::find(kOwn, name) == kOwn.end();
}

void expect_template_arguments(const std::string& key, const TemplateArguments& arguments) {
  for (const auto& [name, value] : arguments) {
    if (!is_template_argument(name)) {
      throw ConfigError(fmt::format(
          "{}: \"{}\" cannot be given to a chat template: name a variable of the template's own",
          key, name));
    }
    const auto* const text = std::get_if<std::string>(&value);
    if (name == kDay && (text == nullptr || !is_day(*text))) {
      throw ConfigError(fmt::format("{}: {} must be a day such as \"2026-01-31\"", key, kDay));
    }
    if (text != nullptr) require_valid_utf8(*text, fmt::format("{}: {}", key, name));
  }
}

std::string arguments_json(const TemplateArguments& arguments) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, value] : arguments) {
    std::visit([&, &name = name](const auto& given) { json[name] = given; }, value);
  }
  return json.dump();
}

ChatTemplate ChatTemplate::parse(std::string_view jinja, const std::string& origin, Tokens tokens,
                                 TemplateArguments arguments) {
  require_valid_utf8(jinja, origin);
  auto process = Process::shared(origin);
  nlohmann::json day;
  if (const auto given = arguments.find(kDay); given != arguments.end()) {
    day = std::get<std::string>(given->second);
    arguments.erase(given);
  }
  const std::size_t number = process->add(jinja, day);
  return {std::move(process), number, origin, std::move(tokens), std::move(arguments)};
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& model_directory,
                                const ChatTemplateOptions& options) {
  const std::string origin = model_directory.string();
  const std::string config_origin = (model_directory / "tokenizer_config.json").string();
  const nlohmann::json config = read_json(model_directory, "tokenizer_config.json");
  const auto jinja = read_template(model_directory, config, config_origin);
  Tokens tokens = read_tokens(model_directory, config);
  const auto plain_instead = [&](const std::string& problem) {
    const bool possible = has_chatml_tokens(model_directory, config);
    if (options.force_chatml && possible) {
      expect_named(options.arguments, kPlainChatMl, origin);
      return parse(kPlainChatMl, origin);
    }
    throw ConfigError(fmt::format(
        "{}: put a template that is understood into chat_template.jinja{}", problem,
        possible ? "; or take plain ChatML with --template chatml (template = \"chatml\" in "
                   "[prompts], [finetune] or [pretrain]), on which the model was not tuned"
                 : " (plain ChatML cannot stand in for it, as this tokenizer has no tokens "
                   "<|im_start|> and <|im_end|>)"));
  };
  if (!jinja) {
    return plain_instead(
        fmt::format("{} has no chat template (chat_template.jinja, or chat_template in "
                    "tokenizer_config.json)",
                    origin));
  }
  std::optional<ChatTemplate> found;
  try {
    found = parse(*jinja, origin, std::move(tokens), options.arguments);
  } catch (const TemplateError& error) {
    return plain_instead(
        fmt::format("{}: the chat template is not understood, {}", origin, error.what()));
  }
  expect_named(options.arguments, *jinja, origin);
  const auto messages = std::to_array<ChatMessage>({{"system", "7654321"}, {"user", "1234567"}});
  const auto prints_user = [&](std::span<const ChatMessage> given) {
    return found->evaluate(given, true, false).find(given.back().content) != std::string::npos;
  };
  try {
    if (prints_user(std::span(messages).last(1))) return *found;
    return plain_instead(
        fmt::format("{}: the chat template does not print the user's message", origin));
  } catch (const TemplateError& error) {
    // The template refused this conversation; it may accept others.
    if (error.raised) return *found;
    try {  // Some templates need a system text.
      if (prints_user(messages)) return *found;
    } catch (const TemplateError&) {  // Report the first error.
    }
    return plain_instead(fmt::format(
        "{}: the chat template cannot render one message of the user, {}", origin, error.what()));
  }
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                 bool thinking) const {
  if (messages.empty()) throw DataError("a conversation needs at least one message");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role != "system" && role != "user" && role != "assistant") {
      throw DataError(
          fmt::format("message {} has the role '{}': known are system, user, assistant", i, role));
    }
    if (first_invalid_utf8(content)) require_valid_utf8(content, fmt::format("message {}", i));
  }
  try {
    return evaluate(messages, add_generation_prompt, thinking);
  } catch (const TemplateError& error) {
    if (error.raised) {
      throw DataError(fmt::format("the chat template of {} refuses the conversation: {}", origin_,
                                  error.reason));
    }
    throw DataError(
        fmt::format("the chat template of {} cannot be rendered, {}", origin_, error.what()));
  }
}

std::string ChatTemplate::evaluate(std::span<const ChatMessage> messages,
                                   bool add_generation_prompt, bool thinking) const {
  nlohmann::json variables = {{"messages", nlohmann::json::array()},
                              {"add_generation_prompt", add_generation_prompt},
                              {"tools", nullptr},
                              {"documents", nullptr},
                              {"enable_thinking", false}};
  for (const auto& [role, content] : messages) {
    variables["messages"].push_back({{"role", role}, {"content", content}});
  }
  for (const auto& [name, text] : tokens_) variables[name] = text;
  for (const auto& [name, value] : arguments_) {
    std::visit([&, &name = name](const auto& given) { variables[name] = given; }, value);
  }
  if (thinking) variables["enable_thinking"] = true;
  return process_->render(number_, variables);
}

std::string ChatTemplate::render_answered(std::span<const ChatMessage> messages) const {
  std::string text = render(messages, false);
  const std::string& answer = messages.back().content;
  if (!text.ends_with(answer)) return text;
  // Qwen1.5's template closes the last message only with add_generation_prompt. Others then add a
  // header, which is not part of the answer.
  std::string closed = render(messages, true);
  if (!closed.starts_with(text)) return text;
  const std::string added = closed.substr(text.size());
  const std::string prompt =
      messages.size() > 1 ? render(messages.first(messages.size() - 1), true) : std::string();
  return prompt.ends_with(added) ? text : closed;
}

}  // namespace jforge
