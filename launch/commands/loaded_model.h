#pragma once

/// A model read from a Hugging Face directory with everything that single-process commands need
/// around it.

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

  /// A decoding forward with `slots` sequences of at most `capacity` positions, and as many
  /// `branch_rows` for the alternative drafts of each.
  [[nodiscard]] std::unique_ptr<InferenceTransformer> inference(
      std::int32_t slots, std::int64_t capacity, WeightStorage storage = WeightStorage::automatic,
      std::int64_t branch_rows = 0);

  MemoryAccount account{"model"};
  TransformerConfig config;
  ParameterTable table;
  Buffer weights;
  std::unique_ptr<KernelSet> kernels;
};

}  // namespace jforge
