#include "model/transformer/inference_transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "model/transformer/cache_pages.h"
#include "model/transformer/layer_parameters_internal.h"
#include "runtime/tensor/buffer.h"

namespace jforge {
namespace {

constexpr std::int32_t kDefaultMaxRows = 1024;

/// One layer ready for decoding. Norms and biases are read in place from the flat vector, or from a
/// copy where the kernels compute on another device.
struct LayerWeights {
  ConstTensorView input_norm;
  ConstTensorView q_bias;
  ConstTensorView k_bias;
  ConstTensorView v_bias;
  ConstTensorView q_norm;  ///< [D], as k_norm; empty where the model has none.
  ConstTensorView k_norm;
  ConstTensorView attention_norm;
  std::unique_ptr<PackedWeight> q;
  std::unique_ptr<PackedWeight> k;
  std::unique_ptr<PackedWeight> v;
  std::unique_ptr<PackedWeight> o;
  std::unique_ptr<PackedWeight> gate;
  std::unique_ptr<PackedWeight> up;
  std::unique_ptr<PackedWeight> down;
};

/// What a chunk of rows needs while it passes through the layers; allocated once for max_rows.
struct Workspace {
  Workspace(const TransformerConfig& config, std::int64_t max_rows, MemoryAccount& account,
            Device device)
      : stream(floats(max_rows * config.hidden_size, account, device)),
        normed(floats(max_rows * config.hidden_size, account, device)),
        q(floats(max_rows * config.num_heads * config.head_size(), account, device)),
        k(floats(max_rows * config.num_kv_heads * config.head_size(), account, device)),
        v(floats(max_rows * config.num_kv_heads * config.head_size(), account, device)),
        attention(floats(max_rows * config.num_heads * config.head_size(), account, device)),
        gate(floats(max_rows * config.intermediate_size, account, device)),
        up(floats(max_rows * config.intermediate_size, account, device)),
        activated(floats(max_rows * config.intermediate_size, account, device)) {
    tokens.reserve(static_cast<std::size_t>(max_rows));
    places.reserve(static_cast<std::size_t>(max_rows));
    positions.reserve(static_cast<std::size_t>(max_rows));
    kept.reserve(static_cast<std::size_t>(max_rows));
  }

  static Buffer floats(std::int64_t elements, MemoryAccount& account, Device device) {
    return Buffer(static_cast<std::size_t>(elements) * sizeof(float), account, device);
  }

  Buffer stream;     ///< [M, C] residual stream.
  Buffer normed;     ///< [M, C]
  Buffer q;          ///< [M, H, D]
  Buffer k;          ///< [M, Hkv, D]
  Buffer v;          ///< [M, Hkv, D]
  Buffer attention;  ///< [M, H, D]
  Buffer gate;       ///< [M, F]
  Buffer up;         ///< [M, F]
  Buffer activated;  ///< [M, F]
  std::vector<TokenId> tokens;
  std::vector<CacheRow> places;
  std::vector<std::int32_t> positions;
  PlannedRows planned;             ///< tokens and positions, or what is left of them.
  std::vector<std::int32_t> kept;  ///< Rows that go on through the last layer.
};

/// The keys or values of a layer.
Shape cache_shape(const TransformerConfig& config, std::int64_t pages) {
  return {pages, kCachePageRows, config.num_kv_heads, config.head_size()};
}

}  // namespace

struct InferenceTransformer::State {
  State(const TransformerConfig& model_config, const ParameterTable& table,
        ConstTensorView parameters, KernelSet& set, MemoryAccount& account, Options chosen);

  void check_rows(std::span<const DecodeRow> rows);
  void check_branch_row(const DecodeRow& row, const DecodeRow* previous) const;
  std::int64_t forward_chunk(std::span<const DecodeRow> rows);
  void write_keys_and_values(const LayerWeights& layer, std::size_t index, std::int64_t rows);
  void norm_and_rotate(const TensorView& heads, const ConstTensorView& norm);
  std::int64_t keep_wanted(std::span<const DecodeRow> rows);
  void attend(const LayerWeights& layer, std::size_t index, std::int64_t rows);
  void feed_forward(const LayerWeights& layer, std::int64_t rows);

  /// Runs `rows` in chunks; `emit(first, hidden)` gets the hidden states [m, C] after the final
  /// norm of the wanted rows first … first + m of the whole call.
  template <class Emit>
  void run(std::span<const DecodeRow> rows, const Emit& emit) {
    check_rows(rows);
    const auto chunk_rows = static_cast<std::size_t>(options.max_rows);
    std::int64_t done = 0;
    for (std::size_t begin = 0; begin < rows.size(); begin += chunk_rows) {
      const std::int64_t wanted =
          forward_chunk(rows.subspan(begin, std::min(chunk_rows, rows.size() - begin)));
      if (wanted == 0) {
        continue;
      }
      const TensorView hidden = work.normed.floats({wanted, config.hidden_size});
      kernels.rms_norm(work.stream.floats({wanted, config.hidden_size}), final_norm,
                       static_cast<float>(config.rms_norm_eps), hidden, {});
      emit(done, hidden);
      done += wanted;
    }
  }

