#include "checkpoints/read_and_broadcast_internal.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"

namespace jforge {

void read_and_broadcast(const Communicator& comm, const ParameterTable& table,
                        const TensorView& flat,
                        const std::function<void(const ParameterGroup&, std::span<float>)>& read) {
  for (const ParameterGroup& group : table.groups()) {
    const std::span<float> part = flat.span<float>().subspan(
        static_cast<std::size_t>(group.offset), static_cast<std::size_t>(group.padded_size));
    together(comm, [&] {
      if (comm.rank() == 0) {
        read(group, part);
      }
    });
    broadcast<float>(comm, part, 0);
  }
}

}  // namespace jforge
