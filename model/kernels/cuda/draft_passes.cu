/// Acceptance, n-gram match and next draft on the device. A pass is three parts in one launch of a
/// graph: PlaceDrafts writes the pass's index data, the forward goes over them (where tokens are
/// sampled, TokenChooser with it), and AdvanceDrafts makes of its predictions what the next one
/// will place. So the next pass can be queued before anybody has read this one: the host reads
/// behind, through page-locked memory that a stream of its own fills.
///
/// What it costs: two launches of a block of 128 lanes for each sequence, a few microseconds of
/// latency and next to nothing else, against the copies, the wait and the host's work between two
/// passes that it spares: draft_passes.md. Nothing of it has been measured on a device
/// (model_benchmark prints the ratio where one is).

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "model/kernels/cuda/cuda_decode_plan_internal.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/lookahead_passes.h"
#include "model/kernels/cuda/multi_block_passes.h"
#include "model/kernels/cuda/plain_passes.h"
#include "model/kernels/cuda/token_chooser.h"
#include "runtime/tensor/cuda_queue.h"

namespace jforge {

namespace {

/// Positions go through float32 where lanes compare them.
constexpr std::int64_t kMostPositions = 1 << 24;
constexpr std::int64_t kStateNumbers = sizeof(DraftState) / sizeof(std::int32_t);

[[nodiscard]] std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }

/// What a sequence's method keeps of it.
[[nodiscard]] std::int64_t numbers_beside_ids(const DraftState& state) {
  switch (family_of(state.method)) {
    case DraftFamily::multi_block:
      return BlocksLayout(state).numbers();
    case DraftFamily::lookahead:
      return LookaheadLayout(state).numbers();
    case DraftFamily::plain:
      break;
  }
  return 0;
}

/// The states, and the ids where the drafts find room behind them. Block index = sequence.
struct BeginDrafts {
  const std::int32_t* numbers;
  DraftState* states;
  std::int32_t* ids;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t sequence) const {
    const DraftState state = reinterpret_cast<const DraftState*>(numbers)[sequence];
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < state.context + state.draft; i += group.lanes()) {
        ids[state.ids_begin + i] = numbers[state.source_begin + i];
      }
      if (lane == 0) {
        states[sequence] = state;
      }
    });
  }
};

