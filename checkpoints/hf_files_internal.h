#pragma once

/// Helpers for Hugging Face directories.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace jforge {

inline constexpr const char* kHfWeightsFile = "model.safetensors";
inline constexpr const char* kHfGenerationFile = "generation_config.json";
inline constexpr const char* kHfIndexFile = "model.safetensors.index.json";

/// A JSON object with type-checked members. Throws DataError naming file and key.
class HfJsonFile {
 public:
  explicit HfJsonFile(std::filesystem::path path);

  [[noreturn]] void refuse(std::string_view key, const std::string& reason) const;
  /// Null counts as absent, as in Hugging Face configurations.
  [[nodiscard]] const nlohmann::json* find(const std::string& key) const;
  /// True also for a null value.
  [[nodiscard]] bool names(const std::string& key) const { return root_.contains(key); }
  [[nodiscard]] const nlohmann::json& require(const std::string& key) const;
  [[nodiscard]] std::int64_t integer(const std::string& key) const;
  [[nodiscard]] double number(const std::string& key) const;
  [[nodiscard]] bool boolean(const std::string& key, bool when_absent) const;

 private:
  std::filesystem::path path_;
  nlohmann::json root_;
};

/// Applies the checks of contained_file() (runtime/contained_file.h).
[[nodiscard]] std::filesystem::path checked_hf_file(const std::filesystem::path& path);

/// Applies the same checks. Returns false, without throwing, for an unreadable parent; opening the
/// file reports it.
[[nodiscard]] bool hf_file_present(const std::filesystem::path& path);

}  // namespace jforge
