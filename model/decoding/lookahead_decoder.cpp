#include "model/decoding/lookahead_decoder.h"

#include <fmt/format.h>

#include "model/decoding/draft_decoder_internal.h"
#include "model/decoding/method_entry_internal.h"
#include "model/decoding/ngram_pool.h"

namespace jforge {

void LookaheadOptions::validate() const {
  if (window < 1 || ngram < 2 || guesses < 0 || ngram_pool < 0) {
    throw ConfigError(
        fmt::format("lookahead decoding: window {} must be at least 1, ngram {} at least 2, "
                    "guesses {} and ngram_pool {} at least 0",
                    window, ngram, guesses, ngram_pool));
  }
}

namespace {

class LookaheadDecoder final : public DraftDecoder {
 public:
  LookaheadDecoder(DecodeRequest request, const LookaheadOptions& options)
      : DraftDecoder(std::move(request)),
        options_((options.validate(), options)),
        columns_(static_cast<std::size_t>(options.window) + most_levels() - 1),
        pool_(static_cast<std::size_t>(options.ngram_pool)) {
    for (std::vector<TokenId>& column : columns_) {
      column.reserve(most_levels() + 1);
    }
    first_level_.reserve(columns_.size());
    draft_.reserve(most_levels() + 1);
    pool_.reserve(most_levels() + 1);
    branches_.reserve(2 + columns_.size() + static_cast<std::size_t>(options_.guesses));
    branches_.push_back(prompt_branch());
  }

  [[nodiscard]] std::span<const DraftBranch> pending() const override { return branches_; }
  /// The window has more columns while it has fewer levels.
  [[nodiscard]] std::int64_t max_branch_rows() const override {
    const std::int64_t most = options_.ngram - 1;
    std::int64_t rows = 0;
    for (std::int64_t levels = 1; levels <= most; ++levels) {
      rows = std::max(rows, (options_.window + most - levels) * (levels - 1));
    }
    return rows + options_.guesses * most;
  }

  Commit advance(std::span<const BranchOutcome> outcomes) override {
    expect(!finished_, "lookahead decoder advanced after its end");
    expect_outcomes(outcomes, branches_);
    Commit commit;
    if (!prefilling_) {
      commit = advance_text(outcomes);
    } else if (newest_ = finish_prefill(outcomes); !test_end(newest_)) {
      start_window();
    }
    if (!finished_) {
      assemble();
    }
    return commit;
  }

 private:
  /// Levels of the full window: an n-gram is a column and its prediction.
  [[nodiscard]] std::size_t most_levels() const {
    return static_cast<std::size_t>(options_.ngram) - 1;
  }

  /// Each forward that adds a level drops a column.
  void start_window() {
    RandomStream stream = draft_stream(options_.seed, options_.round, 0);
    first_level_.assign(1, newest_);
    fill(first_level_, columns_.size(), stream);
    for (std::size_t j = 0; j < columns_.size(); ++j) {
      columns_[j].assign(1, first_level_[j]);
    }
  }

  Commit advance_text(std::span<const BranchOutcome> outcomes) {
    ++result_.forwards;
    const std::int64_t known = kv_length_;
    const std::size_t winner = find_winner(outcomes);
    // Read before move_window() changes the pool, which holds the verified n-grams.
    const TokenId correction =
        winner == 0 ? outcomes[0].predictions[0] : outcomes[winner].predictions[draft_.size() - 2];
    move_window(outcomes);
    newest_ = correction;
    (void)commit_and_test_end(draft_, draft_.size(), correction);
    const std::int64_t rows = kv_length_ - known;
    return {.branch = winner, .rows = winner == 0 ? rows : std::max<std::int64_t>(rows - 1, 0)};
  }

  /// Returns the branch of the longest right n-gram, or 0; sets draft_ to the right tokens.
  std::size_t find_winner(std::span<const BranchOutcome> outcomes) {
    const TokenId next = outcomes[0].predictions[0];
    draft_.assign(1, newest_);
    std::size_t winner = 0;
    for (std::size_t i = first_guess_; i < branches_.size(); ++i) {
      const std::span<const TokenId> tokens = branches_[i].tokens;
      const std::size_t right =
          tokens[0] == next ? count_accepted(tokens, outcomes[i].predictions) : 0;
      if (right + 1 > draft_.size()) {
        winner = i;
        draft_.assign(1, newest_);
        draft_.insert(draft_.end(), tokens.begin(),
                      tokens.begin() + static_cast<std::ptrdiff_t>(right));
      }
    }
    return winner;
  }

