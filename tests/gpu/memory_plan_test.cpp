/// Compares each phase's use of the device's memory pool with the plan of --dry-run.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "launch/commands/job_plan.h"
#include "model/decoding/decode_engine.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/sequence_decoder.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/weight_init.h"
#include "runtime/random.h"
#include "runtime/tensor/cuda_memory.h"
#include "runtime/tensor/matrix_product.h"
#include "tests/support/mpi_test.h"
#include "tests/support/shard_of.h"
#include "tests/support/tested_kernel_set.h"
#include "tests/unit/launch/plan_model.h"
#include "tests/unit/model/transformer/tiny_model.h"
#include "workers/train/distillation_trainer.h"

namespace jforge {
namespace {

constexpr std::int32_t kPromptTokens = 24;
constexpr std::int32_t kAnswerTokens = 64;
constexpr std::int32_t kBlockSize = 16;

TransformerConfig model_config() {
  TransformerConfig config = test::plan_model();
  config.vocabulary_size *= 2;
  config.hidden_size *= 2;
  config.intermediate_size *= 2;
  config.num_heads = 2;  // of 64, for tensor cores
  config.num_kv_heads = 1;
  return config;
}

JobConfig job_config() {
  JobConfig config;
  config.rounds.resize(1);
  config.rounds[0].block_size = kBlockSize;
  config.generate.max_new_tokens = kAnswerTokens;
  config.generate.batch_prompts = 16;  // kDeviceArgmaxRows
  config.train.batch_samples = 4;
  config.train.tokens_per_rank = 2048;
  return config;
}

class FullSamples final : public SampleSource {
 public:
  [[nodiscard]] std::int64_t size() const override { return 100; }
  [[nodiscard]] std::int64_t length(std::int64_t /*index*/) const override {
    return kPromptTokens + 2 * kAnswerTokens;
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override {
    RandomStream stream(5, RandomPurpose::test, 0, static_cast<std::uint64_t>(index));
    const std::int64_t vocabulary = model_config().vocabulary_size;
    return PackedSample{.prompt_id = index,
                        .block_size = kBlockSize,
                        .window = 2,
                        .prompt = random_tokens(stream, kPromptTokens, vocabulary),
                        .noisy = random_tokens(stream, kAnswerTokens, vocabulary),
                        .clean = random_tokens(stream, kAnswerTokens, vocabulary)};
  }
};

class MemoryOnADevice : public ::testing::Test {
 protected:
  MemoryOnADevice() { initialise_weights(table_, flat(), 3, model_.num_layers); }

  [[nodiscard]] TensorView flat() { return {weights_.data(), {table_.flat_size()}}; }
  [[nodiscard]] MemoryPlan plan(const JobConfig& config) const {
    return plan_memory(config, model_, comm_.size(), Device::cuda, {std::nullopt, kPromptTokens},
                       false);
  }
  /// Frees the kernels' memory afterwards.
  template <class Work>
  [[nodiscard]] double peak_of(const Work& work) {
    cuda_memory::forget_peak();
    work();
    const auto peak = static_cast<double>(cuda_memory::peak());
    kernels_->release_work_space();
    constexpr double kTables = 2e5;  // of rotations and hashes
    EXPECT_LT(held() - kProductWorkspaceBytes, kTables);
    return peak;
  }
  [[nodiscard]] double held() {
    cuda_memory::forget_peak();
    const Buffer one_more(1, account_, Device::cuda);
    return static_cast<double>(cuda_memory::peak());
  }
  /// `products`: work space that does not depend on the model. Prints a row for
  /// launch/gpu_check.sh.
  void expect_planned(const std::string& what, double peak, double planned, double products) {
    ASSERT_GT(planned, products);
    if (comm_.rank() == 0) {
      std::printf("| memory of %s | %.2f MB | planned %.2f MB, target 0.9 to 1.1 | %.2f |\n",
                  what.c_str(), (peak - products) / 1e6, (planned - products) / 1e6,
                  (peak - products) / (planned - products));
    }
    EXPECT_NEAR(peak - products, planned - products, 0.1 * (planned - products));
  }

