#include "runtime/comm/local_rank.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/transport_internal.h"
#include "runtime/content_hash.h"

namespace jforge {

int local_rank(const Communicator& comm) {
  const WaitingForOthers waiting;
  return comm.handle().place_on_host().rank;
}

int ranks_on_host(const Communicator& comm) {
  const WaitingForOthers waiting;
  return comm.handle().place_on_host().size;
}

int ranks_that_name(const Communicator& comm, const std::string& thing) {
  const auto own = static_cast<std::int64_t>(hash64(std::string_view(thing)));
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  all_gather<std::int64_t>(comm, std::span(&own, 1), all);
  return static_cast<int>(std::ranges::count(all, own));
}

}  // namespace jforge
