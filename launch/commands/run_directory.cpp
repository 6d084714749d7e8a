#include "launch/commands/run_directory.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {
constexpr double kSharedDirectorySeconds = 30;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
}  // namespace

void load_configuration(const Communicator& comm, const std::filesystem::path& path,
                        const std::function<void(const std::string& text)>& load) {
  std::string text;
  const auto read_and_load = [&] {
    if (!path.empty()) {
      try {
        text = read_file(path);
      } catch (const DataError& error) {
        throw ConfigError(std::string("configuration: ") + error.what());
      }
    }
    load(text);
  };
  if (comm.size() == 1) {  // A mistake needs no rank and host in front of it.
    read_and_load();
    return;
  }
  together(comm, comm.rank() == 0 ? read_and_load : std::function<void()>());
  text = broadcast_text(comm, text, 0);
  together(comm, [&] {
    if (comm.rank() != 0) {
      load(text);
    }
  });
}

RunDirectory::RunDirectory(const Communicator& comm, const Settings& settings)
    : directory_(settings.directory),
      ranks_(comm.size()),
      owner_(comm.rank() == 0),
      started_(utc_now()) {
  together(comm, [&] {
    if (!owner_) {
      return;
    }
    make_directory(directory_);
    lock_.emplace(directory_);
    sweep_temporaries(directory_);  // Of a killed attempt: the lock says that nobody writes now.
    if (settings.must_be_new && std::filesystem::exists(directory_ / "run.json")) {
      throw ConfigError(directory_.string() +
                        " holds a run already and --resume never was given; remove it or choose "
                        "another run.directory");
    }
    const nlohmann::json before = read_run_status(directory_);
    attempt_ = before.is_object() ? before.value("attempt", 0) + 1 : 1;
    check_identity(settings);
    publish_file(directory_ / "resolved_config.toml", settings.resolved_config);
    journal_.emplace(directory_);
    metrics_.emplace(directory_ / fmt::format("metrics.{}.jsonl", attempt_));
    events_.emplace(directory_, static_cast<std::int64_t>(std::time(nullptr)), attempt_);
  });
  prove_shared(comm);
  attempt_ = std::stoi(broadcast_text(comm, std::to_string(attempt_), 0));
  identity_record_ = broadcast_text(comm, identity_record_, 0);
  together(comm, [&] { add_log_file(directory_ / "logs"); });
}

void RunDirectory::prove_shared(const Communicator& comm) const {
  const std::filesystem::path path = directory_ / ".nonce";
  std::string nonce;
  together(comm, [&] {
    if (owner_) {
      nonce = hash_hex((std::uint64_t{std::random_device{}()} << 32) | std::random_device{}());
      publish_file(path, nonce);
    }
  });
  nonce = broadcast_text(comm, nonce, 0);
  together(comm, [&] {
    std::string seen;
    try {
      seen = read_file(path, kSharedDirectorySeconds);
    } catch (const DataError&) {
      seen.clear();
    }
    if (seen != nonce) {
      throw EnvironmentError(directory_.string() +
                             " is not the same directory on every rank; put run.directory on a "
                             "file system that all hosts share");
    }
  });
  if (owner_) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
}

void RunDirectory::check_identity(const Settings& settings) {
  const std::filesystem::path path = directory_ / "identity.json";
  IdentityRecord record{settings.identity, {}};
  if (std::filesystem::exists(path)) {
    record = continue_identity(directory_.string(),
                               IdentityRecord::from_json(read_file(path), path.string()),
                               settings.identity, settings.accepted_changes,
                               std::filesystem::exists(RunLayout(directory_).prompts()));
  }
  publish_file(path, record.to_json());
  identity_record_ = record.to_json();
}

std::vector<IdentityDifference> RunDirectory::accepted_changes() const {
  return IdentityRecord::from_json(identity_record_, "identity.json").accepted;
}

void RunDirectory::set_status(const std::string& status, const std::string& phase) {
  if (!owner_) {
    return;
  }
  nlohmann::json json = {{"status", status},     {"phase", phase},           {"attempt", attempt_},
                         {"ranks", ranks_},      {"host", host_name()},      {"started", started_},
                         {"updated", utc_now()}, {"version", JFORGE_VERSION}};
  if (!device_.empty()) {
    json["device"] = device_;
  }
  write_run_status(directory_, json);
  journal_->record(status, {{"phase", phase}, {"attempt", attempt_}});
}

void RunDirectory::log_step(std::int32_t round, const StepMetrics& metrics) {
  if (!owner_) {
    return;
  }
  nlohmann::ordered_json line = {{"round", round},
                                 {"step", metrics.step},
                                 {"loss", metrics.loss},
                                 {"consistency", metrics.consistency},
                                 {"autoregressive", metrics.autoregressive},
                                 {"gradient_norm", metrics.gradient_norm},
                                 {"learning_rate", metrics.learning_rate},
                                 {"samples", metrics.samples},
                                 {"tokens", metrics.tokens},
                                 {"kept_offsets", metrics.kept_offsets},
                                 {"ar_targets", metrics.ar_targets},
                                 {"milliseconds", metrics.milliseconds},
                                 {"tokens_per_second", metrics.tokens_per_second},
                                 {"straggler_ratio", metrics.straggler_ratio},
                                 {"slowest_rank", metrics.slowest_rank}};
  const auto add = [&](const char* key, const std::optional<double>& value) {
    if (value) {
      line[key] = *value;
    }
  };
  add("consistency_gradient_norm", metrics.consistency_gradient_norm);
  add("ar_gradient_norm", metrics.ar_gradient_norm);
  add("mfu", metrics.mfu);
  metrics_->append(line.dump());
  const std::string prefix = fmt::format("round-{}/", round);
  std::vector<Scalar> scalars;
  for (const char* key :
       {"loss", "consistency", "autoregressive", "gradient_norm", "consistency_gradient_norm",
        "ar_gradient_norm", "learning_rate", "tokens_per_second", "mfu"}) {
    if (const auto value = line.find(key); value != line.end()) {
      scalars.emplace_back(prefix + key, value->is_null() ? std::nan("") : value->get<double>());
    }
  }
  events_->append(metrics.step, wall_seconds(), scalars);
}

void RunDirectory::log_evaluation(const std::string& model, std::int32_t rounds) {
  if (!owner_) {
    return;
  }
  const auto summary =
      nlohmann::json::parse(read_file(directory_ / "evaluation" / "summary.json"), nullptr, false);
  const auto path = nlohmann::json::json_pointer("/models") / model;
  std::vector<Scalar> scalars;
  if (summary.is_object() && summary.contains(path)) {
    const nlohmann::json figures = summary.at(path).flatten();  // "/TASK/METHOD/NAME"
    for (const auto& [key, value] : figures.items()) {
      if (value.is_number()) {
        scalars.emplace_back("evaluation/" + model + key, value.get<double>());
      }
    }
  }
  events_->append(rounds, wall_seconds(), scalars);
}

}  // namespace jforge
