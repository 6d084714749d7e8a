#include "runtime/comm/mpi_check.h"

#include <fmt/format.h>

#include <array>
#include <climits>
#include <string_view>

#include "runtime/error.h"

namespace jforge::detail {

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

}  // namespace jforge::detail
