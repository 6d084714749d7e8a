#include "checkpoints/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "data/tokenizer/model_directory.h"
#include "runtime/append_log.h"
#include "runtime/durable_file.h"
#include "runtime/file_mapping.h"
#include "runtime/phase_clock.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors is little-endian; a big-endian machine needs byte swaps here");

constexpr std::uint64_t kLengthBytes = 8;
/// Limit of the format's reference implementation.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// Deepest header: {name: {"shape": [dim]}}.
constexpr int kMaxHeaderDepth = 4;

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {{"F32", DType::float32}, {"BF16", DType::bfloat16},
                                 {"F16", DType::float16}, {"I32", DType::int32},
                                 {"I64", DType::int64},   {"U8", DType::uint8}};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw DataError(fmt::format("{}: {}; fetch or export the file again", path.string(), reason));
}

[[noreturn]] void refuse_tensor(const std::filesystem::path& path, std::string_view tensor,
                                const std::string& reason) {
  refuse(path, fmt::format("tensor {}: {}", tensor, reason));
}

/// Rejects duplicate names and deep nesting, which the library accepts.
nlohmann::json parse_header(const std::filesystem::path& path, std::string_view text) {
  if (text.empty() || text.front() != '{') {
    refuse(path, "the header is not a JSON object");
  }
  std::vector<std::set<std::string>> names;
  const auto callback = [&](int depth, nlohmann::json::parse_event_t event,
                            nlohmann::json& parsed) {
    switch (event) {
      case nlohmann::json::parse_event_t::object_start:
      case nlohmann::json::parse_event_t::array_start:
        if (depth >= kMaxHeaderDepth) {
          refuse(path, "the header is nested too deeply");
        }
        names.emplace_back();
        break;
      case nlohmann::json::parse_event_t::object_end:
      case nlohmann::json::parse_event_t::array_end:
        names.pop_back();
        break;
      case nlohmann::json::parse_event_t::key:
        if (!names.back().insert(parsed.get<std::string>()).second) {
          refuse(path,
                 fmt::format("the name {} occurs twice in the header", parsed.get<std::string>()));
        }
        break;
      case nlohmann::json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, callback);
  } catch (const nlohmann::json::exception& error) {
    refuse(path, fmt::format("the header is not valid JSON: {}", error.what()));
  }
}

std::optional<std::uint64_t> as_unsigned(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) {
    return std::nullopt;
  }
  return value.get<std::uint64_t>();
}

/// Returns nothing if the size exceeds 63 bits.
std::optional<std::uint64_t> tensor_bytes(std::span<const std::int64_t> shape, DType dtype) {
  std::int64_t product = static_cast<std::int64_t>(dtype_bytes(dtype));
  for (const std::int64_t dim : shape) {
    if (__builtin_mul_overflow(product, dim, &product)) {
      return std::nullopt;
    }
  }
  return static_cast<std::uint64_t>(product);
}

SafetensorsEntry parse_entry(const std::filesystem::path& path, const std::string& name,
                             const nlohmann::json& value, std::uint64_t data_bytes) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    refuse_tensor(path, name, "its entry must hold exactly dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  const nlohmann::json& dtype = value["dtype"];
  const auto* const known = std::ranges::find_if(kDTypes, [&](const DTypeName& candidate) {
    return dtype.is_string() && dtype.get_ref<const std::string&>() == candidate.name;
  });
  if (known == std::end(kDTypes)) {
    throw DataError(fmt::format("{}: tensor {}: dtype {} is not read; F32, F16 and BF16 are",
                                path.string(), name, dtype.dump()));
  }
  entry.dtype = known->dtype;

  if (!value["shape"].is_array()) {
    refuse_tensor(path, name, "shape is not an array");
  }
  for (const nlohmann::json& dim : value["shape"]) {
    const auto size = as_unsigned(dim);
    if (!size || *size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse_tensor(path, name, fmt::format("shape {} is not valid", value["shape"].dump()));
    }
    entry.shape.push_back(static_cast<std::int64_t>(*size));
  }

  const nlohmann::json& offsets = value["data_offsets"];
  const auto begin =
      offsets.is_array() && offsets.size() == 2 ? as_unsigned(offsets[0]) : std::nullopt;
  const auto end = begin ? as_unsigned(offsets[1]) : std::nullopt;
  if (!begin || !end || *begin > *end) {
    refuse_tensor(path, name, fmt::format("data_offsets {} are not valid", offsets.dump()));
  }
  entry.begin = *begin;
  entry.end = *end;
  if (entry.end > data_bytes) {
    refuse_tensor(path, name,
                  fmt::format("its data end at byte {} of a data section of {} bytes: the file is "
                              "truncated",
                              entry.end, data_bytes));
  }
  const auto bytes = tensor_bytes(entry.shape, entry.dtype);
  if (!bytes || *bytes != entry.end - entry.begin) {
    refuse_tensor(path, name,
                  fmt::format("shape {} of dtype {} does not fit its {} bytes",
                              value["shape"].dump(), known->name, entry.end - entry.begin));
  }
  return entry;
}

