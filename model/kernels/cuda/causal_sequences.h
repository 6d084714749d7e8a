#pragma once

/// The whole causal sequences of a packed batch (AttentionSegment::is_sequence) as libraries take
/// sequences of different lengths that lie in one tensor, other rows between them.

#include <cstdint>
#include <vector>

#include "model/kernels/packed_plan.h"

namespace jforge {

/// On the host. Memory is reused: a batch no larger than an earlier one allocates nothing.
class CausalSequences {
 public:
  /// A sequence's rows at least, for a library: fewer kinds of batches, each of which costs a plan.
  static constexpr std::int64_t kLeastRows = 64;

  void place(const PackedLayout& layout, const AttentionHeads& heads);

  /// Never filled up with sequences of no rows, of which cuDNN before 9.25 is said to make NaN.
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  /// Of the longest, or kLeastRows; the next power of two.
  [[nodiscard]] std::int64_t most_rows() const noexcept { return most_rows_; }
  /// [count] rows of each.
  [[nodiscard]] const std::vector<std::int32_t>& lengths() const noexcept { return lengths_; }

  /// [count + 1] each: the element at which a sequence begins in a tensor [T, width], and the
  /// tensor's end for what comes after the last.
  struct Begins {
    std::vector<std::int64_t> queries;  ///< Width H · D: queries, output.
    std::vector<std::int64_t> keys;     ///< Width Hkv · D: keys, values.
    std::vector<std::int64_t> terms;    ///< Width H: log-sum-exp.
  };
  [[nodiscard]] const Begins& begins() const noexcept { return begins_; }

 private:
  std::int64_t count_ = 0;
  std::int64_t most_rows_ = 0;
  std::vector<std::int32_t> lengths_;
  Begins begins_;
};

/// CausalSequences with their arrays on a device.
struct DeviceSequences {
  std::int64_t count = 0;
  std::int64_t most_rows = 0;
  const std::int32_t* lengths = nullptr;
  const std::int64_t* query_begins = nullptr;
  const std::int64_t* key_begins = nullptr;
  const std::int64_t* term_begins = nullptr;
};

}  // namespace jforge
