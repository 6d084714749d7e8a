#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_data.h"

namespace jforge::test {

namespace fs = std::filesystem;

class ScratchDirectory : public TemporaryDirectory {
 public:
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path() / name, std::ios::binary) << content;
  }
};

struct TokenizerParts {
  nlohmann::json vocabulary = nlohmann::json::object();
  std::vector<std::string> merges;  // "left right"
  nlohmann::json config;            // tokenizer_config.json

  [[nodiscard]] std::string merges_txt() const {
    std::string text = "#version: 0.2\n";
    for (const std::string& merge : merges) text += merge + "\n";
    return text;
  }

  [[nodiscard]] nlohmann::json tokenizer_json() const {
    using nlohmann::json;
    json added = json::array();
    for (const auto& [id, token] : config.at("added_tokens_decoder").items()) {
      json entry = token;
      entry["id"] = std::stoi(id);
      added.push_back(entry);
    }
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added},
            {"normalizer", {{"type", "NFC"}}},
            {"pre_tokenizer",
             {{"type", "Sequence"},
              {"pretokenizers",
               {{{"type", "Split"},
                 {"pattern", {{"Regex", std::string(kQwen2Split)}}},
                 {"behavior", "Isolated"},
                 {"invert", false}},
                {{"type", "ByteLevel"},
                 {"add_prefix_space", false},
                 {"trim_offsets", false},
                 {"use_regex", false}}}}}},
            {"post_processor",
             {{"type", "ByteLevel"},
              {"add_prefix_space", false},
              {"trim_offsets", false},
              {"use_regex", false}}},
            {"decoder",
             {{"type", "ByteLevel"},
              {"add_prefix_space", false},
              {"trim_offsets", false},
              {"use_regex", false}}},
            {"model",
             {{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", nullptr},
              {"continuing_subword_prefix", ""},
              {"end_of_word_suffix", ""},
              {"fuse_unk", false},
              {"byte_fallback", false},
              {"ignore_merges", false},
              {"vocab", vocabulary},
              {"merges", merges}}}};
  }

  void write_split_form(const ScratchDirectory& directory) const {
    directory.write("vocab.json", vocabulary.dump());
    directory.write("merges.txt", merges_txt());
    directory.write("tokenizer_config.json", config.dump());
  }
};

inline nlohmann::json added_token(const std::string& content, bool special) {
  return {{"content", content}, {"special", special},   {"lstrip", false},
          {"rstrip", false},    {"single_word", false}, {"normalized", false}};
}

/// 256 bytes, 12 merges, 5 added tokens; ids: bytes 0..255, merges 256.., added 300...
inline TokenizerParts small_tokenizer() {
  TokenizerParts parts;
  for (int byte = 0; byte < 256; ++byte) {
    parts.vocabulary[spell_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  }
  parts.merges = {"h e", "l l", "he ll", "a a",   "aa aa", "hell o",
                  "Ġ w", "o r", "b a",   "Ġw or", "Ã ©",   "aaaa aaaa"};
  int next = 256;
  for (const std::string& merge : parts.merges) {
    const std::size_t blank = merge.find(' ');
    parts.vocabulary[merge.substr(0, blank) + merge.substr(blank + 1)] = next++;
  }
  parts.config = {{"tokenizer_class", "Qwen2Tokenizer"},
                  {"add_prefix_space", false},
                  {"eos_token", "<|im_end|>"},
                  {"pad_token", {{"content", "<|endoftext|>"}, {"special", true}}},
                  {"bos_token", nullptr},
                  {"additional_special_tokens", {"<|im_start|>", "<|im_end|>"}},
                  {"added_tokens_decoder",
                   {{"300", added_token("<|endoftext|>", true)},
                    {"301", added_token("<|im_start|>", true)},
                    {"302", added_token("<|im_end|>", true)},
                    {"303", added_token("<tool>", false)},
                    {"304", added_token("<tool>s", false)}}}};
  return parts;
}

}  // namespace jforge::test
