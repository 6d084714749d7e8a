#include "tests/cuda_emulator/happens_before.h"

#include <algorithm>

namespace jforge::emulator {

std::uint32_t HappensBefore::new_line() {
  if (!free_.empty()) {
    const std::uint32_t line = free_.back();
    free_.pop_back();
    return line;
  }
  lengths_.push_back(0);
  return static_cast<std::uint32_t>(lengths_.size() - 1);
}

Stamp HappensBefore::next(std::uint32_t line, const std::string& name) {
  Stamp stamp{static_cast<std::uint32_t>(places_.size()), host_};
  const std::uint32_t number = ++lengths_[line];
  stamp.clock.resize(std::max<std::size_t>(stamp.clock.size(), line + 1));
  stamp.clock[line] = number;
  places_.push_back({line, number, &*names_.insert(name).first});
  return stamp;
}

void HappensBefore::join(std::vector<std::uint32_t>& clock,
                         const std::vector<std::uint32_t>& other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (std::size_t line = 0; line < other.size(); ++line) {
    clock[line] = std::max(clock[line], other[line]);
  }
}

}  // namespace jforge::emulator
