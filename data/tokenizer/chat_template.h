#pragma once

/// The chat template of a model: how a conversation becomes one text.

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

/// A recognised ChatML template. The Jinja text is not interpreted: it is brought to a canonical
/// form (jinja_canonical.h) and compared with the known ones, and only the default system text is
/// read out of it. Known: Qwen2.5 (also Coder and Math; tool use is not rendered), Qwen2, Qwen1.5,
/// and plain ChatML with or without a default system text. Immutable; safe to use from many
/// threads.
class ChatTemplate {
 public:
  /// Reads chat_template.jinja, else `chat_template` of tokenizer_config.json (a string, or a list
  /// of {name, template} of which "default" is taken). A template that is missing or unknown is a
  /// ConfigError naming the directory, unless `force_chatml`: then it is plain ChatML without a
  /// default system text. A known template is used as it is in either case. DataError for files
  /// that are malformed.
  static ChatTemplate load(const std::filesystem::path& model_directory, bool force_chatml = false);

  /// Recognises the text of a template; nothing when it is none of the known forms. DataError
  /// naming `origin` when it is not valid UTF-8.
  static std::optional<ChatTemplate> recognise(std::string_view jinja, const std::string& origin);

  /// The text of a conversation, exactly as the Jinja template renders it without tools; with
  /// `add_generation_prompt` it ends where the assistant's answer begins. DataError when there is
  /// no message or a role is not system, user or assistant.
  [[nodiscard]] std::string render(std::span<const ChatMessage> messages,
                                   bool add_generation_prompt) const;

  /// The system text that the template puts before a conversation without one.
  [[nodiscard]] const std::optional<std::string>& default_system() const { return default_system_; }

 private:
  /// How the template ends its last message.
  enum class Ending {
    closed,      // every message ends in <|im_end|> and a line end
    open_final,  // Qwen1.5: the last one does only when a generation prompt is asked for
  };
  struct KnownForm;
  ChatTemplate(Ending ending, std::optional<std::string> default_system)
      : ending_(ending), default_system_(std::move(default_system)) {}

  Ending ending_;
  std::optional<std::string> default_system_;
};

}  // namespace jforge
