#include "model/transformer/inference_transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "model/kernels/kernel_arguments.h"
#include "model/transformer/cache_pages.h"
#include "model/transformer/layer_parameters_internal.h"
#include "model/transformer/packed_layout.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/phase_clock.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {
namespace {

constexpr std::int32_t kDefaultMaxRows = 1024;

struct LayerWeights {
  /// Norms and biases: in the caller's vector, or copies. Empty if layers have none.
  PerLayerWeight<ConstTensorView> vectors;
  PerLayerWeight<std::unique_ptr<PackedWeight>> matrices;
};

/// An adapter's addition to a projection: (x · inᵀ) · outᵀ, scaled in `out`.
struct LowRank {
  std::unique_ptr<PackedWeight> in;
  std::unique_ptr<PackedWeight> out;
};

/// Rows that an addition takes at once.
constexpr std::int64_t kAdditionRows = 256;

/// Projections of one input at most.
constexpr std::int64_t kAdditions = 3;

/// Returns the elements of the buffers of additions: rows of the rank and of the widest results.
std::array<std::int64_t, 2> addition_elements(const LayerPlan& plan, std::int64_t rank) {
  const std::int64_t widest = std::max({plan.hidden, plan.query, plan.key_value, plan.wide});
  return {kAdditionRows * kAdditions * rank, kAdditionRows * kAdditions * widest};
}

/// Steps of DecodePlan::run().
constexpr std::int32_t kPrediction = 0;
constexpr std::int32_t kHiddenStates = 1;

/// Returns the bytes of a row in a Workspace's buffers. Stream, output, queries, keys and values
/// are float32.
std::size_t row_bytes(const LayerPlan& plan, DType activation) {
  return storage_bytes(2 * plan.hidden + plan.query + 2 * plan.key_value, DType::float32) +
         storage_bytes(plan.hidden + plan.query + 3 * plan.wide, activation) + sizeof(TokenId);
}

/// What a chunk of rows needs on its way through the layers, allocated once for max_rows.
struct Workspace {
  Workspace(const LayerPlan& plan, DType type, std::int64_t max_rows, MemoryAccount& account,
            Device device)
      : activation(type),
        stream(make(max_rows * plan.hidden, DType::float32, account, device)),
        branch(make(max_rows * plan.hidden, DType::float32, account, device)),
        normed(make(max_rows * plan.hidden, activation, account, device)),
        q(make(max_rows * plan.query, DType::float32, account, device)),
        k(make(max_rows * plan.key_value, DType::float32, account, device)),
        v(make(max_rows * plan.key_value, DType::float32, account, device)),
        attention(make(max_rows * plan.query, activation, account, device)),
        gate(make(max_rows * plan.wide, activation, account, device)),
        up(make(max_rows * plan.wide, activation, account, device)),
        activated(make(max_rows * plan.wide, activation, account, device)),
        chosen(static_cast<std::size_t>(max_rows) * sizeof(TokenId), account, device,
               MemoryUse::activations) {
    tokens.reserve(static_cast<std::size_t>(max_rows));
    places.reserve(static_cast<std::size_t>(max_rows));
    kept.reserve(static_cast<std::size_t>(max_rows));
  }

  static Buffer make(std::int64_t elements, DType type, MemoryAccount& account, Device device) {
    return Buffer(storage_bytes(elements, type), account, device, MemoryUse::activations);
  }
  [[nodiscard]] TensorView of(const Buffer& buffer, const Shape& shape) const {
    return buffer.view(activation, shape);
  }

  DType activation;            ///< Type of what products and SwiGLU read.
  Buffer stream;               ///< [M, C] residual stream.
  Buffer branch;               ///< [M, C] A sublayer's output.
  Buffer normed;               ///< [M, C]
  Buffer q;                    ///< [M, H, D]
  Buffer k, v;                 ///< [M, Hkv, D]
  Buffer attention;            ///< [M, H, D]
  Buffer gate, up, activated;  ///< [M, F]
  Buffer chosen;               ///< [M] tokens, int32.
  std::vector<TokenId> tokens;
  std::vector<CacheRow> places;
  std::vector<std::int32_t> kept;  ///< Rows that want output.
};

/// Returns the shape of a layer's keys, and of its values.
Shape cache_shape(const AttentionHeads& heads, std::int64_t pages) {
  return {pages, kCachePageRows, heads.key_heads, heads.size};
}

}  // namespace

struct InferenceTransformer::State {
  /// `model`: null, or the model that this is a head of.
  State(const TransformerConfig& model_config, const ParameterTable& table,
        const ParameterReader& read, KernelSet& set, MemoryAccount& account, Options chosen,
        const State* model = nullptr);

  TensorView copy_as(DType type, const ConstTensorView& parameter);
  void allocate_cache();
  void check_rows(std::span<const DecodeRow> rows);
  void check_branch_row(const DecodeRow& row, const DecodeRow* previous) const;
  void plan_chunk(std::span<const DecodeRow> rows);
  void forward();
  void attend(const LayerWeights& layer, std::size_t index, DecodeRows which);
  void feed_forward(const LayerWeights& layer, std::size_t index, DecodeRows which);
  void next_sublayer(const ConstTensorView& norm_after, const ConstTensorView& norm_before,
                     std::int64_t rows);
  void choose_tokens();
  void pack_adapter(const DrafterSource& source, const AdapterShape& shape);
  void make_head(const DrafterSource& source, const HeadShape& shape);
  [[nodiscard]] TensorView feature(std::size_t index, std::int64_t begin, std::int64_t end) const;
  void keep_features(std::size_t layer);
  void lay_out_proposals(std::span<const ProposalRequest> requests);
  void make_context(const State& model, std::span<const std::int64_t> rows);
  void take_context();
  struct Addition {
    LayerWeight weight;
    TensorView y;
  };
  void add_drafts(std::size_t layer, DecodeRows which, const TensorView& x,
                  std::initializer_list<Addition> results);
  [[nodiscard]] bool drafts() const noexcept { return drafting[0].end > 0; }
  /// Passes with drafting rows differ though they are of equal size.
  template <class Work>
  void run_plan(std::int32_t step, const Work& compute) {
    if (!drafts() && !keeps_features) {
      plan->run(step, compute);
    } else {
      compute();
    }
  }
  /// Calls take(begin, logits [m, V]) for kept rows begin … begin + m − 1; it may overwrite them.
  template <class Take>
  void each_logits(std::int64_t wanted, const Take& take) {
    const std::int64_t vocabulary = config.vocabulary_size;
    const auto most_rows = std::min<std::int64_t>(kLogitsRows, options.max_rows);
    if (logits.bytes() == 0) {
      logits = Buffer(static_cast<std::size_t>(most_rows * vocabulary) * sizeof(float), account,
                      kernels.device(), MemoryUse::activations);
    }
    for (std::int64_t begin = 0; begin < wanted; begin += most_rows) {
      const std::int64_t end = std::min(begin + most_rows, wanted);
      const TensorView some = logits.floats({end - begin, vocabulary});
      kernels.invariant_linear(hidden().rows(begin, end), *head, {}, some);
      take(begin, some);
    }
  }

