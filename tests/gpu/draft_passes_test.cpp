/// Drafts that the device renews against the decoders of the host, by predictions that are drawn.

#include <gtest/gtest.h>

#include <algorithm>

#include "model/transformer/cache_pages.h"
#include "runtime/error.h"
#include "tests/gpu/decoders_of_all_methods.h"
#include "tests/gpu/device_tensor.h"
#include "tests/support/kernel_calls.h"
#include "tests/support/tested_kernel_set.h"

namespace jforge {
namespace {

constexpr std::int64_t kMostRows = 8192;
/// Row of a slot where its alternatives begin, in the tests without a model.
constexpr std::int64_t kBranchRow = 3 * kCachePageRows;
constexpr AttentionHeads kHeads{.heads = 4, .key_heads = 2, .size = 8};

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

/// What was recorded of a batch serves others whose slots have as many pages, however far they go.
/// Where slots have more, all memory may be where it was, but the table of rotations that it reads
/// ends before their positions.
TEST(DraftPasses, FurtherPositionsNeedALargerTable) {
  constexpr std::int64_t kRows = 4;
  const auto kernels = make_tested_kernel_set();
  const auto reference = make_cpu_kernel_set();
  MemoryAccount account("test");
  const auto plan = kernels->make_decode_plan(kHeads, DType::float32, kMostRows, account);
  const auto passes = plan->make_draft_passes(true);
  const test::FullSlots few_pages(1, 9, 1);  // 576 rows.
  const test::FullSlots many_pages(1, 12, 1);
  const Buffer chosen(kMostRows * sizeof(TokenId), account, kernels->device());
  const Shape shape{kRows, kHeads.heads, kHeads.size};
  const test::Floats start = test::random_floats(shape.elements(), 3);
  const test::DeviceTensor rotated(*kernels, account, start, shape);
  const auto begin = [&](const test::FullSlots& slots, std::int64_t context,
                         std::int64_t positions) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(context), 7);
    const std::vector<TokenId> draft(kRows, 5);  // Predicted is 0.
    DraftSequence sequence;
    sequence.block_size = kRows;
    sequence.prompt_length = 500;
    sequence.max_new_tokens = positions + 1 - kRows - sequence.prompt_length;
    sequence.context = tokens;
    sequence.draft = draft;
    sequence.max_positions = positions;
    passes->begin({&sequence, 1}, slots.table(), 0);
  };
  const auto pass = [&] {
    copy_tensor(ConstTensorView(start.data(), shape), rotated.view());
    passes->queue(
        [&](const DecodePlan& rows) {
          kernels->rotary(rotated.view(), {}, rows.rows(DecodeRows::all), {});
        },
        chosen.view(DType::int32, {kMostRows}));
    passes->read();
    const test::Floats found = rotated.values();
    for (std::size_t i = 0; i < passes->rows(0).size(); ++i) {
      const std::vector<std::int32_t> positions(1, passes->rows(0)[i].position);
      const Shape row{1, kHeads.heads, kHeads.size};
      const auto at = [&](const test::Floats& values) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(i) * row.elements();
        return test::Floats(first, first + row.elements());
      };
      test::Floats expected = at(start);
      test::rotary(*reference, TensorView(expected.data(), row), positions, {});
      EXPECT_TRUE(test::same_bits(at(found), expected)) << "position " << positions[0];
    }
  };
  begin(many_pages, 580, 700);  // Makes room.
  begin(few_pages, 515, 540);
  for (int i = 0; i < 3; ++i) {
    pass();
  }
  EXPECT_EQ(passes->replays(), 1);
  begin(few_pages, 520, 576);
  pass();
  pass();
  EXPECT_EQ(passes->replays(), 3);
  begin(many_pages, 580, 700);
  for (int i = 0; i < 3; ++i) {
    pass();
  }
  EXPECT_EQ(passes->replays(), 4);
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
