#include "runtime/comm/local_rank.h"

#include "runtime/comm/transport_internal.h"

namespace jforge {

int local_rank(const Communicator& comm) {
  const WaitingForOthers waiting;
  return comm.handle().place_on_host().rank;
}

int ranks_on_host(const Communicator& comm) {
  const WaitingForOthers waiting;
  return comm.handle().place_on_host().size;
}

}  // namespace jforge
