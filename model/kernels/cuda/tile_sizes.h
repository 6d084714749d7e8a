#pragma once

/// Sizes of attention's tiles, and when the keys of a decoding batch are split.

#include <cstdint>

#include "model/kernels/kernel_arguments.h"

namespace jforge {

/// Maximum queries (rows × heads of a group) of a block.
inline constexpr std::int64_t kMostQueries = kMostDeviceGroup;
inline constexpr std::int64_t kTileKeys = 32;

[[nodiscard]] constexpr bool on_tensor_cores(std::int64_t head_size) {
  return head_size == 64 || head_size == 128;
}

[[nodiscard]] inline std::int64_t rows_per_block(std::int64_t group) {
  const std::int64_t rows = kMostQueries / group;
  return rows < 1 ? 1 : rows;
}

[[nodiscard]] constexpr std::int64_t backward_tile_keys(std::int64_t head_size) {
  return head_size <= 128 ? kTileKeys : kTileKeys / 4;
}

/// Tile sizes of packed attention on lanes; they change no bit.
struct LaneTiles {
  std::int64_t rows = 0;           ///< Of a block of queries.
  std::int64_t backward_keys = 0;  ///< Of a backward tile.
};
/// Returns the largest sizes that fit `most_shared` bytes.
[[nodiscard]] LaneTiles lane_tiles(const AttentionHeads& heads, std::int64_t most_shared);

/// Keys per split. A row's splits are merged in order.
inline constexpr std::int64_t kSplitKeys = 128;
/// Two per multiprocessor of an H100.
inline constexpr std::int64_t kBusyBlocks = 264;
/// Maximum parts (of rows and heads); beyond, blocks merge the splits.
inline constexpr std::int64_t kMostParts = 1 << 18;

struct TileKeys {
  std::int64_t tiles = 0;
  std::int64_t longest = 0;
  std::int64_t all = 0;
};
/// Whether each split gets a block: if whole tiles would leave the device idle or waiting for the
/// longest one, and the parts fit.
[[nodiscard]] inline bool splits_keys(const TileKeys& keys, const AttentionHeads& heads,
                                      std::int64_t parts) noexcept {
  const bool idle = keys.tiles * heads.key_heads < kBusyBlocks;
  const bool waits = keys.longest * kBusyBlocks > 2 * keys.all * heads.key_heads;
  return parts > 0 && parts * heads.heads <= kMostParts && (idle || waits);
}

/// Maximum queries (rows × heads of a group) of a tile.
inline constexpr std::int64_t kMostTensorCoreQueries = 64;

}  // namespace jforge
