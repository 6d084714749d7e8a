#pragma once

/// The rounds that are trained: their final checkpoints, and the weights in memory between phases.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoints/checkpoint_manifest.h"
#include "checkpoints/checkpoint_reader.h"
#include "runtime/tensor/buffer.h"
#include "workers/model_shard.h"
#include "workers/phases/services.h"

namespace jforge {

/// Manifest cursor: RoundWeights::origin() of the round's trajectories.
inline constexpr const char* kGeneratedFrom = "generated_from";

/// Returns the number of steps that the round of `manifest` trains in all. Throws DataError if no
/// training round wrote it.
[[nodiscard]] std::int64_t total_steps_of(const CheckpointManifest& manifest);
/// Whether `manifest` is of the last checkpoint of its round.
[[nodiscard]] bool finishes_round(const CheckpointManifest& manifest);

class RoundWeights {
 public:
  /// `source`: Hugging Face directory of the model, whose hash is `model_hash`. `checkpoints`: the
  /// run's directory of checkpoints. With `drafter` the rounds train that, beginning with weights
  /// of `seed`, and the model generates every round's trajectories.
  RoundWeights(const PhaseServices& services, std::filesystem::path source, std::string model_hash,
               std::filesystem::path checkpoints, std::optional<DrafterShape> drafter,
               std::uint64_t seed);

  /// Continues from `checkpoint`, the newest valid one.
  void resume(Checkpoint checkpoint);
  /// The checkpoint that the job continues from, until the round in progress ends.
  [[nodiscard]] const std::optional<Checkpoint>& resume_point() const { return resume_point_; }
  /// Number of rounds whose training is finished.
  [[nodiscard]] std::int32_t trained() const noexcept { return trained_; }
  /// Whether the job continues in the middle of round `round`.
  [[nodiscard]] bool resumes_within(std::int32_t round) const;

  /// Returns the hash of what the weights after `rounds` rounds come from: the model, or the last
  /// checkpoint of round `rounds`. If a round was resumed, its checkpoint remembers the hash.
  /// Throws DataError if the checkpoint is gone and nothing remembers it.
  [[nodiscard]] std::string origin(std::int32_t rounds) const;
  /// Returns the hash of what generates the trajectories of round `round`.
  [[nodiscard]] std::string generator_origin(std::int32_t round) const {
    return drafter_ ? model_hash_ : origin(round - 1);
  }
  /// Collective. Sets round_origin() to generator_origin(round) of rank 0.
  void begin_round(std::int32_t round);
  /// Origin of the trajectories of the round in progress; equal on every rank.
  [[nodiscard]] const std::string& round_origin() const noexcept { return round_origin_; }

  /// Returns the directory of the last checkpoint of round `round`. Throws DataError if it is gone.
  [[nodiscard]] std::filesystem::path final_directory(std::int32_t round) const;
  /// Collective. Opens and verifies that checkpoint.
  [[nodiscard]] Checkpoint final_checkpoint(std::int32_t round) const;

  /// Collective. Returns the weights after `rounds` rounds, read if they are not in memory. Throws
  /// DataError if their checkpoint is gone.
  ModelShard& after(std::int32_t rounds);
  /// Collective. Returns the weights that round `round`, which may have been resumed, began with.
  /// Throws DataError naming `need` if they are gone or have changed.
  ModelShard& first_of(std::int32_t round, const char* need);
  /// Collective. Returns the weights that generate the trajectories of round `round`, which may
  /// have been resumed. Throws as first_of().
  ModelShard& generator(std::int32_t round);
  /// Collective. Returns the frozen model beside a drafter, null without one.
  ModelShard* base();
  /// Collective. Returns a model that may hold no weights.
  ModelShard& unread();
  /// Marks the weights in memory as changing: they match no finished round.
  void begin_training() noexcept { held_ = kNone; }
  /// Round `round` is trained; `in_memory` says whether the weights in memory are its.
  void finish_training(std::int32_t round, bool in_memory);
  /// Frees the weights unless they match a finished round.
  void drop_unfinished();
  void drop();

 private:
  static constexpr std::int32_t kNone = -1;

  /// origin() of what is on disk now.
  [[nodiscard]] std::string present_origin(std::int32_t rounds) const;
  [[nodiscard]] bool resumes_at_end_of(std::int32_t round) const;

  PhaseServices services_;
  std::filesystem::path source_;
  std::string model_hash_;
  std::filesystem::path checkpoints_;
  std::optional<DrafterShape> drafter_;
  std::uint64_t seed_;
  std::optional<Checkpoint> resume_point_;
  std::int32_t trained_ = 0;
  std::string round_origin_;
  MemoryAccount account_{"weights"};
  std::unique_ptr<ModelShard> model_;
  std::unique_ptr<ModelShard> base_;  ///< With a drafter.
  std::int32_t held_ = kNone;         ///< Rounds that the weights in memory have been trained for.
};

}  // namespace jforge
