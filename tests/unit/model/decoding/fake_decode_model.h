#pragma once

/// A decode model without arithmetic, whose cache misleads a driver that misuses it: a cell
/// remembers the prefix it was computed from, and a prediction depends on every cell it sees.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/decoding/sequence_decoder.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge::test {

/// The next-token function and a cache that holds what a transformer's would: cell p depends on the
/// tokens that stood at 0 … p when it was written.
class FakeDecodeModel final : public DecodeModel {
 public:
  struct Options {
    std::int32_t num_slots = 8;
    std::int32_t slot_capacity = 512;
    std::int32_t vocabulary = 17;
    /// Of 8 tokens, how many have a successor that depends on them alone: what Jacobi can guess.
    std::uint64_t local = 5;
    /// Probability of a prediction that ignores the cells: arithmetic that is not reproducible.
    double flip_rate = 0;
  };

  explicit FakeDecodeModel(const Options& options)
      : options_(options),
        cells_(static_cast<std::size_t>(options.num_slots) *
               static_cast<std::size_t>(options.slot_capacity)),
        flips_(1, RandomPurpose::test) {}

  [[nodiscard]] std::int32_t num_slots() const override { return options_.num_slots; }
  [[nodiscard]] std::int32_t slot_capacity() const override { return options_.slot_capacity; }

  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override {
    expect(!rows.empty(), "predict() without rows");
    largest_call_ = std::max(largest_call_, rows.size());
    ++calls_;
    std::vector<std::int32_t> last(static_cast<std::size_t>(options_.num_slots), -1);
    std::size_t output = 0;
    for (const DecodeRow& row : rows) {
      auto& last_position = last.at(static_cast<std::size_t>(row.place.slot));
      expect(row.place.position > last_position, "rows of a slot must ascend");
      last_position = row.place.position;
      write(row);
      if (row.wants_output) {
        expect(output < predictions.size(), "too few predictions");
        predictions[output++] = prediction(row.place);
      }
    }
    expect(output == predictions.size(), "too many predictions");
  }

  /// What a fresh forward over `prefix` predicts.
  [[nodiscard]] TokenId next(std::span<const TokenId> prefix) const {
    std::uint64_t folded = 0;
    for (const TokenId token : prefix) {
      folded = fold(folded, cell(folded, token));
    }
    return choose(folded, prefix.back());
  }

  /// Greedy continuation of `prompt` by fresh forwards.
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
  };

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

  [[nodiscard]] TokenId choose(std::uint64_t folded, TokenId last) const {
    const std::uint64_t own = mix(static_cast<std::uint64_t>(last) + 77);
    const std::uint64_t source = own % 8 < options_.local ? own >> 8 : folded >> 8;
    return static_cast<TokenId>(source % static_cast<std::uint64_t>(options_.vocabulary));
  }

  Cell& at(std::int32_t slot, std::int32_t position) {
    expect(slot >= 0 && slot < options_.num_slots && position >= 0 &&
               position < options_.slot_capacity,
           "row outside the cache");
    return cells_[static_cast<std::size_t>(slot) *
                      static_cast<std::size_t>(options_.slot_capacity) +
                  static_cast<std::size_t>(position)];
  }

  std::uint64_t folded_to(std::int32_t slot, std::int32_t end) {
    std::uint64_t folded = 0;
    for (std::int32_t position = 0; position < end; ++position) {
      const Cell& seen = at(slot, position);
      expect(seen.token >= 0, "a row sees a position that was never written");
      folded = fold(folded, seen.hash);
    }
    return folded;
  }

  void write(const DecodeRow& row) {
    expect(row.token >= 0 && row.token < options_.vocabulary, "token outside the vocabulary");
    const std::uint64_t prefix = folded_to(row.place.slot, row.place.position);
    at(row.place.slot, row.place.position) = {.hash = cell(prefix, row.token), .token = row.token};
  }

  TokenId prediction(const CacheRow& place) {
    const std::uint64_t folded = folded_to(place.slot, place.position + 1);
    if (options_.flip_rate > 0 && flips_.uniform() < options_.flip_rate) {
      return static_cast<TokenId>(flips_.below(static_cast<std::uint64_t>(options_.vocabulary)));
    }
    return choose(folded, at(place.slot, place.position).token);
  }

  Options options_;
  std::vector<Cell> cells_;
  RandomStream flips_;
  std::size_t largest_call_ = 0;
  std::int64_t calls_ = 0;
};

/// A prompt of `length` ids below `vocabulary`, different for each id.
inline std::vector<TokenId> random_prompt(PromptId id, std::size_t length,
                                          std::uint64_t vocabulary) {
  RandomStream stream(7, RandomPurpose::test, 0, static_cast<std::uint64_t>(id));
  std::vector<TokenId> prompt(length);
  for (TokenId& token : prompt) {
    token = static_cast<TokenId>(stream.below(vocabulary));
  }
  return prompt;
}

/// Drives one decoder alone in slot 0, without the batch decoder. `after_step` sees the decoder
/// after every advance().
template <typename AfterStep>
DecodeResult drive(SequenceDecoder& decoder, DecodeModel& model, const AfterStep& after_step) {
  while (!decoder.finished()) {
    std::vector<DecodeRow> rows;
    const auto pending = decoder.pending();
    for (std::size_t i = 0; i < pending.size(); ++i) {
      rows.push_back({.token = pending[i],
                      .place = {.slot = 0,
                                .position = static_cast<std::int32_t>(decoder.kv_length()) +
                                            static_cast<std::int32_t>(i)},
                      .wants_output = i >= decoder.first_output()});
    }
    std::vector<TokenId> predictions(pending.size() - decoder.first_output());
    model.predict(rows, predictions);
    decoder.advance(predictions);
    after_step(decoder);
  }
  return decoder.take_result();
}

inline DecodeResult drive(SequenceDecoder& decoder, DecodeModel& model) {
  return drive(decoder, model, [](const SequenceDecoder&) {});
}

}  // namespace jforge::test
