#include "workers/train/lent_weights.h"

#include <algorithm>

#include "runtime/fault_injection.h"
#include "runtime/tensor/cuda_queue.h"

namespace jforge {

std::int64_t kept_size(const ParameterTable& table, const Sharding& sharding) {
  return sharding.shards_weights() ? shard_vector_size(table) : table.flat_size();
}

Buffer buffer_at_home(std::size_t bytes, MemoryAccount& account, const KernelSet& kernels,
                      const KernelSet& home, MemoryUse use) {
  return kernels.device() == home.device() ? Buffer(bytes, account, home.device(), use)
                                           : Buffer(bytes, account, HostMemory::page_locked, use);
}

LentWeights::LentWeights(const ParameterTable& table, const Sharding& sharding, KernelSet& kernels,
                         KernelSet& home, Collectives& collectives, MemoryAccount& account,
                         const TensorView& kept, MemoryUse use)
    : table_(table),
      sharding_(sharding),
      kernels_(kernels),
      home_(home),
      collectives_(collectives),
      shard_(shard_groups(table, collectives.rank())),
      kept_(kept),
      resident_(table),
      slot_begins_(resident_.begins()) {
  const bool shards = sharding_.shards_weights();
  const std::int64_t lent = shards ? resident_.total_size() : table.flat_size();
  if (shards) {
    slots_ = buffer_at_home(storage_bytes(lent, sharding_.compute), account, kernels, home,
                            MemoryUse::communication);
  }
  work_.resize(shards ? resident_.count() : table.groups().size());
  if (offloaded()) {
    copies_ = Buffer(storage_bytes(lent, sharding_.compute), account, kernels.device(), use);
    copying_ = make_cuda_queue();
    copied_.resize(work_.size());
    unread_.resize(work_.size());
  }
  copy_stale_.assign(work_.size(), true);
  watched_.assign(table.groups().size(), false);
}

LentWeights::~LentWeights() {
  wait_for_ends(copied_);
  wait_for_ends(work_);
}

std::size_t LentWeights::place_of(std::int32_t group) const {
  return sharding_.shards_weights() ? resident_.slot_of(group) : static_cast<std::size_t>(group);
}

TensorView LentWeights::whole(std::int32_t group) const {
  const ParameterGroup& range = table_.groups()[static_cast<std::size_t>(group)];
  if (!sharding_.shards_weights()) {
    return kept_.rows(range.offset, range.offset + range.padded_size);
  }
  const std::int64_t begin = slot_begins_[resident_.slot_of(group)];
  return slots_.view(sharding_.compute, {resident_.total_size()})
      .rows(begin, begin + range.padded_size);
}

TensorView LentWeights::own_block(std::int32_t group) const {
  const ShardGroup& range = shard_[static_cast<std::size_t>(group)];
  const std::int64_t begin = sharding_.shards_weights() ? range.shard_begin : range.flat_begin;
  return kept_.rows(begin, begin + range.size);
}

void LentWeights::gather(std::int32_t group) {
  if (!sharding_.shards_weights() || resident_.holds(group)) {
    return;
  }
  fault_point("train.gather");
  const std::size_t slot = resident_.slot_of(group);
  copy_stale_[slot] = true;
  // The slot's last group and its copy may still be read.
  const Event unread = kernels_.queue().record();
  if (offloaded()) {
    unread_[slot] = unread;
  }
  collectives_.queue().wait(offloaded() ? copied_[slot] : unread);
  work_[slot] = collectives_.all_gather(own_block(group), whole(group));
  resident_.place(group);
}

ConstTensorView LentWeights::lend(std::int32_t group) {
  ConstTensorView lent;
  if (offloaded()) {
    lent = bring(group);
  } else {
    work_[place_of(group)].before(kernels_.queue());
    lent = whole(group);
  }
  if (!watched_sums_.empty() && !watched_[static_cast<std::size_t>(group)]) {
    watched_[static_cast<std::size_t>(group)] = true;
    hash_blocks(group, watched_sums_);
  }
  return lent;
}

ConstTensorView LentWeights::bring(std::int32_t group) {
  const std::size_t place = place_of(group);
  const ConstTensorView kept = whole(group);
  const std::int64_t begin =
      sharding_.shards_weights() ? slot_begins_[place] : table_.groups()[place].offset;
  const TensorView copy(copies_.data() + storage_bytes(begin, sharding_.compute), sharding_.compute,
                        kept.shape(), kernels_.device());
  if (copy_stale_[place]) {
    work_[place].before(*copying_);
    copying_->wait(unread_[place]);
    copying_->copy(kept, copy);
    copied_[place] = copying_->record();
    copy_stale_[place] = false;
  }
  kernels_.queue().wait(copied_[place]);
  return copy;
}

void LentWeights::changed() {
  resident_.forget();
  if (offloaded() && !sharding_.shards_weights()) {
    std::fill(unread_.begin(), unread_.end(), kernels_.queue().record());
  }
  std::fill(copy_stale_.begin(), copy_stale_.end(), true);
}

void LentWeights::share(std::int32_t group) {
  collectives_.queue().wait(home_.queue().record());
  work_[static_cast<std::size_t>(group)] = collectives_.all_gather(own_block(group), whole(group));
}

void LentWeights::wait() const {
  for (const Work& work : work_) {
    work.wait();
  }
  for (const Event& copied : copied_) {
    copied.wait();
  }
}

void LentWeights::watch(const TensorView& sums) {
  watched_sums_ = sharding_.shards_weights() ? sums : TensorView();
  if (!watched_sums_.empty()) {
    std::fill(watched_.begin(), watched_.end(), false);
    resident_.forget();  // gathers every group again
  }
}

void LentWeights::hash_blocks(std::int32_t group, const TensorView& sums) const {
  home_.content_hash_of_parts(whole(group), static_cast<std::uint64_t>(group), sums);
}

void LentWeights::hash_replicas(const TensorView& sums) const {
  if (!sharding_.shards_weights()) {
    for (const ShardGroup& range : shard_) {
      hash_blocks(range.group, sums);
    }
  }
}

void LentWeights::hash_own(const TensorView& sum) const {
  for (const ShardGroup& range : shard_) {
    // An in-place gather may still write this rank's block on a device.
    if (home_.device() != Device::cpu && !sharding_.shards_weights()) {
      work_[place_of(range.group)].before(home_.queue());
    }
    home_.content_hash(own_block(range.group), static_cast<std::uint64_t>(range.group), sum);
  }
}

}  // namespace jforge
