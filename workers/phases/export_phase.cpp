#include "workers/phases/export_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/directory_checksums.h"
#include "checkpoints/drafter_files.h"
#include "checkpoints/hf_model.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "runtime/text_seal.h"
#include "workers/evaluate/evaluation_summary.h"

namespace jforge {

using Json = nlohmann::json;

namespace {

/// Key of export.json beside ExportPhase::settings(): hash of model/checksums.json.
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
    throw DataError(fmt::format("{} is damaged: it is not the file that {} lists",
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

std::map<std::string, std::string> ExportPhase::settings() const {
  const bool half = config_.model.export_as == ComputeType::bfloat16;
  return {{"rounds", std::to_string(weights_.trained())},
          {"export_as", half ? "bfloat16" : "float32"},
          {"weights", weights_.origin(weights_.trained())}};
}

void ExportPhase::look() { done_ = is_exported(); }

bool ExportPhase::is_exported() const {
  const std::filesystem::path record = layout_.export_record();
  if (!std::filesystem::exists(record)) {
    return false;
  }
  const auto expected = settings();
  try {
    const Json found = try_bounded_json<Json>(verify_sealed(record));
    for (const auto& [key, value] : expected) {
      if (!found.is_object() || found.value(key, Json()) != value) {
        return false;  // Another configuration or version wrote it.
      }
    }
    verify_export_record(layout_);
    static_cast<void>(check_checksums(layout_.model()));
    return true;
  } catch (const DataError& error) {
    log_warn("{}; the model is exported again from {}", error.what(),
             weights_.final_directory(weights_.trained()).string());
    return false;
  }
}

void ExportPhase::drop_figures_of_another() const {
  if (!std::filesystem::exists(layout_.export_record()) ||
      !std::filesystem::exists(layout_.evaluation() / "summary.json")) {
    return;
  }
  Json found;
  try {
    found = try_bounded_json<Json>(verify_sealed(layout_.export_record()));
  } catch (const DataError&) {
    return;  // The evaluation compares the weights of the figures.
  }
  const auto same = [&](const auto& setting) {
    return found.is_object() && found.value(setting.first, Json()) == setting.second;
  };
  if (!std::ranges::all_of(settings(), same)) {
    EvaluationSummary::set_damaged_aside(layout_.evaluation());
    EvaluationSummary summary(layout_.evaluation());
    summary.remove("final");
    summary.publish();
  }
}

bool ExportPhase::run() {
  services_.clock.enter("export");
  const Checkpoint checkpoint = weights_.final_checkpoint(weights_.trained());
  MemoryAccount account("export");
  const bool stop = agree(services_.comm, stop_requested(), [&] {
    if (services_.comm.rank() == 0) {
      expect_replaceable_model(layout_);
      drop_figures_of_another();
      const TransformerConfig config = read_hf_config(config_.model.source);
      const ParameterTable table = config_.train.table(config, services_.comm.size());
      CheckpointTensors tensors(checkpoint, table, account);
      const HfExportOptions options{.stored = dtype_of(config_.model.export_as),
                                    .jacobi_block_size = config_.rounds.back().block_size,
                                    .template_arguments = config_.prompts.template_arguments};
      if (const auto drafter = config_.train.drafter_shape(config)) {
        export_with_drafter(config_.model.source, layout_.model(), options,
                            [&](const auto& folder) {
                              write_drafter(folder, config_.model.source, *drafter,
                                            *options.jacobi_block_size, table, std::ref(tensors));
                            });
      } else {
        export_hf_model(config_.model.source, layout_.model(), config, table, std::ref(tensors),
                        options);
      }
      Json record = settings();
      record[kChecksumsHash] = hash_hex(hash_file(layout_.model() / kChecksumsName));
      publish_file(layout_.export_record(), seal_json(record.dump() + "\n"));
      done_ = true;
    }
  });
  return !stop;
}

}  // namespace jforge
