#pragma once

/// Text records that carry a checksum over their own bytes, so that a flipped bit is found wherever
/// it is. The seal stands at the end and covers every byte before its 16 hex digits (XXH3-64):
///
///  - a JSON object's last member is "checksum": "0123456789abcdef";
///  - a TOML document's last line is # checksum: 0123456789abcdef.
///
/// A line of a log is sealed as the JSON object that it is. A text without a seal is none of ours
/// or of an earlier version: readers take it, since a bit that hides the seal changes nothing else,
/// and verification names it.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace jforge {

/// The member of a sealed JSON object.
inline constexpr const char* kSealKey = "checksum";

/// How a text stands to its seal.
enum class TextSeal : std::uint8_t {
  holds,
  absent,  ///< Its end is not that of a sealed text.
  broken,  ///< Its bytes are not those that were sealed.
};

/// The text of a JSON object without a member "checksum", compact or indented, sealed; a newline at
/// its end stays.
[[nodiscard]] std::string seal_json(std::string_view object);
/// A TOML document (empty, or with a newline at its end), sealed.
[[nodiscard]] std::string seal_toml(std::string_view document);

[[nodiscard]] TextSeal examine_seal(std::string_view text);

/// Throws DataError naming the text's file unless its seal holds or is absent.
void refuse_broken_seal(std::string_view text, const std::string& name);

/// The whole file. Throws DataError naming it when it cannot be read or its seal is broken; a text
/// without a seal passes.
[[nodiscard]] std::string read_sealed(const std::filesystem::path& path);

/// The whole file. Throws DataError naming it unless it is sealed and whole.
std::string verify_sealed(const std::filesystem::path& path);
/// The same check for every line of a log, naming the line. A last line without its newline is what
/// a kill in the middle of a write leaves: no damage.
void verify_sealed_lines(const std::filesystem::path& path);

}  // namespace jforge
