/// Drafts that the device renews against the decoders of the host: by predictions that are drawn,
/// and with a model, a pass ahead.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string_view>

#include "model/decoding/decode_engine.h"
#include "model/transformer/cache_pages.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "tests/support/digest.h"
#include "tests/support/kernel_calls.h"
#include "tests/support/tested_kernel_set.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

constexpr std::int64_t kMostRows = 8192;
/// Row of a slot where its alternatives begin, in the tests without a model.
constexpr std::int64_t kBranchRow = 3 * kCachePageRows;
constexpr AttentionHeads kHeads{.heads = 4, .key_heads = 2, .size = 8};

/// Multi-block decoding with each of its settings at several values.
MultiBlockOptions multi_block_options(std::uint64_t which) {
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

/// Lookahead decoding with each of its settings at several values.
LookaheadOptions lookahead_options(std::uint64_t which) {
  return {.window = 1 + static_cast<std::int32_t>(which * 5 % 6),
          .ngram = 2 + static_cast<std::int32_t>(which * 2 % 5),
          .guesses = static_cast<std::int32_t>((which + 3) % 5),
          .ngram_pool = which % 3 == 0 ? 1024 : static_cast<std::int32_t>(which * 3 % 20),
          .seed = 9 + which,
          .round = 1};
}

constexpr std::uint64_t kMethods = 7;

/// Every method that a device renews drafts for, in turn.
std::unique_ptr<SequenceDecoder> make_decoder(std::uint64_t which, DecodeRequest request) {
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
      return make_lookahead_decoder(std::move(request), lookahead_options(which / kMethods));
    default:
      return make_prompt_lookup_decoder(
          std::move(request),
          {.block_size = n, .match_length = static_cast<std::int32_t>(1 + which % 4)});
  }
}

DecodeRequest random_request(std::uint64_t which, RandomStream& stream, std::int64_t vocabulary) {
  return {
      .id = static_cast<PromptId>((which << 33) + which),
      .prompt = random_tokens(stream, 1 + static_cast<std::int64_t>(stream.below(70)), vocabulary),
      .max_new_tokens = 1 + static_cast<std::int64_t>(stream.below(50)),
      .eos_ids = which % 3 == 0 ? std::vector<TokenId>{}
                                : std::vector<TokenId>{0, static_cast<TokenId>(vocabulary - 1)}};
}

/// Each setting alone and with others; never greedy decoding.
SamplingOptions sampling_options(std::uint64_t which) {
  const bool draws = which % 4 != 0;
  return {.temperature = draws ? 0.5 + static_cast<double>(which % 3) : 0,
          .top_p = which % 5 < 2 ? 0.7 : 1,
          .top_k = which % 3 == 1 ? 5 : 0,
          .repetition_penalty = !draws || which % 3 == 2 ? 10.0 : 1.0,
          .seed = which};
}

/// Decoders are told what was drawn, which is often what they drafted; so is the device. `sampled`:
/// drawn are logits, in which that token stands out, and the device samples from them.
class DrawnPredictions {
 public:
  using MakeDecoder = std::unique_ptr<SequenceDecoder> (*)(std::uint64_t, DecodeRequest);

  DrawnPredictions(std::uint64_t seed, std::size_t count, const Buffer& memory,
                   MakeDecoder make = make_decoder, std::int64_t vocabulary = 9,
                   const Buffer* sampled = nullptr, std::int64_t pages = 8)
      : memory_(memory),
        vocabulary_(vocabulary),
        sampled_(sampled),
        stream_(seed, RandomPurpose::test),
        slots_(static_cast<std::int64_t>(count), pages, 9) {
    for (std::size_t i = 0; i < count; ++i) {
      DecodeRequest request = random_request(seed + i, stream_, vocabulary);
      request.sampling = sampled == nullptr ? SamplingOptions{} : sampling_options(seed + i);
      decoders_.push_back(make(seed + i, std::move(request)));
      const std::vector<TokenId> first{static_cast<TokenId>(draw_token())};
      const BranchOutcome outcome{first};
      decoders_.back()->advance({&outcome, 1});
    }
  }

