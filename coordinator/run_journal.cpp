#include "coordinator/run_journal.h"

#include <fmt/chrono.h>

#include <chrono>

#include "runtime/error.h"

namespace jforge {

namespace {
/// Texts come from anywhere (error messages quote input): bytes that are not UTF-8 are replaced.
std::string to_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}
}  // namespace

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

RunJournal::RunJournal(const std::filesystem::path& run_directory)
    : log_(run_directory / "journal.jsonl") {}

void RunJournal::record(std::string_view event, nlohmann::json details) {
  nlohmann::json line = {{"time", utc_now()}, {"event", event}};
  line.update(details);
  const std::lock_guard lock(mutex_);
  log_.append(to_text(line, -1));
}

void write_run_status(const std::filesystem::path& run_directory, const nlohmann::json& status) {
  publish_file(run_directory / "run.json", to_text(status, 2) + "\n");
}

nlohmann::json read_run_status(const std::filesystem::path& run_directory) {
  const std::filesystem::path path = run_directory / "run.json";
  if (!std::filesystem::exists(path)) {
    return nullptr;
  }
  auto json = nlohmann::json::parse(read_file(path), nullptr, false);
  if (json.is_discarded()) {
    throw DataError(path.string() + " is not JSON; remove it to start the status anew");
  }
  return json;
}

}  // namespace jforge
