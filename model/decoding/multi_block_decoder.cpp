#include "model/decoding/multi_block_decoder.h"

#include <fmt/format.h>

#include <cmath>

#include "model/decoding/draft_decoder_internal.h"
#include "model/decoding/method_entry_internal.h"
#include "model/decoding/ngram_pool.h"

namespace jforge {

void MultiBlockOptions::validate() const {
  if (block_size < 1 || blocks < 1 || verification_size < 1 || ngram_pool < 0 || match_length < 0) {
    throw ConfigError(fmt::format(
        "multi-block decoding: block_size {}, blocks {} and verification_size {} must be at least "
        "1, ngram_pool {} and match_length {} at least 0",
        block_size, blocks, verification_size, ngram_pool, match_length));
  }
  // Also true for NaN.
  if (!(spawn_ratio > 0 && spawn_ratio <= 1)) {
    throw ConfigError(fmt::format(
        "multi-block decoding: spawn_ratio is {}; it must be above 0 and at most 1", spawn_ratio));
  }
}

namespace {

/// A block after the real-active one (METHOD.md §6.3). Its accepted tokens are provisional.
struct PseudoBlock {
  std::vector<TokenId> tokens;
  std::size_t accepted = 0;   ///< Leading tokens confirmed by a forward.
  TokenId continuation = -1;  ///< Predicted after the block; −1: not forwarded yet.
};

class MultiBlockDecoder final : public DraftDecoder {
 public:
  MultiBlockDecoder(DecodeRequest request, const MultiBlockOptions& options)
      : DraftDecoder(std::move(request)),
        options_(options),
        pool_((options.validate(), static_cast<std::size_t>(options.ngram_pool))),
        pseudo_blocks_(static_cast<std::size_t>(options.blocks) - 1),
        candidates_(static_cast<std::size_t>(options.verification_size) - 1) {
    // The epsilon keeps a product such as 0.35 · 20 from rounding up to 8.
    const double wanted = options.spawn_ratio * static_cast<double>(options.block_size) - 1e-9;
    threshold_ = static_cast<std::size_t>(std::max(1.0, std::ceil(wanted)));
    const auto usual = static_cast<std::size_t>(
        std::min<std::int64_t>({options.block_size, request_.max_new_tokens, kUsualTokens}));
    for (std::vector<TokenId>* draft : {&draft_, &predictions_, &repeated_}) {
      draft->reserve(usual);
    }
    for (PseudoBlock& block : pseudo_blocks_) {
      block.tokens.reserve(usual);
    }
    for (Candidate& candidate : candidates_) {
      candidate.tokens.reserve(usual);
      if (options.pseudo_on_every_row) {
        candidate.row.reserve(usual * static_cast<std::size_t>(options.blocks));
      }
    }
    text_.reserve(usual * static_cast<std::size_t>(options.blocks));
    pool_.reserve(text_.capacity());
    branches_.reserve(pseudo_blocks_.size() + candidates_.size() + 1);
    branches_.push_back(prompt_branch());
  }

  [[nodiscard]] std::span<const DraftBranch> pending() const override { return branches_; }
  /// A candidate shares the first token at least.
  [[nodiscard]] std::int64_t max_branch_rows() const override {
    const std::int64_t blocks = options_.pseudo_on_every_row ? options_.blocks : 1;
    const std::int64_t row =
        std::min<std::int64_t>(options_.block_size * blocks, request_.max_new_tokens);
    return std::max<std::int64_t>(row - 1, 0) * (options_.verification_size - 1);
  }

  Commit advance(std::span<const BranchOutcome> outcomes) override {
    expect(!finished_, "multi-block decoder advanced after its end");
    expect_outcomes(outcomes, branches_);
    Commit commit;
    if (!prefilling_) {
      commit = advance_blocks(outcomes);
    } else if (const TokenId first = finish_prefill(outcomes); !test_end(first)) {
      start_block(first);
    }
    if (!finished_) {
      find_candidates();
      assemble();
    }
    return commit;
  }

