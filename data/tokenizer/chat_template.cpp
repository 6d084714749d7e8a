#include "data/tokenizer/chat_template.h"

#include <fmt/core.h>

#include <array>
#include <vector>

#include "data/tokenizer/jinja_canonical.h"
#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/tokenizer_files.h"
#include "data/tokenizer/unicode.h"
#include "runtime/contained_file.h"
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

/// The template's text of a model directory, nothing when it has none.
std::optional<std::string> read_template(const std::filesystem::path& directory) {
  const auto jinja = directory / "chat_template.jinja";
  if (holds_contained_file(directory, "chat_template.jinja")) return read_file_or_gz(jinja);
  const auto config_path = directory / "tokenizer_config.json";
  if (!holds_contained_file(directory, "tokenizer_config.json")) return std::nullopt;
  const std::string origin = config_path.string();
  const nlohmann::json config = parse_json_object(read_file_or_gz(config_path), origin);
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

}  // namespace

struct ChatTemplate::KnownForm {
  std::vector<std::string> parts;  // canonical text around the default system text
  Ending ending;

  static const std::array<KnownForm, 4>& all() {
    static const std::array<KnownForm, 4> kForms = {
        KnownForm{split_at_system(canonical_jinja(kQwen25, "Qwen2.5")), Ending::closed},
        KnownForm{split_at_system(canonical_jinja(kQwen2, "Qwen2")), Ending::closed},
        KnownForm{split_at_system(canonical_jinja(kQwen15, "Qwen1.5")), Ending::open_final},
        KnownForm{split_at_system(canonical_jinja(kPlain, "ChatML")), Ending::closed}};
    return kForms;
  }
};

std::optional<ChatTemplate> ChatTemplate::recognise(std::string_view jinja,
                                                    const std::string& origin) {
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
    return ChatTemplate(form.ending, std::move(system));
  }
  return std::nullopt;
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& model_directory, bool force_chatml) {
  ChatTemplate plain(Ending::closed, std::nullopt);
  const auto jinja = read_template(model_directory);
  if (!jinja) {
    if (force_chatml) return plain;
    throw ConfigError(fmt::format(
        "{} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
        "set prompts.template = \"chatml\" to use plain ChatML",
        model_directory.string()));
  }
  if (auto known = recognise(*jinja, model_directory.string())) return *std::move(known);
  if (force_chatml) return plain;
  throw ConfigError(fmt::format(
      "the chat template of {} is not a known ChatML form (Qwen1.5, Qwen2, Qwen2.5, plain "
      "ChatML): set prompts.template = \"chatml\" to use plain ChatML",
      model_directory.string()));
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                 bool add_generation_prompt) const {
  if (messages.empty()) throw DataError("a conversation needs at least one message");
  std::string text;
  if (messages[0].role != "system" && default_system_) {
    text += "<|im_start|>system\n" + *default_system_ + "<|im_end|>\n";
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      throw DataError(fmt::format("message {} has the role '{}': known are system, user, assistant",
                                  i, message.role));
    }
    text += "<|im_start|>" + message.role + "\n" + message.content;
    const bool last = i + 1 == messages.size();
    if (ending_ == Ending::closed || !last || add_generation_prompt) text += "<|im_end|>\n";
  }
  const bool answered = ending_ == Ending::open_final && messages.back().role == "assistant";
  if (add_generation_prompt && !answered) text += "<|im_start|>assistant\n";
  return text;
}

}  // namespace jforge
