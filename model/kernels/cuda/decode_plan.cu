
#include <algorithm>
#include <bit>

#include "model/kernels/cuda/cuda_decode_plan_internal.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/slow_paths.h"

namespace jforge {

namespace {

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }
std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

ConstTensorView view_of(const std::int32_t* data, std::int64_t count) {
  return {data, DType::int32, Shape{count}, DeviceQueue::kDevice};
}

}  // namespace

const CudaDecodePlan& on_device(const DecodePlan& plan) {
  const auto* const own = dynamic_cast<const CudaDecodePlan*>(&plan);
  expect(own != nullptr, "a plan of another kernel set");
  return *own;
}

CudaDecodePlan::CudaDecodePlan(const AttentionHeads& heads, DType cache, std::int64_t max_rows,
                               DeviceQueue& queue, MovingMemory moving_memory,
                               MemoryAccount& account)
    : DecodePlan(heads, cache, max_rows),
      queue_(queue),
      moving_memory_(std::move(moving_memory)),
      staged_(queue, account),
      parts_(account) {}

bool CudaDecodePlan::on_tensor_cores() const noexcept {
  return cache_type() == DType::bfloat16 && jforge::on_tensor_cores(heads().size);
}

std::int64_t CudaDecodePlan::tile_rows() const noexcept {
  return on_tensor_cores() ? kMostTensorCoreQueries / heads().group()
                           : rows_per_block(heads().group());
}

CudaDecodePlan::Shapes CudaDecodePlan::shapes(std::int32_t step) const {
  const auto of = [](const Queries& queries) {
    return std::array{queries.num_tiles, queries.most_rows, queries.num_parts};
  };
  return {.step = step,
          .rows = num_rows(DecodeRows::all),
          .kept = num_rows(DecodeRows::kept),
          .with_tokens = !batch().tokens.empty(),
          .separate = !keeps_all(),
          .queries = of(queries_),
          .kept_queries = of(kept_queries_),
          .copies = num_copies_,
          .positions = rows(DecodeRows::all).position_limit};
}

void CudaDecodePlan::run(std::int32_t step, const std::function<void()>& work) {
  if (!batch().padded || num_rows(DecodeRows::all) > kMostRecorded) {
    work();
    return;
  }
  const Shapes now = shapes(step);
  const auto look = [&] {
    memory_.assign({block_on_device_, parts_.data()});
    moving_memory_(memory_);
  };
  auto known = std::ranges::find(works_, now, &Work::shapes);
  look();
  const bool again = known != works_.end() && known->places == memory_;
  if (again && known->recorded) {
    ++replays_;
  } else if (again && !cannot_record_) {
    known->launches = queue_.record_launches(work);
    known->recorded = !known->launches.empty();
    if (!known->recorded) {
      // Later recordings would fail too; plain launches need no memory.
      cannot_record_ = true;
      warn_of_unrecorded_passes(now.rows);
    }
  }
  if (again && known->recorded) {
    known->used = ++runs_;
    queue_.replay(known->launches);
    return;
  }
  work();
  if (cannot_record_) {
    return;
  }
  look();  // The work may have allocated memory.
  if (known == works_.end()) {
    known = works_.size() < kMostWorks ? works_.emplace(works_.end())
                                       : std::ranges::min_element(works_, {}, &Work::used);
  }
  *known = {.shapes = now, .places = memory_, .launches = {}, .used = ++runs_};
}

std::int64_t CudaDecodePlan::padded_parts(std::int64_t parts) const {
  return batch().padded && parts > 0
             ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(parts)))
             : parts;
}

/// The next power of two, or beyond kMostPadded the next multiple of kPaddedRows.
std::int64_t CudaDecodePlan::padded(std::int64_t count, std::int64_t most) const {
  if (!batch().padded || count == 0 || count > kMostRecorded) {
    return count;
  }
  const auto power = std::bit_ceil(static_cast<std::uint64_t>(count));
  return std::min(count <= kMostPadded ? static_cast<std::int64_t>(power)
                                       : divide_up(count, kPaddedRows) * kPaddedRows,
                  most);
}

