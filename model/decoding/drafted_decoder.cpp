#include "model/decoding/drafted_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "model/decoding/draft_decoder_internal.h"
#include "model/decoding/method_entry_internal.h"

namespace jforge {

void DraftedOptions::validate() const {
  if (block_size < 1 || match_length < 0 || tree_rows < 0 ||
      !(min_probability >= 0 && min_probability <= 1)) {
    throw ConfigError(fmt::format(
        "decoding with a drafter: block_size {} must be at least 1, match_length {} and "
        "tree_rows {} at least 0, min_probability {} between 0 and 1",
        block_size, match_length, tree_rows, min_probability));
  }
}

namespace {

/// Tokens that a tree may choose from at a position.
constexpr std::int64_t kTreeChoices = 8;

/// The likeliest of the paths that consecutive positions' proposals make: the chain of the first
/// choices, and shoots, each of which leaves the chain once by another choice.
class ProposalTree {
 public:
  struct Shoot {
    std::size_t position = 0;  ///< Where it leaves the chain.
    std::size_t choice = 0;
    std::size_t length = 1;
    std::span<const TokenId> tokens = {};
  };

  /// Grows to `rows` tokens at most, likeliest paths first, of `least` log-probability or more.
  /// Appends those of the chain to `chain`.
  void grow(std::span<const LikelyToken> likely, std::size_t choices, std::size_t rows, float least,
            std::vector<TokenId>& chain) {
    likely_ = likely;
    least_ = least;
    choices_ = choices;
    buds_.clear();
    shoots_.clear();
    offer(0, 0, 0, kChain);
    offer(0, 0, 1, kNewShoot);
    for (; rows > 0 && !buds_.empty(); --rows) {
      std::ranges::pop_heap(buds_, less_likely);
      const Bud bud = buds_.back();
      buds_.pop_back();
      if (bud.on == kChain) {
        chain.push_back(at(bud.position, 0).token);
        offer(bud.value, bud.position + 1, 0, kChain);
        offer(bud.value, bud.position + 1, 1, kNewShoot);
      } else if (bud.on == kNewShoot) {
        offer(bud.before, bud.position, bud.choice + 1, kNewShoot);
        offer(bud.value, bud.position + 1, 0, shoots_.size());
        shoots_.push_back({.position = bud.position, .choice = bud.choice});
      } else {
        ++shoots_[bud.on].length;
        offer(bud.value, bud.position + 1, 0, bud.on);
      }
    }
    write_tokens();
  }

  [[nodiscard]] std::span<const Shoot> shoots() const { return shoots_; }

 private:
  static constexpr std::size_t kChain = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kNewShoot = kChain - 1;
  /// A token that may be next: of the chain, a new shoot, or the shoot of this index.
  struct Bud {
    float before = 0;  ///< Log-probability of its path, first without it, then with it.
    float value = 0;
    std::size_t position = 0;
    std::size_t choice = 0;
    std::size_t on = 0;
  };

  static bool less_likely(const Bud& a, const Bud& b) {
    return std::tuple(a.value, b.position, b.choice, b.on) <
           std::tuple(b.value, a.position, a.choice, a.on);
  }
  [[nodiscard]] const LikelyToken& at(std::size_t position, std::size_t choice) const {
    return likely_[position * choices_ + choice];
  }
  void offer(float before, std::size_t position, std::size_t choice, std::size_t on) {
    if (choice >= choices_ || (position + 1) * choices_ > likely_.size()) {
      return;
    }
    const float value = before + at(position, choice).log_probability;
    if (std::isfinite(value) && value >= least_) {
      buds_.push_back({before, value, position, choice, on});
      std::ranges::push_heap(buds_, less_likely);
    }
  }
  void write_tokens() {
    tokens_.clear();
    for (const Shoot& shoot : shoots_) {
      for (std::size_t i = 0; i < shoot.length; ++i) {
        tokens_.push_back(at(shoot.position + i, i == 0 ? shoot.choice : 0).token);
      }
    }
    std::span<const TokenId> left = tokens_;
    for (Shoot& shoot : shoots_) {
      shoot.tokens = left.first(shoot.length);
      left = left.subspan(shoot.length);
    }
  }

  std::span<const LikelyToken> likely_;
  std::size_t choices_ = 0;
  float least_ = 0;
  std::vector<Bud> buds_;  ///< A heap.
  std::vector<Shoot> shoots_;
  std::vector<TokenId> tokens_;
};

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
    return row + (options_.match_length > 0 ? row - 1 : 0) +
           std::max<std::int64_t>(options_.tree_rows - 1, 0);
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
    const std::int64_t choices = options_.tree_rows > 0 ? kTreeChoices : 1;
    return draft_.empty() ? WantedProposals{} : WantedProposals{draft_[0], wanted(), choices};
  }
  void take_proposals(std::span<const LikelyToken> proposals, std::size_t choices) override {
    if (options_.tree_rows > 0) {
      tree_.grow(proposals, choices, static_cast<std::size_t>(options_.tree_rows) - 1,
                 static_cast<float>(std::log(options_.min_probability)), draft_);
      assemble();
      return;
    }
    for (std::size_t i = 0; i < proposals.size(); i += choices) {
      draft_.push_back(proposals[i].token);
    }
    complete();
  }

