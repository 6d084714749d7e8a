#include "runtime/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/console.h"
#include "runtime/error.h"

namespace jforge {

namespace {
/// Shared by the formatters, which spdlog clones for each sink.
class LineContext {
 public:
  explicit LineContext(Rank rank) : rank_(rank) {}
  [[nodiscard]] Rank rank() const noexcept { return rank_; }
  void set_phase(const std::string& phase) {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
  }
  [[nodiscard]] std::string phase() const {
    const std::lock_guard lock(mutex_);
    return phase_;
  }

 private:
  const Rank rank_;
  mutable std::mutex mutex_;
  std::string phase_ = "start";
};

/// `%q`: "rank 3 [train round 1]".
class ContextFlag : public spdlog::custom_flag_formatter {
 public:
  explicit ContextFlag(std::shared_ptr<const LineContext> context) : context_(std::move(context)) {}
  void format(const spdlog::details::log_msg& /*message*/, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    fmt::format_to(std::back_inserter(out), "rank {} [{}]", context_->rank(), context_->phase());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<ContextFlag>(context_);
  }

 private:
  std::shared_ptr<const LineContext> context_;
};

/// `%B`: erases an open progress bar.
class BarFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& /*message*/, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const std::string_view clearing = clear_bar();
    out.append(clearing.data(), clearing.data() + clearing.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<BarFlag>();
  }
};

/// What was given to spdlog's process-wide logger.
struct LogParts {
  std::shared_ptr<LineContext> context;
  std::shared_ptr<spdlog::sinks::dist_sink_mt> sinks;
  std::shared_ptr<spdlog::sinks::sink> file;
};

LogParts& parts() {
  static LogParts instance;
  return instance;
}

constexpr const char* kLinePattern = "%Y-%m-%d %H:%M:%S.%e %^%l%$ %q %v";

std::unique_ptr<spdlog::formatter> make_formatter(const std::shared_ptr<const LineContext>& context,
                                                  const std::string& pattern) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<ContextFlag>('q', context);
  formatter->add_flag<BarFlag>('B');
  formatter->set_pattern(pattern);
  return formatter;
}

spdlog::level::level_enum parse_level(const std::string& level) {
  for (const auto candidate :
       {spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err}) {
    const auto name = spdlog::level::to_string_view(candidate);
    if (level == std::string_view(name.data(), name.size())) {
      return candidate;
    }
  }
  if (level == "warn") {
    return spdlog::level::warn;
  }
  throw ConfigError("log level \"" + level + "\" is none of debug, info, warn, error");
}
}  // namespace

void initialise_log(Rank rank, const std::string& console_level) {
  const auto wanted = parse_level(console_level);
  LogParts& state = parts();
  state.context = std::make_shared<LineContext>(rank);
  state.sinks = std::make_shared<spdlog::sinks::dist_sink_mt>();
  state.file.reset();

  const auto console = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  console->set_formatter(make_formatter(state.context, std::string("%B") + kLinePattern));
  console->set_level(rank == 0 ? wanted : std::max(wanted, spdlog::level::warn));
  state.sinks->add_sink(console);

  auto logger = std::make_shared<spdlog::logger>("jforge", state.sinks);
  logger->set_level(spdlog::level::debug);
  // Flushes each line (they are few), so that a killed process keeps its log.
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

void add_log_file(const std::filesystem::path& directory) {
  LogParts& state = parts();
  expect(state.sinks != nullptr, "add_log_file before initialise_log");
  std::error_code reason;
  std::filesystem::create_directories(directory, reason);
  if (reason) {
    throw EnvironmentError("cannot create the log directory " + directory.string() + ": " +
                           reason.message());
  }
  const auto path = directory / fmt::format("rank_{:04d}.log", state.context->rank());
  std::shared_ptr<spdlog::sinks::sink> file;
  try {
    file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
  } catch (const spdlog::spdlog_ex& error) {
    throw EnvironmentError(std::string("cannot write the log file: ") + error.what());
  }
  file->set_formatter(make_formatter(state.context, kLinePattern));
  file->set_level(spdlog::level::debug);
  if (state.file != nullptr) {
    state.sinks->remove_sink(state.file);
  }
  state.sinks->add_sink(file);
  state.file = std::move(file);
}

void set_log_phase(const std::string& phase) {
  if (parts().context != nullptr) {
    parts().context->set_phase(phase);
  }
}

void close_log() {
  LogParts& state = parts();
  if (state.sinks == nullptr) {
    return;
  }
  state.sinks->flush();
  if (state.file != nullptr) {
    state.sinks->remove_sink(state.file);
    state.file.reset();
  }
}

void log_line(LogLevel level, std::string_view text) {
  constexpr std::array kLevels = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                  spdlog::level::err, spdlog::level::critical};
  spdlog::log(kLevels.at(static_cast<std::size_t>(level)),
              spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace jforge
