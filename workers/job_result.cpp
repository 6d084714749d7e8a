#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/directory_checksums.h"
#include "checkpoints/hf_model.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "runtime/text_seal.h"
#include "workers/evaluate/evaluation_summary.h"
#include "workers/evaluate/evaluator.h"
#include "workers/job_worker.h"

// What comes after the last round: the exported model and its evaluation.

namespace jforge {

using Json = nlohmann::json;

namespace {

/// Key of export.json beside export_settings(): hash of model/checksums.json.
constexpr const char* kChecksumsHash = "checksums";

}  // namespace

void verify_export_record(const RunLayout& layout) {
  const std::filesystem::path record = layout.export_record();
  const Json found = try_bounded_json<Json>(verify_sealed(record));
  const std::filesystem::path checksums = layout.model() / kChecksumsName;
  if (!std::filesystem::exists(checksums)) {
    throw DataError(checksums.string() + " is gone");
  }
  if (!found.is_object() || found.value(kChecksumsHash, Json()) != hash_hex(hash_file(checksums))) {
    throw DataError(fmt::format("{} is damaged: it is not the file that {} tells of",
                                checksums.string(), record.filename().string()));
  }
}

void expect_replaceable_model(const RunLayout& layout) {
  if (std::filesystem::exists(layout.export_record())) {
    try {
      verify_export_record(layout);
    } catch (const DataError&) {
      return;
    }
  }
  expect_only_an_export(layout.model());
}

std::map<std::string, std::string> JobWorker::export_settings() const {
  const bool half = config_.model.export_as == ComputeType::bfloat16;
  return {{"rounds", std::to_string(rounds_trained_)},
          {"export_as", half ? "bfloat16" : "float32"},
          {"weights", weights_origin(rounds_trained_)}};
}

bool JobWorker::is_exported() const {
  const std::filesystem::path record = layout_.export_record();
  if (!std::filesystem::exists(record)) {
    return false;
  }
  const auto settings = export_settings();
  try {
    const Json found = try_bounded_json<Json>(verify_sealed(record));
    for (const auto& [key, value] : settings) {
      if (!found.is_object() || found.value(key, Json()) != value) {
        return false;  // Another configuration's, or another version's.
      }
    }
    verify_export_record(layout_);
    static_cast<void>(check_checksums(layout_.model()));
    return true;
  } catch (const DataError& error) {
    spdlog::warn("{}; the model is exported again from {}", error.what(),
                 final_checkpoint_directory(rounds_trained_).string());
    return false;
  }
}

void JobWorker::forget_figures_of_another() const {
  if (!std::filesystem::exists(layout_.export_record()) ||
      !std::filesystem::exists(layout_.evaluation() / "summary.json")) {
    return;
  }
  Json found;
  try {
    found = try_bounded_json<Json>(verify_sealed(layout_.export_record()));
  } catch (const DataError&) {
    return;  // Whose they are, the evaluation tells by their weights.
  }
  const auto same = [&](const auto& setting) {
    return found.is_object() && found.value(setting.first, Json()) == setting.second;
  };
  if (!std::ranges::all_of(export_settings(), same)) {
    EvaluationSummary::set_damaged_aside(layout_.evaluation());
    EvaluationSummary summary(layout_.evaluation());
    summary.remove("final");
    summary.publish();
  }
}

bool JobWorker::export_final() {
  services_.clock.enter("export");
  // What no rank holds as a whole is not made whole for this: rank 0 reads tensor by tensor.
  std::optional<Checkpoint> checkpoint;
  if (rounds_trained_ > 0 && model_rounds_ != rounds_trained_) {
    checkpoint = final_checkpoint(rounds_trained_);
  } else {
    static_cast<void>(weights_after(rounds_trained_));
  }
  MemoryAccount account("export");
  const bool stop = agree(services_.comm, stop_requested(), [&] {
    if (services_.comm.rank() == 0) {
      expect_replaceable_model(layout_);
      forget_figures_of_another();
      const TransformerConfig config = read_hf_config(config_.model.source);
      const ParameterTable table(config, services_.comm.size());
      std::optional<CheckpointTensors> tensors;
      if (checkpoint) {
        tensors.emplace(*checkpoint, table, account);
      }
      export_hf_model(config_.model.source, layout_.model(), config, table,
                      tensors ? TensorValues(std::ref(*tensors)) : values_in(model_->weights()),
                      {.stored = dtype_of(config_.model.export_as),
                       .jacobi_block_size = config_.rounds.back().block_size,
                       .template_arguments = config_.prompts.template_arguments});
      Json record = export_settings();
      record[kChecksumsHash] = hash_hex(hash_file(layout_.model() / kChecksumsName));
      publish_file(layout_.export_record(), seal_json(record.dump() + "\n"));
      exported_ = true;
    }
  });
  return !stop;
}

bool JobWorker::evaluate(const std::string& name) {
  // The evaluation reads its model from files; what the rounds left in memory is needed no more.
  model_.reset();
  model_rounds_ = -1;
  services_.clock.enter("evaluate " + name);
  const std::filesystem::path directory = name == "base" ? config_.model.source : layout_.model();
  MemoryAccount account("evaluation");
  bool finished = false;
  {
    std::unique_ptr<ModelState> model;
    together(services_.comm, [&] { model = std::make_unique<ModelState>(directory, 1, account); });
    model->load_hf(services_.comm, directory);
    finished = evaluate_model(config_.evaluate,
                              {name, model->config(), model->table(), model->weights(), directory,
                               config_.model.decode_weights},
                              {services_.comm, services_.kernels, services_.clock, config_.run.seed,
                               config_.prompts.template_options(), services_.on_evaluation},
                              layout_.evaluation());
  }
  end_phase(account);
  return finished;
}

}  // namespace jforge
