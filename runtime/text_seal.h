#pragma once

/// Text records with a checksum of their own bytes, so that any flipped bit is found. The seal is
/// at the end and covers every byte before its 16 hex digits (XXH3-64):
///
///  - a JSON object's last member is "checksum": "0123456789abcdef";
///  - a TOML document's last line is # checksum: 0123456789abcdef.
///
/// A line of a log is a sealed JSON object. Readers accept unsealed text (foreign, or of an earlier
/// version), because a bit that hides the seal changes nothing else; verification reports it.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace jforge {

inline constexpr const char* kSealKey = "checksum";

enum class TextSeal : std::uint8_t {
  holds,
  absent,  ///< The end is not a seal.
  broken,  ///< The content differs from what was sealed.
};

/// Seals a compact or indented JSON object without "checksum"; keeps a final newline.
[[nodiscard]] std::string seal_json(std::string_view object);
/// Seals a TOML document that is empty or ends with a newline.
[[nodiscard]] std::string seal_toml(std::string_view document);

[[nodiscard]] TextSeal examine_seal(std::string_view text);

/// Throws DataError naming `name` if the seal is broken.
void refuse_broken_seal(std::string_view text, const std::string& name);

/// Throws DataError if the file is unreadable or its seal is broken; accepts unsealed text.
[[nodiscard]] std::string read_sealed(const std::filesystem::path& path);

/// Throws DataError unless the file has an intact seal.
std::string verify_sealed(const std::filesystem::path& path);
/// Checks every line of a log. A last line without newline, left by a kill, is not damage.
void verify_sealed_lines(const std::filesystem::path& path);

}  // namespace jforge
