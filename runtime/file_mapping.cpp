#include "runtime/file_mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <string_view>
#include <system_error>

#include "runtime/contained_file.h"
#include "runtime/error.h"
#include "runtime/file_descriptor_internal.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {
/// Static memory, because the handler may read it in any thread at any time. Mappings beyond
/// kPlaces and long names only lose text in the message.
struct Place {
  std::atomic<bool> taken{false};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::array<char, 1024> line{};
};
constexpr std::size_t kPlaces = 512;
std::array<Place, kPlaces> places;
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free,
              "signal handlers may use lock-free atomics only");

std::size_t take_place(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  for (std::size_t i = 0; i < kPlaces; ++i) {
    Place& place = places[i];
    if (place.taken.exchange(true)) {
      continue;
    }
    const auto end = fmt::format_to_n(
        place.line.data(), place.line.size() - 1,
        "jforge: {}: could not be read: an I/O error, or the file was made shorter while it was "
        "in use; start again once it is whole\n",
        path.string());
    *end.out = '\0';
    const auto begin = std::bit_cast<std::uintptr_t>(bytes.data());
    place.end = begin + bytes.size();
    place.begin = begin;
    return i;
  }
  return kPlaces;
}

void leave_place(std::size_t place) {
  if (place < kPlaces) {
    places[place].begin = 0;
    places[place].end = 0;
    places[place].taken = false;
  }
}

void end_or_go_on(int signal, siginfo_t* info, void* /*context*/) {
  const auto address = std::bit_cast<std::uintptr_t>(info->si_addr);
  for (const Place& place : places) {
    if (info->si_code == BUS_ADRERR && address >= place.begin && address < place.end) {
      const std::string_view line(place.line.data());
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
      ::_exit(static_cast<int>(ExitCode::environment));
    }
  }
  // Takes effect on return, also for a signal that was sent.
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}
}  // namespace

FileMapping::FileMapping(const std::filesystem::path& path) : place_(kPlaces) {
  refuse_special_file(path);
  const Descriptor file(open_retrying(path, O_RDONLY));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    throw_unopened(path, errno);
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0) {
    return;
  }
  void* const address = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    throw EnvironmentError(fmt::format("cannot map {} ({} bytes) into memory: {}", path.string(),
                                       bytes, std::generic_category().message(errno)));
  }
  bytes_ = {static_cast<const std::byte*>(address), bytes};
  place_ = take_place(bytes_, path);
}

FileMapping::~FileMapping() {
  leave_place(place_);
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void end_where_a_mapping_is_lost() {
  struct sigaction action {};
  action.sa_sigaction = end_or_go_on;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace jforge
