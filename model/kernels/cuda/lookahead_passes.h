#pragma once

/// Lookahead decoding on the device (METHOD.md §6.3): what model/decoding/lookahead_decoder.cpp
/// does between two forwards. A block of lanes works on one sequence. The window's tokens stay
/// where they are; a pass writes one level, and levels and columns that are dropped only change
/// where the window begins.
///
/// What it costs beside other drafts, for W columns, n-grams of N tokens and a pool of C: 10 phases
/// and 4 reductions over lanes, 45 barriers, and the first tokens of the pool twice, 4 · C bytes
/// each time, of which a lane has kReads on their way at once. Each is compared with those of the W
/// new n-grams, which lie in shared memory; the other N − 1 tokens are read where the first is the
/// same. One lane then goes through the W once, to find which are added and which the pool has. At
/// the authors' W = 15, N = 5 and with C = 1,024 that is 8 KB of reads from the second-level cache
/// and some 10 µs, by what barriers and such reads usually take. A sequence keeps 4 · N · C bytes,
/// 20 KB. Nothing of it has been measured on a device.

#include "model/kernels/cuda/draft_state.h"

namespace jforge {

/// What both kernels below have: the window and the pool of one sequence, and the rows that follow
/// from them.
struct LookaheadDrafts : DraftAdvance {
  /// Of the window: what `level` holds in `column`, level num_levels being the one to come.
  [[nodiscard]] JFORGE_DEVICE std::int32_t* window_token(const DraftState& state,
                                                         std::int32_t column,
                                                         std::int32_t level) const {
    const LookaheadState& window = state.lookahead;
    const std::int32_t place = wrapped(window.oldest_level + level, window.ngram);
    return numbers_of(state) +
           LookaheadLayout(state).window_at(place, window.first_column + column);
  }
  /// The pool's slot of the n-gram that so many are newer than.
  [[nodiscard]] JFORGE_DEVICE static std::int32_t slot_of(const DraftState& state,
                                                          std::int32_t age) {
    const LookaheadState& window = state.lookahead;
    return wrapped(window.pool_next + window.pool_capacity - 1 - age, window.pool_capacity);
  }
  [[nodiscard]] JFORGE_DEVICE std::int32_t* pool_token(const DraftState& state, std::int32_t slot,
                                                       std::int32_t token) const {
    return numbers_of(state) + LookaheadLayout(state).pool_at(slot, token);
  }
  struct FirstTokens {
    std::int32_t age;   ///< Of the first n-gram,
    std::int32_t step;  ///< and from one to the next.
    std::int32_t tokens[kReads] = {};

    /// found(age) of those that are `token`.
    template <class Found>
    JFORGE_DEVICE void each_equal(std::int32_t token, const Found& found) const {
      unsigned equal = 0;
      JFORGE_UNROLL
      for (std::int32_t i = 0; i < kReads; ++i) {
        equal |= tokens[i] == token ? 1U << i : 0U;
      }
      for (std::int32_t i = age; equal != 0; i += step, equal >>= 1) {
        if ((equal & 1U) != 0) {
          found(i);
        }
      }
    }
  };
  /// visit(first tokens) of every step-th n-gram of the pool of the ages [begin, end).
  template <class Visit>
  JFORGE_DEVICE void each_first_tokens(const DraftState& state, std::int32_t begin,
                                       std::int32_t end, std::int32_t step,
                                       const Visit& visit) const {
    const std::int32_t* const first_tokens = pool_token(state, 0, 0);
    for (FirstTokens read{.age = begin, .step = step}; read.age < end; read.age += kReads * step) {
      JFORGE_UNROLL
      for (std::int32_t i = 0; i < kReads; ++i) {
        const std::int32_t at = read.age + i * step;
        read.tokens[i] = at < end ? first_tokens[slot_of(state, at)] : kNoToken;
      }
      visit(read);
    }
  }

