#pragma once

/// The chat template of a model: how a conversation becomes one text.

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

/// One turn of a conversation.
struct ChatMessage {
  std::string role;     ///< "system", "user" or "assistant".
  std::string content;  ///< UTF-8 text, taken verbatim.
};

/// Variables for a chat template, by name: further keyword arguments of transformers'
/// apply_chat_template. `strftime_now` is special: a day, YYYY-MM-DD, that the template's
/// strftime_now() prints.
using TemplateArguments = std::map<std::string, std::variant<bool, std::int64_t, std::string>>;

/// Returns whether `name` is a Jinja variable that apply_chat_template does not set itself.
[[nodiscard]] bool is_template_argument(std::string_view name);
/// Throws ConfigError naming `key` and the first argument that is not allowed.
void expect_template_arguments(const std::string& key, const TemplateArguments& arguments);
/// Returns the arguments as a JSON object.
[[nodiscard]] std::string arguments_json(const TemplateArguments& arguments);

/// Options for loading the template of a model directory.
struct ChatTemplateOptions {
  bool force_chatml = false;  ///< Plain ChatML in the place of one that is not understood.
  TemplateArguments arguments = {};
};

/// A template in Jinja (jinja/template.h), rendered as transformers' apply_chat_template does
/// without tools and documents, with two differences if the arguments do not say otherwise, since a
/// prompt should cost no thoughts and not depend on the day on which it was encoded:
///  * enable_thinking is false, so that Qwen3's answers begin behind an empty <think> block;
///  * there is no strftime_now, so that templates which print a day print their own fallback (Llama
///    3.1 to 3.3: 26 Jul 2024); one that has none is not understood.
/// Immutable; safe to use from many threads.
class ChatTemplate {
 public:
  /// The tokenizer's special tokens: "bos_token" and such, and their texts.
  using Tokens = std::vector<std::pair<std::string, std::string>>;

  /// Reads, as transformers does, additional_chat_templates/default.jinja, else
  /// chat_template.jinja, else `chat_template` of tokenizer_config.json (a string, or several by
  /// name of which "default" is taken), and the special tokens from tokenizer_config.json, over
  /// which special_tokens_map.json goes where that config has no added_tokens_decoder. A template
  /// that is missing, is not understood or cannot render one message of the user, alone or behind a
  /// system text, is a ConfigError naming the directory, unless `force_chatml` and the tokenizer
  /// has ChatML's tokens: then it is plain ChatML without a default system text. A template that is
  /// understood is used as it is in either case. ConfigError for an argument that the template does
  /// not name, DataError for files that are malformed.
  static ChatTemplate load(const std::filesystem::path& model_directory,
                           const ChatTemplateOptions& options = {});

  /// The template of that text; `origin` names it in messages. jinja::TemplateError when it is not
  /// understood, DataError when it is not valid UTF-8.
  static ChatTemplate parse(std::string_view jinja, const std::string& origin, Tokens tokens = {},
                            TemplateArguments arguments = {});

  /// The text of a conversation; with `add_generation_prompt` it ends where the assistant's answer
  /// begins. DataError when there is no message, a role is not system, user or assistant, the
  /// template refuses their order, or it uses what is not supported.
  [[nodiscard]] std::string render(std::span<const ChatMessage> messages,
                                   bool add_generation_prompt) const {
    return render(messages, add_generation_prompt, /*thinking=*/false);
  }

  /// The same of a conversation whose last message is the assistant's answer, with what ends it.
  [[nodiscard]] std::string render_answered(std::span<const ChatMessage> messages) const;

  /// The prompt before an answer that begins with thoughts: `render` with enable_thinking, whatever
  /// the arguments say.
  [[nodiscard]] std::string render_thinking_prompt(std::span<const ChatMessage> messages) const {
    return render(messages, /*add_generation_prompt=*/true, /*thinking=*/true);
  }

  /// What names it in messages: the model directory.
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
  /// The same without checks; TemplateError.
  [[nodiscard]] std::string evaluate(std::span<const ChatMessage> messages,
                                     bool add_generation_prompt, bool thinking) const;

  jinja::Template template_;
  std::string origin_;
  Tokens tokens_;
  TemplateArguments arguments_;
};

}  // namespace jforge
