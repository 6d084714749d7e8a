#include "runtime/comm/local_rank.h"

#include "runtime/comm/mpi_check.h"

namespace jforge {

namespace {

struct HostPlace {
  int rank = 0;
  int size = 0;
};

HostPlace place_on_host(const Communicator& comm) {
  const Communicator::Handle& handle = comm.handle();
  MPI_Comm host = MPI_COMM_NULL;
  const WaitingForOthers waiting;
  detail::check(MPI_Comm_split_type(handle.collectives, MPI_COMM_TYPE_SHARED, handle.rank,
                                    MPI_INFO_NULL, &host));
  HostPlace place;
  detail::check(MPI_Comm_rank(host, &place.rank));
  detail::check(MPI_Comm_size(host, &place.size));
  detail::check(MPI_Comm_free(&host));
  return place;
}

}  // namespace

int local_rank(const Communicator& comm) { return place_on_host(comm).rank; }

int ranks_on_host(const Communicator& comm) { return place_on_host(comm).size; }

}  // namespace jforge
