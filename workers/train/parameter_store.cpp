#include "workers/train/parameter_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/error.h"
#include "runtime/fault_injection.h"

namespace jforge {

namespace {

constexpr std::int32_t kNone = -1;

}  // namespace

ParameterStore::ParameterStore(const ParameterTable& table, const Sharding& sharding,
                               KernelSet& kernels, Collectives& collectives, MemoryAccount& account,
                               TensorView weights)
    : table_(table),
      sharding_(sharding),
      kernels_(kernels),
      collectives_(collectives),
      uses_(table),
      owned_(owned_groups(table, sharding, collectives.rank())),
      shard_(shard_groups(table, collectives.rank())),
      slot_begins_(GroupSlots(table).begins()),
      resident_(table),
      tensor_squares_(kernels, account) {
  sharding_.validate();
  expect(table.shard_count() == collectives.size(),
         "the parameter table's shard count differs from the number of ranks");
  expect_shape(weights, {table.flat_size()}, "weights");
  const bool counts_only = account.backing() == MemoryAccount::Backing::count_only;
  const std::int64_t owned_elements = owned_size(table, sharding_);
  const std::int64_t slot_elements = resident_.total_size();
  const bool masters_are_weights = sharding_.compute == DType::float32;
  if (sharding_.separate_masters()) {
    masters_ = Buffer(storage_bytes(owned_elements, DType::float32), account,
                      masters_are_weights ? MemoryUse::weights : MemoryUse::optimizer);
    if (!masters_are_weights) {
      const std::int64_t elements =
          sharding_.shards_weights() ? shard_vector_size(table) : table.flat_size();
      compute_weights_ =
          Buffer(storage_bytes(elements, sharding_.compute), account, MemoryUse::weights);
    }
  } else {
    flat_ = weights;
  }
  const std::int64_t lent_weights = sharding_.shards_weights() ? slot_elements : table.flat_size();
  if (sharding_.shards_weights()) {
    weight_slots_ =
        Buffer(storage_bytes(slot_elements, sharding_.compute), account, MemoryUse::communication);
  }
  const std::int64_t open_gradients =
      sharding_.shards_gradients() ? slot_elements : table.flat_size();
  gradients_ =
      Buffer(storage_bytes(open_gradients, DType::float32), account,
             sharding_.shards_gradients() ? MemoryUse::communication : MemoryUse::gradients);
  if (sharding_.shards_gradients()) {
    owned_gradients_ =
        Buffer(storage_bytes(owned_elements, DType::float32), account, MemoryUse::gradients);
  }
  if (on_device()) {
    device_weights_ = Buffer(storage_bytes(lent_weights, sharding_.compute), account,
                             kernels.device(), MemoryUse::weights);
    device_gradients_ = Buffer(storage_bytes(open_gradients, DType::float32), account,
                               kernels.device(), MemoryUse::gradients);
  }

  if (sharding_.teacher) {
    frozen_.emplace(table, sharding_, kernels, collectives, account, weights);
  }

  const std::size_t groups = table.groups().size();
  const std::size_t slots = resident_.count();
  weights_work_.resize(sharding_.shards_weights() ? slots : groups);
  on_device_stale_.assign(weights_work_.size(), true);
  gradients_work_.resize(sharding_.shards_gradients() ? slots : groups);
  folds_.assign(slots, kNone);
  folded_.assign(groups, false);
  watched_hashes_.resize(static_cast<std::size_t>(collectives.size()));
  watched_.assign(groups, false);
  if (sharding_.separate_masters() && !counts_only) {
    for (const ShardGroup& range : owned_) {
      copy_tensor(weights.rows(range.flat_begin, range.flat_begin + range.size), master(range));
    }
    if (!masters_are_weights && !sharding_.shards_weights()) {
      // Every rank has the whole model at hand: nothing need be gathered.
      kernels_.host().convert(weights,
                              compute_weights_.view(sharding_.compute, {table.flat_size()}));
    } else if (!masters_are_weights) {
      for (const ShardGroup& range : owned_) {
        kernels_.host().convert(master(range), own_block(range.group));
      }
    }
  }
}

ParameterStore::~ParameterStore() {
  try {
    for (const std::vector<Work>* works : {&weights_work_, &gradients_work_}) {
      for (const Work& work : *works) {
        work.wait();
      }
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): who needed the result has heard of it
  }
}

// ---- views -------------------------------------------------------------------------------------

TensorView ParameterStore::host_whole(std::int32_t group) const {
  const ParameterGroup& range = group_of(group);
  const TensorView flat = sharding_.separate_masters()
                              ? compute_weights_.view(sharding_.compute, {table_.flat_size()})
                              : flat_;
  return flat.rows(range.offset, range.offset + range.padded_size);
}

TensorView ParameterStore::block_of(const TensorView& whole, int rank) const {
  const std::int64_t length = whole.elements() / collectives_.size();
  return whole.rows(rank * length, (rank + 1) * length);
}

TensorView ParameterStore::own_block(std::int32_t group) const {
  if (!sharding_.shards_weights()) {
    return block_of(host_whole(group), collectives_.rank());
  }
  const ShardGroup& range = shard_[static_cast<std::size_t>(group)];
  const TensorView shard = (sharding_.compute == DType::float32 ? masters_ : compute_weights_)
                               .view(sharding_.compute, {shard_vector_size(table_)});
  return shard.rows(range.shard_begin, range.shard_begin + range.size);
}

TensorView ParameterStore::weight_slot(std::int32_t group) const {
  const std::int64_t begin = slot_begins_[resident_.slot_of(group)];
  return weight_slots_.view(sharding_.compute, {resident_.total_size()})
      .rows(begin, begin + group_of(group).padded_size);
}

TensorView ParameterStore::host_gradient(std::int32_t group) const {
  const std::int64_t begin = sharding_.shards_gradients() ? slot_begins_[resident_.slot_of(group)]
                                                          : group_of(group).offset;
  const std::int64_t elements =
      sharding_.shards_gradients() ? resident_.total_size() : table_.flat_size();
  return gradients_.floats({elements}).rows(begin, begin + group_of(group).padded_size);
}

TensorView ParameterStore::compute_gradient(std::int32_t group) const {
  const TensorView host = host_gradient(group);
  if (!on_device()) {
    return host;
  }
  const auto* const base = static_cast<const std::byte*>(gradients_.floats({1}).raw());
  const auto offset = static_cast<const std::byte*>(host.raw()) - base;
  return {device_gradients_.data() + offset, DType::float32, host.shape(), kernels_.device()};
}

TensorView ParameterStore::master(const ShardGroup& owned) const {
  if (sharding_.separate_masters()) {
    return masters_.floats({owned_size(table_, sharding_)})
        .rows(owned.shard_begin, owned.shard_begin + owned.size);
  }
  return flat_.rows(owned.flat_begin, owned.flat_begin + owned.size);
}

TensorView ParameterStore::owned_gradient(const ShardGroup& owned) const {
  if (sharding_.shards_gradients()) {
    return owned_gradients_.floats({owned_size(table_, sharding_)})
        .rows(owned.shard_begin, owned.shard_begin + owned.size);
  }
  const TensorView whole = host_gradient(owned.group);
  return sharding_.shards_state() ? block_of(whole, collectives_.rank()) : whole;
}

ConstTensorView ParameterStore::masters() const {
  return sharding_.separate_masters() ? masters_.floats({owned_size(table_, sharding_)}) : flat_;
}

// ---- a step ------------------------------------------------------------------------------------

void ParameterStore::write_script(const StepShape& shape) {
  script_.clear();
  const bool gathers = sharding_.shards_weights();
  const auto append = [&](const std::vector<GroupUse>& pass, bool keeps_gradients, bool last) {
    for (const GroupUse& use : pass) {
      const bool is_ready = use.kind == GroupUse::Kind::ready;
      if (is_ready ? keeps_gradients : gathers) {
        script_.push_back({use, is_ready && (last || sharding_.shards_gradients()), false});
      }
    }
  };
  const auto append_of_teacher = [&](const std::vector<GroupUse>& pass) {
    if (gathers && sharding_.teacher) {
      for (const GroupUse& use : pass) {
        script_.push_back({use, false, true});
      }
    }
  };
  for (std::int64_t done = 0; done < shape.micro_batches; ++done) {
    append_of_teacher(uses_.forward);
    append(uses_.forward, true, false);
    for (int pass = 0; done == shape.measured_micro_batch && pass < shape.measured_passes; ++pass) {
      append_of_teacher(uses_.teacher_head);
      append(uses_.backward, false, false);
    }
    append_of_teacher(uses_.teacher_head);
    append(uses_.backward, true, done + 1 == shape.micro_batches);
  }
}

void ParameterStore::begin_step(const StepShape& shape) {
  expect(cursor_ == script_.size(), "a step begins before the one before has ended");
  write_script(shape);
  cursor_ = 0;
  tensor_squares_.reset(static_cast<std::int64_t>(table_.entries().size()));
  watching_ = shape.watch_replicas && sharding_.shards_weights();
  if (watching_) {
    std::ranges::fill(watched_hashes_, 0);
    std::fill(watched_.begin(), watched_.end(), false);
    resident_.forget();  // So that every group is gathered anew and seen.
  }
}

void ParameterStore::expect_next(GroupUse::Kind kind, std::int32_t group, bool of_teacher) {
  expect(cursor_ < script_.size() && script_[cursor_].use == GroupUse{kind, group} &&
             script_[cursor_].of_teacher == of_teacher,
         "a group is asked for out of turn: other ranks would wait for another");
}

ConstTensorView ParameterStore::acquire(std::int32_t group) {
  std::size_t place = static_cast<std::size_t>(group);
  if (sharding_.shards_weights()) {
    expect_next(GroupUse::Kind::acquire, group);
    gather(script_[cursor_]);
    ++cursor_;
    place = resident_.slot_of(group);
  }
  weights_work_[place].before(kernels_.queue());
  const TensorView host = sharding_.shards_weights() ? weight_slot(group) : host_whole(group);
  if (watching_) {
    watch(group, host);
  }
  if (!on_device()) {
    return host;
  }
  const auto offset = sharding_.shards_weights() ? slot_begins_[place] : group_of(group).offset;
  const TensorView device(device_weights_.data() + storage_bytes(offset, sharding_.compute),
                          sharding_.compute, host.shape(), kernels_.device());
  if (on_device_stale_[place]) {
    kernels_.queue().copy(host, device);
    on_device_stale_[place] = false;
  }
  return device;
}

ConstTensorView ParameterStore::acquire_of_teacher(std::int32_t group) {
  expect(frozen_.has_value(), "no frozen teacher is kept");
  if (sharding_.shards_weights()) {
    expect_next(GroupUse::Kind::acquire, group, true);
    gather(script_[cursor_]);
    ++cursor_;
  }
  return frozen_->lend(group);
}

void ParameterStore::release(std::int32_t /*group*/) {
  // A layer's slot is filled anew by the acquire() of the next layer, whose loan begins after this
  // one's end; the slots of embedding and head hold nothing else.
}

void ParameterStore::gather_into_slot(std::int32_t group) {
  if (!resident_.place(group)) {
    return;
  }
  const std::size_t slot = resident_.slot_of(group);
  on_device_stale_[slot] = true;
  // The slot's last group may still be read.
  collectives_.queue().wait(kernels_.queue().record());
  weights_work_[slot] = collectives_.all_gather(own_block(group), weight_slot(group));
}

void ParameterStore::gather(const ScriptedUse& scripted) {
  const auto one = [&](const ScriptedUse& asked) {
    if (asked.of_teacher) {
      frozen_->gather(asked.use.group);
    } else {
      gather_into_slot(asked.use.group);
    }
  };
  one(scripted);
  const auto ahead = std::find_if(
      script_.begin() + static_cast<std::ptrdiff_t>(cursor_) + 1, script_.end(),
      [](const ScriptedUse& later) { return later.use.kind == GroupUse::Kind::acquire; });
  if (ahead != script_.end()) {
    one(*ahead);
  }
}

void ParameterStore::watch(std::int32_t group, const ConstTensorView& whole) {
  const auto index = static_cast<std::size_t>(group);
  if (watched_[index]) {
    return;
  }
  watched_[index] = true;
  const std::int64_t length = whole.elements() / collectives_.size();
  for (std::size_t owner = 0; owner < watched_hashes_.size(); ++owner) {
    const auto begin = static_cast<std::int64_t>(owner) * length;
    watched_hashes_[owner] =
        kernels_.host().content_hash(whole.rows(begin, begin + length), watched_hashes_[owner]);
  }
}

TensorView ParameterStore::open(std::int32_t group) {
  const TensorView gradient = compute_gradient(group);
  if (sharding_.shards_gradients()) {
    fold(resident_.slot_of(group));
    kernels_.queue().zero(gradient);
  }
  return gradient;
}

void ParameterStore::ready(std::int32_t group) {
  if (!measured_.empty()) {
    measure(group);
    return;
  }
  expect_next(GroupUse::Kind::ready, group);
  if (script_[cursor_].reduces) {
    fault_point("train.reduce");
    sum_squares_of_tensors(group);
    if (on_device()) {
      kernels_.queue().copy(compute_gradient(group), host_gradient(group));
    }
    reduce(group);
  }
  ++cursor_;
}

void ParameterStore::measure(std::int32_t group) {
  const TensorView gradient = compute_gradient(group);
  kernels_.sum_of_squares(gradient, measured_);
  if (!sharding_.shards_gradients()) {
    kernels_.queue().zero(gradient);
  }
  if (group == 0) {
    measured_ = {};  // The embedding is the last.
  }
}

/// Of a gradient that is about to be reduced: a sum that is not finite names the tensor. The last
/// tensor's includes the padding behind it.
void ParameterStore::sum_squares_of_tensors(std::int32_t group) {
  const TensorView gradient = compute_gradient(group);
  const std::int64_t offset = group_of(group).offset;
  const std::span<const ParameterEntry> entries = table_.entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].group == group) {
      const bool last = i + 1 == entries.size() || entries[i + 1].group != group;
      const std::int64_t end = last ? gradient.elements() : entries[i + 1].offset - offset;
      kernels_.sum_of_squares(gradient.rows(entries[i].offset - offset, end),
                              tensor_squares_.part(static_cast<std::int64_t>(i), 1));
    }
  }
}

