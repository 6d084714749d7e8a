#include <algorithm>
#include <chrono>
#include <climits>
#include <new>

#include "runtime/comm/mpi_check.h"
#include "runtime/comm/mpi_transport_internal.h"
#include "runtime/error.h"
#include "runtime/poll_until.h"

namespace jforge::detail {

namespace {
constexpr int kTag = 1;
/// A larger payload moves only while polled, so sleeps stay short.
constexpr std::size_t kLargeBytes = std::size_t{1} << 16;

int as_int(std::size_t value) {
  expect(value <= static_cast<std::size_t>(INT_MAX), "a block is too large for one MPI call");
  return static_cast<int>(value);
}
}  // namespace

MpiHandle::MpiHandle(MPI_Comm comm) {
  check(MPI_Comm_dup(comm, &messages_));
  check(MPI_Comm_dup(comm, &collectives_));
  check(MPI_Comm_rank(collectives_, &rank));
  check(MPI_Comm_size(collectives_, &size));
}

void MpiHandle::post(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
  requests_.clear();
  large_ = false;
  for (const Incoming& block : incoming) {
    const ByteRun run(block.bytes);
    large_ |= block.bytes > kLargeBytes;
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(block.data, run.count(), run.type(), block.from, kTag, collectives_, &request));
  }
  for (const Outgoing& block : outgoing) {
    const ByteRun run(block.bytes);
    large_ |= block.bytes > kLargeBytes;
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Isend(block.data, run.count(), run.type(), block.to, kTag, collectives_, &request));
  }
}

void MpiHandle::finish() {
  const auto count = static_cast<int>(requests_.size());
  if (!polite_) {
    check(MPI_Waitall(count, requests_.data(), MPI_STATUSES_IGNORE));
    return;
  }
  poll_until(
      [&] {
        int done = 0;
        check(MPI_Testall(count, requests_.data(), &done, MPI_STATUSES_IGNORE));
        if (done == 0 && abandoned_.load(std::memory_order_relaxed)) {
          throw CommError("a collective was abandoned because this rank failed");
        }
        return done != 0;
      },
      std::chrono::microseconds(10), std::chrono::microseconds(large_ ? 200 : 2000));
}

void MpiHandle::all_gather(std::byte* all, std::size_t bytes, std::size_t stride) {
  if (polite_) {
    Handle::all_gather(all, bytes, stride);
    return;
  }
  if (bytes == stride) {
    check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, all, as_int(bytes), MPI_BYTE, collectives_));
    return;
  }
  MPI_Datatype block = MPI_DATATYPE_NULL;
  MPI_Datatype spaced = MPI_DATATYPE_NULL;
  check(MPI_Type_contiguous(as_int(bytes), MPI_BYTE, &block));
  check(MPI_Type_create_resized(block, 0, static_cast<MPI_Aint>(stride), &spaced));
  check(MPI_Type_commit(&spaced));
  const int code = MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, all, 1, spaced, collectives_);
  check(MPI_Type_free(&spaced));
  check(MPI_Type_free(&block));
  check(code);
}

void MpiHandle::all_gather_blocks(std::byte* all, std::span<const std::size_t> bytes,
                                  std::span<const std::size_t> places) {
  if (polite_) {
    Handle::all_gather_blocks(all, bytes, places);
    return;
  }
  counts_.resize(bytes.size());
  displacements_.resize(places.size());
  std::transform(bytes.begin(), bytes.end(), counts_.begin(), as_int);
  std::transform(places.begin(), places.end(), displacements_.begin(), as_int);
  check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, all, counts_.data(), displacements_.data(),
                       MPI_BYTE, collectives_));
}

void MpiHandle::broadcast(std::byte* data, std::size_t bytes, Rank root) {
  if (polite_) {
    Handle::broadcast(data, bytes, root);
    return;
  }
  for (std::size_t begin = 0; begin < bytes; begin += kCopyPieceBytes) {
    const std::size_t count = std::min(kCopyPieceBytes, bytes - begin);
    check(MPI_Bcast(data + begin, as_int(count), MPI_BYTE, root, collectives_));
    note_progress();
  }
}

void MpiHandle::barrier() {
  if (polite_) {
    Handle::barrier();
    return;
  }
  check(MPI_Barrier(collectives_));
}

std::unique_ptr<Communicator::Handle> MpiHandle::split(int color) {
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split(collectives_, color, rank, &part));
  auto handle = std::make_unique<MpiHandle>(part);
  check(MPI_Comm_free(&part));
  handle->polite_ = polite_;
  return handle;
}

MpiHandle::~MpiHandle() {
  if (!sent_.empty()) {
    // Leaked, because MPI may still read them and wait for a receiver that never comes.
    static_cast<void>(new (std::nothrow) std::list<Sent>(std::move(sent_)));
  }
}

void MpiHandle::close() {
  for (Sent& message : sent_) {
    poll_until(
        [&] {
          int done = 0;
          check(MPI_Test(&message.request, &done, MPI_STATUS_IGNORE));
          return done != 0;
        },
        std::chrono::microseconds(50),
        std::chrono::microseconds(message.payload.size() > kLargeBytes ? 50 : 5000));
  }
  sent_.clear();
  check(MPI_Comm_free(&messages_));
  check(MPI_Comm_free(&collectives_));
}

void MpiHandle::send(Rank destination, int tag, std::span<const std::byte> payload) {
  Sent& message = sent_.emplace_back();
  message.payload.assign(payload.begin(), payload.end());
  const ByteRun run(payload.size());
  check(MPI_Isend(message.payload.data(), run.count(), run.type(), destination, tag, messages_,
                  &message.request));
  forget_taken();
}

void MpiHandle::forget_taken() {
  std::erase_if(sent_, [](Sent& message) {
    int done = 0;
    check(MPI_Test(&message.request, &done, MPI_STATUS_IGNORE));
    return done != 0;
  });
}

std::optional<ReceivedMessage> MpiHandle::try_receive() {
  forget_taken();
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status{};
  check(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, messages_, &found, &message, &status));
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

Communicator::Handle::HostPlace MpiHandle::place_on_host() {
  MPI_Comm host = MPI_COMM_NULL;
  check(MPI_Comm_split_type(collectives_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host));
  HostPlace place;
  check(MPI_Comm_rank(host, &place.rank));
  check(MPI_Comm_size(host, &place.size));
  check(MPI_Comm_free(&host));
  return place;
}

double MpiHandle::patience_seconds() const noexcept {
  // Messages in flight would land in memory that unwinding frees; the job ends soon after.
  constexpr double kSeconds = 2;
  return kSeconds;
}

}  // namespace jforge::detail
