#pragma once

/// Multi-block decoding with rejection recycling on the device (METHOD.md §6.3): what
/// model/decoding/multi_block_decoder.cpp does between two forwards, in its words and order. A
/// block of lanes works on one sequence. Sequences of the pool are searched and compared by a lane
/// each, tokens of one draft by all.
///
/// What it costs beside other drafts (draft_passes.md): some 30 phases and reductions over lanes,
/// and up to 4 · C · (1 + n · K) bytes of pool (C sequences) that lanes walk through: 33 KB at the
/// paper's n = 64, K = 2, C = 64, 20 µs in all; 4 · length bytes for what is copied from the text.
/// Where candidates carry the pseudo blocks, each is written, compared and reported with them. The
/// host's way costs a copy each way, a wait, its decoders and its plan, during which the device
/// stands still. Nothing of it has been measured on a device.

#include "model/kernels/cuda/device_random.h"
#include "model/kernels/cuda/draft_state.h"

namespace jforge {

/// What both kernels below have: the numbers of one sequence, and the drafts that follow from them.
struct BlockDrafts : DraftAdvance {
  template <class Group>
  [[nodiscard]] JFORGE_DEVICE PseudoState pseudo(Group& group, const DraftState& state,
                                                 std::int64_t i) const {
    return read(group, pseudo_state(state, i));
  }
  [[nodiscard]] JFORGE_DEVICE PseudoState* pseudo_state(const DraftState& state,
                                                        std::int64_t i) const {
    return reinterpret_cast<PseudoState*>(numbers_of(state) + layout_of(state).pseudo_at(i));
  }
  [[nodiscard]] JFORGE_DEVICE std::int32_t* pseudo_tokens(const DraftState& state,
                                                          std::int64_t i) const {
    return numbers_of(state) + layout_of(state).pseudo_tokens_at(i);
  }

  /// The i-th newest sequence of the pool: its length, then its tokens.
  [[nodiscard]] JFORGE_DEVICE std::int32_t* newest(const DraftState& state, std::int32_t i) const {
    const std::int32_t slots = state.blocks.pool_capacity + 1;
    const std::int32_t slot = (state.blocks.pool_next + slots - 1 - i) % slots;
    return numbers_of(state) + layout_of(state).pool_at(slot);
  }
  /// A part of a sequence of the pool, or of a text that repeats.
  struct Found {
    const std::int32_t* tokens = nullptr;
    std::int32_t size = 0;
    std::int32_t period = 0;  ///< Of `tokens`, at most the size.

    [[nodiscard]] JFORGE_DEVICE std::int32_t operator[](std::int32_t i) const {
      return tokens[i < period ? i : i % period];
    }
  };
  /// The i-th newest sequence from its first `token` on.
  [[nodiscard]] JFORGE_DEVICE Found from(const DraftState& state, std::int32_t i,
                                         std::int32_t token) const {
    const std::int32_t* const entry = newest(state, i);
    const std::int32_t length = entry[0];
    std::int32_t at = 0;
    while (at < length && entry[1 + at] != token) {
      ++at;
    }
    return {entry + 1 + at, length - at, length - at};
  }