  /// `turns` passes, or until all have ended.
  void run(DraftPasses& passes, int turns) {
    begin(passes);
    for (int turn = 0; turn < turns && !drafts_.empty(); ++turn) {
      std::vector<TokenId> drawn(drafts_.size() * static_cast<std::size_t>(layout_.each()), -7);
      for (std::size_t i = 0; i < drafts_.size(); ++i) {
        if (const SequenceDecoder& decoder = *decoders_[owners_[i]]; !decoder.finished()) {
          draw(decoder, std::span(drawn).subspan(i * static_cast<std::size_t>(layout_.each())));
        }
      }
      const TensorView predictions = memory_.view(DType::int32, {kMostRows});
      if (sampled_ == nullptr) {
        const Shape shape{std::ssize(drawn)};
        copy_tensor(TensorView(drawn.data(), shape), memory_.view(DType::int32, shape));
        passes.queue([](const DecodePlan&) {}, predictions);
      } else {
        draw_logits(drawn);
        const TensorView logits = sampled_->floats({kMostRows, vocabulary_});
        passes.queue(
            [&](const DecodePlan& rows) {
              const std::int64_t count = rows.num_rows(DecodeRows::all);
              const std::int64_t step = 7 + count / 10;
              for (std::int64_t begin = 0; begin < count; begin += step) {
                const std::int64_t end = std::min(begin + step, count);
                passes.sample(begin, logits.rows(begin, end), predictions.rows(begin, end));
              }
            },
            predictions);
      }
      passes.read();
      bool all_ended = true;
      for (std::size_t i = 0; i < drafts_.size(); ++i) {
        all_ended = !compare(passes.rows(i), i) && all_ended;
      }
      if (all_ended) {
        return;
      }
    }
  }
  [[nodiscard]] bool finished() const {
    return std::ranges::all_of(decoders_, [](const auto& each) { return each->finished(); });
  }
  /// Passes in which an alternative was right for longer than the draft.
  [[nodiscard]] int accepted_alternatives() const { return accepted_alternatives_; }
  /// N-grams that a lookahead decoder had kept.
  [[nodiscard]] std::size_t largest_pool() const { return largest_pool_; }
  /// Rows of alternatives whose tokens were sampled with a penalty.
  [[nodiscard]] int penalised_alternative_rows() const { return penalised_alternative_rows_; }

 private:
  [[nodiscard]] std::uint64_t draw_token() {
    return stream_.below(static_cast<std::uint64_t>(vocabulary_));
  }

  void begin(DraftPasses& passes) {
    drafts_.clear();
    owners_.clear();
    for (std::size_t i = 0; i < decoders_.size(); ++i) {
      if (auto draft = decoders_[i]->draft_sequence()) {
        draft->slot = static_cast<std::int32_t>(decoders_.size() - 1 - i);
        drafts_.push_back(*draft);
        owners_.push_back(i);
      } else {
        EXPECT_TRUE(decoders_[i]->finished());
      }
    }
    if (!drafts_.empty()) {
      layout_ = draft_rows(drafts_);
      passes.begin(drafts_, slots_.table(), kBranchRow);
    }
  }