  /// The same with logits on the host.
  template <class Take>
  void each_host_logits(std::int64_t wanted, const Take& take) {
    each_logits(wanted, [&](std::int64_t begin, const TensorView& some) {
      if (kernels.device() == Device::cpu) {
        return take(begin, some);
      }
      if (host_logits.bytes() == 0) {
        host_logits = Buffer(logits.bytes(), account, MemoryUse::staging);
      }
      const TensorView host = host_logits.floats(some.shape());
      copy_tensor(some, host);
      take(begin, host);
    });
  }

  /// Runs `rows` in chunks: step() computes one, emit(first, wanted) then takes its wanted rows,
  /// counted over the whole call.
  template <class Step, class Emit>
  void run(std::span<const DecodeRow> rows, const Step& step, const Emit& emit) {
    check_rows(rows);
    keeps_features = proposer && std::ranges::any_of(rows, &DecodeRow::proposes);
    if (keeps_features) {
      const auto bytes = storage_bytes(std::ssize(rows) * config.hidden_size, work.activation);
      feature_rows = std::max(feature_rows, std::ssize(rows));
      features.resize(proposer->read_layers.size());
      for (Buffer& one : features) {
        if (one.bytes() < bytes) {
          one = Workspace::make(feature_rows * config.hidden_size, work.activation, account,
                                kernels.device());
        }
      }
    }
    const auto chunk_rows = static_cast<std::size_t>(options.max_rows);
    std::int64_t done = 0;
    for (std::size_t begin = 0; begin < rows.size(); begin += chunk_rows) {
      chunk_begin = static_cast<std::int64_t>(begin);
      plan_chunk(rows.subspan(begin, std::min(chunk_rows, rows.size() - begin)));
      step();
      const std::int64_t wanted = std::ssize(work.kept);
      if (wanted > 0) {
        emit(done, wanted);
      }
      done += wanted;
    }
  }
  /// Returns the final hidden states of the kept rows and of rows that the plan added.
  [[nodiscard]] TensorView hidden() const {
    return work.of(work.normed, {plan->num_rows(DecodeRows::kept), config.hidden_size});
  }

  const TransformerConfig config;
  const LayerPlan layer_plan;
  const Options options;
  KernelSet& kernels;
  MemoryAccount& account;
  std::vector<Buffer> copies;  ///< Of parameters that lie elsewhere.
  ConstTensorView embedding;
  ConstTensorView final_norm;
  std::vector<LayerWeights> layers;
  std::unique_ptr<PackedWeight> own_head;
  const PackedWeight* head = nullptr;              ///< Its own, or the model's.
  std::vector<PerLayerWeight<LowRank>> additions;  ///< By layer; empty without an adapter.
  Buffer low, added;                               ///< addition_elements()
  std::vector<Projection> ins, outs;
  /// Drafting rows of the chunk, among all rows and among those that want output.
  std::array<RowRange, 2> drafting;
  std::vector<Buffer> cache_memory;  ///< Keys, values of each layer.
  std::vector<LayerCache> cache;
  CachePages pages;
  Workspace work;
  std::unique_ptr<DecodePlan> plan;      ///< Of the chunk.
  std::unique_ptr<DecodePlan> branches;  ///< Of keep_branches().
  Buffer logits;                         ///< [kLogitsRows, V] Allocated when first needed.
  Buffer host_logits;  ///< The same on the host, if the kernels compute elsewhere.
  // If the model has a head:
  std::unique_ptr<State> proposer;
  std::vector<Buffer> features;  ///< Of HeadShape::features, [feature_rows, C] each.
  std::int64_t feature_rows = 0;
  std::int64_t chunk_begin = 0;  ///< Of the rows of a call.
  bool keeps_features = false;   ///< In this call: then no pass is replayed.
  // If this is a head:
  std::vector<std::int32_t> read_layers;  ///< HeadShape::features
  TokenId mask_token = 0;
  std::vector<std::unique_ptr<PackedWeight>> context_products;  ///< fc_i
  ConstTensorView context_norm;
  Buffer gathered;                ///< [max_rows, C] A feature of the chunk's context rows.
  Buffer context;                 ///< [max_rows, C]
  std::int64_t context_rows = 0;  ///< In the chunk, its first.
  std::vector<DecodeRow> proposing;
  std::vector<TokenId> proposed;
  std::vector<std::int64_t> read_rows;  ///< Of the model's features, for the context rows.
  std::vector<std::int32_t> filled;     ///< [slots] Positions that hold keys.
  std::vector<std::int32_t> checked;    ///< [slots] Last position in this call; −1: none.
};