 private:
  /// The plain draft up to `fork`, then `tokens`.
  struct Candidate {
    std::size_t fork = 0;
    std::vector<TokenId> tokens;
    std::vector<TokenId> row;  ///< pseudo_on_every_row: `tokens` and the pseudo blocks'.
  };
  /// The plain draft is branch 0.
  struct Winner {
    std::size_t branch = 0;
    std::size_t accepted = 0;
  };

  [[nodiscard]] bool recycles() const {
    return options_.ngram_pool > 0 && (options_.verification_size > 1 || options_.blocks > 1);
  }
  [[nodiscard]] std::size_t block_size() const {
    return static_cast<std::size_t>(options_.block_size);
  }
  /// Rows of a block: n or the rest of T; 0 after the last block.
  [[nodiscard]] std::size_t block_length(std::int64_t block) const {
    const std::int64_t rows_left = request_.max_new_tokens - 1 - block * options_.block_size;
    return static_cast<std::size_t>(std::clamp<std::int64_t>(rows_left, 0, options_.block_size));
  }
  [[nodiscard]] RandomStream stream_of(std::int64_t block) const {
    return draft_stream(options_.seed, options_.round, block);
  }

  Commit advance_blocks(std::span<const BranchOutcome> outcomes) {
    const Winner winner = find_winner(outcomes);
    const std::size_t length = draft_.size();
    if (recycles() && winner.accepted < length) {
      remember_forwarded();
    }
    const std::size_t kept_from = adopt(winner, outcomes);
    if (recycles() && winner.accepted < length) {
      pool_.push(std::span(predictions_).subspan(winner.accepted));
    }
    ++result_.forwards;
    const std::int64_t known = kv_length_;
    const bool ended =
        commit_and_test_end(draft_, winner.accepted, predictions_[winner.accepted - 1]);
    const Commit commit{
        winner.branch,
        std::max<std::int64_t>(kv_length_ - known - static_cast<std::int64_t>(kept_from), 0)};
    if (ended) {
      return commit;
    }
    continuation_ = predictions_.back();
    refine_pseudo_blocks(winner, outcomes);
    if (winner.accepted < length) {
      draft_.assign(predictions_.begin() + static_cast<std::ptrdiff_t>(winner.accepted) - 1,
                    predictions_.end() - 1);
    } else {
      promote(predictions_.back());
    }
    spawn();
    return commit;
  }

  /// Only a candidate that forks where the plain draft fails can be longer.
  [[nodiscard]] Winner find_winner(std::span<const BranchOutcome> outcomes) const {
    const std::span<const TokenId> plain = outcomes[0].predictions;
    const std::size_t accepted = count_accepted(draft_, plain);
    Winner winner{.accepted = accepted};
    for (std::size_t i = 0; i < num_candidates_; ++i) {
      const Candidate& candidate = candidates_[i];
      if (candidate.fork != accepted || candidate.tokens[0] != plain[accepted - 1]) {
        continue;
      }
      const std::size_t branch = 1 + num_forwarded_pseudo_ + i;
      const std::size_t longer =
          accepted + count_accepted(candidate.tokens, outcomes[branch].predictions);
      if (longer > winner.accepted) {
        winner = {branch, longer};
      }
    }
    return winner;
  }

  /// Returns how many of the winner's rows are the plain draft's.
  std::size_t adopt(const Winner& winner, std::span<const BranchOutcome> outcomes) {
    const std::span<const TokenId> plain = outcomes[0].predictions;
    if (winner.branch == 0) {
      predictions_.assign(plain.begin(), plain.end());
      return 0;
    }
    const Candidate& candidate = candidates_[winner.branch - 1 - num_forwarded_pseudo_];
    const std::span<const TokenId> own = outcomes[winner.branch].predictions;
    draft_.resize(candidate.fork);
    draft_.insert(draft_.end(), candidate.tokens.begin(), candidate.tokens.end());
    predictions_.assign(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(candidate.fork));
    const auto draft_end = own.begin() + static_cast<std::ptrdiff_t>(candidate.tokens.size());
    predictions_.insert(predictions_.end(), own.begin(), draft_end);
    return candidate.fork;
  }

