#pragma once

/// Lends parameters and collects gradients in unsharded flat vectors of one process.

#include <cstdint>
#include <functional>
#include <utility>

#include "model/kernels/kernel_set.h"
#include "model/transformer/parameter_source.h"
#include "model/transformer/parameter_table.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

/// Lends the groups of `flat` [flat_size], which must outlive it. If `flat` is not where `kernels`
/// compute, each loan is copied there.
class FlatParameters final : public ParameterSource {
 public:
  FlatParameters(const ParameterTable& table, ConstTensorView flat, const KernelSet& kernels,
                 MemoryAccount& account);
  [[nodiscard]] ConstTensorView acquire(std::int32_t group) override;
  void release(std::int32_t /*group*/) override {}

 private:
  const ParameterTable& table_;
  ConstTensorView flat_;
  Buffer copy_;  ///< [flat_size] on the kernels' device, or empty.
};

/// Adds gradients to `flat`, float32 [flat_size], which must outlive it. `on_ready` is called for
/// each group after its part of `flat` is final.
class FlatGradients final : public GradientSink {
 public:
  using OnReady = std::function<void(std::int32_t group)>;
  FlatGradients(const ParameterTable& table, TensorView flat, KernelSet& kernels,
                MemoryAccount& account, OnReady on_ready = {});
  [[nodiscard]] TensorView open(std::int32_t group) override;
  [[nodiscard]] bool undefined(std::int32_t /*group*/) const override { return false; }
  void ready(std::int32_t group) override;

 private:
  const ParameterTable& table_;
  TensorView flat_;
  KernelSet& kernels_;
  OnReady on_ready_;
  Buffer device_;  ///< [flat_size] on the kernels' device, or empty.
  Buffer staged_;  ///< The largest group on the host, or empty.
};

}  // namespace jforge