void ParameterStore::expect_finite_gradients(std::int64_t update) {
  const std::span<const double> squares = tensor_squares_.read();
  for (std::size_t i = 0; i < squares.size(); ++i) {
    if (!std::isfinite(squares[i])) {
      throw NumericalError(fmt::format(
          "gradient of {} is not finite before update {}; nothing was changed; resume "
          "from the last checkpoint, with a lower train.learning_rate if it happens again",
          table_.entries()[i].name, update));
    }
  }
}

void ParameterStore::reduce(std::int32_t group) {
  const TensorView whole = host_gradient(group);
  const TensorView own = block_of(whole, collectives_.rank());
  collectives_.queue().wait(kernels_.queue().record());
  if (!sharding_.shards_gradients()) {
    gradients_work_[static_cast<std::size_t>(group)] =
        sharding_.shards_state() ? collectives_.reduce_scatter_sum(whole, own)
                                 : collectives_.all_reduce_sum(whole);
    return;
  }
  const std::size_t slot = resident_.slot_of(group);
  folds_[slot] = group;
  gradients_work_[slot] = collectives_.reduce_scatter_sum(whole, own);
}

/// Adds the reduced block that waits in a slot to the earlier micro-batches'.
void ParameterStore::fold(std::size_t slot) {
  const std::int32_t group = std::exchange(folds_[slot], kNone);
  if (group == kNone) {
    return;
  }
  gradients_work_[slot].before(kernels_.host().queue());
  const TensorView own = block_of(host_gradient(group), collectives_.rank());
  const TensorView kept = owned_gradient(shard_[static_cast<std::size_t>(group)]);
  const auto index = static_cast<std::size_t>(group);
  if (folded_[index]) {
    kernels_.host().add(own, kept);
  } else {
    copy_tensor(own, kept);
    folded_[index] = true;
  }
}