 private:
  [[nodiscard]] std::int64_t wanted() const {
    const auto length = static_cast<std::int64_t>(draft_length());
    const bool grows = options_.tree_rows > 0;
    return (grows ? std::min<std::int64_t>(length, options_.tree_rows) : length) - 1;
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
    // An alternative is longer only if it forks where the draft fails.
    const std::size_t fork = accepted;
    for (std::size_t i = 1; i < branches_.size(); ++i) {
      const DraftBranch& other = branches_[i];
      if (other.drafts || fork_of(other) != fork || other.tokens[0] != own[fork - 1]) {
        continue;
      }
      const std::size_t length = fork + count_accepted(other.tokens, outcomes[i].predictions);
      if (length > accepted) {
        accepted = length;
        commit.branch = i;
      }
    }
    std::size_t shared = 0;
    if (commit.branch > 0) {
      const std::span<const TokenId> tokens = branches_[commit.branch].tokens;
      const std::span<const TokenId> of_branch = outcomes[commit.branch].predictions;
      shared = fork;
      draft_.resize(fork);
      draft_.insert(draft_.end(), tokens.begin(), tokens.end());
      predictions_.resize(fork);
      predictions_.insert(predictions_.end(), of_branch.begin(), of_branch.end());
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

  /// Returns how many of the draft's rows an alternative sees.
  [[nodiscard]] std::size_t fork_of(const DraftBranch& alternative) const {
    return static_cast<std::size_t>(alternative.first_position - kv_length_);
  }
  [[nodiscard]] std::size_t draft_limit() const { return finished_ ? 1 : draft_length(); }

  void assemble() {
    branches_.assign(1, {.first_position = kv_length_, .tokens = draft_});
    looked_up_.clear();
    if (options_.match_length > 0) {
      look_up();
    }
    for (const ProposalTree::Shoot& shoot : tree_.shoots()) {
      append_alternative(shoot.position + 1, shoot.tokens);
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
    const std::size_t length = draft_length();  // A tree's chain may be shorter.
    context_.push_back(draft_[0]);
    repeat_period(find_period(context_, static_cast<std::size_t>(options_.match_length)), length,
                  looked_up_);
    context_.pop_back();
    const auto fork = std::ranges::mismatch(looked_up_, draft_).in1 - looked_up_.begin();
    looked_up_.erase(looked_up_.begin(), looked_up_.begin() + fork);
    if (!looked_up_.empty()) {
      append_alternative(static_cast<std::size_t>(fork), looked_up_);
    }
  }

  void append_alternative(std::size_t fork, std::span<const TokenId> tokens) {
    branches_.push_back({.first_position = kv_length_ + static_cast<std::int64_t>(fork),
                         .tokens = tokens,
                         .alternative = true});
  }

  DraftedOptions options_;
  RandomStream stream_;
  std::vector<TokenId> draft_;
  std::vector<TokenId> predictions_;  ///< After each token of the draft that was accepted from.
  std::vector<TokenId> looked_up_;    ///< From where the alternative forks.
  ProposalTree tree_;
  bool uses_proposals_ = false;  ///< A head's; else an adapter's rows propose.
  std::vector<DraftBranch> branches_;
};

template <bool looks_up, bool grows>
DecodingMethod drafted_method(const DecodingSettings& settings, std::uint64_t seed) {
  const DraftedOptions options{
      .block_size = whole_number(settings, "block_size"),
      .match_length = looks_up ? whole_number(settings, "match_length") : 0,
      .tree_rows = grows ? whole_number(settings, "tree_rows") : 0,
      .min_probability = grows ? real_number(settings, "min_probability") : 0,
      .seed = seed};
  nlohmann::ordered_json own{
      {"block_size", options.block_size}, {"window", "running"}, {"seed", seed}};
  if (looks_up) {
    own["match_length"] = options.match_length;
  }
  if (grows) {
    own["tree_rows"] = options.tree_rows;
    own["min_probability"] = options.min_probability;
  }
  DecodingMethod method = method_of(options, make_drafted_decoder, std::move(own));
  method.need = grows ? DrafterNeed::head : DrafterNeed::drafter;
  return method;
}

}  // namespace

std::unique_ptr<SequenceDecoder> make_drafted_decoder(DecodeRequest request,
                                                      const DraftedOptions& options) {
  return std::make_unique<DraftedDecoder>(std::move(request), options);
}

std::vector<MethodEntry> drafted_methods() {
  const DecodingKey tree_rows{
      .name = "tree_rows",
      .fallback = std::int64_t{16},
      .minimum = 1,
      .maximum = kMaxDraftTokens,
      .meaning = "Rows of a tree in one forward, the newest token's included"};
  const DecodingKey min_probability{
      .name = "min_probability",
      .fallback = 0.0,
      .minimum = 0,
      .maximum = 1,
      .meaning = "Of a path of the tree by the head, or it is left out: fewer rows"};
  return {
      {"draft", {block_size_key()}, drafted_method<false, false>},
      {"draft_lookup", {block_size_key(), match_length_key()}, drafted_method<true, false>},
      {"draft_tree", {block_size_key(), tree_rows, min_probability}, drafted_method<false, true>},
      {"draft_tree_lookup",
       {block_size_key(), match_length_key(), tree_rows, min_probability},
       drafted_method<true, true>}};
}

}  // namespace jforge
