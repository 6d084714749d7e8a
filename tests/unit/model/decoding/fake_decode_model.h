#pragma once

/// A decode model without arithmetic that detects misuse of its cache: a cell stores its prefix,
/// and a prediction depends on every visible cell.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/decoding/sequence_decoder.h"
#include "model/transformer/cache_pages.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge::test {

class FakeDecodeModel final : public DecodeModel {
 public:
  struct Options {
    std::int32_t num_slots = 8;
    std::int32_t slot_capacity = 512;
    std::int32_t branch_rows = 0;
    std::int64_t cache_pages = 0;
    std::int32_t vocabulary = 17;
    /// Number of tokens, of 8, whose successor depends on them alone, which Jacobi can guess.
    std::uint64_t local = 5;
    /// Probability of a random prediction.
    double flip_rate = 0;
  };

  explicit FakeDecodeModel(const Options& options)
      : options_(options),
        pages_(options.cache_pages > 0 ? options.cache_pages : options.num_slots * slot_pages(),
               options.num_slots, slot_pages()),
        cells_(static_cast<std::size_t>(pages_.free_pages() * kCachePageRows)),
        flips_(1, RandomPurpose::test) {}

  [[nodiscard]] std::int32_t num_slots() const override { return options_.num_slots; }
  [[nodiscard]] std::int32_t slot_capacity() const override { return options_.slot_capacity; }
  [[nodiscard]] std::int32_t branch_rows() const override { return options_.branch_rows; }

  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override {
    std::size_t output = 0;
    forward(rows, [&](const CacheRow& place) {
      expect(output < predictions.size(), "too few predictions");
      predictions[output++] = prediction(place);
    });
    expect(output == predictions.size(), "too many predictions");
  }

  void predict_sampled(std::span<const DecodeRow> rows, std::span<const SampledRow> choices,
                       std::span<TokenId> predictions) override {
    expect(choices.size() == predictions.size(), "choices for other rows");
    std::size_t output = 0;
    forward(rows, [&](const CacheRow& place) {
      expect(output < predictions.size(), "too few predictions");
      const Cell& own = at(place.slot, place.row());
      auto logits =
          logits_of(folded_to(place, place.position + 1, own.drafts), own.token, own.drafts);
      predictions[output] = sampler_.choose(logits, choices[output]);
      ++output;
    });
    expect(output == predictions.size(), "too many predictions");
  }

  /// Logits of a fresh forward; their argmax is next().
  [[nodiscard]] std::vector<float> next_logits(std::span<const TokenId> prefix) const {
    return logits_of(folded(prefix), prefix.back());
  }

  void keep_branches(std::span<const CacheCopy> rows) override {
    for (const CacheCopy& row : rows) {
      expect(row.from >= options_.slot_capacity && row.to < options_.slot_capacity,
             "only rows of alternatives are kept");
      const Cell kept = at(row.slot, row.from);
      expect(!kept.drafts, "a drafting row is kept");
      cell_to_write(row.slot, row.to) = kept;
    }
  }

  [[nodiscard]] bool reserve(std::int32_t slot, std::int64_t positions,
                             std::int64_t branch_rows) override {
    forget(slot);
    return pages_.reserve(slot, jforge::cache_pages(positions, branch_rows));
  }
  void release(std::int32_t slot) override {
    forget(slot);
    pages_.release(slot);
  }
  [[nodiscard]] std::int64_t free_pages() const { return pages_.free_pages(); }

  /// By a fresh forward.
  [[nodiscard]] TokenId next(std::span<const TokenId> prefix) const {
    return choose(folded(prefix), prefix.back());
  }