  /// The pseudo blocks that are forwarded, behind the draft.
  template <class Group>
  JFORGE_DEVICE void append_pseudo_blocks(Group& group, DraftState& state) const {
    std::int32_t forwarded = state.blocks.num_pseudo;
    std::int32_t rows = 0;
    for (; forwarded > 0; --forwarded) {
      const PseudoState block = pseudo(group, state, forwarded - 1);
      if (block.accepted < block.length) {
        rows = (forwarded - 1) * state.blocks.width + block.length;
        break;
      }
    }
    state.behind = rows;
    std::int32_t* const behind = draft_of(state) + state.draft;
    const std::int32_t* const tokens = pseudo_tokens(state, 0);
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < rows; i += group.lanes()) {
        behind[i] = tokens[i];
      }
    });
  }

  /// Alternatives to the draft: what followed the last tokens where they stood before, repeated
  /// where that reaches the newest token, then NgramPool's newest sequences that hold its first
  /// token. Where every row has the pseudo blocks, they follow the draft already.
  template <class Group>
  JFORGE_DEVICE void find_candidates(Group& group, DraftState& state) const {
    AlternativesState& found = state.alternatives;
    const std::int32_t* const draft = draft_of(state);
    found.count = 0;
    std::int32_t row = found.branch_row;
    if (state.match_length > 0 && found.most > 0) {
      const std::int32_t at = find_last(group, state);
      if (at >= 0) {
        const Found copied{ids + state.ids_begin + at, state.draft, state.context - at};
        add_candidate(group, state, fork_of(state, copied, draft), row);
      }
    }
    std::int32_t next = 0;
    while (found.count < found.most) {
      next = first(group, next, state.blocks.pool_size, [&](std::int32_t i) {
        const Fork fork = fork_of(state, from(state, i, draft[0]), draft);
        return fork.at < fork.found.size;
      });
      if (next >= state.blocks.pool_size) {
        return;
      }
      typename Group::template PerLane<Fork> forks(group);
      group.each([&](std::int64_t lane) {
        forks[lane] = fork_of(state, from(state, next, draft[0]), draft);
      });
      add_candidate(group, state, forks[0], row);
      ++next;
    }
  }

 private:
  /// Where a known sequence, cut to the draft's length, leaves the draft.
  struct Fork {
    Found found;
    std::int32_t at = 0;
  };

  [[nodiscard]] JFORGE_DEVICE static BlocksLayout layout_of(const DraftState& state) {
    return BlocksLayout(state);
  }
  /// `found` begins as the draft does, where it holds anything.
  [[nodiscard]] JFORGE_DEVICE static Fork fork_of(const DraftState& state, const Found& found,
                                                  const std::int32_t* draft) {
    Fork fork{found};
    fork.found.size = smaller(fork.found.size, state.draft);
    while (fork.at < fork.found.size && fork.found[fork.at] == draft[fork.at]) {
      ++fork.at;
    }
    return fork;
  }
  /// One more alternative, unless it is the plain draft itself or there is one like it. `row`: of
  /// the slot, where it goes; then the next one's.
  template <class Group>
  JFORGE_DEVICE void add_candidate(Group& group, DraftState& state, const Fork& fork,
                                   std::int32_t& row) const {
    if (fork.at >= fork.found.size) {
      return;
    }
    AlternativesState& candidates = state.alternatives;
    const std::int32_t* const draft = draft_of(state);
    const std::int32_t end = state.blocks.on_every_row != 0 ? state.own_rows() : state.draft;
    const std::int32_t length = end - fork.at;
    std::int32_t* const tokens = alternative_tokens(state, candidates.count);
    AlternativeState* const place = alternative_state(state, candidates.count);
    group.each([&](std::int64_t lane) {
      for (auto i = static_cast<std::int32_t>(lane); i < length;
           i += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t at = fork.at + i;
        tokens[i] = at < fork.found.size ? fork.found[at] : draft[at];
      }
      if (lane == 0) {
        *place = {fork.at, length, row};
      }
    });
    if (!is_taken(group, state, fork.at, length)) {
      ++candidates.count;
      row += length;
    }
  }
  /// Whether the candidate behind the last one is one of those.
  template <class Group>
  [[nodiscard]] JFORGE_DEVICE bool is_taken(Group& group, const DraftState& state,
                                            std::int32_t fork, std::int32_t length) const {
    const std::int32_t* const tokens = alternative_tokens(state, state.alternatives.count);
    for (std::int32_t i = 0; i < state.alternatives.count; ++i) {
      const std::int32_t* const other = alternative_tokens(state, i);
      if (read(group, alternative_state(state, i)).fork == fork &&
          first(group, 0, length, [&](std::int32_t at) { return tokens[at] != other[at]; }) ==
              length) {
        return true;
      }
    }
    return false;
  }
};

/// The first drafts of a sequence, of what begin() brought. Block index = sequence.
struct BeginBlocks : BlockDrafts {
  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t sequence) const {
    DraftState state = read(group, states + sequence);
    if (family_of(state.method) != DraftFamily::multi_block) {
      return;
    }
    bring_numbers(group, state);
    append_pseudo_blocks(group, state);
    find_candidates(group, state);
    write(group, states + sequence, state);
  }
};

