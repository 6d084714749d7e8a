#include "runtime/comm/mpi_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/comm/mpi_check.h"
#include "runtime/error.h"

namespace jforge {

using detail::ByteRun;
using detail::check;
using detail::InCollective;
using detail::Operation;

namespace {
/// Waits for a request without burning a core: a few tries at once, then sleeps of 1 to 5 ms. A
/// large payload moves only while somebody polls, so its sleeps stay short.
void wait_politely(MPI_Request& request, std::size_t bytes) {
  constexpr int kTriesWithoutSleep = 20;
  constexpr std::size_t kLargeBytes = std::size_t{1} << 16;
  const auto longest =
      bytes > kLargeBytes ? std::chrono::microseconds(50) : std::chrono::microseconds(5000);
  auto sleep = std::min(longest, std::chrono::microseconds(1000));
  for (int tries = 0;; ++tries) {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done != 0) {
      return;
    }
    if (tries < kTriesWithoutSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(longest, sleep + std::chrono::microseconds(1000));
    }
  }
}

double mpi_limit_seconds() {
  constexpr double kDefaultSeconds = 600;
  const char* const text = std::getenv("JFORGE_MPI_LIMIT_SECONDS");
  if (text == nullptr) {
    return kDefaultSeconds;
  }
  double seconds = 0;
  const char* const end = text + std::strlen(text);
  const auto [read, error] = std::from_chars(text, end, seconds);
  if (error != std::errc() || read != end || !(seconds >= 1)) {
    throw ConfigError("JFORGE_MPI_LIMIT_SECONDS is \"" + std::string(text) +
                      "\": give a number of seconds, at least 1, or unset it");
  }
  return seconds;
}
}  // namespace

Communicator::Communicator(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
// MPI_Comm_free is collective and could wait for ranks that never come: only close() frees.
Communicator::~Communicator() = default;

Rank Communicator::rank() const noexcept { return handle_->rank; }
int Communicator::size() const noexcept { return handle_->size; }

Communicator Communicator::duplicate() const {
  const InCollective in(*this, Operation::duplicate, 0);
  auto copy = std::make_unique<Handle>();
  check(MPI_Comm_dup(handle_->collectives, &copy->messages));
  check(MPI_Comm_dup(handle_->collectives, &copy->collectives));
  copy->rank = handle_->rank;
  copy->size = handle_->size;
  return Communicator(std::move(copy));
}

void Communicator::barrier() const {
  const InCollective in(*this, Operation::barrier, 0);
  check(MPI_Barrier(handle_->collectives));
}

void Communicator::close() {
  if (handle_ == nullptr) {
    return;
  }
  const InCollective in(*this, Operation::close, 0);
  check(MPI_Comm_free(&handle_->messages));
  check(MPI_Comm_free(&handle_->collectives));
  handle_.reset();
}

void Communicator::send(Rank destination, int tag, std::span<const std::byte> payload) const {
  expect(0 <= destination && destination < handle_->size, "send: no such rank");
  const ByteRun run(payload.size());
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(payload.data(), run.count(), run.type(), destination, tag, handle_->messages,
                  &request));
  wait_politely(request, payload.size());
}

std::optional<ReceivedMessage> Communicator::try_receive() const {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status{};
  check(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, handle_->messages, &found, &message, &status));
  if (found == 0) {
    return std::nullopt;
  }
  MPI_Count bytes = 0;
  check(MPI_Get_elements_x(&status, MPI_BYTE, &bytes));
  ReceivedMessage received{status.MPI_SOURCE, status.MPI_TAG,
                           std::vector<std::byte>(static_cast<std::size_t>(bytes))};
  const ByteRun run(received.payload.size());
  check(MPI_Mrecv(received.payload.data(), run.count(), run.type(), &message, MPI_STATUS_IGNORE));
  return received;
}

MpiSession::MpiSession(int* argc, char*** argv) : limit_seconds_(mpi_limit_seconds()) {
  clock_.follow_this_thread();
  clock_.set_deadline(limit_seconds_);
  clock_.enter("start MPI");
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
    throw EnvironmentError(
        "MPI does not start: run under mpirun or srun, or check the Open MPI installation");
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw EnvironmentError(
        "this MPI offers no MPI_THREAD_MULTIPLE: install an MPI built with thread support");
  }
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  auto handle = std::make_unique<Communicator::Handle>();
  check(MPI_Comm_dup(MPI_COMM_WORLD, &handle->messages));
  check(MPI_Comm_dup(MPI_COMM_WORLD, &handle->collectives));
  check(MPI_Comm_rank(handle->collectives, &handle->rank));
  check(MPI_Comm_size(handle->collectives, &handle->size));
  clock_.set_owner(fmt::format("rank {} ({}, pid {})", handle->rank, host_name(), ::getpid()));
  world_ = Communicator(std::move(handle));
  clock_.enter("run", 0);
}

MpiSession::~MpiSession() = default;

void MpiSession::finalize() {
  expect(world_.has_value(), "MPI is finalized already");
  clock_.enter("end MPI", limit_seconds_);
  world_->barrier();
  world_->close();
  world_.reset();
  check(MPI_Finalize());
  clock_.enter("ended", limit_seconds_);  // mpirun waits until the process is gone.
}

void MpiSession::abort(int exit_code) {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started != 0 && ended == 0) {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace jforge
