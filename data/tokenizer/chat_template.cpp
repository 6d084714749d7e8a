#include "data/tokenizer/chat_template.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <vector>

#include "data/tokenizer/jinja_canonical.h"
#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/tokenizer_files.h"
#include "data/tokenizer/unicode.h"
#include "runtime/contained_file.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {
namespace {

// Stands in the known forms where a template has its default system text.
constexpr std::string_view kSystem = "@SYSTEM@";

constexpr std::string_view kQwen25 = R"jinja({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- '@SYSTEM@' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\n@SYSTEM@<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)jinja";

constexpr std::string_view kQwen2 =
    R"({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %})"
    R"({{ '<|im_start|>system\n@SYSTEM@<|im_end|>\n' }}{% endif %})"
    R"({{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}})"
    R"({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

constexpr std::string_view kQwen15 =
    R"({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %})"
    R"({{ '<|im_start|>system\n@SYSTEM@<|im_end|>\n' }}{% endif %})"
    R"({{'<|im_start|>' + message['role'] + '\n' + message['content']}})"
    R"({% if (loop.last and add_generation_prompt) or not loop.last %}{{ '<|im_end|>' + '\n'}})"
    R"({% endif %}{% endfor %}{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %})"
    R"({{ '<|im_start|>assistant\n' }}{% endif %})";

constexpr std::string_view kPlain =
    R"({% for message in messages %})"
    R"({{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}})"
    R"({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

// Some templates begin by giving add_generation_prompt its default, which changes nothing here.
constexpr std::string_view kDefaultFlag =
    R"({% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %})";

/// The text between the literal parts `parts` of `canonical`, the same at every gap. Nothing when
/// the template has another shape; the empty text when there is one part and it matches whole.
std::optional<std::string> match_parts(std::string_view canonical,
                                       const std::vector<std::string>& parts) {
  if (!canonical.starts_with(parts[0])) return std::nullopt;
  canonical.remove_prefix(parts[0].size());
  if (parts.size() == 1) {
    return canonical.empty() ? std::optional<std::string>("") : std::nullopt;
  }
  const std::size_t end = canonical.find(parts[1]);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string system(canonical.substr(0, end));
  // A tag in it would mean that the system text is computed.
  if (system.find(kTagOpen) != std::string::npos) return std::nullopt;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::string expected = system + parts[i];
    if (!canonical.starts_with(expected)) return std::nullopt;
    canonical.remove_prefix(expected.size());
  }
  return canonical.empty() ? std::optional<std::string>(system) : std::nullopt;
}

std::vector<std::string> split_at_system(const std::string& canonical) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t at = canonical.find(kSystem); at != std::string::npos;
       at = canonical.find(kSystem, begin)) {
    parts.push_back(canonical.substr(begin, at - begin));
    begin = at + kSystem.size();
  }
  parts.push_back(canonical.substr(begin));
  return parts;
}

/// What tokenizer_config.json holds, an empty object when there is none.
nlohmann::json read_config(const std::filesystem::path& directory) {
  if (!holds_contained_file(directory, "tokenizer_config.json")) return nlohmann::json::object();
  const auto path = directory / "tokenizer_config.json";
  return parse_json_object(read_file_or_gz(path), path.string());
}

/// A special token's text, given as it is or as {"content": text, …}; empty when there is none.
std::string special_token(const nlohmann::json& config, const char* key,
                          const std::string& origin) {
  const nlohmann::json& value = json_member(config, key);
  if (value.is_null()) return {};
  return json_string(value.is_object() ? json_member(value, "content") : value, origin, key);
}

/// The template's text of a model directory, nothing when it has none.
std::optional<std::string> read_template(const std::filesystem::path& directory,
                                         const nlohmann::json& config, const std::string& origin) {
  const auto jinja = directory / "chat_template.jinja";
  if (holds_contained_file(directory, "chat_template.jinja")) return read_file_or_gz(jinja);
  const nlohmann::json& value = json_member(config, "chat_template");
  if (value.is_null()) return std::nullopt;
  if (!value.is_array()) return json_string(value, origin, "chat_template");
  for (const nlohmann::json& entry : value) {
    json_only_known(entry, {"name", "template"}, origin, "an entry of chat_template");
    if (json_string(json_member(entry, "name"), origin, "chat_template name") == "default") {
      return json_string(json_member(entry, "template"), origin, "chat_template 'default'");
    }
  }
  return std::nullopt;
}

