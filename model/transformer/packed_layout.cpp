#include "model/transformer/packed_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/error.h"

namespace jforge {
namespace {

/// The part of a sample that is trained on.
struct SampleExtent {
  std::int64_t prompt = 0;          ///< P
  std::int64_t block_size = 0;      ///< n
  std::int64_t blocks = 0;          ///< Blocks up to and including the one with end of sequence.
  std::int64_t answer_targets = 0;  ///< Answer tokens up to and including end of sequence.
  bool ends = false;                ///< Whether the last target is an end of sequence.
  bool has_noise = false;
};

/// Offsets [first, last) of a block that carry a consistency target.
struct KeptRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  [[nodiscard]] std::int64_t count() const { return std::max<std::int64_t>(0, last - first); }
  /// Returns a kept offset's weight before normalisation.
  [[nodiscard]] double weight(std::int64_t offset, float decay) const {
    return std::pow(static_cast<double>(decay), static_cast<double>(offset - first));
  }
};

[[noreturn]] void refuse(const PackedSample& sample, const std::string& reason) {
  throw DataError(
      fmt::format("training sample of prompt {}: {}; regenerate the trajectories it comes from",
                  sample.prompt_id, reason));
}

void check_sample(const PackedSample& sample, MaskKind mask) {
  const std::size_t block_size = static_cast<std::size_t>(std::max(sample.block_size, 0));
  if (sample.prompt.empty()) {
    refuse(sample, "the prompt is empty");
  }
  if (block_size == 0) {
    refuse(sample, fmt::format("block size {} is below 1", sample.block_size));
  }
  if (sample.clean.empty() || sample.clean.size() % block_size != 0) {
    refuse(sample, fmt::format("{} clean tokens are not whole blocks of {}", sample.clean.size(),
                               block_size));
  }
  if (!sample.noisy.empty() && sample.noisy.size() != sample.clean.size()) {
    refuse(sample, fmt::format("{} noisy tokens beside {} clean ones", sample.noisy.size(),
                               sample.clean.size()));
  }
  if (!sample.noisy.empty() && mask == MaskKind::window && sample.window < 1) {
    refuse(sample, fmt::format("noise window {} is below 1", sample.window));
  }
}

SampleExtent measure(const PackedSample& sample, const PackingOptions& options) {
  const auto is_eos = [&](TokenId token) {
    return std::ranges::find(options.eos_ids, token) != options.eos_ids.end();
  };
  SampleExtent extent;
  extent.prompt = static_cast<std::int64_t>(sample.prompt.size());
  extent.block_size = sample.block_size;
  extent.has_noise = !sample.noisy.empty();
  const auto eos = std::ranges::find_if(sample.clean, is_eos);
  extent.ends = eos != sample.clean.end();
  extent.answer_targets = eos - sample.clean.begin() + (extent.ends ? 1 : 0);
  extent.blocks = (extent.answer_targets + extent.block_size - 1) / extent.block_size;
  return extent;
}

KeptRange kept_range(const PackedSample& sample, const SampleExtent& extent,
                     const PackingOptions& options, std::int64_t block) {
  const std::int64_t begin = block * extent.block_size;
  const std::int64_t eos =
      extent.ends ? extent.answer_targets - 1 : extent.blocks * extent.block_size;
  KeptRange range{0, std::min(extent.block_size, eos - begin)};
  if (options.mask_token) {
    range.last = std::min(range.last, extent.block_size - 1);  // The next block's first is known.
  } else if (options.kept == KeptOffsets::from_first_difference) {
    while (range.first < extent.block_size &&
           sample.noisy[static_cast<std::size_t>(begin + range.first)] ==
               sample.clean[static_cast<std::size_t>(begin + range.first)]) {
      ++range.first;
    }
  }
  return range;
}

void append_rows(PackedBatch& batch, std::span<const TokenId> tokens, std::int64_t first_position) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.tokens.push_back(tokens[i]);
    batch.positions.push_back(static_cast<std::int32_t>(first_position) +
                              static_cast<std::int32_t>(i));
  }
  batch.layout.num_rows = static_cast<std::int64_t>(batch.tokens.size());
  if (batch.layout.num_rows > std::numeric_limits<std::int32_t>::max()) {
    throw DataError("a packed batch exceeds 2^31 rows; lower train.tokens_per_rank");
  }
}

