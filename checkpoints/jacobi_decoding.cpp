#include "checkpoints/jacobi_decoding.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/bounded_json.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"

namespace jforge {

namespace {

using nlohmann::ordered_json;

DataError unusable_settings(const std::filesystem::path& path, std::string_view what) {
  return DataError(
      fmt::format("{}: {}; export the model again, or delete the file and give --block-size",
                  path.string(), what));
}

/// Null without the file.
ordered_json read_settings(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kJacobiDecodingFile;
  if (!std::filesystem::exists(path)) {
    return nullptr;
  }
  ordered_json settings = try_bounded_json<ordered_json>(read_file(path));
  if (!settings.is_object()) {
    throw unusable_settings(path, "it is no JSON object");
  }
  return settings;
}

void publish_settings(const std::filesystem::path& directory, const ordered_json& settings) {
  publish_file(directory / kJacobiDecodingFile, seal_json(settings.dump(2) + "\n"));
}

}  // namespace

void write_jacobi_decoding(const std::filesystem::path& directory, std::int32_t block_size,
                           const TemplateArguments& arguments) {
  ordered_json settings = {{"method", "jacobi"}, {"block_size", block_size}};
  if (!arguments.empty()) {
    settings["template_arguments"] =
        parse_bounded_json<ordered_json>(arguments_json(arguments), kJacobiDecodingFile);
  }
  publish_settings(directory, settings);
}

std::optional<std::int32_t> exported_block_size(const std::filesystem::path& directory) {
  const ordered_json settings = read_settings(directory);
  if (settings.is_null()) {
    return std::nullopt;
  }
  const auto found = settings.find("block_size");
  const bool whole = found != settings.end() && found->is_number_integer();
  const std::int64_t size = whole ? found->get<std::int64_t>() : 0;
  if (size < 1 || size > std::numeric_limits<std::int32_t>::max()) {
    throw unusable_settings(directory / kJacobiDecodingFile,
                            "block_size must be a whole number of at least 1");
  }
  return static_cast<std::int32_t>(size);
}

bool record_measured_decoding(const std::filesystem::path& directory, const ordered_json& entry,
                              std::optional<std::int32_t> block_size) {
  ordered_json settings = read_settings(directory);
  if (settings.is_null()) {
    return false;
  }
  if (block_size) {
    settings["block_size"] = *block_size;
  }
  ordered_json measured = ordered_json::array({entry});
  for (const ordered_json& earlier : settings.value("measured", ordered_json::array())) {
    const auto same = [&](const char* key) {
      return earlier.is_object() && earlier.value(key, ordered_json()) == entry.at(key);
    };
    if (!same("machine") || !same("batch_prompts")) {
      measured.push_back(earlier);
    }
  }
  settings["measured"] = std::move(measured);
  settings.erase(kSealKey);
  publish_settings(directory, settings);
  return true;
}

}  // namespace jforge
