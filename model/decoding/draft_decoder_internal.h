#pragma once

/// Common base of the methods that verify drafts. For this folder only.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/decoding/sequence_decoder.h"
#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge {

/// Limits up-front reservations, so that an absurd T or n fails at the slot capacity instead.
inline constexpr std::int64_t kUsualTokens = 4096;

/// a = 1 + leading j with draft[j + 1] == predictions[j] (METHOD.md §1). draft[0] must be right.
[[nodiscard]] inline std::size_t count_accepted(std::span<const TokenId> draft,
                                                std::span<const TokenId> predictions) {
  std::size_t accepted = 1;
  while (accepted < draft.size() && draft[accepted] == predictions[accepted - 1]) {
    ++accepted;
  }
  return accepted;
}

[[nodiscard]] inline RandomStream draft_stream(std::uint64_t seed, std::uint64_t round, PromptId id,
                                               std::int64_t block) {
  return RandomStream(seed, RandomPurpose::jacobi_draft, round, static_cast<std::uint64_t>(id),
                      static_cast<std::uint64_t>(block));
}

/// Extends `draft` with tokens drawn from `context` with replacement.
inline void fill_draft(std::vector<TokenId>& draft, std::size_t length,
                       std::span<const TokenId> context, RandomStream& stream) {
  while (draft.size() < length) {
    draft.push_back(context[static_cast<std::size_t>(stream.below(context.size()))]);
  }
}

/// Returns one period of the text's continuation: what followed the newest earlier occurrence of
/// the longest suffix of `known` (at most `match_length` tokens), from its last token on, without
/// the last token of `known`. Empty if that token did not occur before.
[[nodiscard]] inline std::span<const TokenId> find_period(std::span<const TokenId> known,
                                                          std::size_t match_length) {
  const std::span<const TokenId> before = known.first(known.size() - 1);
  for (std::size_t length = std::min(match_length, before.size()); length > 0; --length) {
    const auto found = std::ranges::find_end(before, known.last(length));
    if (!found.empty()) {
      return {found.end() - 1, known.end() - 1};
    }
  }
  return {};
}

/// Sets `draft` to `length` tokens of the repeated period; empty if `period` is.
inline void repeat_period(std::span<const TokenId> period, std::size_t length,
                          std::vector<TokenId>& draft) {
  draft.clear();
  for (std::size_t i = 0; !period.empty() && i < length; ++i) {
    draft.push_back(period[i % period.size()]);
  }
}

class DraftDecoder : public SequenceDecoder {
 public:
  [[nodiscard]] std::int64_t kv_length() const override { return kv_length_; }
  [[nodiscard]] bool finished() const override { return finished_; }
  [[nodiscard]] PromptId id() const override { return request_.id; }
  [[nodiscard]] const SamplingOptions& sampling() const override { return request_.sampling; }
  [[nodiscard]] std::int64_t max_positions() const override {
    return static_cast<std::int64_t>(request_.prompt.size()) + request_.max_new_tokens - 1;
  }
  [[nodiscard]] DecodeResult take_result() override {
    expect(finished_, "a result is taken before the end");
    return std::move(result_);
  }

 protected:
  explicit DraftDecoder(DecodeRequest request) : request_(std::move(request)) {
    request_.validate();
    const auto usual = std::min(request_.max_new_tokens, kUsualTokens);
    context_.reserve(request_.prompt.size() + static_cast<std::size_t>(usual + kUsualTokens));
    context_.assign(request_.prompt.begin(), request_.prompt.end());
    result_.accepted.reserve(static_cast<std::size_t>(usual));
    result_.id = request_.id;
  }

  static void expect_outcomes(std::span<const BranchOutcome> outcomes,
                              std::span<const DraftBranch> branches) {
    expect(outcomes.size() == branches.size(), "an outcome for every branch is wanted");
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      expect(outcomes[i].predictions.size() == branches[i].tokens.size() - branches[i].first_output,
             "a prediction for every wanted row is wanted");
    }
  }

  [[nodiscard]] DraftBranch prompt_branch() const {
    return {.tokens = context_, .first_output = context_.size() - 1};
  }
  /// Returns the answer's first token.
  [[nodiscard]] TokenId finish_prefill(std::span<const BranchOutcome> outcomes) {
    expect(outcomes.size() == 1 && outcomes[0].predictions.size() == 1,
           "a prefill wants one prediction");
    prefilling_ = false;
    kv_length_ = static_cast<std::int64_t>(context_.size());
    result_.prefill_forwards = 1;
    return outcomes[0].predictions[0];
  }
  /// All known tokens but the newest, which begins the draft.
  [[nodiscard]] std::size_t answer_length() const {
    return context_.size() - request_.prompt.size();
  }
  /// Draft rows that can still add tokens before T.
  [[nodiscard]] std::size_t tokens_left() const {
    return static_cast<std::size_t>(request_.max_new_tokens) - (answer_length() + 1);
  }

  void commit(std::span<const TokenId> tokens) {
    context_.insert(context_.end(), tokens.begin(), tokens.end());
    kv_length_ += static_cast<std::int64_t>(tokens.size());
    result_.accepted.push_back(static_cast<std::int32_t>(tokens.size()));
  }
  /// Commits the accepted tokens. Finishes and returns true at the first eos or at T.
  bool commit_and_test_end(std::span<const TokenId> draft, std::size_t accepted,
                           TokenId correction) {
    const auto known = draft.first(accepted);
    const auto eos = std::find_if(known.begin() + 1, known.end(),
                                  [this](TokenId token) { return request_.is_eos(token); });
    const TokenId newest = eos == known.end() ? correction : *eos;
    commit(known.first(static_cast<std::size_t>(eos - known.begin())));
    return test_end(newest);
  }
  /// Finishes if `newest`, which follows the committed tokens, ends the answer.
  bool test_end(TokenId newest) {
    const bool eos = request_.is_eos(newest);
    if (!eos && std::cmp_less(answer_length() + 1, request_.max_new_tokens)) {
      return false;
    }
    context_.push_back(newest);
    finish(eos ? StopReason::eos : StopReason::length);
    return true;
  }
  void finish(StopReason stop) {
    result_.stop = stop;
    result_.tokens.assign(context_.begin() + static_cast<std::ptrdiff_t>(request_.prompt.size()),
                          context_.end());
    finished_ = true;
  }

  [[nodiscard]] RandomStream draft_stream(std::uint64_t seed, std::uint64_t round,
                                          std::int64_t block) const {
    return jforge::draft_stream(seed, round, request_.id, block);
  }
  void fill(std::vector<TokenId>& draft, std::size_t length, RandomStream& stream) const {
    fill_draft(draft, length, context_, stream);
  }

  DecodeRequest request_;
  DecodeResult result_;
  std::vector<TokenId> context_;  ///< Prompt and committed tokens.
  std::int64_t kv_length_ = 0;
  bool prefilling_ = true;
  bool finished_ = false;
};

}  // namespace jforge
