#pragma once

#include <string>

#include "model/kernels/device_choice.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"

namespace jforge {

struct DeviceModelOptions {
  TransformerConfig model;
  std::string shape;  ///< What `model` is, for a reader.
  DeviceChoice device = DeviceChoice::cuda;
  bool decoding = true;
  bool training = true;
  DType compute = DType::bfloat16;                  ///< Of training.
  WeightStorage storage = WeightStorage::bfloat16;  ///< Of decoding's matrices.
  int zero_stage = 1;                               ///< Of training.
  std::int64_t rows = 8192;                         ///< Packed rows of a step, at most.
  std::int64_t steps = 5;                           ///< Measured, after two.
  std::int64_t prompt = 512;                        ///< Positions before what is measured.
  std::int64_t tokens = 128;                        ///< Measured tokens of decoding, after eight.
  std::int64_t rows_in_flight = 64;                 ///< Of one sequence in a forward, against one.
};

/// A whole model with random weights on a device: greedy decoding against the memory, a forward of
/// many rows against one of one row, training as `jforge` trains against the products' peak. Prints
/// rows of device_rows.h. Collective with training.
void run_device_model(const DeviceModelOptions& options, const Communicator* comm);

}  // namespace jforge
