#include "data/tokenizer/unpacked_file.h"

#include <bzlib.h>
#include <fmt/core.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "runtime/contained_file.h"
#include "runtime/error.h"
#include "runtime/read_file.h"

namespace jforge {

class Unpacker {
 public:
  /// `bytes`: the first kMarkBytes or fewer.
  using Mark = bool (*)(std::span<const unsigned char> bytes);
  struct Step {
    std::size_t taken = 0;  ///< Input bytes.
    std::size_t made = 0;   ///< Output bytes.
    bool ended = false;
    std::string damage;  ///< Empty if there is none.
  };

  Unpacker(const char* format, Mark mark) : name(format), begins_member(mark) {}
  virtual ~Unpacker() = default;
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  /// Continues a member or begins the next.
  [[nodiscard]] virtual Step step(std::span<const unsigned char> in, std::span<char> out) = 0;

  const char* const name;
  const Mark begins_member;
};

namespace {

constexpr std::size_t kPacked = std::size_t{1} << 18;
constexpr std::size_t kMarkBytes = 5;
constexpr int kGzipWindow = 15 + 16;  // Largest window; gzip only.

unsigned bounded_size(std::size_t size) {
  return static_cast<unsigned>(std::min<std::size_t>(size, std::numeric_limits<unsigned>::max()));
}

[[noreturn]] void refuse_memory(const char* name) {
  throw EnvironmentError(fmt::format("no memory to unpack {} data", name));
}

class GzipUnpacker final : public Unpacker {
 public:
  static bool mark(std::span<const unsigned char> bytes) {
    return bytes.size() >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B;
  }

  GzipUnpacker() : Unpacker("gzip", mark) {
    if (inflateInit2(&stream_, kGzipWindow) != Z_OK) {
      refuse_memory(name);
    }
  }
  ~GzipUnpacker() override { inflateEnd(&stream_); }
  GzipUnpacker(const GzipUnpacker&) = delete;
  GzipUnpacker& operator=(const GzipUnpacker&) = delete;

  Step step(std::span<const unsigned char> in, std::span<char> out) override {
    const unsigned in_size = bounded_size(in.size());
    const unsigned out_size = bounded_size(out.size());
    stream_.next_in = const_cast<Bytef*>(in.data());
    stream_.avail_in = in_size;
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = out_size;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    Step step{in_size - stream_.avail_in, out_size - stream_.avail_out, code == Z_STREAM_END, {}};
    if (step.ended) {
      inflateReset(&stream_);
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      step.damage = stream_.msg != nullptr ? stream_.msg : zError(code);
    }
    return step;
  }

 private:
  z_stream stream_{};
};

class Bzip2Unpacker final : public Unpacker {
 public:
  static bool mark(std::span<const unsigned char> bytes) {
    // "BZh", block size, then a block or the end.
    return bytes.size() >= kMarkBytes && bytes[0] == 'B' && bytes[1] == 'Z' && bytes[2] == 'h' &&
           bytes[3] >= '1' && bytes[3] <= '9' && (bytes[4] == 0x31 || bytes[4] == 0x17);
  }

  Bzip2Unpacker() : Unpacker("bzip2", mark) { begin(); }
  ~Bzip2Unpacker() override { BZ2_bzDecompressEnd(&stream_); }
  Bzip2Unpacker(const Bzip2Unpacker&) = delete;
  Bzip2Unpacker& operator=(const Bzip2Unpacker&) = delete;

  Step step(std::span<const unsigned char> in, std::span<char> out) override {
    const unsigned in_size = bounded_size(in.size());
    const unsigned out_size = bounded_size(out.size());
    stream_.next_in = reinterpret_cast<char*>(const_cast<unsigned char*>(in.data()));
    stream_.avail_in = in_size;
    stream_.next_out = out.data();
    stream_.avail_out = out_size;
    const int code = BZ2_bzDecompress(&stream_);
    Step step{in_size - stream_.avail_in, out_size - stream_.avail_out, code == BZ_STREAM_END, {}};
    if (step.ended) {
      BZ2_bzDecompressEnd(&stream_);
      begin();
    } else if (code == BZ_MEM_ERROR) {
      refuse_memory(name);
    } else if (code != BZ_OK) {
      step.damage = code == BZ_DATA_ERROR ? "incorrect data check" : "incorrect header check";
    }
    return step;
  }

 private:
  void begin() {
    stream_ = {};
    if (BZ2_bzDecompressInit(&stream_, 0, 0) != BZ_OK) {
      refuse_memory(name);
    }
  }