  /// What a pass predicts behind every row of a sequence, where DraftRows says.
  void draw(const SequenceDecoder& decoder, std::span<TokenId> predictions) {
    std::size_t own = 0;
    auto next_alternative = static_cast<std::size_t>(layout_.own);
    for (const DraftBranch& branch : decoder.pending()) {
      std::size_t& begin = branch.alternative ? next_alternative : own;
      // Long drafts are wholly right now and then, too.
      const std::uint64_t patience =
          layout_.own < 64 || stream_.below(4) >= (branch.alternative ? 3U : 1U) ? 4 : 1000;
      for (std::size_t i = 0; i < branch.tokens.size(); ++i) {
        predictions[begin + i] = i + 1 < branch.tokens.size() && stream_.below(patience) != 0
                                     ? branch.tokens[i + 1]
                                     : likely_token(decoder, branch, i);
      }
      begin += branch.alternative ? static_cast<std::size_t>(layout_.alternative_rows)
                                  : branch.tokens.size();
    }
  }
  /// Where an alternative leaves the draft behind its i-th token, often that one's.
  TokenId likely_token(const SequenceDecoder& decoder, const DraftBranch& branch, std::size_t i) {
    const std::int64_t next = branch.first_position + static_cast<std::int64_t>(i) + 1;
    const std::int64_t unseen =
        branch.alternative && stream_.below(3) == 0
            ? branch.first_position + static_cast<std::int64_t>(stream_.below(i + 1))
            : -1;
    for (const DraftBranch& other : decoder.pending()) {
      const std::int64_t at = unseen - other.first_position;
      if (!other.alternative && at >= 0 && at < std::ssize(other.tokens)) {
        // A token that the own rows have, and the alternative does not see.
        return other.tokens[static_cast<std::size_t>(at)];
      }
      if (!branch.alternative && other.alternative && other.first_position == next &&
          stream_.below(2) == 0) {
        return other.tokens[0];
      }
    }
    // Or what always follows that token, so that drafts are rejected that were before.
    const auto following = static_cast<TokenId>((branch.tokens[i] + 1) % vocabulary_);
    return stream_.below(4) != 0 ? following : static_cast<TokenId>(draw_token());
  }
  void draw_logits(std::span<const TokenId> drawn) {
    logits_.resize(drawn.size() * static_cast<std::size_t>(vocabulary_));
    for (float& logit : logits_) {
      logit = static_cast<float>(stream_.below(400)) / 100 - 2;
    }
    for (std::size_t row = 0; row < drawn.size(); ++row) {
      if (drawn[row] >= 0) {
        logits_[row * static_cast<std::size_t>(vocabulary_) +
                static_cast<std::size_t>(drawn[row])] += 8;
      }
    }
    const Shape shape{std::ssize(drawn), vocabulary_};
    copy_tensor(TensorView(logits_.data(), shape), sampled_->floats(shape));
  }
  /// What the host samples behind each of a branch's rows, the first of which is `row` of the pass.
  void expect_sampled(std::span<const DraftRow> rows, std::size_t row, const DraftBranch& branch,
                      std::span<const TokenId> text, const SequenceDecoder& decoder) {
    penalised_alternative_rows_ +=
        branch.alternative && decoder.sampling().penalises() ? static_cast<int>(rows.size()) : 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto width = static_cast<std::size_t>(vocabulary_);
      EXPECT_EQ(rows[i].prediction,
                sampler_.choose(std::span(logits_).subspan((row + i) * width, width),
                                {.options = decoder.sampling(),
                                 .request = decoder.id(),
                                 .position = rows[i].position + 1,
                                 .text = text,
                                 .alternative = branch.tokens.first(i + 1)}))
          << "row " << i << (branch.alternative ? " of an alternative" : " of its own");
    }
  }

  /// Whether the d-th of the drafted sequences had not ended before the pass.
  bool compare(std::span<const DraftRow> rows, std::size_t d) {
    const std::size_t i = owners_[d];
    if (decoders_[i]->finished()) {
      EXPECT_TRUE(rows.empty()) << "sequence " << i << " goes on behind its end";
      return false;
    }
    std::vector<TokenId> predictions;
    for (const DraftRow& row : rows) {
      predictions.push_back(row.prediction);
    }
    std::vector<BranchOutcome> outcomes;
    std::size_t next = 0;
    std::int64_t fork_row = kBranchRow;
    const std::size_t pass_begin = d * static_cast<std::size_t>(layout_.each());
    std::size_t alternatives = 0;
    const DraftSequence before = *decoders_[i]->draft_sequence();
    largest_pool_ = std::max(largest_pool_, before.window.pool.size);
    std::vector<TokenId> text(before.context.begin(), before.context.end());
    for (const DraftBranch& branch : decoders_[i]->pending()) {
      const std::size_t size = branch.tokens.size();
      if (rows.size() - next < size) {
        ADD_FAILURE() << "sequence " << i << " has " << rows.size() << " rows";
        return true;
      }
      for (std::size_t row = 0; row < size; ++row) {
        const DraftRow& found = rows[next + row];
        EXPECT_EQ(found.token, branch.tokens[row]) << "sequence " << i << ", row " << next + row;
        EXPECT_EQ(found.position, branch.first_position + static_cast<std::int64_t>(row));
        EXPECT_EQ(found.fork, branch.alternative ? branch.first_position : 0);
        EXPECT_EQ(found.fork_row, branch.alternative ? fork_row : 0);
      }
      if (sampled_ != nullptr) {
        const auto seen = static_cast<std::size_t>(branch.first_position);
        const std::size_t row =
            branch.alternative
                ? static_cast<std::size_t>(layout_.own) +
                      alternatives++ * static_cast<std::size_t>(layout_.alternative_rows)
                : next;
        expect_sampled(rows.subspan(next, size), pass_begin + row, branch,
                       std::span(text).first(seen), *decoders_[i]);
        if (!branch.alternative) {
          text.insert(text.end(), branch.tokens.begin(), branch.tokens.end());
        }
      }
      outcomes.push_back({std::span(predictions).subspan(next, size).subspan(branch.first_output)});
      fork_row += branch.alternative ? static_cast<std::int64_t>(size) : 0;
      next += size;
    }
    EXPECT_EQ(next, rows.size()) << "sequence " << i;
    std::vector<bool> alternative;
    for (const DraftBranch& branch : decoders_[i]->pending()) {
      alternative.push_back(branch.alternative);
    }
    const Commit commit = decoders_[i]->advance(outcomes);
    accepted_alternatives_ += alternative[commit.branch] && commit.rows > 0 ? 1 : 0;
    return true;
  }

  const Buffer& memory_;
  std::int64_t vocabulary_;
  const Buffer* sampled_;  ///< Logits [kMostRows, V]; null: nothing is.
  std::vector<float> logits_;
  TokenSampler sampler_;
  RandomStream stream_;
  test::FullSlots slots_;
  std::vector<std::unique_ptr<SequenceDecoder>> decoders_;
  std::vector<DraftSequence> drafts_;
  std::vector<std::size_t> owners_;
  DraftRows layout_;
  int accepted_alternatives_ = 0;
  std::size_t largest_pool_ = 0;
  int penalised_alternative_rows_ = 0;
};

/// Without a model.
struct PassesAlone {
  std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
  MemoryAccount account{"test"};
  std::unique_ptr<DecodePlan> plan =
      kernels->make_decode_plan(kHeads, DType::float32, kMostRows, account);
  std::unique_ptr<DraftPasses> passes = plan->make_draft_passes(true);
  Buffer memory{kMostRows * sizeof(TokenId), account, kernels->device()};
};

