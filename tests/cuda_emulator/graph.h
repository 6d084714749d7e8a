#pragma once

/// Work that streams record instead of doing it.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace jforge::emulator {

/// Nodes in the order of the calls, so that what a node follows comes before it.
struct Graph {
  struct Node {
    std::string name;  ///< For messages.
    std::function<void()> run;
    std::vector<std::size_t> after;
  };
  std::vector<Node> nodes;
};

/// From cudaStreamBeginCapture to cudaStreamEndCapture.
struct Capture {
  Graph graph;
  bool valid = true;  ///< No call was made that a capture forbids.
  std::thread::id thread = std::this_thread::get_id();
};

/// Where a stream or an event stands in a capture.
struct CapturePlace {
  std::shared_ptr<Capture> capture;  ///< Null: in none.
  std::vector<std::size_t> after;    ///< Nodes that what comes next follows.
};

}  // namespace jforge::emulator
