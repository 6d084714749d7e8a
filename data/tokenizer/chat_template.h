#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace jforge {

struct ChatMessage {
  std::string role;     ///< "system", "user" or "assistant".
  std::string content;  ///< UTF-8, verbatim.
};

/// Extra keyword arguments of transformers' apply_chat_template. `strftime_now` is special: the
/// day, YYYY-MM-DD, that the template's strftime_now() prints.
using TemplateArguments = std::map<std::string, std::variant<bool, std::int64_t, std::string>>;

/// Returns true for Jinja names that apply_chat_template does not set itself.
[[nodiscard]] bool is_template_argument(std::string_view name);
/// Throws ConfigError naming `key` and the first invalid argument.
void expect_template_arguments(const std::string& key, const TemplateArguments& arguments);
[[nodiscard]] std::string arguments_json(const TemplateArguments& arguments);

struct ChatTemplateOptions {
  bool force_chatml = false;  ///< Replaces an unsupported template by plain ChatML.
  TemplateArguments arguments = {};
};

/// A Jinja template, rendered by jinja2 in a Python process (chat_template.py) as by transformers'
/// apply_chat_template without tools and documents. Unless arguments say otherwise, prompts contain
/// no thinking and do not depend on the day:
///  * enable_thinking is false: Qwen3's answers begin after an empty <think> block;
///  * strftime_now is undefined: templates print their fallback day (Llama 3.1 to 3.3: 26 Jul 2024)
///    or fail.
/// Immutable and thread-safe; all share a process, which renders one text at a time. All functions
/// throw EnvironmentError without python3 or jinja2, or if the process was killed.
class ChatTemplate {
 public:
  /// Special tokens, for example "bos_token", with their texts.
  using Tokens = std::vector<std::pair<std::string, std::string>>;

  /// Reads the first of additional_chat_templates/default.jinja, chat_template.jinja and
  /// `chat_template` in tokenizer_config.json (a string, or the one named "default"), and special
  /// tokens from tokenizer_config.json, which special_tokens_map.json overrides if there is no
  /// added_tokens_decoder. Throws ConfigError if the template is missing, no Jinja or cannot render
  /// one user message, alone or after a system text. With `force_chatml`, and if the
  /// tokenizer has ChatML's tokens, plain ChatML without a default system text replaces it instead.
  /// Throws ConfigError for arguments that the template does not name, DataError for malformed
  /// files.
  static ChatTemplate load(const std::filesystem::path& model_directory,
                           const ChatTemplateOptions& options = {});

  /// Parses a template; `origin` names the template in messages. Throws DataError if it is not
  /// Jinja or not valid UTF-8.
  static ChatTemplate parse(std::string_view jinja, const std::string& origin, Tokens tokens = {},
                            TemplateArguments arguments = {});

  /// Renders a conversation. With `add_generation_prompt` the text ends where the answer begins.
  /// Throws DataError if there is no message, a role is unknown, or the template fails.
  [[nodiscard]] std::string render(std::span<const ChatMessage> messages,
                                   bool add_generation_prompt) const {
    return render(messages, add_generation_prompt, /*thinking=*/false);
  }

  /// Renders a conversation that ends with an answer, including what ends it.
  [[nodiscard]] std::string render_answered(std::span<const ChatMessage> messages) const;

  /// Renders the prompt of a thinking answer, whatever enable_thinking is.
  [[nodiscard]] std::string render_thinking_prompt(std::span<const ChatMessage> messages) const {
    return render(messages, /*add_generation_prompt=*/true, /*thinking=*/true);
  }

  /// Returns the model directory.
  [[nodiscard]] const std::string& origin() const { return origin_; }

 private:
  class Process;
  ChatTemplate(std::shared_ptr<Process> process, std::size_t number, std::string origin,
               Tokens tokens, TemplateArguments arguments)
      : process_(std::move(process)),
        number_(number),
        origin_(std::move(origin)),
        tokens_(std::move(tokens)),
        arguments_(std::move(arguments)) {}

  [[nodiscard]] std::string render(std::span<const ChatMessage> messages,
                                   bool add_generation_prompt, bool thinking) const;
  /// Throws TemplateError; checks nothing.
  [[nodiscard]] std::string evaluate(std::span<const ChatMessage> messages,
                                     bool add_generation_prompt, bool thinking) const;

  std::shared_ptr<Process> process_;
  std::size_t number_;  ///< In the process.
  std::string origin_;
  Tokens tokens_;
  TemplateArguments arguments_;
};

}  // namespace jforge
