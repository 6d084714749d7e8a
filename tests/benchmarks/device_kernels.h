#pragma once

#include "model/kernels/device_choice.h"

namespace jforge {

struct DeviceKernelOptions {
  DeviceChoice device = DeviceChoice::cuda;
  DType dtype = DType::bfloat16;  ///< Of weights, activations and their gradients.
  bool tiny = false;              ///< Shapes that show that it works, for an emulated device.
};

/// Kernels of training on a device: products, packed attention as a share of the products' peak,
/// the vocabulary loss against its products, row-wise functions against the memory. Prints rows of
/// device_rows.h.
void run_device_kernels(const DeviceKernelOptions& options);

}  // namespace jforge
