#pragma once

/// The orders a job consists of. The coordinator decides, every rank's worker executes
/// (collectively).

#include <cstdint>
#include <string>

namespace jforge {

/// One order to all ranks.
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
  std::int32_t round = 0;  ///< 1-based, for generate and train.
  std::string model;       ///< For evaluate: "base", "final" (or "sft").

  bool operator==(const Command&) const = default;
};

/// "generate round 1", "evaluate base", …
[[nodiscard]] std::string to_string(const Command& command);

/// Text form for the broadcast, and back. parse_command throws CommError.
[[nodiscard]] std::string encode(const Command& command);
[[nodiscard]] Command parse_command(const std::string& text);

}  // namespace jforge
