#include "data/trajectories/trajectory_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "data/trajectories/trajectory_digest.h"
#include "data/trajectories/trajectory_writer.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {
namespace {

// Limits that keep arithmetic on a file's numbers from overflowing.
constexpr std::int64_t kLargestBlock = 1 << 20;
constexpr std::int64_t kLargestCount = std::int64_t{1} << 40;

/// Returns true for `items` + 1 entries that rise from 0 to `total`.
bool offsets_hold(const std::vector<std::int64_t>& offsets, std::size_t items, std::int64_t total) {
  return offsets.size() == items + 1 && offsets.front() == 0 && offsets.back() == total &&
         std::is_sorted(offsets.begin(), offsets.end());
}

}  // namespace

TrajectoryReader::TrajectoryReader(const std::filesystem::path& path, SealCheck check)
    : file_(path, check) {
  read_identity();
  read_index();
}

void TrajectoryReader::damaged(const std::string& what) const {
  throw DataError(fmt::format("{}: damaged: {}; delete it and let it be generated again",
                              path().string(), what));
}

void TrajectoryReader::read_identity() {
  if (file_.text_attribute("format") != "jforge-trajectories") {
    throw DataError(fmt::format("{}: not a trajectory shard", path().string()));
  }
  if (const auto version = file_.integer_attribute("format_version");
      version < 1 || version > kShardFormatVersion) {
    throw DataError(fmt::format("{}: format version {}, this program reads versions 1 to {}",
                                path().string(), version, kShardFormatVersion));
  }
  identity_.lease = file_.integer_attribute("lease");
  identity_.attempt = file_.integer_attribute("attempt");
  identity_.rank = static_cast<Rank>(file_.integer_attribute("rank"));
  identity_.round = file_.integer_attribute("round");
  const std::int64_t block_size = file_.integer_attribute("block_size");
  if (block_size < 1 || block_size > kLargestBlock) {
    damaged(fmt::format("block size {}", block_size));
  }
  identity_.block_size = static_cast<std::int32_t>(block_size);
  identity_.identity = file_.text_attribute("identity");
  identity_.prompt_ids = file_.read<std::int64_t>("lease_prompt_ids");
}

void TrajectoryReader::read_index() {
  prompt_id_ = file_.read<std::int64_t>("record_prompt_id");
  stop_ = file_.read<std::uint8_t>("record_stop");
  eos_position_ = file_.read<std::int64_t>("record_eos_position");
  forwards_ = file_.read<std::int64_t>("record_forwards");
  flipped_blocks_ = file_.read<std::int64_t>("record_flipped_blocks");
  for (const std::int64_t digest : file_.read<std::int64_t>("record_digest")) {
    digest_.push_back(std::bit_cast<std::uint64_t>(digest));
  }
  prompt_offset_ = file_.read<std::int64_t>("prompt_offset");
  block_offset_ = file_.read<std::int64_t>("block_offset");
  state_offset_ = file_.read<std::int64_t>("state_offset");
  num_states_ = file_.read<std::int32_t>("block_num_states");
  states_seen_ = file_.read<std::int32_t>("block_states_seen");
  selected_state_ = file_.read<std::int32_t>("block_selected_state");

  const std::size_t records = prompt_id_.size();
  for (const std::size_t other : {stop_.size(), eos_position_.size(), forwards_.size(),
                                  flipped_blocks_.size(), digest_.size()}) {
    if (other != records) {
      damaged("its record arrays differ in length");
    }
  }
  if (!offsets_hold(prompt_offset_, records, file_.size("prompt_tokens")) ||
      !offsets_hold(block_offset_, records, static_cast<std::int64_t>(num_states_.size())) ||
      !offsets_hold(state_offset_, records, file_.size("state_tokens")) ||
      states_seen_.size() != num_states_.size() || selected_state_.size() != num_states_.size()) {
    damaged("its offsets do not fit its arrays");
  }
  for (const std::vector<std::int64_t>* counts : {&forwards_, &flipped_blocks_}) {
    if (std::ranges::any_of(
            *counts, [](std::int64_t count) { return count < 0 || count > kLargestCount; })) {
      damaged("its forward or block count is negative or implausible");
    }
  }
  for (std::size_t r = 0; r < records; ++r) {
    const std::int64_t held = state_offset_[r + 1] - state_offset_[r];
    std::int64_t tokens = 0;
    for (auto b = block_offset_[r]; b < block_offset_[r + 1] && tokens <= held; ++b) {
      const std::int64_t states = num_states_[static_cast<std::size_t>(b)];
      tokens += std::max<std::int64_t>(states, 0) * identity_.block_size;
    }
    if (tokens != held) {
      damaged(fmt::format("the states of prompt {} do not fit their counts", prompt_id_[r]));
    }
  }
  auto asked = identity_.prompt_ids;
  auto held = prompt_id_;
  std::sort(asked.begin(), asked.end());
  std::sort(held.begin(), held.end());
  if (asked != held || std::adjacent_find(held.begin(), held.end()) != held.end()) {
    damaged("its records are not its lease's prompts, each once");
  }
  if (file_.text_attribute("content_digest") != hash_hex(combine_digests(digest_))) {
    damaged("its content digest does not match its records' digests");
  }
}

