#include "checkpoints/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <system_error>

#include "checkpoints/safetensors.h"
#include "runtime/bounded_json.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

using Json = nlohmann::json;

constexpr const char* kFormatName = "jforge-checkpoint";
constexpr const char* kChecksumKey = "checksum";

/// Excludes the checksum field; keys are sorted.
std::string document_checksum(Json document) {
  document.erase(kChecksumKey);
  return hash_hex(hash64(std::string_view(document.dump())));
}

std::uint64_t parse_hash(const std::string& text) {
  if (const auto hash = parse_hash_hex(text)) {
    return *hash;
  }
  throw DataError(fmt::format("\"{}\" is not a 64-bit hash", text));
}

Json to_document(const CheckpointShard& shard) {
  Json slices = Json::array();
  for (const CheckpointSlice& slice : shard.slices) {
    slices.push_back({slice.tensor, slice.begin, slice.end});
  }
  return {{"rank", shard.rank},
          {"file", shard.file},
          {"bytes", shard.bytes},
          {"xxh3", hash_hex(shard.hash)},
          {"slices", std::move(slices)}};
}

CheckpointShard shard_from_document(const Json& document) {
  CheckpointShard shard;
  shard.rank = json_integer<int>(document.at("rank"));
  shard.file = document.at("file").get<std::string>();
  shard.bytes = json_integer<std::uint64_t>(document.at("bytes"));
  shard.hash = parse_hash(document.at("xxh3").get<std::string>());
  for (const Json& slice : document.at("slices")) {
    if (slice.size() != 3) {
      throw DataError("a slice is not [tensor, begin, end]");
    }
    shard.slices.push_back({json_integer<std::size_t>(slice.at(0)),
                            json_integer<std::int64_t>(slice.at(1)),
                            json_integer<std::int64_t>(slice.at(2))});
  }
  return shard;
}

/// Throws DataError for a negative dimension or an overflow.
std::int64_t checked_elements(const CheckpointTensor& tensor) {
  std::int64_t product = 1;
  for (const std::int64_t dim : tensor.shape) {
    if (dim < 0 || (dim > 0 && product > std::numeric_limits<std::int64_t>::max() / dim)) {
      throw DataError(fmt::format("tensor {} has an impossible shape", tensor.name));
    }
    product *= dim;
  }
  return product;
}

void check_shards(const CheckpointManifest& manifest) {
  if (manifest.world_size < 1 ||
      manifest.shards.size() != static_cast<std::size_t>(manifest.world_size)) {
    throw DataError(fmt::format("it lists {} shards for a world of {}", manifest.shards.size(),
                                manifest.world_size));
  }
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const CheckpointShard& shard = manifest.shards[i];
    if (shard.rank != static_cast<Rank>(i)) {
      throw DataError(fmt::format("shard {} belongs to rank {}: a rank is missing or listed twice",
                                  i, shard.rank));
    }
    if (shard.file != shard_file_name(shard.rank, manifest.world_size)) {
      throw DataError(fmt::format("shard of rank {} is called \"{}\"", shard.rank, shard.file));
    }
  }
}

/// Requires every element of every tensor in exactly one slice.
void check_coverage(const CheckpointManifest& manifest) {
  std::set<std::string> names;
  std::vector<std::vector<CheckpointSlice>> by_tensor(manifest.tensors.size());
  for (const CheckpointShard& shard : manifest.shards) {
    for (const CheckpointSlice& slice : shard.slices) {
      if (slice.tensor >= manifest.tensors.size()) {
        throw DataError(fmt::format("{} holds a slice of tensor number {}, which does not exist",
                                    shard.file, slice.tensor));
      }
      by_tensor[slice.tensor].push_back(slice);
    }
  }
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const CheckpointTensor& tensor = manifest.tensors[t];
    if (!names.insert(tensor.name).second) {
      throw DataError(fmt::format("tensor {} is listed twice", tensor.name));
    }
    std::vector<CheckpointSlice>& slices = by_tensor[t];
    std::sort(slices.begin(), slices.end(),
              [](const CheckpointSlice& a, const CheckpointSlice& b) { return a.begin < b.begin; });
    std::int64_t covered = 0;
    for (const CheckpointSlice& slice : slices) {
      if (slice.begin != covered || slice.end <= slice.begin) {
        throw DataError(fmt::format("the slices of tensor {} overlap or leave a hole at element {}",
                                    tensor.name, std::min(covered, slice.begin)));
      }
      covered = slice.end;
    }
    if (covered != checked_elements(tensor)) {
      throw DataError(fmt::format("the slices of tensor {} cover {} of {} elements", tensor.name,
                                  covered, checked_elements(tensor)));
    }
  }
}