TEST(DraftPasses, DraftWhatTheDecodersDraft) {  // I29
  PassesAlone alone;
  auto& [kernels, account, plan, passes, memory] = alone;
  ASSERT_NE(passes, nullptr);
  for (std::uint64_t seed = 1; seed <= 60; seed += 12) {
    DrawnPredictions sequences(seed, 12, memory);
    // Stopped and begun again in the middle, with those that are left.
    for (int part = 0; part < 30 && !sequences.finished(); ++part) {
      sequences.run(*passes, part == 0 ? 5 : 100);
      if (::testing::Test::HasFailure()) {
        FAIL() << "of seed " << seed;
      }
    }
    EXPECT_TRUE(sequences.finished());
  }
  EXPECT_GT(passes->replays(), 0);
}

/// Texts of more tokens than all lanes of a block have on their way at once, in which the last ones
/// stood before in several places.
TEST(DraftPasses, LookupsSearchLongTexts) {  // I29
  constexpr std::int64_t kVocabulary = 40;
  PassesAlone alone;
  auto& [kernels, account, plan, passes, memory] = alone;
  const auto make = [](std::uint64_t which, DecodeRequest request) {
    RandomStream stream(which, RandomPurpose::test);
    request.prompt =
        random_tokens(stream, 1010 + 450 * static_cast<std::int64_t>(which % 4), kVocabulary);
    request.eos_ids.clear();
    request.max_new_tokens = 40;
    return make_prompt_lookup_decoder(
        std::move(request),
        {.block_size = 6, .match_length = static_cast<std::int32_t>(1 + which % 4)});
  };
  for (std::uint64_t seed = 1; seed <= 8; seed += 4) {
    DrawnPredictions sequences(seed, 4, memory, make, kVocabulary, nullptr, 2500 / kCachePageRows);
    sequences.run(*passes, 100);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "of seed " << seed;
    EXPECT_TRUE(sequences.finished());
  }
}

TEST(DraftPasses, DraftWhatMultiBlockDecodersDraft) {  // I29
  PassesAlone alone;
  auto& [kernels, account, plan, passes, memory] = alone;
  const auto make = [](std::uint64_t which, DecodeRequest request) {
    if (which % 4 != 0) {
      request.eos_ids.clear();
    }
    return make_multi_block_decoder(std::move(request), multi_block_options(which));
  };
  // Blocks of more tokens than a warp has lanes.
  const auto make_large = [](std::uint64_t which, DecodeRequest request) {
    request.eos_ids = {1000};  // looked for, but never drawn
    request.prompt.resize(1);
    request.max_new_tokens += 130;
    MultiBlockOptions options = multi_block_options(which);
    options.block_size = 50;
    options.blocks = 2;
    options.verification_size = 3;
    options.ngram_pool = 6;
    return make_multi_block_decoder(std::move(request), options);
  };
  // Short drafts of three tokens: much of what is rejected was rejected before.
  const auto make_small = [](std::uint64_t which, DecodeRequest request) {
    request.eos_ids.clear();
    request.prompt.resize(1);
    request.max_new_tokens += 100;
    MultiBlockOptions options = multi_block_options(which);
    options.block_size = 4;
    options.blocks = 1;
    options.verification_size = 4;
    options.ngram_pool = 3 + static_cast<std::int32_t>(which % 6);
    return make_multi_block_decoder(std::move(request), options);
  };
  int accepted = 0;
  const auto run = [&](std::uint64_t seed, std::size_t count,
                       DrawnPredictions::MakeDecoder make_decoders, std::int64_t vocabulary) {
    DrawnPredictions sequences(seed, count, memory, make_decoders, vocabulary);
    for (int part = 0; part < 30 && !sequences.finished(); ++part) {
      sequences.run(*passes, part == 0 ? 6 : 100);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "of seed " << seed;
    }
    EXPECT_TRUE(sequences.finished());
    accepted += sequences.accepted_alternatives();
  };
  for (std::uint64_t seed = 1; seed <= 120; seed += 4) {
    run(seed, 4, make, 9);
  }
  EXPECT_GT(accepted, 20);
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    run(seed, 2, make_large, 9);
  }
  EXPECT_GT(accepted, 40) << "of blocks of 50 tokens too few";
  for (std::uint64_t seed = 1; seed <= 20; seed += 4) {
    run(seed, 4, make_small, 3);
  }
  EXPECT_GT(passes->replays(), 0);
}

