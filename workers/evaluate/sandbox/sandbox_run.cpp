#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "runtime/error.h"
#include "workers/evaluate/sandbox/harness_channel.h"
#include "workers/evaluate/sandbox/sandbox_internal.h"

namespace jforge {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSecretBytes = 16;
constexpr std::size_t kReasonBytes = 400;
constexpr std::int64_t kSourceBytes = std::int64_t{256} << 20;
constexpr std::chrono::seconds kStartLimit{60};
// The sandbox's own wall-clock limit is above ours, which starts later and excludes waits for a
// CPU.
constexpr std::int64_t kOwnLimitMargin = 120;
constexpr std::int64_t kOwnLimitFactor = 20;
// For a process or thread to disappear after its end; seconds on a busy machine.
constexpr std::chrono::seconds kEndPatience{5};

std::string draw_secret() {
  std::string secret(kSecretBytes, '\0');
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    throw EnvironmentError("code sandbox: cannot read random numbers from the system");
  }
  return secret;
}

bool is_hex(char letter) {
  return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f');
}

/// Returns one line of printable ASCII; addresses, which differ between runs, become "0x".
std::string clean(std::string_view reason) {
  constexpr std::size_t kAddressDigits = 6;
  std::string text;
  for (std::size_t index = 0; index < reason.size() && text.size() < kReasonBytes; ++index) {
    const char letter = reason[index];
    text.push_back(letter >= ' ' && letter <= '~' ? letter : ' ');
    if (letter == 'x' && index > 0 && reason[index - 1] == '0') {
      std::size_t digits = 0;
      while (index + digits + 1 < reason.size() && is_hex(reason[index + digits + 1])) {
        ++digits;
      }
      index += digits >= kAddressDigits ? digits : 0;
    }
  }
  return text;
}

/// A failing step sets the result and returns false.
class SandboxRun {
 public:
  SandboxRun(const SandboxSetup& setup, const CodeRunRequest& request, const CodeValueSink& sink)
      : request_(request),
        sink_(sink),
        process_(setup,
                 {request.memory_bytes,
                  static_cast<std::int64_t>(std::ceil(std::min(request.total_seconds, 1e8))) + 2,
                  kOwnLimitFactor * static_cast<std::int64_t>(
                                        std::ceil(std::min(request.total_seconds, 1e8))) +
                      kOwnLimitMargin,
                  request.hash_seed},
                 request.entry_point),
        channel_(process_.command(), process_.reply(), static_cast<std::size_t>(setup.value_bytes),
                 setup.cancelled, setup.waiting, [this] { return now(); }) {}

  CodeRunResult run(std::string* python_version) {
    start(python_version);
    if (load_and_check() && make_calls()) {
      result_.status = CodeRunStatus::completed;
    }
    return std::move(result_);
  }

 private:
  /// Clock of all limits: stops while the program waits for a CPU, so that load causes no timeouts.
  /// Sleeping counts.
  Clock::time_point now() {
    return Clock::now() - std::chrono::duration_cast<Clock::duration>(process_.time_kept_waiting());
  }
  Clock::time_point after(double seconds) {
    return now() + std::chrono::duration_cast<Clock::duration>(
                       std::chrono::duration<double>(std::min(seconds, 1e8)));
  }

  void start(std::string* python_version) {
    HarnessFrame frame;
    const ChannelOutcome outcome = channel_.receive(frame, now() + kStartLimit);
    if (outcome != ChannelOutcome::ok || frame.kind != 'R') {
      throw EnvironmentError("code sandbox: the interpreter did not start: " +
                             process_.start_message());
    }
    process_.started();
    if (python_version != nullptr) {
      *python_version = clean(frame.payload);
    }
    total_ = after(request_.total_seconds);
  }

  bool load_and_check() {
    const Clock::time_point deadline = after(request_.check_seconds);
    const std::string token = draw_secret();
    if (!send('S', token, request_.candidate, deadline, "loading") ||
        !receive('L', deadline, "loading")) {
      return false;
    }
    if (frame_.payload != token) {
      return fail("bytes on the harness's channel that are not its own");
    }
    if (!settles_to_one_thread()) {
      return fail("a thread goes on after loading");
    }
    const std::string nonce = draw_secret();
    if (!send('K', nonce, request_.check, deadline, "the check") ||
        !receive('N', deadline, "the check")) {
      return false;
    }
    return frame_.payload == nonce || fail("bytes on the harness's channel that are not its own");
  }

