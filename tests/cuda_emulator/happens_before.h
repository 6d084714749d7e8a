#pragma once

/// Order of works in every legal schedule: vector clocks over lines of works that follow each
/// other.

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace jforge::emulator {

struct Stamp {
  std::uint32_t work = 0;  ///< 0: none
  std::vector<std::uint32_t> clock;
};

class HappensBefore {
 public:
  [[nodiscard]] std::uint32_t new_line();
  /// The next stream's work comes after.
  void end_line(std::uint32_t line) { free_.push_back(line); }

  /// Further predecessors are joined to it.
  [[nodiscard]] Stamp next(std::uint32_t line, const std::string& name);
  static void join(Stamp& later, const Stamp& earlier) { join(later.clock, earlier.clock); }
  /// Work queued from now on follows `work`.
  void host_saw(const Stamp& work) { join(host_, work.clock); }
  void host_saw_all() { host_ = lengths_; }

  [[nodiscard]] bool ordered(std::uint32_t earlier, const Stamp& later) const {
    const Place& place = places_[earlier];
    return place.line < later.clock.size() && later.clock[place.line] >= place.number;
  }
  [[nodiscard]] const std::string& name(std::uint32_t work) const { return *places_[work].name; }

 private:
  struct Place {
    std::uint32_t line;
    std::uint32_t number;
    const std::string* name;
  };
  static void join(std::vector<std::uint32_t>& clock, const std::vector<std::uint32_t>& other);

  std::vector<std::uint32_t> lengths_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> host_;
  std::vector<Place> places_{{0, 0, nullptr}};  ///< by work; the first is none
  std::unordered_set<std::string> names_;
};

}  // namespace jforge::emulator
