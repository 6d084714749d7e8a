#pragma once

/// TensorBoard event files with scalars: TFRecord frames (length and data, each with a masked
/// CRC-32C) of tensorflow.Event messages. An append log (ARCHITECTURE.md "Durability") with one
/// file per attempt; readers stop at a torn tail.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/append_log.h"

namespace jforge {

/// CRC-32C (Castagnoli).
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);
/// TFRecord's masking, so that a checksum can be checksummed.
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes);

/// Name of a curve ("train/loss") and its value.
using Scalar = std::pair<std::string, double>;

/// Not thread-safe.
class TensorboardLog {
 public:
  /// Creates directory/events.out.tfevents.SECONDS.HOST.ATTEMPT (the form that TensorBoard expects)
  /// with a version record and a session start at `first_step`, from which on TensorBoard drops
  /// values of earlier files. Throws EnvironmentError.
  TensorboardLog(const std::filesystem::path& directory, std::int64_t wall_seconds, int attempt,
                 std::int64_t first_step);

  /// Appends the scalars of `step`, including values that are not finite. Throws EnvironmentError.
  void append(std::int64_t step, double wall_seconds, std::span<const Scalar> scalars);
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  AppendLog log_;
};

}  // namespace jforge
