#pragma once

/// A whole model's float32 values in tests: to and from Hugging Face directories.

#include <algorithm>
#include <filesystem>

#include "checkpoints/hf_model.h"

namespace jforge::test {

/// Views the table's flat vector.
inline TensorValues values_in(const ConstTensorView& flat) {
  return [flat](const ParameterEntry& entry) {
    return flat.rows(entry.offset, entry.offset + entry.shape.elements()).span<float>();
  };
}

/// Padding becomes zero.
inline void load_hf_weights(const std::filesystem::path& directory, const TransformerConfig& config,
                            const ParameterTable& table, const TensorView& flat) {
  HfTensors tensors(directory, config, table);
  std::ranges::fill(flat.span<float>(), 0.0F);  // Padding.
  for (const ParameterEntry& entry : table.entries()) {
    tensors.read(entry, 0, tensor_in_group(flat, 0, entry).span<float>());
  }
}

}  // namespace jforge::test
