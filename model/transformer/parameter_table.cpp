#include "model/transformer/parameter_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/transformer/layer_plan.h"

namespace jforge {
namespace {

/// Shards are whole cache lines of float32.
constexpr std::int64_t kShardGranule = 16;

}  // namespace

void ParameterTable::open_group(std::string name) {
  groups_.push_back({std::move(name), flat_size_, 0, 0});
}

void ParameterTable::append(std::string name, Shape shape) {
  ParameterGroup& group = groups_.back();
  const auto index = static_cast<std::int32_t>(groups_.size() - 1);
  entries_.push_back({std::move(name), shape, group.offset + group.size, index, shape.rank() >= 2});
  group.size += shape.elements();
  parameter_count_ += shape.elements();
}

void ParameterTable::close_group() {
  ParameterGroup& group = groups_.back();
  const std::int64_t granule = kShardGranule * shard_count_;
  group.padded_size = (group.size + granule - 1) / granule * granule;
  flat_size_ += group.padded_size;
}

ParameterTable::ParameterTable(const TransformerConfig& config, int shard_count)
    : shard_count_(shard_count) {
  config.validate();
  expect(shard_count >= 1, "shard_count must be at least 1");
  const LayerPlan plan(config);
  open_group("embedding");
  append("model.embed_tokens.weight", {config.vocabulary_size, plan.hidden});
  close_group();
  add_layers(plan);
  open_group("head");
  append("model.norm.weight", {plan.hidden});
  if (!config.tie_word_embeddings) {
    append("lm_head.weight", {config.vocabulary_size, plan.hidden});
  }
  close_group();
}

ParameterTable::ParameterTable(const TransformerConfig& config, const DrafterShape& drafter,
                               int shard_count)
    : shard_count_(shard_count) {
  config.validate();
  expect(shard_count >= 1, "shard_count must be at least 1");
  if (const auto* const adapter = std::get_if<AdapterShape>(&drafter)) {
    add_adapter(config, *adapter);
  } else {
    add_head(config, completed(std::get<HeadShape>(drafter), config));
  }
}

void ParameterTable::add_adapter(const TransformerConfig& config, const AdapterShape& adapter) {
  expect(adapter.rank >= 1, "an adapter's rank must be at least 1");
  kind_ = Kind::adapter;
  const LayerPlan plan(config);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    open_group(fmt::format("layer.{}", layer));
    for (const PlannedWeight& weight : plan.weights) {
      if (std::ranges::find(adapter.targets, weight.weight) != adapter.targets.end()) {
        append(adapter_in(weight, layer), {adapter.rank, weight.shape[1]});
        append(adapter_out(weight, layer), {weight.shape[0], adapter.rank});
      }
    }
    close_group();
  }
}

void ParameterTable::add_head(const TransformerConfig& config, const HeadShape& head) {
  kind_ = Kind::head;
  const LayerPlan plan(head_config(config, head));
  open_group("features");
  for (std::size_t i = 0; i < head.features.size(); ++i) {
    append(head_feature(i), {plan.hidden, plan.hidden});
  }
  append(kContextNorm, {plan.hidden});
  close_group();
  add_layers(plan);
  open_group("head");
  append("model.norm.weight", {plan.hidden});
  close_group();
}

void ParameterTable::add_layers(const LayerPlan& plan) {
  for (std::int64_t layer = 0; layer < plan.num_layers(); ++layer) {
    open_group(fmt::format("layer.{}", layer));
    for (const PlannedWeight& weight : plan.weights) {
      append(weight.name_in(layer), weight.shape);
    }
    close_group();
  }
}

const ParameterEntry& ParameterTable::entry(std::string_view name) const {
  const auto found = std::ranges::find(entries_, name, &ParameterEntry::name);
  if (found == entries_.end()) {
    throw InternalError(fmt::format("the model has no parameter named {}", name));
  }
  return *found;
}

ParameterTable::Range ParameterTable::shard_range(std::int32_t group, int shard) const {
  expect(group >= 0 && static_cast<std::size_t>(group) < groups_.size(), "no such parameter group");
  expect(shard >= 0 && shard < shard_count_, "no such shard");
  const ParameterGroup& found = groups_[static_cast<std::size_t>(group)];
  const std::int64_t length = found.padded_size / shard_count_;
  return {found.offset + shard * length, found.offset + (shard + 1) * length};
}

}  // namespace jforge
