#pragma once

/// A model of a Hugging Face directory for single-process commands; reads weights on demand.

#include <filesystem>
#include <memory>

#include "checkpoints/hf_model.h"
#include "model/kernels/device_choice.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/parameter_table.h"

namespace jforge {

struct LoadedModel : HfModel {
  /// Throws DataError for unknown families or bad files, EnvironmentError for a missing device.
  LoadedModel(const std::filesystem::path& directory, DeviceChoice device);

  /// Returns a decoder of `slots` sequences of `capacity` positions and `branch_rows` draft rows.
  [[nodiscard]] std::unique_ptr<InferenceTransformer> inference(
      std::int32_t slots, std::int64_t capacity, WeightStorage storage = WeightStorage::automatic,
      std::int64_t branch_rows = 0, const DrafterSource* adapter = nullptr);

  /// Returns the table's flat float32 vector.
  [[nodiscard]] Buffer flat_weights();

  MemoryAccount account{"model"};
  std::unique_ptr<KernelSet> kernels;
};

}  // namespace jforge
