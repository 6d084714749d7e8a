#include "runtime/comm/collectives.h"
#include "runtime/comm/mpi_check.h"
#include "runtime/error.h"

namespace jforge {

using detail::ByteRun;
using detail::check;
using detail::InCollective;
using detail::Operation;

namespace {
constexpr int kTextTag = 2;
}

std::string broadcast_text(const Communicator& comm, const std::string& text, Rank root) {
  expect(0 <= root && root < comm.size(), "broadcast_text: no such root");
  const InCollective in(comm, Operation::broadcast_text, 0, root);
  const MPI_Comm handle = comm.handle().collectives;
  auto size = static_cast<std::int64_t>(text.size());
  check(MPI_Bcast(&size, 1, MPI_INT64_T, root, handle));
  std::string received =
      comm.rank() == root ? text : std::string(static_cast<std::size_t>(size), '\0');
  const ByteRun run(received.size());
  check(MPI_Bcast(received.data(), run.count(), run.type(), root, handle));
  return received;
}

std::vector<std::string> gather_texts(const Communicator& comm, const std::string& text,
                                      Rank root) {
  expect(0 <= root && root < comm.size(), "gather_texts: no such root");
  const InCollective in(comm, Operation::gather_texts, 0, root);
  const MPI_Comm handle = comm.handle().collectives;
  const auto size = static_cast<std::int64_t>(text.size());
  if (comm.rank() != root) {
    check(MPI_Gather(&size, 1, MPI_INT64_T, nullptr, 0, MPI_INT64_T, root, handle));
    const ByteRun run(text.size());
    check(MPI_Send(text.data(), run.count(), run.type(), root, kTextTag, handle));
    return {};
  }
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(comm.size()));
  check(MPI_Gather(&size, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, root, handle));
  std::vector<std::string> texts(sizes.size());
  for (Rank rank = 0; rank < comm.size(); ++rank) {
    std::string& received = texts[static_cast<std::size_t>(rank)];
    if (rank == root) {
      received = text;
      continue;
    }
    received.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
    const ByteRun run(received.size());
    check(MPI_Recv(received.data(), run.count(), run.type(), rank, kTextTag, handle,
                   MPI_STATUS_IGNORE));
  }
  return texts;
}

}  // namespace jforge
