#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "workers/evaluate/sandbox/sandbox_internal.h"

namespace jforge {
namespace {

// The new root is built here: exists everywhere, and is out of sight afterwards.
constexpr const char* kStage = "/tmp";
constexpr unsigned kInsideId = 65534;

// As in linux/mount.h, which cannot be included beside the C library's own header.
struct MountAttributes {
  std::uint64_t set = 0;
  std::uint64_t clear = 0;
  std::uint64_t propagation = 0;
  std::uint64_t user_namespace = 0;
};
constexpr std::uint64_t kReadOnly = 0x1;
constexpr std::uint64_t kNoSetUserId = 0x2;
constexpr std::uint64_t kNoDevices = 0x4;
constexpr std::uint64_t kNoExecution = 0x8;

FailedStep failed(const char* what) { return {what, errno}; }

// The child must not allocate.
class Path {
 public:
  explicit Path(const std::string& inside) {
    std::size_t length = 0;
    for (const char* part : {kStage, inside.c_str()}) {
      for (; *part != '\0' && length + 1 < text_.size(); ++part) {
        text_[length++] = *part;
      }
    }
    text_[length] = '\0';
  }
  [[nodiscard]] const char* c_str() const { return text_.data(); }

 private:
  std::array<char, 4096> text_{};
};

char* put_number(char* out, unsigned number) {
  std::array<char, 12> digits{};
  std::size_t count = 0;
  do {
    digits[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  while (count > 0) {
    *out++ = digits[--count];
  }
  return out;
}

bool write_text(const char* path, const char* text, std::size_t size) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) {
    return false;
  }
  const bool written = write(file, text, size) == static_cast<ssize_t>(size);
  const int error = errno;
  close(file);
  errno = error;
  return written;
}

bool write_map(const char* path, unsigned outside) {
  std::array<char, 64> line{};
  char* end = put_number(line.data(), kInsideId);
  *end++ = ' ';
  end = put_number(end, outside);
  *end++ = ' ';
  *end++ = '1';
  return write_text(path, line.data(), static_cast<std::size_t>(end - line.data()));
}

FailedStep map_user(uid_t user, gid_t group) {
  // Maps can be written only by a dumpable process. The flag is set briefly, because the memory is
  // the parent's.
  const bool closed = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1;
  if (closed) {
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  }
  const bool mapped = write_text("/proc/self/setgroups", "deny", 4) &&
                      write_map("/proc/self/uid_map", user) &&
                      write_map("/proc/self/gid_map", group);
  const FailedStep step = mapped ? FailedStep{} : failed("mapping the user");
  if (closed) {
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  }
  return step;
}

FailedStep bind(const BindMount& mount_point) {
  const Path target(mount_point.target);
  if (!mount_point.directory) {
    const int file = open(target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
      return failed("making a file to mount on");
    }
    close(file);
  }
  if (mount(mount_point.source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
    return failed("binding a system folder");
  }
  MountAttributes attributes;
  attributes.set = kNoSetUserId | (mount_point.device ? kNoExecution : kNoDevices | kReadOnly);
  if (syscall(SYS_mount_setattr, AT_FDCWD, target.c_str(), AT_RECURSIVE, &attributes,
              sizeof(attributes)) != 0) {
    return failed("making a system folder read-only");
  }
  return {};
}

FailedStep fill_root(const NamespacePlan& plan) {
  for (const std::string& directory : plan.directories) {
    if (mkdir(Path(directory).c_str(), 0755) != 0 && errno != EEXIST) {
      return failed("making a folder");
    }
  }
  for (const BindMount& mount_point : plan.binds) {
    if (const FailedStep step = bind(mount_point); step.what != nullptr) {
      return step;
    }
  }
  for (const auto& [text, place] : plan.links) {
    if (symlink(text.c_str(), Path(place).c_str()) != 0) {
      return failed("making a link");
    }
  }
  if (mount("tmpfs", Path(plan.work_directory).c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
            plan.work_options.c_str()) != 0) {
    return failed("mounting the work directory");
  }
  return {};
}

FailedStep drop_capabilities() {
  for (int capability = 0; capability < 64; ++capability) {
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno != EINVAL) {
      return failed("dropping a capability");
    }
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> none{};
  if (syscall(SYS_capset, &header, none.data()) != 0) {
    return failed("dropping the capabilities");
  }
  return {};
}

}  // namespace

FailedStep enter_namespaces(const NamespacePlan& plan, uid_t user, gid_t group) {
  if (const FailedStep step = map_user(user, group); step.what != nullptr) {
    return step;
  }
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return failed("making mounts private");
  }
  if (mount("tmpfs", kStage, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755") != 0) {
    return failed("mounting the new root");
  }
  if (const FailedStep step = fill_root(plan); step.what != nullptr) {
    return step;
  }
  if (chdir(kStage) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 ||
      umount2(".", MNT_DETACH) != 0) {
    return failed("changing the root");
  }
  if (mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV,
            nullptr) != 0) {
    return failed("making the root read-only");
  }
  if (chdir(plan.work_directory.c_str()) != 0) {
    return failed("entering the work directory");
  }
  // Failure is harmless.
  (void)sethostname("sandbox", 7);
  return drop_capabilities();
}

}  // namespace jforge
