#pragma once

/// Wraps MPI calls. Private to runtime/comm.

#include <mpi.h>

#include <cstddef>
#include <source_location>

namespace jforge::detail {

/// Throws CommError with MPI's text and the caller's location unless `code` is MPI_SUCCESS.
void check(int code, std::source_location where = std::source_location::current());

/// An MPI type of `bytes` consecutive bytes, also more than an int can count.
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
