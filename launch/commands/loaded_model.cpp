#include "launch/commands/loaded_model.h"

#include <fmt/format.h>

namespace jforge {

LoadedModel::LoadedModel(const std::filesystem::path& directory, DeviceChoice device)
    : HfModel(directory), kernels(make_kernel_set(device, 0)) {}

Buffer LoadedModel::flat_weights() {
  Buffer weights(storage_bytes(table.flat_size(), DType::float32), account);
  const TensorView flat = weights.floats({table.flat_size()});
  for (const ParameterEntry& entry : table.entries()) {
    kernels->host().convert(tensors.read(entry), tensor_in_group(flat, 0, entry));
  }
  return weights;
}

std::unique_ptr<InferenceTransformer> LoadedModel::inference(std::int32_t slots,
                                                             std::int64_t capacity,
                                                             WeightStorage storage,
                                                             std::int64_t branch_rows,
                                                             const DrafterSource* adapter) {
  expect_storage(storage, kernels->device());
  if (capacity > config.max_position_embeddings) {
    throw DataError(fmt::format(
        "{} positions are needed but the model has max_position_embeddings = {}; use a shorter "
        "prompt or fewer new tokens",
        capacity, config.max_position_embeddings));
  }
  InferenceTransformer::Options options;
  options.num_slots = slots;
  options.slot_capacity = static_cast<std::int32_t>(capacity);
  options.branch_rows = static_cast<std::int32_t>(branch_rows);
  options.weights = storage;
  options.adapter = adapter;
  const auto read = [this](const ParameterEntry& entry) { return tensors.read(entry); };
  return std::make_unique<InferenceTransformer>(config, table, ParameterReader(read), *kernels,
                                                account, options);
}

}  // namespace jforge
