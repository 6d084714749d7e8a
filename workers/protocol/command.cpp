#include "workers/protocol/command.h"

#include <nlohmann/json.hpp>

#include "runtime/error.h"

namespace jforge {

std::string to_string(const Command& command) {
  switch (command.kind) {
    case Command::Kind::import_prompts:
      return "import";
    case Command::Kind::generate:
      return "generate round " + std::to_string(command.round);
    case Command::Kind::train:
      return "train round " + std::to_string(command.round);
    case Command::Kind::export_model:
      return "export";
    case Command::Kind::evaluate:
      return "evaluate " + command.model;
    case Command::Kind::report:
      return "report";
    case Command::Kind::finish:
      return "finish";
  }
  return "unknown";
}

std::string encode(const Command& command) {
  return nlohmann::json{
      {"kind", static_cast<int>(command.kind)}, {"round", command.round}, {"model", command.model}}
      .dump();
}

Command parse_command(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("kind") || !json.contains("round") ||
      !json.contains("model")) {
    throw CommError("not a command: " + text);
  }
  const int kind = json["kind"].get<int>();
  if (kind < 0 || kind > static_cast<int>(Command::Kind::finish)) {
    throw CommError("unknown command kind " + std::to_string(kind));
  }
  return {static_cast<Command::Kind>(kind), json["round"].get<std::int32_t>(),
          json["model"].get<std::string>()};
}

}  // namespace jforge
