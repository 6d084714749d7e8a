#include "workers/evaluate/sandbox/sandbox_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "runtime/error.h"
#include "workers/evaluate/sandbox/sandbox_internal.h"

namespace jforge {
namespace {

constexpr int kInfoDescriptor = 250;
constexpr int kBlockDescriptor = 251;
constexpr int kFilterDescriptor = 252;
constexpr int kInitDescriptor = 253;
constexpr int kLifelineDescriptor = 254;
constexpr int kFirstHarnessDescriptor = 64;
constexpr int kOpenFiles = 256;
constexpr rlim_t kProgramStackBytes = rlim_t{64} << 20;
constexpr std::chrono::seconds kStartPatience{60};

struct Pipe {
  OwnedDescriptor read;
  OwnedDescriptor write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw EnvironmentError(fmt::format("code sandbox: no pipe: {}", std::strerror(errno)));
  }
  return {OwnedDescriptor(ends[0]), OwnedDescriptor(ends[1])};
}

void make_non_blocking(const OwnedDescriptor& descriptor) {
  (void)fcntl(descriptor.get(), F_SETFL, fcntl(descriptor.get(), F_GETFL) | O_NONBLOCK);
}

/// Two descriptors that a program cannot predict.
std::array<int, 2> draw_descriptors() {
  std::array<std::uint16_t, 2> random{};
  if (getrandom(random.data(), sizeof(random), 0) != sizeof(random)) {
    throw EnvironmentError("code sandbox: cannot read random numbers from the system");
  }
  constexpr int kChoices = kInfoDescriptor - kFirstHarnessDescriptor;
  const int first = random[0] % kChoices;
  const int second = (first + 1 + random[1] % (kChoices - 1)) % kChoices;
  return {kFirstHarnessDescriptor + first, kFirstHarnessDescriptor + second};
}

// Programs inherit no environment. A fixed hash seed makes verdicts reproducible; "python -I" would
// ignore it.
std::vector<std::string> make_environment(std::uint32_t hash_seed) {
  return {"PATH=/usr/bin",
          "HOME=/tmp",
          "TMPDIR=/tmp",
          "LANG=C.UTF-8",
          "PYTHONIOENCODING=utf-8:backslashreplace",
          "PYTHONDONTWRITEBYTECODE=1",
          "PYTHONSAFEPATH=1",
          "PYTHONNOUSERSITE=1",
          "OMP_NUM_THREADS=1",
          "OPENBLAS_NUM_THREADS=1",
          "MKL_NUM_THREADS=1",
          fmt::format("PYTHONHASHSEED={}", hash_seed)};
}

pid_t child_pid_of(const std::string& info) {
  constexpr std::string_view kKey = "\"child-pid\":";
  const std::size_t key = info.find(kKey);
  if (key == std::string::npos) {
    return -1;
  }
  const std::size_t begin = info.find_first_of("0123456789", key + kKey.size());
  pid_t pid = -1;
  if (begin != std::string::npos) {
    (void)std::from_chars(info.data() + begin, info.data() + info.size(), pid);
  }
  return pid;
}

/// Returns −1 if there is none.
pid_t child_of(pid_t process) {
  std::ifstream children(fmt::format("/proc/{}/task/{}/children", process, process));
  pid_t child = -1;
  if (children >> child) {
    return child;
  }
  // The kernel lacks that file.
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    std::ifstream status(entry->path() / "status");
    for (std::string word; status >> word;) {
      pid_t parent = -1;
      if (word == "PPid:" && status >> parent && parent == process) {
        return std::atoi(entry->path().filename().c_str());
      }
    }
  }
  return -1;
}