/// Python's str.strip().
std::string_view python_strip(std::string_view text) {
  const auto blank = [](char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); };
  std::size_t begin = 0;
  std::size_t end = 0;  // Behind the last character that is not blank.
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (!blank(point.value)) {
      if (!found) begin = at;
      found = true;
      end = at + point.length;
    }
    at += point.length;
  }
  return text.substr(begin, end - begin);
}

std::string_view strip_line_ends(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) text.remove_prefix(1);
  while (right && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

/// As Qwen2.5-Coder and early revisions of Qwen2.5 have it: another text about tools, which are not
/// rendered.
std::string qwen25_with_double_braces() {
  std::string text(kQwen25);
  const auto doubled = [&](std::string_view part, std::string_view by) {
    const std::size_t at = text.find(part);
    expect(at != std::string::npos, "Qwen2.5's template has a text about tools");
    text.replace(at, part.size(), by);
  };
  doubled(R"({\"name\": <function-name>)", R"({{\"name\": <function-name>)");
  doubled("<args-json-object>}", "<args-json-object>}}");
  return text;
}

/// Whether the tokenizer has ChatML's tokens: to others it is ordinary text. They are named in
/// tokenizer.json, or, beside a vocab.json, in tokenizer_config.json.
bool has_chatml_tokens(const std::filesystem::path& directory, const nlohmann::json& config) {
  nlohmann::json tokens = json_member(config, "added_tokens_decoder");
  if (holds_contained_file(directory, "tokenizer.json")) {
    const auto path = directory / "tokenizer.json";
    tokens = json_member(parse_json_object(read_file_or_gz(path), path.string()), "added_tokens");
  }
  const auto has = [&](const char* text) {
    return std::any_of(tokens.begin(), tokens.end(), [&](const nlohmann::json& token) {
      return token.is_object() && json_member(token, "content") == text;
    });
  };
  return has("<|im_start|>") && has("<|im_end|>");
}

/// Index of the last message of the user, Qwen3's tool responses left out; the last message's where
/// there is none.
std::size_t last_query_of(std::span<const ChatMessage> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const ChatMessage& message = messages[i];
    if (message.role == "user" && !(message.content.starts_with("<tool_response>") &&
                                    message.content.ends_with("</tool_response>"))) {
      return i;
    }
  }
  return messages.size() - 1;
}

/// An assistant's text as Qwen3's template prints it: thoughts stay with answers to the last query.
std::string qwen3_answer(std::string_view content, bool behind_last_query, bool last) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  std::string_view thoughts;
  if (const std::size_t first = content.find(kClose); first != std::string_view::npos) {
    thoughts = strip_line_ends(content.substr(0, first), false, true);
    if (const std::size_t open = thoughts.rfind(kOpen); open != std::string_view::npos) {
      thoughts.remove_prefix(open + kOpen.size());
    }
    thoughts = strip_line_ends(thoughts, true, false);
    content.remove_prefix(content.rfind(kClose) + kClose.size());
    content = strip_line_ends(content, true, false);
  }
  if (!behind_last_query || (!last && thoughts.empty())) return std::string(content);
  return fmt::format("<think>\n{}\n</think>\n\n{}", strip_line_ends(thoughts, true, true),
                     strip_line_ends(content, true, false));
}

}  // namespace

struct ChatTemplate::KnownForm {
  std::vector<std::string> parts;  // canonical text around the default system text
  Form form;

  static const std::array<KnownForm, 5>& all() {
    static const std::array<KnownForm, 5> kForms = {
        KnownForm{split_at_system(canonical_jinja(kQwen25, "Qwen2.5")), Form::chatml},
        KnownForm{split_at_system(canonical_jinja(qwen25_with_double_braces(), "Qwen2.5")),
                  Form::chatml},
        KnownForm{split_at_system(canonical_jinja(kQwen2, "Qwen2")), Form::chatml},
        KnownForm{split_at_system(canonical_jinja(kQwen15, "Qwen1.5")), Form::qwen15},
        KnownForm{split_at_system(canonical_jinja(kPlain, "ChatML")), Form::chatml}};
    return kForms;
  }
};

