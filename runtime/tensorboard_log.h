#pragma once

/// TensorBoard event files, scalars only: records framed as TFRecord (length and data, each with a
/// masked CRC-32C) that hold tensorflow.Event messages. An append log (ARCHITECTURE.md
/// "Durability"): one record per write, each attempt writes a file of its own, a reader stops at a
/// torn tail.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/append_log.h"

namespace jforge {

/// CRC-32C (Castagnoli) of bytes.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);
/// TFRecord's masking: a checksum that is itself checked stays a good checksum.
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes);

/// Name of a curve ("train/loss") and its value.
using Scalar = std::pair<std::string, double>;

/// One event file. Not thread-safe.
class TensorboardLog {
 public:
  /// Creates directory/events.out.tfevents.SECONDS.HOST.ATTEMPT (TensorBoard wants this form of
  /// name) and writes its version record, and a session's start at `first_step`: TensorBoard drops
  /// what earlier files of `directory` have from that step on, in any curve. Throws
  /// EnvironmentError.
  TensorboardLog(const std::filesystem::path& directory, std::int64_t wall_seconds, int attempt,
                 std::int64_t first_step);

  /// Appends one record with the scalars of `step`. Values that are not finite are written as they
  /// are: TensorBoard shows them. Throws EnvironmentError.
  void append(std::int64_t step, double wall_seconds, std::span<const Scalar> scalars);
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  AppendLog log_;
};

}  // namespace jforge
