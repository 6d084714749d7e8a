#include "workers/train/parameter_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/tensor/cuda_queue.h"

namespace jforge {

namespace {

constexpr std::int32_t kNoFold = -1;

}  // namespace

ParameterStore::ParameterStore(const ParameterTable& table, const Sharding& sharding,
                               KernelSet& kernels, Collectives& collectives, MemoryAccount& account,
                               std::span<const float> shard, Collectives* across)
    : table_(table),
      sharding_(sharding),
      kernels_(kernels),
      home_(sharding.offload ? kernels.host() : kernels),
      collectives_(collectives),
      across_(across),
      uses_(table),
      owned_(owned_groups(table, sharding, collectives.rank())),
      shard_(shard_groups(table, collectives.rank())),
      slots_(table),
      slot_begins_(slots_.begins()),
      tensor_squares_(kernels, account) {
  sharding_.validate();
  expect(table.shard_count() == collectives.size(),
         "the parameter table's shard count differs from the number of ranks");
  expect(collectives.device() == home_.device(),
         "the collectives' tensors lie elsewhere than what training keeps");
  const std::int64_t owned_elements = owned_size(table, sharding_);
  const std::int64_t slot_elements = slots_.total_size();
  const std::int64_t kept = kept_size(table, sharding_);
  const std::size_t kept_bytes = storage_bytes(kept, sharding_.compute);
  const bool masters_are_weights = sharding_.compute == DType::float32;
  const auto at_home = [&](std::size_t bytes, MemoryUse use) {
    return buffer_at_home(bytes, account, kernels, home_, use);
  };
  if (sharding_.separate_masters()) {
    const std::size_t bytes = storage_bytes(owned_elements, DType::float32);
    // Masters of rounded weights never leave home.
    masters_ = masters_are_weights ? at_home(bytes, MemoryUse::weights)
                                   : Buffer(bytes, account, home_.device(), MemoryUse::optimizer);
  }
  if (!sharding_.separate_masters() || !masters_are_weights) {
    compute_weights_ = at_home(kept_bytes, MemoryUse::weights);
  }
  const TensorView lent =
      (compute_weights_.bytes() > 0 ? compute_weights_ : masters_).view(sharding_.compute, {kept});
  if (!sharding_.separate_masters()) {
    flat_ = lent;
  }
  weights_.emplace(table, sharding_, kernels, home_, collectives, account, lent,
                   MemoryUse::weights);
  if (sharding_.teacher) {
    teacher_weights_ = at_home(kept_bytes, MemoryUse::teacher);
    frozen_.emplace(table, sharding_, kernels, home_, collectives, account,
                    teacher_weights_.view(sharding_.compute, {kept}), MemoryUse::teacher);
  }
  const std::int64_t open_gradients =
      sharding_.shards_gradients() ? slot_elements : table.flat_size();
  gradients_ =
      at_home(storage_bytes(open_gradients, DType::float32),
              sharding_.shards_gradients() ? MemoryUse::communication : MemoryUse::gradients);
  if (sharding_.shards_gradients()) {
    owned_gradients_ = Buffer(storage_bytes(owned_elements, DType::float32), account,
                              home_.device(), MemoryUse::gradients);
  }
  if (offloaded()) {
    gradient_copies_ = Buffer(storage_bytes(open_gradients, DType::float32), account,
                              kernels.device(), MemoryUse::gradients);
  }

  const std::size_t groups = table.groups().size();
  gradients_work_.resize(sharding_.shards_gradients() ? slots_.count() : groups);
  if (offloaded()) {
    copying_ = make_cuda_queue();
    copied_.resize(gradients_work_.size());
  }
  folds_.assign(slots_.count(), kNoFold);
  folded_.assign(groups, false);
  if (account.backing() == MemoryAccount::Backing::count_only) {
    return;
  }
  // Now, because within a step others would wait for a rank that runs out of memory.
  tensor_squares_.reset(static_cast<std::int64_t>(table.entries().size()));
  if (!shard.empty()) {
    load(shard);
    if (frozen_) {
      wait_for_weights();
      home_.queue().copy(lent, teacher_weights_.view(sharding_.compute, {kept}));
    }
  }
}

ParameterStore::~ParameterStore() {
  wait_for_ends(copied_);
  wait_for_ends(gradients_work_);
  wait_for_ends(across_work_);
}

// ---- views -------------------------------------------------------------------------------------

TensorView ParameterStore::home_gradient(std::int32_t group) const {
  const std::int64_t begin =
      sharding_.shards_gradients() ? slot_begins_[slots_.slot_of(group)] : group_of(group).offset;
  const std::int64_t elements =
      sharding_.shards_gradients() ? slots_.total_size() : table_.flat_size();
  return gradients_.floats({elements}).rows(begin, begin + group_of(group).padded_size);
}

TensorView ParameterStore::compute_gradient(std::int32_t group) const {
  const TensorView reduced = home_gradient(group);
  if (!offloaded()) {
    return reduced;
  }
  const auto* const base = static_cast<const std::byte*>(gradients_.floats({1}).raw());
  const auto offset = static_cast<const std::byte*>(reduced.raw()) - base;
  return {gradient_copies_.data() + offset, DType::float32, reduced.shape(), kernels_.device()};
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
  const TensorView whole = home_gradient(owned.group);
  return sharding_.shards_state() ? block_of(whole, collectives_.rank(), collectives_.size())
                                  : whole;
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
  weights_->watch(shape.replica_hashes);
  if (frozen_) {
    frozen_->watch(shape.replica_hashes);
  }
  begun_ = true;
  crossed_ = false;
  fault_point("train.begin");
  tensor_squares_.reset(static_cast<std::int64_t>(table_.entries().size()));
}

void ParameterStore::expect_next(GroupUse::Kind kind, std::int32_t group, bool of_teacher) {
  expect(cursor_ < script_.size() && script_[cursor_].use == GroupUse{kind, group} &&
             script_[cursor_].of_teacher == of_teacher,
         "a group is asked for out of turn: other ranks would wait for another");
}

ConstTensorView ParameterStore::acquire(std::int32_t group) {
  if (sharding_.shards_weights()) {
    expect_next(GroupUse::Kind::acquire, group);
    gather(script_[cursor_]);
    ++cursor_;
  }
  return weights_->lend(group);
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
  // The next layer's acquire() refills the slot; embedding and head have their own.
}

void ParameterStore::gather(const ScriptedUse& scripted) {
  const auto one = [&](const ScriptedUse& asked) {
    (asked.of_teacher ? *frozen_ : *weights_).gather(asked.use.group);
  };
  one(scripted);
  const auto ahead = std::find_if(
      script_.begin() + static_cast<std::ptrdiff_t>(cursor_) + 1, script_.end(),
      [](const ScriptedUse& later) { return later.use.kind == GroupUse::Kind::acquire; });
  if (ahead != script_.end()) {
    one(*ahead);
  }
}

TensorView ParameterStore::open(std::int32_t group) {
  if (sharding_.shards_gradients()) {
    // If offloaded, waits for the reduction and so for the copy it reads.
    fold(slots_.slot_of(group));
  }
  return compute_gradient(group);
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
    if (offloaded()) {
      copying_->wait(kernels_.queue().record());
      copying_->copy(compute_gradient(group), home_gradient(group));
      copied_[gradient_place(group)] = copying_->record();
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
    measured_ = {};  // The embedding is last.
  }
}

/// Before the reduction: a sum that is not finite names the tensor. The last one's includes
/// padding.
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

void ParameterStore::expect_finite_gradients(std::int64_t update) const {
  const std::span<const double> squares = tensor_squares_.fetched();
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
  const TensorView whole = home_gradient(group);
  const TensorView own = block_of(whole, collectives_.rank(), collectives_.size());
  const std::size_t place = gradient_place(group);
  if (sharding_.shards_gradients()) {
    folds_[place] = group;
  }
  if (offloaded() && collectives_.size() == 1) {
    // The copied gradient is the sum; one rank's collectives would block here.
    gradients_work_[place] = Work(copied_[place]);
    return;
  }
  collectives_.queue().wait(offloaded() ? copied_[place] : kernels_.queue().record());
  gradients_work_[place] = sharding_.shards_state() ? collectives_.reduce_scatter_sum(whole, own)
                                                    : collectives_.all_reduce_sum(whole);
}

/// Adds a slot's reduced block to those of earlier micro-batches.
void ParameterStore::fold(std::size_t slot) {
  const std::int32_t group = std::exchange(folds_[slot], kNoFold);
  if (group == kNoFold) {
    return;
  }
  gradients_work_[slot].before(home_.queue());
  const TensorView own = block_of(home_gradient(group), collectives_.rank(), collectives_.size());
  const TensorView kept = owned_gradient(shard_[static_cast<std::size_t>(group)]);
  const auto index = static_cast<std::size_t>(group);
  if (folded_[index]) {
    home_.add(own, kept);
  } else {
    home_.queue().copy(own, kept);
    folded_[index] = true;
  }
}

void ParameterStore::abandon() {
  fault_point("train.abandon");
  expect(begun_, "a step is given up that has not begun");
  measured_ = {};
  for (; cursor_ < script_.size(); ++cursor_) {
    const auto& [use, reduces, of_teacher] = script_[cursor_];
    if (use.kind == GroupUse::Kind::acquire) {
      gather(script_[cursor_]);
    } else if (reduces) {
      reduce(use.group);
    }
  }
  reduce_across();
}

void ParameterStore::reduce_across() {
  if (across_ == nullptr || std::exchange(crossed_, true)) {
    return;
  }
  across_work_.resize(owned_.size());
  for (const Work& work : gradients_work_) {
    work.before(across_->queue());
  }
  across_->queue().wait(home_.queue().record());
  for (std::size_t group = 0; group < owned_.size(); ++group) {
    across_work_[group] = across_->all_reduce_sum(owned_gradient(owned_[group]));
  }
}

void ParameterStore::fetch_reductions() {
  expect(cursor_ == script_.size(), "a step's passes have not ended");
  tensor_squares_.fetch();  // First, because offloaded folds wait below.
  if (sharding_.shards_gradients()) {
    for (std::size_t slot = 0; slot < folds_.size(); ++slot) {
      fold(slot);
    }
  }
  for (const Work& work : gradients_work_) {
    work.before(home_.queue());
  }
  reduce_across();
  for (const Work& work : across_work_) {
    work.before(home_.queue());
  }
}

void ParameterStore::finish_reductions(std::int64_t update) {
  fetch_reductions();
  synchronize();
  expect_finite_gradients(update);
}

std::optional<WaitingForOthers> ParameterStore::as_waiting() const {
  return needs_others() ? std::optional<WaitingForOthers>(std::in_place) : std::nullopt;
}

void ParameterStore::synchronize() const {
  const auto waiting = as_waiting();
  kernels_.queue().synchronize();
  home_.queue().synchronize();
  // All done by now; throws for a failed one before its result is read.
  for (const auto* const all : {&gradients_work_, &across_work_}) {
    for (const Work& work : *all) {
      work.wait();
    }
  }
  weights_->wait();
}

void ParameterStore::wait(const Event& place) const {
  const auto waiting = as_waiting();
  place.wait();
}

TensorView ParameterStore::rounded_master(const ShardGroup& owned) const {
  if (sharding_.compute == DType::float32) {
    return {};
  }
  return sharding_.shards_state() ? weights_->own_block(owned.group) : weights_->whole(owned.group);
}

void ParameterStore::publish() {
  if (sharding_.shards_state() && !sharding_.shards_weights()) {
    for (const ShardGroup& range : owned_) {
      weights_->share(range.group);
    }
  }
  weights_->changed();
}

void ParameterStore::clear_gradients() {
  begun_ = false;
  if (sharding_.shards_gradients()) {
    std::fill(folded_.begin(), folded_.end(), false);
    return;
  }
  if (offloaded()) {
    // The gradients at home are copies of these.
    kernels_.queue().wait(copying_->record());
    kernels_.queue().zero(gradient_copies_.floats({table_.flat_size()}));
  } else {
    home_.queue().zero(gradients_.floats({table_.flat_size()}));
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
    if (sharding_.shards_state()) {
      home_.queue().copy(part, master(owned));
    } else {
      gather_blocks(part, master(owned));
    }
    if (const TensorView rounded = rounded_master(owned); !rounded.empty()) {
      home_.convert(master(owned), rounded);
    }
  }
  finish_gathers();  // `shard` may be freed.
  publish();
}

void ParameterStore::copy_own(std::int32_t group, const TensorView& target) const {
  const TensorView kept = master(owned_[static_cast<std::size_t>(group)]);
  home_.queue().copy(
      sharding_.shards_state() ? kept : block_of(kept, collectives_.rank(), collectives_.size()),
      target);
  home_.queue().synchronize();
}

void ParameterStore::gather_blocks(const ConstTensorView& block, const TensorView& whole) {
  const TensorView own = block_of(whole, collectives_.rank(), collectives_.size());
  {
    // From pageable memory, waits for the previous gather.
    const auto waiting = as_waiting();
    home_.queue().copy(block, own);
  }
  collectives_.queue().wait(home_.queue().record());
  const Work work = collectives_.all_gather(own, whole);
  work.before(home_.queue());
  gathers_.push_back(work);
}

void ParameterStore::finish_gathers() {
  {
    const auto waiting = as_waiting();
    home_.queue().synchronize();
  }
  // A failed gather ends too, with invalid values.
  for (const Work& work : std::exchange(gathers_, {})) {
    work.wait();
  }
}

// ---- integrity ---------------------------------------------------------------------------------

void ParameterStore::hash_replicas(const TensorView& sums) const {
  weights_->hash_replicas(sums);
  if (frozen_) {
    frozen_->hash_replicas(sums);
  }
}

void ParameterStore::hash_teacher(const TensorView& sum) const {
  if (frozen_) {
    frozen_->hash_own(sum);
  }
}

}  // namespace jforge
