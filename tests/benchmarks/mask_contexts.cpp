// For how many consistency targets of a round the noise mask and the clean mask show a student the
// same context, in which case training with either is the same there. mask_contexts TRAJECTORIES
// takes a directory of shards (RUN/round-R/trajectories, store_states = "selected") and prints one
// Markdown list item.

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <vector>

#include "data/batches/noise_schedule.h"
#include "data/trajectories/trajectory_store.h"
#include "model/transformer/packed_layout.h"
#include "runtime/error.h"

namespace {

using namespace jforge;

/// The tokens that `row` sees, by position: both masks show one key for each earlier position.
std::vector<TokenId> context(const PackedBatch& batch, std::int64_t row) {
  std::vector<TokenId> tokens(
      static_cast<std::size_t>(batch.positions[static_cast<std::size_t>(row)]) + 1, -1);
  for (std::int64_t key = 0; key <= row; ++key) {
    if (visible(batch.layout, row, key)) {
      const auto at = static_cast<std::size_t>(key);
      tokens[static_cast<std::size_t>(batch.positions[at])] = batch.tokens[at];
    }
  }
  return tokens;
}

struct Counts {
  std::int64_t targets = 0;
  std::int64_t same = 0;
};

void count_targets(const Trajectory& trajectory, Counts& counts) {
  // The stored pair is the scheduled one; no schedule is applied again.
  const std::vector<PackedSample> sample = {make_packed_sample(trajectory, {})};
  PackingOptions options;
  if (trajectory.eos_position >= 0) {
    options.eos_ids = {sample[0].clean.at(static_cast<std::size_t>(trajectory.eos_position))};
  }
  options.mask = MaskKind::noise;
  const PackedBatch noise = pack_samples(sample, options, 1);
  options.mask = MaskKind::clean;
  const PackedBatch clean = pack_samples(sample, options, 1);
  for (const LossItem& item : noise.loss_items) {
    if (item.student_row >= 0) {
      ++counts.targets;
      counts.same += context(noise, item.student_row) == context(clean, item.student_row) ? 1 : 0;
    }
  }
}

int measure(const char* directory) {
  const TrajectoryStore store = TrajectoryStore::open(directory);
  Counts counts;
  for (const PromptId id : store.prompt_ids()) {
    const Trajectory trajectory = store.read(id);
    if (!trajectory.blocks.empty() && trajectory.blocks[0].selected_state < 0) {
      throw DataError(fmt::format(
          "{}: holds all states, not the pairs of training; generate with store_states = "
          "\"selected\"",
          directory));
    }
    count_targets(trajectory, counts);
  }
  if (counts.targets == 0) {
    throw DataError(fmt::format("{}: no trajectory with a consistency target", directory));
  }
  fmt::print(
      "- consistency targets for which noise mask and clean mask show the same context: {:.1f} % "
      "({} of {}, {} trajectories)\n",
      100 * static_cast<double>(counts.same) / static_cast<double>(counts.targets), counts.same,
      counts.targets, store.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: mask_contexts TRAJECTORIES\n");
    return 2;
  }
  try {
    return measure(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "mask_contexts: {}\n", error.what());
    return 3;
  }
}
