#include "model/kernels/result_sums.h"

namespace jforge {

namespace {

template <class T>
constexpr DType kType = detail::DTypeOf<T>::value;

}  // namespace

template <class T>
void DeviceSums<T>::reset(std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  if (bytes > memory_.bytes()) {
    memory_ = Buffer();  // Freed first, so that both blocks never coexist.
    memory_ = Buffer(bytes, account_, kernels_.device());
    if (memory_.device() != Device::cpu) {
      pinned_ = Buffer(bytes, account_, HostMemory::page_locked, MemoryUse::staging);
    }
  }
  count_ = count;
  if (count > 0) {
    kernels_.queue().zero(part(0, count));
  }
}

template <class T>
TensorView DeviceSums<T>::part(std::int64_t first, std::int64_t count) const {
  return memory_.view(kType<T>, Shape{count_}).rows(first, first + count);
}

template <class T>
void DeviceSums<T>::fetch() {
  fetched_ = count_;
  if (count_ == 0) {
    return;
  }
  const TensorView all = part(0, count_);
  if (all.device() == Device::cpu) {
    const std::span<const T> numbers = all.span<T>();
    host_.assign(numbers.begin(), numbers.end());
    return;
  }
  kernels_.queue().copy(all, TensorView(pinned_.data(), kType<T>, all.shape()));
}

template <class T>
std::span<const T> DeviceSums<T>::fetched() const {
  const T* const numbers =
      kernels_.device() == Device::cpu ? host_.data() : reinterpret_cast<const T*>(pinned_.data());
  return {numbers, static_cast<std::size_t>(fetched_)};
}

template <class T>
std::span<const T> DeviceSums<T>::read() {
  fetch();
  kernels_.queue().synchronize();
  return fetched();
}

template class DeviceSums<double>;
template class DeviceSums<std::int64_t>;

}  // namespace jforge
