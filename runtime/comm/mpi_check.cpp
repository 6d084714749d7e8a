#include "runtime/comm/mpi_check.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <climits>
#include <limits>
#include <string>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/error.h"

namespace jforge {

namespace {
std::atomic<bool> checks_on{false};

/// What a rank is about to do, as it travels.
struct Announcement {
  std::int64_t sequence = 0;
  std::int64_t operation = 0;
  std::int64_t bytes = 0;
  std::int64_t root = 0;
  bool operator==(const Announcement&) const = default;
};

std::string describe(Rank rank, const Announcement& said) {
  return fmt::format("rank {}: #{} {} of {} bytes, root {}", rank, said.sequence,
                     detail::operation_name(static_cast<detail::Operation>(said.operation)),
                     said.bytes, said.root);
}
}  // namespace

void enable_collective_checks(bool on) { checks_on.store(on); }

namespace detail {

void check(int code, std::source_location where) {
  if (code == MPI_SUCCESS) [[likely]] {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(fmt::format("MPI call at {}:{} ({}) failed: {}", where.file_name(), where.line(),
                              where.function_name(),
                              std::string_view(text.data(), static_cast<std::size_t>(length))));
}

std::string_view operation_name(Operation operation) noexcept {
  constexpr std::array<std::string_view, 11> kNames{
      "barrier",        "duplicate",          "close",      "all_reduce_sum",
      "all_reduce_max", "reduce_scatter_sum", "all_gather", "broadcast",
      "broadcast_text", "gather_texts",       "agree"};
  const auto index = static_cast<std::size_t>(operation);
  return index < kNames.size() ? kNames[index] : "unknown";
}

InCollective::InCollective(const Communicator& comm, Operation operation, std::size_t bytes,
                           Rank root) {
  if (!checks_on.load(std::memory_order_relaxed)) [[likely]] {
    return;
  }
  const Communicator::Handle& handle = comm.handle();
  const Announcement mine{++handle.sequence, static_cast<std::int64_t>(operation),
                          static_cast<std::int64_t>(bytes), root};
  std::vector<Announcement> all(static_cast<std::size_t>(handle.size));
  check(MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE,
                      handle.collectives));
  for (std::size_t other = 1; other < all.size(); ++other) {
    if (all[other] != all[0]) {
      throw CommError("the ranks are not in the same collective: " + describe(0, all[0]) + "; " +
                      describe(static_cast<Rank>(other), all[other]));
    }
  }
}

ByteRun::ByteRun(std::size_t bytes) {
  if (bytes <= static_cast<std::size_t>(INT_MAX)) {
    count_ = static_cast<int>(bytes);
    return;
  }
  constexpr std::size_t kBlock = std::size_t{1} << 30;
  const std::size_t blocks = bytes / kBlock;
  MPI_Datatype block = MPI_DATATYPE_NULL;
  check(MPI_Type_contiguous(static_cast<int>(kBlock), MPI_BYTE, &block));
  const std::array<int, 2> lengths{static_cast<int>(blocks), static_cast<int>(bytes % kBlock)};
  const std::array<MPI_Aint, 2> places{0, static_cast<MPI_Aint>(blocks * kBlock)};
  const std::array<MPI_Datatype, 2> types{block, MPI_BYTE};
  check(MPI_Type_create_struct(2, lengths.data(), places.data(), types.data(), &type_));
  owned_ = true;
  check(MPI_Type_commit(&type_));
  check(MPI_Type_free(&block));
  count_ = 1;
}

ByteRun::~ByteRun() {
  if (owned_) {
    MPI_Type_free(&type_);
  }
}

}  // namespace detail
}  // namespace jforge
