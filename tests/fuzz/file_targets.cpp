#include <zlib.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoints/hf_model.h"
#include "checkpoints/safetensors.h"
#include "data/hdf5/hdf5_file.h"
#include "data/prompts/prompt_reader.h"
#include "data/prompts/prompt_store.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/trajectories/trajectory_digest.h"
#include "data/trajectories/trajectory_reader.h"
#include "data/trajectories/trajectory_writer.h"
#include "runtime/content_hash.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/support/temporary_directory.h"

namespace jforge {

namespace {

/// A directory in memory.
class Scratch {
 public:
  [[nodiscard]] const std::filesystem::path& path() const { return directory_.path(); }
  std::filesystem::path put(const char* name, std::span<const std::uint8_t> bytes) const {
    std::ofstream(path() / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    return path() / name;
  }

 private:
  test::TemporaryDirectory directory_{std::filesystem::path("/dev/shm")};
};

const Scratch& scratch() {
  static const Scratch made;
  return made;
}

std::vector<std::uint8_t> packed(std::span<const std::uint8_t> bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("zlib");
  }
  std::vector<std::uint8_t> out(deflateBound(&stream, bytes.size()) + 64);
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// Numbers from the input, mostly one signed byte, so that they often fit.
class Numbers {
 public:
  explicit Numbers(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  std::uint8_t byte() {
    const std::uint8_t value = bytes_.empty() ? 0 : bytes_.front();
    bytes_ = bytes_.subspan(bytes_.empty() ? 0 : 1);
    return value;
  }
  std::int64_t number() {
    const std::uint8_t small = byte();
    if (small != 0x80) {
      return static_cast<std::int8_t>(small);
    }
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) {
      value = value << 8 | byte();
    }
    return static_cast<std::int64_t>(value);
  }
  template <class T>
  std::vector<T> values() {
    std::vector<T> all(byte() % 16);
    for (T& value : all) {
      value = static_cast<T>(number());
    }
    return all;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

/// Writes a dataset, or none, or one of a wrong type.
template <class T>
void write_some(Hdf5Writer& writer, Numbers& numbers, const char* name) {
  switch (numbers.byte()) {
    case 0xFF:
      return;
    case 0xFE:
      writer.write(name, numbers.values<float>());
      return;
    default:
      writer.write(name, numbers.values<T>());
  }
}

void read_prompt_store(Numbers numbers) {
  const std::filesystem::path path = scratch().path() / "prompts.h5";
  {
    Hdf5Writer writer(path);
    writer.attribute("format", "jforge-prompts");
    writer.attribute("format_version", std::int64_t{1});
    writer.attribute("num_prompts", numbers.number());
    writer.attribute("digest", hash_hex(static_cast<std::uint64_t>(numbers.number())));
    writer.attribute("identity", "0123456789abcdef");
    write_some<std::int64_t>(writer, numbers, "offsets");
    write_some<std::int32_t>(writer, numbers, "tokens");
    for (const char* name : {"text_hash", "source_line"}) {
      write_some<std::int64_t>(writer, numbers, name);
    }
    write_some<std::int32_t>(writer, numbers, "source_file");
    write_some<std::uint8_t>(writer, numbers, "report");
    writer.close();
  }
  const PromptStore store = PromptStore::open(path);
  for (PromptId id = 0; id < store.size(); ++id) {
    static_cast<void>(store.tokens(id));
  }
  static_cast<void>(store.text_hashes());
  static_cast<void>(store.report());
  store.verify();
}

void read_trajectories(Numbers numbers) {
  const std::filesystem::path path = scratch().path() / "lease.h5";
  {
    Hdf5Writer writer(path, true, Hdf5Storage::compressed);
    writer.attribute("format", "jforge-trajectories");
    writer.attribute("format_version", kShardFormatVersion);
    for (const char* name : {"lease", "attempt", "rank", "round", "block_size"}) {
      writer.attribute(name, numbers.number());
    }
    writer.attribute("identity", "0123456789abcdef");
    const std::vector<std::int64_t> ids = numbers.values<std::int64_t>();
    writer.write("lease_prompt_ids", ids);
    writer.write("record_prompt_id", ids);
    const std::vector<std::int64_t> digests = numbers.values<std::int64_t>();
    writer.write("record_digest", digests);
    writer.attribute(
        "content_digest",
        hash_hex(combine_digests(std::vector<std::uint64_t>(digests.begin(), digests.end()))));
    write_some<std::uint8_t>(writer, numbers, "record_stop");
    for (const char* name : {"record_eos_position", "record_forwards", "record_flipped_blocks",
                             "prompt_offset", "block_offset", "state_offset"}) {
      write_some<std::int64_t>(writer, numbers, name);
    }
    for (const char* name : {"block_num_states", "block_states_seen", "block_selected_state",
                             "prompt_tokens", "state_tokens"}) {
      write_some<std::int32_t>(writer, numbers, name);
    }
    writer.close();
  }
  const TrajectoryReader reader(path);
  static_cast<void>(reader.totals());
  for (std::size_t record = 0; record < reader.size(); ++record) {
    static_cast<void>(reader.packed_length(record));
    static_cast<void>(reader.read(record));
  }
}

}  // namespace

void fuzz_safetensors(std::span<const std::uint8_t> bytes) {
  const SafetensorsFile file(scratch().put("model.safetensors", bytes));
  for (const auto& [name, entry] : file.entries()) {
    std::vector<float> values((entry.end - entry.begin) / dtype_bytes(entry.dtype));
    if (entry.dtype == DType::float32 || entry.dtype == DType::bfloat16 ||
        entry.dtype == DType::float16) {
      file.read_float32(name, entry.shape, values);
    }
  }
}

void fuzz_tokenizer_json(std::span<const std::uint8_t> bytes) {
  scratch().put("tokenizer.json", bytes);
  const auto tokenizer = BytePairTokenizer::load(scratch().path());
  const std::vector<TokenId> ids = tokenizer.encode("Ab 12 \xC3\xA9<|im_end|>\n");
  static_cast<void>(tokenizer.decode(ids, false));
}

void fuzz_model_config(std::span<const std::uint8_t> bytes) {
  scratch().put("config.json", bytes);
  static_cast<void>(read_hf_config(scratch().path()));
}

void fuzz_prompt_records(std::span<const std::uint8_t> bytes) {
  const std::vector<std::uint8_t> gzip = packed(bytes);
  for (const std::span<const std::uint8_t> form : {bytes, std::span<const std::uint8_t>(gzip)}) {
    PromptReaderOptions options;
    options.files = {scratch().put("prompts.jsonl", form)};
    options.field = "text | /a/b!/c";
    options.keep_if = {"score >= 0.5", "tags != x", "kind = 3"};
    options.order_by = "/order/0";
    options.max_bad_fraction = 1;
    try {
      static_cast<void>(read_prompts(options));
    } catch (const DataError&) {
      // The other form is read, too.
    }
  }
}

void fuzz_hdf5_store(std::span<const std::uint8_t> bytes) {
  Numbers numbers(bytes);
  if (numbers.byte() % 2 == 0) {
    read_prompt_store(numbers);
  } else {
    read_trajectories(numbers);
  }
}

}  // namespace jforge