namespace {

/// Returns the pages of a full slot.
std::int64_t slot_pages(const InferenceTransformer::Options& options) {
  return cache_pages(options.slot_capacity, options.branch_rows);
}

InferenceTransformer::Options resolve(InferenceTransformer::Options options) {
  expect(options.num_slots >= 1, "num_slots must be at least 1");
  expect(options.slot_capacity >= 1, "slot_capacity must be at least 1");
  expect(options.branch_rows >= 0, "branch_rows must not be negative");
  expect(options.max_rows >= 0, "max_rows must not be negative");
  options.slot_capacity =
      static_cast<std::int32_t>(cache_pages(options.slot_capacity) * kCachePageRows);
  if (options.cache_pages == 0) {
    options.cache_pages = options.num_slots * slot_pages(options);
  }
  expect(options.cache_pages >= slot_pages(options), "the cache must hold a full slot at least");
  if (options.max_rows == 0) {
    options.max_rows = kDefaultMaxRows;
  }
  return options;
}

DType embedding_type(WeightStorage weights, Device device) { return cache_type(weights, device); }

/// Throws EnvironmentError before anything is loaded if the device cannot hold the model and one
/// sequence. Matrices stored automatically count as bfloat16, since they may prove to be.
void expect_room(const TransformerConfig& config, const KernelSet& kernels,
                 const MemoryAccount& account, InferenceTransformer::Options options) {
  expect_heads(kernels.device(), LayerPlan(config).heads);
  const std::optional<std::uint64_t> available =
      kernels.device() == Device::cpu ? std::nullopt : cuda_memory::available();
  if (!available) {
    return;
  }
  options = resolve(options);
  const std::int64_t pages = slot_pages(options);
  const std::size_t cache = InferenceTransformer::cache_bytes(
      config, pages, cache_type(options.weights, kernels.device()));
  const std::size_t embedding =
      InferenceTransformer::embedding_bytes(config, options.weights, kernels.device());
  if (options.weights == WeightStorage::automatic) {
    options.weights = WeightStorage::bfloat16;
  }
  options.cache_pages = pages;
  const std::size_t needed =
      InferenceTransformer::bytes(config, options, kernels.device()) -
      InferenceTransformer::cache_bytes(config, pages,
                                        cache_type(options.weights, kernels.device())) +
      cache - InferenceTransformer::embedding_bytes(config, options.weights, kernels.device()) +
      embedding;
  if (needed > *available) {
    const auto gigabytes = [](std::size_t bytes) {
      return fmt::format("{:.4g} GB", static_cast<double>(bytes) / 1e9);
    };
    throw EnvironmentError(fmt::format(
        "{}: decoding takes at least {} of a device's memory, with matrices as {}, {} of it for "
        "the keys and values of one sequence of {} positions, and {} are free; take bfloat16 "
        "weights, fewer new tokens or a larger device: a model is not spread over several while it "
        "decodes",
        account.name(), gigabytes(needed), rounds(options.weights) ? "bfloat16" : "float32",
        gigabytes(cache), options.slot_capacity, gigabytes(*available)));
  }
}

}  // namespace

InferenceTransformer::State::State(const TransformerConfig& model_config,
                                   const ParameterTable& table, const ParameterReader& read,
                                   KernelSet& set, MemoryAccount& memory, Options chosen,
                                   const State* model_of_head)
    : config(model_config),
      layer_plan(config),
      options(resolve(chosen)),
      kernels(set),
      account(memory),
      pages(options.cache_pages, options.num_slots, slot_pages(options)),
      work(layer_plan, activation_type(options.weights, set.device()), options.max_rows, account,
           set.device()),
      plan(set.make_decode_plan(layer_plan.heads, cache_type(options.weights, set.device()),
                                options.max_rows, account)),
      branches(set.make_decode_plan(layer_plan.heads, plan->cache_type(), 0, account)),
      filled(static_cast<std::size_t>(options.num_slots), 0),
      checked(static_cast<std::size_t>(options.num_slots), -1) {
  const ModelParameters model(config, table);
  const auto view = [&](const ParameterEntry* entry,
                        DType type = DType::float32) -> ConstTensorView {
    return entry == nullptr ? ConstTensorView() : copy_as(type, read(*entry));
  };
  const auto pack = [&](const ParameterEntry* entry, const ProductUse& use = {}) {
    return kernels.pack_weight(read(*entry), options.weights, account, use);
  };
  const ProductUse wide{.result = work.activation};
  if (model_of_head == nullptr) {
    embedding = view(model.embedding, embedding_type(options.weights, kernels.device()));
    own_head = pack(model.head);  // Before the norm: a tied one is the embedding's group.
    head = own_head.get();
  } else {
    embedding = model_of_head->embedding;
    head = model_of_head->head;
  }
  final_norm = view(model.final_norm);
  const std::int64_t group_rows = layer_plan.query + 2 * layer_plan.key_value;
  for (const LayerParameters& layer : model.layers) {
    auto& [vectors, matrices] = layers.emplace_back();
    for (const PlannedWeight& planned : layer_plan.weights) {
      if (planned.shape.rank() == 1) {
        vectors[planned.weight] = view(layer[planned.weight]);
      }
    }
    using enum LayerWeight;
    const bool bias = layer[q_bias] != nullptr;
    // In attend()'s order.
    matrices[k] = pack(layer[k], {.bias = bias, .group_rows = group_rows});
    matrices[v] = pack(layer[v], {.bias = bias, .after = matrices[k].get()});
    matrices[q] = pack(layer[q], {.bias = bias, .after = matrices[v].get()});
    matrices[o] = pack(layer[o]);
    matrices[gate] = pack(layer[gate], wide);
    matrices[up] = pack(layer[up], wide);
    matrices[down] = pack(layer[down]);
  }
  const AdapterShape* const adapter =
      options.adapter == nullptr ? nullptr : std::get_if<AdapterShape>(&options.adapter->shape);
  if (adapter != nullptr) {
    pack_adapter(*options.adapter, *adapter);
  }
  allocate_cache();
  if (options.adapter != nullptr && adapter == nullptr) {
    make_head(*options.adapter, std::get<HeadShape>(options.adapter->shape));
  }
}

void InferenceTransformer::State::make_head(const DrafterSource& source, const HeadShape& shape) {
  Options own = options;
  own.adapter = nullptr;
  own.branch_rows = 0;
  own.replay = false;
  own.cache_pages = std::max(pages.free_pages(), cache_pages(options.slot_capacity));
  proposer = std::make_unique<State>(head_config(config, shape), source.table, source.read, kernels,
                                     account, own, this);
  proposer->read_layers = shape.features;
  proposer->mask_token = shape.mask_token;
  const ContextParameters entries(shape, source.table);
  for (const ParameterEntry* const entry : entries.features) {
    proposer->context_products.push_back(
        kernels.pack_weight(source.read(*entry), options.weights, account));
  }
  proposer->context_norm = proposer->copy_as(DType::float32, source.read(*entries.norm));
  for (Buffer* const buffer : {&proposer->gathered, &proposer->context}) {
    *buffer = Workspace::make(options.max_rows * config.hidden_size, work.activation, account,
                              kernels.device());
  }
}

