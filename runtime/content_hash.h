#pragma once

/// The hash of everything that is checked or compared by its content.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace jforge {

/// 64-bit XXH3 of bytes.
[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);
[[nodiscard]] std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0);
/// What XXH3 mixes inputs of more than 240 bytes with for a seed: for those who compute hash64
/// elsewhere.
[[nodiscard]] std::array<std::byte, 192> hash64_secret(std::uint64_t seed);
/// Of a file's bytes. Throws as read_file(), naming it.
[[nodiscard]] std::uint64_t hash_file(const std::filesystem::path& path);
/// hash64 (seed 0) of bytes that come in pieces.
class HashStream {
 public:
  /// Throws EnvironmentError when there is no memory for its state (some hundred bytes).
  HashStream();
  void update(std::span<const std::byte> bytes);
  /// Of all bytes so far.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  struct Free {
    void operator()(void* state) const noexcept;
  };
  std::unique_ptr<void, Free> state_;
};
/// A hash as files and messages have it: 16 lower-case hex digits.
[[nodiscard]] std::string hash_hex(std::uint64_t hash);
/// The hash of which `text` is the hash_hex; nothing when it is of none.
[[nodiscard]] std::optional<std::uint64_t> parse_hash_hex(std::string_view text);

}  // namespace jforge
