#include "workers/model_shard.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "checkpoints/hf_model.h"
#include "model/transformer/weight_init.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"

namespace jforge {

double gathered_bytes(const ParameterTable& table) {
  const auto largest = std::ranges::max_element(table.groups(), {}, &ParameterGroup::padded_size);
  return static_cast<double>(storage_bytes(largest->padded_size, DType::float32));
}

void with_gathered_weights(const Communicator& comm, const Communicator& within,
                           const ParameterTable& table, const OwnBlock& own_block,
                           MemoryAccount& account,
                           const std::function<void(const ParameterReader&)>& use) {
  constexpr std::int32_t kNone = -1;
  Buffer memory;
  together(comm, [&] {
    memory = Buffer(static_cast<std::size_t>(gathered_bytes(table)), account, MemoryUse::staging);
  });
  std::int32_t gathered = kNone;
  const auto read = [&](const ParameterEntry& entry) -> ConstTensorView {
    const ParameterGroup& group = table.groups()[static_cast<std::size_t>(entry.group)];
    const TensorView whole = memory.floats({group.padded_size});
    if (gathered != entry.group) {
      const std::int64_t size = group.padded_size / within.size();
      const TensorView own = whole.rows(within.rank() * size, (within.rank() + 1) * size);
      gathered = kNone;
      together(comm, [&] { own_block(entry.group, own); });
      all_gather<float>(within, own.span<float>(), whole.span<float>());
      gathered = entry.group;
    }
    return tensor_in_group(whole, group.offset, entry);
  };
  // A rank that fails outside a gather meets the others in their next agreement, or in the last.
  std::exception_ptr failure;
  try {
    use(read);
  } catch (const Error& error) {
    if (error.on_all_ranks()) {
      throw;
    }
    failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  together(comm, [&] {
    if (failure) {
      std::rethrow_exception(failure);
    }
  });
}

ModelShard::ModelShard(TransformerConfig config, const Communicator& comm, MemoryAccount& account,
                       const RankGrid* grid, const std::optional<DrafterShape>& drafter)
    : config_(std::move(config)),
      comm_(comm),
      within_(grid == nullptr ? comm : grid->within),
      account_(account),
      table_(drafter ? ParameterTable(config_, *drafter, within_.size())
                     : ParameterTable(config_, within_.size())) {}

void ModelShard::allocate() {
  weights_ = Buffer();  // Both would not fit.
  weights_ = Buffer(storage_bytes(shard_vector_size(table_), DType::float32), account_,
                    MemoryUse::weights);
}

std::span<float> ModelShard::weights() const {
  return weights_.bytes() == 0 ? std::span<float>()
                               : weights_.floats({shard_vector_size(table_)}).span<float>();
}

TensorView ModelShard::block(const ShardGroup& group) const {
  return {weights().data() + group.shard_begin, Shape{group.size}};
}

void ModelShard::load_hf(const std::filesystem::path& directory) {
  together(comm_, [&] {
    allocate();
    HfTensors tensors(directory, config_, table_, share_of(comm_));
    for (const ShardSlice& slice : shard_slices(table_, within_.rank())) {
      tensors.read(table_.entries()[slice.entry], slice.tensor_begin,
                   weights().subspan(static_cast<std::size_t>(slice.shard_begin),
                                     static_cast<std::size_t>(slice.size())));
    }
  });
}

void ModelShard::load_checkpoint(const Checkpoint& checkpoint) {
  together(comm_, [&] {
    allocate();
    SliceReader(checkpoint, table_).read_shard(ShardVector::parameter, within_.rank(), weights());
  });
}

void ModelShard::initialise(std::uint64_t seed) {
  allocate();
  const Buffer whole(storage_bytes(table_.flat_size(), DType::float32), account_,
                     MemoryUse::staging);
  const TensorView flat = whole.floats({table_.flat_size()});
  const bool of_head = table_.kind() == ParameterTable::Kind::head;
  initialise_weights(table_, flat, seed,
                     of_head ? std::ssize(table_.groups()) - 2 : config_.num_layers);
  for (const ShardGroup& group : shard_groups(table_, within_.rank())) {
    copy_tensor(flat.rows(group.flat_begin, group.flat_begin + group.size), block(group));
  }
}

void ModelShard::gather(const std::function<void(const ParameterReader&)>& use) const {
  const std::vector<ShardGroup> groups = shard_groups(table_, within_.rank());
  const auto own_block = [&](std::int32_t index, const TensorView& target) {
    copy_tensor(block(groups[static_cast<std::size_t>(index)]), target);
  };
  with_gathered_weights(comm_, within_, table_, own_block, account_, use);
}

Buffer ModelShard::whole(DType type, KernelSet& kernels, MemoryAccount& account) const {
  Buffer memory;
  gather([&](const ParameterReader& read) {
    memory = Buffer(storage_bytes(table_.flat_size(), type), account, kernels.device(),
                    MemoryUse::weights);
    const TensorView flat = memory.view(type, {table_.flat_size()});
    for (const ParameterEntry& entry : table_.entries()) {
      const ConstTensorView values = read(entry);
      const TensorView target = tensor_in_group(flat, 0, entry);
      if (type == DType::float32) {
        copy_tensor(values, target);
        continue;
      }
      const Buffer rounded(storage_bytes(entry.shape.elements(), type), account,
                           MemoryUse::staging);
      const TensorView staged = rounded.view(type, entry.shape);
      kernels.host().convert(values, staged);
      copy_tensor(staged, target);
    }
  });
  return memory;
}

void ModelShard::take(const OwnBlock& own_block) {
  allocate();
  for (const ShardGroup& group : shard_groups(table_, within_.rank())) {
    own_block(group.group, block(group));
  }
}

}  // namespace jforge