/// Throws unless the ranges tile the data section.
void check_ranges(const std::filesystem::path& path,
                  const std::map<std::string, SafetensorsEntry>& entries,
                  std::uint64_t data_bytes) {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> order;
  for (const auto& entry : entries) {
    order.push_back(&entry);
  }
  std::ranges::sort(order, {}, [](const auto* entry) {
    return std::pair(entry->second.begin, entry->second.end);
  });
  std::uint64_t reached = 0;
  for (const auto* entry : order) {
    if (entry->second.begin != reached) {
      refuse_tensor(path, entry->first,
                    fmt::format("its data begin at byte {}, {} byte {} where the tensor before it "
                                "ends",
                                entry->second.begin,
                                entry->second.begin < reached ? "overlapping, before"
                                                              : "leaving a hole after",
                                reached));
    }
    reached = entry->second.end;
  }
  if (reached != data_bytes) {
    refuse(path,
           fmt::format("{} bytes after the last tensor belong to none", data_bytes - reached));
  }
}

float float_from_bfloat16(std::uint16_t bits) { return to_float(BFloat16{bits}); }

float float_from_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0x1FU) {
    return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (fraction << 13));
  }
  // Subnormal or zero: fraction · 2^−24, exact in float32.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

template <float (*convert)(std::uint16_t)>
void convert_halves(const std::byte* source, std::span<float> output) {
  for (std::size_t i = 0; i < output.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, source + i * sizeof(bits), sizeof(bits));
    output[i] = convert(bits);
  }
}

template <class T>
std::string_view bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

bool fits(const SafetensorsTensor& tensor, std::span<const float> values) {
  return tensor_bytes(tensor.shape, tensor.stored) == values.size() * dtype_bytes(tensor.stored);
}

void write_values(AppendLog& file, const SafetensorsTensor& tensor) {
  // The log copies each chunk.
  constexpr std::size_t kChunk = std::size_t{1} << 18;
  std::vector<BFloat16> halves;
  const std::span<const float> values = tensor.read ? tensor.read() : tensor.values;
  expect(fits(tensor, values), "tensor's shape does not fit its values: " + tensor.name);
  for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
    const auto chunk = values.subspan(begin, std::min(kChunk, values.size() - begin));
    if (tensor.stored == DType::float32) {
      file.append(bytes_of(chunk));
      continue;
    }
    halves.resize(chunk.size());
    std::ranges::transform(chunk, halves.begin(), to_bfloat16);
    file.append(bytes_of(std::span<const BFloat16>(halves)));
  }
}

std::string make_header(std::span<const SafetensorsTensor> tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  std::uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    expect(tensor.stored == DType::float32 || tensor.stored == DType::bfloat16,
           "safetensors are written as float32 or bfloat16");
    expect(tensor.name != "__metadata__" && !header.contains(tensor.name),
           "tensor name occurs twice: " + tensor.name);
    const auto bytes = tensor_bytes(tensor.shape, tensor.stored);
    expect(bytes && (tensor.read || fits(tensor, tensor.values)),
           "tensor's shape does not fit its values: " + tensor.name);
    header[tensor.name] = {{"dtype", tensor.stored == DType::float32 ? "F32" : "BF16"},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  return text;
}

}  // namespace

struct SafetensorsFile::Mapping {
  explicit Mapping(std::filesystem::path file_path) : path(std::move(file_path)), memory(path) {}

  void parse();

  std::filesystem::path path;
  FileMapping memory;
  const std::byte* data = nullptr;
  std::map<std::string, SafetensorsEntry> entries;
};

