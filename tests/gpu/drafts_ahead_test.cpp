/// Drafts that the device renews with a model, a pass ahead of the host, against the decoders of
/// the host.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "model/decoding/decode_engine.h"
#include "model/transformer/cache_pages.h"
#include "runtime/content_hash.h"
#include "tests/gpu/decoders_of_all_methods.h"
#include "tests/support/digest.h"
#include "tests/support/tested_kernel_set.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

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

}  // namespace
}  // namespace jforge
