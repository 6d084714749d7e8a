#pragma once

/// Where things lie in a run directory.

#include <filesystem>
#include <string>

#include "runtime/ids.h"

namespace jforge {

class RunLayout {
 public:
  explicit RunLayout(std::filesystem::path directory) : directory_(std::move(directory)) {}

  [[nodiscard]] const std::filesystem::path& directory() const noexcept { return directory_; }
  [[nodiscard]] std::filesystem::path identity() const { return directory_ / "identity.json"; }
  [[nodiscard]] std::filesystem::path status() const { return directory_ / "run.json"; }
  [[nodiscard]] std::filesystem::path journal() const { return directory_ / "journal.jsonl"; }
  [[nodiscard]] std::filesystem::path resolved_config() const {
    return directory_ / "resolved_config.toml";
  }
  [[nodiscard]] std::filesystem::path prompts() const { return directory_ / "prompts.h5"; }
  [[nodiscard]] std::filesystem::path prompts_report() const {
    return directory_ / "prompts_import.json";
  }
  [[nodiscard]] std::filesystem::path round(std::int32_t number) const {
    return directory_ / ("round-" + std::to_string(number));
  }
  [[nodiscard]] std::filesystem::path trajectories(std::int32_t number) const {
    return round(number) / "trajectories";
  }
  [[nodiscard]] std::filesystem::path generation_report(std::int32_t number) const {
    return round(number) / "generation.json";
  }
  [[nodiscard]] std::filesystem::path cleaning_report(std::int32_t number) const {
    return round(number) / "cleaning.json";
  }
  [[nodiscard]] std::filesystem::path checkpoints() const { return directory_ / "checkpoints"; }
  [[nodiscard]] std::filesystem::path model() const { return directory_ / "model"; }
  [[nodiscard]] std::filesystem::path export_record() const { return directory_ / "export.json"; }
  [[nodiscard]] std::filesystem::path evaluation() const { return directory_ / "evaluation"; }
  [[nodiscard]] std::filesystem::path sweep() const { return directory_ / "sweep"; }
  [[nodiscard]] std::filesystem::path peak_flops() const { return directory_ / "peak_flops.json"; }
  /// Run directories of `jforge generate --part`.
  [[nodiscard]] std::filesystem::path parts() const { return directory_ / "parts"; }
  [[nodiscard]] std::filesystem::path logs() const { return directory_ / "logs"; }

 private:
  std::filesystem::path directory_;
};

}  // namespace jforge
