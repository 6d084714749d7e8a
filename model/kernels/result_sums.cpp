#include "model/kernels/result_sums.h"

namespace jforge {

void ResultSums::reset(std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(double);
  if (bytes > memory_.bytes()) {
    memory_ = Buffer();  // The old block goes first: the peak is one block, not two.
    memory_ = Buffer(bytes, account_, kernels_.device());
  }
  count_ = count;
  if (count > 0) {
    kernels_.queue().zero(part(0, count));
  }
}

TensorView ResultSums::part(std::int64_t first, std::int64_t count) const {
  return memory_.view(DType::float64, Shape{count_}).rows(first, first + count);
}

std::span<const double> ResultSums::read() {
  if (count_ == 0) {
    return {};
  }
  const TensorView all = part(0, count_);
  if (all.device() == Device::cpu) {
    kernels_.queue().synchronize();
    return all.span<double>();
  }
  read_.resize(static_cast<std::size_t>(count_));
  kernels_.queue().copy(all, TensorView(read_.data(), all.shape()));
  kernels_.queue().synchronize();
  return read_;
}

}  // namespace jforge