CheckpointManifest parse_document(std::string_view text) {
  const Json document = parse_bounded_json(text, "its text");
  if (!document.is_object() || document.value("format", "") != kFormatName) {
    throw DataError(fmt::format("it is not a {} document", kFormatName));
  }
  CheckpointManifest manifest;
  manifest.version = json_integer<int>(document.at("version"));
  if (manifest.version < CheckpointManifest::kOldestVersion ||
      manifest.version > CheckpointManifest::kFormatVersion) {
    throw DataError(fmt::format("it has format version {}, this program reads {} to {}",
                                manifest.version, CheckpointManifest::kOldestVersion,
                                CheckpointManifest::kFormatVersion));
  }
  if (document.at(kChecksumKey).get<std::string>() != document_checksum(document)) {
    throw DataError("its checksum does not match its content");
  }
  manifest.state.round = json_integer<std::int64_t>(document.at("round"));
  manifest.state.step = json_integer<std::int64_t>(document.at("step"));
  manifest.state.phase = document.at("phase").get<std::string>();
  manifest.state.optimizer_updates = json_integer<std::int64_t>(document.at("optimizer_updates"));
  manifest.state.identity =
      Identity(document.at("identity").get<std::map<std::string, std::string>>());
  manifest.state.cursors = document.at("cursors").get<std::string>();
  manifest.world_size = json_integer<int>(document.at("world_size"));
  manifest.has_moments = document.at("moments").get<bool>();
  manifest.nonce = document.at("nonce").get<std::string>();
  for (const Json& tensor : document.at("tensors")) {
    std::vector<std::int64_t> shape;
    for (const Json& dim : tensor.at("shape")) {
      shape.push_back(json_integer<std::int64_t>(dim));
    }
    manifest.tensors.push_back({tensor.at("name").get<std::string>(), std::move(shape)});
  }
  for (const Json& shard : document.at("shards")) {
    manifest.shards.push_back(shard_from_document(shard));
  }
  return manifest;
}

}  // namespace

std::int64_t CheckpointTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t dim : shape) {
    product *= dim;
  }
  return product;
}

std::string CheckpointManifest::to_json() const {
  Json tensor_list = Json::array();
  for (const CheckpointTensor& tensor : tensors) {
    tensor_list.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  }
  Json shard_list = Json::array();
  for (const CheckpointShard& shard : shards) {
    shard_list.push_back(to_document(shard));
  }
  Json document = {{"format", kFormatName},
                   {"version", version},
                   {"round", state.round},
                   {"step", state.step},
                   {"phase", state.phase},
                   {"optimizer_updates", state.optimizer_updates},
                   {"identity", state.identity},
                   {"cursors", state.cursors},
                   {"world_size", world_size},
                   {"moments", has_moments},
                   {"nonce", nonce},
                   {"tensors", std::move(tensor_list)},
                   {"shards", std::move(shard_list)}};
  document[kChecksumKey] = document_checksum(document);
  return document.dump(1) + "\n";
}

CheckpointManifest CheckpointManifest::from_json(std::string_view text, const std::string& source) {
  try {
    CheckpointManifest manifest = parse_document(text);
    check_shards(manifest);
    check_coverage(manifest);
    return manifest;
  } catch (const Json::exception& error) {
    throw DataError(fmt::format("{} is not a valid manifest: {}", source, error.what()));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{} is not a valid manifest: {}", source, error.what()));
  }
}

std::string checkpoint_directory_name(std::int64_t round, std::int64_t step) {
  return fmt::format("round-{}-step-{:08}", round, step);
}

std::string shard_file_name(Rank rank, int world_size) {
  return fmt::format("shard-{:05}-of-{:05}.h5", rank, world_size);
}

std::vector<CheckpointDirectory> list_checkpoint_directories(const std::filesystem::path& root) {
  static const std::regex pattern("round-([0-9]{1,9})-step-([0-9]{8,18})");
  std::vector<CheckpointDirectory> found;
  std::error_code reason;
  std::filesystem::directory_iterator entry(root, reason);
  if (reason == std::errc::no_such_file_or_directory) {
    return found;
  }
  for (const std::filesystem::directory_iterator end; !reason && entry != end;
       entry.increment(reason)) {
    const std::string name = entry->path().filename().string();
    std::smatch match;
    if (std::regex_match(name, match, pattern)) {
      const CheckpointDirectory directory{std::stoll(match[1]), std::stoll(match[2]),
                                          entry->path()};
      // Extra zeros would give one checkpoint two names.
      if (name == checkpoint_directory_name(directory.round, directory.step)) {
        found.push_back(directory);
      }
    }
  }
  if (reason) {
    throw EnvironmentError(fmt::format("cannot list {}: {}", root.string(), reason.message()));
  }
  std::sort(found.begin(), found.end(),
            [](const CheckpointDirectory& a, const CheckpointDirectory& b) {
              return a.round != b.round ? a.round > b.round : a.step > b.step;
            });
  return found;
}

CheckpointManifest read_manifest(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kManifestName;
  CheckpointManifest manifest = CheckpointManifest::from_json(read_file(path), path.string());
  const std::string expected = checkpoint_directory_name(manifest.state.round, manifest.state.step);
  const std::filesystem::path plain =
      directory.has_filename() ? directory : directory.parent_path();
  if (plain.filename().string() != expected) {
    throw DataError(
        fmt::format("{} belongs to {}, not to the directory it is in", path.string(), expected));
  }
  return manifest;
}

std::vector<CheckpointTensor> checkpoint_tensors(const ParameterTable& table) {
  std::vector<CheckpointTensor> tensors;
  for (const ParameterEntry& entry : table.entries()) {
    tensors.push_back({entry.name, dims_of(entry.shape)});
  }
  return tensors;
}

std::string shard_to_json(const CheckpointShard& shard) { return to_document(shard).dump(); }

CheckpointShard shard_from_json(std::string_view text) {
  try {
    return shard_from_document(try_bounded_json(text));
  } catch (const Json::exception& error) {
    throw InternalError(fmt::format("garbled shard description between ranks: {}", error.what()));
  }
}

}  // namespace jforge
