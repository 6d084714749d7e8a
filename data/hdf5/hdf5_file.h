#pragma once

/// HDF5 files of one-dimensional datasets and attributes. Files have the earliest format bounds,
/// little-endian types, Fletcher-32 chunks and, unless a manifest holds their checksum, a seal.
/// File locking is off: one writer per file, readers only after publication. Every call takes
/// hdf5_lock(); an object must not be used from two threads at once.

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

template <typename T>
concept Hdf5Element = std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t> ||
    std::same_as<T, float> || std::same_as<T, std::uint8_t>;

enum class Hdf5Storage : std::uint8_t {
  plain,
  /// Shuffle and deflate, for numbers far below their type's range. Chunks are smaller, so that
  /// reading a few elements inflates little.
  compressed,
};

inline constexpr std::uint64_t kReservedAlignment = 4096;  ///< For direct I/O.

/// Writes one file. The file is valid, and sealed, only after close() returns.
class Hdf5Writer {
 public:
  /// Creates or replaces `path`. If `sealed`, close() reads the file back once and seals it;
  /// otherwise the caller records size and checksum. Throws EnvironmentError if the file cannot be
  /// created.
  explicit Hdf5Writer(const std::filesystem::path& path, bool sealed = true,
                      Hdf5Storage storage = Hdf5Storage::plain);

  /// Writes a whole dataset. Throws EnvironmentError naming file and dataset.
  template <Hdf5Element T>
  void write(const std::string& dataset, std::span<const T> values);
  template <Hdf5Element T>
  void write(const std::string& dataset, const std::vector<T>& values) {
    write(dataset, std::span<const T>(values));
  }
  /// Creates a dataset of `count` elements, to be filled by write_slice().
  template <Hdf5Element T>
  void create(const std::string& dataset, std::int64_t count);
  /// Fills elements [offset, offset + values.size()) of a dataset made by create().
  template <Hdf5Element T>
  void write_slice(const std::string& dataset, std::int64_t offset, std::span<const T> values);

  /// Creates a contiguous dataset without checksum of `count` ≥ 1 elements, which the caller fills
  /// after close(). Returns its offset in the file in bytes, a multiple of kReservedAlignment for
  /// datasets of at least that size. Requires: an unsealed file.
  template <Hdf5Element T>
  [[nodiscard]] std::uint64_t reserve(const std::string& dataset, std::int64_t count);

  /// Adds an attribute to the file. Text has at most 60,000 bytes and no NUL.
  void attribute(const std::string& name, std::string_view text);
  void attribute(const std::string& name, std::int64_t value);

  /// Flushes, closes and seals, but does not sync. Throws EnvironmentError on any failure.
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

/// Reads one file. Throws DataError naming file and dataset, or EnvironmentError if a system call
/// failed. Accepts only datasets that Hdf5Writer could have made, because a seal proves integrity,
/// not good intent: HDF5 would follow links, external or virtual storage and filter plug-ins to
/// other files and programs.
class Hdf5Reader {
 public:
  /// Opens `path` after checking its seal. If the file is missing, waits for it for `wait_seconds`,
  /// by default publication_wait_seconds(path) (runtime/read_file.h).
  explicit Hdf5Reader(const std::filesystem::path& path, SealCheck check = SealCheck::content,
                      std::optional<double> wait_seconds = std::nullopt);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool has(const std::string& dataset) const;
  /// Returns the number of elements. Throws DataError if the dataset is missing, not
  /// one-dimensional or incompletely stored.
  [[nodiscard]] std::int64_t size(const std::string& dataset) const;
  /// Reads a whole dataset. Throws DataError if its type is not T.
  template <Hdf5Element T>
  [[nodiscard]] std::vector<T> read(const std::string& dataset) const;
  /// Reads elements [offset, offset + out.size()).
  template <Hdf5Element T>
  void read_slice(const std::string& dataset, std::int64_t offset, std::span<T> out) const;

  /// Returns the offset in bytes of a dataset made by Hdf5Writer::reserve. Throws DataError if it
  /// is of another kind, does not have `count` elements of type T, or ends after the file's end.
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