void SafetensorsFile::Mapping::parse() {
  const std::byte* const begin = memory.bytes().data();
  const std::size_t bytes = memory.bytes().size();
  if (bytes < kLengthBytes) {
    refuse(path, fmt::format("{} bytes are too few for a header: the file is truncated", bytes));
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, begin, kLengthBytes);
  if (header_bytes > bytes - kLengthBytes) {
    expect_no_lfs_pointer(path, {reinterpret_cast<const char*>(begin), bytes});
    refuse(path,
           fmt::format("the header claims {} bytes, the file has {}: truncated, or another format",
                       header_bytes, bytes - kLengthBytes));
  }
  if (header_bytes > kMaxHeaderBytes) {
    refuse(path, fmt::format("the header of {} bytes is above the format's limit of {}",
                             header_bytes, kMaxHeaderBytes));
  }
  data = begin + kLengthBytes + header_bytes;
  const std::uint64_t data_bytes = bytes - kLengthBytes - header_bytes;
  const nlohmann::json header =
      parse_header(path, {reinterpret_cast<const char*>(begin + kLengthBytes),
                          static_cast<std::size_t>(header_bytes)});
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries.emplace(name, parse_entry(path, name, value, data_bytes));
      continue;
    }
    const bool texts = value.is_object() && std::ranges::all_of(value, [](const auto& item) {
                         return item.is_string();
                       });
    if (!texts) {
      refuse(path, "__metadata__ is not a map of strings");
    }
  }
  check_ranges(path, entries, data_bytes);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : mapping_(std::make_unique<Mapping>(path)) {
  mapping_->parse();
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::map<std::string, SafetensorsEntry>& SafetensorsFile::entries() const noexcept {
  return mapping_->entries;
}

bool SafetensorsFile::contains(std::string_view name) const {
  return mapping_->entries.contains(std::string(name));
}

const SafetensorsEntry& SafetensorsFile::find(std::string_view name,
                                              std::span<const std::int64_t> expected_shape) const {
  const auto found = mapping_->entries.find(std::string(name));
  if (found == mapping_->entries.end()) {
    refuse(mapping_->path, fmt::format("tensor {} is missing", name));
  }
  const SafetensorsEntry& entry = found->second;
  if (!std::ranges::equal(entry.shape, expected_shape)) {
    refuse_tensor(mapping_->path, name,
                  fmt::format("shape [{}], expected [{}]", fmt::join(entry.shape, ", "),
                              fmt::join(expected_shape, ", ")));
  }
  return entry;
}

std::vector<std::int64_t> dims_of(const Shape& shape) {
  std::vector<std::int64_t> dims;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    dims.push_back(shape[dim]);
  }
  return dims;
}

ConstTensorView SafetensorsFile::mapped(std::string_view name, const Shape& expected_shape) const {
  const SafetensorsEntry& entry = find(name, dims_of(expected_shape));
  const std::byte* const source = mapping_->data + entry.begin;
  const bool known = entry.dtype == DType::float32 || entry.dtype == DType::bfloat16;
  if (!known || std::bit_cast<std::uintptr_t>(source) % dtype_bytes(entry.dtype) != 0) {
    return {};
  }
  note_progress();
  return {source, entry.dtype, expected_shape};
}

void SafetensorsFile::read_float32(std::string_view name,
                                   std::span<const std::int64_t> expected_shape,
                                   std::span<float> output) const {
  const SafetensorsEntry& entry = find(name, expected_shape);
  expect((entry.end - entry.begin) / dtype_bytes(entry.dtype) == output.size(),
         "output span does not fit the tensor's shape");
  const std::byte* const source = mapping_->data + entry.begin;
  note_progress();
  switch (entry.dtype) {
    case DType::float32:
      if (!output.empty()) {
        std::memcpy(output.data(), source, output.size_bytes());
      }
      return;
    case DType::bfloat16:
      convert_halves<float_from_bfloat16>(source, output);
      return;
    case DType::float16:
      convert_halves<float_from_float16>(source, output);
      return;
    case DType::int32:
    case DType::int64:
    case DType::uint8:
    case DType::float64:
    case DType::int8:
      break;
  }
  refuse_tensor(mapping_->path, name,
                fmt::format("holds {}, not floating-point numbers", dtype_name(entry.dtype)));
}

void write_safetensors(const std::filesystem::path& path,
                       std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = make_header(tensors, metadata);
  const std::uint64_t header_bytes = header.size();
  publish_with(path, [&](const std::filesystem::path& temporary) {
    AppendLog file(temporary, AppendLog::Form::records);
    file.append(bytes_of(std::span<const std::uint64_t>(&header_bytes, 1)));
    file.append(header);
    for (const SafetensorsTensor& tensor : tensors) {
      write_values(file, tensor);
    }
    // Late write errors show on the descriptor that wrote.
    file.append({}, true);
  });
}

}  // namespace jforge
