#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace jforge::test {

/// Writes a file and creates the directories above it.
inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace jforge::test
