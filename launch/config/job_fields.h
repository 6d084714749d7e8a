#pragma once

/// The job's configuration as a list of fields, and how a file becomes a JobConfig.

#include <optional>
#include <string>
#include <vector>

#include "launch/config/field.h"
#include "launch/config/toml_config.h"
#include "workers/job_config.h"

namespace jforge {

/// How files and command lines write a device.
inline constexpr EnumName<DeviceChoice> kDeviceNames[] = {
    {DeviceChoice::automatic, "auto"}, {DeviceChoice::cpu, "cpu"}, {DeviceChoice::cuda, "cuda"}};

/// Every key of a job's configuration file, bound to `config`; [[rounds]] once for each of
/// config.rounds.
[[nodiscard]] std::vector<ConfigField> job_fields(JobConfig& config);

/// Parses `text`, applies --set overrides and fills a JobConfig, the values that train.compat fixes
/// among them; nothing is validated beyond types and keys, and that no key contradicts
/// train.compat. Throws ConfigError.
[[nodiscard]] JobConfig read_job_config(const std::string& text, const std::string& file_name,
                                        const std::vector<std::string>& overrides);

/// [pretrain] of a pre-training configuration: model dimensions, sequences and steps.
struct PretrainSettings {
  std::filesystem::path tokenizer;  ///< Directory with the tokenizer files.
  std::filesystem::path output;     ///< Hugging Face directory to write.
  std::vector<std::string> files;   ///< JSONL of question and answer.
  DeviceChoice device = DeviceChoice::automatic;
  std::string question_field = "question";
  std::string answer_field = "answer";
  std::int64_t hidden_size = 128;
  std::int64_t intermediate_size = 320;
  std::int64_t num_layers = 6;
  std::int64_t num_heads = 4;
  std::int64_t num_kv_heads = 2;
  std::int64_t max_position_embeddings = 512;
  double rope_theta = 10000;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = true;
  std::int64_t steps = 1000;
};

struct PretrainConfig {
  RunSettings run;
  PretrainSettings pretrain;
  TrainConfig train;
  CheckpointConfig checkpoint;

  void validate() const;
};

[[nodiscard]] std::vector<ConfigField> pretrain_fields(PretrainConfig& config);
[[nodiscard]] PretrainConfig read_pretrain_config(const std::string& text,
                                                  const std::string& file_name,
                                                  const std::vector<std::string>& overrides);

}  // namespace jforge
