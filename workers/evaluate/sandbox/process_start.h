#pragma once

/// Starts a process from a large multi-threaded program without copying its memory: the child
/// borrows the memory until exec, so all that it needs is allocated before.

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace jforge {

struct DescriptorMove {
  int from = -1;
  int to = -1;
};

struct ResourceLimit {
  int resource = 0;
  rlim_t value = 0;  ///< Soft limit; hard limit: value + beyond.
  rlim_t beyond = 0;
};

/// A host file or directory inside, nosuid and read-only; devices stay usable.
struct BindMount {
  std::string source;
  std::string target;  ///< Absolute, inside.
  bool directory = true;
  bool device = false;
};

/// The child's file system without bubblewrap.
struct NamespacePlan {
  std::vector<std::string> directories;  ///< Parents first; absolute, inside.
  std::vector<BindMount> binds;
  std::vector<std::pair<std::string, std::string>> links;  ///< Target and place of symlinks.
  std::string work_directory;                              ///< tmpfs; the only writable place.
  std::string work_options;                                ///< "size=…,nr_inodes=…,mode=1777"
};

struct StartPlan {
  std::string program;
  /// Descriptor in the new process, executed instead of `program`.
  std::optional<int> program_descriptor;
  std::vector<std::string> arguments;       ///< Including argv[0].
  std::vector<std::string> environment;     ///< "NAME=VALUE".
  std::vector<DescriptorMove> descriptors;  ///< Sorted by `to`; all others are closed.
  std::vector<ResourceLimit> limits;
  /// Null: no new namespaces.
  const NamespacePlan* namespaces = nullptr;
};

/// Starts a child that dies with the calling thread. Root becomes "nobody" (65534). Throws
/// EnvironmentError naming the failed step.
[[nodiscard]] pid_t start_process(const StartPlan& plan);

}  // namespace jforge
