#include "workers/train/frozen_weights.h"

namespace jforge {

FrozenWeights::FrozenWeights(const ParameterTable& table, const Sharding& sharding,
                             KernelSet& kernels, Collectives& collectives, MemoryAccount& account,
                             ConstTensorView weights)
    : table_(table),
      sharding_(sharding),
      kernels_(kernels),
      collectives_(collectives),
      shard_(shard_groups(table, collectives.rank())),
      slot_begins_(GroupSlots(table).begins()),
      resident_(table) {
  const bool shards = sharding_.shards_weights();
  const std::int64_t kept = shards ? shard_vector_size(table) : table.flat_size();
  const std::int64_t lent = shards ? resident_.total_size() : table.flat_size();
  weights_ = Buffer(storage_bytes(kept, sharding_.compute), account, MemoryUse::teacher);
  if (shards) {
    slots_ = Buffer(storage_bytes(lent, sharding_.compute), account, MemoryUse::communication);
  }
  if (kernels.device() != Device::cpu) {
    device_ = Buffer(storage_bytes(lent, sharding_.compute), account, kernels.device(),
                     MemoryUse::teacher);
  }
  gathering_.resize(resident_.count());
  on_device_stale_.assign(shards ? resident_.count() : table.groups().size(), true);
  if (account.backing() == MemoryAccount::Backing::count_only) {
    return;
  }
  const TensorView copy = weights_.view(sharding_.compute, {kept});
  if (!shards) {
    kernels_.host().convert(weights, copy);
    return;
  }
  for (const ShardGroup& range : shard_) {
    kernels_.host().convert(weights.rows(range.flat_begin, range.flat_begin + range.size),
                            copy.rows(range.shard_begin, range.shard_begin + range.size));
  }
}

FrozenWeights::~FrozenWeights() {
  try {
    for (const Work& work : gathering_) {
      work.wait();
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): who needed the result has heard of it
  }
}

TensorView FrozenWeights::host_group(std::int32_t group) const {
  const ParameterGroup& range = table_.groups()[static_cast<std::size_t>(group)];
  if (!sharding_.shards_weights()) {
    return weights_.view(sharding_.compute, {table_.flat_size()})
        .rows(range.offset, range.offset + range.padded_size);
  }
  const std::int64_t begin = slot_begins_[resident_.slot_of(group)];
  return slots_.view(sharding_.compute, {resident_.total_size()})
      .rows(begin, begin + range.padded_size);
}

void FrozenWeights::gather(std::int32_t group) {
  if (!sharding_.shards_weights() || !resident_.place(group)) {
    return;
  }
  const std::size_t slot = resident_.slot_of(group);
  const ShardGroup& range = shard_[static_cast<std::size_t>(group)];
  const TensorView own = weights_.view(sharding_.compute, {shard_vector_size(table_)})
                             .rows(range.shard_begin, range.shard_begin + range.size);
  on_device_stale_[slot] = true;
  // The slot's last group may still be read.
  collectives_.queue().wait(kernels_.queue().record());
  gathering_[slot] = collectives_.all_gather(own, host_group(group));
}

ConstTensorView FrozenWeights::lend(std::int32_t group) {
  const bool shards = sharding_.shards_weights();
  const std::size_t place = shards ? resident_.slot_of(group) : static_cast<std::size_t>(group);
  if (shards) {
    gathering_[place].before(kernels_.queue());
  }
  const TensorView host = host_group(group);
  if (kernels_.device() == Device::cpu) {
    return host;
  }
  const std::int64_t begin = shards ? slot_begins_[place] : table_.groups()[place].offset;
  const TensorView device(device_.data() + storage_bytes(begin, sharding_.compute),
                          sharding_.compute, host.shape(), kernels_.device());
  if (on_device_stale_[place]) {
    kernels_.queue().copy(host, device);
    on_device_stale_[place] = false;
  }
  return device;
}

}  // namespace jforge
