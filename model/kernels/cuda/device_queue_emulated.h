#pragma once

/// Runs the kernels on the host for tests, lane by lane. Races within a phase are not detected, but
/// another lane order makes most of them change the result. Fresh shared memory holds NaN.
/// cuda_memory functions define device memory (tests/gpu/emulated_device_memory.cpp).

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "model/kernels/cuda/block_group.h"
#include "model/kernels/cuda/float_elements.h"
#include "runtime/device/queue.h"
#include "runtime/error.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/matrix_product.h"

namespace jforge {

enum class LaneOrder : std::uint8_t { ascending, descending, interleaved };

class SerialGroup {
 public:
  SerialGroup(std::int64_t lanes, std::int64_t shared_bytes, LaneOrder order)
      : lanes_(lanes),
        order_(order),
        // All bits set is NaN as double and as float.
        shared_(static_cast<std::size_t>(shared_bytes) / sizeof(double),
                std::bit_cast<double>(~std::uint64_t{0})),
        floats_(static_cast<std::size_t>(lanes)),
        doubles_(static_cast<std::size_t>(lanes)),
        words_(static_cast<std::size_t>(lanes)) {}

  template <class T>
  class PerLane {
   public:
    explicit PerLane(const SerialGroup& group) : values_(static_cast<std::size_t>(group.lanes_)) {}
    T& operator[](std::int64_t lane) { return values_[static_cast<std::size_t>(lane)]; }

   private:
    std::vector<T> values_;
  };

  [[nodiscard]] std::int64_t lanes() const { return lanes_; }

  template <class Function>
  void each(Function function) const {
    for (std::int64_t i = 0; i < lanes_; ++i) {
      function(lane_at(i));
    }
  }

  template <class T, class Function>
  T sum(Function function) {
    return reduce<T>(function, [](T a, T b) { return a + b; });
  }

  template <class Function>
  float largest(Function function) {
    return reduce<float>(function, [](float a, float b) { return std::fmax(a, b); });
  }

  template <class T>
  T* shared(std::int64_t count) {
    auto* const begin = reinterpret_cast<std::byte*>(shared_.data()) + used_;
    used_ += shared_size<T>(count);
    expect(used_ <= static_cast<std::int64_t>(shared_.size() * sizeof(double)),
           "a kernel uses more shared memory than it declares");
    return reinterpret_cast<T*>(begin);
  }

 private:
  [[nodiscard]] std::int64_t lane_at(std::int64_t i) const {
    switch (order_) {
      case LaneOrder::ascending:
        return i;
      case LaneOrder::descending:
        return lanes_ - 1 - i;
      case LaneOrder::interleaved:
        return i * 2 < lanes_ ? i * 2 : (i * 2 - lanes_) + 1;
    }
    return i;
  }

  template <class T, class Function, class Combine>
  T reduce(Function function, Combine combine) {
    std::vector<T>& values = values_of<T>();
    each([&](std::int64_t lane) { values[static_cast<std::size_t>(lane)] = function(lane); });
    for (std::int64_t stride = lanes_ / 2; stride > 0; stride /= 2) {
      for (std::int64_t lane = 0; lane < stride; ++lane) {
        T& value = values[static_cast<std::size_t>(lane)];
        value = combine(value, values[static_cast<std::size_t>(lane + stride)]);
      }
    }
    return values[0];
  }

  template <class T>
  std::vector<T>& values_of() {
    if constexpr (std::is_same_v<T, float>) {
      return floats_;
    } else if constexpr (std::is_same_v<T, double>) {
      return doubles_;
    } else {
      return words_;
    }
  }

  std::int64_t lanes_;
  LaneOrder order_;
  std::vector<double> shared_;
  std::vector<float> floats_;
  std::vector<double> doubles_;
  std::vector<std::uint64_t> words_;
  std::int64_t used_ = 0;
};

using RecordedLaunches = std::vector<std::function<void()>>;

class DeviceQueue final : public Queue {
 public:
  static constexpr Device kDevice = Device::cuda;
  static LaneOrder& lane_order() {
    static LaneOrder order = LaneOrder::ascending;
    return order;
  }