/// Index data of a pass, as CudaDecodePlan::place() has them of a batch. Block index = sequence.
struct PlaceDrafts {
  DraftLayout layout;
  const std::int32_t* numbers;
  const DraftState* states;
  const std::int32_t* ids;
  const std::int32_t* alternatives;
  DecodeTile* tiles;
  std::int32_t* tokens;
  std::int32_t* positions;
  std::int32_t* places;
  std::int32_t* visible;
  std::int32_t* first_part;
  std::int32_t* copies;
  const RowChoice* sampling;  ///< Of each sequence: all but the position and the text.
  RowChoice* choices;         ///< Null where nothing is sampled.

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t sequence) const {
    group.each([&](std::int64_t lane) {
      const DraftState& state = states[sequence];
      for (std::int64_t i = lane; i < layout.rows_each(); i += group.lanes()) {
        const std::int64_t row = sequence * layout.rows_each() + i;
        const PlacedDraftRow found = draft_row(layout, state, ids, alternatives, i);
        place_row(state, row, found);
        if (choices != nullptr) {
          choices[row] = found.used() ? choice(state, sampling[sequence], i, found) : RowChoice{};
        }
      }
      for (std::int64_t i = lane; i < layout.tiles_each(); i += group.lanes()) {
        tiles[sequence * layout.tiles_each() + i] = tile(state, sequence, i);
      }
      for (std::int64_t i = lane; i < layout.alternative_rows; i += group.lanes()) {
        place_copy(state, sequence * layout.alternative_rows + i, static_cast<std::int32_t>(i));
      }
    });
  }

  /// The cache's row that holds a slot's row.
  [[nodiscard]] JFORGE_DEVICE std::int32_t place(const DraftState& state, std::int32_t row) const {
    const std::int32_t page = numbers[state.pages_begin + row / kCachePageRows];
    return static_cast<std::int32_t>(page * kCachePageRows + row % kCachePageRows);
  }
  JFORGE_DEVICE void place_row(const DraftState& state, std::int64_t row,
                               const PlacedDraftRow& found) const {
    tokens[row] = found.token;
    positions[row] = found.position;
    places[row] = found.used() ? place(state, found.fork_row + found.position - found.fork) : -1;
    visible[row] = found.used() ? found.position + 1 : 0;
    const bool parted = found.used() && layout.splits > 1 && found.position >= kSplitKeys;
    first_part[row] = parted ? static_cast<std::int32_t>(row * layout.splits) : -1;
  }
  /// Of the token behind the i-th row. A penalty falls on what that sees: its sequence up to
  /// itself, or up to its fork and then its alternative.
  [[nodiscard]] JFORGE_DEVICE RowChoice choice(const DraftState& state, RowChoice choice,
                                               std::int64_t i, const PlacedDraftRow& row) const {
    choice.position = static_cast<std::uint64_t>(row.position) + 1;
    if (choice.penalty == 1) {
      return choice;
    }
    choice.text_begin = state.ids_begin;
    choice.text_size = row.position + 1;
    if (i >= layout.own) {
      const std::int64_t which = (i - layout.own) / layout.alternative_rows;
      choice.text_size = row.fork;
      choice.alternative_begin =
          static_cast<std::int32_t>(state.alternatives.begin + state.alternatives.tokens_at(which));
      choice.alternative_size = row.position + 1 - row.fork;
    }
    return choice;
  }
  /// Of an alternative's row that was accepted; none: −1 twice.
  JFORGE_DEVICE void place_copy(const DraftState& state, std::int64_t copy, std::int32_t i) const {
    const bool used = i < state.alternatives.kept_rows;
    copies[2 * copy] = used ? place(state, state.alternatives.kept_from + i) : -1;
    copies[2 * copy + 1] = used ? place(state, state.alternatives.kept_to + i) : -1;
  }

  [[nodiscard]] JFORGE_DEVICE DecodeTile tile(const DraftState& state, std::int64_t sequence,
                                              std::int64_t i) const {
    const std::int64_t which = i / layout.splits;
    const auto begin = static_cast<std::int32_t>(i % layout.splits * kSplitKeys);
    std::int64_t row = which * layout.tile_rows;
    if (which >= layout.own_tiles()) {
      const std::int64_t behind = which - layout.own_tiles();
      row = layout.own + behind / layout.alternative_tiles() * layout.alternative_rows +
            behind % layout.alternative_tiles() * layout.tile_rows;
    }
    const PlacedDraftRow first = draft_row(layout, state, ids, alternatives, row);
    const std::int32_t rows = smaller(static_cast<std::int32_t>(layout.tile_rows), first.left);
    DecodeTile tile;
    const std::int32_t end = first.position + rows;
    if (rows > 0 && begin < end) {
      tile.row_begin = static_cast<std::int32_t>(sequence * layout.rows_each() + row);
      tile.rows = rows;
      tile.fork = first.fork;
      tile.fork_row = first.fork_row;
      tile.first_page = state.pages_begin;
      tile.key_begin = begin;
      tile.whole = layout.splits > 1 ? 0 : 1;
      tile.key_end =
          tile.whole != 0 ? end : smaller(end, begin + static_cast<std::int32_t>(kSplitKeys));
    }
    return tile;
  }
};

/// The plan whose rows PlaceDrafts writes.
class CudaDraftPlan final : public CudaDecodePlan {
 public:
  using CudaDecodePlan::CudaDecodePlan;

  /// `position_limit` bounds the positions of all rows, now and later; `sampling` as PlaceDrafts
  /// has it.
  void lay_out(const DraftLayout& layout, DecodeTile* tiles, const std::int32_t* numbers,
               const RowChoice* sampling, std::int64_t position_limit, bool replay) {
    const std::int64_t rows = layout.rows();
    place_.layout = layout;
    place_.numbers = numbers;
    place_.sampling = sampling;
    place_.tiles = tiles;
    auto* next = reinterpret_cast<std::int32_t*>(tiles + layout.sequences * layout.tiles_each());
    place_.choices = sampling == nullptr ? nullptr : reinterpret_cast<RowChoice*>(next);
    next += sampling == nullptr ? 0 : rows * kChoiceNumbers;
    for (std::int32_t** part :
         {&place_.visible, &place_.first_part, &place_.tokens, &place_.positions, &place_.places}) {
      *part = next;
      next += rows;
    }
    place_.copies = next;
    position_limit_ = position_limit;
    use_rows({.tiles = tiles,
              .num_tiles = layout.sequences * layout.tiles_each(),
              .most_rows = layout.tile_rows,
              .visible = place_.visible,
              .first_part = place_.first_part,
              .num_parts = layout.splits > 1 ? rows * layout.splits : 0},
             place_.places, numbers, place_.copies, layout.copies(),
             reinterpret_cast<const std::int32_t*>(tiles));
    assign({.tokens = {}, .places = {}, .kept = {}, .copies = {}, .table = {}, .padded = replay});
  }
  /// int32 numbers of memory that a layout takes.
  [[nodiscard]] static std::int64_t numbers(const DraftLayout& layout, bool samples) {
    constexpr std::int64_t kTileNumbers = sizeof(DecodeTile) / sizeof(std::int32_t);
    return layout.sequences * layout.tiles_each() * kTileNumbers +
           (samples ? kChoiceNumbers + 5 : 5) * layout.rows() + 2 * layout.copies();
  }
  [[nodiscard]] const PlaceDrafts& placed() const noexcept { return place_; }

