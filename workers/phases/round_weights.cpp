#include "workers/phases/round_weights.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoints/hf_model.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"

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

RoundWeights::RoundWeights(const PhaseServices& services, std::filesystem::path source,
                           std::string model_hash, std::filesystem::path checkpoints,
                           std::optional<DrafterShape> drafter, std::uint64_t seed)
    : services_(services),
      source_(std::move(source)),
      model_hash_(std::move(model_hash)),
      checkpoints_(std::move(checkpoints)),
      drafter_(std::move(drafter)),
      seed_(seed) {}

void RoundWeights::resume(Checkpoint checkpoint) {
  trained_ = static_cast<std::int32_t>(checkpoint.manifest.state.round) -
             (finishes_round(checkpoint.manifest) ? 0 : 1);
  resume_point_ = std::move(checkpoint);
}

bool RoundWeights::resumes_at_end_of(std::int32_t round) const {
  return resume_point_ && resume_point_->manifest.state.round == round &&
         finishes_round(resume_point_->manifest);
}

bool RoundWeights::resumes_within(std::int32_t round) const {
  return resume_point_ && resume_point_->manifest.state.round == round && trained_ == round - 1;
}

std::string RoundWeights::present_origin(std::int32_t rounds) const {
  return rounds == 0 ? model_hash_ : hash_hex(hash_file(final_directory(rounds) / kManifestName));
}

std::string RoundWeights::origin(std::int32_t rounds) const {
  if (rounds > 0 && resumes_within(rounds + 1)) {
    // The checkpoint itself may be gone by now: only the trajectories made from it are needed.
    const Json cursors = try_bounded_json<Json>(resume_point_->manifest.state.cursors);
    if (cursors.is_object() && cursors.contains(kGeneratedFrom)) {
      return cursors[kGeneratedFrom].get<std::string>();
    }
  }
  return present_origin(rounds);
}

void RoundWeights::begin_round(std::int32_t round) {
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0) {
      round_origin_ = generator_origin(round);
    }
  }));
  round_origin_ = broadcast_text(services_.comm, round_origin_, 0);
}

std::filesystem::path RoundWeights::final_directory(std::int32_t round) const {
  if (resumes_at_end_of(round)) {
    return resume_point_->directory;
  }
  for (const CheckpointDirectory& candidate : list_checkpoint_directories(checkpoints_)) {
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
                  checkpoints_.string()));
}

Checkpoint RoundWeights::final_checkpoint(std::int32_t round) const {
  if (resumes_at_end_of(round)) {
    return *resume_point_;
  }
  std::string directory;
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0) {
      directory = final_directory(round).string();
    }
  }));
  return open_checkpoint(services_.comm, broadcast_text(services_.comm, directory, 0));
}

ModelShard& RoundWeights::unread() {
  together(services_.comm, [&] {
    if (!model_) {
      model_ = std::make_unique<ModelShard>(read_hf_config(source_), services_.comm, account_,
                                            &services_.grid, drafter_);
    }
  });
  return *model_;
}

ModelShard& RoundWeights::after(std::int32_t rounds) {
  if (model_ && held_ == rounds) {
    return *model_;
  }
  ModelShard& model = unread();
  if (rounds == 0 && drafter_) {
    together(services_.comm, [&] { model.initialise(seed_); });
  } else if (rounds == 0) {
    model.load_hf(source_);
  } else {
    model.load_checkpoint(final_checkpoint(rounds));
  }
  held_ = rounds;
  return model;
}

ModelShard* RoundWeights::base() {
  if (drafter_ && !base_) {
    auto model = std::make_unique<ModelShard>(read_hf_config(source_), services_.comm, account_,
                                              &services_.grid);
    model->load_hf(source_);
    base_ = std::move(model);
  }
  return base_.get();
}

ModelShard& RoundWeights::generator(std::int32_t round) {
  return drafter_ ? *base() : first_of(round, "what is left to generate");
}

ModelShard& RoundWeights::first_of(std::int32_t round, const char* need) {
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0 && present_origin(round - 1) != round_origin_) {
      throw DataError(fmt::format(
          "round {} began with other weights than those that are there now, and {} needs them; "
          "bring back the final checkpoint of round {} in {}",
          round, need, round - 1, checkpoints_.string()));
    }
  }));
  return after(round - 1);
}

void RoundWeights::finish_training(std::int32_t round, bool in_memory) {
  trained_ = round;
  held_ = in_memory ? round : kNone;
  resume_point_.reset();
}

void RoundWeights::drop_unfinished() {
  if (held_ == kNone) {
    model_.reset();
  }
}

void RoundWeights::drop() {
  model_.reset();
  base_.reset();
  held_ = kNone;
}

}  // namespace jforge
