#include "runtime/tensorboard_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>

#include "runtime/append_log.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// Reflected polynomial of CRC-32C.
constexpr std::uint32_t kCastagnoli = 0x82F63B78U;

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1U) != 0 ? kCastagnoli : 0U);
    }
    table[byte] = value;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = crc_table();

void put_little_endian(std::string& bytes, std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) {
    bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
  }
}

// Protocol buffers. Event: 1 wall_time double, 2 step int64, 3 file_version string, 5 summary
// message, 7 session_log message. SessionLog: 1 status enum, START = 1.
// Summary: 1 repeated value; Value: 1 tag string, 2 simple_value float.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& message, std::uint64_t value) {
  while (value >= 0x80) {
    message.push_back(static_cast<char>((value & 0x7F) | 0x80));
    value >>= 7;
  }
  message.push_back(static_cast<char>(value));
}

void put_key(std::string& message, std::uint32_t field, Wire wire) {
  put_varint(message, (field << 3) | static_cast<std::uint32_t>(wire));
}

void put_bytes(std::string& message, std::uint32_t field, std::string_view value) {
  put_key(message, field, Wire::bytes);
  put_varint(message, value.size());
  message.append(value);
}

std::string event_head(double wall_seconds) {
  std::string event;
  put_key(event, 1, Wire::fixed64);
  put_little_endian(event, std::bit_cast<std::uint64_t>(wall_seconds), 8);
  return event;
}

void put_step(std::string& event, std::int64_t step) {
  put_key(event, 2, Wire::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
}

std::string record(std::string_view data) {
  std::string framed;
  put_little_endian(framed, data.size(), 8);
  put_little_endian(framed, masked_crc32c(framed), 4);
  framed.append(data);
  put_little_endian(framed, masked_crc32c(data), 4);
  return framed;
}

std::filesystem::path event_path(const std::filesystem::path& directory, std::int64_t wall_seconds,
                                 int attempt) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return directory /
         fmt::format("events.out.tfevents.{}.{}.{}", wall_seconds, host.data(), attempt);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

TensorboardLog::TensorboardLog(const std::filesystem::path& directory, std::int64_t wall_seconds,
                               int attempt, std::int64_t first_step)
    : path_(event_path(directory, wall_seconds, attempt)), log_(path_, AppendLog::Form::records) {
  std::string event = event_head(static_cast<double>(wall_seconds));
  put_bytes(event, 3, "brain.Event:2");
  log_.append(record(event));
  std::string started = event_head(static_cast<double>(wall_seconds));
  put_step(started, first_step);
  put_bytes(started, 7, std::string_view("\x08\x01", 2));
  log_.append(record(started));
}

void TensorboardLog::append(std::int64_t step, double wall_seconds,
                            std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string entry;
    put_bytes(entry, 1, tag);
    put_key(entry, 2, Wire::fixed32);
    put_little_endian(entry, std::bit_cast<std::uint32_t>(static_cast<float>(value)), 4);
    put_bytes(summary, 1, entry);
  }
  std::string event = event_head(wall_seconds);
  put_step(event, step);
  put_bytes(event, 5, summary);
  log_.append(record(event));
}

}  // namespace jforge
