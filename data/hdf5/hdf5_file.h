#pragma once

/// HDF5 files of one-dimensional datasets and attributes: earliest format bounds, little-endian
/// types, Fletcher-32 chunks and, unless a manifest holds their checksum, a seal. File locking is
/// off, because files have one writer and are read only after publication. Every call takes
/// hdf5_lock(); objects are not thread-safe.

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
  /// Shuffle, deflate and smaller chunks, for numbers far below their type's range.
  compressed,
};

inline constexpr std::uint64_t kReservedAlignment = 4096;  ///< For direct I/O.

/// Writes one file, which is valid only after close().
class Hdf5Writer {
 public:
  /// Creates or replaces `path`. With `sealed`, close() reads the file back once and seals it;
  /// otherwise the caller records size and checksum. All methods throw EnvironmentError if I/O
  /// fails.
  explicit Hdf5Writer(const std::filesystem::path& path, bool sealed = true,
                      Hdf5Storage storage = Hdf5Storage::plain);

  template <Hdf5Element T>
  void write(const std::string& dataset, std::span<const T> values);
  template <Hdf5Element T>
  void write(const std::string& dataset, const std::vector<T>& values) {
    write(dataset, std::span<const T>(values));
  }
  /// Creates a dataset to be filled by write_slice().
  template <Hdf5Element T>
  void create(const std::string& dataset, std::int64_t count);
  /// Fills elements [offset, offset + values.size()).
  template <Hdf5Element T>
  void write_slice(const std::string& dataset, std::int64_t offset, std::span<const T> values);

  /// Creates a contiguous dataset without checksum, which the caller fills after close(). Returns
  /// its byte offset in the file, a multiple of kReservedAlignment for datasets of at least that
  /// size. Requires: an unsealed file, `count` ≥ 1.
  template <Hdf5Element T>
  [[nodiscard]] std::uint64_t reserve(const std::string& dataset, std::int64_t count);

  /// Adds an attribute. Text has at most 60,000 bytes and no NUL.
  void attribute(const std::string& name, std::string_view text);
  void attribute(const std::string& name, std::int64_t value);

  /// Flushes, closes and seals; does not sync.
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

/// Reads one file. Throws DataError, or EnvironmentError if a system call failed. Rejects datasets
/// that Hdf5Writer could not have made: a seal proves integrity, not good intent, and HDF5 would
/// follow links, external or virtual storage and filter plug-ins to other files and programs.
class Hdf5Reader {
 public:
  /// Checks the seal. Waits for a missing file up to `wait_seconds`, by default
  /// publication_wait_seconds(path) (runtime/read_file.h).
  explicit Hdf5Reader(const std::filesystem::path& path, SealCheck check = SealCheck::content,
                      std::optional<double> wait_seconds = std::nullopt);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool has(const std::string& dataset) const;
  /// Throws DataError if the dataset is missing, not one-dimensional or incompletely stored.
  [[nodiscard]] std::int64_t size(const std::string& dataset) const;
  /// Throws DataError if the dataset's type is not T.
  template <Hdf5Element T>
  [[nodiscard]] std::vector<T> read(const std::string& dataset) const;
  /// Reads elements [offset, offset + out.size()).
  template <Hdf5Element T>
  void read_slice(const std::string& dataset, std::int64_t offset, std::span<T> out) const;

  /// Returns the byte offset of a dataset made by Hdf5Writer::reserve(). Throws DataError unless it
  /// has `count` elements of type T inside the file.
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
