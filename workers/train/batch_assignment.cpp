#include "workers/train/batch_assignment.h"

#include <algorithm>
#include <numeric>

#include "runtime/error.h"

namespace jforge {

void BatchDivision::assign_to_ranks(std::span<const std::int64_t> lengths, int ranks) {
  expect(ranks >= 1, "a batch needs at least one rank");
  order_.resize(lengths.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  sort_longest_first(lengths);
  count_ = 0;
  load_.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    add_list();
  }
  for (const std::size_t sample : order_) {
    const auto lightest =
        static_cast<std::size_t>(std::min_element(load_.begin(), load_.end()) - load_.begin());
    add(lightest, sample, lengths[sample]);
  }
  sort_lists();
}

void BatchDivision::cut_micro_batches(std::span<const std::size_t> members,
                                      std::span<const std::int64_t> lengths,
                                      std::int64_t tokens_limit) {
  order_.assign(members.begin(), members.end());
  sort_longest_first(lengths);
  count_ = 0;
  load_.clear();
  for (const std::size_t sample : order_) {
    std::size_t place = 0;
    while (place < count_ && load_[place] + lengths[sample] > tokens_limit) {
      ++place;
    }
    if (place == count_) {
      add_list();
    }
    add(place, sample, lengths[sample]);
  }
  sort_lists();
}

void BatchDivision::add_list() {
  if (count_ == lists_.size()) {
    lists_.emplace_back();
  }
  lists_[count_++].clear();
  load_.push_back(0);
}

void BatchDivision::sort_longest_first(std::span<const std::int64_t> lengths) {
  // Ties by number: a stable sort would allocate.
  std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  });
}

void BatchDivision::add(std::size_t list, std::size_t sample, std::int64_t length) {
  lists_[list].push_back(sample);
  load_[list] += length;
}

void BatchDivision::sort_lists() {
  for (std::size_t i = 0; i < count_; ++i) {
    std::sort(lists_[i].begin(), lists_[i].end());
  }
}

}  // namespace jforge