  const TransformerConfig config;
  const Options options;
  KernelSet& kernels;
  MemoryAccount& account;
  std::vector<Buffer> copies;  ///< Parameters that must lie on the kernels' device.
  ConstTensorView embedding;
  ConstTensorView final_norm;
  std::vector<LayerWeights> layers;
  std::unique_ptr<PackedWeight> head;
  std::vector<Buffer> cache_memory;  ///< Keys and values of each layer in turn.
  std::vector<LayerCache> cache;
  CachePages pages;
  Workspace work;
  Buffer logits;       ///< [kLogitsRows, V] of predict_logits(), from its first call on.
  Buffer host_logits;  ///< The same in host memory, where the kernels compute on a device.
  std::vector<std::int32_t> filled;   ///< Per slot: positions that hold keys.
  std::vector<std::int32_t> checked;  ///< Per slot: last position seen in this call, −1 for none.
};

namespace {

/// Pages of a slot that is full.
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

}  // namespace

InferenceTransformer::State::State(const TransformerConfig& model_config,
                                   const ParameterTable& table, ConstTensorView parameters,
                                   KernelSet& set, MemoryAccount& memory, Options chosen)
    : config(model_config),
      options(resolve(chosen)),
      kernels(set),
      account(memory),
      pages(options.cache_pages, options.num_slots, slot_pages(options)),
      work(config, options.max_rows, account, set.device()),
      filled(static_cast<std::size_t>(options.num_slots), 0),
      checked(static_cast<std::size_t>(options.num_slots), -1) {
  expect(parameters.elements() == table.flat_size(),
         "the parameter vector's size differs from the table's");
  const ModelParameters model(config, table);
  const auto view = [&](const ParameterEntry* entry) -> ConstTensorView {
    if (entry == nullptr) {
      return {};  // a bias or norm that the model has not
    }
    const ConstTensorView host = parameter_view(parameters, entry);
    if (host.device() == kernels.device()) {
      return host;
    }
    const Buffer& copy = copies.emplace_back(host.bytes(), account, kernels.device());
    copy_tensor(host, copy.floats(host.shape()));
    return copy.floats(host.shape());
  };
  const auto pack = [&](const ParameterEntry* entry) {
    return kernels.pack_weight(parameter_view(parameters, entry), options.weights, account);
  };
  embedding = view(model.embedding);
  final_norm = view(model.final_norm);
  head = pack(model.head);
  const Shape shape = cache_shape(config, options.cache_pages);
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * sizeof(float);
  for (const LayerParameters& layer : model.layers) {
    layers.push_back({.input_norm = view(layer.input_norm),
                      .q_bias = view(layer.q_bias),
                      .k_bias = view(layer.k_bias),
                      .v_bias = view(layer.v_bias),
                      .q_norm = view(layer.q_norm),
                      .k_norm = view(layer.k_norm),
                      .attention_norm = view(layer.attention_norm),
                      .q = pack(layer.q_weight),
                      .k = pack(layer.k_weight),
                      .v = pack(layer.v_weight),
                      .o = pack(layer.o_weight),
                      .gate = pack(layer.gate_weight),
                      .up = pack(layer.up_weight),
                      .down = pack(layer.down_weight)});
    const Buffer& keys = cache_memory.emplace_back(bytes, account, kernels.device());
    const TensorView key_view = keys.floats(shape);
    const Buffer& values = cache_memory.emplace_back(bytes, account, kernels.device());
    cache.push_back({key_view, values.floats(shape), pages.table()});
  }
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
    // Position 0 begins a new sequence: what the slot held before may no longer be attended to.
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

void InferenceTransformer::State::write_keys_and_values(const LayerWeights& layer,
                                                        std::size_t index, std::int64_t rows) {
  const TensorView stream = work.stream.floats({rows, config.hidden_size});
  const TensorView normed = work.normed.floats({rows, config.hidden_size});
  const Shape heads{rows, config.num_kv_heads, config.head_size()};
  const Shape flat{rows, config.num_kv_heads * config.head_size()};
  kernels.rms_norm(stream, layer.input_norm, static_cast<float>(config.rms_norm_eps), normed, {});
  kernels.invariant_linear(normed, *layer.k, layer.k_bias, work.k.floats(flat));
  kernels.invariant_linear(normed, *layer.v, layer.v_bias, work.v.floats(flat));
  norm_and_rotate(work.k.floats(heads), layer.k_norm);
  kernels.cache_write(work.places, work.k.floats(heads), work.v.floats(heads), cache[index]);
}

/// In place on the queries or keys [M, heads, D] of the planned rows.
void InferenceTransformer::State::norm_and_rotate(const TensorView& heads,
                                                  const ConstTensorView& norm) {
  if (!norm.empty()) {
    const TensorView rows = heads.reshaped({heads.dim(0) * heads.dim(1), heads.dim(2)});
    kernels.rms_norm(rows, norm, static_cast<float>(config.rms_norm_eps), rows, {});
  }
  kernels.rotary(heads, work.planned, config.rope);
}

/// After the last layer's keys and values are stored only rows that want output go on: moves them
/// to the front.
std::int64_t InferenceTransformer::State::keep_wanted(std::span<const DecodeRow> rows) {
  work.kept.clear();
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (!rows[row].wants_output) {
      continue;
    }
    work.places[work.kept.size()] = work.places[row];
    work.positions[work.kept.size()] = work.positions[row];
    work.kept.push_back(static_cast<std::int32_t>(row));
  }
  const Shape all{static_cast<std::int64_t>(rows.size()), config.hidden_size};
  kernels.keep_rows(work.kept, work.stream.floats(all));
  kernels.keep_rows(work.kept, work.normed.floats(all));
  work.places.resize(work.kept.size());
  work.positions.resize(work.kept.size());
  work.planned = kernels.plan_rows({}, work.positions);
  return static_cast<std::int64_t>(work.kept.size());
}

void InferenceTransformer::State::attend(const LayerWeights& layer, std::size_t index,
                                         std::int64_t rows) {
  const TensorView stream = work.stream.floats({rows, config.hidden_size});
  const TensorView normed = work.normed.floats({rows, config.hidden_size});
  const Shape heads{rows, config.num_heads, config.head_size()};
  const Shape flat{rows, config.num_heads * config.head_size()};
  kernels.invariant_linear(normed, *layer.q, layer.q_bias, work.q.floats(flat));
  norm_and_rotate(work.q.floats(heads), layer.q_norm);
  kernels.cached_attention(work.places, work.q.floats(heads), cache[index],
                           work.attention.floats(heads));
  kernels.invariant_linear(work.attention.floats(flat), *layer.o, {}, normed);
  kernels.add(normed, stream);
}

void InferenceTransformer::State::feed_forward(const LayerWeights& layer, std::int64_t rows) {
  const TensorView stream = work.stream.floats({rows, config.hidden_size});
  const TensorView normed = work.normed.floats({rows, config.hidden_size});
  const Shape wide{rows, config.intermediate_size};
  kernels.rms_norm(stream, layer.attention_norm, static_cast<float>(config.rms_norm_eps), normed,
                   {});
  kernels.invariant_linear(normed, *layer.gate, {}, work.gate.floats(wide));
  kernels.invariant_linear(normed, *layer.up, {}, work.up.floats(wide));
  kernels.swiglu(work.gate.floats(wide), work.up.floats(wide), work.activated.floats(wide));
  kernels.invariant_linear(work.activated.floats(wide), *layer.down, {}, normed);
  kernels.add(normed, stream);
}

/// Leaves the residual stream of the wanted rows at the front of work.stream and returns their
/// number.
std::int64_t InferenceTransformer::State::forward_chunk(std::span<const DecodeRow> rows) {
  work.tokens.clear();
  work.places.clear();
  work.positions.clear();
  for (const DecodeRow& row : rows) {
    work.tokens.push_back(row.token);
    work.places.push_back(row.place);
    work.positions.push_back(row.place.position);
  }
  auto num_rows = static_cast<std::int64_t>(rows.size());
  work.planned = kernels.plan_rows(work.tokens, work.positions);
  kernels.embedding(work.planned, embedding, work.stream.floats({num_rows, config.hidden_size}));
  for (std::size_t index = 0; index < layers.size(); ++index) {
    write_keys_and_values(layers[index], index, num_rows);
    if (index + 1 == layers.size()) {
      num_rows = keep_wanted(rows);
      if (num_rows == 0) {
        return 0;
      }
    }
    attend(layers[index], index, num_rows);
    feed_forward(layers[index], num_rows);
  }
  return num_rows;
}

InferenceTransformer::InferenceTransformer(const TransformerConfig& config,
                                           const ParameterTable& table, ConstTensorView parameters,
                                           KernelSet& kernels, MemoryAccount& account,
                                           Options options)
    : state_(std::make_unique<State>(config, table, parameters, kernels, account, options)) {}

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
  for (const LayerCache& layer : state.cache) {
    state.kernels.cache_copy(rows, layer);
  }
}

