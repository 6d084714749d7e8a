#pragma once

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/batches/noise_schedule.h"
#include "data/batches/sample_order.h"
#include "data/trajectories/trajectory_store.h"
#include "runtime/comm/mpi_session.h"
#include "workers/train/batch_assignment.h"
#include "workers/train/distillation_trainer.h"
#include "workers/train/sample_filter.h"

namespace jforge {

/// Trajectories of a round's store in the seeded order. A thread reads this rank's samples one step
/// ahead, shard by shard. sample() rethrows read errors in the step that needs the sample, and
/// reads samples outside the division (BatchDivision) on request.
class TrajectorySamples final : public SampleSource {
 public:
  struct Cleaning {
    SampleFilterConfig config;
    FilterMeans means;
  };

  /// Collective: rank 0 checks every byte of shards that its index (shard_index.h) does not know;
  /// the other ranks receive the index. Provides `steps` batches. Throws DataError if a prompt of
  /// the round has no trajectory.
  ///
  /// With cleaning, the ranks read all trajectories once, each a share of the shards. Dropped ones
  /// are skipped in every epoch; steps and batch sizes do not change. Throws DataError if nothing
  /// is kept.
  TrajectorySamples(const std::filesystem::path& directory, const SampleOrderOptions& order,
                    std::int64_t steps, const NoiseScheduleOptions& schedule,
                    const Communicator& comm, const Cleaning& cleaning);
  TrajectorySamples(const std::filesystem::path& directory, const SampleOrderOptions& order,
                    std::int64_t steps, const NoiseScheduleOptions& schedule,
                    const Communicator& comm)
      : TrajectorySamples(directory, order, steps, schedule, comm, Cleaning{}) {}
  /// Waits for the current read.
  ~TrajectorySamples() override;
  TrajectorySamples(const TrajectorySamples&) = delete;
  TrajectorySamples& operator=(const TrajectorySamples&) = delete;

  [[nodiscard]] std::int64_t size() const override {
    return steps_ * order_.options().batch_samples;
  }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override;
  [[nodiscard]] TrainingSample sample(std::int64_t index) override;

  /// On all trajectories, equal on every rank; nothing without cleaning.
  [[nodiscard]] const std::optional<FilterCounts>& cleaned() const { return cleaned_; }
  [[nodiscard]] std::int64_t files_opened() const;

 private:
  struct Slot {
    std::int64_t index = 0;
    std::size_t shard = 0;
    std::optional<TrainingSample> sample;
    std::exception_ptr failure;
  };
  struct Batch {
    std::int64_t step = -1;
    std::vector<Slot> slots;
  };

  void clean(const Cleaning& cleaning, const Communicator& comm);
  [[nodiscard]] PromptId prompt_at(std::int64_t index) const;
  void plan(Batch& batch, std::int64_t step);
  void advance_to(std::int64_t step);
  void read(Slot& slot);
  void read_ahead();
  [[nodiscard]] TrainingSample make(std::int64_t index) const;

  SampleOrder order_;
  std::int64_t steps_;
  NoiseScheduleOptions schedule_;
  TrajectoryStore store_;
  mutable std::mutex store_turn_;      ///< Guards store_.
  std::vector<std::int64_t> lengths_;  ///< By prompt id; 0: not in the round.
  int ranks_;
  Rank rank_;
  BatchDivision division_;
  std::vector<std::int64_t> batch_lengths_;
  std::optional<FilterCounts> cleaned_;
  std::vector<PromptId> kept_order_;  ///< By sample index; empty if nothing is dropped.

  Batch current_;  ///< The trainer's.
  Batch next_;     ///< The reader thread's while reading_.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reading_ = false;
  bool ending_ = false;
  std::size_t slots_read_ = 0;
  std::thread thread_;  // Last member: joined first.
};

}  // namespace jforge
