
#include <algorithm>
#include <span>
#include <utility>

#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/cuda_packed_plan_internal.h"

namespace jforge {

namespace {

std::int64_t length(std::size_t size) { return static_cast<std::int64_t>(size); }

template <class T>
const T* upload(StagedArray& staged, const std::vector<T>& values) {
  return staged.upload(std::span<const T>(values));
}

/// Appends the rows sorted by place, and each group's begin with a final end. Returns their number.
template <class T>
std::int64_t append_groups(std::span<const T> places, std::vector<std::int64_t>& order,
                           std::vector<std::int64_t>& begins) {
  const std::size_t before = order.size();
  for (std::size_t row = 0; row < places.size(); ++row) {
    order.push_back(length(row));
  }
  const std::span<std::int64_t> own = std::span(order).subspan(before);
  const auto place_of = [&](std::int64_t row) { return places[static_cast<std::size_t>(row)]; };
  // Not stable_sort, which allocates.
  std::ranges::sort(own, [&](std::int64_t a, std::int64_t b) {
    return place_of(a) != place_of(b) ? place_of(a) < place_of(b) : a < b;
  });
  std::int64_t groups = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (i == 0 || place_of(own[i]) != place_of(own[i - 1])) {
      begins.push_back(length(i));
      ++groups;
    }
  }
  begins.push_back(length(own.size()));
  return groups;
}

ConstTensorView staged_view(StagedArray& staged, const ConstTensorView& host) {
  return {staged.upload(host.span<std::int32_t>()), DType::int32, host.shape(),
          DeviceQueue::kDevice};
}

}  // namespace

const CudaPackedPlan& on_device(const PackedPlan& plan) {
  const auto* const own = dynamic_cast<const CudaPackedPlan*>(&plan);
  expect(own != nullptr, "a plan of another kernel set");
  return *own;
}

CudaPackedPlan::CudaPackedPlan(const AttentionHeads& heads, DeviceQueue& queue,
                               MemoryAccount& account)
    : PackedPlan(heads),
      lane_tiles_(lane_tiles(heads, queue.most_shared_bytes())),
      loss_{Loss(queue, account), Loss(queue, account)},
      visits_(queue, account),
      keys_(queue, account),
      staged_tokens_(queue, account),
      staged_positions_(queue, account),
      staged_tiles_(queue, account),
      staged_visible_(queue, account),
      staged_order_(queue, account),
      staged_order_begins_(queue, account) {}

void CudaPackedPlan::place(const PackedBatch& batch, PlannedRows& rows) {
  rows.tokens = staged_view(staged_tokens_, rows.tokens);
  rows.positions = staged_view(staged_positions_, rows.positions);
  place_queries(batch.layout);
  place_token_rows(batch.tokens);
  for (Loss& loss : loss_) {
    loss.most_rows = -1;
  }
  visits_.placed = false;
  keys_.placed = false;
}

void CudaPackedPlan::place_queries(const PackedLayout& layout) {
  const std::int64_t most_rows = lane_tiles_.rows;
  tiles_.clear();
  visible_.assign(static_cast<std::size_t>(layout.num_rows), 0);
  for (const AttentionSegment& segment : layout.segments) {
    const std::int64_t prefix = segment.prefix_end - segment.prefix_begin;
    for (std::int64_t row = segment.row_begin; row < segment.row_end; ++row) {
      visible_[static_cast<std::size_t>(row)] =
          static_cast<std::int32_t>(prefix + row - segment.causal_begin + 1);
    }
    for (std::int64_t row = segment.row_begin; row < segment.row_end; row += most_rows) {
      const std::int64_t end = std::min(row + most_rows, segment.row_end);
      tiles_.push_back({row, end - row, segment.prefix_begin, prefix, segment.causal_begin,
                        prefix + end - segment.causal_begin});
    }
  }
  queries_ = {upload(staged_tiles_, tiles_), length(tiles_.size()),
              upload(staged_visible_, visible_), most_rows};
}

const CudaPackedPlan::Keys& CudaPackedPlan::keys() const {
  if (!keys_.placed) {
    place_keys();
    keys_.placed = true;
  }
  return keys_.device;
}

