#include "model/kernels/cuda/cudnn_attention.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <source_location>
#include <unordered_map>
#include <utility>
#include <vector>

// Functions of libcudnn, libcudart and libcuda are looked up, not linked; no JSON.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "model/kernels/cuda/causal_attention.h"
#include "runtime/error.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/cuda_stream_queue.h"

namespace cudnn_frontend {
/// Where the headers look functions up. Null: not opened yet.
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace jforge {

namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr const char* kLibrary = "libcudnn.so.9";
/// 9.10.2: packed log-sum-exp beside grouped query heads, offsets of 64 bits; the headers refuse
/// the two versions before it.
constexpr std::size_t kOldest = 91002;
constexpr const char* kMend = "mend that, or set train.attention to \"own\"";

void open_library() {
  if (fe::cudnn_dlhandle == nullptr) {
    fe::cudnn_dlhandle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  }
  if (fe::cudnn_dlhandle == nullptr) {
    throw EnvironmentError(
        fmt::format("train.attention = \"cudnn\": {} cannot be opened; {}", kLibrary, kMend));
  }
  std::size_t version = 0;
  try {
    version = fe::detail::get_backend_version();
  } catch (const std::exception& error) {
    // The headers look for the CUDA runtime themselves: of none, or of several, they throw this.
    throw EnvironmentError(fmt::format("train.attention = \"cudnn\": {}; {}", error.what(), kMend));
  }
  if (version < kOldest) {
    throw EnvironmentError(
        fmt::format("train.attention = \"cudnn\": {} is version {}, {} is needed; {}", kLibrary,
                    version, kOldest, kMend));
  }
}

/// Tensors of a graph, by which execute() is told where they are.
enum Place : std::int64_t {
  kQueries = 1,
  kKeys,
  kValues,
  kOutput,
  kTerms,
  kLengths,
  kQueryBegins,
  kKeyBegins,
  kTermBegins
};

/// Causal attention of `shape.sequences` sequences that lie anywhere in tensors [T, H, D], as
/// CausalSequences has them. Not yet given to cuDNN. `elsewhere`: for a device that is not here.
std::shared_ptr<Graph> forward_graph(const CudnnShape& shape,
                                     const CudnnDevice* elsewhere = nullptr) {
  auto graph = std::make_shared<Graph>();
  if (elsewhere != nullptr) {
    // Before its nodes: each copies the capability when it is made.
    graph->set_sm_version(elsewhere->capability).set_sm_count(elsewhere->multiprocessors);
  }
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto numbers = [&](Place place, std::int64_t count, fe::DataType_t type) {
    return graph->tensor(fe::graph::Tensor_attributes()
                             .set_uid(place)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(type));
  };
  const std::int64_t batch = shape.sequences;
  const Tensor lengths = numbers(kLengths, batch, fe::DataType_t::INT32);
  const auto begins = [&](Place place) { return numbers(place, batch + 1, fe::DataType_t::INT64); };
  const Tensor query_begins = begins(kQueryBegins);
  const Tensor key_begins = begins(kKeyBegins);
  const Tensor term_begins = begins(kTermBegins);
  // The first stride has no meaning where a sequence's begin is said.
  const auto rows_of = [&](auto tensor, std::int64_t heads, std::int64_t width, const Tensor& at) {
    tensor->set_dim({batch, heads, shape.rows, width})
        .set_stride({shape.rows * heads * width, width, heads * width, 1})
        .set_ragged_offset(at);
    return tensor;
  };
  const auto input = [&](Place place, std::int64_t heads, const Tensor& at) {
    fe::graph::Tensor_attributes attributes;
    attributes.set_uid(place).set_data_type(fe::DataType_t::BFLOAT16);
    rows_of(&attributes, heads, shape.size, at);
    return graph->tensor(attributes);
  };
  const Tensor q = input(kQueries, shape.heads, query_begins);
  const Tensor k = input(kKeys, shape.key_heads, key_begins);
  const Tensor v = input(kValues, shape.key_heads, key_begins);
  auto settings = fe::graph::SDPA_attributes();
  settings.set_name("causal sequences")
      .set_generate_stats(true)
      .set_attn_scale(1.0F / std::sqrt(static_cast<float>(shape.size)))
      .set_padding_mask(true)
      .set_seq_len_q(lengths)
      .set_seq_len_kv(lengths)
      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  const auto [output, terms] = graph->sdpa(q, k, v, std::move(settings));
  output->set_output(true).set_uid(kOutput).set_data_type(fe::DataType_t::BFLOAT16);
  rows_of(output, shape.heads, shape.size, query_begins);
  terms->set_output(true).set_uid(kTerms).set_data_type(fe::DataType_t::FLOAT);
  rows_of(terms, shape.heads, 1, term_begins);
  return graph;
}

/// Has cuDNN choose plans, without building them. `handle`: null where the graph has a device's
/// properties.
fe::error_t choose_plans(Graph& graph, cudnnHandle_t handle) {
  fe::error_t error = graph.validate();
  if (error.is_good()) {
    error = graph.build_operation_graph(handle);
  }
  if (error.is_good()) {
    error = graph.create_execution_plans({fe::HeurMode_t::A});
  }
  if (error.is_good()) {
    error = graph.check_support();
  }
  return error;
}

std::string describe(const CudnnShape& shape) {
  return fmt::format("{} sequences of up to {} rows, {} query heads, {} key heads of {}",
                     shape.sequences, shape.rows, shape.heads, shape.key_heads, shape.size);
}

void check(const fe::error_t& error, const CudnnShape& shape,
           std::source_location where = std::source_location::current()) {
  if (error.is_bad()) {
    expect_live_device("cuDNN", where);
    throw EnvironmentError(fmt::format("train.attention = \"cudnn\": {}: {}{}; {}", describe(shape),
                                       error.err_msg, at_place(where), kMend));
  }
}

class CudnnAttention final : public CausalAttention {
 public:
  CudnnAttention() {
    open_library();
    const cudnnStatus_t status = fe::detail::create_handle(&handle_);
    if (status != CUDNN_STATUS_SUCCESS) {
      throw EnvironmentError(fmt::format("train.attention = \"cudnn\": cudnnCreate: {}{}; {}",
                                         fe::detail::get_error_string(status),
                                         at_place(std::source_location::current()), kMend));
    }
  }
  ~CudnnAttention() override { static_cast<void>(fe::detail::destroy_handle(handle_)); }

  void forward(CudaQueue& queue, const PackedPlan& plan, const DeviceSequences& sequences,
               const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
               const TensorView& output, const TensorView& log_sum_exp) override {
    const CudnnShape shape{plan.heads().heads, plan.heads().key_heads, plan.heads().size,
                           sequences.count, sequences.most_rows};
    const Planned& planned = plan_of(shape);
    std::unordered_map<std::int64_t, void*> places{{kQueries, address(q)},
                                                   {kKeys, address(k)},
                                                   {kValues, address(v)},
                                                   {kOutput, output.raw()},
                                                   {kTerms, log_sum_exp.raw()},
                                                   {kLengths, address(sequences.lengths)},
                                                   {kQueryBegins, address(sequences.query_begins)},
                                                   {kKeyBegins, address(sequences.key_begins)},
                                                   {kTermBegins, address(sequences.term_begins)}};
    const cudnnStatus_t status = fe::detail::set_stream(handle_, queue.stream().get());
    expect(status == CUDNN_STATUS_SUCCESS, "cudnnSetStream");
    check(planned.graph->execute(handle_, places, workspace(planned.workspace_bytes)), shape);
  }

 private:
  struct Planned {
    std::shared_ptr<Graph> graph;
    std::int64_t workspace_bytes = 0;
  };

  /// execute() takes no pointers to const; what is an input is not written.
  static void* address(const ConstTensorView& view) { return const_cast<void*>(view.raw()); }
  template <class T>
  static void* address(const T* values) {
    return const_cast<T*>(values);
  }

  void* workspace(std::int64_t bytes) {
    if (static_cast<std::size_t>(bytes) > workspace_.bytes()) {
      workspace_ = Buffer();  // The old block goes first: the peak is one block, not two.
      workspace_ = Buffer(static_cast<std::size_t>(bytes), account_, Device::cuda);
    }
    return workspace_.data();
  }

  const Planned& plan_of(const CudnnShape& shape) {
    if (const auto found = planned_.find(shape); found != planned_.end()) {
      return found->second;
    }
    Planned planned{forward_graph(shape)};
    check(choose_plans(*planned.graph, handle_), shape);
    check(planned.graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE), shape);
    check(planned.graph->get_workspace_size(planned.workspace_bytes), shape);
    return planned_.emplace(shape, std::move(planned)).first->second;
  }

  cudnnHandle_t handle_ = nullptr;
  MemoryAccount account_{"cuDNN attention"};
  Buffer workspace_;
  std::map<CudnnShape, Planned> planned_;
};

}  // namespace

std::unique_ptr<CausalAttention> make_cudnn_attention() {
  return std::make_unique<CudnnAttention>();
}

std::string cudnn_refusal(const CudnnShape& shape, const CudnnDevice& device) {
  open_library();
  auto properties = std::make_shared<fe::DeviceProperties>();
  fe::error_t error = properties->deserialize({device.properties.begin(), device.properties.end()});
  if (error.is_good()) {
    const std::shared_ptr<Graph> graph = forward_graph(shape, &device);
    graph->set_device_properties(std::move(properties));
    error = choose_plans(*graph, nullptr);
  }
  if (error.is_good()) {
    return {};
  }
  return error.err_msg.empty() ? "cuDNN gives no reason" : error.err_msg;
}

}  // namespace jforge