void ParameterStore::abandon() {
  measured_ = {};
  for (; cursor_ < script_.size(); ++cursor_) {
    const auto& [use, reduces, of_teacher] = script_[cursor_];
    if (use.kind == GroupUse::Kind::acquire) {
      gather(script_[cursor_]);
    } else if (reduces) {
      reduce(use.group);
    }
  }
}

void ParameterStore::finish_reductions(std::int64_t update) {
  expect(cursor_ == script_.size(), "a step's passes have not ended");
  if (sharding_.shards_gradients()) {
    for (std::size_t slot = 0; slot < folds_.size(); ++slot) {
      fold(slot);
    }
  }
  for (const Work& work : gradients_work_) {
    work.before(kernels_.host().queue());
  }
  expect_finite_gradients(update);
}

void ParameterStore::publish() {
  for (const ShardGroup& range : owned_) {
    if (sharding_.compute != DType::float32) {
      kernels_.host().convert(master(range), sharding_.shards_state() ? own_block(range.group)
                                                                      : host_whole(range.group));
    }
    if (sharding_.shards_state() && !sharding_.shards_weights()) {
      weights_work_[static_cast<std::size_t>(range.group)] =
          collectives_.all_gather(own_block(range.group), host_whole(range.group));
    }
  }
  resident_.forget();
  std::fill(on_device_stale_.begin(), on_device_stale_.end(), true);
}

