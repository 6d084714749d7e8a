#include "runtime/content_hash.h"

#include <fcntl.h>

// For XXH3_generateSecret_fromSeed.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
// Uses the processor's widest vectors: three times the baseline's speed in cache.
#include <xxh_x86dispatch.h>

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

std::array<std::byte, 192> hash64_secret(std::uint64_t seed) {
  std::array<std::byte, 192> secret{};
  static_assert(secret.size() == XXH3_SECRET_DEFAULT_SIZE);
  XXH3_generateSecret_fromSeed(secret.data(), seed);
  return secret;
}

HashStream::HashStream() : state_(XXH3_createState()) {
  if (state_ == nullptr) {
    throw EnvironmentError("out of memory for a checksum");
  }
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void HashStream::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size());
}

std::uint64_t HashStream::digest() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
}

void HashStream::Free::operator()(void* state) const noexcept {
  XXH3_freeState(static_cast<XXH3_state_t*>(state));
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
  HashStream hash;
  read_chunks(path, file.get(),
              [&](std::string_view chunk) { hash.update(std::as_bytes(std::span(chunk))); });
  return hash.digest();
}

std::optional<std::uint64_t> parse_hash_hex(std::string_view text) {
  constexpr std::size_t kDigits = 16;
  std::uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  // from_chars also takes capital letters and fewer digits.
  return text.size() == kDigits && error == std::errc() && hash_hex(hash) == text
             ? std::optional(hash)
             : std::nullopt;
}

}  // namespace jforge
