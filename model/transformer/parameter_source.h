#pragma once

/// Parameters on loan: the transformer borrows one group at a time (embedding, a layer, the head),
/// gives its gradient and returns it. Where a group lies in the meantime, whole, sharded or on
/// another device, is its lender's affair (workers/train/parameter_store.h).
///
/// The order of loans is part of the contract (PassUses below): lenders gather and reduce over
/// ranks, and all ranks must do so in one order.

#include <cstdint>
#include <vector>

#include "model/transformer/parameter_table.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Lends weights.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// The group as ParameterTable lays it out, [padded_size] of the compute type, where the kernels
  /// compute; valid until release().
  [[nodiscard]] virtual ConstTensorView acquire(std::int32_t group) = 0;
  virtual void release(std::int32_t group) = 0;
};

/// Takes gradients.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Where this micro-batch's gradient of the group adds up, float32 [padded_size], where the
  /// kernels compute; valid until ready().
  [[nodiscard]] virtual TensorView open(std::int32_t group) = 0;
  /// Whether nothing has been added up there: its values are undefined, and all are to be written.
  [[nodiscard]] virtual bool undefined(std::int32_t group) const = 0;
  /// All of this micro-batch's gradient of the group has been added.
  virtual void ready(std::int32_t group) = 0;
};

/// What a pass asks of lender and sink, in this order, also with an empty batch. A layer's loan
/// ends before the next layer's begins.
struct GroupUse {
  enum class Kind : std::uint8_t { acquire, ready };
  Kind kind;
  std::int32_t group;
  bool operator==(const GroupUse&) const = default;
};

/// Uses of TrainingTransformer::forward() and loss_and_backward().
struct PassUses {
  explicit PassUses(const ParameterTable& table);
  std::vector<GroupUse> forward;
  std::vector<GroupUse> backward;
  /// What loss_and_backward() asks of a separate teacher, first.
  std::vector<GroupUse> teacher_head;
};

/// A loan that ends with its scope.
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
  /// The tensor of an entry of this group, empty for none.
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
