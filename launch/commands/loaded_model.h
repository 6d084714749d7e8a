#pragma once

/// A model of a Hugging Face directory, whose weights are read when they are asked for, with
/// everything that single-process commands need around it.

#include <filesystem>
#include <memory>

#include "checkpoints/hf_model.h"
#include "model/kernels/device_choice.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/parameter_table.h"

namespace jforge {

struct LoadedModel {
  /// Throws DataError for files that do not make a model of a known family, EnvironmentError for a
  /// device that is not there.
  LoadedModel(const std::filesystem::path& directory, DeviceChoice device);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;
  ~LoadedModel() = default;

  /// A decoding forward with `slots` sequences of at most `capacity` positions, and as many
  /// `branch_rows` for the alternative drafts of each.
  [[nodiscard]] std::unique_ptr<InferenceTransformer> inference(
      std::int32_t slots, std::int64_t capacity, WeightStorage storage = WeightStorage::automatic,
      std::int64_t branch_rows = 0);

  /// All weights, the flat float32 vector of the table.
  [[nodiscard]] Buffer flat_weights();

  MemoryAccount account{"model"};
  TransformerConfig config;
  ParameterTable table;
  HfTensors tensors;
  std::unique_ptr<KernelSet> kernels;
};

}  // namespace jforge
