#pragma once

/// The job's configuration as a list of fields, and how a file becomes a JobConfig.

#include <optional>
#include <string>
#include <vector>

#include "launch/config/field.h"
#include "launch/config/toml_config.h"
#include "workers/conversation_config.h"
#include "workers/job_config.h"

namespace jforge {

/// How files and command lines write a device.
inline constexpr EnumName<DeviceChoice> kDeviceNames[] = {
    {DeviceChoice::automatic, "auto"}, {DeviceChoice::cpu, "cpu"}, {DeviceChoice::cuda, "cuda"}};

/// Likewise how decoding holds the matrices.
inline constexpr EnumName<WeightStorage> kWeightStorageNames[] = {
    {WeightStorage::automatic, name_of(WeightStorage::automatic)},
    {WeightStorage::float32, name_of(WeightStorage::float32)},
    {WeightStorage::bfloat16, name_of(WeightStorage::bfloat16)},
    {WeightStorage::bfloat16_arithmetic, name_of(WeightStorage::bfloat16_arithmetic)},
    {WeightStorage::int8, name_of(WeightStorage::int8)}};

/// Returns the names of all recipes except "none".
[[nodiscard]] std::vector<std::string> recipe_names();

/// Every key that the command reads, bound to `config`; [[rounds]] once for each of config.rounds.
[[nodiscard]] std::vector<ConfigField> job_fields(JobConfig& config);
[[nodiscard]] std::vector<ConfigField> pretrain_fields(PretrainConfig& config);
[[nodiscard]] std::vector<ConfigField> finetune_fields(FinetuneConfig& config);

/// Returns the identity that a run with `config` records, without the hashes of its inputs.
[[nodiscard]] Identity identity_of(JobConfig& config);
[[nodiscard]] Identity identity_of(PretrainConfig& config);
[[nodiscard]] Identity identity_of(FinetuneConfig& config);

/// Parses `text`, applies --set overrides and fills a JobConfig, the values that train.compat fixes
/// among them; nothing is validated beyond types and keys, and that no key contradicts
/// train.compat. Throws ConfigError.
[[nodiscard]] JobConfig read_job_config(const std::string& text, const std::string& file_name,
                                        const std::vector<std::string>& overrides);
[[nodiscard]] PretrainConfig read_pretrain_config(const std::string& text,
                                                  const std::string& file_name,
                                                  const std::vector<std::string>& overrides);
[[nodiscard]] FinetuneConfig read_finetune_config(const std::string& text,
                                                  const std::string& file_name,
                                                  const std::vector<std::string>& overrides);

}  // namespace jforge
