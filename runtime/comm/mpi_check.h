#pragma once

/// Private to runtime/comm: what every MPI call goes through.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string_view>

#include "runtime/comm/mpi_session.h"
#include "runtime/phase_clock.h"

namespace jforge {

/// Two MPI handles, so that a message of try_receive's "from anybody" can never be part of a
/// collective.
struct Communicator::Handle {
  MPI_Comm messages = MPI_COMM_NULL;
  MPI_Comm collectives = MPI_COMM_NULL;
  Rank rank = 0;
  int size = 1;
  /// Collectives announced so far (collective checks).
  mutable std::int64_t sequence = 0;
};

namespace detail {

/// Throws CommError with MPI's own text and the caller's place unless `code` is MPI_SUCCESS.
void check(int code, std::source_location where = std::source_location::current());

/// The operation of a collective, for byte counts and checks. The values travel between ranks of
/// one job only.
enum class Operation : std::int64_t {
  barrier,
  duplicate,
  close,
  all_reduce_sum,
  all_reduce_max,
  reduce_scatter_sum,
  all_gather,
  broadcast,
  broadcast_text,
  gather_texts,
  agree,
};
[[nodiscard]] std::string_view operation_name(Operation operation) noexcept;

/// Lives as long as a collective: the rank waits for the others (phase_clock.h). With collective
/// checks on it first compares sequence number, operation, bytes and root over all ranks and throws
/// CommError naming the difference on every rank.
class InCollective {
 public:
  InCollective(const Communicator& comm, Operation operation, std::size_t bytes, Rank root = 0);

 private:
  WaitingForOthers waiting_;
};

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

}  // namespace detail
}  // namespace jforge
