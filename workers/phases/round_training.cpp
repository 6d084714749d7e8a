#include "workers/phases/round_training.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "runtime/text_seal.h"

namespace jforge {

using Json = nlohmann::json;

RoundTraining::RoundTraining(const JobConfig& config, const WorkerServices& services,
                             const RunLayout& layout, const Identity& identity,
                             RoundWeights& weights, std::int32_t round, MemoryAccount& account)
    : config_(config),
      services_(services),
      layout_(layout),
      weights_(weights),
      round_(round),
      account_(account),
      train_(config.train_config(round)),
      mid_round_(weights.resumes_within(round)),
      model_(load_weights()),
      prompts_(PromptStore::open(layout.prompts())),
      steps_(config.total_steps(round, prompts_.size())) {
  expect_steps_left();
  open_trajectories();
  TrainPhase::Settings of_round = settings(identity);
  services_.clock.enter(of_round.name);
  phase_.emplace(services_, model_, train_, std::move(of_round), account_, weights_.base());
  make_probe();
  restore();
}

TrainOutcome RoundTraining::run() {
  const TrainOutcome outcome =
      phase_->run(*samples_, [this](const StepMetrics& metrics) { report(metrics); });
  if (outcome == TrainOutcome::finished) {
    keep_weights();
  }
  return outcome;
}

ModelShard& RoundTraining::load_weights() {
  services_.clock.enter("load the weights");
  ModelShard& model = !mid_round_ ? weights_.after(round_ - 1)
                      : train_.teacher == TeacherKind::frozen
                          ? weights_.first_of(round_, "train.teacher = \"frozen\"")
                          : weights_.unread();
  weights_.begin_training();
  return model;
}

// A final checkpoint says that it is one, and nothing would write it if no step were left.
void RoundTraining::expect_steps_left() const {
  together(services_.comm, [&] {
    if (mid_round_ && weights_.resume_point()->manifest.state.step >= steps_) {
      throw ConfigError(
          fmt::format("round {} is to end after step {}, but {} has reached it; raise "
                      "rounds.{}.steps (or epochs), or --resume from an earlier checkpoint",
                      round_, steps_, weights_.resume_point()->directory.string(), round_));
    }
  });
}

void RoundTraining::open_trajectories() {
  services_.clock.enter("open the trajectories");  // rank 0 reads and checks every byte
  const SampleFilterConfig& filter = train_.filter;
  if (filter.task) {
    together(services_.comm,
             [&] { tokenizer_.emplace(BytePairTokenizer::load(config_.model.source)); });
  }
  check_ = filter.task ? make_task(*filter.task) : nullptr;
  samples_.emplace(layout_.trajectories(round_), config_.sample_order(round_, prompts_.size()),
                   steps_, config_.noise_schedule(round_), services_.comm,
                   TrajectorySamples::Cleaning{
                       filter, {tokenizer_ ? &*tokenizer_ : nullptr, check_.get(), &prompts_}});
  record_cleaning();
}

void RoundTraining::record_cleaning() const {
  if (services_.comm.rank() != 0) {
    return;
  }
  const std::filesystem::path path = layout_.cleaning_report(round_);
  const std::optional<FilterCounts>& counts = samples_->cleaned();
  if (!counts) {
    std::filesystem::remove(path);  // An earlier start with other settings may have left it.
    return;
  }
  Json dropped = Json::array();
  std::string text;
  for (std::size_t i = 1; i < counts->size(); ++i) {
    const std::string_view rule = to_string(static_cast<FilterVerdict>(i));
    dropped.push_back({{"rule", rule}, {"count", counts->at(i)}});
    text += fmt::format(", {} {}", rule, counts->at(i));
  }
  log_info("cleaning of round {}: {} trajectories kept{}", round_, counts->front(), text);
  const Json report = {{"round", round_}, {"kept", counts->front()}, {"dropped", dropped}};
  publish_file(path, seal_json(report.dump(2) + "\n"));
}

TrainPhase::Settings RoundTraining::settings(const Identity& identity) const {
  return {.name = "train round " + std::to_string(round_),
          .recorded_as = "train",
          .round = round_,
          .steps = steps_,
          .layout = layout_,
          .checkpoint = config_.checkpoint,
          .identity = identity,
          .cursors = [this](std::int64_t last_step) {
            return Json{{"total_steps", last_step},
                        {"model_source", config_.model.source.string()},
                        {kGeneratedFrom, weights_.round_origin()}}
                .dump();
          }};
}

void RoundTraining::make_probe() {
  if (TrainingProbe::wanted(train_)) {
    together(services_.comm, [&] {
      probe_.emplace(ProbeContext{services_.comm, services_.grid.within, services_.kernels,
                                  account_, model_.config(), model_.table()},
                     config_, round_, prompts_);
    });
    phase_->check_with(*probe_);
  }
}

void RoundTraining::restore() {
  if (mid_round_) {
    phase_->resume(*weights_.resume_point());
  } else if (config_.rounds[static_cast<std::size_t>(round_ - 1)].optimizer ==
             OptimizerStart::carry) {
    // Read from the file even if the state was in memory a phase ago: a restart between the rounds
    // must find the same.
    phase_->carry_optimizer(weights_.final_checkpoint(round_ - 1));
  }
}

void RoundTraining::report(StepMetrics metrics) {
  if (const auto& counts = samples_->cleaned()) {
    metrics.filtered = std::accumulate(counts->begin() + 1, counts->end(), std::int64_t{0});
  }
  if (const auto warning = unbalanced_gradients(metrics);
      warning && !warned_ && services_.comm.rank() == 0) {
    log_warn("{}", *warning);
    warned_ = true;
  }
  if (services_.on_step) {
    services_.on_step(round_, steps_, metrics);
  }
}

// For the next round. The last round's weights are exported from its checkpoint.
void RoundTraining::keep_weights() {
  const bool needed = static_cast<std::size_t>(round_) < config_.rounds.size();
  if (needed) {
    together(services_.comm, [&] {
      model_.take([&](std::int32_t group, const TensorView& target) {
        phase_->trainer().store().copy_own(group, target);
      });
    });
  }
  weights_.finish_training(round_, needed);
}

}  // namespace jforge