/// What a pass accepts and the drafts that follow. Block index = sequence.
struct AdvanceBlocks : BlockDrafts {
  [[nodiscard]] std::int64_t shared_bytes() const { return shared_size<std::uint64_t>(layout.own); }

  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t sequence) const {
    auto* const drawn = group.template shared<std::uint64_t>(layout.own);
    pass(group, sequence, DraftFamily::multi_block,
         [&](DraftState& state) { advance(group, state, predictions_of(sequence), drawn); });
  }

 private:
  /// The draft that is right for longest: the plain one before `fork`, then a candidate's tokens.
  struct Winner {
    std::int32_t accepted = 0;
    std::int32_t fork = 0;  ///< The draft's length: the plain one itself.
    std::int32_t row = 0;   ///< Of the slot: the candidate's first.
    const std::int32_t* tokens = nullptr;
    const std::int32_t* plain = nullptr;  ///< Predictions behind the plain draft's tokens …
    const std::int32_t* own = nullptr;    ///< … and behind those from `fork` on.

    [[nodiscard]] JFORGE_DEVICE std::int32_t predicted(std::int32_t i) const {
      return i < fork ? plain[i] : own[i - fork];
    }
  };

  template <class Group>
  JFORGE_DEVICE void advance(Group& group, DraftState& state, const std::int32_t* plain,
                             std::uint64_t* drawn) const {
    AlternativesState& alternatives_of = state.alternatives;
    const std::int32_t length = state.draft;
    const std::int32_t known = state.context;
    const Winner winner = find_winner(group, state, plain);
    const bool rejects = winner.accepted < length;
    if (rejects) {
      remember_forwarded(group, state);
    }
    adopt(group, state, winner);
    if (rejects) {
      push(group, state, length - winner.accepted,
           [&](std::int32_t i) { return winner.predicted(winner.accepted + i); });
    }
    const bool ended =
        commit_and_test_end(group, state, winner.accepted, winner.predicted(winner.accepted - 1));
    alternatives_of.kept_from = winner.row;
    alternatives_of.kept_to = known + winner.fork;
    alternatives_of.kept_rows =
        winner.fork < length && !ended ? larger(state.context - alternatives_of.kept_to, 0) : 0;
    if (ended) {
      state.draft = 0;
      return;
    }
    refine_pseudo_blocks(group, state,
                         state.blocks.on_every_row != 0 ? winner.own + (length - winner.fork)
                                                        : winner.plain + length);
    const std::int32_t continuation = winner.predicted(length - 1);
    if (rejects) {
      std::int32_t* const draft = draft_of(state);
      state.draft = length - winner.accepted;
      group.each([&](std::int64_t lane) {
        for (auto i = static_cast<std::int32_t>(lane); i < state.draft;
             i += static_cast<std::int32_t>(group.lanes())) {
          draft[i] = winner.predicted(winner.accepted - 1 + i);
        }
      });
    } else {
      promote(group, state, continuation, drawn);
    }
    spawn(group, state, continuation, drawn);
    append_pseudo_blocks(group, state);
    find_candidates(group, state);
  }

  template <class Group>
  [[nodiscard]] JFORGE_DEVICE Winner find_winner(Group& group, const DraftState& state,
                                                 const std::int32_t* plain) const {
    const std::int32_t length = state.draft;
    const std::int32_t accepted = count_accepted(group, state, plain);
    Winner winner{.accepted = accepted, .fork = length, .plain = plain, .own = plain + length};
    for (std::int32_t i = 0; i < state.alternatives.count; ++i) {
      const AlternativeState candidate = read(group, alternative_state(state, i));
      if (candidate.fork != accepted) {
        continue;  // It goes on where the plain draft fails, or it is no longer right.
      }
      const std::int32_t* const tokens = alternative_tokens(state, i);
      const std::int32_t* const own = plain + layout.own + i * layout.alternative_rows;
      const std::int32_t right = first(group, 0, length - accepted, [&](std::int32_t at) {
        return tokens[at] != (at == 0 ? plain[accepted - 1] : own[at - 1]);
      });
      if (accepted + right > winner.accepted) {
        winner = {.accepted = accepted + right,
                  .fork = accepted,
                  .row = candidate.row,
                  .tokens = tokens,
                  .plain = plain,
                  .own = own};
      }
    }
    return winner;
  }

  /// What all blocks held in this forward.
  template <class Group>
  JFORGE_DEVICE void remember_forwarded(Group& group, DraftState& state) const {
    const std::int32_t own = state.context + state.draft - state.block_begin;
    std::int32_t pseudo_length = 0;
    if (state.blocks.num_pseudo > 0) {
      const std::int32_t last = state.blocks.num_pseudo - 1;
      pseudo_length = last * state.blocks.width + pseudo(group, state, last).length;
    }
    const std::int32_t* const text = ids + state.ids_begin + state.block_begin;
    const std::int32_t* const behind = pseudo_tokens(state, 0);
    push(group, state, own + pseudo_length,
         [&](std::int32_t i) { return i < own ? text[i] : behind[i - own]; });
  }

  /// NgramPool::push() of the tokens token(0) … token(count − 1).
  template <class Group, class Token>
  JFORGE_DEVICE void push(Group& group, DraftState& state, std::int32_t count,
                          const Token& token) const {
    BlocksState& blocks_of = state.blocks;
    if (blocks_of.pool_capacity == 0 || count < 2) {
      return;
    }
    const std::int32_t known = first(group, 0, blocks_of.pool_size, [&](std::int32_t i) {
      const std::int32_t* const entry = newest(state, i);
      bool same = entry[0] == count;
      for (std::int32_t at = 0; same && at < count; ++at) {
        same = entry[1 + at] == token(at);
      }
      return same;
    });
    if (known < blocks_of.pool_size) {
      return;
    }
    blocks_of.pool_next = (blocks_of.pool_next + 1) % (blocks_of.pool_capacity + 1);
    blocks_of.pool_size = smaller(blocks_of.pool_size + 1, blocks_of.pool_capacity);
    std::int32_t* const entry = newest(state, 0);
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        entry[0] = count;
      }
      for (auto i = static_cast<std::int32_t>(lane); i < count;
           i += static_cast<std::int32_t>(group.lanes())) {
        entry[1 + i] = token(i);
      }
    });
  }

  /// Makes the winner's draft the real-active block's.
  template <class Group>
  JFORGE_DEVICE void adopt(Group& group, const DraftState& state, const Winner& winner) const {
    std::int32_t* const draft = draft_of(state);
    group.each([&](std::int64_t lane) {
      for (auto i = winner.fork + static_cast<std::int32_t>(lane); i < state.draft;
           i += static_cast<std::int32_t>(group.lanes())) {
        draft[i] = winner.tokens[i - winner.fork];
      }
    });
  }

  /// `predicted`: behind the pseudo blocks' tokens, as they were forwarded.
  template <class Group>
  JFORGE_DEVICE void refine_pseudo_blocks(Group& group, const DraftState& state,
                                          const std::int32_t* predicted) const {
    for (std::int32_t i = 0; i * state.blocks.width < state.behind; ++i) {
      PseudoState block = pseudo(group, state, i);
      const std::int32_t* const here = predicted + i * state.blocks.width;
      if (block.accepted == block.length) {
        continue;  // converged; forwarded for those behind it
      }
      std::int32_t* const tokens = pseudo_tokens(state, i);
      block.accepted = 1 + first(group, block.accepted, block.length - 1,
                                 [&](std::int32_t at) { return tokens[at + 1] != here[at]; });
      block.continuation = here[block.length - 1];
      group.each([&](std::int64_t lane) {
        for (auto at = block.accepted + static_cast<std::int32_t>(lane); at < block.length;
             at += static_cast<std::int32_t>(group.lanes())) {
          tokens[at] = here[at - 1];
        }
        if (lane == 0) {
          *pseudo_state(state, i) = block;
        }
      });
    }
  }

  /// Rows of a block: n, or what is left of T; 0 behind the last one.
  [[nodiscard]] JFORGE_DEVICE static std::int32_t block_length(const DraftState& state,
                                                               std::int32_t block) {
    const std::int64_t left =
        std::int64_t{state.max_new_tokens} - 1 - std::int64_t{block} * state.block_size;
    return left < 0                  ? 0
           : left < state.block_size ? static_cast<std::int32_t>(left)
                                     : state.block_size;
  }

  /// Tokens `begin` … `end` − 1 of a draft, drawn from all ids so far.
  template <class Group>
  JFORGE_DEVICE void fill(Group& group, const DraftState& state, std::int32_t block,
                          std::int32_t* tokens, std::int32_t begin, std::int32_t end,
                          std::uint64_t* drawn) const {
    const DeviceStream stream(state.seed, RandomPurpose::jacobi_draft, state.round, state.item,
                              static_cast<std::uint64_t>(block));
    const std::int32_t* const known = ids + state.ids_begin;
    draw_below(group, stream, 0, static_cast<std::uint64_t>(state.context), end - begin, drawn,
               [&](std::int32_t i, std::uint64_t which) { tokens[begin + i] = known[which]; });
  }

  /// The next pseudo block becomes real-active, or a fresh one begins.
  template <class Group>
  JFORGE_DEVICE void promote(Group& group, DraftState& state, std::int32_t newest_token,
                             std::uint64_t* drawn) const {
    ++state.block;
    state.block_begin = state.context;
    std::int32_t* const draft = draft_of(state);
    if (state.blocks.num_pseudo == 0) {
      state.draft = block_length(state, state.block);
      write(group, draft, newest_token);
      fill(group, state, state.block, draft, 1, state.draft, drawn);
      return;
    }
    state.draft = pseudo(group, state, 0).length;
    const std::int32_t* const tokens = pseudo_tokens(state, 0);
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < state.draft; i += group.lanes()) {
        draft[i] = i == 0 ? newest_token : tokens[i];
      }
    });
    --state.blocks.num_pseudo;
    for (std::int32_t i = 0; i < state.blocks.num_pseudo; ++i) {
      // Block by block: a lane reads what none writes meanwhile.
      std::int32_t* const to = pseudo_tokens(state, i);
      group.each([&](std::int64_t lane) {
        for (std::int64_t at = lane; at < state.blocks.width; at += group.lanes()) {
          to[at] = to[at + state.blocks.width];
        }
        if (lane == 0) {
          *pseudo_state(state, i) = *pseudo_state(state, i + 1);
        }
      });
    }
  }

  /// One more pseudo block when the newest has come far enough.
  template <class Group>
  JFORGE_DEVICE void spawn(Group& group, DraftState& state, std::int32_t continuation,
                           std::uint64_t* drawn) const {
    BlocksState& blocks_of = state.blocks;
    if (blocks_of.num_pseudo + 1 == blocks_of.blocks) {
      return;
    }
    std::int32_t accepted = state.context - state.block_begin;
    std::int32_t newest_token = continuation;
    if (blocks_of.num_pseudo > 0) {
      const PseudoState last = pseudo(group, state, blocks_of.num_pseudo - 1);
      accepted = last.accepted;
      newest_token = last.continuation;
    }
    const std::int32_t block = state.block + 1 + blocks_of.num_pseudo;
    const std::int32_t length = block_length(state, block);
    if (accepted < blocks_of.threshold || length == 0) {
      return;
    }
    const std::int32_t which = blocks_of.num_pseudo++;
    std::int32_t* const tokens = pseudo_tokens(state, which);
    std::int32_t made = 0;
    if (blocks_of.clone != 0) {
      made = smaller(length, state.draft);
      const std::int32_t* const draft = draft_of(state);
      group.each([&](std::int64_t lane) {
        for (std::int64_t i = lane; i < made; i += group.lanes()) {
          tokens[i] = draft[i];
        }
      });
    } else {
      made = recycle_into(group, state, newest_token, tokens, length);
    }
    write(group, pseudo_state(state, which), PseudoState{length, 0, -1});
    fill(group, state, block, tokens, made, length, drawn);
  }

  /// A draft's first token, and what followed it in the newest sequence of the pool that holds it
  /// before its end; returns how many they are.
  template <class Group>
  [[nodiscard]] JFORGE_DEVICE std::int32_t recycle_into(Group& group, const DraftState& state,
                                                        std::int32_t token, std::int32_t* tokens,
                                                        std::int32_t length) const {
    const std::int32_t size = state.blocks.pool_size;
    const std::int32_t which =
        first(group, 0, size, [&](std::int32_t i) { return from(state, i, token).size > 1; });
    Found found;
    if (which < size) {
      typename Group::template PerLane<Found> read_found(group);
      group.each([&](std::int64_t lane) { read_found[lane] = from(state, which, token); });
      found = read_found[0];
    }
    const std::int32_t made = larger(smaller(found.size, length), 1);
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < made; i += group.lanes()) {
        tokens[i] = i == 0 ? token : found.tokens[i];
      }
    });
    return made;
  }
};

}  // namespace jforge
