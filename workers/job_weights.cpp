#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "runtime/bounded_json.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "workers/job_worker.h"
#include "workers/round_checkpoint_internal.h"

// Which weights a round starts from, and the checkpoints that they lie in.

namespace jforge {

using Json = nlohmann::json;

std::int64_t total_steps_of(const CheckpointManifest& manifest) {
  const Json cursors = try_bounded_json<Json>(manifest.state.cursors);
  if (!cursors.is_object() || !cursors.contains("total_steps")) {
    throw DataError("checkpoint of round " + std::to_string(manifest.state.round) +
                    " has no total_steps among its cursors: it was not made by a training round");
  }
  return json_integer<std::int64_t>(cursors["total_steps"]);
}

bool finishes_round(const CheckpointManifest& manifest) {
  return manifest.state.step == total_steps_of(manifest);
}

bool JobWorker::resumes_at_end_of(std::int32_t round) const {
  return resume_point_ && resume_point_->manifest.state.round == round &&
         finishes_round(resume_point_->manifest);
}

bool JobWorker::resumes_within(std::int32_t round) const {
  return resume_point_ && resume_point_->manifest.state.round == round &&
         rounds_trained_ == round - 1;
}

std::string JobWorker::present_origin(std::int32_t rounds_done) const {
  return rounds_done == 0
             ? identity_.at("model.hash")
             : hash_hex(hash_file(final_checkpoint_directory(rounds_done) / kManifestName));
}

std::string JobWorker::weights_origin(std::int32_t rounds_done) const {
  if (rounds_done > 0 && resumes_within(rounds_done + 1)) {
    // The checkpoint itself may be gone by now: only the trajectories made from it are needed.
    const Json cursors = try_bounded_json<Json>(resume_point_->manifest.state.cursors);
    if (cursors.is_object() && cursors.contains(kGeneratedFrom)) {
      return cursors[kGeneratedFrom].get<std::string>();
    }
  }
  return present_origin(rounds_done);
}

ModelState& JobWorker::first_weights(std::int32_t round, const char* need) {
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0 && present_origin(round - 1) != trajectory_origin_) {
      throw DataError(fmt::format(
          "round {} began with other weights than those that are there now, and {} needs them; "
          "bring back the final checkpoint of round {} in {}",
          round, need, round - 1, layout_.checkpoints().string()));
    }
  }));
  return weights_after(round - 1);
}

void JobWorker::make_model() {
  together(services_.comm, [&] {
    if (!model_) {
      model_ = std::make_unique<ModelState>(config_.model.source, services_.comm.size(),
                                            weights_account_);
    }
  });
}

ModelState& JobWorker::weights_after(std::int32_t rounds_done) {
  if (model_ && model_rounds_ == rounds_done) {
    return *model_;
  }
  make_model();
  if (rounds_done == 0) {
    model_->load_hf(services_.comm, config_.model.source);
  } else {
    model_->load_checkpoint(services_.comm, final_checkpoint(rounds_done));
  }
  model_rounds_ = rounds_done;
  return *model_;
}

std::filesystem::path JobWorker::final_checkpoint_directory(std::int32_t round) const {
  if (resumes_at_end_of(round)) {
    return resume_point_->directory;
  }
  for (const CheckpointDirectory& candidate : list_checkpoint_directories(layout_.checkpoints())) {
    // Newest first: a round's last checkpoint is the first of its directories.
    if (candidate.round == round && std::filesystem::exists(candidate.path / kManifestName)) {
      if (finishes_round(read_manifest(candidate.path))) {
        return candidate.path;
      }
      break;
    }
  }
  throw DataError(
      fmt::format("the final checkpoint of round {} is gone from {}; it is needed to go on", round,
                  layout_.checkpoints().string()));
}

Checkpoint JobWorker::final_checkpoint(std::int32_t round) const {
  if (resumes_at_end_of(round)) {
    return *resume_point_;
  }
  std::string directory;
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0) {
      directory = final_checkpoint_directory(round).string();
    }
  }));
  return open_checkpoint(services_.comm, broadcast_text(services_.comm, directory, 0));
}

}  // namespace jforge
