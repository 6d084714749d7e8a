/// cudnn_attention.h in a build without the headers of cuDNN or cudnn-frontend.

#include "model/kernels/cuda/causal_attention.h"
#include "model/kernels/cuda/cudnn_attention.h"
#include "runtime/error.h"

namespace jforge {

namespace {

[[noreturn]] void refuse() {
  throw EnvironmentError(
      "this build has no cuDNN attention: install cuDNN's headers and \"pip install --no-deps "
      "nvidia-cudnn-frontend\", configure anew, or set train.attention to \"own\"");
}

}  // namespace

std::unique_ptr<CausalAttention> make_cudnn_attention() { refuse(); }

std::string cudnn_refusal(const CudnnShape& /*shape*/, const CudnnDevice& /*device*/) { refuse(); }

}  // namespace jforge