std::int64_t TrajectoryReader::packed_length(std::size_t index) const {
  const std::int64_t prompt = prompt_offset_[index + 1] - prompt_offset_[index];
  const std::int64_t blocks = block_offset_[index + 1] - block_offset_[index];
  return prompt + 2 * std::int64_t{identity_.block_size} * blocks;
}

ShardTotals& ShardTotals::operator+=(const ShardTotals& other) {
  block_tokens += other.block_tokens;
  forwards += other.forwards;
  flipped_blocks += other.flipped_blocks;
  ended_by_eos += other.ended_by_eos;
  return *this;
}

ShardTotals TrajectoryReader::totals() const {
  return {.block_tokens = identity_.block_size * static_cast<std::int64_t>(num_states_.size()),
          .forwards = std::reduce(forwards_.begin(), forwards_.end()),
          .flipped_blocks = std::reduce(flipped_blocks_.begin(), flipped_blocks_.end()),
          .ended_by_eos = std::ranges::count_if(
              eos_position_, [](std::int64_t position) { return position >= 0; })};
}

ShardInfo TrajectoryReader::info() const {
  ShardInfo info{.path = path(),
                 .identity = identity_,
                 .prompt_ids = prompt_id_,
                 .digests = digest_,
                 .packed_lengths = {},
                 .totals = totals()};
  for (std::size_t i = 0; i < size(); ++i) {
    info.packed_lengths.push_back(packed_length(i));
  }
  return info;
}

Trajectory TrajectoryReader::read(std::size_t index) const {
  expect(index < size(), "record number outside of its shard");
  Trajectory trajectory;
  trajectory.prompt_id = prompt_id_[index];
  trajectory.block_size = identity_.block_size;
  if (stop_[index] > static_cast<std::uint8_t>(StopReason::length)) {
    damaged(fmt::format("unknown stop reason {} of prompt {}", stop_[index], prompt_id_[index]));
  }
  trajectory.stop = static_cast<StopReason>(stop_[index]);
  trajectory.eos_position = eos_position_[index];
  trajectory.forwards = forwards_[index];
  trajectory.flipped_blocks = flipped_blocks_[index];
  trajectory.prompt.resize(
      static_cast<std::size_t>(prompt_offset_[index + 1] - prompt_offset_[index]));
  file_.read_slice<TokenId>("prompt_tokens", prompt_offset_[index], trajectory.prompt);
  std::vector<TokenId> tokens(
      static_cast<std::size_t>(state_offset_[index + 1] - state_offset_[index]));
  file_.read_slice<TokenId>("state_tokens", state_offset_[index], tokens);
  auto next = tokens.begin();
  for (auto b = static_cast<std::size_t>(block_offset_[index]);
       b < static_cast<std::size_t>(block_offset_[index + 1]); ++b) {
    TrajectoryBlock& block = trajectory.blocks.emplace_back();
    const auto end =
        next + static_cast<std::ptrdiff_t>(std::max(num_states_[b], 0)) * identity_.block_size;
    block.states.assign(next, end);
    block.states_seen = states_seen_[b];
    block.selected_state = selected_state_[b];
    next = end;
  }
  try {
    validate_trajectory(trajectory);
  } catch (const DataError& error) {
    damaged(error.what());
  }
  return trajectory;
}

void TrajectoryReader::verify() const {
  for (std::size_t i = 0; i < size(); ++i) {
    if (trajectory_digest(read(i)) != digest_[i]) {
      damaged(fmt::format("the digest of prompt {} does not match", prompt_id_[i]));
    }
  }
}

}  // namespace jforge
