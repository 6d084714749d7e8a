#pragma once

/// HDF5 files of flat one-dimensional datasets and attributes: all that our formats need. Files
/// have the earliest format bounds, little-endian types, chunks with a Fletcher-32 checksum, and
/// (unless another record vouches for them) a seal over the whole file. File locking is off: one
/// writer per file, readers only after publication. Every call takes hdf5_lock(); an object itself
/// must not be used from two threads at once.

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/hdf5/file_seal.h"
#include "data/hdf5/hdf5_handles.h"

namespace jforge {

/// Element types of our datasets.
template <typename T>
concept Hdf5Element = std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t> ||
    std::same_as<T, float> || std::same_as<T, std::uint8_t>;

/// How a writer stores the elements of its datasets.
enum class Hdf5Storage : std::uint8_t {
  plain,
  /// Bytes of equal weight together (shuffle), then deflate: for files of numbers much below their
  /// type's range. Chunks are smaller, so that reading a few elements inflates little.
  compressed,
};

/// Of datasets that are reserved: direct transfers to a disk need it.
inline constexpr std::uint64_t kReservedAlignment = 4096;

/// Writes one file. Nothing is promised until close() returns; an object destroyed before that
/// leaves an unsealed file, which no reader accepts.
class Hdf5Writer {
 public:
  /// Creates or replaces `path`. With `sealed`, close() seals the file (it is read back once);
  /// without, the caller keeps size and checksum elsewhere. EnvironmentError when it cannot be
  /// created.
  explicit Hdf5Writer(const std::filesystem::path& path, bool sealed = true,
                      Hdf5Storage storage = Hdf5Storage::plain);

  /// Writes a whole dataset, in slices of at most 16 MiB. EnvironmentError naming file and dataset.
  template <Hdf5Element T>
  void write(const std::string& dataset, std::span<const T> values);
  template <Hdf5Element T>
  void write(const std::string& dataset, const std::vector<T>& values) {
    write(dataset, std::span<const T>(values));
  }
  /// Creates a dataset of `count` elements, to be filled with write_slice.
  template <Hdf5Element T>
  void create(const std::string& dataset, std::int64_t count);
  /// Fills elements [offset, offset + values.size()) of a dataset made with create().
  template <Hdf5Element T>
  void write_slice(const std::string& dataset, std::int64_t offset, std::span<const T> values);

  /// Creates a dataset of `count` ≥ 1 elements that the caller fills once the file is closed: one
  /// run of bytes without checksums. Returns where it begins, bytes from the start of the file, a
  /// multiple of kReservedAlignment when it is as large. Unsealed files only.
  template <Hdf5Element T>
  [[nodiscard]] std::uint64_t reserve(const std::string& dataset, std::int64_t count);

  /// Text and integer attributes of the file. Text is at most 60,000 bytes and holds no NUL.
  void attribute(const std::string& name, std::string_view text);
  void attribute(const std::string& name, std::int64_t value);

  /// Flushes, closes, seals. The file is not yet synced to disk. EnvironmentError when anything
  /// fails.
  void close();

 private:
  [[nodiscard]] Hdf5Place place(std::string_view object = {}) const {
    return {path_, object, true};
  }

  std::filesystem::path path_;
  bool sealed_;
  Hdf5Storage storage_;
  Hdf5Handle file_;
};

/// Reads one file. Every failure is a DataError naming file and dataset. Before anything of a
/// dataset is read it is checked to be one that Hdf5Writer could have made: a seal proves a file
/// whole, not well-meant, and HDF5 would follow soft, external and user-defined links, external and
/// virtual storage and filters to other files and programs. Those are refused; of filters the
/// writer's alone are taken.
class Hdf5Reader {
 public:
  /// Opens `path` after checking its seal as asked. A file that is not there yet is waited for:
  /// `wait_seconds`, or publication_wait_seconds(path) (runtime/read_file.h).
  explicit Hdf5Reader(const std::filesystem::path& path, SealCheck check = SealCheck::content,
                      std::optional<double> wait_seconds = std::nullopt);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool has(const std::string& dataset) const;
  /// Elements of a dataset. DataError when it is missing, not one-dimensional, or holds less data
  /// than its extent says.
  [[nodiscard]] std::int64_t size(const std::string& dataset) const;
  /// A whole dataset; DataError when its type is not T.
  template <Hdf5Element T>
  [[nodiscard]] std::vector<T> read(const std::string& dataset) const;
  /// Elements [offset, offset + out.size()) of a dataset, in slices of at most 16 MiB.
  template <Hdf5Element T>
  void read_slice(const std::string& dataset, std::int64_t offset, std::span<T> out) const;

  /// Where a dataset made with Hdf5Writer::reserve begins, bytes from the start of the file.
  /// DataError when it is none, does not have `count` elements of type T, or ends behind the file's
  /// end.
  template <Hdf5Element T>
  [[nodiscard]] std::uint64_t locate(const std::string& dataset, std::int64_t count) const;

  [[nodiscard]] std::string text_attribute(const std::string& name) const;
  [[nodiscard]] std::int64_t integer_attribute(const std::string& name) const;

 private:
  [[nodiscard]] Hdf5Place place(std::string_view object = {}) const {
    return {path_, object, false};
  }
  [[nodiscard]] Hdf5Handle open_link(const std::string& dataset) const;
  [[nodiscard]] Hdf5Handle open_dataset(const std::string& dataset) const;
  void check_storage(const Hdf5Handle& source, const std::string& dataset) const;
  [[noreturn]] void refuse(const std::string& dataset, std::string_view what) const;

  std::filesystem::path path_;
  Hdf5Handle file_;
};

}  // namespace jforge
