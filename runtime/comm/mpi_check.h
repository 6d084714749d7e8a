#pragma once

/// Private to runtime/comm: what every MPI call goes through.

#include <mpi.h>

#include <cstddef>
#include <source_location>

namespace jforge::detail {

/// Throws CommError with MPI's own text and the caller's place unless `code` is MPI_SUCCESS.
void check(int code, std::source_location where = std::source_location::current());

/// An MPI type that describes `bytes` consecutive bytes, also beyond the 2^31 that an int count
/// reaches.
class ByteRun {
 public:
  explicit ByteRun(std::size_t bytes);
  ~ByteRun();
  ByteRun(const ByteRun&) = delete;
  ByteRun& operator=(const ByteRun&) = delete;
  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] MPI_Datatype type() const noexcept { return type_; }

 private:
  MPI_Datatype type_ = MPI_BYTE;
  int count_ = 0;
  bool owned_ = false;
};

}  // namespace jforge::detail
