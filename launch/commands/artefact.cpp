#include "launch/commands/artefact.h"

#include <algorithm>
#include <string>

#include "checkpoints/checkpoint_manifest.h"
#include "data/hdf5/file_seal.h"
#include "runtime/error.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;

bool holds_shards(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with("lease-")) {
      return true;
    }
  }
  return false;
}

bool holds_an_evaluation(const fs::path& path) {
  return std::ranges::any_of(evaluation_directories(path), [](const fs::path& directory) {
    return fs::exists(directory / "summary.json");
  });
}

}  // namespace

std::vector<fs::path> evaluation_directories(const fs::path& path) {
  const RunLayout layout(path);
  return {path, layout.evaluation(), layout.sweep()};
}

Artefact kind_of(const fs::path& path) {
  if (!fs::exists(path)) {
    throw DataError(path.string() + " does not exist");
  }
  // Unrelated files must not be reported as damaged stores.
  if (fs::is_regular_file(path) && (path.extension() == ".h5" || begins_with_seal(path))) {
    return Artefact::prompts;
  }
  const bool is_directory = fs::is_directory(path);
  const RunLayout layout(path);
  if (fs::exists(layout.status()) || fs::exists(layout.identity())) {
    return Artefact::run;
  }
  // A checkpoint without its manifest still counts as one, so that the error names the damage.
  const bool named_like_a_checkpoint = path.filename().string().find("-step-") != std::string::npos;
  if (fs::exists(path / kManifestName) || (is_directory && named_like_a_checkpoint)) {
    return Artefact::checkpoint;
  }
  if (fs::exists(path / "config.json")) {
    return Artefact::model;
  }
  if (holds_an_evaluation(path)) {
    return Artefact::evaluation;
  }
  if (is_directory && holds_shards(path)) {
    return Artefact::trajectories;
  }
  throw DataError(
      path.string() +
      " is not a prompt store, trajectory store, checkpoint, model, evaluation or run directory");
}

}  // namespace jforge
