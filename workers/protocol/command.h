#pragma once

/// Commands of a job. The coordinator decides; every rank's worker executes them collectively.

#include <cstdint>
#include <string>

namespace jforge {

struct Command {
  enum class Kind : std::uint8_t {
    import_prompts,
    generate,
    train,
    export_model,
    evaluate,
    report,
    finish
  };
  Kind kind = Kind::finish;
  std::int32_t round = 0;  ///< 1-based; used by generate and train.
  std::string model;       ///< Used by evaluate: "base", "final" or "sft".

  bool operator==(const Command&) const = default;
};

/// Returns "generate round 1", "evaluate base", ….
[[nodiscard]] std::string to_string(const Command& command);

/// Serialise a command for the broadcast. parse_command() throws CommError for malformed text.
[[nodiscard]] std::string encode(const Command& command);
[[nodiscard]] Command parse_command(const std::string& text);

}  // namespace jforge
