#include "runtime/tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/tensor/cuda_memory.h"

namespace jforge {

namespace {
constexpr std::size_t kAlignment = 64;
/// From this size on, the kernel's fresh zero pages cost less than filling. (The address sanitizer
/// sees only the bounds of heap blocks.)
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kMappedBytes = SIZE_MAX;
#else
constexpr std::size_t kMappedBytes = std::size_t{1} << 20;
#endif

bool is_mapped(std::size_t bytes, MemoryAccount::Backing backing) {
  return bytes >= kMappedBytes || backing == MemoryAccount::Backing::count_only;
}

std::byte* map_pages(std::size_t bytes, int protection, int flags) {
  void* const data = ::mmap(nullptr, std::max<std::size_t>(bytes, 1), protection,
                            MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

std::byte* allocate_host(std::size_t bytes, MemoryAccount::Backing backing) {
  if (backing == MemoryAccount::Backing::count_only) {
    return map_pages(bytes, PROT_NONE, MAP_NORESERVE);
  }
  if (is_mapped(bytes, backing)) {
    std::byte* const data = map_pages(bytes, PROT_READ | PROT_WRITE, 0);
    if (data != nullptr) {
      // Weights are read whole for every token; with 4 KiB pages, address look-up takes a tenth of
      // that. Has no effect without larger pages.
      static_cast<void>(::madvise(data, bytes, MADV_HUGEPAGE));
    }
    return data;
  }
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* const data =
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded));
  if (data != nullptr) {
    std::memset(data, 0, rounded);
  }
  return data;
}

void free_host(std::byte* data, std::size_t bytes, MemoryAccount::Backing backing) {
  if (is_mapped(bytes, backing)) {
    ::munmap(data, std::max<std::size_t>(bytes, 1));
  } else {
    std::free(data);
  }
}
}  // namespace

const char* memory_use_name(MemoryUse use) noexcept {
  switch (use) {
    case MemoryUse::weights:
      return "weights";
    case MemoryUse::gradients:
      return "gradients";
    case MemoryUse::optimizer:
      return "optimizer";
    case MemoryUse::activations:
      return "activations";
    case MemoryUse::key_value:
      return "key/value";
    case MemoryUse::communication:
      return "communication";
    case MemoryUse::staging:
      return "staging";
    case MemoryUse::teacher:
      return "teacher";
    case MemoryUse::other:
      break;
  }
  return "other";
}

namespace {

/// Lists the holders of device memory, for out-of-memory messages.
class DeviceHoldings {
 public:
  /// Never destroyed, because it must outlive all buffers.
  static DeviceHoldings& get() {
    static auto& holdings = *new DeviceHoldings;
    return holdings;
  }
  void add(const MemoryAccount& account, MemoryUse use, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    entry(account, use).bytes += bytes;
  }
  void remove(const MemoryAccount& account, MemoryUse use, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = find(account, use);
    if (found == entries_.end()) {
      return;  // A buffer of no bytes.
    }
    found->bytes -= bytes;
    if (found->bytes == 0) {
      entries_.erase(found);
    }
  }
  /// "; held there: training activations 123456 bytes, …", largest first.
  [[nodiscard]] std::string to_string() {
    const std::lock_guard lock(mutex_);
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.bytes > b.bytes; });
    std::string text;
    for (const Entry& held : entries_) {
      text += (text.empty() ? "; held there: " : ", ") + held.account->name() + " " +
              memory_use_name(held.use) + " " + std::to_string(held.bytes) + " bytes";
    }
    return text;
  }

 private:
  struct Entry {
    const MemoryAccount* account;
    MemoryUse use;
    std::size_t bytes;
  };
  [[nodiscard]] std::vector<Entry>::iterator find(const MemoryAccount& account, MemoryUse use) {
    return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& held) {
      return held.account == &account && held.use == use;
    });
  }
  [[nodiscard]] Entry& entry(const MemoryAccount& account, MemoryUse use) {
    const auto found = find(account, use);
    return found != entries_.end() ? *found : entries_.emplace_back(Entry{&account, use, 0});
  }

  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace

void MemoryAccount::Count::charge(std::size_t bytes) noexcept {
  const std::size_t now = live.fetch_add(bytes) + bytes;
  std::size_t highest = peak.load();
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
}