TensorView InferenceTransformer::State::feature(std::size_t index, std::int64_t begin,
                                                std::int64_t end) const {
  return work.of(features[index], {feature_rows, config.hidden_size}).rows(begin, end);
}

/// Requires: the stream after `layer` is complete.
void InferenceTransformer::State::keep_features(std::size_t layer) {
  const std::int64_t all = plan->num_rows(DecodeRows::all);
  for (std::size_t i = 0; keeps_features && i < features.size(); ++i) {
    if (std::cmp_equal(proposer->read_layers[i], layer)) {
      kernels.convert(work.stream.floats({all, config.hidden_size}),
                      feature(i, chunk_begin, chunk_begin + all));
    }
  }
}

/// Lays out the context's rows, then the blocks'.
void InferenceTransformer::State::lay_out_proposals(std::span<const ProposalRequest> requests) {
  proposing.clear();
  read_rows.clear();
  const auto append = [&](const ProposalRequest& request, TokenId token, std::int64_t position,
                          bool wants_output) {
    proposing.push_back(
        {.token = token,
         .place = {.slot = request.slot, .position = static_cast<std::int32_t>(position)},
         .wants_output = wants_output});
  };
  for (const ProposalRequest& request : requests) {
    std::int64_t position = request.first_position;
    for (const RowRange& range : request.rows) {
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        read_rows.push_back(row);
        append(request, mask_token, position++, false);
      }
    }
  }
  for (const ProposalRequest& request : requests) {
    std::int64_t position = request.first_position;
    for (const RowRange& range : request.rows) {
      position += range.end - range.begin;
    }
    for (std::int64_t i = 0; request.count > 0 && i <= request.count; ++i) {
      append(request, i == 0 ? request.newest : mask_token, position + i, i > 0);
    }
  }
}

/// Makes the context of the chunk's first rows of the model's features at `rows`.
void InferenceTransformer::State::make_context(const State& model,
                                               std::span<const std::int64_t> rows) {
  context_rows = std::ssize(rows);
  if (rows.empty()) {
    return;
  }
  const Shape shape{context_rows, config.hidden_size};
  const TensorView read = work.of(gathered, shape);
  const TensorView sum = work.stream.floats(shape);
  const TensorView product = work.branch.floats(shape);
  for (std::size_t i = 0; i < context_products.size(); ++i) {
    for (std::int64_t begin = 0, end = 0; begin < context_rows; begin = end) {
      const std::int64_t first = rows[static_cast<std::size_t>(begin)];
      do {
        ++end;
      } while (end < context_rows && rows[static_cast<std::size_t>(end)] == first + end - begin);
      kernels.convert(model.feature(i, first, first + end - begin), read.rows(begin, end));
    }
    kernels.invariant_linear(read, *context_products[i], {}, i == 0 ? sum : product);
    if (i > 0) {
      kernels.add(product, sum);
    }
  }
  kernels.rms_norm(sum, context_norm, layer_plan.epsilon, work.of(context, shape), {});
}

/// Context rows give every layer's keys and values the same input.
void InferenceTransformer::State::take_context() {
  if (context_rows > 0) {
    const Shape shape{context_rows, config.hidden_size};
    kernels.convert(work.of(context, shape), work.of(work.normed, shape));
  }
}

void InferenceTransformer::State::pack_adapter(const DrafterSource& source,
                                               const AdapterShape& shape) {
  const AdapterParameters adapter(config, shape, source.table);
  for (const AdapterParameters::Layer& layer : adapter.layers) {
    PerLayerWeight<LowRank>& packed = additions.emplace_back();
    for (const LayerWeight weight : shape.targets) {
      packed[weight].in = kernels.pack_weight(source.read(*layer.in[weight]), options.weights,
                                              account, {.result = work.activation});
      const ConstTensorView out = source.read(*layer.out[weight]);
      const Buffer memory(storage_bytes(out.elements(), DType::float32), account,
                          MemoryUse::staging);
      const TensorView scaled = memory.floats(out.shape());
      kernels.host().convert(out, scaled, shape.scale());
      const bool wide = weight == LayerWeight::gate || weight == LayerWeight::up;
      packed[weight].out = kernels.pack_weight(scaled, options.weights, account,
                                               {.result = wide ? work.activation : DType::float32});
    }
  }
  const auto make = [&](std::int64_t elements) {
    return Workspace::make(elements, DType::float32, account, kernels.device());
  };
  const auto [lowered, sums] = addition_elements(layer_plan, shape.rank);
  low = make(lowered);
  added = make(sums);
}

/// y += the adapter's addition for x, in the drafting rows of `which`, for each of `results`. In
/// pieces, of rows that do not depend on each other.
void InferenceTransformer::State::add_drafts(std::size_t layer, DecodeRows which,
                                             const TensorView& x,
                                             std::initializer_list<Addition> results) {
  const RowRange& range = drafting[which == DecodeRows::all ? 0 : 1];
  for (std::int64_t begin = range.begin; begin < range.end; begin += kAdditionRows) {
    const std::int64_t end = std::min(begin + kAdditionRows, range.end);
    ins.clear();
    outs.clear();
    std::int64_t row = 0;
    for (const auto& [weight, y] : results) {
      if (const LowRank& weights = additions[layer][weight]; weights.in) {
        const Shape all{kAdditions * kAdditionRows, weights.in->rows()};
        const TensorView lowered = low.view(work.activation, all).rows(row, row + end - begin);
        ins.push_back({*weights.in, {}, lowered});
        outs.push_back({*weights.out, {}, y.rows(begin, end)});
        row += end - begin;
      }
    }
    if (!ins.empty()) {
      kernels.invariant_linears(x.rows(begin, end), ins);
      kernels.add_invariant_linears(low.view(work.activation, {row, ins[0].weight.rows()}), outs,
                                    added);
    }
  }
}

