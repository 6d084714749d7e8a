#pragma once

/// libnccl, opened when it is first asked for: a program without it, or on a machine without a
/// device, starts and computes. Seen by runtime/comm/nccl_* alone.

#include <nccl.h>

#include <string>

namespace jforge {

/// NCCL's functions of these names.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;

  /// Why it cannot be used, on one line; empty where it can.
  std::string problem;
};

/// The process's. Never closed.
[[nodiscard]] const NcclLibrary& nccl_library();

}  // namespace jforge
