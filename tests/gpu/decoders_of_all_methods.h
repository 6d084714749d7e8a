#pragma once

/// Decoders of every method; settings and requests vary with an index.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "model/decoding/drafted_decoder.h"
#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/multi_block_decoder.h"
#include "model/decoding/prompt_lookup_decoder.h"
#include "model/decoding/sequence_decoder.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {

inline MultiBlockOptions multi_block_options(std::uint64_t which) {
  const auto one_of = [&](std::uint64_t divisor, std::uint64_t count) {
    return static_cast<std::int32_t>(which / divisor % count);
  };
  return {.block_size = 1 + static_cast<std::int32_t>(which * 5 % 13),
          .blocks = 1 + one_of(1, 4),
          .spawn_ratio = which % 3 == 0 ? 0.3 : 0.85,
          .verification_size = 1 + one_of(2, 5),
          .ngram_pool = which % 7 == 0 ? 0 : 1 + 3 * one_of(3, 4),
          .match_length = one_of(1, 3),
          .spawn = which % 5 == 0 ? SpawnMode::clone : SpawnMode::continuation,
          .pseudo_on_every_row = which % 8 > 4,
          .seed = 9,
          .round = 1};
}

inline constexpr std::uint64_t kMethods = 7;

inline std::unique_ptr<SequenceDecoder> make_decoder(std::uint64_t which, DecodeRequest request) {
  const auto n = static_cast<std::int32_t>(1 + which * 5 % 13);
  switch (which % kMethods) {
    case 0:
      return make_greedy_decoder(std::move(request));
    case 1:
      return make_jacobi_decoder(
          std::move(request),
          {.block_size = n, .window = DraftWindow::running, .seed = 1ULL << 40});
    case 2:
      return make_jacobi_decoder(std::move(request), {.block_size = n, .seed = 5, .round = 3});
    case 3:
      return make_jacobi_decoder(
          std::move(request),
          {.block_size = n, .seed = 6, .complete_blocks = true, .record_states = true});
    case 4:
      return make_multi_block_decoder(std::move(request), multi_block_options(which / kMethods));
    case 5:
      return make_drafted_decoder(
          std::move(request),
          {.block_size = n, .match_length = static_cast<std::int32_t>(which % 3), .seed = 8});
    default:
      return make_prompt_lookup_decoder(
          std::move(request),
          {.block_size = n, .match_length = static_cast<std::int32_t>(1 + which % 4)});
  }
}

inline DecodeRequest random_request(std::uint64_t which, RandomStream& stream,
                                    std::int64_t vocabulary) {
  return {
      .id = static_cast<PromptId>((which << 33) + which),
      .prompt = random_tokens(stream, 1 + static_cast<std::int64_t>(stream.below(70)), vocabulary),
      .max_new_tokens = 1 + static_cast<std::int64_t>(stream.below(50)),
      .eos_ids = which % 3 == 0 ? std::vector<TokenId>{}
                                : std::vector<TokenId>{0, static_cast<TokenId>(vocabulary - 1)}};
}

}  // namespace jforge