  [[nodiscard]] std::vector<TokenId> greedy(std::span<const TokenId> prompt,
                                            std::size_t count) const {
    std::vector<TokenId> all(prompt.begin(), prompt.end());
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(next(all));
    }
    return {all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end()};
  }

  [[nodiscard]] std::size_t largest_call() const noexcept { return largest_call_; }
  [[nodiscard]] std::int64_t calls() const noexcept { return calls_; }

 private:
  struct Cell {
    std::uint64_t hash = 0;
    TokenId token = -1;
    bool drafts = false;
  };

  template <typename Emit>
  void forward(std::span<const DecodeRow> rows, const Emit& emit) {
    expect(!rows.empty(), "predict() without rows");
    largest_call_ = std::max(largest_call_, rows.size());
    ++calls_;
    std::vector<std::int32_t> last(static_cast<std::size_t>(options_.num_slots), -1);
    for (const DecodeRow& row : rows) {
      auto& last_position = last.at(static_cast<std::size_t>(row.place.slot));
      if (row.place.fork_row == 0) {
        expect(row.place.position > last_position, "rows of a slot must ascend");
        expect(row.place.position < options_.slot_capacity, "row outside the slot");
        expect(!row.drafts, "a drafting row in the sequence");
        last_position = row.place.position;
      } else {
        expect(row.place.fork_row >= options_.slot_capacity, "an alternative in the sequence");
      }
      write(row);
      if (row.wants_output) {
        emit(row.place);
      }
    }
  }

  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
  }
  static std::uint64_t cell(std::uint64_t prefix, TokenId token) {
    return mix(prefix * 3 + static_cast<std::uint64_t>(token) + 0x9E3779B97F4A7C15ULL);
  }
  static std::uint64_t fold(std::uint64_t prefix, std::uint64_t hash) {
    return mix(prefix ^ hash) + 1;
  }

  static std::uint64_t folded(std::span<const TokenId> prefix) {
    std::uint64_t folded = 0;
    for (const TokenId token : prefix) {
      folded = fold(folded, cell(folded, token));
    }
    return folded;
  }

  /// Half of the drafting rows predict at random.
  [[nodiscard]] std::uint64_t source_of(std::uint64_t folded, TokenId last, bool drafts) const {
    if (drafts && mix(folded) % 2 == 0) {
      return mix(folded + 5);
    }
    const std::uint64_t own = mix(static_cast<std::uint64_t>(last) + 77);
    return own % 8 < options_.local ? own >> 8 : folded >> 8;
  }
  [[nodiscard]] TokenId choose(std::uint64_t folded, TokenId last, bool drafts = false) const {
    return static_cast<TokenId>(source_of(folded, last, drafts) %
                                static_cast<std::uint64_t>(options_.vocabulary));
  }
  /// The chosen token has the largest logit.
  [[nodiscard]] std::vector<float> logits_of(std::uint64_t folded, TokenId last,
                                             bool drafts = false) const {
    std::vector<float> logits(static_cast<std::size_t>(options_.vocabulary));
    const std::uint64_t source = source_of(folded, last, drafts);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>(mix(source + 97 * i) >> 40) * 0x1p-24F * 4 - 2;
    }
    logits[static_cast<std::size_t>(choose(folded, last, drafts))] = 2;
    return logits;
  }

  [[nodiscard]] std::int64_t slot_pages() const {
    return jforge::cache_pages(options_.slot_capacity, options_.branch_rows);
  }
  /// Branches begin with their own page.
  [[nodiscard]] std::int64_t paged(std::int64_t row) const {
    const std::int64_t capacity = options_.slot_capacity;
    return row < capacity ? row : jforge::cache_pages(capacity) * kCachePageRows + row - capacity;
  }

  Cell& at(std::int32_t slot, std::int64_t row) {
    const std::int64_t rows = std::int64_t{options_.slot_capacity} + options_.branch_rows;
    expect(slot >= 0 && slot < options_.num_slots && row >= 0 && row < rows,
           "row outside the cache");
    const std::int64_t place = pages_.table().place(slot, paged(row));
    expect(place >= 0, "a row sees a page that its slot lacks");
    return cells_[static_cast<std::size_t>(place)];
  }
  Cell& cell_to_write(std::int32_t slot, std::int64_t row) {
    pages_.provide(slot, paged(row) / kCachePageRows);
    return at(slot, row);
  }

  void forget(std::int32_t slot) {
    for (std::int64_t index = 0; index < slot_pages(); ++index) {
      const std::int32_t page = pages_.table().slot(slot)[index];
      if (page >= 0) {
        std::fill_n(cells_.begin() + page * kCachePageRows, kCachePageRows, Cell{});
      }
    }
  }

  /// Folds what the row at `place` sees before `end`.
  std::uint64_t folded_to(const CacheRow& place, std::int32_t end, bool drafts) {
    std::uint64_t folded = 0;
    for (std::int32_t position = 0; position < end; ++position) {
      const std::int64_t row =
          position < place.fork ? position : place.row() - (place.position - position);
      const Cell& seen = at(place.slot, row);
      expect(seen.token >= 0, "a row sees a position that was never written");
      expect(seen.drafts == (drafts && position >= place.fork), "a row sees the adapter's keys");
      folded = fold(folded, seen.hash);
    }
    return folded;
  }

  void write(const DecodeRow& row) {
    expect(row.token >= 0 && row.token < options_.vocabulary, "token outside the vocabulary");
    const std::uint64_t prefix = folded_to(row.place, row.place.position, row.drafts);
    cell_to_write(row.place.slot, row.place.row()) = {
        .hash = cell(prefix, row.token), .token = row.token, .drafts = row.drafts};
  }

  TokenId prediction(const CacheRow& place) {
    const Cell& own = at(place.slot, place.row());
    const std::uint64_t folded = folded_to(place, place.position + 1, own.drafts);
    if (options_.flip_rate > 0 && flips_.uniform() < options_.flip_rate) {
      return static_cast<TokenId>(flips_.below(static_cast<std::uint64_t>(options_.vocabulary)));
    }
    return choose(folded, own.token, own.drafts);
  }

  Options options_;
  CachePages pages_;
  std::vector<Cell> cells_;  ///< [pages · kCachePageRows]
  RandomStream flips_;
  TokenSampler sampler_;
  std::size_t largest_call_ = 0;
  std::int64_t calls_ = 0;
};