/// Reopens the file, with its own offset.
OwnedDescriptor reopened(const OwnedDescriptor& file) {
  const std::string path = fmt::format("/proc/self/fd/{}", file.get());
  OwnedDescriptor again(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (again.get() < 0) {
    throw EnvironmentError(fmt::format(
        "code sandbox: its first process's program cannot be opened: {}", std::strerror(errno)));
  }
  return again;
}

/// Reads until end of file, a closing brace, or `patience` without new bytes.
std::string read_some(const OwnedDescriptor& descriptor, std::chrono::milliseconds patience) {
  std::string text;
  std::array<char, 512> chunk{};
  pollfd polled{descriptor.get(), POLLIN, 0};
  while (text.size() < 4096 && text.find('}') == std::string::npos &&
         poll(&polled, 1, static_cast<int>(patience.count())) > 0) {
    const ssize_t got = read(descriptor.get(), chunk.data(), chunk.size());
    if (got <= 0) {
      break;
    }
    text.append(chunk.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace

void OwnedDescriptor::reset() {
  if (number_ >= 0) {
    close(std::exchange(number_, -1));
  }
}

SandboxProcess::SandboxProcess(const SandboxSetup& setup, const ProcessSettings& settings,
                               const std::string& entry_point)
    : bubblewrap_(setup.bubblewrap), cpu_seconds_(settings.cpu_seconds) {
  Pipe commands = make_pipe();
  Pipe replies = make_pipe();
  Pipe errors = make_pipe();
  Pipe info = make_pipe();
  Pipe block = make_pipe();
  Pipe filter = make_pipe();
  const OwnedDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const OwnedDescriptor init = reopened(setup.init);
  const std::array<int, 2> numbers = draw_descriptors();

  StartPlan plan;
  plan.environment = make_environment(settings.hash_seed);
  plan.limits = {{RLIMIT_AS, static_cast<rlim_t>(settings.memory_bytes)},
                 // SIGXCPU at the soft limit; SIGKILL at the hard one, for programs that ignore it.
                 {RLIMIT_CPU, static_cast<rlim_t>(settings.cpu_seconds), 1},
                 {RLIMIT_FSIZE, static_cast<rlim_t>(setup.work_bytes)},
                 {RLIMIT_STACK, kProgramStackBytes},
                 {RLIMIT_NOFILE, kOpenFiles},
                 {RLIMIT_CORE, 0},
                 {RLIMIT_MEMLOCK, 0}};
  plan.descriptors = {{null.get(), 0},
                      {null.get(), 1},
                      {errors.write.get(), 2},
                      {commands.read.get(), numbers[0]},
                      // This process is its only writer, so it closes when this process dies.
                      {commands.read.get(), kLifelineDescriptor},
                      {filter.read.get(), kFilterDescriptor},
                      {init.get(), kInitDescriptor},
                      {replies.write.get(), numbers[1]}};
  if (setup.bubblewrap) {
    plan.program = setup.bubblewrap_program.string();
    plan.arguments = bubblewrap_options(setup.plan, setup.work_bytes, kInfoDescriptor,
                                        kBlockDescriptor, kInitDescriptor);
    plan.arguments.insert(plan.arguments.begin(), "bwrap");
    plan.arguments.emplace_back("--");
    plan.arguments.emplace_back(kInitPath);
    plan.descriptors.push_back({info.write.get(), kInfoDescriptor});
    plan.descriptors.push_back({block.read.get(), kBlockDescriptor});
  } else {
    plan.program_descriptor = kInitDescriptor;
    plan.namespaces = &setup.plan;
    plan.arguments.emplace_back("init");
  }
  const std::size_t filter_bytes = setup.filter.size() * sizeof(sock_filter);
  if (write(filter.write.get(), setup.filter.data(), filter_bytes) !=
      static_cast<ssize_t>(filter_bytes)) {
    throw EnvironmentError("code sandbox: the filter could not be handed over");
  }
  filter.write.reset();
  for (const std::int64_t number : {std::int64_t{kFilterDescriptor},
                                    std::int64_t{kLifelineDescriptor}, settings.wall_seconds}) {
    plan.arguments.push_back(std::to_string(number));
  }
  plan.arguments.push_back(setup.interpreter.string());
  plan.arguments.insert(plan.arguments.end(), setup.interpreter_options.begin(),
                        setup.interpreter_options.end());
  for (const std::string& word :
       {std::string("-c"), std::string(harness_source()), std::to_string(numbers[0]),
        std::to_string(numbers[1]), std::to_string(setup.value_bytes), entry_point}) {
    plan.arguments.push_back(word);
  }
  std::sort(plan.descriptors.begin(), plan.descriptors.end(),
            [](const DescriptorMove& a, const DescriptorMove& b) { return a.to < b.to; });

  child_ = start_process(plan);
  command_ = std::move(commands.write);
  reply_ = std::move(replies.read);
  errors_ = std::move(errors.read);
  for (const OwnedDescriptor* descriptor : {&command_, &reply_, &errors_}) {
    make_non_blocking(*descriptor);
  }
  // Only the child may hold these ends, or its death would go unnoticed.
  errors.write.reset();
  info.write.reset();
  try {
    find_init(std::move(info.read), std::move(block.write));
  } catch (...) {
    kill_and_reap();
    throw;
  }
}

SandboxProcess::~SandboxProcess() { kill_and_reap(); }

void SandboxProcess::find_init(OwnedDescriptor info, OwnedDescriptor block) {
  init_ = child_;
  if (bubblewrap_) {
    // The process waits for `block`, so its id cannot have been reused.
    init_ = child_pid_of(read_some(info, kStartPatience));
    if (init_ <= 0) {
      throw EnvironmentError("code sandbox: bubblewrap did not start: " + start_message());
    }
  }
  handle_ = OwnedDescriptor(static_cast<int>(syscall(SYS_pidfd_open, init_, 0)));
  if (handle_.get() < 0) {
    throw EnvironmentError(
        fmt::format("code sandbox: cannot get a handle of the process: {}", std::strerror(errno)));
  }
  block.reset();
}

std::chrono::nanoseconds SandboxProcess::time_kept_waiting() {
  // "TIME-ON-CPU TIME-WAITING TIMESLICES", in nanoseconds.
  std::array<char, 96> text{};
  const ssize_t got =
      schedule_.get() < 0 ? -1 : pread(schedule_.get(), text.data(), text.size(), 0);
  const std::string_view line(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::size_t begin = line.find(' ');
  std::int64_t nanoseconds = 0;
  // Empty after the process's end: keep the last value.
  if (begin != std::string_view::npos &&
      std::from_chars(line.data() + begin + 1, line.data() + line.size(), nanoseconds).ec ==
          std::errc()) {
    kept_waiting_ = std::chrono::nanoseconds(nanoseconds);
  }
  return kept_waiting_;
}

std::string SandboxProcess::start_message() {
  std::string text = read_some(errors_, std::chrono::milliseconds(200));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) {
    text.pop_back();
  }
  std::replace_if(
      text.begin(), text.end(),
      [](char letter) { return static_cast<unsigned char>(letter) < ' '; }, ' ');
  return text.empty() ? "it said nothing" : text;
}

void SandboxProcess::started() {
  errors_.reset();
  interpreter_ = child_of(init_);
  if (interpreter_ <= 0) {
    throw EnvironmentError("code sandbox: the interpreter's process cannot be found in /proc");
  }
  schedule_ = OwnedDescriptor(
      open(fmt::format("/proc/{}/schedstat", interpreter_).c_str(), O_RDONLY | O_CLOEXEC));
  const std::string path = fmt::format("/proc/{}/oom_score_adj", interpreter_);
  const OwnedDescriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() >= 0) {
    // Best effort: the memory limit holds without it.
    [[maybe_unused]] const ssize_t written = write(file.get(), "1000", 4);
  }
}

bool SandboxProcess::has_one_thread() const {
  std::error_code error;
  std::int64_t threads = 0;
  std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", interpreter_), error);
  for (; !error && tasks != std::filesystem::directory_iterator(); tasks.increment(error)) {
    ++threads;
  }
  return !error && threads == 1;
}

std::optional<ProcessEnd> SandboxProcess::wait(std::chrono::milliseconds patience) {
  pollfd polled{handle_.get(), POLLIN, 0};
  if (child_ < 0 || poll(&polled, 1, static_cast<int>(patience.count())) <= 0) {
    return std::nullopt;
  }
  return reap();
}

ProcessEnd SandboxProcess::reap() noexcept {
  int status = 0;
  rusage usage{};
  while (wait4(child_, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  child_ = -1;
  ProcessEnd end;
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.exit_code = WEXITSTATUS(status);
    if (end.exit_code > 128) {
      end.signal = std::exchange(end.exit_code, -1) - 128;
    }
  }
  const double used = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                      1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  // CPU limits count in ticks, `used` by the clock.
  end.cpu_limit = end.signal == SIGXCPU ||
                  (end.signal == SIGKILL && used > static_cast<double>(cpu_seconds_) - 0.5);
  return end;
}

void SandboxProcess::kill_and_reap() noexcept {
  if (child_ < 0) {
    return;
  }
  if (handle_.get() >= 0) {
    (void)syscall(SYS_pidfd_send_signal, handle_.get(), SIGKILL, nullptr, 0);
    // All others die with the first process of a namespace.
    pollfd polled{handle_.get(), POLLIN, 0};
    while (poll(&polled, 1, -1) < 0 && errno == EINTR) {
    }
  } else {
    (void)kill(child_, SIGKILL);
  }
  (void)reap();
}

}  // namespace jforge
