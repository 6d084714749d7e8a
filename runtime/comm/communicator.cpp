#include <utility>

#include "runtime/comm/transport_internal.h"
#include "runtime/error.h"

namespace jforge {

using detail::InCollective;
using detail::Operation;

Communicator::Communicator(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
// MPI_Comm_free is collective and could wait forever, so only close() frees.
Communicator::~Communicator() = default;

Rank Communicator::rank() const noexcept { return handle_->rank; }
int Communicator::size() const noexcept { return handle_->size; }

Communicator Communicator::split(int color) const {
  const InCollective in(*this, Operation::duplicate, 0);
  return Communicator(handle_->split(color));
}

void Communicator::barrier() const {
  const InCollective in(*this, Operation::barrier, 0);
  handle_->barrier();
}

void Communicator::close() {
  if (handle_ == nullptr) {
    return;
  }
  const InCollective in(*this, Operation::close, 0);
  handle_->close();
  handle_.reset();
}

void Communicator::send(Rank destination, int tag, std::span<const std::byte> payload) const {
  expect(0 <= destination && destination < handle_->size, "send: no such rank");
  handle_->send(destination, tag, payload);
}

std::optional<ReceivedMessage> Communicator::try_receive() const { return handle_->try_receive(); }

}  // namespace jforge