void MemoryAccount::charge(std::size_t bytes, MemoryUse use) noexcept {
  total_.charge(bytes);
  uses_[static_cast<std::size_t>(use)].charge(bytes);
}

void MemoryAccount::release(std::size_t bytes, MemoryUse use) noexcept {
  total_.live.fetch_sub(bytes);
  uses_[static_cast<std::size_t>(use)].live.fetch_sub(bytes);
}

Buffer::Buffer(std::size_t bytes, MemoryAccount& account, Device device, MemoryUse use)
    : data_(device == Device::cuda ? cuda_memory::allocate(bytes)
                                   : allocate_host(bytes, account.backing())),
      bytes_(bytes),
      account_(&account),
      device_(device),
      use_(use) {
  if (data_ == nullptr) {
    const std::string asked = std::to_string(bytes) + " bytes for " + account.name();
    throw EnvironmentError(
        device == Device::cuda
            ? "out of device memory: " + asked + " " + memory_use_name(use) +
                  cuda_memory::free_memory_note() + DeviceHoldings::get().to_string()
            : "out of memory: " + asked + " (" + std::to_string(account.live_bytes()) +
                  " bytes already live there)");
  }
  account.charge(bytes, use);
  if (device == Device::cuda) {
    DeviceHoldings::get().add(account, use, bytes);
  }
}

Buffer::Buffer(std::size_t bytes, MemoryAccount& account, HostMemory kind, MemoryUse use)
    : bytes_(bytes), account_(&account), use_(use) {
  if (kind == HostMemory::pageable || account.backing() == MemoryAccount::Backing::count_only) {
    *this = Buffer(bytes, account, Device::cpu, use);
    return;
  }
  data_ = cuda_memory::allocate_pinned(bytes);
  if (data_ == nullptr) {
    throw EnvironmentError("out of page-locked host memory: " + std::to_string(bytes) +
                           " bytes for " + account.name() + " " + memory_use_name(use) + " (" +
                           std::to_string(account.live_bytes()) + " bytes already live there)");
  }
  std::memset(data_, 0, bytes);
  kind_ = kind;
  account.charge(bytes, use);
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    if (device_ == Device::cuda) {
      cuda_memory::free(data_);
      DeviceHoldings::get().remove(*account_, use_, bytes_);
    } else if (kind_ == HostMemory::page_locked) {
      cuda_memory::free_pinned(data_);
    } else {
      free_host(data_, bytes_, account_->backing());
    }
    account_->release(bytes_, use_);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      account_(std::exchange(other.account_, nullptr)),
      device_(other.device_),
      kind_(other.kind_),
      use_(other.use_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Buffer old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    account_ = std::exchange(other.account_, nullptr);
    device_ = other.device_;
    kind_ = other.kind_;
    use_ = other.use_;
  }
  return *this;
}

TensorView Buffer::view(DType dtype, Shape shape) const {
  expect(static_cast<std::size_t>(shape.elements()) * dtype_bytes(dtype) <= bytes_,
         "view is larger than its buffer");
  return {data_, dtype, shape, device_};
}

void copy_tensor(const ConstTensorView& from, const TensorView& to) {
  expect_shape(from, to.shape(), "copy_tensor source");
  expect(from.dtype() == to.dtype(), "copy_tensor: element types differ");
  const std::size_t bytes = from.bytes();
  if (bytes == 0) {
    return;
  }
  if (from.device() == Device::cpu && to.device() == Device::cpu) {
    const auto* const source = static_cast<const std::byte*>(from.raw());
    const auto* const target = static_cast<const std::byte*>(to.raw());
    const std::less_equal<const std::byte*> before;
    expect(before(source + bytes, target) || before(target + bytes, source),
           "copy_tensor: the tensors overlap");
    std::memcpy(to.raw(), from.raw(), bytes);
    return;
  }
  cuda_memory::copy(to.raw(), to.device(), from.raw(), from.device(), bytes);
}

void zero_tensor(const TensorView& view) {
  if (view.bytes() == 0) {
    return;
  }
  if (view.device() == Device::cuda) {
    cuda_memory::zero(view.raw(), view.bytes());
  } else {
    std::memset(view.raw(), 0, view.bytes());
  }
}

}  // namespace jforge