  void remember_forwarded() {
    text_.assign(context_.begin() + static_cast<std::ptrdiff_t>(block_begin_), context_.end());
    text_.insert(text_.end(), draft_.begin(), draft_.end());
    for (std::size_t i = 0; i < num_pseudo_; ++i) {
      const std::vector<TokenId>& tokens = pseudo_blocks_[i].tokens;
      text_.insert(text_.end(), tokens.begin(), tokens.end());
    }
    pool_.push(text_);
  }

  void refine_pseudo_blocks(const Winner& winner, std::span<const BranchOutcome> outcomes) {
    const bool of_winner = options_.pseudo_on_every_row && winner.branch != 0;
    std::span<const TokenId> rest;
    if (of_winner) {
      const Candidate& candidate = candidates_[winner.branch - 1 - num_forwarded_pseudo_];
      rest = outcomes[winner.branch].predictions.subspan(candidate.tokens.size());
    }
    for (std::size_t i = 0; i < num_forwarded_pseudo_; ++i) {
      PseudoBlock& block = pseudo_blocks_[i];
      std::span<const TokenId> predictions = outcomes[1 + i].predictions;
      if (of_winner) {
        predictions = rest.first(block.tokens.size()).subspan(block.accepted);
        rest = rest.subspan(block.tokens.size());
      }
      if (predictions.empty()) {
        continue;  // converged; forwarded for later blocks
      }
      const std::size_t more =
          count_accepted(std::span(block.tokens).subspan(block.accepted), predictions);
      block.accepted += more;
      std::copy(predictions.begin() + static_cast<std::ptrdiff_t>(more) - 1, predictions.end() - 1,
                block.tokens.begin() + static_cast<std::ptrdiff_t>(block.accepted));
      block.continuation = predictions.back();
    }
  }

  /// Makes the next pseudo block real-active; it is verified from its first token, `first`.
  void promote(TokenId first) {
    ++block_;
    if (num_pseudo_ == 0) {
      start_block(first);
      return;
    }
    block_begin_ = context_.size();
    draft_.swap(pseudo_blocks_[0].tokens);
    draft_[0] = first;
    std::rotate(pseudo_blocks_.begin(), pseudo_blocks_.begin() + 1,
                pseudo_blocks_.begin() + static_cast<std::ptrdiff_t>(num_pseudo_));
    --num_pseudo_;
  }

  /// Draws the same as the shrinking window (jacobi_decoder.cpp).
  void start_block(TokenId first) {
    block_begin_ = context_.size();
    draft_.assign(1, first);
    RandomStream stream = stream_of(block_);
    fill(draft_, block_length(block_), stream);
  }

  void spawn() {
    if (num_pseudo_ == pseudo_blocks_.size()) {
      return;
    }
    const bool behind_pseudo = num_pseudo_ > 0;
    const std::size_t accepted =
        behind_pseudo ? pseudo_blocks_[num_pseudo_ - 1].accepted : context_.size() - block_begin_;
    const std::int64_t block = block_ + 1 + static_cast<std::int64_t>(num_pseudo_);
    const std::size_t length = block_length(block);
    if (accepted < threshold_ || length == 0) {
      return;
    }
    const TokenId first =
        behind_pseudo ? pseudo_blocks_[num_pseudo_ - 1].continuation : continuation_;
    PseudoBlock& spawned = pseudo_blocks_[num_pseudo_++];
    spawned.accepted = 0;
    spawned.continuation = -1;
    spawned.tokens.clear();
    if (options_.spawn == SpawnMode::clone) {
      spawned.tokens.assign(draft_.begin(), draft_.begin() + static_cast<std::ptrdiff_t>(
                                                                 std::min(length, draft_.size())));
    } else {
      spawned.tokens.push_back(first);
      recycle_into(spawned.tokens, length);
    }
    RandomStream stream = stream_of(block);
    fill(spawned.tokens, length, stream);
  }

  /// Continues a one-token draft from the pool.
  void recycle_into(std::vector<TokenId>& draft, std::size_t length) const {
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      const std::span<const TokenId> found = pool_.from(i, draft[0]);
      if (found.size() > 1) {
        const auto more = found.subspan(1, std::min(found.size(), length) - 1);
        draft.insert(draft.end(), more.begin(), more.end());
        return;
      }
    }
  }

