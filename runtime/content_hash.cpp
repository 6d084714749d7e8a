#include "runtime/content_hash.h"

#include <fcntl.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <charconv>
#include <memory>
#include <system_error>

#include "runtime/contained_file.h"
#include "runtime/error.h"
#include "runtime/file_descriptor_internal.h"
#include "runtime/read_file.h"

namespace jforge {

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t hash64(std::string_view text, std::uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

std::string hash_hex(std::uint64_t hash) {
  std::string text(16, '0');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[text.size() - 1 - i] = "0123456789abcdef"[(hash >> (4 * i)) & 0xF];
  }
  return text;
}

std::uint64_t hash_file(const std::filesystem::path& path) {
  refuse_special_file(path);
  Descriptor file(open_retrying(path, O_RDONLY));
  if (file.get() < 0) {
    throw_unopened(path, errno);
  }
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (state == nullptr) {
    throw EnvironmentError("out of memory while hashing " + path.string());
  }
  XXH3_64bits_reset(state.get());
  read_chunks(path, file.get(), [&](std::string_view chunk) {
    XXH3_64bits_update(state.get(), chunk.data(), chunk.size());
  });
  return XXH3_64bits_digest(state.get());
}

std::optional<std::uint64_t> parse_hash_hex(std::string_view text) {
  constexpr std::size_t kDigits = 16;
  std::uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  // from_chars takes capital letters too, and fewer digits.
  return text.size() == kDigits && error == std::errc() && hash_hex(hash) == text
             ? std::optional(hash)
             : std::nullopt;
}

}  // namespace jforge
