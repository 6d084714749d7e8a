#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/directory_checksums.h"
#include "checkpoints/tokenizer_fit.h"
#include "data/prompts/prompt_store.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/trajectories/trajectory_store.h"
#include "launch/commands/artefact.h"
#include "launch/commands/commands.h"
#include "launch/commands/loaded_model.h"
#include "launch/commands/run_directory.h"
#include "results/report/metrics_reader.h"
#include "runtime/bounded_json.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"
#include "workers/evaluate/evaluation_summary.h"
#include "workers/evaluate/sample_record.h"
#include "workers/phases/export_phase.h"
#include "workers/resume_choice.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;

/// Collects damage, so that one call names all of it.
class Findings {
 public:
  void check(const std::function<void()>& work) {
    try {
      work();
    } catch (const DataError& error) {
      damage_.emplace_back(error.what());
    }
  }
  void record(const fs::path& path) {
    if (fs::exists(path)) {
      ++records_;
      check([&] { verify_sealed(path); });
    }
  }
  void lines(const fs::path& path) {
    if (fs::exists(path)) {
      ++records_;
      check([&] { verify_sealed_lines(path); });
    }
  }
  void lost(const fs::path& path) { damage_.push_back(path.string() + " is gone"); }
  /// Throws DataError if anything was found.
  void conclude(const fs::path& path) const {
    if (!damage_.empty()) {
      throw DataError(fmt::format("{}", fmt::join(damage_, "; ")));
    }
    fmt::print("{}: {} records and logs intact\n", path.string(), records_);
  }

 private:
  std::vector<std::string> damage_;
  std::size_t records_ = 0;
};

TrajectoryStore verify_trajectories(const fs::path& path) {
  TrajectoryStore store = TrajectoryStore::open(path);
  store.verify();
  for (const fs::path& index : ShardIndex::files(path)) {
    verify_sealed_lines(index);
  }
  fmt::print("{}: {} trajectories in {} shards intact, digest {}\n", path.string(), store.size(),
             store.shards().size(), store.store_digest());
  return store;
}

void verify_prompts(const fs::path& path) {
  const PromptStore store = PromptStore::open(path);
  store.verify();
  fmt::print("{}: {} prompts intact, digest {}\n", path.string(), store.size(), store.digest());
}

void verify_checkpoint(const fs::path& path) {
  const Checkpoint checkpoint = open_checkpoint(path);
  fmt::print("{}: {} shards intact (round {}, step {})\n", path.string(),
             checkpoint.manifest.shards.size(), checkpoint.manifest.state.round,
             checkpoint.manifest.state.step);
}

void verify_model(const fs::path& path) {
  const bool sealed = check_checksums(path);
  LoadedModel model(path, DeviceChoice::cpu);
  static_cast<void>(model.flat_weights());
  if (BytePairTokenizer::present(path)) {
    expect_tokenizer_fits(path, BytePairTokenizer::load(path), model.config);
  }
  fmt::print("{}: {} parameters load, {}\n", path.string(), model.table.parameter_count(),
             sealed ? "every file has its checksum"
                    : "nothing to compare the files with (no checksums.json)");
}

/// Compares merged files with the hash in their figures; everything else is sealed.
void verify_summary(const fs::path& directory, Findings& findings) {
  findings.check([&] { verify_sealed(directory / "summary.json"); });
  findings.check([&] {
    EvaluationSummary(directory).for_each(
        [&](const EvaluationSummary::Place& place, const nlohmann::ordered_json& figures) {
          const SampleFiles files(directory / place.model, place.task, place.method);
          findings.check([&] {
            const auto hash = files.merged_hash();
            if (!hash) {
              throw DataError(files.merged().string() + " is gone");
            }
            if (figures.value(EvaluationSummary::kSamplesHash, nlohmann::ordered_json()) != *hash) {
              throw DataError(files.merged().string() +
                              " is damaged: it does not match its checksum in summary.json");
            }
          });
        });
  });
}

void verify_evaluation_files(const fs::path& directory, Findings& findings) {
  if (!fs::exists(directory)) {
    return;
  }
  if (!fs::is_directory(directory)) {
    findings.check([&] { throw DataError(directory.string() + " is no directory"); });
    return;
  }
  if (fs::exists(directory / "summary.json")) {
    verify_summary(directory, findings);
  }
  findings.record(directory / "sweep.json");
  std::vector<fs::path> parts;
  for (const auto& model : fs::directory_iterator(directory)) {
    if (!model.is_directory() || !fs::exists(model.path() / "model.json")) {
      continue;
    }
    findings.record(model.path() / "model.json");
    for (const auto& entry : fs::directory_iterator(model.path())) {
      if (entry.path().extension() == ".part" || entry.path().extension() == ".speed") {
        parts.push_back(entry.path());
      }
    }
  }
  std::ranges::sort(parts);
  for (const fs::path& part : parts) {
    findings.lines(part);
  }
}

