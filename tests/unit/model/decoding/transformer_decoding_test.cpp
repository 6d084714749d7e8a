/// Decoders over the real arithmetic: invariants I1, I4 and I5, and the golden greedy texts.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoints/hf_model.h"
#include "model/decoding/decode_engine.h"
#include "model/decoding/drafted_decoder.h"
#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/multi_block_decoder.h"
#include "model/decoding/parallel_trajectory_decoder.h"
#include "model/decoding/prompt_lookup_decoder.h"
#include "model/transformer/weight_init.h"
#include "runtime/random.h"
#include "runtime/tensor/buffer.h"
#include "tests/support/tiny_config.h"
#include "tests/support/whole_weights.h"
#include "tests/unit/model/decoding/fake_decode_model.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge::test {
namespace {

struct Model {
  explicit Model(const TransformerConfig& model_config)
      : config(model_config),
        table(config, 1),
        memory(static_cast<std::size_t>(table.flat_size()) * sizeof(float), account),
        kernels(make_cpu_kernel_set()) {}

  [[nodiscard]] TensorView flat() const { return memory.floats({table.flat_size()}); }
  [[nodiscard]] InferenceTransformer transformer(std::int32_t num_slots, std::int32_t slot_capacity,
                                                 std::int32_t max_rows = 0,
                                                 WeightStorage weights = WeightStorage::automatic) {
    return InferenceTransformer(config, table, flat(), *kernels, account,
                                {.num_slots = num_slots,
                                 .slot_capacity = slot_capacity,
                                 .branch_rows = 3 * 64,
                                 .max_rows = max_rows,
                                 .weights = weights});
  }

  TransformerConfig config;
  ParameterTable table;
  MemoryAccount account{"test"};
  Buffer memory;
  std::unique_ptr<KernelSet> kernels;
};

/// Ten times the usual weights, so that answers vary.
struct RandomModel : Model {
  RandomModel() : Model(tiny_config(true)) {
    initialise_weights(table, flat(), 5, config.num_layers);
    auto* const values = reinterpret_cast<float*>(memory.data());
    for (const ParameterEntry& entry : table.entries()) {
      if (entry.decay) {
        std::for_each_n(values + entry.offset, entry.shape.elements(), [](float& x) { x *= 10; });
      }
    }
  }
};

class CountingModel final : public DecodeModel {
 public:
  explicit CountingModel(DecodeModel& model) : model_(model) {}
  [[nodiscard]] std::int32_t num_slots() const override { return model_.num_slots(); }
  [[nodiscard]] std::int32_t slot_capacity() const override { return model_.slot_capacity(); }
  [[nodiscard]] std::int32_t branch_rows() const override { return model_.branch_rows(); }
  [[nodiscard]] bool reserve(std::int32_t slot, std::int64_t positions,
                             std::int64_t branch_rows) override {
    return model_.reserve(slot, positions, branch_rows);
  }
  void release(std::int32_t slot) override { model_.release(slot); }
  void predict(std::span<const DecodeRow> rows, std::span<TokenId> predictions) override {
    model_.predict(rows, predictions);
  }
  void keep_branches(std::span<const CacheCopy> rows) override {
    model_.keep_branches(rows);
    kept += std::ssize(rows);
  }
  std::int64_t kept = 0;

