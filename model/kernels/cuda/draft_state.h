#pragma once

/// Drafts on the device between two passes: what kernels keep of a sequence, how the rows of a pass
/// lie, and what all methods do with what a pass predicted.

#include <cstdint>

#include "model/kernels/cuda/block_group.h"
#include "model/kernels/draft_passes.h"

namespace jforge {

/// Passes that are queued and not read, at most; each has a report.
inline constexpr std::int64_t kDraftReports = 2;
/// Of the block that works on a sequence.
inline constexpr std::int64_t kDraftLanes = 128;

/// Methods whose drafts one kernel renews.
enum class DraftFamily : std::uint8_t { plain, multi_block, lookahead };
[[nodiscard]] JFORGE_DEVICE_AND_HOST constexpr DraftFamily family_of(DraftMethod method) {
  return method == DraftMethod::multi_block ? DraftFamily::multi_block
         : method == DraftMethod::lookahead ? DraftFamily::lookahead
                                            : DraftFamily::plain;
}

/// Another way to go on than a sequence's own rows.
struct AlternativeState {
  std::int32_t fork;    ///< Own rows that it sees.
  std::int32_t length;  ///< Its tokens.
  std::int32_t row;     ///< Of the slot: its first. They lie there one behind the other.
};

/// A sequence's alternatives. They are the first of the numbers that it has beside its ids, each
/// its state and then its tokens; what else its method keeps follows.
struct AlternativesState {
  std::int32_t begin;         ///< Where its numbers begin among those of all sequences.
  std::int32_t numbers;       ///< How many of them begin() brought.
  std::int32_t source_begin;  ///< Where, among what it brought.
  std::int32_t most;          ///< Alternatives of a pass,
  std::int32_t width;         ///< and tokens of one.
  std::int32_t branch_row;    ///< Row of the slot where they begin.
  std::int32_t count;
  std::int32_t kept_rows;  ///< Rows of an accepted one that become the sequence's own:
  std::int32_t kept_from;  ///< where the first lies in the slot,
  std::int32_t kept_to;    ///< and where it belongs.

  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t at(std::int64_t i) const {
    return i * (kStateNumbers + width);
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t tokens_at(std::int64_t i) const {
    return at(i) + kStateNumbers;
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t end() const { return at(most); }

  static constexpr std::int64_t kStateNumbers = sizeof(AlternativeState) / sizeof(std::int32_t);
};

/// Multi-block decoding's, beside the draft, which is the real-active block's.
struct BlocksState {
  std::int32_t width;          ///< Tokens of a block at most.
  std::int32_t blocks;         ///< K
  std::int32_t pool_capacity;  ///< 0: nothing is recycled.
  std::int32_t threshold;
  std::int32_t clone;         ///< 1: a block begins as a copy of the draft.
  std::int32_t on_every_row;  ///< 1: candidates carry the forwarded pseudo blocks, too.
  std::int32_t num_pseudo;
  std::int32_t pool_next;  ///< Where the next sequence goes; nobody is there.
  std::int32_t pool_size;
};

/// Lookahead decoding's: a window of levels and columns, each in a ring, and a pool of n-grams.
struct LookaheadState {
  std::int32_t ngram;         ///< N, and places of levels: one is to come.
  std::int32_t guesses;       ///< G
  std::int32_t most_columns;  ///< Places of columns.
  std::int32_t oldest_level;  ///< Places where the window begins: of the level …
  std::int32_t first_column;  ///< … and of the column; those before it were dropped.
  std::int32_t num_levels;
  std::int32_t num_columns;    ///< That are forwarded; never more again.
  std::int32_t pool_capacity;  ///< C
  std::int32_t pool_next;      ///< Where the next n-gram goes.
  std::int32_t pool_size;

  /// Columns that are forwarded as alternatives, from their second level on.
  [[nodiscard]] JFORGE_DEVICE std::int32_t columns_apart() const {
    return num_levels > 1 ? num_columns : 0;
  }
};

/// A sequence between two passes. Its ids are the context and, from its end on, the draft.
struct DraftState {
  std::uint64_t seed;
  std::uint64_t round;
  std::uint64_t item;
  std::uint64_t draws;  ///< Of a running window.
  DraftMethod method;
  std::int32_t block_size;
  std::int32_t match_length;
  std::int32_t prompt_length;
  std::int32_t max_new_tokens;
  std::int32_t num_blocks;
  std::int32_t num_eos;
  std::int32_t eos_begin;     ///< In the numbers that begin() brought.
  std::int32_t pages_begin;   ///< There, too,
  std::int32_t source_begin;  ///< and the ids as they were then.
  std::int32_t ids_begin;     ///< In the ids.
  std::int32_t context;       ///< Tokens whose keys are in the cache.
  std::int32_t draft;         ///< Tokens of the draft; 0: the sequence has ended.
  std::int32_t behind;        ///< Own rows that are forwarded behind the draft, there as well.
  std::int32_t block;
  std::int32_t block_begin;
  std::int32_t passes;  ///< Since begin().
  AlternativesState alternatives;
  union {  ///< By the method.
    BlocksState blocks;
    LookaheadState lookahead;
  };

  [[nodiscard]] JFORGE_DEVICE std::int32_t own_rows() const {
    return draft == 0 ? 0 : draft + behind;
  }
};
static_assert(sizeof(DraftState) % sizeof(std::uint64_t) == 0);

/// A block behind the real-active one.
struct PseudoState {
  std::int32_t length;
  std::int32_t accepted;
  std::int32_t continuation;
};

/// Where a sequence's pseudo blocks and pool lie in its numbers.
struct BlocksLayout {
  std::int64_t begin = 0;
  std::int64_t width = 0;
  std::int64_t pseudo = 0;
  std::int64_t pool_slots = 0;  ///< One more than there are sequences, where the next is written.

  JFORGE_DEVICE_AND_HOST explicit BlocksLayout(const DraftState& state)
      : begin(state.alternatives.end()),
        width(state.blocks.width),
        pseudo(state.blocks.blocks - 1),
        pool_slots(state.blocks.pool_capacity + 1) {}

  /// Tokens of a sequence of the pool at most: all blocks'.
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t entry() const { return width * (pseudo + 1); }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t pseudo_at(std::int64_t i) const {
    return begin + i * kPseudoNumbers;
  }
  /// Their tokens lie one block behind the other.
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t pseudo_tokens_at(std::int64_t i) const {
    return pseudo_at(pseudo) + i * width;
  }
  /// Its length, then its tokens.
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t pool_at(std::int64_t slot) const {
    return pseudo_tokens_at(pseudo) + slot * (1 + entry());
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t numbers() const { return pool_at(pool_slots); }

  static constexpr std::int64_t kPseudoNumbers = sizeof(PseudoState) / sizeof(std::int32_t);
};

/// Where a sequence's window and pool lie in its numbers: tokens of a level, and tokens at one
/// place of all n-grams, one behind the other, so that lanes read what is adjacent.
struct LookaheadLayout {
  std::int64_t begin = 0;
  std::int64_t ngram = 0;
  std::int64_t columns = 0;
  std::int64_t capacity = 0;

  JFORGE_DEVICE_AND_HOST explicit LookaheadLayout(const DraftState& state)
      : begin(state.alternatives.end()),
        ngram(state.lookahead.ngram),
        columns(state.lookahead.most_columns),
        capacity(state.lookahead.pool_capacity) {}

  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t window_at(std::int64_t level,
                                                              std::int64_t column) const {
    return begin + level * columns + column;
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t pool_at(std::int64_t slot,
                                                            std::int64_t token) const {
    return window_at(ngram, 0) + token * capacity + slot;
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t numbers() const { return pool_at(0, ngram); }
};

/// How the rows of a pass lie: as DraftRows says of each sequence, those that it does not need
/// empty. Attention takes own rows and each alternative's in tiles of tile_rows, each once for
/// every split of the keys.
struct DraftLayout {
  std::int64_t sequences = 0;
  std::int64_t own = 0;
  std::int64_t alternatives = 0;
  std::int64_t alternative_rows = 0;
  std::int64_t tile_rows = 0;
  std::int64_t splits = 1;  ///< 1: a block takes all keys of its tile.

  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t rows_each() const {
    return own + alternatives * alternative_rows;
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t rows() const { return sequences * rows_each(); }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t own_tiles() const {
    return divide_up(own, tile_rows);
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t alternative_tiles() const {
    return divide_up(alternative_rows, tile_rows);
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t tiles_each() const {
    return (own_tiles() + alternatives * alternative_tiles()) * splits;
  }
  /// Rows of an alternative that may become the sequence's, of all sequences.
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t copies() const {
    return alternatives > 0 ? sequences * alternative_rows : 0;
  }
  /// Numbers of a report: rows of each sequence, then rows_each() rows for each.
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t report_numbers() const {
    return sequences + rows() * static_cast<std::int64_t>(sizeof(DraftRow) / sizeof(std::int32_t));
  }
};

[[nodiscard]] JFORGE_DEVICE inline std::int32_t smaller(std::int32_t a, std::int32_t b) {
  return a < b ? a : b;
}
[[nodiscard]] JFORGE_DEVICE inline std::int32_t larger(std::int32_t a, std::int32_t b) {
  return a > b ? a : b;
}

/// What a row of a pass holds, and its place in the slot, as CacheRow says it.
struct PlacedDraftRow {
  std::int32_t token = 0;
  std::int32_t position = 0;
  std::int32_t fork = 0;
  std::int32_t fork_row = 0;
  std::int32_t left = 0;  ///< Rows of its draft or alternative from it on; ≤ 0: nothing is here.

  [[nodiscard]] JFORGE_DEVICE bool used() const { return left > 0; }
};

/// The i-th of a sequence's rows, used or not.
[[nodiscard]] JFORGE_DEVICE inline PlacedDraftRow draft_row(const DraftLayout& layout,
                                                            const DraftState& state,
                                                            const std::int32_t* ids,
                                                            const std::int32_t* alternatives,
                                                            std::int64_t i) {
  PlacedDraftRow row;
  if (i < layout.own) {
    row.left = state.own_rows() - static_cast<std::int32_t>(i);
    if (row.used()) {
      row.position = state.context + static_cast<std::int32_t>(i);
      row.token = ids[state.ids_begin + row.position];
    }
    return row;
  }
  const std::int64_t which = (i - layout.own) / layout.alternative_rows;
  const auto at = static_cast<std::int32_t>((i - layout.own) % layout.alternative_rows);
  if (state.draft == 0 || which >= state.alternatives.count) {
    return row;
  }
  const std::int32_t* const numbers =
      alternatives + state.alternatives.begin + state.alternatives.at(which);
  const AlternativeState alternative = *reinterpret_cast<const AlternativeState*>(numbers);
  row.left = alternative.length - at;
  if (row.used()) {
    row.fork = state.context + alternative.fork;
    row.fork_row = alternative.row;
    row.position = row.fork + at;
    row.token = numbers[AlternativesState::kStateNumbers + at];
  }
  return row;
}

/// What follows a pass: the part that is the same for every method.
struct DraftAdvance {
  DraftLayout layout;
  const std::int32_t* numbers;
  const std::int32_t* predictions;  ///< [rows]
  DraftState* states;
  std::int32_t* ids;
  std::int32_t* alternatives;  ///< And what else methods keep (AlternativesState).
  std::int32_t* reports;

  template <class Group, class T>
  [[nodiscard]] JFORGE_DEVICE static T read(Group& group, const T* value) {
    typename Group::template PerLane<T> found(group);
    group.each([&](std::int64_t lane) { found[lane] = *value; });
    return found[0];  // The same on every lane.
  }
  template <class Group, class T>
  JFORGE_DEVICE static void write(Group& group, T* place, const T& value) {
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        *place = value;
      }
    });
  }
  /// The first i in [begin, end) for which test(i) holds, or `end`.
  template <class Group, class Test>
  [[nodiscard]] JFORGE_DEVICE static std::int32_t first(Group& group, std::int32_t begin,
                                                        std::int32_t end, const Test& test) {
    return static_cast<std::int32_t>(-group.largest([&](std::int64_t lane) {
      for (auto i = begin + static_cast<std::int32_t>(lane); i < end;
           i += static_cast<std::int32_t>(group.lanes())) {
        if (test(i)) {
          return -static_cast<float>(i);
        }
      }
      return -static_cast<float>(end);
    }));
  }

  /// All of a pass for one sequence of a family: it is reported, and advance(state) makes the next
  /// draft where this one was not refused.
  template <class Group, class Advance>
  JFORGE_DEVICE void pass(Group& group, std::int64_t sequence, DraftFamily family,
                          const Advance& advance) const {
    DraftState state = read(group, states + sequence);
    if (family_of(state.method) != family) {
      return;
    }
    report(group, state, sequence);
    if (state.draft > 0) {
      if (refused(group, state, sequence)) {
        state.draft = 0;
      } else {
        advance(state);
      }
    }
    ++state.passes;
    write(group, states + sequence, state);
  }

  [[nodiscard]] JFORGE_DEVICE std::int32_t* numbers_of(const DraftState& state) const {
    return alternatives + state.alternatives.begin;
  }
  /// A sequence's numbers as begin() brought them.
  template <class Group>
  JFORGE_DEVICE void bring_numbers(Group& group, const DraftState& state) const {
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < state.alternatives.numbers; i += group.lanes()) {
        numbers_of(state)[i] = numbers[state.alternatives.source_begin + i];
      }
    });
  }
  [[nodiscard]] JFORGE_DEVICE AlternativeState* alternative_state(const DraftState& state,
                                                                  std::int64_t i) const {
    return reinterpret_cast<AlternativeState*>(numbers_of(state) + state.alternatives.at(i));
  }
  [[nodiscard]] JFORGE_DEVICE std::int32_t* alternative_tokens(const DraftState& state,
                                                               std::int64_t i) const {
    return numbers_of(state) + state.alternatives.tokens_at(i);
  }
  [[nodiscard]] JFORGE_DEVICE std::int32_t* draft_of(const DraftState& state) const {
    return ids + state.ids_begin + state.context;
  }
  /// How many tokens of the draft are right; the first one is.
  template <class Group>
  [[nodiscard]] JFORGE_DEVICE std::int32_t count_accepted(Group& group, const DraftState& state,
                                                          const std::int32_t* predicted) const {
    const std::int32_t* const draft = draft_of(state);
    return 1 + first(group, 0, state.draft - 1,
                     [&](std::int32_t i) { return draft[i + 1] != predicted[i]; });
  }
  /// Tokens that a lane has on their way at once where it looks for some among many.
  static constexpr std::int32_t kReads = 8;

  /// Where, among a sequence's ids up to the newest token, the draft's first, the last of them
  /// stood before, of as many as did, at most match_length: the newest such place of the last one;
  /// −1 where that never stood before.
  template <class Group>
  [[nodiscard]] JFORGE_DEVICE std::int32_t find_last(Group& group, const DraftState& state) const {
    struct Match {
      std::int32_t length;
      std::int32_t end;  ///< Index of its last token.
    };
    const std::int32_t* const all = ids + state.ids_begin;
    const std::int32_t last = state.context;
    const std::int32_t longest = smaller(state.match_length, last);
    typename Group::template PerLane<Match> found(group);
    group.each([&](std::int64_t lane) {
      Match best{0, -1};
      const std::int32_t newest = all[last];
      const auto step = static_cast<std::int32_t>(group.lanes());
      for (auto begin = static_cast<std::int32_t>(lane); begin < last; begin += kReads * step) {
        unsigned equal = 0;
        JFORGE_UNROLL
        for (std::int32_t i = 0; i < kReads; ++i) {
          const std::int32_t token = last - begin > i * step ? all[begin + i * step] : kNoToken;
          equal |= token == newest ? 1U << i : 0U;
        }
        for (std::int32_t end = begin; equal != 0; end += step, equal >>= 1) {
          if ((equal & 1U) == 0) {
            continue;
          }
          std::int32_t length = 1;
          while (length < longest && length <= end && all[end - length] == all[last - length]) {
            ++length;
          }
          if (length >= best.length) {
            best = {length, end};
          }
        }
      }
      found[lane] = best;
    });
    const float length =
        group.largest([&](std::int64_t lane) { return static_cast<float>(found[lane].length); });
    return static_cast<std::int32_t>(group.largest([&](std::int64_t lane) {
      return static_cast<float>(found[lane].length) == length ? static_cast<float>(found[lane].end)
                                                              : -1.0F;
    }));
  }
  /// Predictions of a sequence's rows.
  [[nodiscard]] JFORGE_DEVICE const std::int32_t* predictions_of(std::int64_t sequence) const {
    return predictions + sequence * layout.rows_each();
  }
  /// Whether a row that was forwarded has no prediction, for NaN: the host refuses what it reads.
  template <class Group>
  [[nodiscard]] JFORGE_DEVICE bool refused(Group& group, const DraftState& state,
                                           std::int64_t sequence) const {
    const auto count = static_cast<std::int32_t>(layout.rows_each());
    return first(group, 0, count, [&](std::int32_t i) {
             return predictions_of(sequence)[i] < 0 &&
                    draft_row(layout, state, ids, alternatives, i).used();
           }) < count;
  }

  /// Rows that were forwarded, one behind the other.
  template <class Group>
  JFORGE_DEVICE void report(Group& group, const DraftState& state, std::int64_t sequence) const {
    std::int32_t* const counts = reports + state.passes % kDraftReports * layout.report_numbers();
    auto* const rows =
        reinterpret_cast<DraftRow*>(counts + layout.sequences) + sequence * layout.rows_each();
    const std::int32_t own = state.own_rows();
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        counts[sequence] = own + alternative_rows(state);
      }
      for (std::int64_t i = lane; i < layout.rows_each(); i += group.lanes()) {
        const PlacedDraftRow row = draft_row(layout, state, ids, alternatives, i);
        if (row.used()) {
          // Alternatives have rows of the slot one behind the other, too.
          const std::int64_t at =
              row.fork_row == 0
                  ? i
                  : own + row.fork_row - state.alternatives.branch_row + row.position - row.fork;
          rows[at] = {row.token, row.position, predictions_of(sequence)[i], row.fork, row.fork_row};
        }
      }
    });
  }
  /// Of all alternatives.
  [[nodiscard]] JFORGE_DEVICE std::int32_t alternative_rows(const DraftState& state) const {
    if (state.draft == 0 || state.alternatives.count == 0) {
      return 0;
    }
    const AlternativeState last = *alternative_state(state, state.alternatives.count - 1);
    return last.row - state.alternatives.branch_row + last.length;
  }

  [[nodiscard]] JFORGE_DEVICE bool is_eos(const DraftState& state, std::int32_t token) const {
    for (std::int32_t i = 0; i < state.num_eos; ++i) {
      if (numbers[state.eos_begin + i] == token) {
        return true;
      }
    }
    return false;
  }
  /// Tokens that a forward can add before T, after the newest.
  [[nodiscard]] JFORGE_DEVICE static std::int32_t tokens_left(const DraftState& state) {
    return state.max_new_tokens - (state.context - state.prompt_length + 1);
  }
  /// The accepted tokens of the draft up to the first end of sequence are known, and `correction`
  /// behind them.
  template <class Group>
  [[nodiscard]] JFORGE_DEVICE bool commit_and_test_end(Group& group, DraftState& state,
                                                       std::int32_t accepted,
                                                       std::int32_t correction) const {
    const std::int32_t* const draft = draft_of(state);
    const std::int32_t eos =
        first(group, 1, accepted, [&](std::int32_t i) { return is_eos(state, draft[i]); });
    state.context += eos;
    return eos < accepted || is_eos(state, correction) || tokens_left(state) <= 0;
  }
};

}  // namespace jforge
