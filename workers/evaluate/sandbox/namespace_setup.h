#pragma once

#include <sys/types.h>

#include "workers/evaluate/sandbox/process_start.h"

namespace jforge {

/// What a child in fresh namespaces could not do.
struct FailedStep {
  const char* what = nullptr;  ///< Null: all went well.
  int error = 0;               ///< errno
};

/// In the child, in fresh user, mount and pid namespaces: maps its user, builds the read-only
/// system of `plan` with its tmpfs work directory, makes it the root, and gives up all
/// capabilities. `user` and `group` are its ids outside. Allocates nothing.
[[nodiscard]] FailedStep enter_namespaces(const NamespacePlan& plan, uid_t user, gid_t group);

}  // namespace jforge