  /// Appends each column's prediction as its newest level. A full window then drops its oldest
  /// level, a growing one its first column.
  void move_window(std::span<const BranchOutcome> outcomes) {
    // Near T columns are dropped for good.
    columns_.resize(num_columns_);
    for (std::size_t j = 0; j < num_columns_; ++j) {
      const bool alone = columns_[j].size() == 1;
      const std::size_t branch = alone ? std::min<std::size_t>(j, 1) : first_column_ + j;
      columns_[j].push_back(outcomes[branch].predictions[alone && j > 0 ? j - 1 : 0]);
    }
    if (num_columns_ == 0) {
      return;
    }
    if (columns_[0].size() > most_levels()) {
      for (std::vector<TokenId>& column : columns_) {
        pool_.push(column);
        column.erase(column.begin());
      }
    } else {
      std::ranges::rotate(columns_, columns_.begin() + 1);
      columns_.pop_back();
    }
  }

  /// Branches: the newest token, the other columns' first level, each column from its second level
  /// on, then the n-grams to verify.
  void assemble() {
    const std::size_t levels = columns_.empty() ? 1 : columns_[0].size();
    // A column ends levels − 1 positions after its start; rows beyond T are useless.
    const std::size_t most = std::max(tokens_left() + 1, levels) - levels;
    num_columns_ = std::min(columns_.size(), most);
    first_level_.assign(1, newest_);
    for (std::size_t j = 1; j < num_columns_; ++j) {
      first_level_.push_back(columns_[j][0]);
    }
    branches_.clear();
    const std::span<const TokenId> own = first_level_;
    branches_.push_back({.first_position = kv_length_, .tokens = own.first(1)});
    if (own.size() > 1) {
      branches_.push_back({.first_position = kv_length_ + 1,
                           .tokens = own.subspan(1),
                           .first_output = levels == 1 ? 0 : own.size() - 1});
    }
    first_column_ = branches_.size();
    if (num_columns_ > 0) {
      columns_[0][0] = newest_;
    }
    for (std::size_t j = 0; levels > 1 && j < num_columns_; ++j) {
      add_alternative(static_cast<std::int64_t>(j), std::span(columns_[j]).subspan(1), levels - 2);
    }
    first_guess_ = branches_.size();
    const std::size_t length = std::min(most_levels(), tokens_left() - 1);
    for (std::size_t i = 0; length > 0 && i < pool_.size(); ++i) {
      const std::span<const TokenId> found = pool_.from(i, newest_);
      if (found.size() > most_levels() &&
          std::cmp_less(branches_.size() - first_guess_, options_.guesses)) {
        add_alternative(0, found.subspan(1, length), 0);
      }
    }
  }

  /// Forks after column `column` of the first level.
  void add_alternative(std::int64_t column, std::span<const TokenId> tokens,
                       std::size_t first_output) {
    branches_.push_back({.first_position = kv_length_ + 1 + column,
                         .tokens = tokens,
                         .first_output = first_output,
                         .alternative = true});
  }

  LookaheadOptions options_;
  TokenId newest_ = 0;
  std::vector<std::vector<TokenId>> columns_;  ///< Tokens of all levels.
  std::size_t num_columns_ = 0;                ///< Forwarded columns.
  NgramPool pool_;
  std::vector<TokenId> first_level_;  ///< Of the forwarded columns.
  std::vector<TokenId> draft_;        ///< The newest token and the best n-gram's right part.
  std::vector<DraftBranch> branches_;
  std::size_t first_column_ = 0;
  std::size_t first_guess_ = 0;
};

}  // namespace

std::unique_ptr<SequenceDecoder> make_lookahead_decoder(DecodeRequest request,
                                                        const LookaheadOptions& options) {
  return std::make_unique<LookaheadDecoder>(std::move(request), options);
}

namespace {

DecodingMethod lookahead_method(const DecodingSettings& settings, std::uint64_t seed) {
  const LookaheadOptions options{.window = whole_number(settings, "lookahead_window"),
                                 .ngram = whole_number(settings, "lookahead_ngram"),
                                 .guesses = whole_number(settings, "lookahead_window"),
                                 .seed = seed};
  return method_of(options, make_lookahead_decoder,
                   {{"block_size", options.ngram},
                    {"window", "lookahead"},
                    {"lookahead_window", options.window},
                    {"lookahead_ngram", options.ngram},
                    {"lookahead_guesses", options.guesses},
                    {"seed", seed}});
}

}  // namespace

std::vector<MethodEntry> lookahead_methods() {
  return {{"lookahead",
           {
               {.name = "lookahead_ngram",
                .fallback = std::int64_t{LookaheadOptions{}.ngram},
                .minimum = 2,
                .maximum = kMaxDraftTokens,
                .meaning = "Tokens of the n-grams of `lookahead`"},
               {.name = "lookahead_window",
                .fallback = std::int64_t{LookaheadOptions{}.window},
                .minimum = 1,
                .maximum = kMaxDraftTokens,
                .meaning = "Columns of the window in which `lookahead` makes n-grams, and n-grams "
                           "verified at once"},
           },
           lookahead_method}};
}

}  // namespace jforge
