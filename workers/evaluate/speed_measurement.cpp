#include "workers/evaluate/speed_measurement.h"

#include <fmt/format.h>
#include <omp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

/// Raise if the measurement changes.
constexpr int kSpeedVersion = 4;

void log_speed(const std::string& model, const MethodRun& run, const Json& figures) {
  for (const Json& one : figures) {
    if (one.at("speed_up").is_number()) {
      log_info("evaluate {} {} {}: {:.2f}x the speed of {} at batch {} ({:.2f} to {:.2f})", model,
               run.task(), run.method.label, one["speed_up"].get<double>(), kBaselineMethod,
               one["batch_prompts"].get<int>(), one["speed_up_low"].get<double>(),
               one["speed_up_high"].get<double>());
    }
  }
}

}  // namespace

std::optional<MeasuredPass> measure_pass(const EvaluationContext& context, DecodeModel& model,
                                         const DecodingMethod& method,
                                         std::span<const DecodeRequest> requests,
                                         std::int32_t batch_prompts) {
  MeasuredPass pass{.speed = {.method = method.label}};
  // Ranks begin together.
  const bool stop = agree(context.comm, stop_requested(), [&] {
    DecodeEngine engine(model, batch_prompts);
    std::size_t next = 0;
    std::int64_t steps = 0;
    do {
      while (engine.free_slots() > 0 && next < requests.size()) {
        engine.admit(method.make(requests[next++]));
      }
      if (engine.running() == 0) {
        break;
      }
      engine.step();
      while (const auto result = engine.take_finished()) {
        pass.speed.sequences += 1;
        pass.speed.tokens += std::ssize(result->tokens);
      }
      context.clock.progress(++steps);
    } while (!stop_requested());
    pass.speed.decode_seconds = engine.statistics().decode_seconds;
    pass.speed.prefill_seconds = engine.statistics().prefill_seconds;
    pass.forwards = engine.statistics().forwards;
  });
  if (stop || agree(context.comm, stop_requested(), {})) {
    return std::nullopt;
  }
  std::array<std::int64_t, 3> counts{pass.speed.sequences, pass.speed.tokens, pass.forwards};
  std::array<double, 2> seconds{pass.speed.decode_seconds, pass.speed.prefill_seconds};
  all_reduce_sum<std::int64_t>(context.comm, counts);
  all_reduce_sum<double>(context.comm, seconds);
  pass.speed.sequences = counts[0];
  pass.speed.tokens = counts[1];
  pass.forwards = counts[2];
  pass.speed.decode_seconds = seconds[0];
  pass.speed.prefill_seconds = seconds[1];
  return pass;
}

std::vector<SpeedBatch> speed_batches(const EvaluateConfig& config, std::int64_t problems) {
  if (config.speed_problems == 0) {
    return {};
  }
  const auto limited = [&](std::int32_t count) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(count, problems));
  };
  std::vector<SpeedBatch> batches{{.batch_prompts = 1, .problems = limited(config.speed_problems)}};
  if (const std::int32_t batch = limited(config.batch_prompts); batch > 1) {
    batches.push_back({batch, limited(std::max(batch, config.speed_problems))});
  }
  return batches;
}

SpeedMeasurement::SpeedMeasurement(const EvaluateConfig& config, const EvaluationPlan& plan,
                                   const EvaluationContext& context, MemoryAccount& account)
    : config_(config),
      plan_(plan),
      context_(context),
      account_(account),
      deadline_seconds_(context.clock.read().deadline_seconds) {}

std::string SpeedMeasurement::settings_of(const std::vector<const MethodRun*>& task,
                                          const std::vector<SpeedBatch>& batches) const {
  // The storage of weights affects speed even if results are equal.
  Json settings{{"version", kSpeedVersion},
                {"decode_weights", static_cast<int>(plan_.model().decode_weights)},
                {"methods", Json::array()},
                {"batches", Json::array()}};
  for (const MethodRun* run : task) {
    settings["methods"].push_back({run->method.label, run->settings});
  }
  for (const SpeedBatch& batch : batches) {
    settings["batches"].push_back({batch.batch_prompts, batch.problems});
  }
  return hash_hex(hash64(settings.dump()));
}

std::string SpeedMeasurement::place() const {
  return fmt::format("{} ranks, {} threads, {}, {}", context_.comm.size(), omp_get_max_threads(),
                     context_.kernels.device() == Device::cpu ? "cpu" : "cuda", host_name());
}

