#include "runtime/comm/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "runtime/comm/tensor_collectives.h"

namespace jforge {

namespace {

constexpr const char* kName = "libnccl.so.2";
/// 2.19.1: non-blocking communicators (2.18) that another thread may abort.
constexpr int kOldest = 21901;

NcclLibrary open_library() {
  NcclLibrary nccl;
  // NVLink-switch sums vary between calls, so continued runs would differ. The user may override.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  void* const handle = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    nccl.problem = fmt::format("{} cannot be opened", kName);
    return nccl;
  }
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr && nccl.problem.empty()) {
      nccl.problem = fmt::format("{} has no {}", kName, name);
    }
  };
  find("ncclGetVersion", nccl.get_version);
  find("ncclGetUniqueId", nccl.get_unique_id);
  find("ncclCommInitRankConfig", nccl.comm_init_rank_config);
  find("ncclCommGetAsyncError", nccl.comm_get_async_error);
  find("ncclCommFinalize", nccl.comm_finalize);
  find("ncclCommDestroy", nccl.comm_destroy);
  find("ncclCommAbort", nccl.comm_abort);
  find("ncclAllReduce", nccl.all_reduce);
  find("ncclReduceScatter", nccl.reduce_scatter);
  find("ncclAllGather", nccl.all_gather);
  find("ncclBroadcast", nccl.broadcast);
  find("ncclGetErrorString", nccl.get_error_string);
  find("ncclGetLastError", nccl.get_last_error);
  int version = 0;
  if (nccl.problem.empty() && nccl.get_version(&version) == ncclSuccess) {
    nccl.problem = nccl_version_problem(version);
  }
  return nccl;
}

}  // namespace

std::string nccl_version_problem(int version) {
  if (version < kOldest) {
    return fmt::format("{} is version {}, {} is needed", kName, version, kOldest);
  }
  if (const int minor = version / 100; minor == 225 || minor == 226) {
    return fmt::format(
        "{} is version {}, whose communicators hang now and then where calls do not "
        "block (2.25 and 2.26); install another",
        kName, version);
  }
  return {};
}

const NcclLibrary& nccl_library() {
  static const NcclLibrary nccl = open_library();
  return nccl;
}

}  // namespace jforge