/// Makes the cache smaller, down to one full slot, if the device lacks memory. This changes no
/// result: sequences wait until pages are free.
void InferenceTransformer::State::allocate_cache() {
  const auto page = static_cast<double>(cache_bytes(config, 1, plan->cache_type()));
  const std::int64_t fewest = slot_pages(options);
  std::int64_t count = options.cache_pages;
  std::string shortage;
  const auto available = [&] {
    return kernels.device() == Device::cpu ? std::nullopt : cuda_memory::available();
  };
  // Memory left for passes, which take about 200 MB for a large model.
  constexpr double kMostLeft = 512e6;
  constexpr double kShareLeft = 0.125;
  const auto left = [&](double free) { return std::min(kMostLeft, kShareLeft * free); };
  for (;;) {
    std::int64_t most = count - 1;
    const Shape shape = cache_shape(layer_plan.heads, count);
    const std::size_t bytes = storage_bytes(shape.elements(), plan->cache_type());
    try {
      for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        const auto half = [&] {
          return cache_memory.emplace_back(bytes, account, kernels.device(), MemoryUse::key_value)
              .view(plan->cache_type(), shape);
        };
        const TensorView keys = half();
        cache.push_back({keys, half()});
      }
      const std::optional<std::uint64_t> behind = available();
      const double whole = static_cast<double>(count) * page;
      if (!behind || count == fewest ||
          static_cast<double>(*behind) >= left(static_cast<double>(*behind) + whole)) {
        break;
      }
      if (shortage.empty()) {
        shortage = fmt::format(
            "{:.1f} MB of the device are free beside a key/value cache of {} "
            "pages, too little for what computes with it",
            static_cast<double>(*behind) / 1e6, count);
      }
    } catch (const EnvironmentError& error) {
      if (!available() || count == fewest) {
        throw;
      }
      if (shortage.empty()) {
        shortage = error.what();
      }
      most = count * 7 / 8;  // Other ranks may use the same memory.
    }
    cache.clear();
    cache_memory.clear();
    const auto free = static_cast<double>(available().value_or(0));
    const auto fitting = static_cast<std::int64_t>((free - left(free)) / page);
    count = std::max(fewest, std::min(fitting, most));
  }
  if (count != options.cache_pages) {
    pages = CachePages(count, options.num_slots, fewest);
    log_warn(
        "{}; the key/value cache of {} gets {} pages of {:.1f} MB instead of {}: sequences wait "
        "for pages where they would have been decoded together, with the same results",
        shortage, account.name(), count, page / 1e6, options.cache_pages);
  }
}

/// Copies a parameter to where the kernels compute.
TensorView InferenceTransformer::State::copy_as(DType type, const ConstTensorView& parameter) {
  const Buffer& memory = copies.emplace_back(storage_bytes(parameter.elements(), type), account,
                                             kernels.device(), MemoryUse::weights);
  const TensorView copy = memory.view(type, parameter.shape());
  if (parameter.dtype() == type) {
    copy_tensor(parameter, copy);
    return copy;
  }
  if (parameter.device() == kernels.device()) {
    kernels.convert(parameter, copy);
    return copy;
  }
  // In pieces, so that the host never holds a second copy.
  constexpr std::int64_t kPieceElements = 1 << 20;
  const std::int64_t rows = parameter.dim(0);
  const std::int64_t step = std::max<std::int64_t>(
      1, kPieceElements * rows / std::max<std::int64_t>(1, parameter.elements()));
  const Buffer piece(storage_bytes(std::min(step, rows) * (parameter.elements() / rows), type),
                     account, MemoryUse::staging);
  for (std::int64_t row = 0; row < rows; row += step) {
    const ConstTensorView from = parameter.rows(row, std::min(row + step, rows));
    const TensorView converted = piece.view(type, from.shape());
    kernels.host().convert(from, converted);
    copy_tensor(converted, copy.rows(row, row + from.dim(0)));
  }
  return copy;
}

void InferenceTransformer::State::check_rows(std::span<const DecodeRow> rows) {
  std::ranges::fill(checked, -1);
  const DecodeRow* previous = nullptr;
  for (const DecodeRow& row : rows) {
    expect(row.token >= 0 && row.token < config.vocabulary_size,
           "decoding row's token is outside the vocabulary");
    expect(row.place.slot >= 0 && row.place.slot < options.num_slots,
           "decoding row's slot does not exist");
    expect(row.place.position >= 0 && row.place.position < options.slot_capacity,
           "decoding row's position is outside the slot");
    expect(!row.drafts || (!additions.empty() && row.place.fork_row != 0),
           "a decoding row drafts without an adapter, or is no alternative's");
    if (row.place.fork_row != 0) {
      check_branch_row(row, std::exchange(previous, &row));
      pages.provide(row.place.slot, row.place.row() / kCachePageRows);
      continue;
    }
    previous = &row;
    const auto slot = static_cast<std::size_t>(row.place.slot);
    expect(row.place.position > checked[slot], "rows of a slot are not in ascending position");
    expect(row.place.position <= filled[slot], "decoding row leaves a gap in its slot");
    pages.provide(row.place.slot, row.place.position / kCachePageRows);
    checked[slot] = row.place.position;
    // Position 0 begins a new sequence.
    filled[slot] = row.place.position == 0 ? 1 : std::max(filled[slot], row.place.position + 1);
  }
}

void InferenceTransformer::State::check_branch_row(const DecodeRow& row,
                                                   const DecodeRow* previous) const {
  const CacheRow& place = row.place;
  expect(place.fork_row >= options.slot_capacity &&
             place.row() < std::int64_t{options.slot_capacity} + options.branch_rows,
         "decoding row of an alternative is outside the slot's branch rows");
  expect(place.fork >= 0 && place.fork <= filled[static_cast<std::size_t>(place.slot)],
         "an alternative leaves a gap in its slot");
  const bool continues = previous != nullptr && place.follows(previous->place) &&
                         place.position == previous->place.position + 1;
  expect(place.position == place.fork || continues, "rows of an alternative are not adjacent");
}

