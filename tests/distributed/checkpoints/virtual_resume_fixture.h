#pragma once

/// Trains on virtual ranks, saves, and resumes at another rank count, stage or device.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/checkpoint_writer.h"
#include "tests/distributed/workers/zero_fixture.h"
#include "tests/support/shard_of.h"
#include "tests/support/tested_kernel_set.h"
#include "tests/support/virtual_world.h"
#include "workers/train/training_checkpoint.h"

namespace jforge::test {

inline constexpr int kMostRanks = 4;
inline constexpr std::int64_t kSteps = 3;
inline constexpr std::int64_t kSavedStep = 2;

enum class Place : std::uint8_t {
  host,
  tested,     ///< on the tested set's device …
  offloaded,  ///< … with the state in host memory
};

struct Setting {
  int ranks = 1;
  int stage = 1;
  DType compute = DType::float32;
  SpikeGuardConfig spike_guard{};
  TeacherKind teacher = TeacherKind::detached;
  Place place = Place::host;
  double learning_rate = 1e-3;
  int shard_ranks = 0;
  [[nodiscard]] int shards() const { return shard_ranks == 0 ? ranks : shard_ranks; }
};

/// Masters, first and second moments of all ranks, without padding.
struct State {
  std::array<std::vector<float>, 3> vectors;
  std::int64_t updates = 0;
  bool operator==(const State&) const = default;
};

/// Assembles the ranks' parts of a state. Thread-safe.
class Assembly {
 public:
  explicit Assembly(int ranks) : table_(tiny_config(), ranks) {
    constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();
    flats_.fill(std::vector<float>(static_cast<std::size_t>(table_.flat_size()), kMissing));
  }

  void add(const ShardedAdamW& optimizer) {
    const std::lock_guard lock(mutex_);
    updates_ = optimizer.updates();
    for (const ShardGroup& range : optimizer.store().owned()) {
      const std::int64_t end = range.shard_begin + range.size;
      put(flats_[0], range, optimizer.store().master(range));
      put(flats_[1], range, optimizer.first_moment().rows(range.shard_begin, end));
      put(flats_[2], range, optimizer.second_moment().rows(range.shard_begin, end));
    }
  }

  [[nodiscard]] State state() const {
    State state;
    for (std::size_t v = 0; v < flats_.size(); ++v) {
      state.vectors[v] = consolidated(table_, flats_[v]);
    }
    state.updates = updates_;
    return state;
  }

 private:
  static void put(std::vector<float>& flat, const ShardGroup& range, const TensorView& part) {
    std::vector<float> values(static_cast<std::size_t>(part.elements()));
    copy_tensor(part, TensorView(values.data(), part.shape()));
    const auto target = flat.begin() + range.flat_begin;
    if (std::isnan(*target)) {
      std::ranges::copy(values, target);
    } else {
      EXPECT_TRUE(std::ranges::equal(values, std::span(target, values.size())))
          << "two ranks keep different values of group " << range.group;
    }
  }

  ParameterTable table_;
  std::array<std::vector<float>, 3> flats_;
  std::int64_t updates_ = 0;
  std::mutex mutex_;
};

/// A rank that trains, one micro-batch a step.
class TrainingRank {
 public:
  TrainingRank(const Communicator& comm, const Setting& setting)
      : comm_(comm),
        kernels_(setting.place == Place::host ? make_cpu_kernel_set() : make_tested_kernel_set()),
        grid_(comm, setting.shard_ranks),
        model_(setting.shards()),
        trainer_({shape_, model_.table, *kernels_, comm, account_, &grid_},
                 shard_of(model_.view(), model_.table, grid_.within.rank()), config(setting)) {}