 private:
  /// Passes have few numbers of rows, however many they are.
  [[nodiscard]] std::int64_t most_recorded() const noexcept override { return max_rows(); }
  void place(PlannedRows& rows, PlannedRows& kept) override {
    const Shape shape{place_.layout.rows()};
    rows.tokens = {place_.tokens, DType::int32, shape, DeviceQueue::kDevice};
    rows.positions = kept.positions = {place_.positions, DType::int32, shape, DeviceQueue::kDevice};
    rows.position_limit = kept.position_limit = position_limit_;
  }

  PlaceDrafts place_{};
  std::int64_t position_limit_ = 0;
};

class CudaDraftPasses final : public DraftPasses {
 public:
  CudaDraftPasses(const AttentionHeads& heads, DType cache, std::int64_t max_rows, bool replay,
                  DeviceQueue& queue, const CudaDecodePlan::MovingMemory& moving_memory,
                  MemoryAccount& account)
      : replay_(replay),
        queue_(queue),
        account_(account),
        staged_(queue, account),
        states_(account),
        ids_(account),
        alternatives_(account),
        rows_(account),
        reports_(account),
        chooser_(queue, account),
        plan_(
            heads, cache, max_rows, queue,
            [this, moving_memory](std::vector<const void*>& places) {
              moving_memory(places);
              chooser_.append_memory(places);
              places.insert(places.end(), {numbers_, states_.data(), ids_.data(),
                                           alternatives_.data(), reports_.data()});
            },
            account) {}
  void begin(std::span<const DraftSequence> sequences, const PageTable& table,
             std::int64_t branch_row) override;
  void queue(const std::function<void(const DecodePlan&)>& forward,
             const TensorView& predictions) override;
  void sample(std::int64_t first, const TensorView& logits, const TensorView& tokens) override;
  void read() override;
  [[nodiscard]] std::span<const DraftRow> rows(std::size_t sequence) const override;
  [[nodiscard]] std::int64_t replays() const noexcept override { return plan_.replays(); }

 private:
  void append(std::span<const std::int32_t> values) {
    block_.insert(block_.end(), values.begin(), values.end());
  }
  void expect_fits(const DraftSequence& sequence, const PageTable& table,
                   std::int64_t branch_row) const;
  [[nodiscard]] DraftState state_of(const DraftSequence& sequence, const PageTable& table);
  void append_blocks(const DraftSequence& sequence, DraftState& state);
  void append_window(const DraftSequence& sequence, DraftState& state);
  /// Room for what a sequence has beside its ids, so many numbers; where it begins.
  std::size_t append_numbers(DraftState& state, std::int64_t numbers);
  [[nodiscard]] std::int32_t step_of(const DraftLayout& layout);
  /// The next power of two, where a pass may be replayed: sequences that are added have ended.
  [[nodiscard]] std::int64_t padded(std::int64_t sequences) const {
    const std::int64_t most = std::min(kMostPadded, plan_.max_rows()) / layout_.rows_each();
    const auto power = std::bit_ceil(static_cast<std::uint64_t>(sequences));
    return replay_ ? std::max(sequences, std::min(static_cast<std::int64_t>(power), most))
                   : sequences;
  }
  [[nodiscard]] DraftLayout next_layout() const;
  void wait_for_reports() const {
    for (const Event& copied : copied_) {
      copied.wait();
    }
  }
  [[nodiscard]] const std::int32_t* report() const noexcept {
    return reinterpret_cast<const std::int32_t*>(host_reports_.data()) +
           (read_ - 1) % kDraftReports * layout_.report_numbers();
  }

