#include "coordinator/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <system_error>
#include <utility>

#include "runtime/bounded_json.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/phase_clock.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

constexpr const char* kNoJob = "none";

std::string variable_or(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

/// Several clusters may share a file system.
std::string job_id() {
  const std::string id = variable_or("SLURM_JOB_ID", kNoJob);
  const std::string cluster = variable_or("SLURM_CLUSTER_NAME", "");
  return cluster.empty() || id == kNoJob ? id : id + " of " + cluster;
}

std::string read_or_empty(const std::filesystem::path& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return {};
  }
}

/// Scope of a process id: a boot and a pid namespace (container). Host names may be shared.
std::string process_space() {
  std::string boot = read_or_empty("/proc/sys/kernel/random/boot_id");
  while (!boot.empty() && boot.back() == '\n') {
    boot.pop_back();
  }
  struct stat status {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &status) != 0) {
    return {};
  }
  return boot + "/" + std::to_string(status.st_ino);
}

struct Holder {
  std::string host = "unknown";
  long long process = 0;
  std::string space;
  std::string job = "unknown";
  std::string restart;  ///< Of the Slurm job.
  std::string identity;
};

Holder parse_holder(const std::string& text) {
  const auto json = try_bounded_json(text);
  Holder holder;
  if (json.is_object()) {
    const auto read = [&](const char* key, std::string& value) {
      if (const auto found = json.find(key); found != json.end() && found->is_string()) {
        value = found->get<std::string>();
      }
    };
    read("host", holder.host);
    read("process_space", holder.space);
    read("job", holder.job);
    read("restart", holder.restart);
    read("identity", holder.identity);
    if (const auto found = json.find("pid"); found != json.end() && found->is_number_integer()) {
      holder.process = found->get<long long>();
    }
  }
  return holder;
}

std::string describe(const Holder& holder) {
  return "host " + holder.host + ", pid " + std::to_string(holder.process) + ", job " + holder.job;
}

bool dead_on_this_host(const Holder& holder) {
  return holder.host == host_name() && !holder.space.empty() && holder.space == process_space() &&
         holder.process > 0 && ::kill(static_cast<pid_t>(holder.process), 0) != 0 && errno == ESRCH;
}

