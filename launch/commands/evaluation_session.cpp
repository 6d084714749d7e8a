#include "launch/commands/evaluation_session.h"

#include <fmt/format.h>

#include "checkpoints/tokenizer_fit.h"
#include "launch/commands/run_directory.h"
#include "launch/config/job_fields.h"
#include "results/report/report.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/console.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/evaluation_plan.h"
#include "workers/job_kernels.h"

namespace jforge {

EvaluationSession::EvaluationSession(const MpiSession& session, const Settings& settings)
    : comm_(session.world().duplicate()),
      clock_(session.clock()),
      out_(settings.out.empty() ? settings.default_out : settings.out),
      folder_(settings.folder),
      shows_tables_(settings.shows_tables),
      part_(part_name(settings.part)) {
  load_configuration(comm_, settings.config, [&](const std::string& text) {
    config_ = read_job_config(text, settings.config.string(), settings.overrides);
    config_.model.choose_for(resolve_device(config_.model.device));
    model_directory_ = settings.model.empty() ? config_.model.source : settings.model;
    if (model_directory_.empty()) {
      throw ConfigError("no model given: use --model or [model] source");
    }
    config_.run.validate();  // Only [run]: an evaluation needs neither prompts nor rounds.
  });
  // "DIR/" and "DIR/." are called DIR.
  const auto absolute = std::filesystem::absolute(model_directory_ / "").lexically_normal();
  name_ = settings.name.empty() ? absolute.parent_path().filename().string() : settings.name;
  name_ = name_.empty() ? "model" : name_;
  clock_.set_deadline(config_.run.hang_limit_seconds);
  clock_.enter("start the evaluation");
  control_.emplace(
      comm_, clock_,
      CoordinatorConfig{config_.run.heartbeat_limit_seconds, config_.run.hang_limit_seconds});
  kernels_ = make_job_kernels(comm_, config_.model.device, common_bfloat16_sums(comm_));
  clock_.enter("check the ranks");
  check_ranks(comm_, *kernels_);
  clock_.enter("start the evaluation");
  warn_of_rounding(comm_, config_.model.decode_weights);
  if (config_.model.decode_weights == WeightStorage::bfloat16_arithmetic) {
    warn_of_slow_bfloat16(comm_, *kernels_);
  }
}

void EvaluationSession::take_output() {
  make_directory(directory());
  const std::filesystem::path parts = out_ / (folder_ + ".parts");
  lock_ = lock_part(out_, parts, part_);
  if (part_.empty()) {
    std::filesystem::remove_all(parts);
  }
}

bool EvaluationSession::load_model() {
  clock_.enter("load the model");
  together(comm_, [&] {
    expect_model_name(name_);
    const TransformerConfig config = read_hf_config(model_directory_);
    expect_attention(kernels_->device(), config);
    if (root()) {
      expect_tokenizer_fits(model_directory_, BytePairTokenizer::load(model_directory_), config);
      // Before a directory is made. The baseline needs the fewest positions; programs may have run.
      EvaluateConfig planned = config_.evaluate;
      planned.methods = {std::string(kBaselineMethod)};
      expect_evaluable(planned, config, model_directory_, config_.prompts.template_options(),
                       /*programs=*/false);
    }
  });
  model_ = open_hf_model(comm_, model_directory_);
  clock_.enter("take the output directory");
  const bool stop = agree(comm_, stop_requested(), [&] {
    if (root() && !out_.empty()) {
      take_output();
    }
  });
  clock_.enter("evaluate");
  set_log_phase("evaluate " + name_);
  display_.begin("evaluate " + name_);
  return !stop;
}

ModelUnderTest EvaluationSession::model() const {
  return {
      name_,
      model_->config,
      model_->table,
      [files = model_.get()](const ParameterEntry& entry) { return files->tensors.read(entry); },
      model_directory_,
      config_.model.decode_weights,
      model_->drafter.get()};
}

EvaluationContext EvaluationSession::context() {
  return {.comm = comm_,
          .kernels = *kernels_,
          .clock = clock_,
          .account = account_,
          .seed = config_.run.seed,
          .chat_template = config_.prompts.template_options(),
          .on_progress =
              [this](const EvaluationProgress& progress) {
                if (root()) {
                  display_.evaluation(progress);
                }
              },
          .refuse_other_weights = true,
          .samples_only = !part_.empty()};
}

ExitCode EvaluationSession::finish(bool finished, const std::function<void()>& before_report) {
  display_.end();
  together(comm_, [&] {
    clock_.enter("report");
    if (!finished || !root()) {
      return;
    }
    if (!part_.empty()) {
      tell(stdout, fmt::format("Part {} is done; the same command without --part takes all parts "
                               "together.\n",
                               part_));
      return;
    }
    if (before_report) {
      before_report();
    }
    const ReportTables tables = out_.empty() ? ReportTables{} : write_report(out_);
    if (shows_tables_) {
      const bool sweeps = folder_ == "sweep";
      tell(stdout,
           fmt::format("{}{}Report: {}\n", sweeps ? tables.sweep : tables.evaluation,
                       sweeps ? std::string() : tables.headline, (out_ / "report.md").string()));
    }
  });
  if (!finished && root()) {
    log_warn("{}", out_.empty() ? "stopped; nothing was written"
                                : "stopped; every finished sample is safe, run the same command "
                                  "again to go on");
  }
  lock_.reset();
  clock_.enter("close", config_.run.heartbeat_limit_seconds);
  control_->close(comm_);
  comm_.close();
  return finished ? ExitCode::ok : ExitCode::interrupted;
}

}  // namespace jforge