/// Ids below `vocabulary`, different for each `id`.
inline std::vector<TokenId> random_prompt(PromptId id, std::size_t length,
                                          std::uint64_t vocabulary) {
  RandomStream stream(7, RandomPurpose::test, 0, static_cast<std::uint64_t>(id));
  std::vector<TokenId> prompt(length);
  for (TokenId& token : prompt) {
    token = static_cast<TokenId>(stream.below(vocabulary));
  }
  return prompt;
}

/// A test may change them.
using Predictions = std::vector<std::vector<TokenId>>;

/// Forwards pending rows in slot 0, without the engine.
template <typename Tamper>
void drive_step(SequenceDecoder& decoder, DecodeModel& model, const Tamper& tamper) {
  std::vector<DecodeRow> rows;
  Predictions predictions;
  std::vector<CacheRow> first_rows;
  std::int32_t next_branch_row = model.slot_capacity();
  std::size_t wanted = 0;
  for (const DraftBranch& branch : decoder.pending()) {
    CacheRow place{.position = static_cast<std::int32_t>(branch.first_position)};
    if (branch.alternative) {
      place.fork = place.position;
      place.fork_row = next_branch_row;
      next_branch_row += static_cast<std::int32_t>(branch.tokens.size());
    }
    first_rows.push_back(place);
    for (std::size_t i = 0; i < branch.tokens.size(); ++i) {
      rows.push_back({branch.tokens[i], place, i >= branch.first_output, branch.drafts});
      ++place.position;
    }
    predictions.emplace_back(branch.tokens.size() - branch.first_output);
    wanted += predictions.back().size();
  }
  std::vector<TokenId> all(wanted);
  model.predict(rows, all);
  std::vector<BranchOutcome> outcomes;
  auto from = all.begin();
  for (std::vector<TokenId>& own : predictions) {
    std::copy_n(from, own.size(), own.begin());
    from += static_cast<std::ptrdiff_t>(own.size());
    outcomes.push_back({own});
  }
  tamper(predictions);
  const Commit commit = decoder.advance(outcomes);
  const CacheRow& first = first_rows.at(commit.branch);
  std::vector<CacheCopy> kept;
  for (std::int32_t i = 0; first.fork_row != 0 && i < commit.rows; ++i) {
    kept.push_back({0, first.fork_row + i, first.position + i});
  }
  model.keep_branches(kept);
}

/// Calls `after_step` after every advance().
template <typename AfterStep>
DecodeResult drive(SequenceDecoder& decoder, DecodeModel& model, const AfterStep& after_step) {
  while (!decoder.finished()) {
    drive_step(decoder, model, [](const Predictions&) {});
    after_step(decoder);
  }
  return decoder.take_result();
}

inline DecodeResult drive(SequenceDecoder& decoder, DecodeModel& model) {
  return drive(decoder, model, [](const SequenceDecoder&) {});
}

}  // namespace jforge::test
