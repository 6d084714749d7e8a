#pragma once

/// Runs streams' work in any legal order.

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cuda_emulator/graph.h"
#include "tests/cuda_emulator/happens_before.h"

namespace jforge::emulator {

struct Work {
  std::function<void()> run;
  /// Besides `after`, such as another process; polled, must not block.
  std::function<bool()> ready;
  std::vector<std::shared_ptr<Work>> after;
  bool done = false;
  Stamp stamp;
};

struct Stream {
  std::shared_ptr<Work> last;
  std::vector<std::shared_ptr<Work>> waits_for;  ///< by its next work, besides `last`
  bool blocking = true;                          ///< ordered with the default stream, both ways
  CapturePlace place;
  std::uint32_t line = 0;  ///< in HappensBefore
};

class WorkOrder {
 public:
  enum class Kind : std::uint8_t {
    eager,   ///< at once, in call order: the reference for every order
    lazy,    ///< only when the host waits, and only what that needs
    random,  ///< between calls and while waiting, drawn from what is ready
  };
  /// "eager", "lazy" or "random:SEED"; throws Refusal for anything else.
  explicit WorkOrder(std::string_view description);
  void choose(std::string_view description);

  void add_stream(Stream& stream);
  void remove_stream(const Stream& stream);  ///< Its queued work still runs.
  [[nodiscard]] Stream& default_stream() { return default_stream_; }

  std::shared_ptr<Work> enqueue(Stream& stream, const std::string& name, std::function<void()> run,
                                std::function<bool()> ready = {});
  /// Queues on a line of works instead of a stream.
  std::shared_ptr<Work> enqueue_after(std::vector<std::shared_ptr<Work>> after, std::uint32_t line,
                                      const std::string& name, std::function<void()> run);
  void forget_capture(const Capture& capture);
  /// Calls `idle` when nothing that it waits for can run.
  void when_idle(std::function<void()> idle) { idle_ = std::move(idle); }
  /// Runs work as far as possible without waiting.
  void advance(const std::shared_ptr<Work>& work);
  void wait(const std::shared_ptr<Work>& work);
  void wait_for_all();
  /// If not, runs a little, so that repeated asking ends.
  [[nodiscard]] bool ask(const std::shared_ptr<Work>& work);
  void abandon();

  /// Returns how many are kept.
  std::size_t keep_stamps(bool keep);
  [[nodiscard]] const Stamp& kept_stamp(std::size_t index) const { return stamps_.at(index); }

  /// Waits, or repeated vain questions, after queuing more.
  [[nodiscard]] static std::uint64_t host_waits();

  [[nodiscard]] HappensBefore& before() { return before_; }
  [[nodiscard]] const Stamp& current() const { return current_; }

  /// Seed for a kernel's warps: 0 unless random.
  [[nodiscard]] std::uint64_t draw() { return kind_ == Kind::random ? random_() | 1U : 0; }

 private:
  void begin(const std::shared_ptr<Work>& work);
  void do_now(const std::shared_ptr<Work>& work);
  /// Returns the works that `work` needs in order, `work` last.
  [[nodiscard]] std::vector<std::shared_ptr<Work>> needed(const std::shared_ptr<Work>& work) const;
  bool do_any_ready();
  void do_all_ready();
  /// false: none is ready
  bool do_ready(const std::vector<std::shared_ptr<Work>>& works, std::size_t most);
  void sweep();

  Kind kind_ = Kind::eager;
  std::mt19937_64 random_;
  std::function<void()> idle_;
  HappensBefore before_;
  Stamp current_;
  Stream default_stream_;
  std::vector<Stream*> streams_;
  std::vector<std::shared_ptr<Work>> waiting_;  ///< in call order
  bool keeps_stamps_ = false;
  std::vector<Stamp> stamps_;
};

}  // namespace jforge::emulator