void append_noisy_segments(PackedBatch& batch, const PackedSample& sample,
                           const SampleExtent& extent, MaskKind mask, std::int64_t base,
                           std::int64_t noisy) {
  const std::int64_t clean = base + extent.prompt;
  // The masks differ only in the window (invariant I13).
  std::int64_t window = 0;
  switch (mask) {
    case MaskKind::noise:
      window = extent.blocks;
      break;
    case MaskKind::window:
      window = sample.window;
      break;
    case MaskKind::clean:
      window = 1;
      break;
    case MaskKind::mixed:
      window = sample.prompt_id % 2 == 0 ? extent.blocks : 1;
      break;
  }
  for (std::int64_t start = 0; start < extent.blocks; start += window) {
    const std::int64_t end = std::min(start + window, extent.blocks);
    batch.layout.segments.push_back(
        {noisy + start * extent.block_size, noisy + end * extent.block_size, base,
         clean + start * extent.block_size, noisy + start * extent.block_size});
  }
}

/// Returns the weight of a kept offset of decay 1; `kept` is the sum over all kept offsets.
double consistency_weight(LossReduction reduction, double kept, std::int64_t blocks,
                          float sample_weight) {
  double divisor = 1;
  switch (reduction) {
    case LossReduction::token_mean:
      divisor = kept;
      break;
    case LossReduction::paper:
      divisor = static_cast<double>(blocks);
      break;
    case LossReduction::repo:
      divisor = kept * static_cast<double>(blocks);
      break;
  }
  return static_cast<double>(sample_weight) / divisor;
}

void append_prompt_items(PackedBatch& batch, const PackedSample& sample, float ar_weight,
                         std::int64_t base) {
  for (std::size_t row = 0; row + 1 < sample.prompt.size(); ++row) {
    batch.loss_items.push_back(
        {.clean_row = static_cast<std::int32_t>(base) + static_cast<std::int32_t>(row),
         .target = sample.prompt[row + 1],
         .ar_weight = ar_weight});
  }
}

/// Appends one item for each row from the prompt's last on.
void append_answer_items(PackedBatch& batch, const PackedSample& sample, const SampleExtent& extent,
                         const PackingOptions& options, float ar_weight, double consistency_weight,
                         std::int64_t base, std::int64_t noisy) {
  const std::int64_t clean = base + extent.prompt;
  const std::int64_t answer_length = extent.blocks * extent.block_size;
  KeptRange range;
  for (std::int64_t answer = -1; answer < answer_length; ++answer) {
    LossItem item{.clean_row = static_cast<std::int32_t>(clean + answer)};
    if (options.ar_targets && answer + 1 < extent.answer_targets) {
      item.target = sample.clean[static_cast<std::size_t>(answer + 1)];
      item.ar_weight = ar_weight;
    }
    if (answer >= 0 && extent.has_noise) {
      const std::int64_t offset = answer % extent.block_size;
      if (offset == 0) {
        range = kept_range(sample, extent, options, answer / extent.block_size);
      }
      if (range.first <= offset && offset < range.last) {
        item.student_row = static_cast<std::int32_t>(noisy + answer + (options.mask_token ? 1 : 0));
        item.consistency_weight = static_cast<float>(
            consistency_weight * range.weight(offset, options.consistency_decay));
      }
    }
    if (item.target >= 0 || item.student_row >= 0) {
      batch.loss_items.push_back(item);
    }
  }
}

/// Where a sample's parts begin.
struct SamplePlace {
  SampleExtent extent;
  std::int64_t base = 0;
  std::int64_t noisy = 0;

  [[nodiscard]] std::int64_t answer() const { return extent.blocks * extent.block_size; }
  [[nodiscard]] std::int64_t clean_end() const { return base + extent.prompt + answer(); }
};

