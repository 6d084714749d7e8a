#pragma once

/// Starting one process from a large, many-threaded program without copying its memory: the child
/// borrows the parent's memory until it executes, so everything it needs is made beforehand.

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace jforge {

/// The descriptor `from` of this process becomes `to` in the new one.
struct DescriptorMove {
  int from = -1;
  int to = -1;
};

struct ResourceLimit {
  int resource = 0;
  rlim_t value = 0;  ///< Soft, and hard without `beyond`.
  rlim_t beyond = 0;
};

/// A file or folder of the host inside the sandbox. Read-only, no set-user-id; devices stay usable.
struct BindMount {
  std::string source;
  std::string target;  ///< Absolute, inside.
  bool directory = true;
  bool device = false;
};

/// The file system that the child makes for itself when no bubblewrap does.
struct NamespacePlan {
  std::vector<std::string> directories;  ///< To make, parents first; absolute, inside.
  std::vector<BindMount> binds;
  std::vector<std::pair<std::string, std::string>> links;  ///< Text and place of symbolic links.
  std::string work_directory;                              ///< Of tmpfs; the only writable place.
  std::string work_options;                                ///< "size=…,nr_inodes=…,mode=1777"
};

struct StartPlan {
  std::string program;
  /// Of the new process: when given, what is executed instead of the file `program`.
  std::optional<int> program_descriptor;
  std::vector<std::string> arguments;       ///< With the program's name.
  std::vector<std::string> environment;     ///< "NAME=VALUE", all there will be.
  std::vector<DescriptorMove> descriptors;  ///< Sorted by `to`; all others are closed.
  std::vector<ResourceLimit> limits;
  /// Null: the program starts in this process's namespaces.
  const NamespacePlan* namespaces = nullptr;
};

/// Starts the program; it is killed when the calling thread ends. As root it runs as the user
/// "nobody" (65534). Returns its process id, a child of this process to be waited for.
/// EnvironmentError naming the step that failed.
[[nodiscard]] pid_t start_process(const StartPlan& plan);

}  // namespace jforge
