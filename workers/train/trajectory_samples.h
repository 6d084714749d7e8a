#pragma once

/// The samples of a distillation round: trajectories of the round's store in the seeded order.

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

/// While a step trains, a thread reads what this rank will be given in the next one, shard by
/// shard: at most one step's samples are held beside those in use. What cannot be read is thrown by
/// sample(), in the step that needs it. Which samples those are is BatchDivision's to say; any
/// others are read when they are asked for.
class TrajectorySamples final : public SampleSource {
 public:
  struct Cleaning {
    SampleFilterConfig config;
    FilterMeans means;
  };

  /// Collective: rank 0 checks every byte of the shards that are not remembered (shard_index.h);
  /// the others get its index of them and open none. `steps` steps of order.batch_samples samples.
  /// Throws DataError when a prompt of the round has no trajectory.
  ///
  /// Where cleaning is active the ranks read all trajectories once, each its share of the shards.
  /// What it leaves out is passed over in the order, which goes on with what follows, in later
  /// epochs too: steps and batches stay as they are, and where nothing is left out so does the
  /// order. Throws DataError when nothing is kept.
  TrajectorySamples(const std::filesystem::path& directory, const SampleOrderOptions& order,
                    std::int64_t steps, const NoiseScheduleOptions& schedule,
                    const Communicator& comm, const Cleaning& cleaning);
  /// Without cleaning.
  TrajectorySamples(const std::filesystem::path& directory, const SampleOrderOptions& order,
                    std::int64_t steps, const NoiseScheduleOptions& schedule,
                    const Communicator& comm)
      : TrajectorySamples(directory, order, steps, schedule, comm, Cleaning{}) {}
  /// Waits for the shard that is being read.
  ~TrajectorySamples() override;
  TrajectorySamples(const TrajectorySamples&) = delete;
  TrajectorySamples& operator=(const TrajectorySamples&) = delete;

  [[nodiscard]] std::int64_t size() const override {
    return steps_ * order_.options().batch_samples;
  }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override;
  [[nodiscard]] TrainingSample sample(std::int64_t index) override;

  /// Verdicts on all trajectories of the round, equal on every rank; nothing without cleaning.
  [[nodiscard]] const std::optional<FilterCounts>& cleaned() const { return cleaned_; }
  /// Shard files that this rank has opened so far.
  [[nodiscard]] std::int64_t files_opened() const;

 private:
  struct Slot {
    std::int64_t index = 0;
    std::size_t shard = 0;
    std::optional<TrainingSample> sample;
    std::exception_ptr failure;
  };
  /// This rank's samples of one step.
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
  mutable std::mutex store_turn_;      ///< For store_, which both threads read.
  std::vector<std::int64_t> lengths_;  ///< By prompt id; 0 where the round has none.
  int ranks_;
  Rank rank_;
  BatchDivision division_;
  std::vector<std::int64_t> batch_lengths_;
  std::optional<FilterCounts> cleaned_;
  std::vector<PromptId> kept_order_;  ///< By sample index; empty where nothing is left out.

  Batch current_;  ///< The trainer's.
  Batch next_;     ///< The thread's while reading_.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reading_ = false;
  bool ending_ = false;
  std::size_t slots_read_ = 0;
  std::thread thread_;  // The last member: it ends before what it uses.
};

}  // namespace jforge
