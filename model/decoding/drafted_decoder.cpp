#include "model/decoding/drafted_decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/decoding/draft_decoder_internal.h"
#include "model/decoding/method_entry_internal.h"

namespace jforge {

void DraftedOptions::validate() const {
  if (block_size < 1 || match_length < 0) {
    throw ConfigError(
        fmt::format("decoding with a drafter: block_size {} must be at least 1 and match_length {} "
                    "at least 0",
                    block_size, match_length));
  }
}

namespace {

class DraftedDecoder final : public DraftDecoder {
 public:
  DraftedDecoder(DecodeRequest request, const DraftedOptions& options)
      : DraftDecoder(std::move(request)),
        options_((options.validate(), options)),
        stream_(draft_stream(options.seed, 0, 0)) {
    branches_.reserve(3);
    branches_.push_back(prompt_branch());
  }

  [[nodiscard]] std::span<const DraftBranch> pending() const override { return branches_; }
  [[nodiscard]] std::int64_t max_branch_rows() const override {
    const std::int64_t row = std::min<std::int64_t>(options_.block_size, request_.max_new_tokens);
    return row + (options_.match_length > 0 ? row - 1 : 0);
  }

  Commit advance(std::span<const BranchOutcome> outcomes) override {
    expect(!finished_, "a decoder with a drafter advanced after its end");
    expect_outcomes(outcomes, branches_);
    Commit commit;
    if (prefilling_) {
      const TokenId first = finish_prefill(outcomes);
      draft_.assign(1, first);
      (void)test_end(first);
    } else {
      commit = verify(outcomes);
    }
    if (!finished_ && !uses_proposals_) {
      complete();
    }
    return commit;
  }

  void use_proposals() override { uses_proposals_ = true; }
  [[nodiscard]] std::optional<WantedProposals> wanted_proposals() const override {
    if (!uses_proposals_) {
      return std::nullopt;
    }
    return draft_.empty() ? WantedProposals{} : WantedProposals{draft_[0], wanted()};
  }
  void take_proposals(std::span<const TokenId> proposals) override {
    draft_.insert(draft_.end(), proposals.begin(), proposals.end());
    complete();
  }

 private:
  [[nodiscard]] std::int64_t wanted() const {
    return static_cast<std::int64_t>(draft_length()) - 1;
  }
  void complete() {
    fill(draft_, draft_length(), stream_);
    assemble();
  }
  [[nodiscard]] std::size_t draft_length() const {
    return std::min(static_cast<std::size_t>(options_.block_size), tokens_left());
  }

  Commit verify(std::span<const BranchOutcome> outcomes) {
    const std::span<const TokenId> own = outcomes[0].predictions;
    predictions_.assign(own.begin(), own.end());
    std::size_t accepted = count_accepted(draft_, own);
    Commit commit;
    std::span<const TokenId> proposed;  // An adapter's, after draft_[1], draft_[2], …
    if (branches_.back().drafts) {
      proposed = outcomes.back().predictions;
    }
    // A looked-up alternative is longer only if it forks where the draft fails.
    std::size_t shared = 0;
    if (!looked_up_.empty() && fork_ == accepted && looked_up_[0] == own[accepted - 1]) {
      const std::span<const TokenId> of_lookup = outcomes[1].predictions;
      accepted += count_accepted(looked_up_, of_lookup);
      commit.branch = 1;
      shared = fork_;
      draft_.resize(fork_);
      draft_.insert(draft_.end(), looked_up_.begin(), looked_up_.end());
      predictions_.resize(fork_);
      predictions_.insert(predictions_.end(), of_lookup.begin(), of_lookup.end());
      if (!uses_proposals_) {
        proposed = std::span(predictions_).subspan(1);
      }
    }
    ++result_.forwards;
    const std::int64_t known = kv_length_;
    const TokenId newest = predictions_[accepted - 1];
    (void)commit_and_test_end(draft_, accepted, newest);
    commit.rows = std::max<std::int64_t>(kv_length_ - known - static_cast<std::int64_t>(shared), 0);
    draft_.assign(1, newest);
    for (std::size_t i = accepted; i <= proposed.size() && draft_.size() < draft_limit(); ++i) {
      draft_.push_back(proposed[i - 1]);
    }
    return commit;
  }

  [[nodiscard]] std::size_t draft_limit() const { return finished_ ? 1 : draft_length(); }

  void assemble() {
    branches_.assign(1, {.first_position = kv_length_, .tokens = draft_});
    looked_up_.clear();
    if (options_.match_length > 0) {
      look_up();
    }
    if (draft_.size() > 1 && !uses_proposals_) {
      branches_.push_back({.first_position = kv_length_,
                           .tokens = draft_,
                           .first_output = 1,
                           .alternative = true,
                           .drafts = true});
    }
  }

  /// Drafts what followed the last tokens earlier in the text, from where it differs.
  void look_up() {
    context_.push_back(draft_[0]);
    repeat_period(find_period(context_, static_cast<std::size_t>(options_.match_length)),
                  draft_.size(), looked_up_);
    context_.pop_back();
    fork_ = static_cast<std::size_t>(std::ranges::mismatch(looked_up_, draft_).in1 -
                                     looked_up_.begin());
    looked_up_.erase(looked_up_.begin(), looked_up_.begin() + static_cast<std::ptrdiff_t>(fork_));
    if (!looked_up_.empty()) {
      branches_.push_back({.first_position = kv_length_ + static_cast<std::int64_t>(fork_),
                           .tokens = looked_up_,
                           .alternative = true});
    }
  }

  DraftedOptions options_;
  RandomStream stream_;
  std::vector<TokenId> draft_;
  std::vector<TokenId> predictions_;  ///< After each token of the draft that was accepted from.
  std::vector<TokenId> looked_up_;    ///< The draft up to fork_, then these, is the alternative.
  std::size_t fork_ = 0;
  bool uses_proposals_ = false;  ///< A head's; else an adapter's rows propose.
  std::vector<DraftBranch> branches_;
};

template <bool looks_up>
DecodingMethod drafted_method(const DecodingSettings& settings, std::uint64_t seed) {
  const DraftedOptions options{
      .block_size = whole_number(settings, "block_size"),
      .match_length = looks_up ? whole_number(settings, "match_length") : 0,
      .seed = seed};
  nlohmann::ordered_json own{
      {"block_size", options.block_size}, {"window", "running"}, {"seed", seed}};
  if (looks_up) {
    own["match_length"] = options.match_length;
  }
  DecodingMethod method = method_of(options, make_drafted_decoder, std::move(own));
  method.needs_drafter = true;
  return method;
}

}  // namespace

std::unique_ptr<SequenceDecoder> make_drafted_decoder(DecodeRequest request,
                                                      const DraftedOptions& options) {
  return std::make_unique<DraftedDecoder>(std::move(request), options);
}

std::vector<MethodEntry> drafted_methods() {
  return {{"draft", {block_size_key()}, drafted_method<false>},
          {"draft_lookup", {block_size_key(), match_length_key()}, drafted_method<true>}};
}

}  // namespace jforge