  bool replay_;
  DeviceQueue& queue_;
  MemoryAccount& account_;
  StagedArray staged_;
  DeviceScratch states_;
  DeviceScratch ids_;
  DeviceScratch alternatives_;  ///< DraftAdvance::alternatives
  DeviceScratch rows_;
  DeviceScratch reports_;
  TokenChooser chooser_;
  CudaDraftPlan plan_;
  Buffer host_reports_;
  std::unique_ptr<Queue> copies_ = make_cuda_queue();  ///< Ends before what it copies to.
  std::array<Event, kDraftReports> copied_;
  const std::int32_t* numbers_ = nullptr;  ///< What begin() brought,
  const RowChoice* sampling_ = nullptr;    ///< and there (PlaceDrafts::sampling).
  std::vector<std::int32_t> block_;
  DraftLayout layout_;      ///< But for the splits.
  DraftAdvance advance_{};  ///< Of the newest pass.
  /// What kernels a pass has beside those of every pass.
  struct Kernels {
    std::array<bool, 3> renews{};  ///< Drafts, by DraftFamily.
    bool samples = false;
    bool cuts = false;       ///< TokenChoices::cuts
    bool penalises = false;  ///< TokenChoices::penalises
    bool operator==(const Kernels&) const = default;
    [[nodiscard]] bool renew(DraftFamily family) const {
      return renews.at(static_cast<std::size_t>(family));
    }
  };
  Kernels kernels_;
  /// What passes of as many rows may differ in (DecodePlan::run).
  struct Step {
    DraftRows rows;
    Kernels kernels;
    bool operator==(const Step&) const = default;
  };
  std::vector<Step> steps_;
  std::int64_t num_sequences_ = 0;
  std::int64_t positions_ = 0;  ///< That the sequences take at most.
  /// That a slot has: what is recorded of one batch serves later ones of the same pages.
  std::int64_t slot_positions_ = 0;
  std::int64_t reach_ = 0;       ///< Positions from a context on that a pass's rows take at most.
  std::int64_t known_end_ = 0;   ///< Bound of the ends of the rows of pass read_.
  std::int64_t known_ends_ = 0;  ///< The sum of every sequence's.
  std::int64_t queued_ = 0;      ///< Passes since begin(),
  std::int64_t read_ = 0;        ///< and of them those that were read.
};

DraftState CudaDraftPasses::state_of(const DraftSequence& sequence, const PageTable& table) {
  const std::int64_t n = sequence.block_size;
  DraftState state{};
  state.seed = sequence.seed;
  state.round = sequence.round;
  state.item = sequence.item;
  state.draws = sequence.draws;
  state.method = sequence.method;
  state.block_size = sequence.block_size;
  state.match_length = sequence.match_length;
  state.prompt_length = narrow(sequence.prompt_length);
  state.max_new_tokens = narrow(sequence.max_new_tokens);
  state.num_blocks = narrow(divide_up(sequence.max_new_tokens, n));
  state.num_eos = narrow(std::ssize(sequence.eos_ids));
  state.context = narrow(std::ssize(sequence.context));
  state.draft = narrow(std::ssize(sequence.draft));
  state.block = narrow(sequence.block);
  state.block_begin = narrow(sequence.block_begin);
  state.eos_begin = narrow(std::ssize(block_));
  append(sequence.eos_ids);
  state.pages_begin = narrow(std::ssize(block_));
  append({table.slot(sequence.slot), static_cast<std::size_t>(table.slot_pages)});
  state.source_begin = narrow(std::ssize(block_));
  append(sequence.context);
  append(sequence.draft);
  if (family_of(state.method) == DraftFamily::multi_block) {
    append_blocks(sequence, state);
  } else if (family_of(state.method) == DraftFamily::lookahead) {
    append_window(sequence, state);
  }
  return state;
}

