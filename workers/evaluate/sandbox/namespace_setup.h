#pragma once

#include <sys/types.h>

#include "workers/evaluate/sandbox/process_start.h"

namespace jforge {

struct FailedStep {
  const char* what = nullptr;  ///< Null: no failure.
  int error = 0;
};

/// Runs in the child, in fresh user, mount and pid namespaces; allocates nothing. Maps its user,
/// makes the read-only root of `plan` with its tmpfs, and drops all capabilities. `user` and
/// `group`: outer ids.
[[nodiscard]] FailedStep enter_namespaces(const NamespacePlan& plan, uid_t user, gid_t group);

}  // namespace jforge