/// Makes keys and values of all rows, and attention's output of those of `which`. In the last layer
/// these are the rows that want output, moved to the front.
void InferenceTransformer::State::attend(const LayerWeights& layer, std::size_t index,
                                         DecodeRows which) {
  const std::int64_t all = plan->num_rows(DecodeRows::all);
  const std::int64_t rows = plan->num_rows(which);
  const AttentionHeads& heads = layer_plan.heads;
  const Shape flat_keys{all, layer_plan.key_value};
  const TensorView keys = work.k.floats({all, heads.key_heads, heads.size});
  const TensorView queries = work.q.floats({rows, heads.heads, heads.size});
  const Shape flat{rows, layer_plan.query};
  const auto& [vectors, matrices] = layer;
  using enum LayerWeight;
  const std::array<Projection, 3> projections{
      Projection{*matrices[k], vectors[k_bias], work.k.floats(flat_keys)},
      Projection{*matrices[v], vectors[v_bias], work.v.floats(flat_keys)},
      Projection{*matrices[q], vectors[q_bias], work.q.floats({all, layer_plan.query})}};
  const TensorView normed = work.of(work.normed, {all, config.hidden_size});
  kernels.invariant_linears(normed, projections);
  add_drafts(index, DecodeRows::all, normed,
             {{k, projections[0].y}, {v, projections[1].y}, {q, projections[2].y}});
  if (which == DecodeRows::kept && !plan->keeps_all()) {
    kernels.keep_rows(*plan, work.stream.floats({all, config.hidden_size}));
    kernels.keep_rows(*plan, work.q.floats({all, layer_plan.query}));
  }
  HeadNorms norms{vectors[q_norm], vectors[k_norm], layer_plan.epsilon};
  if (!norms.q.empty() && norms.q.elements() != heads.size) {  // Over all heads of a row.
    const TensorView flat_queries = work.q.floats(flat);
    kernels.rms_norm(flat_queries, norms.q, norms.epsilon, flat_queries, {});
    kernels.rms_norm(work.k.floats(flat_keys), norms.k, norms.epsilon, work.k.floats(flat_keys),
                     {});
    norms = {};
  }
  kernels.rotate_and_write(*plan, which, queries, keys, work.v.floats(keys.shape()), norms,
                           layer_plan.rope[index], cache[index]);
  if (rows > 0) {
    kernels.cached_attention(*plan, which, queries, cache[index],
                             work.of(work.attention, queries.shape()));
    const TensorView output = work.branch.floats({rows, config.hidden_size});
    kernels.invariant_linear(work.of(work.attention, flat), *matrices[o], {}, output);
    add_drafts(index, which, work.of(work.attention, flat), {{o, output}});
  }
}

void InferenceTransformer::State::feed_forward(const LayerWeights& layer, std::size_t index,
                                               DecodeRows which) {
  const std::int64_t rows = plan->num_rows(which);
  const Shape wide{rows, config.intermediate_size};
  const TensorView gate = work.of(work.gate, wide);
  const TensorView up = work.of(work.up, wide);
  const TensorView activated = work.of(work.activated, wide);
  const auto& matrices = layer.matrices;
  const std::array<Projection, 2> projections{Projection{*matrices[LayerWeight::gate], {}, gate},
                                              Projection{*matrices[LayerWeight::up], {}, up}};
  const TensorView normed = work.of(work.normed, {rows, config.hidden_size});
  kernels.invariant_linears(normed, projections);
  add_drafts(index, which, normed, {{LayerWeight::gate, gate}, {LayerWeight::up, up}});
  kernels.swiglu(gate, up, activated);
  const TensorView output = work.branch.floats({rows, config.hidden_size});
  kernels.invariant_linear(activated, *matrices[LayerWeight::down], {}, output);
  add_drafts(index, which, activated, {{LayerWeight::down, output}});
}

/// Adds a sublayer's output, normed if there is a norm, to the residual stream and makes the next
/// sublayer's input of it.
void InferenceTransformer::State::next_sublayer(const ConstTensorView& norm_after,
                                                const ConstTensorView& norm_before,
                                                std::int64_t rows) {
  const TensorView normed = work.of(work.normed, {rows, layer_plan.hidden});
  const TensorView branch = work.branch.floats(normed.shape());
  const TensorView stream = work.stream.floats(normed.shape());
  if (!norm_after.empty()) {
    kernels.rms_norm(branch, norm_after, layer_plan.epsilon, branch, {});
  }
  if (norm_before.empty()) {
    kernels.add(branch, stream);
    kernels.convert(stream, normed);
  } else {
    kernels.add_rms_norm(branch, stream, norm_before, layer_plan.stream_epsilon, normed, {});
  }
}

void InferenceTransformer::State::plan_chunk(std::span<const DecodeRow> rows) {
  work.tokens.clear();
  work.places.clear();
  work.kept.clear();
  drafting = {};
  const auto note = [](RowRange& range, std::size_t row) {
    const auto at = static_cast<std::int64_t>(row);
    expect(range.end == 0 || range.end == at, "rows that draft are not adjacent");
    range = {range.end == 0 ? at : range.begin, at + 1};
  };
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row].drafts) {
      note(drafting[0], row);
      if (rows[row].wants_output) {
        note(drafting[1], work.kept.size());
      }
    }
    work.tokens.push_back(rows[row].token);
    work.places.push_back(rows[row].place);
    if (rows[row].wants_output) {
      work.kept.push_back(static_cast<std::int32_t>(row));
    }
  }
  plan->assign({.tokens = work.tokens,
                .places = work.places,
                .kept = work.kept,
                .copies = {},
                .table = pages.table(),
                .padded = options.replay && !drafts() && !keeps_features});
}

/// Computes the final hidden states of the kept rows.
void InferenceTransformer::State::forward() {
  const Shape all{plan->num_rows(DecodeRows::all), layer_plan.hidden};
  const TensorView stream = work.stream.floats(all);
  kernels.embedding(plan->rows(DecodeRows::all), embedding, stream);
  if (layer_plan.embedding_factor != 1.0F) {
    kernels.convert(stream, stream, layer_plan.embedding_factor);
  }
  using enum LayerWeight;
  if (const ConstTensorView& norm = layers.front().vectors[attention_norm]; norm.empty()) {
    kernels.convert(stream, work.of(work.normed, all));
  } else {
    kernels.rms_norm(stream, norm, layer_plan.stream_epsilon, work.of(work.normed, all), {});
  }
  take_context();
  for (std::size_t index = 0; index < layers.size(); ++index) {
    const auto& vectors = layers[index].vectors;
    const bool last = index + 1 == layers.size();
    const DecodeRows which = last ? DecodeRows::kept : DecodeRows::all;
    const std::int64_t rows = plan->num_rows(which);
    attend(layers[index], index, which);
    if (rows == 0) {
      return;
    }
    next_sublayer(vectors[attention_output_norm], vectors[feed_forward_norm], rows);
    feed_forward(layers[index], index, which);
    next_sublayer(vectors[feed_forward_output_norm],
                  last ? final_norm : layers[index + 1].vectors[attention_norm], rows);
    keep_features(index);
    if (!last) {
      take_context();
    }
    note_progress();
  }
  if (layer_plan.hidden_factor != 1.0F) {
    kernels.convert(hidden(), hidden(), layer_plan.hidden_factor);
  }
}

