#include "model/transformer/flat_parameters.h"

#include <algorithm>

namespace jforge {

namespace {

const ParameterGroup& group_of(const ParameterTable& table, std::int32_t group) {
  return table.groups().at(static_cast<std::size_t>(group));
}

template <class View>
View group_view(const View& flat, const ParameterGroup& group) {
  return flat.rows(group.offset, group.offset + group.padded_size);
}

}  // namespace

FlatParameters::FlatParameters(const ParameterTable& table, ConstTensorView flat,
                               const KernelSet& kernels, MemoryAccount& account)
    : table_(table), flat_(flat) {
  expect_shape(flat, {table.flat_size()}, "the parameter vector");
  if (flat.device() != kernels.device()) {
    copy_ = Buffer(flat.bytes(), account, kernels.device());
  }
}

ConstTensorView FlatParameters::acquire(std::int32_t group) {
  const ConstTensorView view = group_view(flat_, group_of(table_, group));
  if (copy_.bytes() == 0) {
    return view;
  }
  const TensorView copy =
      group_view(copy_.view(flat_.dtype(), flat_.shape()), group_of(table_, group));
  copy_tensor(view, copy);
  return copy;
}

FlatGradients::FlatGradients(const ParameterTable& table, TensorView flat, KernelSet& kernels,
                             MemoryAccount& account, OnReady on_ready)
    : table_(table), flat_(flat), kernels_(kernels), on_ready_(std::move(on_ready)) {
  expect_shape(flat, {table.flat_size()}, "the gradient vector");
  if (flat.device() != kernels.device()) {
    const auto largest = std::ranges::max_element(table.groups(), {}, &ParameterGroup::padded_size);
    device_ = Buffer(flat.bytes(), account, kernels.device());
    staged_ = Buffer(static_cast<std::size_t>(largest->padded_size) * sizeof(float), account);
  }
}

TensorView FlatGradients::open(std::int32_t group) {
  if (device_.bytes() == 0) {
    return group_view(flat_, group_of(table_, group));
  }
  const TensorView fresh = group_view(device_.floats(flat_.shape()), group_of(table_, group));
  zero_tensor(fresh);
  return fresh;
}

void FlatGradients::ready(std::int32_t group) {
  if (device_.bytes() > 0) {
    const ParameterGroup& range = group_of(table_, group);
    const TensorView staged = staged_.floats({range.padded_size});
    copy_tensor(group_view(device_.floats(flat_.shape()), range), staged);
    kernels_.host().add(staged, group_view(flat_, range));
  }
  if (on_ready_) {
    on_ready_(group);
  }
}

}  // namespace jforge
