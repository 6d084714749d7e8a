#pragma once

/// The samples of a distillation round: trajectories of the round's store in the seeded order.

#include <filesystem>
#include <vector>

#include "data/batches/noise_schedule.h"
#include "data/batches/sample_order.h"
#include "data/trajectories/trajectory_store.h"
#include "runtime/comm/mpi_session.h"
#include "workers/train/distillation_trainer.h"

namespace jforge {

class TrajectorySamples final : public SampleSource {
 public:
  /// Collective: rank 0 checks every byte of the shards, the others trust it. `steps` steps of
  /// order.batch_samples samples. Throws DataError when a prompt of the round has no trajectory.
  TrajectorySamples(const std::filesystem::path& directory, const SampleOrderOptions& order,
                    std::int64_t steps, const NoiseScheduleOptions& schedule,
                    const Communicator& comm);

  [[nodiscard]] std::int64_t size() const override {
    return steps_ * order_.options().batch_samples;
  }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override;
  [[nodiscard]] TrainingSample sample(std::int64_t index) override;

 private:
  SampleOrder order_;
  std::int64_t steps_;
  NoiseScheduleOptions schedule_;
  TrajectoryStore store_;
  std::vector<std::int64_t> lengths_;  ///< By prompt id; 0 where the round has none.
};

}  // namespace jforge
