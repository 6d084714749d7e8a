#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "workers/evaluate/sandbox/sandbox_internal.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHostPlaces[] = {
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
};

void add_place(NamespacePlan& plan, const std::string& place) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(place, error);
  if (error || !fs::exists(status)) {
    return;
  }
  if (fs::is_symlink(status)) {
    plan.links.emplace_back(fs::read_symlink(place).string(), place);
    return;
  }
  plan.binds.push_back({place, place, fs::is_directory(status), fs::is_character_file(status)});
}

}  // namespace

NamespacePlan make_namespace_plan(std::int64_t work_bytes) {
  NamespacePlan plan;
  for (const char* place : kHostPlaces) {
    add_place(plan, place);
  }
  std::set<std::string> directories{kWorkDirectory};
  const auto add_parents = [&](const std::string& place) {
    for (fs::path path = fs::path(place).parent_path(); path != "/"; path = path.parent_path()) {
      directories.insert(path.string());
    }
  };
  for (const BindMount& mount : plan.binds) {
    add_parents(mount.target);
    if (mount.directory) {
      directories.insert(mount.target);
    }
  }
  for (const auto& [text, place] : plan.links) {
    add_parents(place);
  }
  // Sorted, so parents come first.
  plan.directories.assign(directories.begin(), directories.end());
  plan.work_directory = kWorkDirectory;
  plan.work_options = fmt::format("size={},nr_inodes=4096,mode=1777", work_bytes);
  return plan;
}

std::vector<std::string> bubblewrap_options(const NamespacePlan& plan, std::int64_t work_bytes,
                                            int info_descriptor, int block_descriptor,
                                            int init_descriptor) {
  std::vector<std::string> options{"--unshare-user",
                                   "--unshare-pid",
                                   "--unshare-net",
                                   "--unshare-ipc",
                                   "--unshare-uts",
                                   "--unshare-cgroup-try",
                                   "--die-with-parent",
                                   "--new-session",
                                   "--as-pid-1",
                                   "--hostname",
                                   "sandbox",
                                   "--uid",
                                   "65534",
                                   "--gid",
                                   "65534",
                                   "--cap-drop",
                                   "ALL"};
  const auto add = [&](std::initializer_list<std::string> words) {
    options.insert(options.end(), words);
  };
  for (const std::string& directory : plan.directories) {
    add({"--dir", directory});
  }
  for (const BindMount& mount : plan.binds) {
    add({mount.device ? "--dev-bind" : "--ro-bind", mount.source, mount.target});
  }
  for (const auto& [text, place] : plan.links) {
    add({"--symlink", text, place});
  }
  add({"--perms", "0555", "--file", std::to_string(init_descriptor), kInitPath});
  add({"--size", std::to_string(work_bytes), "--tmpfs", plan.work_directory});
  add({"--remount-ro", "/", "--chdir", plan.work_directory});
  add({"--info-fd", std::to_string(info_descriptor)});
  add({"--block-fd", std::to_string(block_descriptor)});
  return options;
}

}  // namespace jforge