  bz_stream stream_{};
};

class ZstdUnpacker final : public Unpacker {
 public:
  static bool mark(std::span<const unsigned char> bytes) {
    const auto begins = [&](unsigned char first, std::string_view rest) {
      return bytes.size() >= 4 && bytes[0] == first &&
             std::equal(rest.begin(), rest.end(), bytes.begin() + 1,
                        [](char a, unsigned char b) { return static_cast<unsigned char>(a) == b; });
    };
    if (begins(0x28, "\xB5\x2F\xFD")) {
      return true;
    }
    // pzstd begins with a skippable frame.
    return !bytes.empty() && bytes[0] >= 0x50 && bytes[0] <= 0x5F &&
           begins(bytes[0], "\x2A\x4D\x18");
  }

  ZstdUnpacker() : Unpacker("Zstandard", mark), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (!stream_) {
      refuse_memory(name);
    }
  }

  Step step(std::span<const unsigned char> in, std::span<char> out) override {
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const std::size_t code = ZSTD_decompressStream(stream_.get(), &output, &input);
    Step step{input.pos, output.pos, code == 0, {}};
    if (ZSTD_isError(code) != 0) {
      step.damage = ZSTD_getErrorName(code);
    }
    return step;
  }

 private:
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream_;
};

std::unique_ptr<Unpacker> unpacker_of(std::span<const unsigned char> bytes) {
  if (GzipUnpacker::mark(bytes)) {
    return std::make_unique<GzipUnpacker>();
  }
  if (Bzip2Unpacker::mark(bytes)) {
    return std::make_unique<Bzip2Unpacker>();
  }
  return ZstdUnpacker::mark(bytes) ? std::make_unique<ZstdUnpacker>() : nullptr;
}

}  // namespace

UnpackedFile::UnpackedFile(const std::filesystem::path& path)
    : path_(path.string()), file_(nullptr, std::fclose), packed_(kPacked) {
  refuse_special_file(path);
  file_.reset(std::fopen(path.c_str(), "rb"));
  if (!file_) {
    fail("cannot open");
  }
  unpacker_ = unpacker_of(ahead(kMarkBytes));
  in_member_ = is_packed();
}

UnpackedFile::~UnpackedFile() = default;

void UnpackedFile::fail(std::string_view what) const {
  const int error_number = errno;
  throw_read_failure(error_number,
                     fmt::format("{}: {}: {}", path_, what, std::strerror(error_number)));
}

void UnpackedFile::refuse(std::string_view what) const {
  throw DataError(fmt::format("{}: cannot be read further: {} at byte {}: copy the file again",
                              path_, what, earlier_ + static_cast<std::int64_t>(at_)));
}

std::span<const unsigned char> UnpackedFile::ahead(std::size_t need) {
  if (end_ - at_ < need) {
    std::copy(packed_.data() + at_, packed_.data() + end_, packed_.data());
    earlier_ += static_cast<std::int64_t>(at_);
    end_ -= at_;
    at_ = 0;
    end_ += std::fread(packed_.data() + end_, 1, packed_.size() - end_, file_.get());
    if (std::ferror(file_.get()) != 0) {
      fail("cannot be read further");
    }
  }
  return {packed_.data() + at_, end_ - at_};
}

std::size_t UnpackedFile::read(std::span<char> out) {
  if (is_packed()) {
    return read_packed(out);
  }
  const auto bytes = ahead(1);
  const std::size_t count = std::min(out.size(), bytes.size());
  std::copy_n(bytes.data(), count, out.data());
  at_ += count;
  return count;
}

std::size_t UnpackedFile::read_packed(std::span<char> out) {
  std::size_t made = 0;
  while (in_member_ && made == 0) {
    const auto bytes = ahead(1);
    // Even without input: output may wait in the decoder.
    const Unpacker::Step step = unpacker_->step(bytes, out);
    at_ += step.taken;
    made = step.made;
    if (!step.damage.empty()) {
      refuse(fmt::format("the {} data is damaged ({})", unpacker_->name, step.damage));
    }
    if (step.ended) {
      next_member();
    } else if (bytes.empty() && made == 0) {
      refuse(fmt::format("the {} data is cut short", unpacker_->name));
    }
  }
  return made;
}

void UnpackedFile::next_member() {
  in_member_ = unpacker_->begins_member(ahead(kMarkBytes));
  while (!in_member_ && !ahead(1).empty()) {
    if (packed_[at_] != 0) {
      refuse(fmt::format("there are other bytes after the {} data", unpacker_->name));
    }
    ++at_;
  }
}

}  // namespace jforge
