#pragma once

/// Who trains what: a global batch is the same set of samples at any world size; only its division
/// over ranks and micro-batches differs (ARCHITECTURE.md "Determinism").

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace jforge {

/// Divides samples 0 … lengths.size() − 1 over `ranks`, longest first, each to the rank with the
/// least tokens so far (ties: lowest index, lowest rank). Every sample occurs exactly once; with at
/// least as many samples as ranks and lengths > 0, every rank gets one. Result: [ranks] lists of
/// sample numbers, ascending.
[[nodiscard]] std::vector<std::vector<std::size_t>> assign_to_ranks(
    std::span<const std::int64_t> lengths, int ranks);

/// Cuts the samples `members` (numbers into `lengths`) into micro-batches of at most `tokens_limit`
/// tokens by first fit over decreasing lengths; a sample longer than the limit is alone. Members of
/// a micro-batch ascend.
[[nodiscard]] std::vector<std::vector<std::size_t>> cut_micro_batches(
    std::span<const std::size_t> members, std::span<const std::int64_t> lengths,
    std::int64_t tokens_limit);

}  // namespace jforge