  /// Trains to the last step and returns its loss. Saves under `root` unless empty.
  double train(std::int64_t steps_done, const std::filesystem::path& root, Assembly* saved) {
    TrainPlan plan;
    plan.total_steps = kSteps;
    plan.steps_done = steps_done;
    plan.state = resumed_;
    plan.checkpoint_every = kSavedStep;
    std::optional<CheckpointWriter> writer;
    TrainHooks hooks;
    hooks.stop_requested = [] { return false; };
    double loss = 0;
    hooks.on_step = [&](const StepMetrics& metrics) {
      EXPECT_EQ(metrics.micro_batches, 1);
      loss = metrics.loss;
    };
    if (saved != nullptr) {
      writer.emplace(comm_, root, CheckpointConfig{}, account_);
      hooks.at_boundary = [&] { static_cast<void>(writer->poll()); };
      hooks.save = [&](std::int64_t step) {
        if (step == kSavedStep) {
          CheckpointState state;
          state.round = 1;
          state.step = step;
          state.phase = "train";
          state.cursors = with_trainer_state("{}", trainer_.state());
          save_training(*writer, state, model_.table, optimizer());
          saved->add(optimizer());
        }
      };
    }
    SyntheticSource source(kSteps * 8);
    static_cast<void>(trainer_.run(source, plan, hooks));
    if (writer) {
      writer->finish();
    }
    return loss;
  }

  void resume(const std::filesystem::path& directory) {
    const Checkpoint checkpoint = open_checkpoint(comm_, directory);
    MemoryAccount account("resume");
    resume_training(comm_, checkpoint, model_.table, optimizer(), account);
    const auto shard = static_cast<std::size_t>(shard_vector_size(model_.table)) * sizeof(float);
    EXPECT_EQ(account.peak_bytes(), shard);
    EXPECT_EQ(account.live_bytes(), 0U);
    resumed_ = trainer_state_of(checkpoint.manifest.state.cursors);
  }

  [[nodiscard]] ShardedAdamW& optimizer() { return trainer_.optimizer(); }

 private:
  static TrainConfig config(const Setting& setting) {
    TrainConfig config;
    config.learning_rate = setting.learning_rate;
    config.batch_samples = 8;
    config.optimizer.weight_decay = 0.1F;
    config.optimizer.zero_stage = setting.stage;
    config.optimizer.offload = setting.place == Place::offloaded;
    config.collectives = CollectivesChoice::mpi;  // virtual ranks share a device
    config.compute = setting.compute;
    config.spike_guard = setting.spike_guard;
    config.teacher = setting.teacher;
    config.gradient_norms_every = 0;
    return config;
  }

  const Communicator& comm_;
  TransformerConfig shape_ = tiny_config();
  std::unique_ptr<KernelSet> kernels_;
  MemoryAccount account_{"virtual"};
  RankGrid grid_;
  Model model_;
  DistillationTrainer trainer_;
  TrainerState resumed_;
};

struct End {
  State state;
  double loss = 0;
  bool operator==(const End&) const = default;
};

struct SavedRun {
  State saved;  ///< after kSavedStep, when the checkpoint was made
  End end;      ///< of the same run without interruption
};

inline SavedRun train_and_save(const Setting& setting, const std::filesystem::path& root) {
  Assembly saved(setting.shards());
  Assembly end(setting.shards());
  SavedRun run;
  VirtualWorld(setting.ranks).run([&](const Communicator& comm) {
    TrainingRank rank(comm, setting);
    const double loss = rank.train(0, root, &saved);
    end.add(rank.optimizer());
    if (comm.rank() == 0) {
      run.end.loss = loss;
    }
  });
  run.saved = saved.state();
  run.end.state = end.state();
  return run;
}

inline std::filesystem::path checkpoint_under(const std::filesystem::path& root) {
  return root / checkpoint_directory_name(1, kSavedStep);
}

inline State load(const Setting& setting, const std::filesystem::path& directory) {
  Assembly loaded(setting.shards());
  VirtualWorld(setting.ranks).run([&](const Communicator& comm) {
    TrainingRank rank(comm, setting);
    rank.resume(directory);
    loaded.add(rank.optimizer());
  });
  return loaded.state();
}

inline End load_and_train(const Setting& setting, const std::filesystem::path& directory) {
  Assembly assembly(setting.shards());
  End end;
  VirtualWorld(setting.ranks).run([&](const Communicator& comm) {
    TrainingRank rank(comm, setting);
    rank.resume(directory);
    const double loss = rank.train(kSavedStep, {}, nullptr);
    assembly.add(rank.optimizer());
    if (comm.rank() == 0) {
      end.loss = loss;
    }
  });
  end.state = assembly.state();
  return end;
}

}  // namespace jforge::test
