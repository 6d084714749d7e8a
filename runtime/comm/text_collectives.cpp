#include "runtime/comm/collectives.h"
#include "runtime/comm/transport_internal.h"
#include "runtime/error.h"

namespace jforge {

using detail::InCollective;
using detail::Operation;
using Handle = Communicator::Handle;

std::string broadcast_text(const Communicator& comm, const std::string& text, Rank root) {
  expect(0 <= root && root < comm.size(), "broadcast_text: no such root");
  const InCollective in(comm, Operation::broadcast_text, 0, root);
  auto size = static_cast<std::int64_t>(text.size());
  comm.handle().broadcast(std::as_writable_bytes(std::span(&size, 1)).data(), sizeof(size), root);
  std::string received =
      comm.rank() == root ? text : std::string(static_cast<std::size_t>(size), '\0');
  comm.handle().broadcast(std::as_writable_bytes(std::span(received)).data(), received.size(),
                          root);
  return received;
}

std::vector<std::string> gather_texts(const Communicator& comm, const std::string& text,
                                      Rank root) {
  expect(0 <= root && root < comm.size(), "gather_texts: no such root");
  const InCollective in(comm, Operation::gather_texts, 0, root);
  Handle& handle = comm.handle();
  const auto size = static_cast<std::int64_t>(text.size());
  if (comm.rank() != root) {
    const Handle::Outgoing announced{root, std::as_bytes(std::span(&size, 1)).data(), sizeof(size)};
    handle.exchange(std::span(&announced, 1), {});
    const Handle::Outgoing whole{root, std::as_bytes(std::span(text)).data(), text.size()};
    handle.exchange(std::span(&whole, 1), {});
    return {};
  }
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::int64_t> sizes(ranks);
  std::vector<std::string> texts(ranks);
  std::vector<Handle::Incoming> announced;
  for (Rank rank = 0; rank < comm.size(); ++rank) {
    std::int64_t& place = sizes[static_cast<std::size_t>(rank)];
    if (rank != root) {
      announced.push_back(
          {rank, std::as_writable_bytes(std::span(&place, 1)).data(), sizeof(size)});
    }
  }
  handle.exchange({}, announced);
  for (Rank rank = 0; rank < comm.size(); ++rank) {
    std::string& received = texts[static_cast<std::size_t>(rank)];
    if (rank == root) {
      received = text;
      continue;
    }
    received.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
    const Handle::Incoming whole{rank, std::as_writable_bytes(std::span(received)).data(),
                                 received.size()};
    handle.exchange({}, std::span(&whole, 1));
  }
  return texts;
}

}  // namespace jforge