/// Whether `holder` is of an earlier start of Slurm job `job`, whose processes Slurm has ended.
bool of_earlier_start(const Holder& holder, const std::string& job, const std::string& restart) {
  return holder.job == job && job != kNoJob && !holder.restart.empty() &&
         std::strtoll(holder.restart.c_str(), nullptr, 10) <
             std::strtoll(restart.c_str(), nullptr, 10);
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& directory, Timing timing, OnLost on_lost)
    : path_(directory / "lock"),
      timing_(timing),
      on_lost_(std::move(on_lost)),
      identity_(hash_hex((std::uint64_t{std::random_device{}()} << 32) | std::random_device{}())),
      job_(job_id()),
      restart_(variable_or("SLURM_RESTART_COUNT", "0")) {
  if (!on_lost_) {
    on_lost_ = [](const std::string& reason) {
      log_critical("{}; this job ends", reason);
      MpiSession::abort(static_cast<int>(ExitCode::environment));
    };
  }
  std::string seen;
  auto since = std::chrono::steady_clock::now();
  for (bool first = true;; first = false) {
    int descriptor = -1;
    do {
      descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor >= 0) {
      ::close(descriptor);
      break;
    }
    if (errno != EEXIST) {
      throw EnvironmentError("cannot create " + path_.string() + ": " + std::strerror(errno) +
                             "; run.directory must be writable");
    }
    const std::string text = read_or_empty(path_);
    const Holder holder = parse_holder(text);
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - since;
    const bool stale = !first && text == seen && waited.count() >= timing_.stale_seconds;
    if (stale || dead_on_this_host(holder) || of_earlier_start(holder, job_, restart_)) {
      log_warn("taking over {}: its holder ({}) is gone", path_.string(), describe(holder));
      // Moved aside and checked again, because another waiter may have taken over in between.
      const std::filesystem::path aside = path_.string() + ".stale-" + identity_;
      std::error_code ignored;
      std::filesystem::rename(path_, aside, ignored);
      if (!ignored && read_or_empty(aside) != text) {
        std::filesystem::create_hard_link(aside, path_, ignored);
      }
      std::filesystem::remove(aside, ignored);
      continue;
    }
    if (!first && text != seen && !holder.identity.empty()) {
      throw EnvironmentError("run directory " + directory.string() + " is in use by " +
                             describe(holder) + "; wait for it or choose another directory");
    }
    if (first) {
      log_info("{} is held by {}; waiting to see whether it is alive", path_.string(),
               describe(holder));
    }
    if (text != seen) {
      // Without an identity it is half-written; the next look shows whose it is.
      seen = text;
      since = std::chrono::steady_clock::now();
    }
    note_progress();  // This wait has its own limit.
    std::this_thread::sleep_for(std::chrono::duration<double>(timing_.refresh_seconds / 5));
  }
  try {
    write(true);
  } catch (...) {
    // An anonymous lock would delay the next start until it is stale.
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
    throw;
  }
  thread_ = std::thread([this] { refresh_loop(); });
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (parse_holder(read_or_empty(path_)).identity == identity_) {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
}

void RunLock::write(bool create) {
  const nlohmann::json json = {{"host", host_name()},
                               {"pid", static_cast<long long>(::getpid())},
                               {"process_space", process_space()},
                               {"job", job_},
                               {"restart", restart_},
                               {"identity", identity_},
                               {"counter", counter_}};
  try {
    // Written in place: it is a liveness signal, and a torn read counts as a change.
    overwrite_file(path_, json.dump() + "\n");
  } catch (const EnvironmentError&) {
    if (create) {
      throw;
    }
  }
}

std::string RunLock::lost_to() {
  const std::string text = read_or_empty(path_);
  if (text.empty()) {
    // A waiter moves the file aside briefly, and unreadable does not mean absent.
    std::error_code error;
    const bool absent = !std::filesystem::exists(path_, error) && !error;
    absences_ = absent ? absences_ + 1 : 0;
    return absences_ < 2 ? std::string() : "the file is gone";
  }
  absences_ = 0;
  // Without an identity it is half-written, by us or by a waiter that will see ours.
  const Holder holder = parse_holder(text);
  return holder.identity.empty() || holder.identity == identity_
             ? std::string()
             : "it is held by " + describe(holder);
}

std::string why_lock_is_dead(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "lock";
  std::error_code error;
  const std::filesystem::file_time_type refreshed = std::filesystem::last_write_time(path, error);
  if (error) {
    return error == std::errc::no_such_file_or_directory ? "no job holds its lock" : std::string();
  }
  if (const Holder holder = parse_holder(read_or_empty(path)); dead_on_this_host(holder)) {
    return fmt::format("its process {} is gone", holder.process);
  }
  const std::chrono::duration<double> age =
      std::filesystem::file_time_type::clock::now() - refreshed;
  return age.count() > RunLock::Timing{}.stale_seconds
             ? fmt::format("no sign of life for {:.0f} s", age.count())
             : std::string();
}

std::string part_name(std::pair<int, int> part) {
  return part.second == 1 ? std::string() : fmt::format("{}-of-{}", part.first, part.second);
}

std::unique_ptr<RunLock> lock_part(const std::filesystem::path& whole,
                                   const std::filesystem::path& parts, const std::string& part) {
  const std::filesystem::path own = part.empty() ? whole : parts / part;
  make_directory(own);
  auto lock = std::make_unique<RunLock>(own);
  // After its own, so that at least one of two that exclude each other sees the other.
  const auto expect_free = [&](const std::filesystem::path& other, const std::string& name) {
    if (why_lock_is_dead(other).empty()) {
      throw EnvironmentError(fmt::format(
          "{} is in use by {}: wait for it, or choose another directory", whole.string(), name));
    }
  };
  if (!part.empty()) {
    expect_free(whole, "a job without --part");
  } else if (!std::filesystem::exists(parts)) {
    return lock;
  }
  for (const auto& entry : std::filesystem::directory_iterator(parts)) {
    const std::string name = entry.path().filename().string();
    if (part.empty() || !name.ends_with(part.substr(part.find("-of-")))) {
      expect_free(entry.path(), "part " + name);
    }
  }
  return lock;
}

void RunLock::refresh_loop() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::duration<double>(timing_.refresh_seconds),
                         [&] { return stopping_; })) {
    if (const std::string taker = lost_to(); !taker.empty()) {
      lock.unlock();
      on_lost_("lost the lock " + path_.string() + ": " + taker +
               " (this job was suspended, or somebody removed the lock)");
      return;
    }
    ++counter_;
    write(false);
  }
}

}  // namespace jforge
