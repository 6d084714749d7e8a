/// libcudart's stream capture and graphs.

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "tests/cuda_emulator/cudart_internal.h"
#include "tests/cuda_emulator/device.h"

using jforge::emulator::answer;
using jforge::emulator::answer_of;
using jforge::emulator::Capture;
using jforge::emulator::Device;
using jforge::emulator::Graph;
using jforge::emulator::Lock;
using jforge::emulator::Refusal;
using jforge::emulator::Stream;
using jforge::emulator::with_device;
using jforge::emulator::Work;
using std::string_view_literals::operator""sv;

namespace {

struct Executable {
  std::shared_ptr<const Graph> graph;
  std::shared_ptr<Work> last;        ///< a launch follows the previous one
  std::vector<std::uint32_t> lines;  ///< by node: its predecessor's line, or a new one
  bool uploaded = false;
};
Executable& executable_of(cudaGraphExec_t handle) { return *reinterpret_cast<Executable*>(handle); }
Graph& graph_of(cudaGraph_t handle) { return *reinterpret_cast<Graph*>(handle); }

/// JFORGE_EMULATED_GRAPHS: memory lacks at `where`, perhaps until `trimmed`.
bool lacks_memory(std::string_view where, bool trimmed) {
  const char* const lack = std::getenv("JFORGE_EMULATED_GRAPHS");
  return lack != nullptr && (lack == where || (lack == "until-trimmed"sv && !trimmed));
}

/// Returns false if memory is lacking.
bool upload(Executable& executable) {
  executable.uploaded =
      executable.uploaded || !lacks_memory("no-upload", Device::get().pools_trimmed);
  return executable.uploaded;
}

bool all_joined(const Graph& graph, const std::vector<std::size_t>& places) {
  std::vector<bool> reached(graph.nodes.size());
  for (const std::size_t place : places) {
    reached[place] = true;
  }
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    if (!reached[i]) {
      return false;
    }
    for (const std::size_t earlier : graph.nodes[i].after) {
      reached[earlier] = true;
    }
  }
  return true;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  bool legal = true;
  device.attempt([&] {
    if (mode != cudaStreamCaptureModeThreadLocal) {
      throw Refusal("stream capture in another mode than thread-local");
    }
    Stream& stream = device.stream_of(handle);
    legal = &stream != &device.order.default_stream() && !stream.place.capture &&
            Device::capturing() == nullptr;
    if (legal) {
      stream.place = {std::make_shared<Capture>(), {}};
      Device::capturing() = stream.place.capture.get();
    }
  });
  return answer_of(device, legal ? cudaSuccess : cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return with_device([&](Device& device) {
    const auto& capture = device.stream_of(handle).place.capture;
    *status = !capture         ? cudaStreamCaptureStatusNone
              : capture->valid ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusInvalidated;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  *graph = nullptr;
  cudaError_t status = cudaSuccess;
  device.attempt([&] {
    Stream& stream = device.stream_of(handle);
    const auto place = std::move(stream.place);
    stream.place = {};
    if (!place.capture || place.capture->thread != std::this_thread::get_id()) {
      status = cudaErrorIllegalState;
      return;
    }
    Device::capturing() = nullptr;
    device.order.forget_capture(*place.capture);
    if (!place.capture->valid) {
      status = cudaErrorStreamCaptureInvalidated;
    } else if (!all_joined(place.capture->graph, place.after)) {
      status = cudaErrorStreamCaptureUnjoined;
    } else {
      *graph = reinterpret_cast<cudaGraph_t>(new Graph(std::move(place.capture->graph)));
    }
  });
  if (device.failure.code != 0) {
    Device::capturing() = nullptr;
  }
  return answer_of(device, status);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &graph_of(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (lacks_memory("none", Device::get().pools_trimmed)) {
    return answer(cudaErrorMemoryAllocation);
  }
  return with_device([&](Device& device) {
    if (flags != 0) {
      throw Refusal("cudaGraphInstantiate with flags");
    }
    auto* const made = new Executable{std::make_shared<const Graph>(graph_of(graph)), nullptr, {}};
    // A branch begins at a node whose predecessors all have a follower.
    std::vector<bool> followed(made->graph->nodes.size());
    for (const Graph::Node& node : made->graph->nodes) {
      const auto free = std::find_if(node.after.begin(), node.after.end(),
                                     [&](std::size_t earlier) { return !followed[earlier]; });
      if (free == node.after.end()) {
        made->lines.push_back(device.order.before().new_line());
      } else {
        followed[*free] = true;
        made->lines.push_back(made->lines[*free]);
      }
    }
    *executable = reinterpret_cast<cudaGraphExec_t>(made);
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return with_device([&](Device& device) {
    Executable* const gone = &executable_of(executable);
    std::sort(gone->lines.begin(), gone->lines.end());
    gone->lines.erase(std::unique(gone->lines.begin(), gone->lines.end()), gone->lines.end());
    for (const std::uint32_t line : gone->lines) {
      device.order.before().end_line(line);
    }
    delete gone;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream) {
  if (!upload(executable_of(handle))) {
    return answer(cudaErrorMemoryAllocation);
  }
  return with_device([&](Device& device) {
    if (device.stream_of(stream).place.capture) {
      throw Refusal("a graph uploaded while capturing");
    }
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  if (!upload(executable_of(handle))) {
    return answer(cudaErrorMemoryAllocation);
  }
  return with_device([&](Device& device) {
    Executable& executable = executable_of(handle);
    Stream& stream = device.stream_of(stream_handle);
    if (stream.place.capture) {
      throw Refusal("a graph launched while capturing");
    }
    if (executable.last) {
      stream.waits_for.push_back(executable.last);
    }
    const auto begin = device.enqueue(stream, "a graph", [] {});
    std::vector<std::shared_ptr<Work>> works;
    for (std::size_t i = 0; i < executable.graph->nodes.size(); ++i) {
      std::vector<std::shared_ptr<Work>> after{begin};
      for (const std::size_t earlier : executable.graph->nodes[i].after) {
        after.push_back(works[earlier]);
      }
      works.push_back(device.order.enqueue_after(
          std::move(after), executable.lines[i], executable.graph->nodes[i].name,
          [&device, graph = executable.graph, i] { device.run(graph->nodes[i].run); }));
    }
    stream.waits_for.insert(stream.waits_for.end(), works.begin(), works.end());
    executable.last = device.enqueue(stream, "a graph", [] {});
  });
}

}  // extern "C"