 private:
  DecodeModel& model_;
};

DecodeRequest request(PromptId id, std::int64_t max_new_tokens) {
  return {.id = id,
          .prompt = random_prompt(id, 1 + static_cast<std::size_t>(id) * 5 % 23, 37),
          .max_new_tokens = max_new_tokens};
}

std::map<PromptId, DecodeResult> decode(
    DecodeModel& model, std::int32_t batch, PromptId count,
    const std::function<std::unique_ptr<SequenceDecoder>(PromptId)>& make) {
  DecodeEngine engine(model, batch);
  std::vector<std::unique_ptr<SequenceDecoder>> decoders;
  for (PromptId id = 0; id < count; ++id) {
    decoders.push_back(make(id));
  }
  std::map<PromptId, DecodeResult> results;
  for (DecodeResult& result : decode_all(engine, std::move(decoders))) {
    const PromptId id = result.id;
    results.emplace(id, std::move(result));
  }
  return results;
}

DecodeRequest sampled(PromptId id, double temperature) {
  DecodeRequest asked = request(id, 60);
  asked.sampling = {.temperature = temperature,
                    .top_p = 0.95,
                    .top_k = 20,
                    .repetition_penalty = temperature > 0.1 ? 1.1 : 1,
                    .seed = 5};
  return asked;
}

using Methods = std::vector<std::function<std::unique_ptr<SequenceDecoder>(DecodeRequest)>>;

/// Every method at this block size.
Methods methods(std::int32_t n) {
  Methods all;
  for (const DraftWindow window : {DraftWindow::shrinking, DraftWindow::running}) {
    for (const std::uint64_t seed : {0, 7}) {
      all.emplace_back([=](const DecodeRequest& asked) {
        return make_jacobi_decoder(asked, {.block_size = n, .window = window, .seed = seed});
      });
    }
  }
  for (const std::int32_t blocks : {1, 3}) {
    for (const std::int32_t rows : {1, 4}) {
      const MultiBlockOptions options{.block_size = n,
                                      .blocks = blocks,
                                      .spawn_ratio = 0.5,
                                      .verification_size = rows,
                                      .seed = 3};
      all.emplace_back(
          [=](const DecodeRequest& asked) { return make_multi_block_decoder(asked, options); });
    }
  }
  all.emplace_back([=](const DecodeRequest& asked) {
    return make_prompt_lookup_decoder(asked, {.block_size = n});
  });
  return all;
}

TEST(TransformerDecoding, EveryMethodGivesArsTokensAtEverySettingInAnyBatch) {  // I1, I18, I23
  constexpr PromptId kPrompts = 10;
  RandomModel model;
  for (const WeightStorage weights :
       {WeightStorage::automatic, WeightStorage::bfloat16_arithmetic, WeightStorage::int8}) {
    // Logits come in several parts.
    auto transformer = model.transformer(8, 160, 50, weights);
    std::vector<TokenId> greedy;
    for (const double temperature : {0.0, 0.8}) {
      const auto ar = decode(transformer, 1, kPrompts, [&](PromptId id) {
        return make_greedy_decoder(sampled(id, temperature));
      });
      EXPECT_NE(std::exchange(greedy, ar.at(1).tokens), ar.at(1).tokens);
      if (temperature == 0) {
        const auto coldest = decode(transformer, 5, kPrompts, [](PromptId id) {
          return make_greedy_decoder(sampled(id, 1e-6));
        });
        for (const auto& [id, result] : ar) {
          EXPECT_EQ(coldest.at(id).tokens, result.tokens);
        }
      }
      EXPECT_TRUE(std::ranges::any_of(ar, [](const auto& answer) {
        return answer.second.tokens[1] != answer.second.tokens[2];
      })) << "a model that repeats one token tests nothing";
      for (const std::int32_t block_size : {1, 4, 16, 64}) {
        if (weights != WeightStorage::automatic && block_size != 16) {
          continue;
        }
        for (const auto& method : methods(block_size)) {
          const auto make = [&](PromptId id) { return method(sampled(id, temperature)); };
          const auto alone = decode(transformer, 1, kPrompts, make);
          for (const auto& [id, result] : decode(transformer, 7, kPrompts, make)) {
            EXPECT_EQ(result.tokens, ar.at(id).tokens) << "prompt " << id << ", n " << block_size;
            EXPECT_LE(result.forwards, ar.at(id).forwards);
            EXPECT_EQ(result.accepted, alone.at(id).accepted);
          }
        }
      }
    }
  }
}

TEST(TransformerDecoding, ParallelTrajectoriesAreTheSequentialOnesInAnyBatch) {  // I28
  constexpr PromptId kPrompts = 12;
  RandomModel model;
  for (const WeightStorage weights :
       {WeightStorage::float32, WeightStorage::bfloat16_arithmetic, WeightStorage::int8}) {
    const auto sequential = [&](std::int32_t batch, std::int32_t max_rows) {
      auto transformer = model.transformer(batch, 160, max_rows, weights);
      return decode(transformer, batch, kPrompts, [](PromptId id) {
        return make_jacobi_decoder(
            request(id, 60),
            {.block_size = 16, .seed = 3, .complete_blocks = true, .record_states = true});
      });
    };
    const auto expected = sequential(1, 1);
    auto transformer = model.transformer(8, 160, 50, weights);
    const auto parallel = decode(transformer, 8, kPrompts, [&](PromptId id) {
      return make_parallel_trajectory_decoder(request(id, 60), {.seed = 3, .schedule = {}});
    });
    for (const auto& run : {sequential(3, 0), sequential(12, 0), parallel}) {
      for (const auto& [id, result] : expected) {
        const DecodeResult& own = run.at(id);
        EXPECT_EQ(own.tokens, result.tokens) << id;
        EXPECT_EQ(own.flipped_blocks, 0);
        ASSERT_EQ(own.blocks.size(), result.blocks.size());
        for (std::size_t i = 0; i < result.blocks.size(); ++i) {
          EXPECT_EQ(own.blocks[i].states, result.blocks[i].states) << id << ", block " << i;
        }
      }
    }
  }
}

/// Decodes with drafters at 250 settings, whose text must be ar's; `own` are their weights. Returns
/// the forwards that they save.
template <typename Model>
std::int64_t forwards_saved(const std::function<Model(bool odd)>& make,
                            std::vector<float> Model::*own) {
  constexpr PromptId kPrompts = 8;
  struct Arithmetic {
    WeightStorage weights;
    BFloat16Sums sums;
  };
  constexpr Arithmetic kArithmetics[] = {{WeightStorage::float32, BFloat16Sums::pairs},
                                         {WeightStorage::bfloat16, BFloat16Sums::pairs},
                                         {WeightStorage::bfloat16_arithmetic, BFloat16Sums::pairs},
                                         {WeightStorage::bfloat16_arithmetic, BFloat16Sums::groups},
                                         {WeightStorage::int8, BFloat16Sums::pairs}};
  const SamplingOptions samplings[] = {
      {}, {.temperature = 0.8, .top_p = 0.95, .repetition_penalty = 1.2, .seed = 5}};
  std::int64_t saved = 0;
  for (std::int64_t which = 0; which < 10; ++which) {
    const auto& [weights, sums] = kArithmetics[which / 2];
    const auto make_request = [&](PromptId id) {
      DecodeRequest asked = request(id, 20);
      asked.sampling = samplings[which % 2];
      return asked;
    };
    const auto kernels = make_cpu_kernel_set(sums);
    std::map<PromptId, DecodeResult> ar;
    for (std::int64_t i = 0; i < 25; ++i) {
      // Every block size with every match_length.
      const std::int64_t setting = which * 25 + i;
      const DraftedOptions options{.block_size = static_cast<std::int32_t>(1 + setting % 17),
                                   .match_length = static_cast<std::int32_t>(setting / 17 % 5),
                                   .tree_rows = static_cast<std::int32_t>(setting / 3 % 4 * 7),
                                   .min_probability = static_cast<double>(setting % 3) * 0.02,
                                   .seed = static_cast<std::uint64_t>(setting)};
      const std::int32_t batch = i % 2 == 0 ? 8 : 1;
      SCOPED_TRACE(testing::Message() << "arithmetic and sampling " << which << ", setting " << i);
      Model model = make(which / 2 % 2 == 1);
      for (float& value : model.*own) {
        value *= std::array{0.02F, 1.0F, 30.0F}[static_cast<std::size_t>(i % 3)];
      }
      const DrafterSource drafter = model.source();
      InferenceTransformer transformer(model.config, model.table, model.flat(), *kernels,
                                       model.account,
                                       {.num_slots = batch,
                                        .slot_capacity = 64,
                                        .branch_rows = 2 * 17 + 20,
                                        .max_rows = i % 4 == 0 ? 50 : 0,
                                        .weights = weights,
                                        .adapter = &drafter});
      if (i == 0) {
        ar = decode(transformer, 8, kPrompts,
                    [&](PromptId id) { return make_greedy_decoder(make_request(id)); });
      }
      for (const auto& [id, result] : decode(transformer, batch, kPrompts, [&](PromptId prompt) {
             return make_drafted_decoder(make_request(prompt), options);
           })) {
        EXPECT_EQ(result.tokens, ar.at(id).tokens) << "prompt " << id;
        saved += ar.at(id).forwards - result.forwards;
      }
    }
  }
  return saved;
}

TEST(TransformerDecoding, DraftersGiveArsTokensWhateverTheyPropose) {  // I23, I29
  EXPECT_GT(forwards_saved<DraftedModel>([](bool) { return DraftedModel(ModelFamily::qwen2); },
                                         &DraftedModel::additions),
            0)
      << "no proposal was ever accepted: the test says nothing";
  EXPECT_GT(
      forwards_saved<HeadedModel>([](bool odd) { return HeadedModel(odd); }, &HeadedModel::weights),
      0);
}

std::vector<float> logits_after(InferenceTransformer& transformer, std::int32_t slot,
                                std::int64_t begin, std::span<const TokenId> tokens,
                                std::int64_t vocabulary_size, MemoryAccount& account) {
  std::vector<DecodeRow> rows;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back(
        {.token = tokens[i],
         .place = {.slot = slot,
                   .position = static_cast<std::int32_t>(begin) + static_cast<std::int32_t>(i)},
         .wants_output = i + 1 == tokens.size()});
  }
  const Buffer output(static_cast<std::size_t>(vocabulary_size) * sizeof(float), account);
  transformer.logits(rows, output.floats({1, vocabulary_size}));
  std::vector<float> values(static_cast<std::size_t>(vocabulary_size));
  std::memcpy(values.data(), output.data(), output.bytes());
  return values;
}