  explicit DeviceQueue(MemoryAccount& /*account*/) {}

  [[nodiscard]] static std::int64_t most_shared_bytes() noexcept { return kMostSharedBytes; }

  [[nodiscard]] Event record() override { return {}; }
  void wait(const Event& event) override { event.wait(); }
  void copy(const ConstTensorView& from, const TensorView& to) override {
    if (recording_ != nullptr) {
      recording_->push_back([from, to] { copy_tensor(from, to); });
      return;
    }
    copy_tensor(from, to);
  }
  void zero(const TensorView& view) override { zero_tensor(view); }
  void synchronize() override {}

  template <class Body>
  void launch(std::int64_t blocks, std::int64_t lanes, const Body& body, const char* what) {
    // Refuses what a device would refuse.
    expect(std::has_single_bit(static_cast<std::uint64_t>(lanes)) &&
               body.shared_bytes() <= kMostSharedBytes,
           what);
    if (recording_ != nullptr) {
      recording_->push_back(
          [this, blocks, lanes, body, what] { launch(blocks, lanes, body, what); });
      return;
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
      SerialGroup group(lanes, body.shared_bytes(), lane_order());
      body(group, block);
    }
  }

  /// Sums in ascending order by FMA, then adds the bias, then the old value.
  void multiply(const MatrixProduct& product) {
    if (recording_ != nullptr) {
      recording_->push_back([this, product] { multiply(product); });
      return;
    }
    const FloatSource a{product.a, product.operands == DType::bfloat16};
    const FloatSource b{product.b, product.operands == DType::bfloat16};
    const bool narrow = product.result == DType::bfloat16;
    const FloatSource bias{product.bias, narrow};
    const FloatTarget c{product.c, narrow};
    const auto [m, n, k] = std::array{product.m, product.n, product.k};
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t column = 0; column < n; ++column) {
        float sum = 0;
        for (std::int64_t i = 0; i < k; ++i) {
          sum = std::fma(a[product.transpose_a ? i * m + row : row * k + i],
                         b[product.transpose_b ? column * k + i : i * n + column], sum);
        }
        if (product.bias != nullptr) {
          sum += bias[column];
        }
        const std::int64_t at = row * n + column;
        c.set(at, product.accumulate ? c[at] + sum : sum);
      }
    }
  }
  /// There is one order of sums.
  static void prepare_rows(const MatrixProduct& /*product*/, std::int64_t /*max_rows*/) {}

  void download(void* host, const void* device, std::size_t bytes) {
    std::memcpy(host, device, bytes);
  }

  /// `work` may use the device for nothing else.
  [[nodiscard]] RecordedLaunches record_launches(const std::function<void()>& work) {
    RecordedLaunches launches;
    recording_ = &launches;
    try {
      work();
    } catch (...) {
      recording_ = nullptr;
      throw;
    }
    recording_ = nullptr;
    return launches;
  }
  static void replay(const RecordedLaunches& launches) {
    for (const auto& launch : launches) {
      launch();
    }
  }

 private:
  RecordedLaunches* recording_ = nullptr;
};

class StagedArray {
 public:
  StagedArray(DeviceQueue& /*queue*/, MemoryAccount& account) : account_(account) {}

  template <class T>
  const T* upload(std::span<const T> values) {
    if (values.empty()) {
      return nullptr;
    }
    if (values.size_bytes() > memory_.bytes()) {
      memory_ = Buffer(2 * values.size_bytes(), account_, Device::cuda, MemoryUse::staging);
    }
    std::memcpy(memory_.data(), values.data(), values.size_bytes());
    return reinterpret_cast<const T*>(memory_.data());
  }

 private:
  MemoryAccount& account_;
  Buffer memory_;
};

}  // namespace jforge
