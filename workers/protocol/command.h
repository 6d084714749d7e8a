#pragma once

/// Commands of a job: the coordinator decides, all ranks execute collectively.

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

/// "generate round 1", "evaluate base", …
[[nodiscard]] std::string to_string(const Command& command);

/// Text form for the broadcast. parse_command() throws CommError.
[[nodiscard]] std::string encode(const Command& command);
[[nodiscard]] Command parse_command(const std::string& text);

}  // namespace jforge