void CudaPackedPlan::place_keys() const {
  const PackedLayout& layout = batch().layout;
  const std::int64_t tile_keys = lane_tiles_.backward_keys;
  auto& [placed, ranges, begins, device, staged_ranges, staged_begins] = keys_;
  ranges.clear();
  begins.clear();
  for (std::int64_t first = 0; first < layout.num_rows; first += tile_keys) {
    const std::int64_t last = std::min(first + tile_keys, layout.num_rows);
    begins.push_back(length(ranges.size()));
    for (const AttentionSegment& segment : layout.segments) {
      const bool in_prefix = first < segment.prefix_end && segment.prefix_begin < last;
      const bool in_run = first < segment.row_end && segment.causal_begin < last;
      if (in_prefix) {
        ranges.push_back({segment.row_begin, segment.row_end, segment});
      } else if (in_run) {
        ranges.push_back({std::max(segment.row_begin, first), segment.row_end, segment});
      }
    }
  }
  begins.push_back(length(ranges.size()));
  device = {upload(staged_ranges, ranges), upload(staged_begins, begins), tile_keys};
}

const CudaPackedPlan::Visits& CudaPackedPlan::visits() const {
  if (!visits_.placed) {
    const AttentionVisits& host = visits_.host;
    visits_.host.place(batch().layout, heads().group(), heads().key_heads);
    visits_.device = {upload(visits_.rows, host.rows()),
                      upload(visits_.query_tiles, host.query_tiles()),
                      length(host.query_tiles().size()),
                      upload(visits_.key_visits, host.key_visits()),
                      upload(visits_.key_work, host.key_work()),
                      length(host.key_work().size()),
                      upload(visits_.split_tiles, host.split_tiles()),
                      length(host.split_tiles().size()),
                      host.num_parts(),
                      upload(visits_.strip_visits, host.strip_visits())};
    visits_.placed = true;
  }
  return visits_.device;
}

void CudaPackedPlan::place_token_rows(std::span<const TokenId> tokens) {
  order_.clear();
  order_begins_.clear();
  const std::int64_t distinct = append_groups(tokens, order_, order_begins_);
  token_rows_ = {upload(staged_order_, order_), upload(staged_order_begins_, order_begins_),
                 distinct};
}

std::span<const CudaPackedPlan::LossChunk> CudaPackedPlan::loss(std::int64_t most_rows,
                                                                LossUse use) const {
  Loss& loss = loss_[use.students ? 1 : 0];
  if (loss.most_rows != most_rows || loss.use != use) {
    loss.most_rows = most_rows;
    loss.use = use;
    loss.place(batch().loss_items);
  }
  return loss.chunks;
}

void CudaPackedPlan::Loss::place(std::span<const LossItem> loss_items) {
  items.clear();
  sources.clear();
  order.clear();
  begins.clear();
  chunks.clear();
  std::size_t begin = 0;
  while (begin < loss_items.size()) {
    const std::size_t end = loss_chunk_end(loss_items, begin, use, most_rows);
    const std::span<const LossItem> chunk = loss_items.subspan(begin, end - begin);
    placement.place(chunk, use);
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      items.push_back({placement.student[i], placement.teacher[i], placement.clean[i],
                       chunk[i].target, chunk[i].consistency_weight, chunk[i].ar_weight});
    }
    sources.insert(sources.end(), placement.sources.begin(), placement.sources.end());
    const std::int64_t distinct =
        append_groups(std::span(std::as_const(placement.sources))
                          .first(static_cast<std::size_t>(placement.with_gradient)),
                      order, begins);
    chunks.push_back({nullptr,
                      length(chunk.size()),
                      nullptr,
                      length(placement.sources.size()),
                      placement.own,
                      placement.with_gradient,
                      {nullptr, nullptr, distinct}});
    begin = end;
  }
  const LossItemRows* next_item = upload(staged_items, items);
  const std::int64_t* next_source = upload(staged_sources, sources);
  const std::int64_t* next_order = upload(staged_order, order);
  const std::int64_t* next_begin = upload(staged_begins, begins);
  for (LossChunk& chunk : chunks) {
    chunk.items = next_item;
    chunk.sources = next_source;
    chunk.groups.order = next_order;
    chunk.groups.begins = next_begin;
    next_item += chunk.num_items;
    next_source += chunk.rows;
    next_order += chunk.with_gradient;
    next_begin += chunk.groups.distinct + 1;
  }
}

std::unique_ptr<PackedPlan> CudaKernelSet::make_plan(const AttentionHeads& heads,
                                                     MemoryAccount& account) {
  expect_heads(DeviceQueue::kDevice, heads);
  return std::make_unique<CudaPackedPlan>(heads, queue_, account);
}

}  // namespace jforge
