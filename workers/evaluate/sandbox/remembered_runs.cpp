#include "workers/evaluate/sandbox/remembered_runs.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "runtime/bounded_json.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/machine_load.h"
#include "runtime/text_seal.h"
#include "workers/evaluate/sandbox/sandbox.h"
#include "workers/evaluate/sandbox/sandbox_internal.h"

namespace fs = std::filesystem;

namespace jforge {
namespace {

constexpr int kRecordVersion = 1;

struct KeptRun {
  std::vector<std::string> values;
  std::vector<double> call_seconds;
};

/// 32 hex digits.
std::string hash_of(const CodeRunRequest& request, const std::string& environment) {
  // JSON: different requests cannot produce the same text.
  const std::string text =
      nlohmann::json({kRecordVersion, environment, request.candidate, request.check,
                      request.entry_point, request.calls, request.check_seconds,
                      request.call_seconds, request.total_seconds, request.memory_bytes,
                      request.hash_seed})
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return hash_hex(hash64(text)) + hash_hex(hash64(text, 1));
}

/// Returns nothing for a missing or, with a warning, a damaged file.
std::optional<KeptRun> read_run(const fs::path& file, const std::string& hash, std::size_t calls) {
  std::error_code none;
  if (!fs::exists(file, none)) {
    return std::nullopt;
  }
  try {
    const nlohmann::json json = parse_bounded_json(verify_sealed(file), file.string());
    KeptRun run{.values = json.at("values").get<std::vector<std::string>>(),
                .call_seconds = json.at("call_seconds").get<std::vector<double>>()};
    if (json.at("version") == kRecordVersion && json.at("request") == hash &&
        run.values.size() == calls && run.call_seconds.size() == calls) {
      return run;
    }
    log_warn("{}: not the run that its name says; it is repeated", file.string());
  } catch (const Error& error) {
    log_warn("{}; the run is repeated", error.what());
  } catch (const nlohmann::json::exception& error) {
    log_warn("{}: {}; the run is repeated", file.string(), error.what());
  }
  return std::nullopt;
}

void keep_run(const fs::path& file, const std::string& hash, const KeptRun& run) {
  try {
    const nlohmann::ordered_json json = {{"version", kRecordVersion},
                                         {"request", hash},
                                         {"call_seconds", run.call_seconds},
                                         {"values", run.values}};
    std::error_code failed;
    fs::create_directories(file.parent_path(), failed);
    publish_file(file, seal_json(json.dump() + "\n"));
  } catch (const EnvironmentError& error) {
    log_warn("cannot save a canonical solution's results: {}", error.what());
  } catch (const nlohmann::json::exception& error) {
    log_warn("cannot save a canonical solution's results: {}", error.what());
  }
}

CodeRunResult replay(KeptRun run, const CodeValueSink& sink) {
  CodeRunResult result{.status = CodeRunStatus::completed, .reason = {}, .call_seconds = {}};
  for (std::size_t call = 0; call < run.values.size(); ++call) {
    if (sink && !sink(result.calls_returned, run.values[call])) {
      result.status = CodeRunStatus::failed;
      result.reason = fmt::format("value of call {} not accepted", call);
      return result;
    }
    ++result.calls_returned;
    result.call_seconds.push_back(run.call_seconds[call]);
  }
  return result;
}

}  // namespace

RememberedRuns::RememberedRuns(std::unique_ptr<CodeRunner> runner, std::string environment,
                               std::optional<fs::path> folder)
    : runner_(std::move(runner)),
      environment_(std::move(environment)),
      folder_(std::move(folder)) {}

std::optional<fs::path> RememberedRuns::default_folder() {
  for (const auto& [variable, below] :
       {std::pair("XDG_CACHE_HOME", "jforge/runs"), std::pair("HOME", ".cache/jforge/runs")}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && fs::path(value).is_absolute()) {
      return fs::path(value) / below;
    }
  }
  return std::nullopt;
}

CodeRunResult RememberedRuns::run(const CodeRunRequest& request, const CodeValueSink& sink) {
  if (!request.repeatable || !folder_) {
    return runner_->run(request, sink);
  }
  const std::string hash = hash_of(request, environment_);
  const fs::path file = *folder_ / (hash + ".json");
  if (auto kept = read_run(file, hash, request.calls.size())) {
    return replay(std::move(*kept), sink);
  }
  KeptRun seen;
  std::size_t bytes = 0;
  CodeRunResult result = runner_->run(request, [&](std::int64_t call, std::string_view value) {
    bytes += value.size();
    if (bytes <= kMostBytes) {
      seen.values.emplace_back(value);
    }
    return !sink || sink(call, value);
  });
  seen.call_seconds = result.call_seconds;
  if (result.status == CodeRunStatus::completed && bytes <= kMostBytes &&
      seen.values.size() == request.calls.size() &&
      seen.call_seconds.size() == request.calls.size()) {
    keep_run(file, hash, seen);
  }
  return result;
}

std::unique_ptr<CodeRunner> remember_runs(std::unique_ptr<Sandbox> sandbox) {
  std::string environment = fmt::format("{}, {}, harness {}", sandbox->description(),
                                        processor_name(), hash_hex(hash64(harness_source())));
  return std::make_unique<RememberedRuns>(std::move(sandbox), std::move(environment));
}

}  // namespace jforge
