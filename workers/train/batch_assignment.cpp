#include "workers/train/batch_assignment.h"

#include <algorithm>
#include <numeric>

#include "runtime/error.h"

namespace jforge {

namespace {

void sort_longest_first(std::vector<std::size_t>& members, std::span<const std::int64_t> lengths) {
  std::stable_sort(members.begin(), members.end(),
                   [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
}

}  // namespace

std::vector<std::vector<std::size_t>> assign_to_ranks(std::span<const std::int64_t> lengths,
                                                      int ranks) {
  expect(ranks >= 1, "a batch needs at least one rank");
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  sort_longest_first(order, lengths);
  std::vector<std::vector<std::size_t>> members(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> load(members.size(), 0);
  for (const std::size_t sample : order) {
    const auto lightest =
        static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    members[lightest].push_back(sample);
    load[lightest] += lengths[sample];
  }
  for (std::vector<std::size_t>& list : members) {
    std::sort(list.begin(), list.end());
  }
  return members;
}

std::vector<std::vector<std::size_t>> cut_micro_batches(std::span<const std::size_t> members,
                                                        std::span<const std::int64_t> lengths,
                                                        std::int64_t tokens_limit) {
  std::vector<std::size_t> order(members.begin(), members.end());
  sort_longest_first(order, lengths);
  std::vector<std::vector<std::size_t>> micro_batches;
  std::vector<std::int64_t> load;
  for (const std::size_t sample : order) {
    std::size_t place = 0;
    while (place < load.size() && load[place] + lengths[sample] > tokens_limit) {
      ++place;
    }
    if (place == load.size()) {
      micro_batches.emplace_back();
      load.push_back(0);
    }
    micro_batches[place].push_back(sample);
    load[place] += lengths[sample];
  }
  for (std::vector<std::size_t>& list : micro_batches) {
    std::sort(list.begin(), list.end());
  }
  return micro_batches;
}

}  // namespace jforge
