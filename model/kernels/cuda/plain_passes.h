#pragma once

/// Decoding by one draft on the device (METHOD.md §1, §6.1 – §6.3): token by token, running and
/// shrinking windows, and what followed the last tokens where they stood before.

#include "model/kernels/cuda/device_random.h"
#include "model/kernels/cuda/draft_state.h"

namespace jforge {

/// What a pass accepts and the draft that follows: the decoders of model/decoding, in their words.
/// Block index = sequence.
struct AdvanceDrafts : DraftAdvance {
  [[nodiscard]] std::int64_t shared_bytes() const { return shared_size<std::uint64_t>(layout.own); }

  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t sequence) const {
    auto* const drawn = group.template shared<std::uint64_t>(layout.own);
    pass(group, sequence, DraftFamily::plain,
         [&](DraftState& state) { advance(group, state, predictions_of(sequence), drawn); });
  }

  template <class Group>
  JFORGE_DEVICE void advance(Group& group, DraftState& state, const std::int32_t* predicted,
                             std::uint64_t* drawn) const {
    const std::int32_t length = state.draft;
    const std::int32_t accepted = count_accepted(group, state, predicted);
    if (state.method == DraftMethod::complete_blocks) {
      const bool last = accepted == length && last_block(group, state);
      state.context += last ? accepted - 1 : accepted;
      if (last) {
        state.draft = 0;
        return;
      }
    } else if (commit_and_test_end(group, state, accepted, predicted[accepted - 1])) {
      state.draft = 0;
      return;
    }
    if (state.method == DraftMethod::lookup) {
      look_up(group, state, predicted[accepted - 1]);
      return;
    }
    redraft(group, state, accepted, length, predicted, drawn);
    if (state.method == DraftMethod::complete_blocks && state.draft == 1 &&
        last_block(group, state)) {
      state.draft = 0;
    }
  }

  /// Whether the block is the answer's last, by its number or by what it holds.
  template <class Group>
  [[nodiscard]] JFORGE_DEVICE bool last_block(Group& group, const DraftState& state) const {
    const std::int32_t end = state.context + state.draft;
    return state.block + 1 == state.num_blocks ||
           first(group, state.block_begin, end,
                 [&](std::int32_t i) { return is_eos(state, ids[state.ids_begin + i]); }) < end;
  }

  /// What was predicted behind the accepted tokens, then fillers, or a new block.
  template <class Group>
  JFORGE_DEVICE void redraft(Group& group, DraftState& state, std::int32_t accepted,
                             std::int32_t length, const std::int32_t* predicted,
                             std::uint64_t* drawn) const {
    const bool running = state.method == DraftMethod::running;
    const std::int32_t most = state.method == DraftMethod::complete_blocks
                                  ? state.block_size
                                  : smaller(state.block_size, tokens_left(state));
    const std::int32_t kept =
        running ? smaller(length - accepted + 1, most) : larger(length - accepted, 1);
    std::int32_t* const draft = draft_of(state);
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < kept; i += group.lanes()) {
        draft[i] = predicted[accepted - 1 + i];
      }
    });
    state.draft = kept;
    if (!running && accepted < length) {
      return;
    }
    if (!running) {
      ++state.block;
      state.block_begin = state.context;
    }
    state.draft = most;
    const DeviceStream stream(state.seed, RandomPurpose::jacobi_draft, state.round, state.item,
                              running ? 0 : static_cast<std::uint64_t>(state.block));
    const std::uint64_t made = draw_below(
        group, stream, running ? state.draws : 0, static_cast<std::uint64_t>(state.context),
        state.draft - kept, drawn, [&](std::int32_t i, std::uint64_t from) {
          draft[kept + i] = ids[state.ids_begin + static_cast<std::int64_t>(from)];
        });
    state.draws += running ? made : 0;
  }

  /// The newest token, then what followed the newest earlier occurrence of the last tokens, of as
  /// many as occur; where that reaches the newest token, it repeats.
  template <class Group>
  JFORGE_DEVICE void look_up(Group& group, DraftState& state, std::int32_t newest) const {
    std::int32_t* const all = ids + state.ids_begin;
    const std::int32_t last = state.context;
    write(group, all + last, newest);
    const std::int32_t end = find_last(group, state);
    const std::int32_t wanted = smaller(state.block_size, tokens_left(state));
    const std::int32_t more = end >= 0 ? wanted - 1 : 0;
    group.each([&](std::int64_t lane) {
      for (auto i = static_cast<std::int32_t>(lane); i < more;
           i += static_cast<std::int32_t>(group.lanes())) {
        all[last + 1 + i] = all[end + 1 + i % (last - end)];
      }
    });
    state.draft = 1 + more;
  }
};

}  // namespace jforge