  /// The rows of the next pass behind `newest`: the other columns' first level, each column from
  /// its second level on, then the newest n-grams that begin with that token. `counts`: shared,
  /// [lanes].
  template <class Group>
  JFORGE_DEVICE void assemble(Group& group, DraftState& state, std::int32_t newest,
                              std::int32_t* counts) const {
    LookaheadState& window = state.lookahead;
    const std::int32_t left = tokens_left(state);
    // A column ends num_levels − 1 positions behind its begin, and no row is useless before T.
    window.num_columns = smaller(window.num_columns, larger(left + 1 - window.num_levels, 0));
    state.draft = 1;
    state.behind = larger(window.num_columns - 1, 0);
    const std::int32_t apart = window.columns_apart();
    const std::int32_t rows = window.num_levels - 1;  // Of a column.
    const std::int32_t length = smaller(window.ngram - 1, left - 1);
    const std::int32_t wanted = length > 0 ? window.guesses : 0;
    // A lane takes n-grams of adjacent ages, so that those of lanes before it are newer.
    const auto share = static_cast<std::int32_t>(divide_up(window.pool_size, group.lanes()));
    const auto each_found = [&](std::int64_t lane, const auto& found) {
      const std::int32_t begin = static_cast<std::int32_t>(lane) * share;
      each_first_tokens(state, begin, smaller(begin + share, window.pool_size), 1,
                        [&](const FirstTokens& read) { read.each_equal(newest, found); });
    };
    const auto total = static_cast<std::int32_t>(group.template sum<float>([&](std::int64_t lane) {
      std::int32_t count = 0;
      each_found(lane, [&](std::int32_t /*age*/) { ++count; });
      counts[lane] = count;
      return static_cast<float>(count);
    }));
    state.alternatives.count = apart + smaller(wanted, total);
    const std::int32_t first_row = state.alternatives.branch_row;
    std::int32_t* const own = draft_of(state);
    group.each([&](std::int64_t lane) {
      const auto begin = static_cast<std::int32_t>(lane);
      const auto step = static_cast<std::int32_t>(group.lanes());
      if (lane == 0) {
        own[0] = newest;
        if (window.num_columns > 0) {
          *window_token(state, 0, 0) = newest;
        }
      }
      for (std::int32_t i = 1 + begin; i < window.num_columns; i += step) {
        own[i] = *window_token(state, i, 0);
      }
      for (std::int32_t i = begin; i < apart; i += step) {
        *alternative_state(state, i) = {1 + i, rows, first_row + i * rows};
      }
      for (std::int32_t i = begin; i < apart * rows; i += step) {
        const std::int32_t column = i % apart;
        alternative_tokens(state, column)[i / apart] = *window_token(state, column, 1 + i / apart);
      }
      if (counts[lane] == 0) {
        return;
      }
      std::int32_t rank = 0;
      for (std::int64_t before = 0; before < lane; ++before) {
        rank += counts[before];
      }
      each_found(lane, [&](std::int32_t age) {
        if (rank < wanted) {
          *alternative_state(state, apart + rank) = {1, length,
                                                     first_row + apart * rows + rank * length};
          std::int32_t* const tokens = alternative_tokens(state, apart + rank);
          for (std::int32_t i = 0; i < length; ++i) {
            tokens[i] = *pool_token(state, slot_of(state, age), 1 + i);
          }
        }
        ++rank;
      });
    });
  }

 protected:
  /// Of a ring's places, i < 2 · count.
  [[nodiscard]] JFORGE_DEVICE static std::int32_t wrapped(std::int32_t i, std::int32_t count) {
    return i < count ? i : i - count;
  }
};

/// The first rows of a sequence, of what begin() brought. Block index = sequence.
struct BeginLookahead : LookaheadDrafts {
  [[nodiscard]] std::int64_t shared_bytes() const { return shared_size<std::int32_t>(kDraftLanes); }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t sequence) const {
    auto* const counts = group.template shared<std::int32_t>(kDraftLanes);
    DraftState state = read(group, states + sequence);
    if (family_of(state.method) != DraftFamily::lookahead) {
      return;
    }
    bring_numbers(group, state);
    assemble(group, state, read(group, draft_of(state)), counts);
    write(group, states + sequence, state);
  }
};