/// Appends prompt and clean rows, and the sample's loss items.
void append_clean_rows(PackedBatch& batch, const PackedSample& sample, const SamplePlace& place,
                       const PackingOptions& options, float sample_weight) {
  const SampleExtent& extent = place.extent;
  append_rows(batch, sample.prompt, 0);
  append_rows(batch, std::span(sample.clean).first(static_cast<std::size_t>(place.answer())),
              extent.prompt);
  batch.layout.segments.push_back(
      {place.base, place.clean_end(), place.base, place.base, place.base});
  std::int64_t kept_total = 0;
  double kept_weight = 0;
  for (std::int64_t block = 0; extent.has_noise && block < extent.blocks; ++block) {
    const KeptRange range = kept_range(sample, extent, options, block);
    kept_total += range.count();
    for (std::int64_t offset = range.first; offset < range.last; ++offset) {
      kept_weight += range.weight(offset, options.consistency_decay);
    }
  }
  const std::int64_t targets = (options.ar_targets ? extent.answer_targets : 0) +
                               (options.train_prompt ? extent.prompt - 1 : 0);
  const auto ar_weight = static_cast<float>(
      static_cast<double>(sample_weight) / static_cast<double>(std::max<std::int64_t>(targets, 1)));
  const double student_weight = kept_total == 0 ? 0.0
                                                : consistency_weight(options.reduction, kept_weight,
                                                                     extent.blocks, sample_weight);
  if (options.train_prompt) {
    append_prompt_items(batch, sample, ar_weight, place.base);
  }
  append_answer_items(batch, sample, extent, options, ar_weight, student_weight, place.base,
                      place.noisy);
  batch.num_samples += 1;
  batch.kept_offsets += kept_total;
  batch.ar_targets += targets;
}

void append_noisy_rows(PackedBatch& batch, const PackedSample& sample, const SamplePlace& place,
                       const PackingOptions& options) {
  if (!place.extent.has_noise) {
    return;
  }
  const auto answer = static_cast<std::size_t>(place.answer());
  const std::vector<TokenId>& tokens = options.mask_token ? sample.clean : sample.noisy;
  append_rows(batch, std::span(tokens).first(answer), place.extent.prompt);
  append_noisy_segments(batch, sample, place.extent, options.mask, place.base, place.noisy);
  const std::span<TokenId> rows = std::span(batch.tokens).last(answer);
  for (std::size_t i = 0; options.mask_token && i < answer; ++i) {
    if (i % static_cast<std::size_t>(sample.block_size) != 0) {
      rows[i] = *options.mask_token;
    }
  }
}

}  // namespace

void PackedBatch::clear() noexcept {
  tokens.clear();
  positions.clear();
  layout.num_rows = 0;
  layout.segments.clear();
  loss_items.clear();
  num_samples = 0;
  kept_offsets = 0;
  ar_targets = 0;
}

void append_samples(PackedBatch& batch, std::span<const PackedSample> samples,
                    const PackingOptions& options, float sample_weight) {
  // Without a list of places, because a warm step allocates nothing.
  std::int64_t noisy = batch.layout.num_rows;  // With noisy_last: of the next sample.
  const auto place_of = [&](const PackedSample& sample, std::int64_t base) {
    check_sample(sample, options.mask);
    SamplePlace place{measure(sample, options), base, noisy};
    if (!options.noisy_last) {
      place.noisy = place.clean_end();
    } else if (place.extent.has_noise) {
      noisy += place.answer();
    }
    return place;
  };
  std::int64_t base = batch.layout.num_rows;
  if (options.noisy_last) {
    for (const PackedSample& sample : samples) {
      base = place_of(sample, base).clean_end();
    }
    noisy = base;
  }
  for (const PackedSample& sample : samples) {
    const SamplePlace place = place_of(sample, batch.layout.num_rows);
    append_clean_rows(batch, sample, place, options, sample_weight);
    if (!options.noisy_last) {
      append_noisy_rows(batch, sample, place, options);
    }
  }
  if (options.noisy_last) {
    noisy = std::exchange(base, 0);
    for (const PackedSample& sample : samples) {
      const SamplePlace place = place_of(sample, base);
      append_noisy_rows(batch, sample, place, options);
      base = place.clean_end();
    }
  }
}

PackedBatch pack_samples(std::span<const PackedSample> samples, const PackingOptions& options,
                         float sample_weight) {
  PackedBatch batch;
  append_samples(batch, samples, options, sample_weight);
  return batch;
}