/// Pseudo blocks and pool as they lie on the device; candidates are found there.
void CudaDraftPasses::append_blocks(const DraftSequence& sequence, DraftState& state) {
  const DraftBlocks& blocks = sequence.blocks;
  const std::int64_t width = std::min<std::int64_t>(sequence.block_size, sequence.max_new_tokens);
  state.blocks = {.width = narrow(width),
                  .blocks = blocks.blocks,
                  .pool_capacity = blocks.pool_capacity,
                  .threshold = blocks.threshold,
                  .clone = blocks.clone ? 1 : 0,
                  .on_every_row = blocks.on_every_row ? 1 : 0,
                  .num_pseudo = narrow(std::ssize(blocks.pseudo)),
                  // The oldest is the first.
                  .pool_next = narrow(static_cast<std::int64_t>(blocks.pool.size)),
                  .pool_size = narrow(static_cast<std::int64_t>(blocks.pool.size))};
  state.alternatives.most = blocks.candidates;
  state.alternatives.width = narrow(blocks.on_every_row ? width * blocks.blocks : width);
  const BlocksLayout layout(state);
  const std::size_t begin = append_numbers(state, layout.pool_at(state.blocks.pool_size));
  const auto place = [&](std::int64_t at) { return block_.data() + begin + at; };
  for (std::size_t i = 0; i < blocks.pseudo.size(); ++i) {
    const PseudoBlock& block = blocks.pseudo[i];
    expect(std::ssize(block.tokens) <= layout.width, "a pseudo block is longer than a block");
    const PseudoState known{.length = narrow(std::ssize(block.tokens)),
                            .accepted = narrow(static_cast<std::int64_t>(block.accepted)),
                            .continuation = block.continuation};
    std::memcpy(place(layout.pseudo_at(static_cast<std::int64_t>(i))), &known, sizeof known);
    std::ranges::copy(block.tokens, place(layout.pseudo_tokens_at(static_cast<std::int64_t>(i))));
  }
  for (std::size_t i = 0; i < blocks.pool.size; ++i) {
    const std::span<const TokenId> kept = blocks.pool.newest(blocks.pool.size - 1 - i);
    expect(std::ssize(kept) <= layout.entry(), "a recycled sequence is longer than all blocks");
    std::int32_t* const entry = place(layout.pool_at(static_cast<std::int64_t>(i)));
    *entry = narrow(std::ssize(kept));
    std::ranges::copy(kept, entry + 1);
  }
}

/// The window as it lies on the device, from its first place on, and the pool.
void CudaDraftPasses::append_window(const DraftSequence& sequence, DraftState& state) {
  const LookaheadWindow& window = sequence.window;
  const std::int64_t columns = std::ssize(window.columns);
  const std::int64_t capacity = std::ssize(window.pool.entries);
  state.lookahead = {
      .ngram = window.ngram,
      .guesses = window.guesses,
      .most_columns = narrow(std::max<std::int64_t>(1, columns)),
      .oldest_level = 0,
      .first_column = 0,
      .num_levels = columns == 0 ? 1 : narrow(std::ssize(window.columns.front())),
      .num_columns = narrow(columns),
      .pool_capacity = narrow(capacity),
      // The oldest is the first.
      .pool_next =
          capacity == 0 ? 0 : narrow(static_cast<std::int64_t>(window.pool.size) % capacity),
      .pool_size = narrow(static_cast<std::int64_t>(window.pool.size))};
  const DraftRows rows = draft_rows({&sequence, 1});
  state.alternatives.most = narrow(rows.alternatives);
  state.alternatives.width = narrow(rows.alternative_rows);
  const LookaheadLayout layout(state);
  const std::size_t begin =
      append_numbers(state, window.pool.size == 0 ? layout.pool_at(0, 0) : layout.numbers());
  const auto place = [&](std::int64_t at) -> std::int32_t& {
    return block_[begin + static_cast<std::size_t>(at)];
  };
  for (std::int64_t column = 0; column < columns; ++column) {
    const std::vector<TokenId>& tokens = window.columns[static_cast<std::size_t>(column)];
    expect(std::ssize(tokens) == state.lookahead.num_levels, "a window's columns differ in levels");
    for (std::int64_t level = 0; level < std::ssize(tokens); ++level) {
      place(layout.window_at(level, column)) = tokens[static_cast<std::size_t>(level)];
    }
  }
  for (std::size_t i = 0; i < window.pool.size; ++i) {
    const std::vector<TokenId>& kept = window.pool.newest(window.pool.size - 1 - i);
    expect(std::ssize(kept) == window.ngram, "an n-gram has not n tokens");
    for (std::int64_t token = 0; token < window.ngram; ++token) {
      place(layout.pool_at(static_cast<std::int64_t>(i), token)) =
          kept[static_cast<std::size_t>(token)];
    }
  }
}

