#include "workers/train/sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "runtime/error.h"

namespace jforge {

namespace {

constexpr std::int32_t kNotResident = -1;
constexpr std::size_t kEmbeddingSlot = 0;
constexpr std::size_t kHeadSlot = 1;
constexpr std::size_t kFirstLayerSlot = 2;
/// The current layer, and the next or last one.
constexpr std::size_t kLayerSlots = 2;

}  // namespace

void Sharding::validate() const {
  if (stage < 0 || stage > 3) {
    throw ConfigError(
        fmt::format("train.zero_stage = {} does not exist; give 0, 1, 2 or 3", stage));
  }
}

std::vector<ShardGroup> owned_groups(const ParameterTable& table, const Sharding& sharding,
                                     int rank) {
  if (sharding.shards_state()) {
    return shard_groups(table, rank);
  }
  std::vector<ShardGroup> groups;
  for (const ParameterGroup& group : table.groups()) {
    groups.push_back(
        {static_cast<std::int32_t>(groups.size()), group.offset, group.offset, group.padded_size});
  }
  return groups;
}

std::int64_t owned_size(const ParameterTable& table, const Sharding& sharding) {
  return sharding.shards_state() ? shard_vector_size(table) : table.flat_size();
}

TensorView block_of(const TensorView& whole, int rank, int ranks) {
  const std::int64_t length = whole.elements() / ranks;
  return whole.rows(rank * length, (rank + 1) * length);
}

GroupSlots::GroupSlots(const ParameterTable& table)
    : head_(static_cast<std::int32_t>(table.groups().size()) - 1),
      sizes_(kFirstLayerSlot + std::min(kLayerSlots, table.groups().size() - kFirstLayerSlot), 0),
      resident_(sizes_.size(), kNotResident) {
  for (std::size_t group = 0; group < table.groups().size(); ++group) {
    std::int64_t& size = sizes_[slot_of(static_cast<std::int32_t>(group))];
    size = std::max(size, table.groups()[group].padded_size);
  }
}

std::int64_t GroupSlots::total_size() const {
  return std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
}

std::vector<std::int64_t> GroupSlots::begins() const {
  std::vector<std::int64_t> begins(sizes_.size());
  std::exclusive_scan(sizes_.begin(), sizes_.end(), begins.begin(), std::int64_t{0});
  return begins;
}

std::size_t GroupSlots::slot_of(std::int32_t group) const {
  if (group == 0) {
    return kEmbeddingSlot;
  }
  return group == head_ ? kHeadSlot
                        : kFirstLayerSlot + static_cast<std::size_t>(group - 1) % kLayerSlots;
}

bool GroupSlots::place(std::int32_t group) {
  std::int32_t& resident = resident_[slot_of(group)];
  if (resident == group) {
    return false;
  }
  resident = group;
  return true;
}

void GroupSlots::forget() { std::ranges::fill(resident_, kNotResident); }

TrainingMemory training_memory(const ParameterTable& table, const Sharding& sharding) {
  const auto whole = static_cast<double>(table.flat_size());
  const double shard = whole / table.shard_count();
  const auto slots = static_cast<double>(GroupSlots(table).total_size());
  const auto weight_bytes = static_cast<double>(dtype_bytes(sharding.compute));
  constexpr double kFloatBytes = sizeof(float);
  const double state = sharding.shards_state() ? shard : whole;
  // A float32 shard is its own master.
  const bool masters_are_weights = sharding.compute == DType::float32;

  TrainingMemory memory;
  memory.weights = weight_bytes * (sharding.shards_weights() ? shard : whole);
  memory.gradients = kFloatBytes * (sharding.shards_gradients() ? shard : whole);
  memory.optimizer = kFloatBytes * state * (masters_are_weights ? 2 : 3);
  memory.communication = (sharding.shards_gradients() ? kFloatBytes * slots : 0) +
                         (sharding.shards_weights() ? weight_bytes * slots : 0);
  if (sharding.teacher) {
    memory.teacher = memory.weights;
    memory.communication += sharding.shards_weights() ? weight_bytes * slots : 0;
  }
  return memory;
}

double device_copies(const ParameterTable& table, const Sharding& sharding) {
  const auto whole = static_cast<double>(table.flat_size());
  const auto slots = static_cast<double>(GroupSlots(table).total_size());
  return (sharding.teacher ? 2 : 1) * static_cast<double>(dtype_bytes(sharding.compute)) *
             (sharding.shards_weights() ? slots : whole) +
         static_cast<double>(sizeof(float)) * (sharding.shards_gradients() ? slots : whole);
}

StepPayload step_payload(const ParameterTable& table, const Sharding& sharding,
                         std::int64_t micro_batches, int copies) {
  const auto ranks = static_cast<double>(table.shard_count());
  const double sent = (ranks - 1) / ranks;
  const auto parameters = static_cast<double>(table.flat_size());
  const auto weight_bytes = static_cast<double>(dtype_bytes(sharding.compute));
  constexpr double kGradientBytes = sizeof(float);
  StepPayload payload;
  payload.across = 2.0 * (copies - 1) / copies * kGradientBytes *
                   static_cast<double>(owned_size(table, sharding));
  if (!sharding.shards_state()) {
    payload.all_reduce = 2 * sent * kGradientBytes * parameters;
    return payload;
  }
  payload.reduce_scatter = sent * kGradientBytes * parameters *
                           (sharding.shards_gradients() ? static_cast<double>(micro_batches) : 1);
  double gathered = parameters;
  if (sharding.shards_weights()) {
    gathered = 0;
    const PassUses uses(table);
    const auto pass = [&](GroupSlots& slots, const std::vector<GroupUse>& asked) {
      double elements = 0;
      for (const GroupUse& use : asked) {
        if (use.kind == GroupUse::Kind::acquire && slots.place(use.group)) {
          elements +=
              static_cast<double>(table.groups()[static_cast<std::size_t>(use.group)].padded_size);
        }
      }
      return elements;
    };
    GroupSlots slots(table);
    GroupSlots of_teacher(table);
    static_cast<void>(pass(of_teacher, uses.forward));  // state after the last step
    for (std::int64_t done = 0; done < micro_batches; ++done) {
      gathered += sharding.teacher ? pass(of_teacher, uses.forward) : 0;
      gathered += pass(slots, uses.forward) + pass(slots, uses.backward);
    }
  }
  payload.all_gather = sent * weight_bytes * gathered;
  return payload;
}

}  // namespace jforge
