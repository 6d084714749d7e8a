#include "workers/evaluate/evaluator.h"

#include <map>
#include <memory>
#include <utility>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/evaluation_plan.h"
#include "workers/evaluate/evaluation_store.h"
#include "workers/evaluate/sample_decoding.h"
#include "workers/evaluate/speed_measurement.h"
#include "workers/evaluate/tuning.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

/// Collective. Runs `work` on rank 0; its failure is thrown on all. True if a stop was requested.
bool on_root(const Communicator& comm, const std::function<void()>& work) {
  return agree(comm, stop_requested(), [&] {
    if (comm.rank() == 0) {
      work();
    }
  });
}

/// Collective. False if a stop was requested.
bool merge(const EvaluationPlan& plan, const SampleDecoding& decoding, const EvaluationStore& store,
           const Communicator& comm) {
  Json extra{{"weights", plan.weights_hash()}};
  if (const WeightStorage storage = plan.model().decode_weights; rounds(storage)) {
    extra["decode_weights"] = name_of(storage);
  }
  for (std::size_t i = 0; i < plan.runs().size(); ++i) {
    if (plan.runs()[i].current) {
      continue;
    }
    const std::vector<std::string> lines = gather_texts(comm, decoding.lines(i), 0);
    if (on_root(comm, [&] { store.merge(plan.runs()[i], lines, extra); })) {
      return false;
    }
  }
  return true;
}

/// Collective. False if a stop was requested.
bool evaluate(const EvaluateConfig& config, std::vector<DecodingMethod> methods,
              const ModelUnderTest& model, const EvaluationContext& context,
              const std::filesystem::path& directory) {
  const EvaluationStore store(directory, model.name, context.seed);
  std::unique_ptr<EvaluationPlan> plan;
  const bool stop = agree(context.comm, stop_requested(), [&] {
    plan = std::make_unique<EvaluationPlan>(config, std::move(methods), model, context,
                                            store.model_directory());
  });
  if (stop) {
    return false;
  }
  plan->expect_same(context.comm);
  if (plan->find_open_work(context.comm, store, context.refuse_other_weights)) {
    return false;
  }
  {
    SampleDecoding decoding(config, *plan, context, context.account);
    if (!decoding.run()) {
      return false;
    }
    if (context.samples_only) {
      return true;
    }
    if (!merge(*plan, decoding, store, context.comm)) {
      return false;
    }
  }
  const bool stopped = on_root(context.comm, [&] {
    for (const auto& task : plan->runs_by_task()) {
      store.compare(task);
    }
  });
  if (stopped) {
    return false;
  }
  SpeedMeasurement speed(config, *plan, context, context.account);
  for (const auto& task : plan->runs_by_task()) {
    const bool measured = speed.run(task, [&](const std::string& method, Json figures) {
      store.set_speed(task.front()->task(), method, std::move(figures));
    });
    if (!measured) {
      return false;
    }
  }
  (void)on_root(context.comm, [&] { store.set_complete(); });
  expect(context.account.live_bytes() == 0, "evaluation kept memory");
  return true;
}

}  // namespace

bool evaluate_methods(const EvaluateConfig& config, std::vector<DecodingMethod> methods,
                      const ModelUnderTest& model, const EvaluationContext& context,
                      const std::filesystem::path& evaluation_directory) {
  const PhaseClock::Reading caller = context.clock.read();
  const bool finished = evaluate(config, std::move(methods), model, context, evaluation_directory);
  context.clock.enter(caller.phase, caller.deadline_seconds);
  return finished;
}

bool evaluate_model(const EvaluateConfig& config, const ModelUnderTest& model,
                    const EvaluationContext& context,
                    const std::filesystem::path& evaluation_directory) {
  together(context.comm, [&] { config.validate(); });
  std::map<std::string, std::int32_t> block_sizes;
  if (config.tunes_block_size) {
    const auto tuned = tuned_block_sizes(config, model, context, evaluation_directory / model.name);
    if (!tuned) {
      return false;
    }
    block_sizes = *tuned;
  }
  std::vector<DecodingMethod> methods;
  together(context.comm, [&] {
    for (const std::string& name : config.methods) {
      DecodingSettings settings = config.decoding;
      if (const auto tuned = block_sizes.find(name); tuned != block_sizes.end()) {
        settings["block_size"] = std::int64_t{tuned->second};
      }
      methods.push_back(make_decoding_method(name, settings, context.seed));
      methods.back().samples_per_problem = config.samples_per_problem;
    }
  });
  return evaluate_methods(config, std::move(methods), model, context, evaluation_directory);
}

}  // namespace jforge