std::size_t CudaDraftPasses::append_numbers(DraftState& state, std::int64_t numbers) {
  const std::size_t begin = block_.size();
  state.alternatives.numbers = narrow(numbers);
  state.alternatives.source_begin = narrow(std::ssize(block_));
  block_.resize(begin + static_cast<std::size_t>(numbers), 0);
  return begin;
}

void CudaDraftPasses::expect_fits(const DraftSequence& sequence, const PageTable& table,
                                  std::int64_t branch_row) const {
  const DraftBlocks& blocks = sequence.blocks;
  const bool blocks_fit = sequence.method != DraftMethod::multi_block ||
                          (blocks.blocks >= 1 && blocks.candidates >= 0 &&
                           blocks.pool_capacity >= 0 && std::ssize(blocks.pseudo) < blocks.blocks &&
                           std::cmp_less_equal(blocks.pool.size, blocks.pool_capacity));
  const LookaheadWindow& window = sequence.window;
  const bool window_fits =
      sequence.method != DraftMethod::lookahead ||
      (window.ngram >= 2 && window.guesses >= 0 && std::ssize(sequence.draft) == 1 &&
       (window.columns.empty() ||
        (!window.columns.front().empty() && std::ssize(window.columns.front()) < window.ngram)) &&
       std::ssize(window.pool.entries) <= kMostPositions &&
       window.pool.size <= window.pool.entries.size());
  expect(sequence.slot >= 0 && sequence.slot < table.num_slots() &&
             sequence.max_positions <= kMostPositions && !sequence.draft.empty() &&
             std::ssize(sequence.draft) <= sequence.block_size && blocks_fit && window_fits,
         "a sequence's drafts are not for the device");
  const auto expect_pages = [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t row = begin; row < begin + count; row += kCachePageRows) {
      expect(row < table.slot_pages * kCachePageRows &&
                 table.slot(sequence.slot)[row / kCachePageRows] >= 0,
             "a sequence whose drafts the device renews has not all its pages");
    }
  };
  expect_pages(0, sequence.max_positions);
  expect(sequence.max_branch_rows == 0 ||
             (branch_row >= sequence.max_positions && branch_row % kCachePageRows == 0),
         "alternatives begin within a sequence's own rows");
  expect_pages(branch_row, sequence.max_branch_rows);
}