/// Slot 0 continues decoding's cache, slot 1 starts from scratch.
TEST(TransformerDecoding, CacheOfCommittedTokensEqualsAFreshForwardBitForBit) {  // I5
  RandomModel model;
  auto transformer = model.transformer(2, 160);
  std::int64_t kept = 0;
  for (PromptId id = 0; id < 6; ++id) {
    const auto asked = request(id, 48);
    std::vector<std::unique_ptr<SequenceDecoder>> decoders;
    for (const DraftWindow window : {DraftWindow::shrinking, DraftWindow::running}) {
      decoders.push_back(
          make_jacobi_decoder(asked, {.block_size = 16, .window = window, .seed = 2}));
    }
    decoders.push_back(make_multi_block_decoder(asked, {.block_size = 16, .seed = 2}));
    for (const auto& decoder : decoders) {
      std::int64_t length = 0;
      CountingModel counting(transformer);
      const auto result = drive(*decoder, counting, [&](const SequenceDecoder& stepped) {
        length = stepped.kv_length();
      });
      kept += counting.kept;
      ASSERT_EQ(length, std::ssize(asked.prompt) + std::ssize(result.tokens) - 1);
      std::vector<TokenId> all = asked.prompt;
      all.insert(all.end(), result.tokens.begin(), result.tokens.end() - 1);
      const TokenId probe = 11;
      const auto cached = logits_after(transformer, 0, length, std::span(&probe, 1),
                                       model.config.vocabulary_size, model.account);
      all.push_back(probe);
      const auto fresh =
          logits_after(transformer, 1, 0, all, model.config.vocabulary_size, model.account);
      EXPECT_EQ(std::memcmp(cached.data(), fresh.data(), cached.size() * sizeof(float)), 0)
          << "prompt " << id;
    }
  }
  EXPECT_GT(kept, 0) << "no alternative was ever kept: the test says nothing about them";
}