  const Communicator& comm_ = test::test_world();
  MemoryAccount account_{"probe"};
  std::unique_ptr<KernelSet> kernels_ = make_tested_kernel_set();
  const TransformerConfig model_ = model_config();
  const ParameterTable table_{model_, comm_.size()};
  std::vector<float> weights_ = std::vector<float>(static_cast<std::size_t>(table_.flat_size()));
};

TEST_F(MemoryOnADevice, OfTrainingIsWhatIsPlanned) {
  struct Case {
    std::int32_t stage;
    ComputeType compute;
    bool offload;
    TeacherKind teacher;
  };
  constexpr auto kMoving = TeacherKind::detached;
  for (const auto& [stage, compute, offload, teacher] :
       {Case{0, ComputeType::float32, false, kMoving},
        Case{1, ComputeType::bfloat16, true, kMoving},
        Case{2, ComputeType::bfloat16, false, kMoving},
        Case{3, ComputeType::float32, true, kMoving},
        Case{3, ComputeType::bfloat16, false, TeacherKind::frozen}}) {
    const std::string what = "training, ZeRO stage " + std::to_string(stage) + ", " +
                             dtype_name(dtype_of(compute)) + (offload ? ", offloaded" : "");
    SCOPED_TRACE(what);
    JobConfig config = job_config();
    config.train.optimizer.zero_stage = stage;
    config.train.optimizer.offload = offload;
    config.train.teacher = teacher;
    config.model.compute = compute;
    const double peak = peak_of([&] {
      MemoryAccount account("training");
      DistillationTrainer trainer({model_, table_, *kernels_, comm_, account},
                                  test::shard_of(flat(), table_, comm_.rank()),
                                  config.train_config(1));
      FullSamples samples;
      TrainPlan one_step;
      one_step.total_steps = 1;
      ASSERT_EQ(trainer.run(samples, one_step, {}), TrainOutcome::finished);
    });
    const MemoryPlan planned = plan(config);
    expect_planned(what, peak, planned.training_on_device(), planned.products);
  }
}

TEST_F(MemoryOnADevice, OfGenerationIsWhatIsPlanned) {
  for (const WeightStorage storage : {WeightStorage::float32, WeightStorage::bfloat16_arithmetic}) {
    JobConfig config = job_config();
    config.model.decode_weights = storage;
    const double peak = peak_of([&] {
      MemoryAccount account("generation");
      InferenceTransformer inference(model_, table_, flat(), *kernels_, account,
                                     {.num_slots = config.generate.batch_prompts,
                                      .slot_capacity = kPromptTokens + kAnswerTokens,
                                      .weights = storage});
      // Packing takes up to 200 MB before the cache exists (CudaProducts::prepare_rows()).
      cuda_memory::forget_peak();
      DecodeEngine engine(inference, config.generate.batch_prompts);
      RandomStream stream(5, RandomPurpose::test);
      std::vector<std::unique_ptr<SequenceDecoder>> decoders;
      for (PromptId id = 0; id < config.generate.batch_prompts; ++id) {
        decoders.push_back(make_jacobi_decoder(
            {.id = id,
             .prompt = random_tokens(stream, kPromptTokens, model_.vocabulary_size),
             .max_new_tokens = kBlockSize},
            {.block_size = kBlockSize, .complete_blocks = true, .record_states = true}));
      }
      const std::size_t count = decoders.size();
      EXPECT_EQ(decode_all(engine, std::move(decoders)).size(), count);
    });
    const MemoryPlan planned = plan(config);
    const char* const weights =
        storage == WeightStorage::float32 ? "float32" : "bfloat16_arithmetic";
    expect_planned(std::string("generation, weights ") + weights, peak,
                   planned.generation_on_device(), planned.products);
  }
}

}  // namespace
}  // namespace jforge
