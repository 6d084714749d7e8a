/// Jacobi and multi-block decoding equal greedy decoding on the quickstart's held-out problems
/// (METHOD.md I1, I2, I18), for every block size and window. JFORGE_QUICKSTART_PROBLEMS limits the
/// problems.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoints/hf_model.h"
#include "data/tasks/task.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "model/decoding/decode_engine.h"
#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/multi_block_decoder.h"
#include "model/transformer/inference_transformer.h"
#include "tests/support/tested_kernel_set.h"
#include "tests/support/whole_weights.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

std::size_t wanted_problems() {
  const char* const wanted = std::getenv("JFORGE_QUICKSTART_PROBLEMS");
  return wanted == nullptr ? 8 : std::max(1UL, std::strtoul(wanted, nullptr, 10));
}
const std::size_t kProblems = wanted_problems();
const std::size_t kMultiBlockProblems = std::min<std::size_t>(6, kProblems);
constexpr std::int32_t kMostAlternatives = 3;
constexpr std::int64_t kMaxNewTokens = 272;
constexpr std::int32_t kLargestBlock = 64;
constexpr std::int32_t kSlots = 24;

using DecoderMaker = std::function<std::unique_ptr<SequenceDecoder>(DecodeRequest)>;

/// The quickstart's directory; ctest sets the variable.
fs::path quickstart_directory() {
  const char* const source = std::getenv("JFORGE_SOURCE_DIR");
  return fs::path(source == nullptr ? "." : source) / "launch" / "quickstart";
}

/// The quickstart's model, its kProblems shortest test problems and their greedy answers.
class Quickstart {
 public:
  explicit Quickstart(const fs::path& directory)
      : config_(read_hf_config(directory / "model")),
        table_(config_, 1),
        weights_(static_cast<std::size_t>(table_.flat_size()) * sizeof(float), account_),
        kernels_(make_tested_kernel_set()) {
    const TensorView flat = weights_.floats({table_.flat_size()});
    test::load_hf_weights(directory / "model", config_, table_, flat);
    load_prompts(directory);
    InferenceTransformer::Options options;
    options.num_slots = kSlots;
    options.slot_capacity = longest_prompt() + kMaxNewTokens + kLargestBlock;
    options.branch_rows = kMostAlternatives * kLargestBlock;
    transformer_ =
        std::make_unique<InferenceTransformer>(config_, table_, flat, *kernels_, account_, options);
    greedy_ = decode(make_greedy_decoder, kSlots, kProblems);
  }

  /// Returns the first `count` problems' results in order. `batch` sequences share a forward.
  [[nodiscard]] std::vector<DecodeResult> decode(const DecoderMaker& make, std::int32_t batch,
                                                 std::size_t count) {
    std::vector<std::unique_ptr<SequenceDecoder>> decoders;
    for (const std::vector<TokenId>& prompt : std::span(prompts_).first(count)) {
      decoders.push_back(make({.id = std::ssize(decoders),
                               .prompt = prompt,
                               .max_new_tokens = kMaxNewTokens,
                               .eos_ids = config_.eos_ids}));
    }
    DecodeEngine engine(*transformer_, batch);
    std::vector<DecodeResult> results = decode_all(engine, std::move(decoders));
    std::ranges::sort(results, {}, &DecodeResult::id);
    return results;
  }

  [[nodiscard]] const std::vector<DecodeResult>& greedy() const { return greedy_; }

 private:
  void load_prompts(const fs::path& directory) {
    const BytePairTokenizer tokenizer = BytePairTokenizer::load(directory / "model");
    const ChatTemplate chat = ChatTemplate::load(directory / "model");
    const std::unique_ptr<Task> task = make_task("ledger");
    for (const TaskRecord& record : task->load(directory)) {
      prompts_.push_back(tokenizer.encode(chat.render(task->prompt(record).messages, true)));
    }
    std::ranges::stable_sort(prompts_, {}, &std::vector<TokenId>::size);
    prompts_.resize(kProblems);
  }

  [[nodiscard]] std::int32_t longest_prompt() const {
    std::size_t longest = 0;
    for (const std::vector<TokenId>& prompt : prompts_) {
      longest = std::max(longest, prompt.size());
    }
    return static_cast<std::int32_t>(longest);
  }

  MemoryAccount account_{"quickstart equality"};
  TransformerConfig config_;
  ParameterTable table_;
  Buffer weights_;
  std::unique_ptr<KernelSet> kernels_;
  std::vector<std::vector<TokenId>> prompts_;
  std::unique_ptr<InferenceTransformer> transformer_;
  std::vector<DecodeResult> greedy_;
};

struct Setting {
  const char* name;
  DraftWindow window;
  bool complete_blocks;
};
constexpr Setting kSettings[] = {{"running", DraftWindow::running, false},
                                 {"shrinking", DraftWindow::shrinking, false},
                                 {"trajectories", DraftWindow::shrinking, true}};

class QuickstartEquality : public testing::TestWithParam<std::tuple<std::size_t, std::int32_t>> {
 protected:
  static void SetUpTestSuite() {
    if (fs::is_directory(quickstart_directory() / "model")) {
      quickstart_ = std::make_unique<Quickstart>(quickstart_directory());
    }
  }
  static void TearDownTestSuite() { quickstart_.reset(); }

  void SetUp() override {
    if (!quickstart_) {
      GTEST_SKIP() << quickstart_directory() / "model"
                   << " is absent: launch/quickstart/reproduce.sh makes it";
    }
  }

  static std::unique_ptr<Quickstart> quickstart_;
};
std::unique_ptr<Quickstart> QuickstartEquality::quickstart_;

