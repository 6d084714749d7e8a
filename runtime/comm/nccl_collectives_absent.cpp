/// tensor_collectives.h's NCCL functions in builds without CUDA or nccl.h.

#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

std::string nccl_problem() {
  return built_with_cuda() ? "this build has no NCCL (nccl.h was not found)"
                           : "this build has no CUDA";
}

std::unique_ptr<Collectives> make_nccl_collectives(const Communicator& /*comm*/) {
  throw EnvironmentError("NCCL cannot be used: " + nccl_problem());
}

}  // namespace jforge
