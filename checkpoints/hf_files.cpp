#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoints/hf_files_internal.h"
#include "runtime/bounded_json.h"
#include "runtime/contained_file.h"
#include "runtime/error.h"
#include "runtime/read_file.h"

namespace jforge {

using nlohmann::json;

HfJsonFile::HfJsonFile(std::filesystem::path path) : path_(std::move(path)) {
  root_ = parse_bounded_json(read_file(checked_hf_file(path_)), path_.string());
  if (!root_.is_object()) {
    throw DataError(fmt::format("{}: not a JSON object", path_.string()));
  }
}

void HfJsonFile::refuse(std::string_view key, const std::string& reason) const {
  throw DataError(fmt::format("{}: {}: {}", path_.string(), key, reason));
}

const json* HfJsonFile::find(const std::string& key) const {
  const auto found = root_.find(key);
  return found == root_.end() || found->is_null() ? nullptr : &*found;
}

const json& HfJsonFile::require(const std::string& key) const {
  const json* const found = find(key);
  if (found == nullptr) {
    refuse(key, "missing");
  }
  return *found;
}

std::int64_t HfJsonFile::integer(const std::string& key) const {
  const json& value = require(key);
  try {
    return json_integer<std::int64_t>(value);
  } catch (const json::exception&) {
    refuse(key, fmt::format("{} is not a whole number in range", value.dump()));
  }
}

double HfJsonFile::number(const std::string& key) const {
  const json& value = require(key);
  if (!value.is_number()) {
    refuse(key, fmt::format("{} is not a number", value.dump()));
  }
  return value.get<double>();
}

bool HfJsonFile::boolean(const std::string& key, bool when_absent) const {
  const json* const value = find(key);
  if (value == nullptr) {
    return when_absent;
  }
  if (!value->is_boolean()) {
    refuse(key, fmt::format("{} is neither true nor false", value->dump()));
  }
  return value->get<bool>();
}

std::filesystem::path checked_hf_file(const std::filesystem::path& path) {
  return contained_file(path.parent_path(), path.filename().string());
}

bool hf_file_present(const std::filesystem::path& path) {
  return holds_contained_file(path.parent_path(), path.filename().string());
}

}  // namespace jforge
