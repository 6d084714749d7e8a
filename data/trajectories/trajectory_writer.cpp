#include "data/trajectories/trajectory_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "data/hdf5/hdf5_file.h"
#include "data/trajectories/trajectory_digest.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"

namespace jforge {

// PROCESS in `.tmp-LEASE-ATTEMPT-RANK-PROCESS` separates a restarted job, which counts leases and
// attempts alike, from surviving ranks of the one before.
static std::filesystem::path temporary_shard_path(const std::filesystem::path& directory,
                                                  LeaseId lease, std::int64_t attempt, Rank rank) {
  return directory / fmt::format(".tmp-{}-{}-{}-{}", lease, attempt, rank, temporary_suffix());
}

std::filesystem::path committed_shard_path(const std::filesystem::path& directory, LeaseId lease) {
  return directory / fmt::format("lease-{:08}.h5", lease);
}

TrajectoryWriter::TrajectoryWriter(std::filesystem::path directory, ShardIdentity identity)
    : directory_(std::move(directory)), identity_(std::move(identity)) {}

void TrajectoryWriter::append(const Trajectory& trajectory) {
  const std::string where =
      fmt::format("prompt {} of lease {}", trajectory.prompt_id, identity_.lease);
  try {
    validate_trajectory(trajectory);
  } catch (const DataError& error) {
    throw InternalError(error.what());
  }
  expect(trajectory.block_size == identity_.block_size, where + " has another block size");
  const auto& ids = identity_.prompt_ids;
  expect(std::find(ids.begin(), ids.end(), trajectory.prompt_id) != ids.end(),
         where + " was not asked for");
  expect(std::find(prompt_id_.begin(), prompt_id_.end(), trajectory.prompt_id) == prompt_id_.end(),
         where + " is given twice");
  prompt_id_.push_back(trajectory.prompt_id);
  stop_.push_back(static_cast<std::uint8_t>(trajectory.stop));
  eos_position_.push_back(trajectory.eos_position);
  forwards_.push_back(trajectory.forwards);
  flipped_blocks_.push_back(trajectory.flipped_blocks);
  digest_.push_back(trajectory_digest(trajectory));
  prompt_tokens_.insert(prompt_tokens_.end(), trajectory.prompt.begin(), trajectory.prompt.end());
  for (std::size_t i = 0; i < trajectory.blocks.size(); ++i) {
    const TrajectoryBlock& block = trajectory.blocks[i];
    num_states_.push_back(static_cast<std::int32_t>(trajectory.num_states(i)));
    states_seen_.push_back(block.states_seen);
    selected_state_.push_back(block.selected_state);
    state_tokens_.insert(state_tokens_.end(), block.states.begin(), block.states.end());
  }
  prompt_offset_.push_back(static_cast<std::int64_t>(prompt_tokens_.size()));
  block_offset_.push_back(static_cast<std::int64_t>(num_states_.size()));
  state_offset_.push_back(static_cast<std::int64_t>(state_tokens_.size()));
}

std::filesystem::path TrajectoryWriter::finish() {
  expect(prompt_id_.size() == identity_.prompt_ids.size(),
         fmt::format("lease {} has {} prompts but {} records", identity_.lease,
                     identity_.prompt_ids.size(), prompt_id_.size()));
  std::filesystem::path path =
      temporary_shard_path(directory_, identity_.lease, identity_.attempt, identity_.rank);
  std::vector<std::int64_t> signed_digests;
  for (const std::uint64_t digest : digest_) {
    signed_digests.push_back(std::bit_cast<std::int64_t>(digest));
  }
  try {
    Hdf5Writer file(path, true, Hdf5Storage::compressed);
    file.attribute("format", "jforge-trajectories");
    file.attribute("format_version", kShardFormatVersion);
    file.attribute("lease", identity_.lease);
    file.attribute("attempt", identity_.attempt);
    file.attribute("rank", std::int64_t{identity_.rank});
    file.attribute("round", identity_.round);
    file.attribute("block_size", std::int64_t{identity_.block_size});
    file.attribute("identity", identity_.identity);
    file.attribute("content_digest", hash_hex(combine_digests(digest_)));
    file.write("lease_prompt_ids", identity_.prompt_ids);
    file.write("record_prompt_id", prompt_id_);
    file.write("record_stop", stop_);
    file.write("record_eos_position", eos_position_);
    file.write("record_forwards", forwards_);
    file.write("record_flipped_blocks", flipped_blocks_);
    file.write("record_digest", signed_digests);
    file.write("prompt_offset", prompt_offset_);
    file.write("prompt_tokens", prompt_tokens_);
    file.write("block_offset", block_offset_);
    file.write("block_num_states", num_states_);
    file.write("block_states_seen", states_seen_);
    file.write("block_selected_state", selected_state_);
    file.write("state_offset", state_offset_);
    file.write("state_tokens", state_tokens_);
    file.close();
    sync_file(path);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
  return path;
}

ShardInfo TrajectoryWriter::info() const {
  ShardInfo info{
      .path = committed_shard_path(directory_, identity_.lease),
      .identity = identity_,
      .prompt_ids = prompt_id_,
      .digests = digest_,
      .packed_lengths = {},
      .totals = {
          .block_tokens = identity_.block_size * static_cast<std::int64_t>(num_states_.size()),
          .forwards = std::reduce(forwards_.begin(), forwards_.end()),
          .flipped_blocks = std::reduce(flipped_blocks_.begin(), flipped_blocks_.end()),
          .ended_by_eos = std::ranges::count_if(
              eos_position_, [](std::int64_t position) { return position >= 0; })}};
  for (std::size_t i = 0; i < size(); ++i) {
    info.packed_lengths.push_back(prompt_offset_[i + 1] - prompt_offset_[i] +
                                  2 * std::int64_t{identity_.block_size} *
                                      (block_offset_[i + 1] - block_offset_[i]));
  }
  return info;
}

void commit_shard(const std::filesystem::path& directory, LeaseId lease, std::int64_t attempt,
                  Rank rank) {
  const std::filesystem::path final_path = committed_shard_path(directory, lease);
  expect(!std::filesystem::exists(final_path), final_path.string() + " is committed already");
  commit_rename(temporary_shard_path(directory, lease, attempt, rank), final_path);
}

}  // namespace jforge
