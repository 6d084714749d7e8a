#include "coordinator/run_journal.h"

#include <fmt/chrono.h>

#include <chrono>

#include "runtime/bounded_json.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/text_seal.h"

namespace jforge {

namespace {
/// Replaces invalid UTF-8, because error messages may quote any input.
std::string to_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}
}  // namespace

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

RunJournal::RunJournal(const std::filesystem::path& run_directory)
    : log_(run_directory / "journal.jsonl") {}

void RunJournal::record(std::string_view event, const nlohmann::json& details) {
  nlohmann::json line = {{"time", utc_now()}, {"event", event}};
  line.update(details);
  const std::lock_guard lock(mutex_);
  log_.append(seal_json(to_text(line, -1)));
}

void write_run_status(const std::filesystem::path& run_directory, const nlohmann::json& status) {
  publish_file(run_directory / "run.json", seal_json(to_text(status, 2) + "\n"));
}

void show_run_status(const std::filesystem::path& run_directory, const nlohmann::json& status) {
  replace_file(run_directory / "run.json", seal_json(to_text(status, 2) + "\n"));
}

nlohmann::json read_run_status(const std::filesystem::path& run_directory) {
  const std::filesystem::path path = run_directory / "run.json";
  if (!std::filesystem::exists(path)) {
    return nullptr;
  }
  auto json = try_bounded_json(read_sealed(path));
  if (!json.is_object()) {
    throw DataError(path.string() + " is damaged: it is not a JSON object");
  }
  json.erase(kSealKey);
  return json;
}

}  // namespace jforge
