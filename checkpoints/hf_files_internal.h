#pragma once

/// What reading and writing Hugging Face directories share: file names and checked JSON.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace jforge {

inline constexpr const char* kHfWeightsFile = "model.safetensors";
inline constexpr const char* kHfGenerationFile = "generation_config.json";
inline constexpr const char* kHfIndexFile = "model.safetensors.index.json";

/// A JSON file whose members are read with their types checked; every error is a DataError that
/// names the file and the key.
class HfJsonFile {
 public:
  explicit HfJsonFile(std::filesystem::path path);

  [[noreturn]] void refuse(std::string_view key, const std::string& reason) const;
  /// Null counts as absent, as in Hugging Face configurations.
  [[nodiscard]] const nlohmann::json* find(const std::string& key) const;
  /// Whether the key is there, be it null.
  [[nodiscard]] bool names(const std::string& key) const { return root_.contains(key); }
  [[nodiscard]] const nlohmann::json& require(const std::string& key) const;
  [[nodiscard]] std::int64_t integer(const std::string& key) const;
  [[nodiscard]] double number(const std::string& key) const;
  [[nodiscard]] bool boolean(const std::string& key, bool when_absent) const;

 private:
  std::filesystem::path path_;
  nlohmann::json root_;
};

/// `path` of a file of a model directory, checked as contained_file (runtime/contained_file.h).
[[nodiscard]] std::filesystem::path checked_hf_file(const std::filesystem::path& path);

/// Whether it exists; checked likewise. Unlike std::filesystem::exists this does not throw where a
/// parent may not be read: opening the file names that reason.
[[nodiscard]] bool hf_file_present(const std::filesystem::path& path);

}  // namespace jforge
