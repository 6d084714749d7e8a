#include "data/trajectories/trajectory_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <type_traits>

#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {
namespace {

template <std::integral T>
void append(std::string& bytes, T value) {
  auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(bits) >> (8 * i) & 0xff));
  }
}

void append_tokens(std::string& bytes, const std::vector<TokenId>& tokens) {
  append(bytes, std::uint64_t{tokens.size()});
  for (const TokenId token : tokens) {
    append(bytes, token);
  }
}

[[noreturn]] void refuse(const Trajectory& trajectory, const std::string& what) {
  throw DataError(fmt::format("trajectory of prompt {}: {}", trajectory.prompt_id, what));
}

bool has_negative(const std::vector<TokenId>& tokens) {
  return std::any_of(tokens.begin(), tokens.end(), [](TokenId token) { return token < 0; });
}

void validate_block(const Trajectory& trajectory, std::size_t index) {
  const TrajectoryBlock& block = trajectory.blocks[index];
  const auto width = static_cast<std::size_t>(trajectory.block_size);
  const std::size_t states = block.states.size() / width;
  if (states < 1 || block.states.size() % width != 0) {
    refuse(trajectory, fmt::format("block {} holds {} state tokens, not a whole number of states",
                                   index, block.states.size()));
  }
  if (block.selected_state < -1 || block.selected_state >= std::max(block.states_seen, 1)) {
    refuse(trajectory, fmt::format("block {} has selected state {} of {}", index,
                                   block.selected_state, block.states_seen));
  }
  if (block.selected_state >= 0 && states != 2) {
    refuse(trajectory,
           fmt::format("block {} has a selected state but {} states instead of 2", index, states));
  }
  if (has_negative(block.states)) {
    refuse(trajectory, fmt::format("block {} holds a negative token id", index));
  }
}

}  // namespace

std::string canonical_bytes(const Trajectory& trajectory) {
  std::string bytes;
  append(bytes, trajectory.prompt_id);
  append(bytes, trajectory.block_size);
  append(bytes, static_cast<std::uint8_t>(trajectory.stop));
  append(bytes, trajectory.eos_position);
  append(bytes, trajectory.forwards);
  append(bytes, trajectory.flipped_blocks);
  append_tokens(bytes, trajectory.prompt);
  append(bytes, std::uint64_t{trajectory.blocks.size()});
  for (const TrajectoryBlock& block : trajectory.blocks) {
    append(bytes, block.states_seen);
    append(bytes, block.selected_state);
    append_tokens(bytes, block.states);
  }
  return bytes;
}

std::uint64_t trajectory_digest(const Trajectory& trajectory) {
  return hash64(std::string_view(canonical_bytes(trajectory)));
}

std::uint64_t combine_digests(std::span<const std::uint64_t> record_digests) {
  std::string bytes;
  bytes.reserve(record_digests.size() * 8);
  for (const std::uint64_t digest : record_digests) {
    append(bytes, digest);
  }
  return hash64(std::string_view(bytes));
}

void validate_trajectory(const Trajectory& trajectory) {
  if (trajectory.prompt_id < 0) {
    refuse(trajectory, "its id is negative");
  }
  if (trajectory.block_size < 1) {
    refuse(trajectory, fmt::format("its block size is {}", trajectory.block_size));
  }
  if (has_negative(trajectory.prompt)) {
    refuse(trajectory, "its prompt holds a negative token id");
  }
  const auto answer = static_cast<std::int64_t>(trajectory.blocks.size()) * trajectory.block_size;
  const bool ended = trajectory.stop == StopReason::eos;
  if (trajectory.eos_position < -1 || trajectory.eos_position >= answer ||
      ended != (trajectory.eos_position >= 0)) {
    refuse(trajectory, fmt::format("end-of-sequence position {} in an answer of {} tokens that "
                                   "stopped by {}",
                                   trajectory.eos_position, answer, ended ? "eos" : "length"));
  }
  for (std::size_t i = 0; i < trajectory.blocks.size(); ++i) {
    validate_block(trajectory, i);
  }
}

}  // namespace jforge
