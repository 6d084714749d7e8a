#include "workers/protocol/messages.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "runtime/error.h"

namespace jforge {

namespace {

static_assert(std::endian::native == std::endian::little,
              "messages are little-endian in memory order");

class Writer {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void put(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  void put(const std::string& text) {
    put(static_cast<std::uint64_t>(text.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), bytes, bytes + text.size());
  }
  void put(const std::vector<PromptId>& values) {
    put(static_cast<std::uint64_t>(values.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    bytes_.insert(bytes_.end(), bytes, bytes + values.size() * sizeof(PromptId));
  }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  requires std::is_arithmetic_v<T>
  void get(T& value) { std::memcpy(&value, take(sizeof(T)).data(), sizeof(T)); }
  void get(bool& value) {
    std::uint8_t byte = 0;
    get(byte);
    value = byte != 0;
  }
  void get(std::string& text) {
    const std::span<const std::byte> bytes = take(length(1));
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void get(std::vector<PromptId>& values) {
    const std::size_t count = length(sizeof(PromptId));
    values.resize(count);
    const std::span<const std::byte> bytes = take(count * sizeof(PromptId));
    if (!bytes.empty()) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
  }
  void finish() const {
    if (!bytes_.empty()) {
      throw CommError("control message has " + std::to_string(bytes_.size()) + " surplus bytes");
    }
  }

 private:
  [[nodiscard]] std::size_t length(std::size_t element_bytes) {
    std::uint64_t count = 0;
    get(count);
    if (count > bytes_.size() / element_bytes) {
      throw CommError("control message is shorter than it says");
    }
    return static_cast<std::size_t>(count);
  }
  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size()) {
      throw CommError("control message is shorter than it says");
    }
    const std::span<const std::byte> front = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return front;
  }
  std::span<const std::byte> bytes_;
};

// Used for encoding and decoding.
template <class Message, class Visit>
void visit_fields(Message& message, Visit&& visit) {
  using T = std::remove_const_t<Message>;
  if constexpr (std::is_same_v<T, Heartbeat>) {
    visit(message.phase);
    visit(message.step);
    visit(message.progress);
    visit(message.age_seconds);
    visit(message.waiting);
    visit(message.tokens);
    visit(message.forwards);
    visit(message.host);
    visit(message.process_id);
  } else if constexpr (std::is_same_v<T, LeaseRequest>) {
    visit(message.round);
    visit(message.stop_requested);
    visit(message.idle);
  } else if constexpr (std::is_same_v<T, CommitDone>) {
    visit(message.id);
    visit(message.attempt);
    visit(message.tokens);
    visit(message.forwards);
  } else if constexpr (std::is_same_v<T, HeartbeatReply>) {
    visit(message.host);
    visit(message.process_id);
    visit(message.job_progress);
    visit(message.stop);
  } else {  // LeaseReply, CommitRequest, CommitReply
    visit(message.lease.id);
    visit(message.lease.attempt);
    visit(message.lease.prompts);
  }
}

template <class Variant>
std::vector<std::byte> encode_variant(const Variant& variant) {
  Writer writer;
  writer.put(static_cast<std::uint8_t>(variant.index()));
  std::visit(
      [&](const auto& message) {
        if constexpr (std::is_same_v<std::decay_t<decltype(message)>, LeaseReply>) {
          writer.put(static_cast<std::uint8_t>(message.answer));
        }
        visit_fields(message, [&](const auto& field) { writer.put(field); });
      },
      variant);
  return writer.take();
}

template <class Variant, std::size_t I = 0>
Variant decode_alternative(std::size_t index, Reader& reader) {
  if constexpr (I < std::variant_size_v<Variant>) {
    if (index != I) {
      return decode_alternative<Variant, I + 1>(index, reader);
    }
    std::variant_alternative_t<I, Variant> message;
    if constexpr (std::is_same_v<decltype(message), LeaseReply>) {
      std::uint8_t answer = 0;
      reader.get(answer);
      if (answer > static_cast<std::uint8_t>(LeaseAnswer::stop)) {
        throw CommError("control message holds an unknown lease answer");
      }
      message.answer = static_cast<LeaseAnswer>(answer);
    }
    visit_fields(message, [&](auto& field) { reader.get(field); });
    reader.finish();
    return message;
  } else {
    throw CommError("control message of unknown kind " + std::to_string(index));
  }
}

template <class Variant>
Variant decode_variant(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  std::uint8_t index = 0;
  reader.get(index);
  return decode_alternative<Variant>(index, reader);
}

}  // namespace

std::vector<std::byte> encode(const RankMessage& message) { return encode_variant(message); }
std::vector<std::byte> encode(const CoordinatorMessage& message) { return encode_variant(message); }
RankMessage decode_rank_message(std::span<const std::byte> bytes) {
  return decode_variant<RankMessage>(bytes);
}
CoordinatorMessage decode_coordinator_message(std::span<const std::byte> bytes) {
  return decode_variant<CoordinatorMessage>(bytes);
}

}  // namespace jforge
