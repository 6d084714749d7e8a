#pragma once

/// Divides a global batch, whose samples do not depend on the world size (ARCHITECTURE.md
/// "Determinism").

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace jforge {

/// Lists of ascending sample numbers. Reuses its memory from batch to batch.
class BatchDivision {
 public:
  [[nodiscard]] std::span<const std::vector<std::size_t>> lists() const noexcept {
    return std::span(lists_).first(count_);
  }

  /// Divides samples 0 … lengths.size() − 1 over `ranks`, longest first, each to the rank with the
  /// fewest tokens (ties: lowest index, lowest rank). One list per rank, non-empty if samples
  /// suffice and lengths > 0.
  void assign_to_ranks(std::span<const std::int64_t> lengths, int ranks);

  /// Cuts `members` (ascending indices into `lengths`) into micro-batches of at most `tokens_limit`
  /// tokens by first-fit decreasing, one list each; a longer sample is alone.
  void cut_micro_batches(std::span<const std::size_t> members,
                         std::span<const std::int64_t> lengths, std::int64_t tokens_limit);

 private:
  void add_list();
  void sort_longest_first(std::span<const std::int64_t> lengths);
  void add(std::size_t list, std::size_t sample, std::int64_t length);
  void sort_lists();

  std::vector<std::vector<std::size_t>> lists_;  ///< The first count_ are in use.
  std::size_t count_ = 0;
  std::vector<std::int64_t> load_;
  std::vector<std::size_t> order_;
};

}  // namespace jforge
