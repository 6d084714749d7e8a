#pragma once

/// A trajectory shard without its tokens.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Origin of a shard.
struct ShardIdentity {
  LeaseId lease = 0;
  std::int64_t attempt = 0;
  Rank rank = 0;
  std::int64_t round = 0;
  std::int32_t block_size = 0;       ///< n
  std::vector<PromptId> prompt_ids;  ///< The lease's prompts.
  std::string identity;              ///< Hash of all that generation depends on; may be empty.

  bool operator==(const ShardIdentity&) const = default;
};

struct ShardTotals {
  std::int64_t block_tokens = 0;    ///< n · blocks
  std::int64_t forwards = 0;        ///< Prefill excluded.
  std::int64_t flipped_blocks = 0;  ///< Blocks that did not reach their fixed point.
  std::int64_t ended_by_eos = 0;    ///< Answers with StopReason::eos.

  bool operator==(const ShardTotals&) const = default;
  ShardTotals& operator+=(const ShardTotals& other);
};

/// An intact committed shard.
struct ShardInfo {
  std::filesystem::path path;
  ShardIdentity identity;
  std::vector<PromptId> prompt_ids;          ///< In file order, as are the next two.
  std::vector<std::uint64_t> digests;        ///< Record digests.
  std::vector<std::int64_t> packed_lengths;  ///< P + 2·n·N per record.
  ShardTotals totals;

  bool operator==(const ShardInfo&) const = default;
};

}  // namespace jforge
