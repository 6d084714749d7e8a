#pragma once

/// The chat template of a model: how a conversation becomes one text.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace jforge {

/// One turn of a conversation.
struct ChatMessage {
  std::string role;     ///< "system", "user" or "assistant".
  std::string content;  ///< UTF-8 text, taken verbatim.
};

/// A recognised template. The Jinja text is not interpreted: it is brought to a canonical form
/// (jinja_canonical.h) and compared with the known ones, and of ChatML's only the default system
/// text is read out of it. Tool use is not rendered. Known:
///  * ChatML: Qwen2.5 (also Coder and Math), Qwen2, Qwen1.5, plain with or without a default system
///    text;
///  * Qwen3: as it renders with enable_thinking = false, so that an answer begins behind an empty
///    <think> block and costs no tokens of thought; of July 2025 Instruct, which is ChatML, and
///    Thinking, whose answers begin inside a <think> block;
///  * Llama 3, and Llama 3.1 to 3.3, whose system text names a day: always the template's own
///    fallback, 26 Jul 2024, where the reference puts the present one, since a prompt must not
///    depend on the day on which it was encoded;
///  * Mistral Nemo Instruct.
/// Immutable; safe to use from many threads.
class ChatTemplate {
 public:
  /// Texts of the tokenizer's special tokens that templates print.
  struct Tokens {
    std::string bos;
    std::string eos;
  };

  /// Reads chat_template.jinja, else `chat_template` of tokenizer_config.json (a string, or a list
  /// of {name, template} of which "default" is taken), and the special tokens from the latter. A
  /// template that is missing, unknown or prints a special token that the tokenizer has not is a
  /// ConfigError naming the directory, unless `force_chatml` and the tokenizer has ChatML's tokens:
  /// then it is plain ChatML without a default system text. A known template is used as it is in
  /// either case. DataError for files that are malformed.
  static ChatTemplate load(const std::filesystem::path& model_directory, bool force_chatml = false);

  /// Recognises the text of a template; nothing when it is none of the known forms. DataError
  /// naming `origin` when it is not valid UTF-8.
  static std::optional<ChatTemplate> recognise(std::string_view jinja, const std::string& origin,
                                               const Tokens& tokens = {});
  /// The same by hash64 (content_hash.h) of the canonical form, for templates that are known by it
  /// alone: those that have nothing to be read out of them.
  static std::optional<ChatTemplate> of_digest(std::uint64_t digest, const std::string& origin,
                                               const Tokens& tokens);

  /// The text of a conversation, exactly as the Jinja template renders it without tools; with
  /// `add_generation_prompt` it ends where the assistant's answer begins. DataError when there is
  /// no message, a role is not system, user or assistant, or the template refuses their order.
  [[nodiscard]] std::string render(std::span<const ChatMessage> messages,
                                   bool add_generation_prompt) const;

  /// The same of a conversation whose last message is the assistant's answer, with what ends it.
  [[nodiscard]] std::string render_answered(std::span<const ChatMessage> messages) const;

  /// The system text that the template puts before a conversation without one.
  [[nodiscard]] const std::optional<std::string>& default_system() const { return default_system_; }

 private:
  enum class Form {
    chatml,
    qwen15,  // ChatML whose last message is closed only when a generation prompt is asked for
    qwen3,
    qwen3_thinking,
    llama3,
    llama31,  // to 3.3: a dated system text before every conversation
    mistral_nemo,
  };
  struct KnownForm;
  struct KnownDigest;
  ChatTemplate(Form form, std::optional<std::string> default_system, Tokens tokens = {})
      : form_(form), default_system_(std::move(default_system)), tokens_(std::move(tokens)) {}

  [[nodiscard]] std::string render_chatml(std::span<const ChatMessage> messages,
                                          bool add_generation_prompt) const;
  [[nodiscard]] std::string render_llama3(std::span<const ChatMessage> messages,
                                          bool add_generation_prompt) const;
  [[nodiscard]] std::string render_mistral(std::span<const ChatMessage> messages) const;

  Form form_;
  std::optional<std::string> default_system_;
  Tokens tokens_;
};

}  // namespace jforge
