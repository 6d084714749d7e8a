#include "data/tokenizer/model_directory.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <regex>
#include <string>
#include <system_error>

#include "runtime/error.h"

namespace jforge {

namespace {
namespace fs = std::filesystem;

/// Returns a revision in one model's folder of the hub's cache, or an empty path.
fs::path snapshot_in(const fs::path& model) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model / "snapshots", error)) {
    if (fs::exists(entry.path() / "config.json", error)) {
      return entry.path();
    }
  }
  return {};
}

/// Returns the folder checkpoint-N with the highest N, or an empty path.
fs::path newest_trainer_checkpoint(const fs::path& directory) {
  constexpr std::string_view kPrefix = "checkpoint-";
  std::error_code error;
  fs::path newest;
  std::int64_t most = -1;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    std::int64_t step = 0;
    if (!name.starts_with(kPrefix) || !fs::exists(entry.path() / "config.json", error)) {
      continue;
    }
    const char* const end = name.data() + name.size();
    const auto [last, problem] = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (problem == std::errc() && last == end && step > most) {
      most = step;
      newest = entry.path();
    }
  }
  return newest;
}

/// Throws DataError with a hint if `directory` is something other than a model.
void expect_nothing_else(const fs::path& directory) {
  const auto cached = [&](const fs::path& model) {
    if (const fs::path snapshot = snapshot_in(model); !snapshot.empty()) {
      throw DataError(
          fmt::format("{}: a folder of the Hugging Face cache; name the files of a "
                      "revision in it: {}",
                      directory.string(), snapshot.string()));
    }
  };
  cached(directory);
  std::error_code error;
  const auto holds = [&](const char* name) { return fs::exists(directory / name, error); };
  if (holds("model/config.json")) {
    throw DataError(fmt::format("{}: holds no model itself; name the one in it, {}",
                                directory.string(), (directory / "model").string()));
  }
  if (holds("resolved_config.toml")) {
    throw DataError(
        fmt::format("{}: a run that has not exported its model yet; a checkpoint of it "
                    "becomes one by: jforge export {}/NAME OUT",
                    directory.string(), (directory / "checkpoints").string()));
  }
  if (holds("manifest.json")) {
    throw DataError(fmt::format("{0}: a checkpoint; it becomes a model by: jforge export {0} OUT",
                                directory.string()));
  }
  if (const fs::path newest = newest_trainer_checkpoint(directory); !newest.empty()) {
    throw DataError(
        fmt::format("{}: holds a trainer's checkpoints; name one of them, the newest is {}",
                    directory.string(), newest.string()));
  }
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().filename().string().starts_with("models--")) {
      cached(entry.path());
    }
    if (entry.path().extension() == ".gguf") {
      throw DataError(fmt::format(
          "{}: holds GGUF files, which are not read; name the Hugging Face directory that they "
          "were made from, with config.json, a tokenizer and safetensors",
          directory.string()));
    }
  }
}
}  // namespace

void expect_no_lfs_pointer(const fs::path& file, std::string_view bytes) {
  if (bytes.starts_with("version https://git-lfs.github.com/")) {
    throw DataError(fmt::format(
        "{}: a Git LFS pointer, not the file itself; install git-lfs and run: git -C {} lfs pull",
        file.string(), file.parent_path().string()));
  }
}

void expect_no_adapter(const fs::path& directory) {
  if (std::error_code error; fs::exists(directory / "adapter_config.json", error)) {
    throw DataError(fmt::format(
        "{}: holds a PEFT adapter (adapter_config.json), which is not applied; merge it into its "
        "model (merge_and_unload of peft, then save_pretrained) and name that directory",
        directory.string()));
  }
}

void expect_model_directory(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) {
    const auto holds = [&](const char* name) { return fs::exists(path / name, error); };
    if (!holds("config.json") && !holds("tokenizer.json") && !holds("tokenizer_config.json")) {
      expect_nothing_else(path);
      expect_no_adapter(path);
    }
    return;
  }
  if (fs::exists(status)) {
    throw DataError(fmt::format(
        "{}: a file; name the Hugging Face directory that holds config.json and the tokenizer",
        path.string()));
  }
  static const std::regex hub_name(R"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)");
  if (std::regex_match(path.string(), hub_name)) {
    // "models" is the documents' example directory, not an owner.
    const std::string owner = path.parent_path().string();
    throw DataError(fmt::format(
        "{0}: no such directory. If that is a model of the Hugging Face hub, download it first: "
        "hf download {1}/{2} --local-dir models/{2}, and name models/{2}",
        path.string(), owner == "models" ? "OWNER" : owner, path.filename().string()));
  }
  throw DataError(fmt::format("{}: no such directory", path.string()));
}

}  // namespace jforge