/// What a pass accepts and the rows that follow. Block index = sequence.
struct AdvanceLookahead : LookaheadDrafts {
  [[nodiscard]] std::int64_t shared_bytes() const {
    return shared_size<std::int32_t>(kDraftLanes) + 3 * shared_size<std::int32_t>(layout.own) +
           shared_size<std::int32_t>(layout.own + 1);
  }

  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t sequence) const {
    auto* const counts = group.template shared<std::int32_t>(kDraftLanes);
    const NewNgrams ngrams{.first_tokens = group.template shared<std::int32_t>(layout.own),
                           .ages = group.template shared<std::int32_t>(layout.own),
                           .earlier = group.template shared<std::int32_t>(layout.own),
                           .entries = group.template shared<std::int32_t>(layout.own + 1)};
    pass(group, sequence, DraftFamily::lookahead, [&](DraftState& state) {
      advance(group, state, predictions_of(sequence), ngrams, counts);
    });
  }

 private:
  /// The columns' n-grams, in shared memory, [columns] each.
  struct NewNgrams {
    std::int32_t* first_tokens;
    std::int32_t* ages;     ///< Of the same n-gram in the pool before the pass; C: it had none.
    std::int32_t* earlier;  ///< The last column before it that has the same n-gram, −1: none.
    /// Where it is in the pool then, counted from the first that the pass adds on, those from
    /// before the pass −1 for the newest, −2 …; behind them, how many the pass adds.
    std::int32_t* entries;
  };
  /// The n-gram that is right for longest.
  struct Winner {
    std::int32_t right = 0;  ///< Tokens of it; 0: none is.
    std::int32_t which = 0;  ///< Of the alternatives.
  };

  template <class Group>
  JFORGE_DEVICE void advance(Group& group, DraftState& state, const std::int32_t* predicted,
                             const NewNgrams& ngrams, std::int32_t* counts) const {
    LookaheadState& window = state.lookahead;
    AlternativesState& alternatives_of = state.alternatives;
    const std::int32_t known = state.context;
    const Winner winner = find_winner(group, state, predicted);
    const std::int32_t correction =
        winner.right == 0 ? predicted[0]
                          : predictions_of_alternative(predicted, winner.which)[winner.right - 1];
    const std::int32_t* const tokens = alternative_tokens(state, winner.which);
    std::int32_t* const draft = draft_of(state);
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < winner.right; i += group.lanes()) {
        draft[1 + i] = tokens[i];
      }
      for (auto i = static_cast<std::int32_t>(lane); i < window.num_columns;
           i += static_cast<std::int32_t>(group.lanes())) {
        *window_token(state, i, window.num_levels) =
            window.num_levels == 1
                ? predicted[i]
                : predictions_of_alternative(predicted, i)[window.num_levels - 2];
        ngrams.first_tokens[i] = *window_token(state, i, 0);
        ngrams.ages[i] = window.pool_capacity;
      }
    });
    alternatives_of.kept_from =
        winner.right == 0 ? 0 : read(group, alternative_state(state, winner.which)).row;
    alternatives_of.kept_to = known + 1;
    const bool ended = commit_and_test_end(group, state, winner.right + 1, correction);
    alternatives_of.kept_rows = ended ? 0 : winner.right;
    if (ended) {
      state.draft = 0;
      return;
    }
    // The window then stands a position further on: the whole one loses its oldest level, one that
    // still grows its first column.
    if (window.num_levels + 1 == window.ngram) {
      push_columns(group, state, ngrams);
      window.oldest_level = wrapped(window.oldest_level + 1, window.ngram);
    } else {
      ++window.num_levels;
      ++window.first_column;
      window.num_columns = larger(window.num_columns - 1, 0);
    }
    assemble(group, state, correction, counts);
  }

  [[nodiscard]] JFORGE_DEVICE const std::int32_t* predictions_of_alternative(
      const std::int32_t* predicted, std::int32_t which) const {
    return predicted + layout.own + which * layout.alternative_rows;
  }

  /// The first of those that are right for longest.
  template <class Group>
  [[nodiscard]] JFORGE_DEVICE Winner find_winner(Group& group, const DraftState& state,
                                                 const std::int32_t* predicted) const {
    const std::int32_t begin = state.lookahead.columns_apart();
    const std::int32_t guesses = state.alternatives.count - begin;
    // Right tokens, and where as many are right, how many guesses are behind.
    const auto best = static_cast<std::int32_t>(group.largest([&](std::int64_t lane) {
      std::int32_t found = -1;
      for (auto i = static_cast<std::int32_t>(lane); i < guesses;
           i += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t length = alternative_state(state, begin + i)->length;
        const std::int32_t* const tokens = alternative_tokens(state, begin + i);
        const std::int32_t* const own = predictions_of_alternative(predicted, begin + i);
        std::int32_t right = 0;
        while (right < length && tokens[right] == (right == 0 ? predicted[0] : own[right - 1])) {
          ++right;
        }
        found = larger(found, right == 0 ? -1 : right * guesses + guesses - 1 - i);
      }
      return static_cast<float>(found);
    }));
    return best < 0 ? Winner{} : Winner{best / guesses, begin + guesses - 1 - best % guesses};
  }

  /// NgramPool::push() of all columns, in order.
  template <class Group>
  JFORGE_DEVICE void push_columns(Group& group, DraftState& state, const NewNgrams& ngrams) const {
    LookaheadState& window = state.lookahead;
    const std::int32_t capacity = window.pool_capacity;
    if (capacity == 0) {
      return;
    }
    group.each([&](std::int64_t lane) {
      const auto begin = static_cast<std::int32_t>(lane);
      const auto step = static_cast<std::int32_t>(group.lanes());
      each_first_tokens(state, begin, window.pool_size, step, [&](const FirstTokens& read) {
        for (std::int32_t i = 0; i < window.num_columns; ++i) {
          read.each_equal(ngrams.first_tokens[i], [&](std::int32_t age) {
            if (is_kept_at(state, i, age)) {
              ngrams.ages[i] = age;
            }
          });
        }
      });
      for (std::int32_t i = begin; i < window.num_columns; i += step) {
        std::int32_t other = i - 1;
        while (other >= 0 && !are_equal(state, ngrams, i, other)) {
          --other;
        }
        ngrams.earlier[i] = other;
      }
    });
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        enter(state, ngrams);
      }
    });
    const std::int32_t added = read(group, ngrams.entries + window.num_columns);
    group.each([&](std::int64_t lane) {
      for (auto i = static_cast<std::int32_t>(lane); i < window.num_columns * window.ngram;
           i += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t column = i % window.num_columns;
        const std::int32_t token = i / window.num_columns;
        const std::int32_t entry = ngrams.entries[column];
        const std::int32_t other = ngrams.earlier[column];
        // Some may have been dropped again by those behind them.
        if (entry >= 0 && added - entry <= capacity &&
            (other < 0 || ngrams.entries[other] != entry)) {
          *pool_token(state, (window.pool_next + entry) % capacity, token) =
              *window_token(state, column, token);
        }
      }
    });
    window.pool_next = (window.pool_next + added) % capacity;
    window.pool_size = smaller(window.pool_size + added, capacity);
  }

  /// Goes through the columns in turn: which are added, and which were in the pool when it was
  /// their turn, where each drops the oldest.
  JFORGE_DEVICE static void enter(const DraftState& state, const NewNgrams& ngrams) {
    const LookaheadState& window = state.lookahead;
    std::int32_t added = 0;
    for (std::int32_t i = 0; i < window.num_columns; ++i) {
      const std::int32_t other = ngrams.earlier[i];
      const std::int32_t entry = other >= 0 ? ngrams.entries[other] : -1 - ngrams.ages[i];
      const bool kept = added - 1 - entry < window.pool_capacity;
      ngrams.entries[i] = kept ? entry : added++;
    }
    ngrams.entries[window.num_columns] = added;
  }

  /// Whether a column's n-gram, whose first token is the same, is the pool's.
  [[nodiscard]] JFORGE_DEVICE bool is_kept_at(const DraftState& state, std::int32_t column,
                                              std::int32_t age) const {
    const std::int32_t slot = slot_of(state, age);
    std::int32_t at = 1;
    while (at < state.lookahead.ngram &&
           *pool_token(state, slot, at) == *window_token(state, column, at)) {
      ++at;
    }
    return at == state.lookahead.ngram;
  }
  [[nodiscard]] JFORGE_DEVICE bool are_equal(const DraftState& state, const NewNgrams& ngrams,
                                             std::int32_t column, std::int32_t other) const {
    if (ngrams.first_tokens[column] != ngrams.first_tokens[other]) {
      return false;
    }
    std::int32_t at = 1;
    while (at < state.lookahead.ngram &&
           *window_token(state, column, at) == *window_token(state, other, at)) {
      ++at;
    }
    return at == state.lookahead.ngram;
  }
};

}  // namespace jforge