bool SpeedMeasurement::run(const std::vector<const MethodRun*>& task,
                           const std::function<void(const std::string&, Json)>& set_figures) {
  const MethodRun& any = *task.front();
  const auto batches = speed_batches(config_, std::ssize(any.set.problems));
  if (batches.empty()) {
    return true;
  }
  const SpeedRepeat about{.settings = settings_of(task, batches),
                          .place = place(),
                          .ranks = context_.comm.size(),
                          .threads = omp_get_max_threads()};
  const SpeedFile file(any.files.speed());
  const auto in_all = batches.size() * static_cast<std::size_t>(config_.speed_repeats);
  const auto read = [&] {
    return file.read(about.settings, about.place, batches.size(), config_.speed_repeats);
  };
  std::vector<std::uint8_t> done(in_all, 0);
  const bool stop = agree(context_.comm, stop_requested(), [&] {
    if (!root()) {
      return;
    }
    const std::vector<SpeedRepeat> found = read();
    for (std::size_t i = 0; i < in_all; ++i) {
      const auto& batch = batches[i % batches.size()];
      const auto repeat = static_cast<std::int32_t>(i / batches.size());
      done[i] = std::ranges::any_of(found, [&](const SpeedRepeat& r) {
        return r.batch_prompts == batch.batch_prompts && r.repeat == repeat;
      });
    }
    if (std::ranges::count(done, 0) > 0) {
      file.restart(found);
    }
  });
  if (stop) {
    return false;
  }
  broadcast<std::uint8_t>(context_.comm, done, 0);
  std::vector<Open> open;
  for (std::size_t i = 0; i < in_all; ++i) {
    if (done[i] == 0) {
      open.push_back({batches[i % batches.size()], static_cast<std::int32_t>(i / batches.size())});
    }
  }
  if (!open.empty() && !measure(task, open, about, file)) {
    return false;
  }
  return !agree(context_.comm, stop_requested(), [&] {
    if (!root()) {
      return;
    }
    const std::vector<SpeedRepeat> all = read();
    for (const MethodRun* run : task) {
      Json figures = Json::array();
      for (const SpeedBatch& batch : batches) {
        std::vector<SpeedRepeat> repeats;
        std::ranges::copy_if(all, std::back_inserter(repeats), [&](const SpeedRepeat& r) {
          return r.batch_prompts == batch.batch_prompts;
        });
        figures.push_back(speed_figures(repeats, run->method.label, std::string(kBaselineMethod)));
      }
      log_speed(plan_.model().name, *run, figures);
      set_figures(run->method.label, std::move(figures));
    }
  });
}

/// Collective. False if a stop was requested.
bool SpeedMeasurement::measure(const std::vector<const MethodRun*>& task,
                               const std::vector<Open>& open, SpeedRepeat repeat,
                               const SpeedFile& file) {
  const PhaseClock::Reading caller = context_.clock.read();
  std::map<std::int32_t, std::int32_t> batches;  // to the problems of the warm-up
  for (const Open& one : open) {
    batches[one.batch.batch_prompts] = std::min(one.batch.batch_prompts, one.batch.problems);
  }
  const std::int32_t slots = batches.rbegin()->first;
  together(context_.comm,
           [&] { transformer_ = plan_.make_transformer(context_.kernels, account_, slots); });
  // Warm-up of every method and size: code, buffers, device graphs and the search for the fastest
  // matrix products.
  bool going = true;
  for (const auto& [batch_prompts, problems] : batches) {
    for (const MethodRun* run : task) {
      going = going && decode(*run, {{batch_prompts, problems}, 0});
    }
  }
  for (std::size_t i = 0; going && i < open.size(); ++i) {
    repeat.batch_prompts = open[i].batch.batch_prompts;
    repeat.problems = open[i].batch.problems;
    repeat.repeat = open[i].repeat;
    going = measure_repeat(task, open[i], repeat);
    if (going) {
      log_info("evaluate {} {}: speed at batch {}, repeat {} of {}", plan_.model().name,
               task.front()->task(), repeat.batch_prompts, repeat.repeat + 1,
               config_.speed_repeats);
      together(context_.comm, [&] {
        if (root()) {
          file.append(repeat);
        }
        fault_point("speed");
      });
    }
  }
  transformer_.reset();
  context_.clock.enter(caller.phase, caller.deadline_seconds);
  return going;
}

/// Collective. Runs every method. False if a stop was requested.
bool SpeedMeasurement::measure_repeat(const std::vector<const MethodRun*>& task, const Open& open,
                                      SpeedRepeat& repeat) {
  repeat.load = {};
  repeat.passes.clear();
  include_load(repeat.load);
  for (const MethodRun* run : task) {
    const std::optional<MeasuredPass> pass = decode(*run, open);
    if (!pass) {
      return false;
    }
    repeat.passes.push_back(pass->speed);
  }
  include_load(repeat.load);
  return true;
}

/// Collective. Nothing if a stop was requested.
std::optional<MeasuredPass> SpeedMeasurement::decode(const MethodRun& run, const Open& open) {
  const std::vector<Problem>& problems = run.set.problems;
  std::vector<DecodeRequest> requests;
  for (std::int32_t i = 0; i < open.batch.problems; ++i) {
    const std::int64_t place = std::int64_t{open.repeat} * open.batch.problems + i;
    const Problem& problem = problems[static_cast<std::size_t>(place % std::ssize(problems))];
    requests.push_back(run.set.request(sample_id(problem.index, 0), plan_.model().config.eos_ids));
  }
  context_.clock.enter(fmt::format("evaluate {} {} {} speed at batch {}", plan_.model().name,
                                   run.task(), run.method.label, open.batch.batch_prompts),
                       deadline_seconds_);
  return measure_pass(context_, *transformer_, run.method, requests, open.batch.batch_prompts);
}

/// Collective: includes all ranks' hosts.
void SpeedMeasurement::include_load(SpeedLoad& load) const {
  const MachineLoad here = read_machine_load();
  constexpr double kUnknown = -std::numeric_limits<double>::max();
  // Negated: a maximum finds the slowest clock. Unknown values do not count.
  std::array<double, 3> most{here.load_per_core.value_or(kUnknown),
                             here.megahertz ? -*here.megahertz : kUnknown,
                             here.megahertz.value_or(kUnknown)};
  all_reduce_max<double>(context_.comm, most);
  if (most[0] > kUnknown) {
    load.load_per_core = std::max(load.load_per_core.value_or(0), most[0]);
  }
  if (most[2] > kUnknown) {
    load.slowest_megahertz = std::min(load.slowest_megahertz.value_or(-most[1]), -most[1]);
    load.fastest_megahertz = std::max(load.fastest_megahertz.value_or(0), most[2]);
  }
}

}  // namespace jforge
