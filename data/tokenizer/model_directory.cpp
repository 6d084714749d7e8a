#include "data/tokenizer/model_directory.h"

#include <fmt/format.h>

#include <regex>
#include <system_error>

#include "runtime/error.h"

namespace jforge {

void expect_model_directory(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) {
    return;
  }
  if (std::filesystem::exists(status)) {
    throw DataError(fmt::format(
        "{}: a file; name the Hugging Face directory that holds config.json and the tokenizer",
        path.string()));
  }
  static const std::regex hub_name(R"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)");
  if (std::regex_match(path.string(), hub_name)) {
    throw DataError(fmt::format(
        "{0}: no such directory. If that is a name on the Hugging Face hub, download it first: "
        "hf download {0} --local-dir models/{1}, and name models/{1}",
        path.string(), path.filename().string()));
  }
  throw DataError(fmt::format("{}: no such directory", path.string()));
}

}  // namespace jforge