std::int64_t total_forwards(const std::vector<DecodeResult>& results) {
  std::int64_t forwards = 0;
  for (const DecodeResult& result : results) {
    forwards += result.forwards;
  }
  return forwards;
}

TEST_P(QuickstartEquality, JacobiEqualsGreedy) {
  const Setting& setting = kSettings[std::get<0>(GetParam())];
  const std::int32_t block_size = std::get<1>(GetParam());
  const JacobiOptions options{.block_size = block_size,
                              .window = setting.window,
                              .seed = 11,
                              .round = 1,
                              .complete_blocks = setting.complete_blocks};
  // Another batch than greedy's: rows that share a forward must not matter.
  const auto jacobi = quickstart_->decode(
      [&](DecodeRequest request) { return make_jacobi_decoder(std::move(request), options); },
      kSlots - 17, kProblems);
  const std::vector<DecodeResult>& greedy = quickstart_->greedy();
  ASSERT_EQ(jacobi.size(), kProblems);
  for (std::size_t i = 0; i < jacobi.size(); ++i) {
    SCOPED_TRACE(fmt::format("problem {}", i));
    ASSERT_EQ(jacobi[i].tokens, greedy[i].tokens);
    EXPECT_EQ(jacobi[i].stop, greedy[i].stop);
    // Blocks are iterated past the answer's end, at most one pass a token.
    const auto length = static_cast<std::int64_t>(greedy[i].tokens.size());
    const std::int64_t behind =
        setting.complete_blocks ? (block_size - length % block_size) % block_size : 0;
    EXPECT_LE(jacobi[i].forwards, greedy[i].forwards + behind);
  }
  const std::int64_t greedy_forwards = total_forwards(greedy);
  const std::int64_t jacobi_forwards = total_forwards(jacobi);
  std::string tokens_per_forward = fmt::format(
      "{:.3f}", static_cast<double>(greedy_forwards) / static_cast<double>(jacobi_forwards));
  RecordProperty("tokens_per_forward", tokens_per_forward);
  if (block_size > 1 && !setting.complete_blocks) {
    EXPECT_LT(jacobi_forwards, greedy_forwards) << "no forward accepted more than one token";
  }
}

std::string case_name(const testing::TestParamInfo<std::tuple<std::size_t, std::int32_t>>& info) {
  return fmt::format("{}_{}", kSettings[std::get<0>(info.param)].name, std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Quickstart, QuickstartEquality,
                         testing::Combine(testing::Values<std::size_t>(0, 1, 2),
                                          testing::Values(1, 4, 16, kLargestBlock)),
                         case_name);

struct MultiBlockSetting {
  const char* name;
  MultiBlockOptions options;
};
constexpr MultiBlockSetting kMultiBlockSettings[] = {
    {"large_blocks", {.verification_size = 2, .ngram_pool = 4}},
    {"small_blocks",
     {.block_size = 8, .blocks = 4, .spawn_ratio = 0.5, .verification_size = 2, .ngram_pool = 8}},
    {"recycling_alone", {.block_size = 16, .blocks = 1, .ngram_pool = 4}},
    {"blocks_alone", {.block_size = 16, .blocks = 3, .spawn_ratio = 0.25, .verification_size = 1}},
    {"clones", {.block_size = 8, .spawn_ratio = 0.5, .spawn = SpawnMode::clone}}};

class QuickstartMultiBlock : public QuickstartEquality {};

TEST_F(QuickstartMultiBlock, EqualsGreedy) {
  for (const MultiBlockSetting& setting : kMultiBlockSettings) {
    SCOPED_TRACE(setting.name);
    MultiBlockOptions options = setting.options;
    options.seed = 11;
    const auto found = quickstart_->decode(
        [&](DecodeRequest request) {
          return make_multi_block_decoder(std::move(request), options);
        },
        kSlots - 17, kMultiBlockProblems);
    ASSERT_EQ(found.size(), kMultiBlockProblems);
    std::int64_t greedy_forwards = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const DecodeResult& greedy = quickstart_->greedy()[i];
      ASSERT_EQ(found[i].tokens, greedy.tokens) << "problem " << i;
      EXPECT_EQ(found[i].stop, greedy.stop);
      EXPECT_LE(found[i].forwards, greedy.forwards);
      greedy_forwards += greedy.forwards;
    }
    EXPECT_LT(total_forwards(found), greedy_forwards);
    std::string tokens_per_forward =
        fmt::format("{:.3f}", static_cast<double>(greedy_forwards) /
                                  static_cast<double>(total_forwards(found)));
    RecordProperty(setting.name, tokens_per_forward);
  }
}

using QuickstartAnswers = QuickstartEquality;

/// Equality between empty or endless answers would prove nothing.
TEST_F(QuickstartAnswers, GreedyAnswersAreAnswers) {
  std::size_t ended = 0;
  std::size_t distinct = 0;
  const std::vector<DecodeResult>& greedy = quickstart_->greedy();
  ASSERT_EQ(greedy.size(), kProblems);
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    EXPECT_EQ(greedy[i].forwards, std::ssize(greedy[i].tokens) - 1);
    ended += greedy[i].stop == StopReason::eos ? 1 : 0;
    distinct += i > 0 && greedy[i].tokens != greedy[i - 1].tokens ? 1 : 0;
  }
  EXPECT_GE(ended, kProblems * 9 / 10) << "answers that end before the limit";
  EXPECT_GE(distinct, kProblems * 9 / 10) << "answers that differ from their neighbour";
}

}  // namespace
}  // namespace jforge