TEST(DraftPasses, DraftWhatLookaheadDecodersDraft) {  // I29
  PassesAlone alone;
  auto& [kernels, account, plan, passes, memory] = alone;
  const auto make = [](std::uint64_t which, DecodeRequest request) {
    if (which % 4 != 0) {
      request.eos_ids.clear();
    }
    return make_lookahead_decoder(std::move(request), lookahead_options(which));
  };
  // Few different n-grams and fewer that are kept: most of what a pass makes it made before, has
  // just dropped, or makes twice.
  const auto make_small = [](std::uint64_t which, DecodeRequest request) {
    request.eos_ids.clear();
    request.prompt.resize(1);
    request.max_new_tokens += 100;
    LookaheadOptions options = lookahead_options(which);
    options.window = which % 5 == 0 ? 140 : 12;  // more columns than lanes, too
    options.ngram = 2 + static_cast<std::int32_t>(which % 2);
    options.guesses = 3;
    options.ngram_pool = static_cast<std::int32_t>(which % 20);
    return make_lookahead_decoder(std::move(request), options);
  };
  // As many n-grams as are kept by default, and more.
  const auto make_large = [](std::uint64_t which, DecodeRequest request) {
    request.eos_ids = {1000};  // looked for, but never drawn
    request.prompt.resize(1);
    request.max_new_tokens = 160;
    return make_lookahead_decoder(std::move(request),
                                  {.window = 130, .ngram = 3, .guesses = 30, .seed = which});
  };
  int accepted = 0;
  std::size_t largest_pool = 0;
  const auto run = [&](std::uint64_t seed, std::size_t count,
                       DrawnPredictions::MakeDecoder make_decoders, std::int64_t vocabulary) {
    DrawnPredictions sequences(seed, count, memory, make_decoders, vocabulary);
    for (int part = 0; part < 30 && !sequences.finished(); ++part) {
      sequences.run(*passes, 5 + 20 * part);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "of seed " << seed;
    }
    EXPECT_TRUE(sequences.finished());
    accepted += sequences.accepted_alternatives();
    largest_pool = std::max(largest_pool, sequences.largest_pool());
  };
  for (std::uint64_t seed = 1; seed <= 240; seed += 4) {
    run(seed, 4, make, 9);
  }
  EXPECT_GT(accepted, 100);
  accepted = 0;
  for (std::uint64_t seed = 1; seed <= 40; seed += 2) {
    run(seed, 2, make_small, 3);
  }
  EXPECT_GT(accepted, 100);
  accepted = 0;
  for (std::uint64_t seed = 1; seed <= 4; seed += 2) {
    run(seed, 2, make_large, 16);
  }
  EXPECT_GT(accepted, 20);
  EXPECT_EQ(largest_pool, 1024U);
  EXPECT_GT(passes->replays(), 0);
}

/// Of every row, alternatives' too, with the text that it sees.
TEST(DraftPasses, SampleWhatTheHostSamples) {  // I23
  constexpr std::int64_t kVocabulary = 33;     // more than a word of tokens that were seen
  PassesAlone alone;
  auto& [kernels, account, plan, passes, memory] = alone;
  const Buffer logits(kMostRows * kVocabulary * sizeof(float), account, kernels->device());
  const auto make = [](std::uint64_t which, DecodeRequest request) {
    switch ((which - 1) / 4 % 3) {  // One for a batch of four.
      case 0:
        return make_multi_block_decoder(std::move(request), multi_block_options(which));
      case 1:
        return make_lookahead_decoder(std::move(request), lookahead_options(which));
      default:
        return make_decoder(which, std::move(request));
    }
  };
  int alternative_rows = 0;
  for (std::uint64_t seed = 1; seed <= 96; seed += 4) {
    DrawnPredictions sequences(seed, 4, memory, make, kVocabulary, &logits);
    for (int part = 0; part < 30 && !sequences.finished(); ++part) {
      sequences.run(*passes, part == 0 ? 5 : 100);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "of seed " << seed;
    }
    EXPECT_TRUE(sequences.finished());
    alternative_rows += sequences.penalised_alternative_rows();
  }
  EXPECT_GT(alternative_rows, 50);
  EXPECT_GT(passes->replays(), 0);
}

/// More batches are begun than staged arrays have places, the last a larger one, and nobody waits
/// for what they report: each has to find what is under way out of its way.
TEST(DraftPasses, BegunAnewWhileADeviceLagsBehind) {
  constexpr std::int32_t kBatches = 20;
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("test");
  const auto plan = kernels->make_decode_plan(kHeads, DType::float32, kMostRows, account);
  const auto passes = plan->make_draft_passes(false);
  const test::FullSlots slots(1, 4, 1);
  const Buffer chosen(kMostRows * sizeof(TokenId), account, kernels->device());
  const Buffer log(kBatches * sizeof(TokenId), account, kernels->device());
  const TensorView tokens = log.view(DType::int32, {kBatches});
  const std::vector<TokenId> context(100, 7);
  for (std::int32_t i = 0; i < kBatches; ++i) {
    const std::vector<TokenId> draft(i + 1 < kBatches ? 4 : 60, i);
    DraftSequence sequence;
    sequence.block_size = static_cast<std::int32_t>(draft.size());
    sequence.prompt_length = 90;
    sequence.max_new_tokens = 160;
    sequence.context = context;
    sequence.draft = draft;
    sequence.max_positions = 249;
    passes->begin({&sequence, 1}, slots.table(), 0);
    passes->queue(
        [&](const DecodePlan& rows) {
          kernels->queue().copy(rows.rows(DecodeRows::all).tokens.rows(0, 1),
                                tokens.rows(i, i + 1));
        },
        chosen.view(DType::int32, {kMostRows}));
  }
  passes->read();
  ASSERT_EQ(passes->rows(0).size(), 60U);
  for (const DraftRow& row : passes->rows(0)) {
    EXPECT_EQ(row.token, kBatches - 1);
    EXPECT_EQ(row.prediction, 0);
  }
  std::vector<TokenId> seen(kBatches);
  copy_tensor(tokens, TensorView(seen.data(), {kBatches}));
  for (std::int32_t i = 0; i < kBatches; ++i) {
    EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
  }
}