/// Computes the predictions of the kept rows.
void InferenceTransformer::State::choose_tokens() {
  forward();
  const TensorView last = hidden();
  kernels.invariant_argmax(last, *head, work.chosen.view(DType::int32, {last.dim(0)}));
}

InferenceTransformer::InferenceTransformer(const TransformerConfig& config,
                                           const ParameterTable& table, ConstTensorView parameters,
                                           KernelSet& kernels, MemoryAccount& account,
                                           Options options)
    : InferenceTransformer(
          config, table,
          [&](const ParameterEntry& entry) {
            expect(parameters.elements() == table.flat_size(),
                   "the parameter vector's size differs from the table's");
            return parameter_view(parameters, &entry);
          },
          kernels, account, options) {}

InferenceTransformer::InferenceTransformer(const TransformerConfig& config,
                                           const ParameterTable& table, const ParameterReader& read,
                                           KernelSet& kernels, MemoryAccount& account,
                                           Options options) {
  expect_room(config, kernels, account, options);
  state_ = std::make_unique<State>(config, table, read, kernels, account, options);
}

InferenceTransformer::~InferenceTransformer() = default;

std::int32_t InferenceTransformer::num_slots() const { return state_->options.num_slots; }

std::int32_t InferenceTransformer::slot_capacity() const { return state_->options.slot_capacity; }

std::int32_t InferenceTransformer::branch_rows() const { return state_->options.branch_rows; }

void InferenceTransformer::keep_branches(std::span<const CacheCopy> rows) {
  State& state = *state_;
  const std::int32_t capacity = state.options.slot_capacity;
  for (const CacheCopy& row : rows) {
    expect(row.slot >= 0 && row.slot < state.options.num_slots, "kept row's slot does not exist");
    std::int32_t& filled = state.filled[static_cast<std::size_t>(row.slot)];
    expect(row.from >= capacity && row.to >= 0 && row.to < capacity && row.to <= filled,
           "kept row is no alternative's or leaves a gap in its slot");
    state.pages.provide(row.slot, row.to / kCachePageRows);
    filled = std::max(filled, row.to + 1);
  }
  state.branches->assign(
      {.tokens = {}, .places = {}, .kept = {}, .copies = rows, .table = state.pages.table()});
  state.kernels.cache_copy(*state.branches, state.cache);
}

bool InferenceTransformer::reserve(std::int32_t slot, std::int64_t positions,
                                   std::int64_t branch_rows) {
  State& state = *state_;
  expect(positions >= 1 && positions <= state.options.slot_capacity && branch_rows >= 0 &&
             branch_rows <= state.options.branch_rows,
         "a sequence does not fit into a slot");
  state.filled.at(static_cast<std::size_t>(slot)) = 0;
  if (!state.pages.reserve(slot, cache_pages(positions, branch_rows))) {
    return false;
  }
  if (state.proposer) {
    state.proposer->filled.at(static_cast<std::size_t>(slot)) = 0;
    expect(state.proposer->pages.reserve(slot, cache_pages(positions)),
           "a head's cache has no room for a sequence for which the model's has");
  }
  return true;
}

void InferenceTransformer::release(std::int32_t slot) {
  for (State* const one : {state_.get(), state_->proposer.get()}) {
    if (one != nullptr) {
      one->filled.at(static_cast<std::size_t>(slot)) = 0;
      one->pages.release(slot);
    }
  }
}

std::int64_t InferenceTransformer::free_pages() const { return state_->pages.free_pages(); }

std::int64_t InferenceTransformer::replays() const { return state_->plan->replays(); }

void InferenceTransformer::predict(std::span<const DecodeRow> rows,
                                   std::span<TokenId> predictions) {
  expect(std::ranges::count_if(rows, &DecodeRow::wants_output) == std::ssize(predictions),
         "predictions must have one place for each row that wants output");
  State& state = *state_;
  const auto step = [&state] { state.run_plan(kPrediction, [&state] { state.choose_tokens(); }); };
  state.run(rows, step, [&](std::int64_t first, std::int64_t wanted) {
    read_tokens(
        state.kernels, state.work.chosen.view(DType::int32, {wanted}),
        predictions.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(wanted)));
  });
}

bool InferenceTransformer::proposes() const { return state_->proposer != nullptr; }

void InferenceTransformer::propose(std::span<const ProposalRequest> requests, std::int64_t choices,
                                   std::span<LikelyToken> proposals) {
  expect(proposes(), "a model without a head is asked for proposals");
  State& head = *state_->proposer;
  head.lay_out_proposals(requests);
  expect(choices * std::ranges::count_if(head.proposing, &DecodeRow::wants_output) ==
             std::ssize(proposals),
         "proposals must have one place for each that is asked for");
  const auto step = [&] {
    const std::int64_t begin = std::min(head.chunk_begin, std::ssize(head.read_rows));
    const std::int64_t end = std::min(head.chunk_begin + head.plan->num_rows(DecodeRows::all),
                                      std::ssize(head.read_rows));
    head.make_context(*state_, std::span(head.read_rows)
                                   .subspan(static_cast<std::size_t>(begin),
                                            static_cast<std::size_t>(end - begin)));
    choices == 1 ? head.choose_tokens() : head.forward();
  };
  head.run(head.proposing, step, [&](std::int64_t first, std::int64_t wanted) {
    if (choices == 1) {
      head.proposed.resize(static_cast<std::size_t>(wanted));
      read_tokens(head.kernels, head.work.chosen.view(DType::int32, {wanted}), head.proposed);
      std::ranges::transform(head.proposed, proposals.begin() + first,
                             [](TokenId token) { return LikelyToken{token}; });
      return;
    }
    head.each_host_logits(wanted, [&](std::int64_t begin, const TensorView& logits) {
      const std::span<const float> all = logits.span<float>();
      const auto vocabulary = static_cast<std::size_t>(logits.dim(1));
      const auto places = static_cast<std::size_t>(choices);
      auto place = static_cast<std::size_t>(first + begin) * places;
      for (std::size_t row = 0; row < all.size(); row += vocabulary, place += places) {
        likeliest_tokens(all.subspan(row, vocabulary), proposals.subspan(place, places));
      }
    });
  });
}

