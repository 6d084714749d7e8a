#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/model_directory.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/unit/data/tokenizer/tokenizer_fixture.h"

namespace jforge {
namespace {

using nlohmann::json;
using test::ScratchDirectory;
using test::small_tokenizer;
using test::TokenizerParts;
using testing::HasSubstr;

std::string refusal(const ScratchDirectory& directory) {
  try {
    (void)BytePairTokenizer::load(directory.path());
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "the tokenizer was accepted";
  return "";
}

TEST(TokenizerErrors, NoFiles) {
  const ScratchDirectory directory;
  EXPECT_FALSE(BytePairTokenizer::present(directory.path()));
  EXPECT_THAT(refusal(directory), HasSubstr(directory.path().string()));
  small_tokenizer().write_split_form(directory);
  EXPECT_TRUE(BytePairTokenizer::present(directory.path()));
  std::filesystem::remove(directory.path() / "tokenizer_config.json");
  EXPECT_FALSE(BytePairTokenizer::present(directory.path()));
  EXPECT_FALSE(BytePairTokenizer::present(directory.path() / "absent"));
}

TEST(TokenizerErrors, WhatIsNoModelDirectorySaysWhatItIs) {
  const ScratchDirectory directory;
  directory.write("config.json", "{}");
  const auto said = [](const std::filesystem::path& path) {
    return test::message_of<DataError>([&] { expect_model_directory(path); });
  };
  EXPECT_EQ(said(directory.path()), "nothing thrown");
  EXPECT_THAT(said(directory.path() / "config.json"), HasSubstr("a file; name the Hugging Face"));
  EXPECT_THAT(said("/nonexistent/model"),
              testing::EndsWith("/nonexistent/model: no such directory"));
  EXPECT_THAT(said("Someone/Some-Model-0.5B"),
              HasSubstr("hf download Someone/Some-Model-0.5B --local-dir "
                        "models/Some-Model-0.5B"));
  EXPECT_THAT(said("models/Some-Model-0.5B"),
              HasSubstr("hf download OWNER/Some-Model-0.5B --local-dir models/Some-Model-0.5B"));
  EXPECT_THAT(said("models/a/b"), testing::EndsWith("no such directory"));

  const ScratchDirectory other;
  EXPECT_EQ(said(other.path()), "nothing thrown") << "a tokenizer or config.json will be missed";
  const std::filesystem::path cached = other.path() / "models--A--B";
  const std::filesystem::path snapshot = cached / "snapshots" / "0a1b";
  std::filesystem::create_directories(snapshot);
  EXPECT_EQ(said(other.path()), "nothing thrown");
  std::ofstream(snapshot / "config.json") << "{}";
  for (const auto& path : {other.path(), cached}) {
    EXPECT_THAT(said(path), testing::EndsWith("in it: " + snapshot.string()));
  }
  EXPECT_EQ(said(snapshot), "nothing thrown");
  std::filesystem::remove_all(cached);

  const ScratchDirectory run;
  run.write("resolved_config.toml", "");
  EXPECT_THAT(said(run.path()),
              testing::AllOf(HasSubstr("a run that has not exported its model yet"),
                             HasSubstr("jforge export " + run.path().string() + "/checkpoints/")));
  std::filesystem::create_directory(run.path() / "model");
  run.write("model/config.json", "{}");
  EXPECT_THAT(said(run.path()),
              testing::EndsWith("name the one in it, " + run.path().string() + "/model"));
  const ScratchDirectory checkpoint;
  checkpoint.write("manifest.json", "{}");
  EXPECT_THAT(said(checkpoint.path()),
              testing::EndsWith("jforge export " + checkpoint.path().string() + " OUT"));

  const ScratchDirectory trainer;
  for (const char* const name : {"checkpoint-900", "checkpoint-1000"}) {
    std::filesystem::create_directory(trainer.path() / name);
    trainer.write(std::string(name) + "/config.json", "{}");
  }
  EXPECT_THAT(said(trainer.path()),
              testing::EndsWith("the newest is " + trainer.path().string() + "/checkpoint-1000"));

  other.write("small.Q4_K_M.gguf", "GGUF");
  EXPECT_THAT(said(other.path()), HasSubstr("holds GGUF files"));
  std::filesystem::remove(other.path() / "small.Q4_K_M.gguf");
  other.write("adapter_config.json", "{}");
  EXPECT_THAT(said(other.path()), HasSubstr("holds a PEFT adapter"));
  other.write("tokenizer.json", "{}");
  EXPECT_EQ(said(other.path()), "nothing thrown") << "its tokenizer may be read";
}

TEST(TokenizerErrors, ALargeFileThatWasNotFetchedIsNamed) {
  const ScratchDirectory directory;
  small_tokenizer().write_split_form(directory);
  directory.write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n");
  EXPECT_THAT(refusal(directory), HasSubstr("tokenizer.json: a Git LFS pointer"));
}

TEST(TokenizerErrors, InvalidUtf8TextNamesTheByte) {
  const ScratchDirectory directory;
  small_tokenizer().write_split_form(directory);
  const auto tokenizer = BytePairTokenizer::load(directory.path());
  EXPECT_THAT(test::message_of<DataError>([&] { return tokenizer.encode("abc\xFF"); }),
              HasSubstr("byte 3"));
}

struct Damage {
  const char* name;
  std::function<void(TokenizerParts&)> spoil;
  const char* expected;
};

TEST(TokenizerErrors, SplitForm) {
  const std::vector<Damage> damages = {
      {"duplicate id", [](auto& p) { p.vocabulary["zz"] = 65; }, "id 65"},
      {"negative id", [](auto& p) { p.vocabulary["zz"] = -3; }, "zz"},
      {"fraction", [](auto& p) { p.vocabulary["zz"] = 1.5; }, "zz"},
      {"huge id", [](auto& p) { p.vocabulary["zz"] = 2000000000; }, "limit"},
      {"id beyond 64 bits", [](auto& p) { p.vocabulary["zz"] = 18446744073709551615ULL; }, "zz"},
      {"missing byte", [](auto& p) { p.vocabulary.erase("Ċ"); }, "0x0a"},
      {"raw characters", [](auto& p) { p.vocabulary["字"] = 290; }, "字"},
      {"unknown merge part", [](auto& p) { p.merges.emplace_back("q x"); }, "'qx'"},
      {"three parts", [](auto& p) { p.merges.emplace_back("a b c"); }, "line 14"},
      {"one part", [](auto& p) { p.merges.emplace_back("ab"); }, "line 14"},
      {"empty line", [](auto& p) { p.merges.insert(p.merges.begin(), ""); }, "line 2"},
      {"repeated merge", [](auto& p) { p.merges.emplace_back("h e"); }, "repeats rule 0"},
      {"class", [](auto& p) { p.config["tokenizer_class"] = "LlamaTokenizer"; }, "LlamaTokenizer"},
      {"no class", [](auto& p) { p.config.erase("tokenizer_class"); }, "tokenizer_class"},
      {"eos unknown", [](auto& p) { p.config["eos_token"] = "</s>"; }, "eos_token '</s>'"},
      {"eos type", [](auto& p) { p.config["eos_token"] = 3; }, "eos_token"},
      {"bos added", [](auto& p) { p.config["add_bos_token"] = true; }, "add_bos_token"},
      {"flag type", [](auto& p) { p.config["add_prefix_space"] = "no"; }, "add_prefix_space"},
      {"decoder type", [](auto& p) { p.config["added_tokens_decoder"] = 1; }, "added_tokens"},
      {"decoder key",
       [](auto& p) { p.config["added_tokens_decoder"]["12x"] = test::added_token("<y>", true); },
       "12x"},
      {"id taken",
       [](auto& p) { p.config["added_tokens_decoder"]["65"] = test::added_token("<y>", true); },
       "id 65"},
      {"content twice",
       [](auto& p) { p.config["added_tokens_decoder"]["309"] = test::added_token("<tool>", true); },
       "<tool>"},
      {"empty content",
       [](auto& p) { p.config["added_tokens_decoder"]["309"] = test::added_token("", true); },
       "309"},
      {"single_word",
       [](auto& p) { p.config["added_tokens_decoder"]["303"]["single_word"] = true; },
       "single_word"},
      {"unknown field", [](auto& p) { p.config["added_tokens_decoder"]["303"]["colour"] = 1; },
       "colour"},
      {"special unknown", [](auto& p) { p.config["additional_special_tokens"].push_back("<|x|>"); },
       "<|x|>"},
      {"extra special unknown", [](auto& p) { p.config["extra_special_tokens"] = {"<|x|>"}; },
       "extra_special_tokens '<|x|>'"},
      {"named special unknown",
       [](auto& p) {
         p.config["model_specific_special_tokens"] = {{"image_token", "<|x|>"}};
       },
       "model_specific_special_tokens '<|x|>'"},
      {"extra special type", [](auto& p) { p.config["extra_special_tokens"] = 3; },
       "extra_special_tokens"},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    TokenizerParts parts = small_tokenizer();
    damage.spoil(parts);
    const ScratchDirectory directory;
    parts.write_split_form(directory);
    EXPECT_THAT(refusal(directory), HasSubstr(damage.expected));
  }
}

TEST(TokenizerErrors, FilesNestedWithoutBound) {
  for (const char* name :
       {"vocab.json", "tokenizer_config.json", "tokenizer.json", "added_tokens.json"}) {
    SCOPED_TRACE(name);
    const ScratchDirectory directory;
    small_tokenizer().write_split_form(directory);
    std::string text = R"({"normalizer": )";
    for (int i = 0; i < 100'000; ++i) {
      text += R"({"type": "Sequence", "normalizers": [)";
    }
    for (int i = 0; i < 100'000; ++i) {
      text += "]}";
    }
    directory.write(name, text + "}");
    EXPECT_THAT(refusal(directory),
                HasSubstr(std::string(name) + ": not valid JSON: nested more than 64 levels"));
  }
}

TEST(TokenizerErrors, FilesThatAreNotWhatTheyShouldBe) {
  for (const char* name :
       {"vocab.json", "tokenizer_config.json", "tokenizer.json", "added_tokens.json"}) {
    for (const char* content : {"", "{", "[]", "nonsense", "{\"a\": \"\xFF\"}", "{\"zz\": 5}"}) {
      if (std::string(name) == "tokenizer_config.json" && std::string(content) == "{\"zz\": 5}") {
        continue;
      }
      SCOPED_TRACE(std::string(name) + ": " + content);
      const ScratchDirectory directory;
      small_tokenizer().write_split_form(directory);
      directory.write(name, content);
      EXPECT_THAT(refusal(directory), HasSubstr(std::string(name) == "vocab.json" &&
                                                        std::string(content) == "{\"zz\": 5}"
                                                    ? "merge rule 0"
                                                    : name));
    }
  }
  const ScratchDirectory directory;
  small_tokenizer().write_split_form(directory);
  directory.write("merges.txt", "a \xFF\n");
  EXPECT_THAT(refusal(directory), HasSubstr("merges.txt"));
}

struct JsonDamage {
  const char* pointer;
  json value;
  const char* expected;
};

json template_of(const std::vector<json>& pieces) {
  return {{"type", "TemplateProcessing"}, {"single", pieces}};
}

TEST(TokenizerErrors, WhatTokenizerJsonMayNotSay) {
  const json text_piece = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json second_piece = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  const json bos_piece = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const std::vector<JsonDamage> damages = {
      {"/model/type", "WordPiece", "WordPiece"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/unk_token", "<unk>", "unk_token"},
      {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/model/fuse_unk", true, "fuse_unk"},
      {"/model/byte_fallback", true, "byte_fallback"},
      {"/model/ignore_merges", "yes", "ignore_merges"},
      {"/model/novelty", 1, "novelty"},
      {"/model/vocab", json::array(), "vocab"},
      {"/model/merges", json::object(), "merges"},
      {"/model/merges/3", "aa", "merge 3"},
      {"/model/merges/3", {"a", "b", "c"}, "merge 3"},
      {"/novelty", 1, "novelty"},
      {"/normalizer", {{"type", "Lowercase"}}, "Lowercase"},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}}, "NFKC"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "Whitespace"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "Removed"},
      {"/pre_tokenizer/pretokenizers/0/invert", true, "invert"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "pattern"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(", "compile"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "add_prefix_space"},
      {"/post_processor", {{"type", "BertProcessing"}}, "BertProcessing"},
      {"/post_processor", {{"type", "Sequence"}}, "processors"},
      {"/post_processor",
       {{"type", "Sequence"}, {"processors", {{{"type", "RobertaProcessing"}}}}},
       "RobertaProcessing"},
      {"/post_processor", {{"type", "TemplateProcessing"}}, "single"},
      {"/post_processor", template_of({bos_piece, text_piece}), "<s>"},
      {"/post_processor", template_of({text_piece, bos_piece}), "<s>"},
      {"/post_processor", template_of({text_piece, text_piece}), "TemplateProcessing.single"},
      {"/post_processor", template_of({second_piece}), "TemplateProcessing.single"},
      {"/post_processor", template_of({"A"}), "TemplateProcessing.single"},
      {"/post_processor", template_of({}), "TemplateProcessing.single"},
      {"/decoder", nullptr, "decoder"},
      {"/decoder", {{"type", "Metaspace"}}, "Metaspace"},
      {"/added_tokens/0", 3, "added token"},
      {"/added_tokens/0/id", "x", "added token"},
      {"/added_tokens/0/content", nullptr, "content"},
  };
  for (const JsonDamage& damage : damages) {
    SCOPED_TRACE(damage.pointer + damage.value.dump());
    json whole = small_tokenizer().tokenizer_json();
    whole[json::json_pointer(damage.pointer)] = damage.value;
    const ScratchDirectory directory;
    directory.write("tokenizer.json", whole.dump());
    const std::string message = refusal(directory);
    EXPECT_THAT(message, HasSubstr(damage.expected));
    EXPECT_THAT(message, HasSubstr("tokenizer.json"));
  }
}

TEST(TokenizerErrors, TheTwoFilesMustAgreeOnAddedTokens) {
  TokenizerParts parts = small_tokenizer();
  const ScratchDirectory directory;
  directory.write("tokenizer.json", parts.tokenizer_json().dump());
  directory.write("tokenizer_config.json", parts.config.dump());
  EXPECT_EQ(BytePairTokenizer::load(directory.path()).eos(), 302);
  parts.config["added_tokens_decoder"]["303"]["content"] = "<tool_call>";
  directory.write("tokenizer_config.json", parts.config.dump());
  EXPECT_THAT(refusal(directory), HasSubstr("303"));
}

}  // namespace
}  // namespace jforge