/// One of each method, and one more of each that has alternatives.
constexpr std::uint64_t kSequences = kMethods + 2;

struct Decoding {
  std::vector<DecodeResult> results;  ///< By id.
  DecodeStatistics statistics;
  std::int64_t replays = 0;
};

/// Tokens, states and counts, in one number.
std::uint64_t digest(const Decoding& decoding) {
  std::uint64_t hash = 0;
  const auto add = [&](const auto& values) {
    hash = hash64(std::as_bytes(std::span(values)), hash);
  };
  for (const DecodeResult& result : decoding.results) {
    add(result.tokens);
    add(result.accepted);
    add(std::array{result.forwards, static_cast<std::int64_t>(result.stop)});
    for (const TrajectoryBlock& block : result.blocks) {
      add(block.states);
    }
  }
  return hash;
}

Decoding decode(TinyModel& model, KernelSet& kernels, std::int32_t batch,
                InferenceTransformer::Options options, const SamplingOptions& sampling = {}) {
  options.num_slots = batch;
  options.slot_capacity = 256;
  options.branch_rows = 64;
  InferenceTransformer transformer(model.config, model.table, model.flat(), kernels, model.account,
                                   options);
  DecodeEngine engine(transformer, batch);
  RandomStream stream(21, RandomPurpose::test);
  std::vector<std::unique_ptr<SequenceDecoder>> decoders;
  for (std::uint64_t i = 0; i < kSequences; ++i) {
    DecodeRequest request = random_request(i, stream, 37);
    // Contexts of one split of keys, and of two.
    request.prompt = random_tokens(stream, i == 1 ? 120 : 3 + 5 * static_cast<std::int64_t>(i));
    request.max_new_tokens = 9 + 3 * static_cast<std::int64_t>(i);
    // One greedily among them.
    request.sampling = i == 2 ? SamplingOptions{} : sampling;
    decoders.push_back(
        i < kMethods ? make_decoder(i, std::move(request))
        : i % 2 == 0 ? make_multi_block_decoder(std::move(request), multi_block_options(15 + i))
                     : make_lookahead_decoder(std::move(request), lookahead_options(i)));
  }
  Decoding decoding;
  decoding.results = decode_all(engine, std::move(decoders));
  std::ranges::sort(decoding.results, {}, &DecodeResult::id);
  decoding.statistics = engine.statistics();
  decoding.replays = transformer.replays();
  EXPECT_EQ(transformer.free_pages(), batch * cache_pages(256, options.branch_rows));
  return decoding;
}

TEST(DraftsAhead, GiveTheDecodersTokensForwardsAndStates) {  // I29
  const auto kernels = make_tested_kernel_set();
  TinyModel model;
  const Decoding host = decode(model, *kernels, 3, {.device_drafts = false});
  const Decoding cpu = decode(model, *model.kernels, 4, {});
  EXPECT_EQ(digest(host), digest(cpu));
  ASSERT_EQ(host.results.size(), kSequences);
  for (const std::int32_t batch : {1, 3, 5}) {
    const bool replay = batch != 5;
    const Decoding ahead = decode(model, *kernels, batch, {.replay = replay});
    ASSERT_EQ(ahead.results.size(), host.results.size());
    for (std::size_t i = 0; i < host.results.size(); ++i) {
      EXPECT_EQ(ahead.results[i].tokens, host.results[i].tokens) << i;
      EXPECT_EQ(ahead.results[i].accepted, host.results[i].accepted) << i;
      EXPECT_EQ(ahead.results[i].forwards, host.results[i].forwards) << i;
      EXPECT_EQ(ahead.results[i].prefill_forwards, 1) << i;
    }
    EXPECT_EQ(digest(ahead), digest(host)) << batch;
    EXPECT_EQ(ahead.statistics.forwards, host.statistics.forwards);
    EXPECT_EQ(ahead.statistics.tokens, host.statistics.tokens);
    EXPECT_EQ(ahead.statistics.rows, host.statistics.rows);
    EXPECT_EQ(ahead.replays > 0, replay);
  }
  EXPECT_EQ(model.account.live_bytes(), 0U);
}

