#include "runtime/fault_injection.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "runtime/log.h"

namespace jforge {

namespace {
enum class Fault { kill, stop, stall, throw_error, exit0, nan, delay, interrupt };

constexpr std::array<std::pair<std::string_view, Fault>, 8> kFaultNames{
    {{"kill", Fault::kill},
     {"stop", Fault::stop},
     {"stall", Fault::stall},
     {"throw", Fault::throw_error},
     {"exit0", Fault::exit0},
     {"nan", Fault::nan},
     {"delay", Fault::delay},
     {"interrupt", Fault::interrupt}}};

struct ArmedFault {
  Fault fault = Fault::kill;
  std::string text;
  std::string place;
  std::int64_t step = 0;
};

struct FaultTable {
  std::mutex mutex;
  std::vector<ArmedFault> armed;
  std::map<std::string, std::int64_t, std::less<>> visits;
};

std::atomic<bool> any_armed{false};

FaultTable& table() {
  static FaultTable instance;
  return instance;
}

std::int64_t parse_number(std::string_view digits, std::int64_t least, std::string_view entry) {
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc{} || end != digits.data() + digits.size() || value < least) {
    throw ConfigError(fmt::format(
        "fault \"{}\": \"{}\" is not a whole number of at least {}; write FAULT@PLACE:RANK:STEP",
        entry, digits, least));
  }
  return value;
}

std::pair<ArmedFault, Rank> parse_fault(std::string_view entry) {
  const auto at = entry.find('@');
  const auto last = entry.rfind(':');
  const auto middle = last == std::string_view::npos || last == 0 ? std::string_view::npos
                                                                  : entry.rfind(':', last - 1);
  if (at == std::string_view::npos || middle == std::string_view::npos || middle <= at + 1) {
    throw ConfigError(fmt::format("fault \"{}\" is not of the form FAULT@PLACE:RANK:STEP", entry));
  }
  ArmedFault fault;
  const auto name = entry.substr(0, at);
  const auto* known = std::find_if(kFaultNames.begin(), kFaultNames.end(),
                                   [&](const auto& candidate) { return candidate.first == name; });
  if (known == kFaultNames.end()) {
    throw ConfigError(fmt::format(
        "fault \"{}\": \"{}\" is none of kill, stop, stall, throw, exit0, nan, delay, interrupt",
        entry, name));
  }
  fault.fault = known->second;
  fault.text = entry;
  fault.place = entry.substr(at + 1, middle - at - 1);
  const std::int64_t rank = parse_number(entry.substr(middle + 1, last - middle - 1), 0, entry);
  fault.step = parse_number(entry.substr(last + 1), 0, entry);
  return {std::move(fault), static_cast<Rank>(rank)};
}

/// Disarms the matching fault, because each acts once.
std::optional<ArmedFault> take(FaultTable& faults, std::string_view place, std::int64_t step) {
  for (auto fault = faults.armed.begin(); fault != faults.armed.end(); ++fault) {
    if (fault->place == place && fault->step == step) {
      ArmedFault found = std::move(*fault);
      faults.armed.erase(fault);
      any_armed.store(!faults.armed.empty(), std::memory_order_relaxed);
      return found;
    }
  }
  return std::nullopt;
}

/// Returns true if the caller must perform the fault.
bool act(const ArmedFault& fault) {
  log_warn("injected fault {} acts now", fault.text);
  spdlog::default_logger()->flush();
  switch (fault.fault) {
    case Fault::kill:
      kill(getpid(), SIGKILL);
      return false;
    case Fault::stop:
      kill(getpid(), SIGSTOP);
      return false;
    case Fault::stall:
      for (;;) {
        std::this_thread::sleep_for(std::chrono::hours(1));
      }
    case Fault::throw_error:
      throw InternalError("injected fault " + fault.text);
    case Fault::exit0:
      std::_Exit(0);
    case Fault::nan:
      return true;
    case Fault::delay:
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return false;
    case Fault::interrupt:
      kill(getpid(), SIGUSR2);
      return false;
  }
  return false;
}
}  // namespace

void arm_faults(std::string_view specification, Rank rank) {
  std::vector<ArmedFault> mine;
  while (!specification.empty()) {
    const auto comma = specification.find(',');
    const auto entry = specification.substr(0, comma);
    auto [fault, where] = parse_fault(entry);
    if (where == rank) {
      mine.push_back(std::move(fault));
    }
    if (comma != std::string_view::npos && comma + 1 == specification.size()) {
      throw ConfigError("the fault list ends with a comma");
    }
    specification =
        comma == std::string_view::npos ? std::string_view{} : specification.substr(comma + 1);
  }
  FaultTable& faults = table();
  const std::lock_guard lock(faults.mutex);
  faults.visits.clear();
  faults.armed = std::move(mine);
  any_armed.store(!faults.armed.empty(), std::memory_order_relaxed);
}

bool faults_armed() noexcept { return any_armed.load(std::memory_order_relaxed); }

void fault_point(std::string_view place) {
  if (!any_armed.load(std::memory_order_relaxed)) [[likely]] {
    return;
  }
  std::optional<ArmedFault> fault;
  {
    FaultTable& faults = table();
    const std::lock_guard lock(faults.mutex);
    auto visits = faults.visits.find(place);
    if (visits == faults.visits.end()) {
      visits = faults.visits.emplace(std::string(place), 0).first;
    }
    fault = take(faults, place, ++visits->second);
    log_debug("fault place \"{}\", visit {}", place, visits->second);
  }
  if (fault && act(*fault)) {
    throw ConfigError(
        fmt::format("fault \"{}\": nothing at \"{}\" can become NaN", fault->text, place));
  }
}

bool fault_point(std::string_view place, std::int64_t step) {
  if (!any_armed.load(std::memory_order_relaxed)) [[likely]] {
    return false;
  }
  std::optional<ArmedFault> fault;
  {
    FaultTable& faults = table();
    const std::lock_guard lock(faults.mutex);
    fault = take(faults, place, step);
  }
  return fault && act(*fault);
}

}  // namespace jforge