void verify_evaluation(const fs::path& path) {
  Findings findings;
  for (const fs::path& directory : evaluation_directories(path)) {
    verify_evaluation_files(directory, findings);
  }
  findings.conclude(path);
}

void verify_records(const RunLayout& layout, Findings& findings) {
  // A start that was refused or killed early leaves no identity.
  const bool needed = holds_work(layout);
  for (const fs::path& path : {layout.identity(), layout.status()}) {
    needed && !fs::exists(path) ? findings.lost(path) : findings.record(path);
  }
  findings.record(layout.resolved_config());
  findings.record(layout.prompts_report());
  findings.record(layout.peak_flops());
  findings.lines(layout.prompts().string() + ".quarantine");
  findings.lines(layout.journal());
  std::vector<fs::path> metrics;
  for (const auto& entry : fs::directory_iterator(layout.directory())) {
    if (metrics_attempt(entry.path().filename().string()) >= 0) {
      metrics.push_back(entry.path());
    }
  }
  std::ranges::sort(metrics);
  for (const fs::path& path : metrics) {
    findings.lines(path);
  }
}

/// Checks each sealed shard, and by the report that none is missing.
void verify_round(const RunLayout& layout, std::int32_t round) {
  const fs::path path = layout.trajectories(round);
  const TrajectoryStore store = verify_trajectories(path);
  const fs::path report = layout.generation_report(round);
  if (!fs::exists(report)) {
    return;
  }
  const auto recorded = try_bounded_json(read_file(report));
  if (recorded.is_object() && recorded.contains("digest") &&
      recorded.at("digest") != store.store_digest()) {
    throw DataError(fmt::format(
        "{}: {} trajectories with digest {} are there, {} records {} with digest {}", path.string(),
        store.size(), store.store_digest(), report.filename().string(),
        recorded.value("prompts", nlohmann::json()).dump(), recorded.at("digest").dump()));
  }
}

void verify_run(const fs::path& path) {
  const RunLayout layout(path);
  Findings findings;
  verify_records(layout, findings);
  if (fs::exists(layout.prompts())) {
    findings.check([&] { verify_prompts(layout.prompts()); });
  } else if (fs::exists(layout.trajectories(1))) {
    findings.lost(layout.prompts());
  }
  for (std::int32_t round = 1; fs::exists(layout.trajectories(round)); ++round) {
    findings.record(layout.generation_report(round));
    findings.check([&] { verify_round(layout, round); });
    findings.record(layout.cleaning_report(round));
  }
  findings.check([&] { expect_none_lost(layout, rounds_behind_newest(layout)); });
  // A killed job's unfinished checkpoints are not damage.
  for (const CheckpointDirectory& directory : list_checkpoint_directories(layout.checkpoints())) {
    const fs::path manifest = directory.path / kManifestName;
    if (fs::exists(manifest)) {
      findings.check([&] {
        try {
          verify_checkpoint(directory.path);
        } catch (const DataError&) {
          // A running job removes old ones.
          if (fs::exists(manifest)) {
            throw;
          }
          fmt::print("{}: removed meanwhile\n", directory.path.string());
        }
      });
    } else {
      fmt::print("{}: no manifest, not a checkpoint; ignored\n", directory.path.string());
    }
  }
  if (fs::exists(layout.export_record())) {
    findings.check([&] {
      verify_export_record(layout);
      verify_model(layout.model());
    });
  } else if (fs::exists(layout.model() / kChecksumsName)) {
    // Ordinary training, or a run killed before it recorded the export.
    findings.check([&] { verify_model(layout.model()); });
  } else if (fs::exists(layout.model())) {
    fmt::print("{}: the export was not finished; ignored\n", layout.model().string());
  }
  verify_evaluation_files(layout.evaluation(), findings);
  verify_evaluation_files(layout.sweep(), findings);
  findings.conclude(path);
}

}  // namespace

ExitCode verify_command(const fs::path& path) {
  switch (kind_of(path)) {
    case Artefact::prompts:
      verify_prompts(path);
      break;
    case Artefact::trajectories:
      static_cast<void>(verify_trajectories(path));
      break;
    case Artefact::checkpoint:
      verify_checkpoint(path);
      break;
    case Artefact::model:
      verify_model(path);
      break;
    case Artefact::evaluation:
      verify_evaluation(path);
      break;
    case Artefact::run:
      verify_run(path);
      break;
  }
  return ExitCode::ok;
}

}  // namespace jforge
