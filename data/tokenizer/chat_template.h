#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/tokenizer/jinja/template.h"

namespace jforge {

struct ChatMessage {
  std::string role;     ///< "system", "user" or "assistant".
  std::string content;  ///< UTF-8 text, taken verbatim.
};

/// Variables for a chat template by name: extra keyword arguments of transformers'
/// apply_chat_template. `strftime_now` is special: the day, YYYY-MM-DD, that the template's
/// strftime_now() prints.
using TemplateArguments = std::map<std::string, std::variant<bool, std::int64_t, std::string>>;

/// Returns true if `name` is a Jinja variable that apply_chat_template does not set itself.
[[nodiscard]] bool is_template_argument(std::string_view name);
/// Throws ConfigError naming `key` and the first invalid argument.
void expect_template_arguments(const std::string& key, const TemplateArguments& arguments);
[[nodiscard]] std::string arguments_json(const TemplateArguments& arguments);

struct ChatTemplateOptions {
  bool force_chatml = false;  ///< Replaces an unsupported template by plain ChatML.
  TemplateArguments arguments = {};
};

/// A Jinja template (jinja/template.h), rendered as transformers' apply_chat_template does without
/// tools and documents. Unless the arguments say otherwise, prompts contain no thinking and do not
/// depend on the day:
///  * enable_thinking is false, so that Qwen3's answers begin after an empty <think> block;
///  * strftime_now is undefined, so that templates print their fallback day (Llama 3.1 to 3.3:
///    26 Jul 2024); a template without a fallback is unsupported.
/// Immutable and thread-safe.
class ChatTemplate {
 public:
  /// Special tokens: names such as "bos_token" with their texts.
  using Tokens = std::vector<std::pair<std::string, std::string>>;

  /// Reads the first of additional_chat_templates/default.jinja, chat_template.jinja and
  /// `chat_template` in tokenizer_config.json (a string, or the one named "default"), and special
  /// tokens from tokenizer_config.json; without added_tokens_decoder, special_tokens_map.json
  /// overrides them.
  /// Throws ConfigError if the template is missing, unsupported or cannot render one user message,
  /// alone or after a system text. With `force_chatml` plain ChatML without a default system text
  /// then replaces it, if the tokenizer has ChatML's tokens. Throws ConfigError if the template
  /// does not name an argument, DataError if a file is malformed.
  static ChatTemplate load(const std::filesystem::path& model_directory,
                           const ChatTemplateOptions& options = {});

  /// Parses a template; `origin` names it in messages. Throws jinja::TemplateError if it is
  /// unsupported, DataError if it is not valid UTF-8.
  static ChatTemplate parse(std::string_view jinja, const std::string& origin, Tokens tokens = {},
                            TemplateArguments arguments = {});

  /// Returns the text of a conversation; with `add_generation_prompt` it ends where the assistant's
  /// answer begins. Throws DataError if there is no message, a role is unknown, or the template
  /// refuses the conversation or uses an unsupported feature.
  [[nodiscard]] std::string render(std::span<const ChatMessage> messages,
                                   bool add_generation_prompt) const {
    return render(messages, add_generation_prompt, /*thinking=*/false);
  }

  /// Renders a conversation that ends with the assistant's answer and its end tokens.
  [[nodiscard]] std::string render_answered(std::span<const ChatMessage> messages) const;

  /// Renders the prompt before an answer that begins with thinking: enable_thinking overrides the
  /// arguments.
  [[nodiscard]] std::string render_thinking_prompt(std::span<const ChatMessage> messages) const {
    return render(messages, /*add_generation_prompt=*/true, /*thinking=*/true);
  }

  /// The model directory, for messages.
  [[nodiscard]] const std::string& origin() const { return origin_; }

 private:
  ChatTemplate(jinja::Template jinja, std::string origin, Tokens tokens,
               TemplateArguments arguments)
      : template_(std::move(jinja)),
        origin_(std::move(origin)),
        tokens_(std::move(tokens)),
        arguments_(std::move(arguments)) {}

  [[nodiscard]] std::string render(std::span<const ChatMessage> messages,
                                   bool add_generation_prompt, bool thinking) const;
  /// Renders without checks. Throws TemplateError.
  [[nodiscard]] std::string evaluate(std::span<const ChatMessage> messages,
                                     bool add_generation_prompt, bool thinking) const;

  jinja::Template template_;
  std::string origin_;
  Tokens tokens_;
  TemplateArguments arguments_;
};

}  // namespace jforge