/// Each pass is compared with the decoder.
void expect_one_recorded_pass(
    const std::function<std::unique_ptr<SequenceDecoder>(DecodeRequest)>& make) {
  const auto kernels = make_tested_kernel_set();
  TinyModel model;
  InferenceTransformer transformer(model.config, model.table, model.flat(), *kernels, model.account,
                                   {.slot_capacity = 192, .branch_rows = 192});
  DecodeEngine engine(transformer, 1);
  RandomStream stream(8, RandomPurpose::test);
  engine.admit(make({.prompt = random_tokens(stream, 20), .max_new_tokens = 170}));
  // A prefill, a pass that runs, one that is recorded; another is under way.
  constexpr std::int64_t kBefore = 3;
  for (std::int64_t step = 0; step < kBefore; ++step) {
    engine.step();
  }
  const std::int64_t replays = transformer.replays();
  constexpr std::int64_t kSteps = 4;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    engine.step();
  }
  EXPECT_EQ(transformer.replays(), replays + kSteps);
}

/// 317 rows a pass, more than plans of the host's batches are recorded for.
TEST(DraftsAhead, ThePapersMultiBlockSettingIsOneRecordedPass) {  // I29
  expect_one_recorded_pass([](DecodeRequest request) {
    return make_multi_block_decoder(
        std::move(request),
        {.block_size = 64, .blocks = 2, .verification_size = 4, .ngram_pool = 64});
  });
}
TEST(DraftsAhead, PseudoBlocksOnEveryRowAreOneRecordedPass) {  // I29
  expect_one_recorded_pass([](DecodeRequest request) {
    return make_multi_block_decoder(std::move(request), {.block_size = 32,
                                                         .ngram_pool = 4,
                                                         .spawn = SpawnMode::clone,
                                                         .pseudo_on_every_row = true});
  });
}
TEST(DraftsAhead, LookaheadOfTheAuthorsSettingIsOneRecordedPass) {  // I29
  expect_one_recorded_pass(
      [](DecodeRequest request) { return make_lookahead_decoder(std::move(request), {}); });
}

/// A function of the emulated device's; null elsewhere.
template <class Function>
Function* emulators(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

/// The host waits once for what it reads of a pass, which comes in one copy; it sends nothing. With
/// every family of drafts, greedy and sampled, in one batch.
TEST(DraftsAhead, AWarmStepIsOneCopyAndOneWait) {
  const auto waits = emulators<std::uint64_t()>("jforge_emulated_host_waits");
  const auto keep = emulators<std::uint64_t(int)>("jforge_emulated_keep_work");
  const auto name = emulators<const char*(std::uint64_t)>("jforge_emulated_work_name");
  if (waits == nullptr || keep == nullptr || name == nullptr) {
    GTEST_SKIP() << "nothing but the emulated device counts";
  }
  const auto kernels = make_tested_kernel_set();
  TinyModel model;
  InferenceTransformer transformer(model.config, model.table, model.flat(), *kernels, model.account,
                                   {.num_slots = 4, .slot_capacity = 192, .branch_rows = 64});
  DecodeEngine engine(transformer, 4);
  RandomStream stream(10, RandomPurpose::test);
  const auto request = [&](PromptId id, const SamplingOptions& sampling) {
    return DecodeRequest{
        .id = id, .prompt = random_tokens(stream, 9), .max_new_tokens = 150, .sampling = sampling};
  };
  engine.admit(make_jacobi_decoder(request(0, {}), {.block_size = 4}));
  engine.admit(make_multi_block_decoder(
      request(1, {.temperature = 1, .top_p = 0.9, .repetition_penalty = 1.2}),
      {.block_size = 4, .blocks = 2, .verification_size = 2, .ngram_pool = 4}));
  engine.admit(make_lookahead_decoder(request(2, {}), {.window = 3, .ngram = 3, .guesses = 2}));
  engine.admit(make_greedy_decoder(request(3, {.temperature = 1})));
  // Prefills, a pass that runs, one that is recorded.
  for (int step = 0; step < 4; ++step) {
    engine.step();
  }
  constexpr std::uint64_t kSteps = 5;
  const std::int64_t replays = transformer.replays();
  const std::uint64_t begin = keep(1);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const std::uint64_t before = waits();
    engine.step();
    EXPECT_LE(waits() - before, 1U) << step;
  }
  std::uint64_t copies = 0;
  const std::uint64_t end = keep(0);
  for (std::uint64_t work = begin; work < end; ++work) {
    copies += std::string_view(name(work)) == "a copy" ? 1 : 0;
  }
  EXPECT_EQ(copies, kSteps);
  EXPECT_EQ(transformer.replays(), replays + static_cast<std::int64_t>(kSteps));
  EXPECT_EQ(engine.running(), 4U);
}

TEST(SampledOnADevice, HasTheCpusTokensForwardsAndStates) {  // I23
  const auto kernels = make_tested_kernel_set();
  TinyModel model;
  const std::uint64_t greedy = digest(decode(model, *model.kernels, 3, {}));
  for (const SamplingOptions& sampling :
       {SamplingOptions{.temperature = 1, .seed = 4},
        SamplingOptions{.temperature = 1.5, .top_p = 0.8, .top_k = 12, .seed = 4},
        SamplingOptions{.repetition_penalty = 1.4},
        SamplingOptions{.temperature = 0.3, .top_p = 0.9, .repetition_penalty = 1.1, .seed = 5}}) {
    const std::uint64_t expected = digest(decode(model, *model.kernels, 4, {}, sampling));
    EXPECT_NE(expected, greedy);
    for (const bool ahead : {false, true}) {
      const Decoding decoding = decode(model, *kernels, 3, {.device_drafts = ahead}, sampling);
      EXPECT_EQ(digest(decoding), expected) << ahead;
      EXPECT_TRUE(!ahead || decoding.replays > 0);
    }
  }
  EXPECT_EQ(model.account.live_bytes(), 0U);
}