void CudaDraftPasses::begin(std::span<const DraftSequence> sequences, const PageTable& table,
                            std::int64_t branch_row) {
  expect(!sequences.empty(), "drafts of no sequence");
  const DraftRows each = draft_rows(sequences);
  layout_ = {.own = each.own,
             .alternatives = each.alternatives,
             .alternative_rows = each.alternative_rows,
             .tile_rows = std::min(plan_.tile_rows(), std::max(each.own, each.alternative_rows))};
  positions_ = 0;
  slot_positions_ = table.slot_pages * kCachePageRows;
  reach_ = 0;
  known_end_ = 0;
  known_ends_ = 0;
  kernels_ = {};
  TokenChoices choices;
  for (const DraftSequence& sequence : sequences) {
    expect_fits(sequence, table, branch_row);
    positions_ = std::max(positions_, sequence.max_positions);
    // N-grams and columns reach behind a window's first level.
    reach_ = std::max(
        reach_,
        layout_.own + (sequence.method == DraftMethod::lookahead ? sequence.window.ngram - 1 : 0));
    known_end_ = std::max(known_end_, std::ssize(sequence.context));
    known_ends_ += std::ssize(sequence.context);
    kernels_.renews.at(static_cast<std::size_t>(family_of(sequence.method))) = true;
    kernels_.samples = kernels_.samples || !sequence.sampling.greedy();
    choices.note(sequence.sampling);
  }
  known_end_ += reach_;
  known_ends_ += std::ssize(sequences) * reach_;
  kernels_.cuts = choices.cuts;
  kernels_.penalises = choices.penalises;
  num_sequences_ = std::ssize(sequences);
  layout_.sequences = padded(num_sequences_);
  expect(num_sequences_ * (positions_ + 1) <= std::numeric_limits<std::int32_t>::max(),
         "drafts of more tokens than a device's numbers reach");
  expect(layout_.rows() <= plan_.max_rows(), "drafts of more rows than a pass takes");

  // How tokens are chosen stands behind the states.
  const std::int64_t sampling_at = layout_.sequences * kStateNumbers;
  block_.assign(static_cast<std::size_t>(sampling_at +
                                         (kernels_.samples ? num_sequences_ * kChoiceNumbers : 0)),
                0);
  std::int64_t alternatives_numbers = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    DraftState state = state_of(sequences[i], table);
    // A draft of a lookup may end one behind the last position, with a token that is never read.
    state.ids_begin = narrow(static_cast<std::int64_t>(i) * (positions_ + 1));
    state.alternatives.begin = narrow(alternatives_numbers);
    state.alternatives.branch_row = narrow(branch_row);
    alternatives_numbers += numbers_beside_ids(state);
    std::memcpy(block_.data() + i * kStateNumbers, &state, sizeof state);
    if (kernels_.samples) {
      const RowChoice choice = row_choice(sequences[i].sampling, sequences[i].item, 0);
      std::memcpy(block_.data() + static_cast<std::size_t>(sampling_at) + i * kChoiceNumbers,
                  &choice, sizeof choice);
    }
  }
  expect(std::max<std::int64_t>(std::ssize(block_), alternatives_numbers) <=
             std::numeric_limits<std::int32_t>::max(),
         "recycled drafts of more tokens than a device's numbers reach");
  // A pass that nobody read may still report.
  for (const Event& copied : copied_) {
    queue_.wait(copied);
  }
  const std::size_t report_bytes =
      static_cast<std::size_t>(kDraftReports * layout_.report_numbers()) * sizeof(std::int32_t);
  if (report_bytes > host_reports_.bytes()) {
    wait_for_reports();
    host_reports_ = Buffer();
    host_reports_ = Buffer(2 * report_bytes, account_, HostMemory::page_locked, MemoryUse::staging);
  }
  numbers_ = staged_.upload(std::span<const std::int32_t>(block_));
  sampling_ =
      kernels_.samples ? reinterpret_cast<const RowChoice*>(numbers_ + sampling_at) : nullptr;
  auto* const states = states_.at_least<DraftState>(layout_.sequences);
  auto* const ids = ids_.at_least<std::int32_t>(num_sequences_ * (positions_ + 1));
  auto* const alternatives = alternatives_.at_least<std::int32_t>(alternatives_numbers);
  queue_.launch(layout_.sequences, kDraftLanes, BeginDrafts{numbers_, states, ids}, "begin drafts");
  const DraftAdvance drafts{.layout = layout_,
                            .numbers = numbers_,
                            .predictions = nullptr,
                            .states = states,
                            .ids = ids,
                            .alternatives = alternatives,
                            .reports = nullptr};
  if (kernels_.renew(DraftFamily::multi_block)) {
    queue_.launch(layout_.sequences, kDraftLanes, BeginBlocks{BlockDrafts{drafts}}, "begin blocks");
  }
  if (kernels_.renew(DraftFamily::lookahead)) {
    queue_.launch(layout_.sequences, kDraftLanes, BeginLookahead{LookaheadDrafts{drafts}},
                  "begin lookahead");
  }
  queued_ = 0;
  read_ = 0;
}

/// By the bounds of positions that the host knows of.
DraftLayout CudaDraftPasses::next_layout() const {
  DraftLayout layout = layout_;
  const std::int64_t ahead = (queued_ - read_) * reach_;
  const std::int64_t end = std::min(known_end_ + ahead, positions_ + 1);
  const auto splits = static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(divide_up(end, kSplitKeys))));
  const TileKeys keys{.tiles = layout.sequences * layout.tiles_each(),
                      .longest = end,
                      .all = layout.tiles_each() * (known_ends_ + num_sequences_ * ahead)};
  if (splits_keys(keys, plan_.heads(), layout.rows() * splits)) {
    layout.splits = splits;
  }
  return layout;
}

std::int32_t CudaDraftPasses::step_of(const DraftLayout& layout) {
  const Step step{{.own = layout.own,
                   .alternatives = layout.alternatives,
                   .alternative_rows = layout.alternative_rows},
                  kernels_};
  auto known = std::ranges::find(steps_, step);
  if (known == steps_.end()) {
    known = steps_.insert(known, step);
  }
  return narrow(known - steps_.begin());
}

