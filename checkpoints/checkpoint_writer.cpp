#include "checkpoints/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "checkpoints/checkpoint_reader.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"

namespace jforge {

namespace {
constexpr std::chrono::milliseconds kJoinPoll{5};

std::string draw_nonce() {
  // Not part of any result: it only tells the files of one writer from those of another.
  std::random_device device;
  const std::uint64_t high = device();
  return hash_hex((high << 32) ^ device());
}

/// Removes a directory that is no checkpoint (any more): the manifest first, durably.
void remove_checkpoint(const std::filesystem::path& directory) {
  std::error_code reason;
  if (std::filesystem::remove(directory / kManifestName, reason)) {
    sync_directory(directory);
  }
  if (!reason) {
    std::filesystem::remove_all(directory, reason);
  }
  if (reason) {
    throw EnvironmentError(
        fmt::format("cannot remove {}: {}", directory.string(), reason.message()));
  }
}

void expect_finite(std::span<const float> values, const std::string& tensor, const char* what) {
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    throw NumericalError(fmt::format(
        "{} of {} is not finite: not saved; resume from the last checkpoint", what, tensor));
  }
}

}  // namespace

void CheckpointConfig::validate() const {
  if (every_steps < 1) {
    throw ConfigError(fmt::format("checkpoint.every_steps = {} must be at least 1", every_steps));
  }
  if (keep_last < 1) {
    throw ConfigError(fmt::format("checkpoint.keep_last = {} must be at least 1", keep_last));
  }
  if (keep_every < 0) {
    throw ConfigError(fmt::format(
        "checkpoint.keep_every = {} must not be negative (0 keeps none for ever)", keep_every));
  }
}

CheckpointWriter::CheckpointWriter(const Communicator& comm, std::filesystem::path root,
                                   const CheckpointConfig& config, MemoryAccount& account)
    : comm_(comm), root_(std::move(root)), config_(config), account_(account) {
  static_cast<void>(agree(comm_, false, [&] {
    config_.validate();
    if (comm_.rank() == 0) {
      make_directory(root_);
      sweep_temporaries(root_);
      nonce_ = draw_nonce();
    }
  }));
  nonce_ = broadcast_text(comm_, nonce_, 0);
}

CheckpointWriter::~CheckpointWriter() { join(); }

void CheckpointWriter::save(const CheckpointState& state, const TrainingStateView& view) {
  finish();
  std::string decision;
  static_cast<void>(agree(comm_, false, [&] {
    expect(view.table.shard_count() == comm_.size(),
           "the table's shard count differs from the number of ranks");
    if (comm_.rank() == 0) {
      decision = already_saved(state, view) ? "keep" : "write";
      if (decision == "write") {
        make_directory(root_ / checkpoint_directory_name(state.round, state.step));
      }
    }
  }));
  if (broadcast_text(comm_, decision, 0) == "keep") {
    return;
  }
  state_ = state;
  static_cast<void>(agree(comm_, false, [&] { snapshot(view); }));
  pending_ = true;
  start_writing();
}

bool CheckpointWriter::poll() {
  if (!pending_) {
    return true;
  }
  std::int32_t unfinished = written_.load() ? 0 : 1;
  all_reduce_max<std::int32_t>(comm_, std::span(&unfinished, 1));
  if (unfinished != 0) {
    return false;
  }
  commit();
  return true;
}

void CheckpointWriter::finish() {
  if (pending_) {
    commit();
  }
}

bool CheckpointWriter::already_saved(const CheckpointState& state,
                                     const TrainingStateView& view) const {
  const std::filesystem::path directory =
      root_ / checkpoint_directory_name(state.round, state.step);
  if (!std::filesystem::exists(directory)) {
    return false;
  }
  std::optional<Checkpoint> found;
  try {
    found = open_checkpoint(directory);
  } catch (const DataError& error) {
    spdlog::info("replacing what is no valid checkpoint: {}", error.what());
    remove_checkpoint(directory);
    return false;
  }
  const CheckpointManifest& manifest = found->manifest;
  if (manifest.state.identity != state.identity ||
      manifest.has_moments != !view.first_moment.empty() ||
      manifest.tensors != checkpoint_tensors(view.table)) {
    throw ConfigError(fmt::format(
        "{} holds a valid checkpoint of another run; use another run.directory or remove it",
        directory.string()));
  }
  spdlog::info("checkpoint {} exists already and is valid", directory.string());
  return true;
}

void CheckpointWriter::snapshot(const TrainingStateView& view) {
  expect_shape(view.weights, {view.table.flat_size()}, "weights");
  has_moments_ = !view.first_moment.empty() || !view.second_moment.empty();
  const auto shard_size = static_cast<std::size_t>(shard_vector_size(view.table));
  expect(!has_moments_ ||
             (view.first_moment.size() == shard_size && view.second_moment.size() == shard_size),
         "moments of another size than this rank's shard");
  tensors_ = checkpoint_tensors(view.table);
  slices_ = shard_slices(view.table, comm_.rank());
  slice_elements_ = 0;
  for (const ShardSlice& slice : slices_) {
    slice_elements_ += static_cast<std::size_t>(slice.size());
  }
  const std::size_t bytes = (has_moments_ ? 3 : 1) * slice_elements_ * sizeof(float);
  if (copy_.bytes() < bytes) {
    copy_ = Buffer();  // Freed before the larger one is taken.
    copy_ = Buffer(bytes, account_);
  }
  auto* target = reinterpret_cast<float*>(copy_.data());
  const auto copy = [&](std::span<const float> source, const ShardSlice& slice, std::int64_t begin,
                        const char* what) {
    const auto part =
        source.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(slice.size()));
    expect_finite(part, tensors_[slice.entry].name, what);
    target = std::copy(part.begin(), part.end(), target);
  };
  for (const ShardSlice& slice : slices_) {
    copy(view.weights.span<float>(), slice, slice.flat_begin, "weight");
  }
  if (has_moments_) {
    for (const ShardSlice& slice : slices_) {
      copy(view.first_moment, slice, slice.shard_begin, "first moment");
    }
    for (const ShardSlice& slice : slices_) {
      copy(view.second_moment, slice, slice.shard_begin, "second moment");
    }
  }
}

