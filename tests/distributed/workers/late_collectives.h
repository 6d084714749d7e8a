#pragma once

/// Collectives at the minimum of their contract: a missing wait reads NaN, and inputs must stay
/// unchanged until an operation is done.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "runtime/comm/tensor_collectives.h"

namespace jforge::test {

/// Output holds NaN until its operation is waited for. An operation runs as late as possible: when
/// it or a later one is waited for. For one user thread.
class LateCollectives final : public Collectives {
 public:
  explicit LateCollectives(const Communicator& comm) : inner_(make_host_collectives(comm)) {}
  /// The last operation on each memory must have been waited for.
  ~LateCollectives() override {
    std::set<const void*> seen;
    for (std::size_t i = operations_.size(); i-- > 0;) {
      if (seen.insert(operations_[i]->output.raw()).second) {
        EXPECT_TRUE(operations_[i]->delivered) << "nobody waited for operation " << i;
      }
    }
  }
  LateCollectives(const LateCollectives&) = delete;
  LateCollectives& operator=(const LateCollectives&) = delete;

  [[nodiscard]] Rank rank() const noexcept override { return inner_->rank(); }
  [[nodiscard]] int size() const noexcept override { return inner_->size(); }
  [[nodiscard]] Queue& queue() noexcept override { return inner_->queue(); }

  Work all_reduce_sum(TensorView values) override { return reduce(values, values, true); }
  Work reduce_scatter_sum(TensorView input, TensorView output) override {
    return reduce(input, output, false);
  }
  Work all_gather(ConstTensorView input, TensorView output) override {
    auto operation = std::make_shared<Operation>(*this, operations_.size(), output);
    operation->watched = input;
    operation->input = bytes_of(input);
    operation->result.resize(output.bytes());
    operation->run = [this](Operation& own) {
      return inner_->all_gather(view_of(own.input, own.watched), view_of(own.result, own.output));
    };
    const std::int64_t own = input.elements();
    for (int owner = 0; owner < size(); ++owner) {
      const TensorView block = output.rows(owner * own, (owner + 1) * own);
      if (block.raw() != input.raw()) {
        poison(block);
      }
    }
    return append(std::move(operation));
  }
  Work broadcast(TensorView values, Rank root) override { return inner_->broadcast(values, root); }
  [[nodiscard]] PayloadBytes bytes() const noexcept override { return inner_->bytes(); }
  [[nodiscard]] double waited_seconds() const noexcept override { return inner_->waited_seconds(); }

 private:
  using Bytes = std::vector<std::byte>;

  struct Operation final : Event::Source {
    Operation(LateCollectives& collectives, std::size_t index, const TensorView& view)
        : owner(collectives), number(index), output(view) {}
    [[nodiscard]] bool reached(std::uint64_t /*place*/) const override { return delivered; }
    void wait(std::uint64_t /*place*/) const override { owner.deliver(number); }

    LateCollectives& owner;
    const std::size_t number;
    TensorView output;
    ConstTensorView watched;  ///< must equal `input` until the operation has run
    Bytes input;
    Bytes result;
    std::function<Work(Operation&)> run;
    bool delivered = false;
  };

  static Bytes bytes_of(const ConstTensorView& view) {
    const auto* const data = static_cast<const std::byte*>(view.raw());
    return {data, data + view.bytes()};
  }
  static TensorView view_of(Bytes& bytes, const ConstTensorView& like) {
    return {bytes.data(), like.dtype(), like.shape()};
  }
  /// All bits set is NaN in both types.
  static void poison(const TensorView& view) { std::memset(view.raw(), 0xff, view.bytes()); }

  Work reduce(const TensorView& input, const TensorView& output, bool all) {
    auto operation = std::make_shared<Operation>(*this, operations_.size(), output);
    operation->input = bytes_of(input);
    operation->result.resize(output.bytes());
    operation->run = [this, all, input](Operation& own) {
      const TensorView copied = view_of(own.input, input);
      if (all) {
        own.result.swap(own.input);
        return inner_->all_reduce_sum(view_of(own.result, input));
      }
      return inner_->reduce_scatter_sum(copied, view_of(own.result, own.output));
    };
    poison(output);
    return append(std::move(operation));
  }

  Work append(std::shared_ptr<Operation> operation) {
    operations_.push_back(operation);
    return Work(Event(std::move(operation)));
  }

  /// Operations run in call order, whatever a rank waits for.
  void deliver(std::size_t number) {
    for (; ran_ <= number; ++ran_) {
      Operation& operation = *operations_[ran_];
      if (!operation.watched.empty()) {
        EXPECT_EQ(
            std::memcmp(operation.watched.raw(), operation.input.data(), operation.input.size()), 0)
            << "the input of operation " << ran_ << " was changed under way";
      }
      operation.run(operation).wait();
    }
    Operation& operation = *operations_[number];
    if (!std::exchange(operation.delivered, true)) {
      std::memcpy(operation.output.raw(), operation.result.data(), operation.result.size());
    }
  }

  std::unique_ptr<Collectives> inner_;
  std::vector<std::shared_ptr<Operation>> operations_;
  std::size_t ran_ = 0;
};

}  // namespace jforge::test