  /// Candidates: what followed the last tokens earlier in the text, then the pool from the draft's
  /// first token on, newest first; completed with the plain draft's end.
  void find_candidates() {
    num_candidates_ = 0;
    if (options_.match_length > 0) {
      context_.push_back(draft_[0]);
      repeat_period(find_period(context_, static_cast<std::size_t>(options_.match_length)),
                    draft_.size(), repeated_);
      context_.pop_back();
      add_candidate(repeated_);
    }
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      add_candidate(pool_.from(i, draft_[0]));
    }
  }

  /// Requires: `all` is empty or begins with the plain draft's first token.
  void add_candidate(std::span<const TokenId> all) {
    if (num_candidates_ == candidates_.size()) {
      return;
    }
    const std::span<const TokenId> found = all.first(std::min(all.size(), draft_.size()));
    const auto fork =
        static_cast<std::size_t>(std::ranges::mismatch(found, draft_).in1 - found.begin());
    if (fork == found.size()) {
      return;  // the plain draft itself
    }
    Candidate& candidate = candidates_[num_candidates_];
    candidate.fork = fork;
    candidate.tokens.assign(found.begin() + static_cast<std::ptrdiff_t>(fork), found.end());
    candidate.tokens.insert(candidate.tokens.end(),
                            draft_.begin() + static_cast<std::ptrdiff_t>(found.size()),
                            draft_.end());
    const auto same = [&](const Candidate& other) {
      return other.fork == fork && other.tokens == candidate.tokens;
    };
    const auto taken = std::span(candidates_).first(num_candidates_);
    num_candidates_ += std::ranges::none_of(taken, same) ? 1 : 0;
  }

  void assemble() {
    branches_.clear();
    std::int64_t position = kv_length_;
    const auto append = [&](std::span<const TokenId> tokens, std::size_t first_output) {
      branches_.push_back(
          {.first_position = position, .tokens = tokens, .first_output = first_output});
      position += static_cast<std::int64_t>(tokens.size());
    };
    append(draft_, 0);
    num_forwarded_pseudo_ = num_pseudo_;
    const auto converged = [](const PseudoBlock& block) {
      return block.accepted == block.tokens.size();
    };
    // Converged pseudo blocks are forwarded only for later ones that are not.
    while (num_forwarded_pseudo_ > 0 && converged(pseudo_blocks_[num_forwarded_pseudo_ - 1])) {
      --num_forwarded_pseudo_;
    }
    for (std::size_t i = 0; i < num_forwarded_pseudo_; ++i) {
      append(pseudo_blocks_[i].tokens, pseudo_blocks_[i].accepted);
    }
    for (Candidate& candidate : std::span(candidates_).first(num_candidates_)) {
      std::span<const TokenId> row = candidate.tokens;
      if (options_.pseudo_on_every_row) {
        candidate.row = candidate.tokens;
        for (const PseudoBlock& block : std::span(pseudo_blocks_).first(num_forwarded_pseudo_)) {
          candidate.row.insert(candidate.row.end(), block.tokens.begin(), block.tokens.end());
        }
        row = candidate.row;
      }
      branches_.push_back({.first_position = kv_length_ + static_cast<std::int64_t>(candidate.fork),
                           .tokens = row,
                           .alternative = true});
    }
  }

  MultiBlockOptions options_;
  std::size_t threshold_ = 1;  ///< Accepted tokens that spawn a block.
  NgramPool pool_;
  std::vector<TokenId> draft_;        ///< Of the real-active block.
  std::vector<TokenId> predictions_;  ///< After each token of draft_.
  TokenId continuation_ = 0;
  std::vector<PseudoBlock> pseudo_blocks_;  ///< The first num_pseudo_ are in use.
  std::size_t num_pseudo_ = 0;
  std::size_t num_forwarded_pseudo_ = 0;
  std::vector<Candidate> candidates_;  ///< The first num_candidates_ are in use.
  std::size_t num_candidates_ = 0;
  std::vector<TokenId> repeated_;
  std::vector<DraftBranch> branches_;
  std::vector<TokenId> text_;
  std::size_t block_begin_ = 0;  ///< Of the real-active block in context_.
  std::int64_t block_ = 0;
};

}  // namespace

