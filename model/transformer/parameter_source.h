#pragma once

/// Parameters on loan: the transformer borrows one group at a time (embedding, a layer, the head)
/// and returns it with its gradient. Between loans the lender may shard it or move it
/// (workers/train/parameter_store.h). The order of loans is part of the contract (PassUses),
/// because lenders run collectives.

#include <cstdint>
#include <vector>

#include "model/transformer/parameter_table.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// Returns the group [padded_size], of the compute type and where the kernels compute; valid
  /// until release().
  [[nodiscard]] virtual ConstTensorView acquire(std::int32_t group) = 0;
  virtual void release(std::int32_t group) = 0;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Returns the group's gradient to add to, float32 [padded_size], where the kernels compute;
  /// valid until ready().
  [[nodiscard]] virtual TensorView open(std::int32_t group) = 0;
  /// Returns true if the gradient is uninitialised: then the caller must write every element.
  [[nodiscard]] virtual bool undefined(std::int32_t group) const = 0;
  /// Called when the micro-batch's gradient of the group is complete.
  virtual void ready(std::int32_t group) = 0;
};

/// One call to a source or sink. A pass makes the same calls for an empty batch. A layer's loan
/// ends before the next layer's begins.
struct GroupUse {
  enum class Kind : std::uint8_t { acquire, ready };
  Kind kind;
  std::int32_t group;
  bool operator==(const GroupUse&) const = default;
};

/// The calls of TrainingTransformer::forward() and loss_and_backward(), in order, to the lender of
/// the trained weights: the model's, or an adapter's.
struct PassUses {
  explicit PassUses(const ParameterTable& table);
  std::vector<GroupUse> forward;
  std::vector<GroupUse> backward;
  /// loss_and_backward()'s first calls, to a separate teacher.
  std::vector<GroupUse> teacher_head;
};

/// Releases its group at the end of its scope.
class BorrowedGroup {
 public:
  BorrowedGroup(ParameterSource& source, const ParameterTable& table, std::int32_t group)
      : source_(source),
        group_(group),
        offset_(table.groups()[static_cast<std::size_t>(group)].offset),
        view_(source.acquire(group)) {}
  ~BorrowedGroup() { source_.release(group_); }
  BorrowedGroup(const BorrowedGroup&) = delete;
  BorrowedGroup& operator=(const BorrowedGroup&) = delete;
  /// Returns an empty view for nullptr.
  [[nodiscard]] ConstTensorView operator()(const ParameterEntry* entry) const {
    return entry == nullptr ? ConstTensorView() : tensor_in_group(view_, offset_, *entry);
  }

 private:
  ParameterSource& source_;
  std::int32_t group_;
  std::int64_t offset_;
  ConstTensorView view_;
};

}  // namespace jforge
