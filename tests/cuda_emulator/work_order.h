#pragma once

/// Work given to streams, and the order in which it is done: any that streams and events allow.

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
  /// Where it needs more than `after`, such as another process; asked often, never waits.
  std::function<bool()> ready;
  std::vector<std::shared_ptr<Work>> after;
  bool done = false;
  Stamp stamp;
};

struct Stream {
  std::shared_ptr<Work> last;
  std::vector<std::shared_ptr<Work>> waits_for;  ///< Of its next work, besides `last`.
  bool blocking = true;                          ///< Ordered with the default stream, both ways.
  CapturePlace place;
  std::uint32_t line = 0;  ///< Of HappensBefore.
};

class WorkOrder {
 public:
  enum class Kind : std::uint8_t {
    eager,   ///< At once, in the order of the calls: what every order must agree with.
    lazy,    ///< Only when the host waits for it, and only what that needs.
    random,  ///< Between the calls and while waiting, drawn from what is ready.
  };
  /// "eager", "lazy" or "random:SEED"; throws Refusal for anything else.
  explicit WorkOrder(std::string_view description);
  void choose(std::string_view description);

  void add_stream(Stream& stream);
  /// Its work is still done.
  void remove_stream(const Stream& stream);
  [[nodiscard]] Stream& default_stream() { return default_stream_; }

  /// `name`: for messages.
  std::shared_ptr<Work> enqueue(Stream& stream, const std::string& name, std::function<void()> run,
                                std::function<bool()> ready = {});
  /// As enqueue(), of no stream but a line of works that follow each other.
  std::shared_ptr<Work> enqueue_after(std::vector<std::shared_ptr<Work>> after, std::uint32_t line,
                                      const std::string& name, std::function<void()> run);
  /// Streams that had joined it are in none any more.
  void forget_capture(const Capture& capture);
  /// Calls `idle` where nothing can be done now that it waits for.
  void when_idle(std::function<void()> idle) { idle_ = std::move(idle); }
  /// Does what is possible now of what `work` needs, without waiting.
  void advance(const std::shared_ptr<Work>& work);
  void wait(const std::shared_ptr<Work>& work);
  void wait_for_all();
  /// Whether `work` is done; where not, a little more is done now, so that asking again ends.
  [[nodiscard]] bool ask(const std::shared_ptr<Work>& work);
  /// Forgets what is not done.
  void abandon();

  /// From now on the stamps of all work that is given are kept, or no longer. How many are.
  std::size_t keep_stamps(bool keep);
  [[nodiscard]] const Stamp& kept_stamp(std::size_t index) const { return stamps_.at(index); }

  /// How often the calling thread has waited for work, or asked twice and found it undone, after
  /// giving more: waits with nothing given between them are one.
  [[nodiscard]] static std::uint64_t host_waits();

  [[nodiscard]] HappensBefore& before() { return before_; }
  /// Of the work that is done now; of no work before the first.
  [[nodiscard]] const Stamp& current() const { return current_; }

  /// For the order of a kernel's warps: 0 unless random.
  [[nodiscard]] std::uint64_t draw() { return kind_ == Kind::random ? random_() | 1U : 0; }

 private:
  void begin(const std::shared_ptr<Work>& work);
  void do_now(const std::shared_ptr<Work>& work);
  /// The places in `waiting_`, in their order, of what `work` needs, itself last.
  [[nodiscard]] std::vector<std::shared_ptr<Work>> needed(const std::shared_ptr<Work>& work) const;
  bool do_any_ready();
  /// What is possible now, in the order of the calls.
  void do_all_ready();
  /// false: nothing of it is possible now.
  bool do_ready(const std::vector<std::shared_ptr<Work>>& works, std::size_t most);
  void sweep();

  Kind kind_ = Kind::eager;
  std::mt19937_64 random_;
  std::function<void()> idle_;
  HappensBefore before_;
  Stamp current_;
  Stream default_stream_;
  std::vector<Stream*> streams_;
  std::vector<std::shared_ptr<Work>> waiting_;  ///< In the order of the calls.
  bool keeps_stamps_ = false;
  std::vector<Stamp> stamps_;
};

}  // namespace jforge::emulator