void DecodeModel::propose(std::span<const ProposalRequest> /*requests*/, std::int64_t /*choices*/,
                          std::span<LikelyToken> /*proposals*/) {
  throw InternalError("proposals are asked of a model without a head");
}

void DecodeModel::predict_sampled(std::span<const DecodeRow> /*rows*/,
                                  std::span<const SampledRow> /*choices*/,
                                  std::span<TokenId> /*predictions*/) {
  throw InternalError("tokens are sampled from a model without logits");
}

void InferenceTransformer::predict_sampled(std::span<const DecodeRow> rows,
                                           std::span<const SampledRow> choices,
                                           std::span<TokenId> predictions) {
  expect(std::ranges::count_if(rows, &DecodeRow::wants_output) == std::ssize(predictions) &&
             choices.size() == predictions.size(),
         "choices and predictions must have one place for each row that wants output");
  State& state = *state_;
  const auto step = [&state] { state.run_plan(kHiddenStates, [&state] { state.forward(); }); };
  state.run(rows, step, [&](std::int64_t first, std::int64_t wanted) {
    const TensorView chosen = state.work.chosen.view(DType::int32, {wanted});
    state.each_logits(wanted, [&](std::int64_t begin, const TensorView& logits) {
      const std::int64_t count = logits.dim(0);
      state.kernels.sample_tokens(
          logits,
          choices.subspan(static_cast<std::size_t>(first + begin), static_cast<std::size_t>(count)),
          chosen.rows(begin, begin + count));
    });
    read_tokens(
        state.kernels, chosen,
        predictions.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(wanted)));
  });
}

void InferenceTransformer::predict_logits(std::span<const DecodeRow> rows,
                                          const LogitsReader& reader) {
  State& state = *state_;
  const auto step = [&state] { state.run_plan(kHiddenStates, [&state] { state.forward(); }); };
  state.run(rows, step, [&](std::int64_t first, std::int64_t wanted) {
    state.each_host_logits(wanted, [&](std::int64_t begin, const TensorView& logits) {
      reader(first + begin, logits);
    });
  });
}

void InferenceTransformer::logits(std::span<const DecodeRow> rows, TensorView output) {
  const auto wanted = std::ranges::count_if(rows, &DecodeRow::wants_output);
  expect_shape(output, {wanted, state_->config.vocabulary_size}, "logits");
  predict_logits(rows, [&](std::int64_t first, const TensorView& some) {
    copy_tensor(some, output.rows(first, first + some.dim(0)));
  });
}

std::size_t InferenceTransformer::bytes(const TransformerConfig& config, Options options,
                                        Device device) {
  const Options chosen = resolve(options);
  const LayerPlan plan(config);
  std::int64_t packed = plan.num_layers() * plan.elements(2) + config.vocabulary_size * plan.hidden;
  std::int64_t floats = plan.hidden + plan.num_layers() * plan.elements(1);
  if (chosen.adapter != nullptr) {
    packed += chosen.adapter->table.parameter_count();
    if (const auto* const adapter = std::get_if<AdapterShape>(&chosen.adapter->shape)) {
      const auto [lowered, sums] = addition_elements(plan, adapter->rank);
      floats += lowered + sums;
    }
  }
  if (chosen.weights == WeightStorage::int8) {
    floats += config.vocabulary_size;  // Scales.
    for (const PlannedWeight& planned : plan.weights) {
      floats += planned.shape.rank() == 2 ? plan.num_layers() * planned.shape[0] : 0;
    }
    if (chosen.adapter != nullptr) {
      for (const ParameterEntry& entry : chosen.adapter->table.entries()) {
        floats += entry.shape[0];
      }
    }
  }
  const DType activation = activation_type(chosen.weights, device);
  if (activation == DType::bfloat16) {
    floats += std::min<std::int64_t>(chosen.max_rows, kDeviceArgmaxRows) * config.vocabulary_size;
  }
  const DType element = chosen.weights == WeightStorage::int8 ? DType::int8
                        : rounds(chosen.weights)              ? DType::bfloat16
                                                              : DType::float32;
  std::size_t of_head = 0;
  if (chosen.adapter != nullptr) {
    if (const auto* const head = std::get_if<HeadShape>(&chosen.adapter->shape)) {
      const TransformerConfig own = head_config(config, *head);
      const std::int64_t rows_read = 2 + std::ssize(head->features);
      of_head = static_cast<std::size_t>(chosen.max_rows) *
                    (row_bytes(LayerPlan(own), activation) +
                     storage_bytes(rows_read * plan.hidden, activation)) +
                cache_bytes(own, chosen.cache_pages, cache_type(chosen.weights, device));
    }
  }
  return embedding_bytes(config, chosen.weights, device) + of_head +
         storage_bytes(packed, element) + static_cast<std::size_t>(floats) * sizeof(float) +
         static_cast<std::size_t>(chosen.max_rows) * row_bytes(plan, activation) +
         cache_bytes(config, chosen.cache_pages, cache_type(chosen.weights, device));
}

std::size_t InferenceTransformer::embedding_bytes(const TransformerConfig& config,
                                                  WeightStorage weights, Device device) {
  return storage_bytes(config.vocabulary_size * config.hidden_size,
                       embedding_type(weights, device));
}

std::size_t InferenceTransformer::cache_bytes(const TransformerConfig& config, std::int64_t pages,
                                              DType cache) {
  return 2 * static_cast<std::size_t>(config.num_layers) *
         storage_bytes(cache_shape(LayerPlan(config).heads, pages).elements(), cache);
}

}  // namespace jforge
