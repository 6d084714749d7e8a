#include "workers/protocol/command.h"

#include <nlohmann/json.hpp>

#include "runtime/bounded_json.h"
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
  const auto json = try_bounded_json(text);
  const auto has = [&](const char* key, bool (nlohmann::json::*is_kind)() const noexcept) {
    return json.contains(key) && (json[key].*is_kind)();
  };
  if (!json.is_object() || !has("kind", &nlohmann::json::is_number_integer) ||
      !has("round", &nlohmann::json::is_number_integer) ||
      !has("model", &nlohmann::json::is_string)) {
    throw CommError("not a command: " + text);
  }
  const auto kind = json["kind"].get<std::int64_t>();
  if (kind < 0 || kind > static_cast<std::int64_t>(Command::Kind::finish)) {
    throw CommError("unknown command kind " + std::to_string(kind));
  }
  return {static_cast<Command::Kind>(kind), json["round"].get<std::int32_t>(),
          json["model"].get<std::string>()};
}

}  // namespace jforge