void CudaDraftPasses::queue(const std::function<void(const DecodePlan&)>& forward,
                            const TensorView& predictions) {
  expect(num_sequences_ > 0 && queued_ - read_ < kDraftReports, "more passes are queued than read");
  const DraftLayout layout = next_layout();
  auto* const rows = rows_.at_least<std::int32_t>(CudaDraftPlan::numbers(layout, kernels_.samples));
  plan_.lay_out(layout, reinterpret_cast<DecodeTile*>(rows), numbers_, sampling_, slot_positions_,
                replay_);
  expect(predictions.elements() >= layout.rows(), "a pass has more rows than predictions");
  advance_ = {.layout = layout,
              .numbers = numbers_,
              .predictions = indices(predictions),
              .states = states_.at_least<DraftState>(layout.sequences),
              .ids = ids_.at_least<std::int32_t>(1),
              .alternatives = alternatives_.at_least<std::int32_t>(0),
              .reports = reports_.at_least<std::int32_t>(kDraftReports * layout.report_numbers())};
  plan_.run(step_of(layout), [this, &forward] {
    PlaceDrafts place = plan_.placed();
    place.states = advance_.states;
    place.ids = advance_.ids;
    place.alternatives = advance_.alternatives;
    queue_.launch(advance_.layout.sequences, kDraftLanes, place, "place drafts");
    forward(plan_);
    if (kernels_.renew(DraftFamily::plain)) {
      queue_.launch(advance_.layout.sequences, kDraftLanes, AdvanceDrafts{advance_},
                    "advance drafts");
    }
    if (kernels_.renew(DraftFamily::multi_block)) {
      queue_.launch(advance_.layout.sequences, kDraftLanes, AdvanceBlocks{BlockDrafts{advance_}},
                    "advance blocks");
    }
    if (kernels_.renew(DraftFamily::lookahead)) {
      queue_.launch(advance_.layout.sequences, kDraftLanes,
                    AdvanceLookahead{LookaheadDrafts{advance_}}, "advance lookahead");
    }
  });
  const std::int64_t slot = queued_ % kDraftReports;
  const Shape shape{layout.report_numbers()};
  copies_->wait(queue_.record());
  copies_->copy(
      ConstTensorView(advance_.reports + slot * shape.elements(), DType::int32, shape,
                      DeviceQueue::kDevice),
      TensorView(reinterpret_cast<std::int32_t*>(host_reports_.data()) + slot * shape.elements(),
                 shape));
  copied_.at(static_cast<std::size_t>(slot)) = copies_->record();
  ++queued_;
}

void CudaDraftPasses::sample(std::int64_t first, const TensorView& logits,
                             const TensorView& tokens) {
  expect(kernels_.samples && first + tokens.dim(0) <= advance_.layout.rows(),
         "tokens are sampled for other rows than a pass has");
  chooser_.choose(logits,
                  {.rows = plan_.placed().choices + first,
                   .text = advance_.ids,
                   .alternatives = advance_.alternatives,
                   .cuts = kernels_.cuts,
                   .penalises = kernels_.penalises},
                  tokens);
}

void CudaDraftPasses::read() {
  expect(read_ < queued_, "no pass is queued that was not read");
  copied_.at(static_cast<std::size_t>(read_ % kDraftReports)).wait();
  ++read_;
  known_end_ = 0;
  known_ends_ = 0;
  for (std::size_t i = 0; std::cmp_less(i, num_sequences_); ++i) {
    if (const auto found = rows(i); !found.empty()) {
      // A pass commits no more tokens than it has rows, nor than it reaches.
      const std::int64_t end =
          found.front().position + std::min(std::ssize(found), reach_) + reach_;
      known_end_ = std::max(known_end_, end);
      known_ends_ += end;
    }
    for (const DraftRow& row : rows(i)) {
      expect_token(row.prediction, row.position);
    }
  }
}

std::span<const DraftRow> CudaDraftPasses::rows(std::size_t sequence) const {
  const std::int32_t* const numbers = report();
  const auto* const all = reinterpret_cast<const DraftRow*>(numbers + layout_.sequences);
  return {all + static_cast<std::int64_t>(sequence) * layout_.rows_each(),
          static_cast<std::size_t>(numbers[sequence])};
}

}  // namespace

std::unique_ptr<DraftPasses> CudaDecodePlan::make_draft_passes(bool replay) {
  return std::make_unique<CudaDraftPasses>(heads(), cache_type(), max_rows(), replay, queue_,
                                           moving_memory_, account_);
}

}  // namespace jforge
