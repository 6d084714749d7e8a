#pragma once

/// Starts a process from a large multi-threaded program without copying its memory: the child
/// borrows the parent's memory until exec, so everything that it needs is allocated beforehand.

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
  rlim_t value = 0;  ///< Soft limit; the hard one is `value + beyond`.
  rlim_t beyond = 0;
};

/// A file or directory of the host inside the sandbox, nosuid and read-only; devices stay usable.
struct BindMount {
  std::string source;
  std::string target;  ///< Absolute, inside.
  bool directory = true;
  bool device = false;
};

/// File system that the child makes without bubblewrap.
struct NamespacePlan {
  std::vector<std::string> directories;  ///< Parents first; absolute, inside.
  std::vector<BindMount> binds;
  std::vector<std::pair<std::string, std::string>> links;  ///< Target and place of symlinks.
  std::string work_directory;                              ///< A tmpfs; the only writable place.
  std::string work_options;                                ///< "size=…,nr_inodes=…,mode=1777"
};

struct StartPlan {
  std::string program;
  /// Executed instead of `program`, as a descriptor number in the new process.
  std::optional<int> program_descriptor;
  std::vector<std::string> arguments;       ///< Including argv[0].
  std::vector<std::string> environment;     ///< "NAME=VALUE"; nothing is inherited.
  std::vector<DescriptorMove> descriptors;  ///< Sorted by `to`; all others are closed.
  std::vector<ResourceLimit> limits;
  /// Null: no new namespaces.
  const NamespacePlan* namespaces = nullptr;
};

/// Starts the program, which is killed when the calling thread ends. Root becomes the user "nobody"
/// (65534). Returns the id of a child to wait for. Throws EnvironmentError naming the failed step.
[[nodiscard]] pid_t start_process(const StartPlan& plan);

}  // namespace jforge
