#include "data/hdf5/file_seal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "runtime/read_file.h"

namespace jforge {
namespace {

constexpr std::array<char, 8> kMagic{'J', 'F', 'S', 'E', 'A', 'L', '1', '\n'};
constexpr std::size_t kSealedFields = 24;
using SealBlock = std::array<char, kSealBytes>;

void store_u64(SealBlock& block, std::size_t offset, std::uint64_t value) {
  for (std::size_t i = 0; i < 8; ++i) {
    block[offset + i] = static_cast<char>((value >> (8 * i)) & 0xff);
  }
}

SealBlock make_seal(std::uint64_t file_bytes, std::uint64_t content_hash) {
  SealBlock block{};
  std::copy(kMagic.begin(), kMagic.end(), block.begin());
  store_u64(block, 8, file_bytes);
  store_u64(block, 16, content_hash);
  store_u64(block, kSealedFields, hash64(std::string_view(block.data(), kSealedFields)));
  return block;
}

std::uint64_t load_u64(const SealBlock& block, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(block[offset + i])} << (8 * i);
  }
  return value;
}

/// Returns the count of bytes read. Throws EnvironmentError if reading fails, because that says
/// nothing about the content.
std::size_t read_up_to(std::istream& file, char* bytes, std::size_t size,
                       const std::filesystem::path& path) {
  errno = 0;
  file.read(bytes, static_cast<std::streamsize>(size));
  if (file.bad()) {
    throw EnvironmentError(
        fmt::format("{}: cannot read it: {}", path.string(), std::strerror(errno)));
  }
  return static_cast<std::size_t>(file.gcount());
}

/// Returns XXH3-64 and count of the bytes after the seal.
std::pair<std::uint64_t, std::uint64_t> hash_content(std::istream& file,
                                                     const std::filesystem::path& path) {
  HashStream hash;
  std::vector<char> buffer(1 << 20);
  std::uint64_t total = 0;
  file.seekg(static_cast<std::streamoff>(kSealBytes));
  while (const std::size_t count = read_up_to(file, buffer.data(), buffer.size(), path)) {
    hash.update(std::as_bytes(std::span(buffer).first(count)));
    total += count;
    note_progress();
  }
  return {hash.digest(), total};
}

}  // namespace

void seal_file(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  if (!file) {
    throw EnvironmentError(
        fmt::format("{}: cannot open to seal it: {}", path.string(), std::strerror(errno)));
  }
  const auto [hash, content_bytes] = hash_content(file, path);
  file.clear();
  const SealBlock block = make_seal(content_bytes + kSealBytes, hash);
  file.seekp(0);
  file.write(block.data(), static_cast<std::streamsize>(block.size()));
  file.close();
  if (file.fail()) {
    throw EnvironmentError(
        fmt::format("{}: cannot write the seal: {}", path.string(), std::strerror(errno)));
  }
}

bool begins_with_seal(const std::filesystem::path& path) {
  std::array<char, kMagic.size()> first{};
  std::ifstream file(path, std::ios::binary);
  return file.read(first.data(), first.size()) && first == kMagic;
}

void check_seal(const std::filesystem::path& path, SealCheck check) {
  if (check == SealCheck::none) {
    return;
  }
  std::ifstream file = open_input(path);
  std::error_code error =
      file ? std::error_code() : std::error_code(errno, std::generic_category());
  const std::uint64_t file_bytes = error ? 0 : std::filesystem::file_size(path, error);
  if (error) {
    const std::string what = fmt::format("{}: cannot open: {}", path.string(), error.message());
    if (error == std::errc::no_such_file_or_directory) {
      throw DataError(what);
    }
    throw EnvironmentError(what);
  }
  SealBlock block{};
  const std::size_t sealed_bytes = read_up_to(file, block.data(), block.size(), path);
  if (sealed_bytes < block.size() || !std::equal(kMagic.begin(), kMagic.end(), block.begin())) {
    throw DataError(fmt::format(
        "{}: damaged: no seal at its start; delete it and let it be made again", path.string()));
  }
  const std::uint64_t sealed_hash = load_u64(block, 16);
  if (block != make_seal(load_u64(block, 8), sealed_hash)) {
    throw DataError(fmt::format(
        "{}: damaged: its seal does not hold; delete it and let it be made again", path.string()));
  }
  if (load_u64(block, 8) != file_bytes) {
    throw DataError(
        fmt::format("{}: damaged: {} bytes instead of {}; delete it and let it be made again",
                    path.string(), file_bytes, load_u64(block, 8)));
  }
  if (check == SealCheck::content) {
    if (hash_content(file, path).first != sealed_hash) {
      throw DataError(fmt::format(
          "{}: damaged: its checksum does not match; delete it and let it be made again",
          path.string()));
    }
  }
}

}  // namespace jforge
