#include "data/tokenizer/unpacked_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "runtime/contained_file.h"
#include "runtime/error.h"
#include "runtime/read_file.h"

namespace jforge {
namespace {

constexpr std::size_t kPacked = std::size_t{1} << 18;
constexpr int kGzipWindow = 15 + 16;  // the largest window; 16: gzip and nothing else

}  // namespace

UnpackedFile::UnpackedFile(const std::filesystem::path& path)
    : path_(path.string()), packed_(kPacked) {
  refuse_special_file(path);
  file_ = std::fopen(path.c_str(), "rb");
  if (file_ == nullptr) {
    fail("cannot open");
  }
  try {
    gzip_ = begins_member();
    if (gzip_ && inflateInit2(&stream_, kGzipWindow) != Z_OK) {
      throw EnvironmentError(fmt::format("{}: no memory to unpack it", path_));
    }
    in_member_ = gzip_;
  } catch (...) {
    std::fclose(file_);
    throw;
  }
}

UnpackedFile::~UnpackedFile() {
  if (gzip_) {
    inflateEnd(&stream_);
  }
  std::fclose(file_);
}

bool UnpackedFile::begins_member() {
  return fill(2) && packed_[at_] == 0x1F && packed_[at_ + 1] == 0x8B;
}

void UnpackedFile::fail(std::string_view what) const {
  const int error_number = errno;
  throw_read_failure(error_number,
                     fmt::format("{}: {}: {}", path_, what, std::strerror(error_number)));
}

void UnpackedFile::refuse(std::string_view what) const {
  throw DataError(fmt::format("{}: cannot be read further: {} at byte {}: copy the file again",
                              path_, what, earlier_ + static_cast<std::int64_t>(at_)));
}

bool UnpackedFile::fill(std::size_t need) {
  if (end_ - at_ >= need) {
    return true;
  }
  std::copy(packed_.data() + at_, packed_.data() + end_, packed_.data());
  earlier_ += static_cast<std::int64_t>(at_);
  end_ -= at_;
  at_ = 0;
  end_ += std::fread(packed_.data() + end_, 1, packed_.size() - end_, file_);
  if (std::ferror(file_) != 0) {
    fail("cannot be read further");
  }
  return end_ >= need;
}

std::size_t UnpackedFile::read(std::span<char> out) {
  if (gzip_) {
    return read_gzip(out);
  }
  const std::size_t count = fill(1) ? std::min(out.size(), end_ - at_) : 0;
  std::copy_n(packed_.data() + at_, count, out.data());
  at_ += count;
  return count;
}

std::size_t UnpackedFile::read_gzip(std::span<char> out) {
  const std::size_t size =
      std::min(out.size(), static_cast<std::size_t>(std::numeric_limits<uInt>::max()));
  stream_.next_out = reinterpret_cast<Bytef*>(out.data());
  stream_.avail_out = static_cast<uInt>(size);
  while (in_member_ && stream_.avail_out == size) {
    if (!fill(1)) {
      refuse("the gzip data is cut short");
    }
    stream_.next_in = packed_.data() + at_;
    stream_.avail_in = static_cast<uInt>(end_ - at_);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    at_ = end_ - stream_.avail_in;
    if (code == Z_STREAM_END) {
      next_member();
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      refuse(fmt::format("the gzip data is damaged ({})",
                         stream_.msg != nullptr ? stream_.msg : zError(code)));
    }
  }
  return size - stream_.avail_out;
}

void UnpackedFile::next_member() {
  in_member_ = begins_member();
  if (in_member_) {
    inflateReset(&stream_);
    return;
  }
  for (; fill(1); ++at_) {
    if (packed_[at_] != 0) {
      refuse("there are bytes behind the gzip data that are none");
    }
  }
}

}  // namespace jforge
