#pragma once

#include <string>
#include <vector>

#include "model/kernels/device_choice.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/ids.h"

namespace jforge {

struct DeviceModelOptions {
  TransformerConfig model;
  std::string shape;  ///< description of `model`
  DeviceChoice device = DeviceChoice::cuda;
  bool decoding = true;
  bool training = true;
  DType compute = DType::bfloat16;                  ///< of training
  WeightStorage storage = WeightStorage::bfloat16;  ///< of decoding's matrices
  int zero_stage = 1;                               ///< of training
  std::int64_t rows = 8192;                         ///< maximum packed rows of a step
  std::int64_t steps = 5;                           ///< measured, after two
  std::int64_t prompt = 512;                        ///< positions before the measurement
  std::int64_t tokens = 128;                        ///< measured tokens of decoding, after eight
  std::int64_t rows_in_flight = 64;  ///< of one sequence in a forward, compared with one
};

[[nodiscard]] std::vector<TokenId> random_tokens(std::int64_t count, std::int64_t vocabulary);

/// Measures a random model on a device: greedy decoding against memory, many rows against one row,
/// training against the products' peak. Prints rows of device_rows.h. Collective if training.
void run_device_model(const DeviceModelOptions& options, const Communicator* comm);

}  // namespace jforge