std::size_t CudaDecodePlan::append(std::span<const std::int32_t> values, std::int64_t count,
                                   std::int32_t filler) {
  const std::size_t begin = block_.size();
  block_.insert(block_.end(), values.begin(), values.end());
  block_.resize(begin + at(count), filler);
  return begin;
}

void CudaDecodePlan::place(PlannedRows& rows, PlannedRows& kept) {
  const std::int64_t num_rows = padded(std::ssize(batch().places), max_rows());
  const std::int64_t num_kept = padded(std::ssize(batch().kept), num_rows);
  place_pages();
  place_tiles(batch().places, host_queries_);
  const bool separate = !keeps_all();
  if (separate) {
    place_tiles(DecodePlan::places(DecodeRows::kept), host_kept_queries_);
  }

  block_.clear();
  // Tiles come first, aligned to their size.
  append_queries(host_queries_, num_rows);
  if (separate) {
    append_queries(host_kept_queries_, num_kept);
  }
  const PageTable& table = batch().table;
  const std::size_t tokens_at = append(batch().tokens, batch().tokens.empty() ? 0 : num_rows);
  const std::size_t positions_at = append(positions(DecodeRows::all), num_rows);
  const std::size_t kept_positions_at = append(positions(DecodeRows::kept), num_kept);
  numbers_.clear();
  for (const CacheRow& row : batch().places) {
    numbers_.push_back(narrow(table.place(row.slot, row.row())));
  }
  const std::size_t places_at = append(numbers_, num_rows, -1);
  // Padding rows stay in place.
  numbers_.assign(batch().kept.begin(), batch().kept.end());
  while (std::ssize(numbers_) < num_kept) {
    numbers_.push_back(narrow(std::ssize(numbers_)));
  }
  const std::size_t kept_at = append(numbers_, num_kept);
  numbers_.clear();
  for (const CacheCopy& copy : batch().copies) {
    numbers_.push_back(narrow(table.place(copy.slot, copy.from)));
    numbers_.push_back(narrow(table.place(copy.slot, copy.to)));
  }
  const std::size_t copies_at = append(numbers_, std::ssize(numbers_));
  const std::size_t pages_at = append(table_, std::ssize(table_));

  num_copies_ = std::ssize(batch().copies);
  const std::int32_t* const block = staged_.upload(std::span<const std::int32_t>(block_));
  if (block == nullptr) {
    return;
  }
  block_on_device_ = block;
  queries_ = on_device(host_queries_, block);
  kept_queries_ = separate ? on_device(host_kept_queries_, block) : queries_;
  places_ = block + places_at;
  kept_ = block + kept_at;
  copies_ = block + copies_at;
  pages_ = block + pages_at;
  if (!batch().tokens.empty()) {
    rows.tokens = view_of(block + tokens_at, num_rows);
  }
  rows.positions = view_of(block + positions_at, num_rows);
  kept.positions = view_of(block + kept_positions_at, num_kept);
  if (batch().padded) {
    // A recording must serve later batches too.
    rows.position_limit = kept.position_limit = table.slot_pages * kCachePageRows;
  }
}

void CudaDecodePlan::place_pages() {
  const PageTable& table = batch().table;
  table_.clear();
  slot_begin_.assign(batch().places.empty() ? 0 : at(table.num_slots()), -1);
  for (const CacheRow& row : batch().places) {
    std::int32_t& begin = slot_begin_[at(row.slot)];
    if (begin < 0) {
      begin = narrow(std::ssize(table_));
      const std::int32_t* const pages = table.slot(row.slot);
      table_.insert(table_.end(), pages, pages + table.slot_pages);
    }
  }
}

