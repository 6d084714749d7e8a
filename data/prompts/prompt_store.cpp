#include "data/prompts/prompt_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <span>
#include <utility>

#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"

namespace jforge {
namespace {

void append_little_endian(std::string& bytes, std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
}

std::uint64_t hash_tokens(std::span<const TokenId> tokens) {
  std::string bytes;
  bytes.reserve(tokens.size() * 4);
  for (const TokenId token : tokens) {
    append_little_endian(bytes, static_cast<std::uint32_t>(token), 4);
  }
  return hash64(std::string_view(bytes));
}

class DigestBuilder {
 public:
  void add(std::span<const TokenId> tokens) {
    append_little_endian(bytes_, hash_tokens(tokens), 8);
  }
  [[nodiscard]] std::string digest() const { return hash_hex(hash64(std::string_view(bytes_))); }

 private:
  std::string bytes_;
};

void write_answers(Hdf5Writer& file, const std::vector<std::string>& answers) {
  std::vector<std::int64_t> offsets{0};
  std::vector<std::uint8_t> bytes;
  for (const std::string& answer : answers) {
    bytes.insert(bytes.end(), answer.begin(), answer.end());
    offsets.push_back(std::ssize(bytes));
  }
  if (!bytes.empty()) {
    file.write("answer_offsets", offsets);
    file.write("answers", bytes);
  }
}

/// Returns true if the offsets fit `prompts` items and `size` elements.
bool are_offsets(const std::vector<std::int64_t>& offsets, std::int64_t prompts,
                 std::int64_t size) {
  return prompts >= 0 && offsets.size() == static_cast<std::size_t>(prompts) + 1 &&
         offsets.front() == 0 && offsets.back() == size && std::ranges::is_sorted(offsets);
}

}  // namespace

std::string prompts_digest(const std::vector<StoredPrompt>& prompts) {
  DigestBuilder digest;
  for (const StoredPrompt& prompt : prompts) {
    digest.add(prompt.tokens);
  }
  return digest.digest();
}

void write_prompt_store(const std::filesystem::path& path, const PromptStoreContent& content) {
  expect(content.answers.empty() || content.answers.size() == content.prompts.size(),
         "a prompt store has an answer for every prompt, or none");
  std::vector<std::int64_t> offsets{0}, text_hashes, lines;
  std::vector<std::int32_t> files;
  for (const StoredPrompt& prompt : content.prompts) {
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(prompt.tokens.size()));
    text_hashes.push_back(std::bit_cast<std::int64_t>(prompt.text_hash));
    files.push_back(prompt.source_file);
    lines.push_back(prompt.source_line);
  }
  publish_with(path, [&](const std::filesystem::path& temporary) {
    Hdf5Writer file(temporary);
    file.attribute("format", "jforge-prompts");
    file.attribute("format_version", std::int64_t{1});
    file.attribute("num_prompts", static_cast<std::int64_t>(content.prompts.size()));
    file.attribute("digest", prompts_digest(content.prompts));
    file.attribute("identity", content.identity);
    file.write("offsets", offsets);
    file.create<TokenId>("tokens", offsets.back());
    // One write per prompt would be slow; one for all would double the memory.
    constexpr std::size_t kPieceTokens = std::size_t{4} << 20;
    std::vector<TokenId> piece;
    std::int64_t written = 0;
    const auto flush = [&] {
      file.write_slice<TokenId>("tokens", written, piece);
      written += static_cast<std::int64_t>(piece.size());
      piece.clear();
    };
    for (const StoredPrompt& prompt : content.prompts) {
      piece.insert(piece.end(), prompt.tokens.begin(), prompt.tokens.end());
      if (piece.size() >= kPieceTokens) {
        flush();
      }
    }
    flush();
    write_answers(file, content.answers);
    file.write("text_hash", text_hashes);
    file.write("source_file", files);
    file.write("source_line", lines);
    file.write("report", std::vector<std::uint8_t>(content.report.begin(), content.report.end()));
    file.close();
  });
}