  // A joined thread may stay in the system's list for a moment.
  bool settles_to_one_thread() const {
    const Clock::time_point end = Clock::now() + kEndPatience;
    while (!process_.has_one_thread()) {
      if (Clock::now() > end) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  bool make_calls() {
    for (std::size_t call = 0; call < request_.calls.size(); ++call) {
      const std::string place = fmt::format("call {}", call);
      const double seconds =
          request_.call_seconds.empty() ? request_.check_seconds : request_.call_seconds[call];
      if (!send('C', request_.calls[call], {}, total_, place) || !receive('A', total_, place)) {
        return false;
      }
      const Clock::time_point begin = now();
      if (!receive('V', after(seconds), place)) {
        return false;
      }
      const double taken = std::max(0.0, std::chrono::duration<double>(now() - begin).count());
      if (sink_ && !sink_(static_cast<std::int64_t>(call), frame_.payload)) {
        return fail(fmt::format("value of call {} not accepted", call));
      }
      ++result_.calls_returned;
      result_.call_seconds.push_back(taken);
    }
    return true;
  }

  bool send(char kind, std::string_view first, std::string_view second, Clock::time_point deadline,
            const std::string& place) {
    return judge(channel_.send(kind, first, second, std::min(deadline, total_)), place);
  }

  bool receive(char expected, Clock::time_point deadline, const std::string& place) {
    if (!judge(channel_.receive(frame_, std::min(deadline, total_)), place)) {
      return false;
    }
    if (frame_.kind == 'E') {
      return fail(clean(frame_.payload));
    }
    return frame_.kind == expected || fail("bytes on the harness's channel that are not its own");
  }

  bool judge(ChannelOutcome outcome, const std::string& place) {
    switch (outcome) {
      case ChannelOutcome::ok:
        return true;
      case ChannelOutcome::timed_out:
        return time_out(place);
      case ChannelOutcome::broken:
        return fail("bytes on the harness's channel that are not its own");
      case ChannelOutcome::closed:
        return explain_end(place);
    }
    throw InternalError("unknown outcome of a channel");
  }

  bool explain_end(const std::string& place) {
    const std::optional<ProcessEnd> end = process_.wait(kEndPatience);
    if (!end) {
      return fail("closed the harness's channel in " + place);
    }
    if (end->cpu_limit) {
      return time_out(place);
    }
    if (end->signal != 0) {
      return fail(
          fmt::format("ended by signal {} ({}) in {}", end->signal, strsignal(end->signal), place));
    }
    return fail(fmt::format("ended with status {} in {}", end->exit_code, place));
  }

  bool fail(std::string reason) {
    result_.status = CodeRunStatus::failed;
    result_.reason = std::move(reason);
    return false;
  }
  bool time_out(const std::string& place) {
    result_.status = CodeRunStatus::timed_out;
    result_.reason = "out of time in " + place;
    return false;
  }

  const CodeRunRequest& request_;
  const CodeValueSink& sink_;
  SandboxProcess process_;
  HarnessChannel channel_;
  Clock::time_point total_;
  HarnessFrame frame_;
  CodeRunResult result_;
};

}  // namespace

CodeRunResult run_in_sandbox(const SandboxSetup& setup, const CodeRunRequest& request,
                             const CodeValueSink& sink, std::string* python_version) {
  expect(request.call_seconds.empty() || request.call_seconds.size() == request.calls.size(),
         "one limit of time for each call");
  expect(request.calls.empty() || !request.entry_point.empty(), "calls need a function's name");
  expect(request.entry_point.find('\0') == std::string::npos, "a function's name has no zero byte");
  std::int64_t longest =
      static_cast<std::int64_t>(std::max(request.candidate.size(), request.check.size()));
  for (const std::string& call : request.calls) {
    longest = std::max(longest, static_cast<std::int64_t>(call.size()));
  }
  if (longest > kSourceBytes) {
    CodeRunResult result;
    result.reason = fmt::format("text longer than {} bytes", kSourceBytes);
    return result;
  }
  return SandboxRun(setup, request, sink).run(python_version);
}

}  // namespace jforge