void ParameterStore::clear_gradients() {
  if (sharding_.shards_gradients()) {
    std::fill(folded_.begin(), folded_.end(), false);
    return;
  }
  zero_tensor(gradients_.floats({table_.flat_size()}));
  if (on_device()) {
    kernels_.queue().zero(device_gradients_.floats({table_.flat_size()}));
  }
}

// ---- whole weights -----------------------------------------------------------------------------

void ParameterStore::load(std::span<const float> shard) {
  expect(shard.size() == static_cast<std::size_t>(shard_vector_size(table_)),
         "weights of another size than this rank's shard");
  wait_for_weights();
  for (const ShardGroup& range : shard_) {
    const ConstTensorView part(shard.data() + range.shard_begin, Shape{range.size});
    const ShardGroup& owned = owned_[static_cast<std::size_t>(range.group)];
    const TensorView kept =
        sharding_.shards_state() ? master(owned) : block_of(master(owned), collectives_.rank());
    copy_tensor(part, kept);
    if (!sharding_.shards_state()) {
      collectives_.all_gather(kept, master(owned)).wait();
    }
  }
  publish();
}

void ParameterStore::gather_masters(TensorView flat) {
  wait_for_weights();
  if (!sharding_.separate_masters() && flat.raw() == flat_.raw()) {
    return;
  }
  std::vector<Work> works;
  for (const ShardGroup& range : owned_) {
    const ParameterGroup& group = group_of(range.group);
    const TensorView whole = flat.rows(group.offset, group.offset + group.padded_size);
    if (!sharding_.shards_state()) {
      copy_tensor(master(range), whole);
      continue;
    }
    const TensorView own = block_of(whole, collectives_.rank());
    copy_tensor(master(range), own);
    works.push_back(collectives_.all_gather(own, whole));
  }
  for (const Work& work : works) {
    work.wait();
  }
}

void ParameterStore::wait_for_weights() {
  for (const Work& work : weights_work_) {
    work.wait();
  }
}

// ---- integrity ---------------------------------------------------------------------------------

std::uint64_t ParameterStore::replica_hash(int owner) const {
  if (sharding_.shards_weights()) {
    return watched_hashes_[static_cast<std::size_t>(owner)];
  }
  std::uint64_t hash = 0;
  for (const ShardGroup& range : shard_) {
    hash = kernels_.host().content_hash(block_of(host_whole(range.group), owner), hash);
  }
  return hash;
}

std::uint64_t ParameterStore::own_hash() const {
  std::uint64_t hash = 0;
  for (const ShardGroup& range : shard_) {
    hash = kernels_.host().content_hash(own_block(range.group), hash);
  }
  return hash;
}

}  // namespace jforge