PromptStore PromptStore::open(const std::filesystem::path& path, SealCheck check) {
  PromptStore store{Hdf5Reader(path, check)};
  const Hdf5Reader& file = store.file_;
  if (file.text_attribute("format") != "jforge-prompts") {
    throw DataError(fmt::format("{}: not a prompt store", path.string()));
  }
  if (const auto version = file.integer_attribute("format_version"); version != 1) {
    throw DataError(
        fmt::format("{}: format version {}, this program reads version 1", path.string(), version));
  }
  store.digest_ = file.text_attribute("digest");
  store.identity_ = file.text_attribute("identity");
  store.offsets_ = file.read<std::int64_t>("offsets");
  const std::int64_t prompts = file.integer_attribute("num_prompts");
  if (!are_offsets(store.offsets_, prompts, file.size("tokens"))) {
    throw DataError(
        fmt::format("{}: damaged: its offsets do not fit its tokens; delete it and import again",
                    path.string()));
  }
  if (file.has("answers")) {
    store.answer_offsets_ = file.read<std::int64_t>("answer_offsets");
    if (!are_offsets(store.answer_offsets_, prompts, file.size("answers"))) {
      throw DataError(
          fmt::format("{}: damaged: its answer_offsets do not fit its answers; delete it and "
                      "import again",
                      path.string()));
    }
  }
  for (const char* name : {"text_hash", "source_file", "source_line"}) {
    if (file.size(name) != prompts) {
      throw DataError(
          fmt::format("{}: damaged: '{}' has {} entries for {} prompts; delete it and "
                      "import again",
                      path.string(), name, file.size(name), prompts));
    }
  }
  return store;
}

void PromptStore::check_id(PromptId id) const {
  if (id < 0 || id >= size()) {
    throw DataError(fmt::format("{}: no prompt {} among {}", file_.path().string(), id, size()));
  }
}

std::int64_t PromptStore::length(PromptId id) const {
  check_id(id);
  const auto i = static_cast<std::size_t>(id);
  return offsets_[i + 1] - offsets_[i];
}

std::int64_t PromptStore::longest() const {
  std::int64_t most = 0;
  for (PromptId id = 0; id < size(); ++id) {
    most = std::max(most, length(id));
  }
  return most;
}

std::vector<TokenId> PromptStore::tokens(PromptId id) const {
  std::vector<TokenId> ids(static_cast<std::size_t>(length(id)));
  file_.read_slice<TokenId>("tokens", offsets_[static_cast<std::size_t>(id)], ids);
  return ids;
}

std::string PromptStore::answer(PromptId id) const {
  check_id(id);
  if (!has_answers()) {
    return {};
  }
  const auto i = static_cast<std::size_t>(id);
  std::vector<std::uint8_t> bytes(
      static_cast<std::size_t>(answer_offsets_[i + 1] - answer_offsets_[i]));
  file_.read_slice<std::uint8_t>("answers", answer_offsets_[i], bytes);
  return {bytes.begin(), bytes.end()};
}

std::string PromptStore::report() const {
  const auto bytes = file_.read<std::uint8_t>("report");
  return {bytes.begin(), bytes.end()};
}

std::vector<std::uint64_t> PromptStore::text_hashes() const {
  std::vector<std::uint64_t> hashes;
  for (const std::int64_t hash : file_.read<std::int64_t>("text_hash")) {
    hashes.push_back(std::bit_cast<std::uint64_t>(hash));
  }
  return hashes;
}

void PromptStore::verify() const {
  // In slices of whole prompts: the store need not fit in memory.
  constexpr std::int64_t kPieceTokens = std::int64_t{4} << 20;
  DigestBuilder digest;
  std::vector<TokenId> piece;
  for (std::size_t begin = 0; begin + 1 < offsets_.size();) {
    std::size_t end = begin + 1;
    while (end + 1 < offsets_.size() && offsets_[end + 1] - offsets_[begin] <= kPieceTokens) {
      ++end;
    }
    piece.resize(static_cast<std::size_t>(offsets_[end] - offsets_[begin]));
    file_.read_slice<TokenId>("tokens", offsets_[begin], piece);
    for (std::size_t i = begin; i < end; ++i) {
      digest.add(std::span(piece).subspan(static_cast<std::size_t>(offsets_[i] - offsets_[begin]),
                                          static_cast<std::size_t>(offsets_[i + 1] - offsets_[i])));
    }
    begin = end;
  }
  if (digest.digest() != digest_) {
    throw DataError(
        fmt::format("{}: damaged: its tokens have digest {} instead of {}; delete it "
                    "and import again",
                    file_.path().string(), digest.digest(), digest_));
  }
}

}  // namespace jforge
