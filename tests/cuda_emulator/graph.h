#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace jforge::emulator {

struct Graph {
  struct Node {
    std::string name;
    std::function<void()> run;
    std::vector<std::size_t> after;
  };
  std::vector<Node> nodes;
};

struct Capture {
  Graph graph;
  bool valid = true;  ///< no forbidden call was made
  std::thread::id thread = std::this_thread::get_id();
};

struct CapturePlace {
  std::shared_ptr<Capture> capture;  ///< null: none
  std::vector<std::size_t> after;    ///< nodes that the next one follows
};

}  // namespace jforge::emulator
