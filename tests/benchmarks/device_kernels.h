#pragma once

#include "model/kernels/device_choice.h"

namespace jforge {

struct DeviceKernelOptions {
  DeviceChoice device = DeviceChoice::cuda;
  DType dtype = DType::bfloat16;  ///< of weights, activations and their gradients
  bool tiny = false;              ///< small shapes, for an emulated device
};

/// Measures training kernels on a device: products, packed attention as a share of the products'
/// peak, the vocabulary loss against its products, row-wise functions against memory. Prints rows
/// of device_rows.h.
void run_device_kernels(const DeviceKernelOptions& options);

}  // namespace jforge