std::unique_ptr<SequenceDecoder> make_multi_block_decoder(DecodeRequest request,
                                                          const MultiBlockOptions& options) {
  return std::make_unique<MultiBlockDecoder>(std::move(request), options);
}

namespace {

DecodingMethod multi_block_method(MultiBlockOptions options, const DecodingSettings& settings,
                                  std::uint64_t seed) {
  options.block_size = whole_number(settings, "block_size");
  options.blocks = whole_number(settings, "blocks");
  options.spawn_ratio = real_number(settings, "spawn_ratio");
  options.verification_size = whole_number(settings, "verification_size");
  // The authors' pool has as many sequences as a forward has drafts.
  options.ngram_pool = options.pseudo_on_every_row ? options.verification_size
                                                   : whole_number(settings, "ngram_pool");
  options.seed = seed;
  return method_of(options, make_multi_block_decoder,
                   {{"block_size", options.block_size},
                    {"window", "multi_block"},
                    {"blocks", options.blocks},
                    {"spawn_ratio", options.spawn_ratio},
                    {"verification_size", options.verification_size},
                    {"ngram_pool", options.ngram_pool},
                    {"seed", seed}});
}

DecodingMethod mr_method(const DecodingSettings& settings, std::uint64_t seed) {
  const std::string& variant = text(settings, "variant");
  MultiBlockOptions options;
  options.spawn = variant == "own" ? SpawnMode::continuation : SpawnMode::clone;
  options.pseudo_on_every_row = variant == "authors";
  DecodingMethod method = multi_block_method(options, settings, seed);
  method.settings["variant"] = variant;
  return method;
}

DecodingMethod mr_lookup_method(const DecodingSettings& settings, std::uint64_t seed) {
  MultiBlockOptions options;
  options.match_length = whole_number(settings, "match_length");
  DecodingMethod method = multi_block_method(options, settings, seed);
  method.settings["match_length"] = options.match_length;
  return method;
}

}  // namespace

std::vector<MethodEntry> multi_block_methods() {
  const std::vector<DecodingKey> keys{
      block_size_key(),
      {.name = "blocks",
       .fallback = std::int64_t{MultiBlockOptions{}.blocks},
       .minimum = 1,
       .maximum = kMaxDrafts,
       .meaning = "Blocks that `mr` refines at once, the one it verifies included"},
      {.name = "ngram_pool",
       .fallback = std::int64_t{MultiBlockOptions{}.ngram_pool},
       .minimum = 0,
       .maximum = kMaxDraftTokens,
       .meaning = "Rejected sequences that `mr` keeps for each request; 0: it recycles nothing"},
      {.name = "spawn_ratio",
       .fallback = MultiBlockOptions{}.spawn_ratio,
       .minimum = 0,
       .meaning = "Accepted share of its newest block from which `mr` begins the next; above 0, at "
                  "most 1"},
      {.name = "verification_size",
       .fallback = std::int64_t{MultiBlockOptions{}.verification_size},
       .minimum = 1,
       .maximum = kMaxDrafts,
       .meaning = "Drafts that `mr` verifies in one forward, the plain one included"},
  };
  std::vector<DecodingKey> own = keys;
  own.push_back(
      {.name = "variant",
       .fallback = std::string("own"),
       .words = {"authors", "own", "paper"},
       .meaning = "Form of `mr`: `own`; `paper`: a new block begins as a copy of the first one's "
                  "draft; `authors`: every draft carries the further blocks too, and the pool has "
                  "`verification_size` sequences, as in their code"});
  std::vector<DecodingKey> with_lookup = keys;
  with_lookup.push_back(match_length_key());
  return {{"mr", own, mr_method}, {"mr_lookup", with_lookup, mr_lookup_method}};
}

}  // namespace jforge
