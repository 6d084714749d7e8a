#include "launch/commands/run_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "checkpoints/checkpoint_manifest.h"
#include "coordinator/run_journal.h"
#include "data/trajectories/trajectory_store.h"
#include "results/report/metrics_reader.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "runtime/machine_load.h"
#include "runtime/phase_clock.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"
#include "workers/job_kernels.h"

namespace jforge {

namespace {
/// Returns the newest checkpoint's identity if identity.json is lost or damaged, or nothing before
/// there is one: prompts and trajectories have their own hashes.
std::optional<IdentityRecord> recorded_identity(const RunLayout& layout) {
  const std::filesystem::path path = layout.identity();
  std::string reason = path.string() + " is gone";
  if (std::filesystem::exists(path)) {
    try {
      return IdentityRecord::from_json(read_file(path), path.string());
    } catch (const DataError& error) {
      reason = error.what();
    }
  }
  for (const CheckpointDirectory& checkpoint : list_checkpoint_directories(layout.checkpoints())) {
    try {
      Identity identity = read_manifest(checkpoint.path).state.identity;
      identity.erase(kPromptsDigest);
      log_warn("{}; the identity is taken from {}", reason, checkpoint.path.string());
      return IdentityRecord{std::move(identity), {}};
    } catch (const DataError&) {
      continue;  // The search for the newest checkpoint names it.
    }
  }
  log_warn("{}; it is written anew from this configuration", reason);
  return std::nullopt;
}

struct EarlierStarts {
  int attempt = 0;  ///< From run.json or, if that is damaged, the metrics files.
  std::optional<std::string> finished;  ///< When one finished last.
};

EarlierStarts earlier_starts(const std::filesystem::path& directory) {
  EarlierStarts known;
  int& last = known.attempt;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    last = std::max(last, metrics_attempt(entry.path().filename().string()));
  }
  try {
    const nlohmann::json before = read_run_status(directory);
    if (before.is_null()) {
      return known;
    }
    const auto number = before.find("attempt");
    if (number == before.end() || !number->is_number_integer()) {
      throw DataError(RunLayout(directory).status().string() + " is damaged: it has no attempt");
    }
    constexpr std::int64_t kMost = 1'000'000'000;
    last = std::max(
        last, static_cast<int>(std::clamp<std::int64_t>(number->get<std::int64_t>(), 0, kMost)));
    if (const auto finished = before.find("last_finished");
        finished != before.end() && finished->is_string()) {
      known.finished = finished->get<std::string>();
    }
  } catch (const DataError& error) {
    log_warn("{}; the status starts anew with attempt {}", error.what(), last + 1);
  }
  return known;
}

/// Gives a part the prompts and checkpoints of the whole, and its identity.
void share_with_part(const RunLayout& whole, const RunLayout& part) {
  for (const auto& link : {part.prompts(), part.prompts_report(), part.checkpoints()}) {
    if (!std::filesystem::is_symlink(link)) {
      std::filesystem::create_symlink("../.." / link.filename(), link);
    }
  }
  if (std::filesystem::exists(whole.identity()) && !std::filesystem::exists(part.identity())) {
    publish_file(part.identity(), read_file(whole.identity()));
  }
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
}  // namespace

bool holds_work(const RunLayout& layout) {
  return std::filesystem::exists(layout.prompts()) ||
         !list_committed_shards(layout.trajectories(1)).empty() ||
         !list_checkpoint_directories(layout.checkpoints()).empty();
}

void expect_toml_name(const std::filesystem::path& path) {
  const std::filesystem::path ending = path.extension();
  const bool json = ending == ".json";
  if (json || ending == ".yaml" || ending == ".yml") {
    throw ConfigError(fmt::format(
        "{}: a configuration is TOML, not {}: `jforge init {}` writes one with every key",
        path.string(), json ? "JSON" : "YAML",
        std::filesystem::path(path).replace_extension(".toml").string()));
  }
}

void load_configuration(const Communicator& comm, const std::filesystem::path& path,
                        const std::function<void(const std::string& text)>& load) {
  std::string text;
  const auto read_and_load = [&] {
    if (!path.empty()) {
      expect_toml_name(path);
      try {
        text = read_file(path);
      } catch (const DataError& error) {
        throw ConfigError(std::string("configuration: ") + error.what());
      }
    }
    load(text);
  };
  if (comm.size() == 1) {  // No rank and host in front of the error.
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
    const RunLayout whole(settings.part.empty() ? directory_
                                                : directory_.parent_path().parent_path());
    lock_ = lock_part(whole.directory(), whole.parts(), settings.part);
    if (!settings.part.empty()) {
      share_with_part(whole, RunLayout(directory_));
    }
    sweep_temporaries(directory_);  // Left by a killed attempt: the lock excludes other writers.
    if (settings.must_be_new && holds_work(RunLayout(directory_))) {
      throw ConfigError(directory_.string() +
                        " holds a run already and --resume never was given; remove it or choose "
                        "another run.directory");
    }
    const EarlierStarts earlier = earlier_starts(directory_);
    attempt_ = earlier.attempt + 1;
    last_finished_ = earlier.finished;
    check_identity(settings);
    resolved_config_ = seal_toml(settings.resolved_config);
    journal_.emplace(directory_);
    metrics_.emplace(directory_ / fmt::format("metrics.{}.jsonl", attempt_));
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
      seen = read_file(path, publication_wait_seconds(path));
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
  const RunLayout layout(directory_);
  IdentityRecord record{settings.identity, {}};
  if (holds_work(layout)) {
    if (const std::optional<IdentityRecord> before = recorded_identity(layout)) {
      record_bfloat16_sums(bfloat16_sums_of(before->identity), record.identity);
      record =
          continue_identity(directory_.string(), *before, record.identity,
                            settings.accepted_changes, std::filesystem::exists(layout.prompts()));
    }
  }
  identity_record_ = record.to_json();
}

void RunDirectory::record(const Communicator& comm) {
  together(comm, [&] {
    if (owner_) {
      const RunLayout layout(directory_);
      publish_file(layout.identity(), identity_record_);
      publish_file(layout.resolved_config(), resolved_config_);
    }
  });
}

BFloat16Sums RunDirectory::bfloat16_sums() const {
  return bfloat16_sums_of(IdentityRecord::from_json(identity_record_, "identity.json").identity);
}

std::vector<IdentityDifference> RunDirectory::accepted_changes() const {
  return IdentityRecord::from_json(identity_record_, "identity.json").accepted;
}

void RunDirectory::set_status(const std::string& status, const std::string& phase) {
  if (!owner_) {
    return;
  }
  nlohmann::json json = {{"status", status},
                         {"phase", phase},
                         {"attempt", attempt_},
                         {"ranks", ranks_},
                         {"host", host_name()},
                         {"started", started_},
                         {"updated", utc_now()},
                         {"version", JFORGE_VERSION},
                         {"processor", processor_name()}};
  if (!device_.empty()) {
    json["device"] = device_;
  }
  if (status == "finished") {
    last_finished_ = json["updated"];
  }
  if (last_finished_) {
    json["last_finished"] = *last_finished_;
  }
  write_run_status(directory_, json);
  status_ = std::move(json);
  journal_->record(status, {{"phase", phase}, {"attempt", attempt_}});
  publish_signs([&] { write_run_metrics(directory_, status_); });
}

void RunDirectory::set_failed(const std::exception& error) noexcept {
  try {
    set_status("failed", error.what());
  } catch (const std::exception& second) {
    log_warn("run.json does not say that the job has failed: {}", second.what());
  }
}

void RunDirectory::set_progress(const PhaseProgress& progress) {
  if (!owner_ || status_.is_null()) {
    return;
  }
  nlohmann::json json = status_;
  json["updated"] = utc_now();
  json["step"] = progress.step;
  json["unit"] = progress.unit;
  json["detail"] = progress.detail;
  if (progress.total) {
    json["total"] = *progress.total;
  }
  if (progress.eta_seconds) {
    json["eta_seconds"] = *progress.eta_seconds;
    json["eta_is_bound"] = progress.eta_is_bound;
  }
  if (progress.tokens_per_second) {
    json["tokens_per_second"] = *progress.tokens_per_second;
  }
  publish_signs([&] {
    write_run_metrics(directory_, json);
    show_run_status(directory_, json);
  });
}

void RunDirectory::publish_signs(const std::function<void()>& publish) {
  // Otherwise a hung job would keep itself alive by publishing.
  const NoSignsOfProgress none;
  try {
    publish();
  } catch (const EnvironmentError& error) {
    if (!std::exchange(signs_lost_, true)) {
      log_warn("cannot write the run's progress: {}", error.what());
    }
  }
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
                                 {"communication_milliseconds", metrics.communication_milliseconds},
                                 {"payload_bytes", metrics.payload_bytes},
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
  add("repetition", metrics.repetition);
  add("distinct", metrics.distinct);
  add("held_out_tpf", metrics.held_out_tpf);
  add("held_out_accuracy", metrics.held_out_accuracy);
  add("spike_reference", metrics.spike_reference);
  if (metrics.spike_reference) {
    line["skipped"] = metrics.skipped;
    line["skipped_steps"] = metrics.skipped_steps;
  }
  if (metrics.filtered) {
    line["filtered"] = *metrics.filtered;
  }
  metrics_->append(seal_json(line.dump()));
  std::vector<Scalar> scalars;
  for (const char* key :
       {"loss", "consistency", "autoregressive", "gradient_norm", "consistency_gradient_norm",
        "ar_gradient_norm", "learning_rate", "tokens_per_second", "mfu", "skipped_steps",
        "repetition", "distinct", "held_out_tpf", "held_out_accuracy"}) {
    if (const auto value = line.find(key); value != line.end()) {
      scalars.emplace_back(key, value->is_null() ? std::nan("") : value->get<double>());
    }
  }
  draw(round == 0 ? "training" : fmt::format("round-{}", round), metrics.step, scalars);
}

void RunDirectory::log_evaluation(const std::string& model, std::int32_t rounds) {
  if (!owner_) {
    return;
  }
  const auto summary = try_bounded_json(read_file(directory_ / "evaluation" / "summary.json"));
  const auto path = nlohmann::json::json_pointer("/models") / model;
  std::vector<Scalar> scalars;
  if (summary.is_object() && summary.contains(path)) {
    const nlohmann::json figures = summary.at(path).flatten();  // "/TASK/METHOD/NAME"
    for (const auto& [key, value] : figures.items()) {
      if (value.is_number()) {
        scalars.emplace_back(model + key, value.get<double>());
      }
    }
  }
  draw("evaluation", rounds, scalars);
}

// One folder per round: a new attempt drops all later steps, and rounds share step numbers.
void RunDirectory::draw(const std::string& folder, std::int64_t step,
                        std::span<const Scalar> scalars) {
  auto log = curves_.find(folder);
  if (log == curves_.end()) {
    const std::filesystem::path path = directory_ / "tensorboard" / folder;
    make_directory(path);
    const auto now = static_cast<std::int64_t>(std::time(nullptr));
    log = curves_.try_emplace(folder, path, now, attempt_, step).first;
  }
  log->second.append(step, wall_seconds(), scalars);
}

}  // namespace jforge