/// What a sequence leaves unread when it ends, and a prompt that comes in the middle.
TEST(DraftsAhead, SequencesThatEndOrComeWhileAPassIsUnderWay) {
  const auto kernels = make_tested_kernel_set();
  TinyModel model;
  const auto run = [&](bool device_drafts) {
    InferenceTransformer transformer(
        model.config, model.table, model.flat(), *kernels, model.account,
        {.num_slots = 2, .slot_capacity = 64, .branch_rows = 64, .device_drafts = device_drafts});
    DecodeEngine engine(transformer, 2);
    RandomStream stream(4, RandomPurpose::test);
    std::vector<DecodeResult> results;
    for (PromptId id = 0; std::cmp_less(id, kMethods); ++id) {
      engine.admit(make_decoder(
          static_cast<std::uint64_t>(id),
          {.id = id, .prompt = random_tokens(stream, 3 + 2 * id), .max_new_tokens = 4 + 3 * id}));
      for (int step = 0; step < 3 && engine.running() > 0; ++step) {
        engine.step();
      }
      if (id == 2) {
        engine.clear();  // with a pass that nobody reads
      }
      while (engine.free_slots() == 0) {
        engine.step();
      }
    }
    while (engine.running() > 0) {
      engine.step();
    }
    while (auto result = engine.take_finished()) {
      results.push_back(std::move(*result));
    }
    Decoding decoding;
    decoding.results = std::move(results);
    return digest(decoding);
  };
  const std::uint64_t expected = run(false);
  EXPECT_EQ(run(true), expected);
  test::print_digest(expected);
}

/// A window of one column reaches further by its n-grams than by its own rows: here to keys of a
/// split that those do not see yet.
TEST(DraftsAhead, NgramsSeeKeysBehindTheOwnRows) {  // I29
  const auto kernels = make_tested_kernel_set();
  TinyModel model;
  const auto run = [&](std::int64_t prompt, bool device_drafts) {
    InferenceTransformer transformer(
        model.config, model.table, model.flat(), *kernels, model.account,
        {.num_slots = 2, .slot_capacity = 320, .branch_rows = 64, .device_drafts = device_drafts});
    DecodeEngine engine(transformer, 2);
    RandomStream stream(6, RandomPurpose::test);
    engine.admit(
        make_lookahead_decoder({.prompt = random_tokens(stream, prompt), .max_new_tokens = 50},
                               {.window = 1, .ngram = 8, .guesses = 7}));
    // The window is whole when another sequence has the device begin anew.
    for (int step = 0; step < 9; ++step) {
      engine.step();
    }
    engine.admit(
        make_greedy_decoder({.id = 1, .prompt = random_tokens(stream, 3), .max_new_tokens = 50}));
    Decoding decoding;
    while (engine.running() > 0) {
      engine.step();
      while (auto result = engine.take_finished()) {
        decoding.results.push_back(std::move(*result));
      }
    }
    return digest(decoding);
  };
  for (const std::int64_t prompt : {226, 230}) {
    EXPECT_EQ(run(prompt, true), run(prompt, false)) << prompt;
  }
}

TEST(DraftPasses, NaNIsRefused) {
  const auto kernels = make_tested_kernel_set();
  MemoryAccount account("test");
  const auto plan = kernels->make_decode_plan(kHeads, DType::float32, 64, account);
  const auto passes = plan->make_draft_passes(true);
  const test::FullSlots slots(1, 2, 1);
  const std::vector<TokenId> context{4, 5, 6};
  const std::vector<TokenId> draft{7, 8};
  DraftSequence sequence;
  sequence.block_size = 2;
  sequence.prompt_length = 3;
  sequence.max_new_tokens = 20;
  sequence.context = context;
  sequence.draft = draft;
  sequence.max_positions = 22;
  passes->begin({&sequence, 1}, slots.table(), 0);
  std::vector<TokenId> chosen{8, kNoToken};
  const Buffer memory(sizeof(TokenId) * 2, account, kernels->device());
  copy_tensor(TensorView(chosen.data(), {2}), memory.view(DType::int32, {2}));
  passes->queue([](const DecodePlan&) {}, memory.view(DType::int32, {2}));
  passes->queue([](const DecodePlan&) {}, memory.view(DType::int32, {2}));
  EXPECT_THROW(passes->queue([](const DecodePlan&) {}, memory.view(DType::int32, {2})),
               InternalError);
  EXPECT_THROW(passes->read(), NumericalError);
  passes->read();
  EXPECT_TRUE(passes->rows(0).empty());
}

}  // namespace
}  // namespace jforge