void append_causal_sequence(PackedBatch& batch, std::span<const TokenId> tokens,
                            std::int64_t first_target, float sample_weight) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (first_target < 1 || first_target >= length) {
    throw DataError(fmt::format(
        "a training sequence of {} tokens has no target from position {} on; drop it or give it "
        "a longer answer",
        length, first_target));
  }
  const std::int64_t base = batch.layout.num_rows;
  append_rows(batch, tokens, 0);
  batch.layout.segments.push_back({base, base + length, base, base, base});
  const std::int64_t targets = length - first_target;
  const auto ar_weight =
      static_cast<float>(static_cast<double>(sample_weight) / static_cast<double>(targets));
  for (std::int64_t target = first_target; target < length; ++target) {
    batch.loss_items.push_back({.clean_row = static_cast<std::int32_t>(base + target - 1),
                                .target = tokens[static_cast<std::size_t>(target)],
                                .ar_weight = ar_weight});
  }
  batch.num_samples += 1;
  batch.ar_targets += targets;
}

void find_noisy_rows(const PackedLayout& layout, std::vector<RowRange>& ranges) {
  ranges.clear();
  std::int64_t sample = -1;
  for (const AttentionSegment& segment : layout.segments) {
    if (segment.prefix_begin == segment.prefix_end) {
      continue;
    }
    if (segment.prefix_begin != sample) {
      sample = segment.prefix_begin;
      ranges.push_back({segment.row_begin, segment.row_end});
    }
    ranges.back().end = segment.row_end;
  }
}

void take_teacher_rows(PackedBatch& batch, PackedBatch& teacher, bool all_items) {
  teacher.clear();
  auto item = batch.loss_items.begin();
  for (const AttentionSegment& segment : batch.layout.segments) {
    if (segment.prefix_begin != segment.prefix_end) {
      continue;  // Only noisy rows see a prefix.
    }
    const std::int64_t base = teacher.layout.num_rows;
    std::int64_t end = segment.row_begin;  // One past the last row that teaches.
    for (; item != batch.loss_items.end() && item->clean_row < segment.row_end; ++item) {
      if (all_items || item->student_row >= 0) {
        end = item->clean_row + 1;
        item->teacher_row = static_cast<std::int32_t>(base + item->clean_row - segment.row_begin);
      }
    }
    if (end == segment.row_begin) {
      continue;
    }
    const auto append = [&](const auto& from, auto& to) {
      to.insert(to.end(), from.begin() + segment.row_begin, from.begin() + end);
    };
    append(batch.tokens, teacher.tokens);
    append(batch.positions, teacher.positions);
    teacher.layout.num_rows = static_cast<std::int64_t>(teacher.tokens.size());
    teacher.layout.segments.push_back({base, teacher.layout.num_rows, base, base, base});
    teacher.num_samples += 1;
  }
}

void take_clean_rows(PackedBatch& batch, PackedBatch& clean) {
  clean.clear();
  for (const AttentionSegment& segment : batch.layout.segments) {
    if (segment.prefix_begin == segment.prefix_end) {
      clean.layout.segments.push_back(segment);
      clean.layout.num_rows = segment.row_end;
    }
  }
  const std::int64_t rows = clean.layout.num_rows;
  clean.tokens.assign(batch.tokens.begin(), batch.tokens.begin() + rows);
  clean.positions.assign(batch.positions.begin(), batch.positions.begin() + rows);
  clean.num_samples = batch.num_samples;
  for (LossItem& item : batch.loss_items) {
    item.teacher_row = item.clean_row;
  }
}

bool visible(const PackedLayout& layout, std::int64_t query, std::int64_t key) {
  expect(query >= 0 && query < layout.num_rows, "query row outside the packed batch");
  expect(key >= 0 && key < layout.num_rows, "key row outside the packed batch");
  for (const AttentionSegment& segment : layout.segments) {
    if (segment.row_begin <= query && query < segment.row_end) {
      return (segment.prefix_begin <= key && key < segment.prefix_end) ||
             (segment.causal_begin <= key && key <= query);
    }
  }
  throw InternalError(fmt::format("packed row {} belongs to no attention segment", query));
}

}  // namespace jforge