/// Templates without anything to be read out of: the hash of their canonical form is enough.
struct ChatTemplate::KnownDigest {
  std::uint64_t digest;
  Form form;
  const char* name;

  static std::span<const KnownDigest> all() {
    static constexpr KnownDigest kDigests[] = {
        {0x780BA577526219AA, Form::qwen3, "Qwen3"},
        {0xEC96CA472F094917, Form::qwen3, "Qwen3"},  // Also for contents that are no strings.
        {0xDBA9C514C77DEE96, Form::qwen3, "Qwen3"},  // Without methods of strings.
        {0x6BC8979986241D21, Form::chatml, "Qwen3 Instruct"},
        {0xBDA5D850E11BB10F, Form::qwen3_thinking, "Qwen3 Thinking"},
        {0xD2BC134EBB436481, Form::llama3, "Llama 3"},
        {0xE91BAC0FEC82EF92, Form::llama31, "Llama 3.1"},  // And 3.3.
        {0x1329D0F3E1706B89, Form::llama31, "Llama 3.2"},
        {0xA5F2AED1B665BA64, Form::mistral_nemo, "Mistral Nemo"},
    };
    return kDigests;
  }
};

std::optional<ChatTemplate> ChatTemplate::recognise(std::string_view jinja,
                                                    const std::string& origin,
                                                    const Tokens& tokens) {
  require_valid_utf8(jinja, origin);
  std::string canonical;
  try {
    canonical = canonical_jinja(jinja, origin);
  } catch (const DataError&) {
    return std::nullopt;  // beyond our lexer, so certainly none of the known forms
  }
  std::string_view body = canonical;
  const std::string default_flag = canonical_jinja(kDefaultFlag, "ChatML");
  if (body.starts_with(default_flag)) body.remove_prefix(default_flag.size());
  for (const KnownForm& form : KnownForm::all()) {
    auto system = match_parts(body, form.parts);
    if (!system) continue;
    if (form.parts.size() == 1) system.reset();
    return ChatTemplate(form.form, std::move(system));
  }
  return of_digest(hash64(std::string_view(canonical)), origin, tokens);
}

std::optional<ChatTemplate> ChatTemplate::of_digest(std::uint64_t digest, const std::string& origin,
                                                    const Tokens& tokens) {
  for (const KnownDigest& known : KnownDigest::all()) {
    if (known.digest != digest) continue;
    const bool prints_eos = known.form == Form::mistral_nemo;
    const bool prints_bos = prints_eos || known.form == Form::llama3 || known.form == Form::llama31;
    if ((prints_bos && tokens.bos.empty()) || (prints_eos && tokens.eos.empty())) {
      throw ConfigError(fmt::format(
          "{}: the chat template of {} prints the bos_token{}, which tokenizer_config.json does "
          "not name",
          origin, known.name, prints_eos ? " and the eos_token" : ""));
    }
    return ChatTemplate(known.form, std::nullopt, tokens);
  }
  return std::nullopt;
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& model_directory, bool force_chatml) {
  ChatTemplate plain(Form::chatml, std::nullopt);
  const std::string config_origin = (model_directory / "tokenizer_config.json").string();
  const nlohmann::json config = read_config(model_directory);
  const auto jinja = read_template(model_directory, config, config_origin);
  const auto plain_instead = [&](const std::string& problem) {
    const bool possible = has_chatml_tokens(model_directory, config);
    if (force_chatml && possible) return plain;
    throw ConfigError(problem +
                      (possible ? "plain ChatML takes its place with template = \"chatml\" in "
                                  "[prompts], [finetune] or [pretrain], or with --template chatml"
                                : "plain ChatML cannot stand in for it, as this tokenizer has no "
                                  "tokens <|im_start|> and <|im_end|>; take another model"));
  };
  if (!jinja) {
    return plain_instead(
        fmt::format("{} has no chat template (chat_template.jinja, or chat_template in "
                    "tokenizer_config.json): ",
                    model_directory.string()));
  }
  const Tokens tokens{.bos = special_token(config, "bos_token", config_origin),
                      .eos = special_token(config, "eos_token", config_origin)};
  if (auto known = recognise(*jinja, model_directory.string(), tokens)) return *std::move(known);
  return plain_instead(fmt::format(
      "the chat template of {} is none of the known ones (plain ChatML, Qwen1.5, Qwen2, Qwen2.5, "
      "Qwen3, Llama 3 to 3.3, Mistral Nemo): ",
      model_directory.string()));
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                 bool add_generation_prompt) const {
  if (messages.empty()) throw DataError("a conversation needs at least one message");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      throw DataError(
          fmt::format("message {} has the role '{}': known are system, user, assistant", i, role));
    }
  }
  switch (form_) {
    case Form::chatml:
    case Form::qwen15:
    case Form::qwen3:
    case Form::qwen3_thinking:
      return render_chatml(messages, add_generation_prompt);
    case Form::llama3:
    case Form::llama31:
      return render_llama3(messages, add_generation_prompt);
    case Form::mistral_nemo:
      return render_mistral(messages);
  }
  throw InternalError("unknown form of chat template");
}