class GoldenDecoding : public testing::TestWithParam<const char*> {};

TEST_P(GoldenDecoding, EveryMethodGivesTheReferenceGreedyText) {
  const char* const source = std::getenv("JFORGE_SOURCE_DIR");
  ASSERT_NE(source, nullptr) << "run through ctest, or set JFORGE_SOURCE_DIR";
  const auto directory =
      std::filesystem::path(source) / "tests" / "golden" / "reference" / GetParam();
  const auto read = [&](const char* name) {
    std::ifstream file(directory / name);
    return nlohmann::json::parse(file).get<std::vector<TokenId>>();
  };
  const auto expected = read("greedy48.json");
  Model model(read_hf_config(directory));
  load_hf_weights(directory, model.config, model.table, model.flat());
  auto transformer = model.transformer(2, 128);
  const DecodeRequest asked{.prompt = read("ids.json"), .max_new_tokens = 48};
  EXPECT_EQ(drive(*make_greedy_decoder(asked), transformer).tokens, expected);
  for (const std::int32_t block_size : {1, 4, 16, 64}) {
    for (const DraftWindow window : {DraftWindow::shrinking, DraftWindow::running}) {
      EXPECT_EQ(drive(*make_jacobi_decoder(asked, {.block_size = block_size, .window = window}),
                      transformer)
                    .tokens,
                expected);
    }
    EXPECT_EQ(
        drive(*make_jacobi_decoder(asked, {.block_size = block_size, .complete_blocks = true}),
              transformer)
            .tokens,
        expected);
    EXPECT_EQ(
        drive(*make_multi_block_decoder(asked, {.block_size = block_size}), transformer).tokens,
        expected);
  }
}

INSTANTIATE_TEST_SUITE_P(ReferenceModels, GoldenDecoding,
                         testing::Values("gqa-untied", "mha-tied"));

}  // namespace
}  // namespace jforge::test
