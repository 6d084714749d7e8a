#include "checkpoints/shard_slices.h"

#include <algorithm>

#include "runtime/error.h"

namespace jforge {

std::int64_t shard_vector_size(const ParameterTable& table) {
  return table.flat_size() / table.shard_count();
}

std::vector<ShardGroup> shard_groups(const ParameterTable& table, int shard) {
  expect(0 <= shard && shard < table.shard_count(), "shard number outside the table's shard count");
  std::vector<ShardGroup> groups;
  std::int64_t used = 0;
  for (std::size_t g = 0; g < table.groups().size(); ++g) {
    const auto group = static_cast<std::int32_t>(g);
    const ParameterTable::Range range = table.shard_range(group, shard);
    groups.push_back({group, range.begin, used, range.end - range.begin});
    used += range.end - range.begin;
  }
  expect(used == shard_vector_size(table),
         "the groups of a parameter table do not fill its flat vector");
  return groups;
}

std::vector<ShardSlice> shard_slices(const ParameterTable& table, int shard) {
  const std::vector<ShardGroup> groups = shard_groups(table, shard);
  std::vector<ShardSlice> slices;
  for (std::size_t e = 0; e < table.entries().size(); ++e) {
    const ParameterEntry& entry = table.entries()[e];
    const ShardGroup& group = groups[static_cast<std::size_t>(entry.group)];
    const std::int64_t begin = std::max(entry.offset, group.flat_begin);
    const std::int64_t end =
        std::min(entry.offset + entry.shape.elements(), group.flat_begin + group.size);
    if (begin < end) {
      slices.push_back({e, begin - entry.offset, end - entry.offset, begin,
                        group.shard_begin + (begin - group.flat_begin)});
    }
  }
  std::sort(slices.begin(), slices.end(),
            [](const ShardSlice& a, const ShardSlice& b) { return a.flat_begin < b.flat_begin; });
  return slices;
}

}  // namespace jforge