std::string ChatTemplate::render_answered(std::span<const ChatMessage> messages) const {
  // Qwen1.5's closes the last message only where it asks for the next.
  return render(messages, form_ == Form::qwen15);
}

std::string ChatTemplate::render_chatml(std::span<const ChatMessage> messages,
                                        bool add_generation_prompt) const {
  std::string text;
  if (messages[0].role != "system" && default_system_) {
    text += "<|im_start|>system\n" + *default_system_ + "<|im_end|>\n";
  }
  const bool keeps_thoughts = form_ == Form::qwen3 || form_ == Form::qwen3_thinking;
  const std::size_t last_query = keeps_thoughts ? last_query_of(messages) : messages.size();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool last = i + 1 == messages.size();
    const bool thinks = keeps_thoughts && message.role == "assistant";
    text += "<|im_start|>" + message.role + "\n" +
            (thinks ? qwen3_answer(message.content, i > last_query, last) : message.content);
    if (form_ != Form::qwen15 || !last || add_generation_prompt) text += "<|im_end|>\n";
  }
  const bool answered = form_ == Form::qwen15 && messages.back().role == "assistant";
  if (add_generation_prompt && !answered) {
    text += "<|im_start|>assistant\n";
    if (form_ == Form::qwen3) text += "<think>\n\n</think>\n\n";
    if (form_ == Form::qwen3_thinking) text += "<think>\n";
  }
  return text;
}

std::string ChatTemplate::render_llama3(std::span<const ChatMessage> messages,
                                        bool add_generation_prompt) const {
  const auto header = [](std::string_view role) {
    return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role);
  };
  std::string text = tokens_.bos;
  if (form_ == Form::llama31) {
    text += header("system") + "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
    if (messages[0].role == "system") {
      text += python_strip(messages[0].content);
      messages = messages.subspan(1);
    }
    text += "<|eot_id|>";
  }
  for (const ChatMessage& message : messages) {
    text += header(message.role);
    text += python_strip(message.content);
    text += "<|eot_id|>";
  }
  return add_generation_prompt ? text + header("assistant") : text;
}

std::string ChatTemplate::render_mistral(std::span<const ChatMessage> messages) const {
  std::string system;
  if (messages[0].role == "system") {
    system = messages[0].content + "\n\n";
    messages = messages.subspan(1);
  }
  std::string text = tokens_.bos;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != (i % 2 == 0 ? "user" : "assistant")) {
      throw DataError(
          "this chat template takes messages of user and assistant in turn, after at most one of "
          "the system");
    }
    if (i % 2 != 0) {
      text += messages[i].content + tokens_.eos;
    } else {
      // The system text stands in the last message, where that is the user's.
      const bool last = i + 1 == messages.size();
      text += "[INST]" + (last ? system : std::string()) + messages[i].content + "[/INST]";
    }
  }
  return text;
}

}  // namespace jforge
