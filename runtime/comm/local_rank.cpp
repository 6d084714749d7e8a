#include "runtime/comm/local_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/transport_internal.h"
#include "runtime/content_hash.h"
#include "runtime/machine_load.h"
#include "runtime/tensor/cuda_memory.h"

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

std::string kind_of_rank(const Communicator& comm, Device device, int threads) {
  const int ranks = ranks_on_host(comm);
  const std::string place = device == Device::cpu
                                ? fmt::format("{}, threads: {}", processor_name(), threads)
                                : cuda_device_name(local_rank(comm) % cuda_device_count());
  return fmt::format("{} rank{} on a host, {}", ranks, ranks == 1 ? "" : "s", place);
}

void pass_to_next(const Communicator& comm, std::span<const std::byte> sent,
                  std::span<std::byte> received) {
  const detail::InCollective in(comm, detail::Operation::pass_to_next, sent.size());
  const int size = comm.size();
  const Communicator::Handle::Outgoing out{(comm.rank() + 1) % size, sent.data(), sent.size()};
  const Communicator::Handle::Incoming incoming{(comm.rank() + size - 1) % size, received.data(),
                                                received.size()};
  comm.handle().exchange({&out, 1}, {&incoming, 1});
}

}  // namespace jforge
