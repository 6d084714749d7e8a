#include "tests/cuda_emulator/rendezvous.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/fault.h"

namespace jforge::emulator {

namespace {

int open_file(const std::string& name) {
  constexpr int kOwnOnly = 0600;
  const int file = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kOwnOnly);
  if (file < 0) {
    throw Refusal("emulated NCCL: " + name + ": " + std::strerror(errno));
  }
  return file;
}

template <class Byte, class Transfer>
void transfer_all(std::span<Byte> bytes, Transfer transfer) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = transfer(bytes.data() + done, bytes.size() - done, done);
    if (count <= 0) {
      throw Refusal(std::string("emulated NCCL: shared memory: ") + std::strerror(errno));
    }
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace

std::string Rendezvous::new_name() {
  std::random_device random;
  const std::uint64_t number = std::uint64_t{random()} << 32 | random();
  return "/dev/shm/jforge-emulated-" + hexadecimal(number).substr(2);
}

std::string Rendezvous::file_name(unsigned rank, std::size_t which) const {
  return name_ + "-" + std::to_string(rank) + "-" + std::to_string(which);
}

Rendezvous::Rendezvous(const std::string& name, unsigned ranks, unsigned own, int device)
    : name_(name), ranks_(ranks), own_(own) {
  const int file = open_file(name_);
  if (ftruncate(file, sizeof(Shared)) != 0) {
    throw Refusal(std::string("emulated NCCL: shared memory: ") + std::strerror(errno));
  }
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) {
    throw Refusal(std::string("emulated NCCL: shared memory: ") + std::strerror(errno));
  }
  shared_ = static_cast<Shared*>(memory);
  Files& files = files_[own_];
  files.life = open_file(file_name(own_, kSlots));
  if (flock(files.life, LOCK_EX | LOCK_NB) != 0) {
    throw Refusal("emulated NCCL: two processes are rank " + std::to_string(own_) + ", which");
  }
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    files.inputs[slot] = open_file(file_name(own_, slot));
  }
  Rank& rank = shared_->ranks[own_];
  rank.ranks = ranks;
  rank.device = device;
  rank.state = State::joined;
}

Rendezvous::~Rendezvous() {
  for (const Files& files : files_) {
    for (const int file : {files.life, files.inputs[0], files.inputs[1]}) {
      if (file >= 0) {
        close(file);
      }
    }
  }
  if (shared_ != nullptr) {
    munmap(shared_, sizeof(Shared));
  }
}

bool Rendezvous::complete() {
  for (unsigned rank = 0; rank < ranks_; ++rank) {
    if (shared_->ranks[rank].state == State::absent) {
      return false;
    }
  }
  Rank& own = shared_->ranks[own_];
  for (unsigned rank = 0; rank < ranks_; ++rank) {
    const Rank& other = shared_->ranks[rank];
    if (other.ranks != ranks_) {
      remove_names();
      throw Refusal("NCCL: rank " + std::to_string(own_) + " was told of " +
                    std::to_string(ranks_) + " ranks, rank " + std::to_string(rank) + " of " +
                    std::to_string(other.ranks.load()) + ", which");
    }
    if (rank != own_ && other.device == own.device) {
      remove_names();
      throw Refusal("NCCL: ranks " + std::to_string(own_) + " and " + std::to_string(rank) +
                    " on one device (" + std::to_string(own.device.load()) + "), which");
    }
  }
  if (own.opened == 0) {
    for (unsigned rank = 0; rank < ranks_; ++rank) {
      if (rank != own_) {
        files_[rank].life = open_file(file_name(rank, kSlots));
        for (std::size_t slot = 0; slot < kSlots; ++slot) {
          files_[rank].inputs[slot] = open_file(file_name(rank, slot));
        }
      }
    }
    own.opened = 1;
  }
  for (unsigned rank = 0; rank < ranks_; ++rank) {
    if (shared_->ranks[rank].opened == 0) {
      return false;
    }
  }
  remove_names();
  return true;
}

void Rendezvous::remove_names() const {
  for (std::size_t which = 0; which <= kSlots; ++which) {
    unlink(file_name(own_, which).c_str());
  }
  unlink(name_.c_str());
}

void Rendezvous::give(std::uint64_t number, const CollectiveCall& call,
                      std::span<const std::byte> input) {
  const int file = files_[own_].inputs[number % kSlots];
  transfer_all(input, [file](const std::byte* from, std::size_t bytes, std::size_t at) {
    return pwrite(file, from, bytes, static_cast<off_t>(at));
  });
  Rank& own = shared_->ranks[own_];
  own.calls[number % kSlots] = call;
  own.given.store(number + 1, std::memory_order_release);
}

bool Rendezvous::given_by_all(std::uint64_t number) {
  for (unsigned rank = 0; rank < ranks_; ++rank) {
    if (shared_->ranks[rank].given.load(std::memory_order_acquire) <= number) {
      shared_->ranks[own_].waits_for = number + 1;
      return false;
    }
  }
  return true;
}

std::uint64_t Rendezvous::wanted() const {
  std::uint64_t most = 0;
  for (unsigned rank = 0; rank < ranks_; ++rank) {
    most = std::max(most, rank == own_ ? 0 : shared_->ranks[rank].waits_for.load());
  }
  return most;
}

CollectiveCall Rendezvous::call_of(unsigned rank, std::uint64_t number) const {
  return shared_->ranks[rank].calls[number % kSlots];
}

void Rendezvous::take(unsigned rank, std::uint64_t number, std::span<std::byte> input) const {
  const int file = files_[rank].inputs[number % kSlots];
  transfer_all(input, [file](std::byte* to, std::size_t bytes, std::size_t at) {
    return pread(file, to, bytes, static_cast<off_t>(at));
  });
}

void Rendezvous::leave(State state) { shared_->ranks[own_].state = state; }

bool Rendezvous::alive(unsigned rank) const {
  const int file = files_[rank].life;
  if (rank == own_ || file < 0 || flock(file, LOCK_SH | LOCK_NB) != 0) {
    return true;
  }
  flock(file, LOCK_UN);
  return false;
}

std::string Rendezvous::missing(std::uint64_t number) const {
  for (unsigned rank = 0; rank < ranks_; ++rank) {
    const Rank& other = shared_->ranks[rank];
    if (rank == own_ || other.given > number) {
      continue;
    }
    const State state = other.state;
    const char* what = nullptr;
    if (state == State::ended) {
      what = " ended the communicator";
    } else if (state == State::aborted) {
      what = " aborted the communicator";
    } else if (state == State::joined && !alive(rank)) {
      what = " is gone";
    }
    if (what != nullptr) {
      return "rank " + std::to_string(rank) + what + " before its call " + std::to_string(number);
    }
  }
  return {};
}

}  // namespace jforge::emulator