void CheckpointWriter::start_writing() {
  written_.store(false);
  failure_ = nullptr;
  const auto write = [this] {
    thread_clock_.follow_this_thread();
    try {
      const auto* values = reinterpret_cast<const float*>(copy_.data());
      const std::span<const float> parameter(values, slice_elements_);
      const std::size_t moment_elements = has_moments_ ? slice_elements_ : 0;
      const std::span<const float> first(values + slice_elements_, moment_elements);
      const std::span<const float> second(values + slice_elements_ + moment_elements,
                                          moment_elements);
      const ShardOwner owner{state_.round, state_.step, comm_.size(), comm_.rank(), nonce_};
      shard_ = write_shard(root_ / checkpoint_directory_name(state_.round, state_.step), owner,
                           tensors_, slices_, {parameter, first, second});
    } catch (...) {
      failure_ = std::current_exception();
    }
    written_.store(true);
  };
  try {
    thread_ = std::thread(write);
  } catch (const std::system_error& error) {
    // Kept for the commit: a throw here would leave the other ranks behind.
    failure_ = std::make_exception_ptr(
        EnvironmentError(fmt::format("cannot start the checkpoint thread: {}", error.what())));
    written_.store(true);
  }
}

void CheckpointWriter::join() noexcept {
  // A slow disk is no hang of the thread that waits for it, a dead one is.
  std::uint64_t seen = thread_clock_.read().progress;
  while (thread_.joinable() && !written_.load()) {
    std::this_thread::sleep_for(kJoinPoll);
    if (const std::uint64_t now = thread_clock_.read().progress; std::exchange(seen, now) != now) {
      note_progress();
    }
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void CheckpointWriter::commit() {
  join();
  pending_ = false;
  static_cast<void>(agree(comm_, false, [&] {
    if (failure_) {
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
  }));
  const std::vector<std::string> shards = gather_texts(comm_, shard_to_json(shard_), 0);
  static_cast<void>(agree(comm_, false, [&] {
    if (comm_.rank() != 0) {
      return;
    }
    CheckpointManifest manifest;
    manifest.state = state_;
    manifest.world_size = comm_.size();
    manifest.has_moments = has_moments_;
    manifest.nonce = nonce_;
    manifest.tensors = tensors_;
    for (const std::string& shard : shards) {
      manifest.shards.push_back(shard_from_json(shard));
    }
    commit_checkpoint(root_ / checkpoint_directory_name(state_.round, state_.step), manifest);
    prune(state_);
  }));
}

void CheckpointWriter::prune(const CheckpointState& newest) const {
  try {
    for (const std::string& name : prune_checkpoints(root_, newest.round, newest.step, config_)) {
      spdlog::debug("removed checkpoint {}", name);
    }
  } catch (const EnvironmentError& error) {
    // The new checkpoint is durable; an old one that cannot be removed is no reason to stop.
    spdlog::warn("old checkpoints stay: {}", error.what());
  }
}

void commit_checkpoint(const std::filesystem::path& directory, const CheckpointManifest& manifest) {
  const std::string text = manifest.to_json();
  // Parsed back before it counts: a manifest that readers would refuse must not be published.
  expect(CheckpointManifest::from_json(text, "the manifest to be written") == manifest,
         "a checkpoint manifest does not survive its own format");
  fault_point("checkpoint.manifest");
  publish_file(directory / kManifestName, text);
}

std::vector<std::string> prune_checkpoints(const std::filesystem::path& root,
                                           std::int64_t newest_round, std::int64_t newest_step,
                                           const CheckpointConfig& config) {
  std::vector<std::string> removed;
  std::int64_t kept = 1;  // The newest itself.
  bool has_start_of_round = false;
  for (const CheckpointDirectory& directory : list_checkpoint_directories(root)) {
    if (std::pair(directory.round, directory.step) >= std::pair(newest_round, newest_step)) {
      continue;
    }
    bool keep = false;
    try {
      static_cast<void>(read_manifest(directory.path));
      const bool milestone = config.keep_every > 0 && directory.step % config.keep_every == 0;
      const bool start_of_round = !has_start_of_round && directory.round == newest_round - 1;
      has_start_of_round = has_start_of_round || start_of_round;
      keep = kept < config.keep_last || milestone || start_of_round;
      kept += kept < config.keep_last ? 1 : 0;
    } catch (const DataError&) {
      keep = false;
    }
    if (!keep) {
      fault_point("checkpoint.prune");
      remove_checkpoint(directory.path);
      removed.push_back(directory.path.filename().string());
    }
  }
  return removed;
}

}  // namespace jforge