bool InferenceTransformer::reserve(std::int32_t slot, std::int64_t positions,
                                   std::int64_t branch_rows) {
  State& state = *state_;
  expect(positions >= 1 && positions <= state.options.slot_capacity && branch_rows >= 0 &&
             branch_rows <= state.options.branch_rows,
         "a sequence does not fit into a slot");
  state.filled.at(static_cast<std::size_t>(slot)) = 0;
  return state.pages.reserve(slot, cache_pages(positions, branch_rows));
}

void InferenceTransformer::release(std::int32_t slot) {
  state_->filled.at(static_cast<std::size_t>(slot)) = 0;
  state_->pages.release(slot);
}

std::int64_t InferenceTransformer::free_pages() const { return state_->pages.free_pages(); }

void InferenceTransformer::predict(std::span<const DecodeRow> rows,
                                   std::span<TokenId> predictions) {
  const auto wanted = std::ranges::count_if(rows, &DecodeRow::wants_output);
  expect(static_cast<std::size_t>(wanted) == predictions.size(),
         "predictions must have one place for each row that wants output");
  State& state = *state_;
  state.run(rows, [&](std::int64_t first, const TensorView& hidden) {
    state.kernels.invariant_argmax(hidden, *state.head,
                                   predictions.subspan(static_cast<std::size_t>(first),
                                                       static_cast<std::size_t>(hidden.dim(0))));
  });
}