void CudaDecodePlan::place_tiles(std::span<const CacheRow> places, HostQueries& queries) {
  const std::int64_t most_rows = tile_rows();
  row_tiles_.clear();
  queries.visible.clear();
  queries.most_rows = 0;
  std::int64_t parts = 0;
  for (std::size_t row = 0; row < places.size(); ++row) {
    const CacheRow& place = places[row];
    if (row_tiles_.empty() || !place.follows(places[row - 1]) ||
        row_tiles_.back().rows == most_rows) {
      row_tiles_.push_back({.row_begin = static_cast<std::int32_t>(row),
                            .fork = place.fork,
                            .fork_row = place.fork_row,
                            .first_page = slot_begin_[at(place.slot)],
                            .whole = 1});
    }
    DecodeTile& tile = row_tiles_.back();
    ++tile.rows;
    tile.key_end = std::max(tile.key_end, place.position + 1);
    queries.most_rows = std::max<std::int64_t>(queries.most_rows, tile.rows);
    queries.visible.push_back(place.position + 1);
    const std::int64_t splits = divide_up(std::int64_t{place.position} + 1, kSplitKeys);
    parts += splits > 1 ? splits : 0;
  }
  TileKeys keys{.tiles = std::ssize(row_tiles_)};
  for (const DecodeTile& tile : row_tiles_) {
    keys.longest = std::max<std::int64_t>(keys.longest, tile.key_end);
    keys.all += tile.key_end;
  }
  const bool split = splits_keys(keys, heads(), padded_parts(parts));
  queries.num_parts = split ? parts : 0;
  queries.first_part.assign(places.size(), -1);
  if (!split) {
    queries.tiles.assign(row_tiles_.begin(), row_tiles_.end());
    return;
  }
  queries.tiles.clear();
  for (const DecodeTile& tile : row_tiles_) {
    for (std::int32_t begin = 0; begin < tile.key_end; begin += kSplitKeys) {
      DecodeTile part = tile;
      part.key_begin = begin;
      part.key_end = std::min(tile.key_end, begin + narrow(kSplitKeys));
      part.whole = 0;
      queries.tiles.push_back(part);
    }
  }
  std::int32_t next = 0;
  for (std::size_t row = 0; row < places.size(); ++row) {
    const std::int64_t splits = divide_up(std::int64_t{places[row].position} + 1, kSplitKeys);
    if (splits > 1) {
      queries.first_part[row] = next;
      next += narrow(splits);
    }
  }
}

void CudaDecodePlan::append_queries(HostQueries& queries, std::int64_t rows) {
  constexpr std::int64_t kNumbers = sizeof(DecodeTile) / sizeof(std::int32_t);
  if (batch().padded) {
    queries.tiles.resize(std::bit_ceil(queries.tiles.size()));
    queries.most_rows = padded(queries.most_rows, tile_rows());
    queries.num_parts = padded_parts(queries.num_parts);
  }
  const std::int64_t numbers = kNumbers * std::ssize(queries.tiles);
  queries.tiles_at =
      append({reinterpret_cast<const std::int32_t*>(queries.tiles.data()), at(numbers)}, numbers);
  // Keeps later tiles aligned to their size.
  const std::int64_t room = divide_up(rows, kNumbers) * kNumbers;
  queries.visible_at = append(queries.visible, room);
  queries.first_part_at = append(queries.first_part, room, -1);
}

CudaDecodePlan::Queries CudaDecodePlan::on_device(const HostQueries& queries,
                                                  const std::int32_t* block) const {
  return {.tiles = reinterpret_cast<const DecodeTile*>(block + queries.tiles_at),
          .num_tiles = std::ssize(queries.tiles),
          .most_rows = queries.most_rows,
          .visible = block + queries.visible_at,
          .first_part = block + queries.first_part_at,
          .num_parts = queries.num_parts};
}

std::unique_ptr<DecodePlan> CudaKernelSet::make_decode_plan(const AttentionHeads& heads,
                                                            DType cache, std::int64_t max_rows,
                                                            MemoryAccount& account) {
  expect(cache == DType::float32 || cache == DType::bfloat16,
         "keys and values are kept as float32 or bfloat16");
  expect_heads(DeviceQueue::kDevice, heads);
  if (cache == DType::bfloat16 && !on_tensor_cores(heads.size)) {
    warn_of_lanes(heads.size);
  }
  const auto moving_memory = [this](std::vector<const void*>& places) {
    places.insert(places.end(),
                  {rounded_input_.data(), best_columns_.data(), padded_results_.data()});
    for (const DeviceRotary& rotary : rotary_tables_) {
      places.insert(places.end(), {rotary.cosines.data(), rotary.sines.data()});
    }
  };
  return std::make_unique<CudaDecodePlan>(heads, cache, max_rows, queue_, moving_memory, account);
}

}  // namespace jforge
