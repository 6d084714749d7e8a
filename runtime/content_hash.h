#pragma once

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

/// 64-bit XXH3.
[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);
[[nodiscard]] std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0);
/// Returns XXH3's secret for inputs of more than 240 bytes, for other implementations of hash64.
[[nodiscard]] std::array<std::byte, 192> hash64_secret(std::uint64_t seed);
/// Throws as read_file(), naming the file.
[[nodiscard]] std::uint64_t hash_file(const std::filesystem::path& path);
/// hash64 (seed 0) of bytes that arrive in pieces.
class HashStream {
 public:
  /// Throws EnvironmentError if memory is exhausted.
  HashStream();
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t digest() const;

 private:
  struct Free {
    void operator()(void* state) const noexcept;
  };
  std::unique_ptr<void, Free> state_;
};
/// 16 lower-case hex digits.
[[nodiscard]] std::string hash_hex(std::uint64_t hash);
/// Inverts hash_hex(); returns nothing for any other text.
[[nodiscard]] std::optional<std::uint64_t> parse_hash_hex(std::string_view text);

}  // namespace jforge