void DecodeModel::predict_logits(std::span<const DecodeRow> /*rows*/,
                                 const LogitsReader& /*reader*/) {
  throw InternalError("tokens are sampled from a model without logits");
}

void InferenceTransformer::predict_logits(std::span<const DecodeRow> rows,
                                          const LogitsReader& reader) {
  State& state = *state_;
  const std::int64_t vocabulary = state.config.vocabulary_size;
  const bool on_host = state.kernels.device() == Device::cpu;
  const auto most_rows = std::min<std::int64_t>(kLogitsRows, state.options.max_rows);
  if (state.logits.bytes() == 0) {
    const std::size_t bytes = static_cast<std::size_t>(most_rows * vocabulary) * sizeof(float);
    state.logits = Buffer(bytes, state.account, state.kernels.device());
    if (!on_host) {
      state.host_logits = Buffer(bytes, state.account);
    }
  }
  state.run(rows, [&](std::int64_t first, const TensorView& hidden) {
    for (std::int64_t begin = 0; begin < hidden.dim(0); begin += most_rows) {
      const std::int64_t end = std::min(begin + most_rows, hidden.dim(0));
      const Shape shape{end - begin, vocabulary};
      const TensorView logits = state.logits.floats(shape);
      state.kernels.invariant_linear(hidden.rows(begin, end), *state.head, {}, logits);
      if (on_host) {
        reader(first + begin, logits);
      } else {
        copy_tensor(logits, state.host_logits.floats(shape));
        reader(first + begin, state.host_logits.floats(shape));
      }
    }
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
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query = config.num_heads * config.head_size();
  const std::int64_t key_value = config.num_kv_heads * config.head_size();
  const std::int64_t embedding = config.vocabulary_size * hidden;
  const std::int64_t layer =
      hidden * (2 * query + 2 * key_value) + 3 * hidden * config.intermediate_size;
  const std::int64_t packed = config.num_layers * layer + embedding;
  // A device keeps float32 whatever is asked for.
  const bool halved = device == Device::cpu && rounds(chosen.weights);
  std::int64_t floats = 0;
  if (device != Device::cpu) {
    const std::int64_t biases = config.attention_bias() ? query + 2 * key_value : 0;
    const std::int64_t head_norms = config.query_key_norms() ? 2 * config.head_size() : 0;
    floats += embedding + hidden + config.num_layers * (2 * hidden + biases + head_norms);
  }
  floats +=
      chosen.max_rows * (2 * hidden + 2 * query + 2 * key_value + 3 * config.intermediate_size);
  return static_cast<std::size_t>(packed) * (halved ? sizeof(BFloat16) : sizeof(float)) +
         static_cast<std::size_t>(floats) * sizeof(float) + cache_bytes(config, chosen.cache_pages);
}

std::size_t InferenceTransformer::cache_bytes(const TransformerConfig& config, std::int64_t pages) {
  return 2 * static_cast<std::size_t>(config.num_layers) * sizeof(float) *
         static_cast<std::size_t>(cache_shape(config, pages).elements());
}

}  // namespace jforge
