#pragma once

/// Data sheets of accelerators, for --dry-run --device-plan and for benchmarks.

#include <array>
#include <cstddef>
#include <string_view>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Assumed of every cluster: devices of a node, and the network link of each (400 Gb/s).
inline constexpr int kDevicesPerNode = 8;
inline constexpr double kNodeLinkBytesPerSecond = 50e9;

struct KnownDevice {
  std::string_view name;        ///< Start of a word in the driver's name.
  double bfloat16_flops = 0;    ///< Dense, with tensor cores, FLOP/s.
  double float32_flops = 0;     ///< Without tensor cores, FLOP/s.
  double bytes_per_second = 0;  ///< Memory bandwidth.
  double memory_bytes = 0;
  double link_bytes_per_second = 0;  ///< NVLink, to all others together, per direction.

  [[nodiscard]] constexpr double flops(DType dtype) const {
    return dtype == DType::bfloat16 ? bfloat16_flops : float32_flops;
  }
  /// Returns the bytes per second at which each of `ranks` ranks can send. NCCL's rings leave a
  /// node once each, over different links, so that a node's links together carry one rank's
  /// payload.
  [[nodiscard]] constexpr double link(int ranks) const {
    constexpr double kNode = kDevicesPerNode * kNodeLinkBytesPerSecond;
    return ranks <= kDevicesPerNode || link_bytes_per_second < kNode ? link_bytes_per_second
                                                                     : kNode;
  }
};

/// Dense figures, of SXM modules unless the name says otherwise. The first match counts.
inline constexpr std::array kKnownDevices{
    KnownDevice{"H100 PCIe", 756e12, 51e12, 2.0e12, 80e9, 300e9},
    KnownDevice{"H100 NVL", 835e12, 60e12, 3.9e12, 94e9, 300e9},
    KnownDevice{"H100", 989e12, 67e12, 3.35e12, 80e9, 450e9},
    KnownDevice{"H200 NVL", 835e12, 60e12, 4.8e12, 141e9, 450e9},
    KnownDevice{"H200", 989e12, 67e12, 4.8e12, 141e9, 450e9},
    KnownDevice{"A100-SXM4-40GB", 312e12, 19.5e12, 1.555e12, 40e9, 300e9},
    KnownDevice{"A100-PCIE-40GB", 312e12, 19.5e12, 1.555e12, 40e9, 300e9},
    KnownDevice{"A100", 312e12, 19.5e12, 2.0e12, 80e9, 300e9},
};

/// Returns the known device for a driver's name ("H200", "NVIDIA H200"), or null. Excludes GH200
/// and MIG slices ("NVIDIA H100 80GB HBM3 MIG 3g.40gb").
[[nodiscard]] constexpr const KnownDevice* find_known_device(std::string_view name) {
  if (name.find(" MIG ") != std::string_view::npos) {
    return nullptr;
  }
  for (const KnownDevice& device : kKnownDevices) {
    const std::size_t found = name.find(device.name);
    if (found == 0 || (found != std::string_view::npos && name[found - 1] == ' ')) {
      return &device;
    }
  }
  return nullptr;
}

}  // namespace jforge
