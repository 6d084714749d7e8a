#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/merge_table.h"
#include "data/tokenizer/unicode.h"
#include "runtime/error.h"
#include "tests/unit/data/tokenizer/tokenizer_fixture.h"

namespace jforge {
namespace {

using test::ScratchDirectory;
using test::small_tokenizer;
namespace fs = std::filesystem;
using testing::ElementsAre;
using Ids = std::vector<TokenId>;

BytePairTokenizer load_small() {
  const ScratchDirectory directory;
  small_tokenizer().write_split_form(directory);
  return BytePairTokenizer::load(directory.path());
}

std::vector<std::string> pieces(const std::vector<std::string>& expressions,
                                std::string_view text) {
  std::vector<std::string> out;
  PreTokenizer(expressions, "test").split(text, [&](std::string_view piece) {
    out.emplace_back(piece);
  });
  return out;
}

TEST(ByteLevel, SpellingIsABijectionOfBytes) {
  EXPECT_EQ(spell_bytes(" a\n"), "ĠaĊ");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(bytes_of_spelling(spell_bytes(all)), all);
  EXPECT_EQ(bytes_of_spelling("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_spelling("字"), std::nullopt);
}

TEST(Unicode, MalformedUtf8IsFoundWhereItBegins) {
  EXPECT_EQ(first_invalid_utf8("aé字🦙\xF4\x8F\xBF\xBF"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8(std::string_view("\0", 1)), std::nullopt);
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xE2\x82", "\xED\xA0\x80",
        "\xF0\x8F\xBF\xBF", "\xF0\x9F\xA6", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(first_invalid_utf8(std::string("ab") + bad), 2U) << bad;
    EXPECT_EQ(first_invalid_utf8(std::string("ab") + bad + "cdef"), 2U) << bad;
  }
}

// Expected: Python's bytes.decode("utf-8", "replace").
TEST(Unicode, MalformedUtf8IsReplacedAsPythonDoes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"plain \xC3\xA9", "plain é"},
      {"a\x80 b", "a\uFFFD b"},
      {"cut \xE2\x82", "cut \uFFFD"},
      {"\xF0\x9F\xA6 x", "\uFFFD x"},
      {"\xE2(\xA1", "\uFFFD(\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF0\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(replaced_utf8(bytes), text);
  }
}

TEST(Unicode, EveryScalarValueSurvivesUtf8) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(first_invalid_utf8(text), std::nullopt) << static_cast<std::uint32_t>(c);
    const CodePoint back = code_point_at(text, 0);
    ASSERT_EQ(back.value, c);
    ASSERT_EQ(back.length, text.size());
  }
}

TEST(Unicode, MarksAreOrderedWhateverTheirNumber) {
  // Class 230 (acute, composes with e; grave then does not), 232, and 220, which comes first.
  for (const int count : {1, 30, 70, 300000}) {
    std::string shuffled = "e";
    std::string below;
    std::string right;
    std::string above;
    for (int i = 0; i < count; ++i) {
      shuffled += i == 0 ? "\u0315\u0301\u0316" : "\u0315\u0300\u0316";
      right += "\u0315";
      below += "\u0316";
      if (i > 0) above += "\u0300";
    }
    EXPECT_TRUE(to_nfc(shuffled + "e") == "é" + below + above + right + "e") << count;
  }
}

TEST(Tokenizer, MergesByRankLeftmostFirst) {
  const BytePairTokenizer tokenizer = load_small();
  // hello = ((he)(ll))o is rule 5, id 261; " wor" is rule 9, id 265.
  EXPECT_THAT(tokenizer.encode("hello wor"), ElementsAre(261, 265));
  EXPECT_THAT(tokenizer.encode("aaa"), ElementsAre(259, 'a'));
  EXPECT_THAT(tokenizer.encode("aaaaa"), ElementsAre(260, 'a'));
  // "a a" outranks "b a".
  EXPECT_THAT(tokenizer.encode("baa"), ElementsAre('b', 259));
  EXPECT_THAT(tokenizer.encode("ba"), ElementsAre(264));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
}

TEST(Tokenizer, NormalisesToNfc) {
  const BytePairTokenizer tokenizer = load_small();
  EXPECT_THAT(tokenizer.encode("e\xCC\x81"), ElementsAre(266));
  EXPECT_THAT(tokenizer.encode("é"), ElementsAre(266));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("e\xCC\x81")), "é");
}

TEST(Tokenizer, AddedTokensAreFoundLongestFirst) {
  const BytePairTokenizer tokenizer = load_small();
  EXPECT_THAT(tokenizer.encode("<|im_start|>a<|im_end|>"), ElementsAre(301, 'a', 302));
  EXPECT_THAT(tokenizer.encode("<tool>s<tool>"), ElementsAre(304, 303));
  EXPECT_THAT(tokenizer.encode("<tool"), ElementsAre('<', 't', 'o', 'o', 'l'));
  EXPECT_THAT(tokenizer.encode("<<tool>>"), ElementsAre('<', 303, '>'));
  // No merge crosses an added token.
  EXPECT_THAT(tokenizer.encode("hell<tool>o"), ElementsAre(258, 303, 'o'));
}

TEST(Tokenizer, DecodesExactBytesAndSkipsSpecialTokensOnly) {
  const BytePairTokenizer tokenizer = load_small();
  const Ids ids = tokenizer.encode("a<tool><|im_end|>hello");
  EXPECT_EQ(tokenizer.decode(ids), "a<tool><|im_end|>hello");
  EXPECT_EQ(tokenizer.decode(ids, true), "a<tool>hello");
  EXPECT_EQ(tokenizer.decode(Ids{0xC3}), "\xC3");
  EXPECT_EQ(tokenizer.decode(Ids{0xC3, 0xA9}), "é");
}

TEST(Tokenizer, IdsWithoutATokenAreKnownAndSilent) {
  const BytePairTokenizer tokenizer = load_small();
  EXPECT_EQ(tokenizer.vocabulary_size(), 305);
  EXPECT_NE(tokenizer.decode(Ids{267}), "");
  EXPECT_NE(tokenizer.decode(Ids{304}), "");
  EXPECT_EQ(tokenizer.decode(Ids{'a', 268, 280, 299, 305, 99999, 1 << 30, 'b'}), "ab");
  EXPECT_THROW((void)tokenizer.decode(Ids{-1}), DataError);
}

TEST(Tokenizer, NamesItsTokens) {
  const BytePairTokenizer tokenizer = load_small();
  EXPECT_EQ(tokenizer.eos(), 302);
  EXPECT_EQ(tokenizer.pad(), 300);
  EXPECT_EQ(tokenizer.token_id("<|im_start|>"), 301);
  EXPECT_EQ(tokenizer.token_id("hello"), std::nullopt);
}

TEST(Tokenizer, StripFlagsSwallowWhiteSpace) {
  auto parts = small_tokenizer();
  parts.config["added_tokens_decoder"]["303"]["lstrip"] = true;
  parts.config["added_tokens_decoder"]["303"]["rstrip"] = true;
  const ScratchDirectory directory;
  parts.write_split_form(directory);
  const auto tokenizer = BytePairTokenizer::load(directory.path());
  EXPECT_THAT(tokenizer.encode("a \u3000<tool>\n\tb"), ElementsAre('a', 303, 'b'));
  EXPECT_THAT(tokenizer.encode(" <tool> <tool> "), ElementsAre(303, 303));
  EXPECT_THAT(tokenizer.encode(" <tool>s b"), ElementsAre(' ', 304, ' ', 'b'));
}

TEST(Tokenizer, NormalizedTokensAreSoughtInNormalisedText) {
  auto parts = small_tokenizer();
  parts.config["added_tokens_decoder"]["303"]["content"] = "<é>";
  const ScratchDirectory raw;
  parts.write_split_form(raw);
  EXPECT_THAT(BytePairTokenizer::load(raw.path()).encode("<e\xCC\x81>"),
              ElementsAre('<', 266, '>'));
  parts.config["added_tokens_decoder"]["303"]["normalized"] = true;
  const ScratchDirectory normalised;
  parts.write_split_form(normalised);
  EXPECT_THAT(BytePairTokenizer::load(normalised.path()).encode("<e\xCC\x81>"), ElementsAre(303));
}

TEST(Tokenizer, SplitExpressionFollowsQwen2) {
  const auto split = [](std::string_view text) { return pieces({std::string(kQwen2Split)}, text); };
  EXPECT_THAT(split("I'LL go  to 2023!!\n\n x"),
              ElementsAre("I", "'LL", " go", " ", " to", " ", "2", "0", "2", "3", "!!\n\n", " x"));
  EXPECT_THAT(split("a \n b   "), ElementsAre("a", " \n", " b", "   "));
  EXPECT_THAT(split("¿Qué?"), ElementsAre("¿Qué", "?"));
  EXPECT_THAT(split("\u00A0x\u0085"), ElementsAre("\u00A0x", "\u0085"));
  // Not white space since Unicode 6.3, unlike in PCRE2's \s.
  EXPECT_THAT(split("!\u180E!"), ElementsAre("!\u180E!"));
}

TEST(Tokenizer, SplitExpressionLeavesNothingOut) {
  EXPECT_THAT(pieces({"[a-z]+|b*"}, "12ab, c!"), ElementsAre("12", "ab", ", ", "c", "!"));
}

TEST(Tokenizer, LaterExpressionsCutThePiecesOfEarlierOnes) {
  const std::string digits(kSingleDigits);
  const std::string gpt2(kGpt2Split);
  EXPECT_THAT(pieces({digits, gpt2}, "a 12b  3½"),
              ElementsAre("a", " ", "1", "2", "b", "  ", "3", "½"));
  EXPECT_THAT(pieces({std::string(kDigitRuns), gpt2}, "a 12b"), ElementsAre("a", " ", "12", "b"));
  EXPECT_THAT(pieces({gpt2}, "a 12b"), ElementsAre("a", " 12", "b"));
}

TEST(MergeTable, NeighboursOfAByteWithoutATokenAreMerged) {
  std::array<TokenId, 256> byte_ids;
  std::iota(byte_ids.begin(), byte_ids.end(), 0);
  byte_ids[4] = -1;
  const MergeTable table(byte_ids, {{'h', 'e', 300}});
  for (const int count : {0, 1, 3, 1000}) {  // both ways to encode
    Ids ids;
    table.encode_piece("h" + std::string(static_cast<std::size_t>(count), '\x04') + "e", ids);
    EXPECT_THAT(ids, ElementsAre(300)) << count;
  }
}

TEST(Tokenizer, AWholePieceNeedsNoMergesWhereTheyAreIgnored) {
  test::TokenizerParts parts = small_tokenizer();
  parts.vocabulary["worhe"] = 290;  // no merge makes it
  parts.vocabulary["Ġé"] = 291;     // not in the bytes' spelling: two letters of one byte each
  nlohmann::json whole = parts.tokenizer_json();
  const ScratchDirectory merged;
  merged.write("tokenizer.json", whole.dump());
  whole["model"]["ignore_merges"] = true;
  const ScratchDirectory ignored;
  ignored.write("tokenizer.json", whole.dump());
  const auto with_merges = BytePairTokenizer::load(merged.path());
  const auto without = BytePairTokenizer::load(ignored.path());
  EXPECT_GT(with_merges.encode("worhe").size(), 1U);
  EXPECT_THAT(without.encode("worhe"), ElementsAre(290));
  EXPECT_EQ(without.encode("worhes"), with_merges.encode("worhes"));
  EXPECT_EQ(without.encode(" worhe"), with_merges.encode(" worhe"));
  EXPECT_EQ(without.encode("hello wor"), with_merges.encode("hello wor"));
  EXPECT_EQ(without.decode(without.encode("worhe hello")), "worhe hello");
}

TEST(Tokenizer, ATemplatesTokensStandBeforeATextAlone) {
  using nlohmann::json;
  const json bos = {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json processor = {
      {"type", "TemplateProcessing"},
      {"single", {bos, text}},
      {"pair", json::array()},
      {"special_tokens",
       {{"<|endoftext|>",
         {{"id", "<|endoftext|>"}, {"ids", {300}}, {"tokens", {"<|endoftext|>"}}}}}}};
  json whole = small_tokenizer().tokenizer_json();
  whole["post_processor"] = {{"type", "Sequence"},
                             {"processors", {whole["post_processor"], processor}}};
  const ScratchDirectory directory;
  directory.write("tokenizer.json", whole.dump());
  const auto tokenizer = BytePairTokenizer::load(directory.path());
  EXPECT_THAT(tokenizer.encode("hello"), ElementsAre(261));
  EXPECT_THAT(tokenizer.encode_alone("hello"), ElementsAre(300, 261));
  EXPECT_THAT(tokenizer.encode_alone(""), ElementsAre(300));
  EXPECT_THAT(load_small().encode_alone("hello"), ElementsAre(261));
  const auto refused = [&](const json& changed, const json& config) {
    const ScratchDirectory other;
    other.write("tokenizer.json", changed.dump());
    other.write("tokenizer_config.json", config.dump());
    EXPECT_THROW((void)BytePairTokenizer::load(other.path()), DataError) << config;
  };
  refused(whole, {{"add_bos_token", false}});
  refused(small_tokenizer().tokenizer_json(), {{"add_bos_token", true}});
  json twice = whole;
  twice["post_processor"]["processors"].push_back(processor);
  refused(twice, json::object());
  json unknown = whole;
  unknown["post_processor"]["processors"][1]["special_tokens"]["<|endoftext|>"]["ids"] = {9000};
  refused(unknown, json::object());
}

TEST(Tokenizer, DigitsAndMissingBytesAsInSmolLM2) {
  const ScratchDirectory directory;
  test::TokenizerParts parts = small_tokenizer();
  parts.vocabulary.erase(spell_bytes("\x04"));
  nlohmann::json whole = parts.tokenizer_json();
  whole["pre_tokenizer"] = {{"type", "Sequence"},
                            {"pretokenizers",
                             {{{"type", "Digits"}, {"individual_digits", true}},
                              {{"type", "ByteLevel"},
                               {"add_prefix_space", false},
                               {"trim_offsets", true},
                               {"use_regex", true}}}}};
  directory.write("tokenizer.json", whole.dump());
  directory.write("tokenizer_config.json", parts.config.dump());
  const BytePairTokenizer tokenizer = BytePairTokenizer::load(directory.path());
  const BytePairTokenizer complete = load_small();
  EXPECT_EQ(tokenizer.encode("x\x04 42"), complete.encode("x 42"));
  EXPECT_EQ(tokenizer.encode(std::string(2000, '\x04') + "he"), complete.encode("he"));
  EXPECT_TRUE(tokenizer.encode(std::string(2000, '\x04')).empty());
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("he 42")), "he 42");
}

TEST(Tokenizer, SplitExpressionsOfAnotherDialectAreRefused) {
  for (const char* expression :
       {R"(\w+)",         R"(\bx)",         R"(^a)",     R"(a$)",        R"([a[bc]])",
        R"([a&&b])",      R"([\S])",        R"(\h)",     R"(a\)",        R"((a)",
        R"([[:alpha:]])", R"(\p{N}{1,3}+)", R"(a{2}?)",  R"(a{2}+)",     R"(a{2,}+)",
        R"(a{,3})",       R"((?m:.))",      R"((?s:.))", R"(ab(?i)c|d)", R"((?x: a))"}) {
    EXPECT_THROW(pieces({expression}, "x"), DataError) << expression;
  }
  EXPECT_NO_THROW(pieces({R"([^\r\n\p{L}\]^$]\$\^\.)"}, "x"));
  EXPECT_NO_THROW(
      pieces({R"((?i:'s)|(?-i:x)|(?:y)|\p{L}++|a{1,3}|a{1,3}?|a{2}|[{,}+]\{,3\}\p{Lu}+)"}, "x"));
}

/// By definition, O(n^2).
Ids merge_by_definition(const std::string& text, const std::vector<MergeTable::Rule>& rules) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  for (bool merged = true; merged;) {
    merged = false;
    for (const auto& rule : rules) {
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        if (ids[i] != rule.left || ids[i + 1] != rule.right) continue;
        ids[i] = rule.merged;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        merged = true;
        break;
      }
      if (merged) break;
    }
  }
  return ids;
}

TEST(MergeTable, AgreesWithTheDefinitionAtEveryLength) {
  std::mt19937 random(7);
  std::array<TokenId, 256> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<TokenId>(i);
  for (int round = 0; round < 40; ++round) {
    // A rule may use another's product.
    Ids symbols{'a', 'b', 'c'};
    std::vector<MergeTable::Rule> rules;
    std::map<std::pair<TokenId, TokenId>, bool> used;
    while (rules.size() < 25) {
      const TokenId left = symbols[random() % symbols.size()];
      const TokenId right = symbols[random() % symbols.size()];
      if (!used.emplace(std::pair(left, right), true).second) continue;
      rules.push_back({left, right, static_cast<TokenId>(256 + rules.size())});
      symbols.push_back(rules.back().merged);
    }
    std::shuffle(rules.begin(), rules.end(), random);
    const MergeTable table(bytes, rules);
    for (const std::size_t length : {0U, 1U, 2U, 7U, 47U, 48U, 49U, 200U}) {
      std::string text;
      for (std::size_t i = 0; i < length; ++i) {
        text.push_back(static_cast<char>('a' + random() % (round % 2 == 0 ? 2 : 3)));
      }
      Ids ids;
      table.encode_piece(text, ids);
      ASSERT_EQ(ids, merge_by_definition(text, rules)) << text;
    }
  }
}

TEST(Tokenizer, TimeIsNearLinearInOneLongWord) {
  const BytePairTokenizer tokenizer = load_small();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, 'a')).size(), (1U << 20) / 8);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, ' ')).size(), 1U << 20);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, '!')).size(), 1U << 20);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, '\n')).size(), 1U << 20);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, '<')).size(), 1U << 20);
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin);
  // About a second if linear; hours if quadratic.
  EXPECT_LT(seconds.count(), 60.0);
}

TEST(Tokenizer, ManyThreadsShareOne) {
  const BytePairTokenizer tokenizer = load_small();
  std::string text;
  for (int i = 0; i < 500; ++i) text += "hello wor é<tool>aaaaa 12\n";
  const Ids expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        if (tokenizer.encode(text) != expected || tokenizer.decode(expected) != text) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, TokenizerJsonGivesTheSameIds) {
  const auto parts = small_tokenizer();
  const ScratchDirectory directory;
  directory.write("tokenizer.json", parts.tokenizer_json().dump());
  const auto whole = BytePairTokenizer::load(directory.path());
  const auto split = load_small();
  EXPECT_EQ(whole.eos(), std::nullopt);  // no tokenizer_config.json
  EXPECT_EQ(whole.vocabulary_size(), split.vocabulary_size());
  const std::string text = "hello<|im_end|> wor e\xCC\x81 I'll <tool>s 2023\r\n\t!?";
  EXPECT_EQ(whole.encode(text), split.encode(text));

  // Merges as pairs, no normaliser, GPT-2's expression.
  auto json = parts.tokenizer_json();
  json["model"]["merges"] = nlohmann::json::array({nlohmann::json::array({"2", "0"})});
  json["model"]["vocab"]["20"] = 256;
  json["model"]["vocab"].erase("he");
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  directory.write("tokenizer.json", json.dump());
  const auto gpt2 = BytePairTokenizer::load(directory.path());
  EXPECT_THAT(gpt2.encode("202"), ElementsAre(256, '2'));
  EXPECT_THAT(gpt2.encode("e\xCC\x81"), ElementsAre('e', 0xCC, 0x81));
}

/// A template that adds nothing, the last call's padding, no added_tokens_decoder.
TEST(Tokenizer, WhatTransformers5SavesGivesTheSameIds) {
  using nlohmann::json;
  const json text_alone = {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}};
  const json both = {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                     {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}};
  const json plain_template = {{"type", "TemplateProcessing"},
                               {"single", text_alone},
                               {"pair", both},
                               {"special_tokens", json::object()}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  const json processors = {{"type", "Sequence"}, {"processors", {byte_level, plain_template}}};
  const std::string text = "hello<|im_end|> wor e\xCC\x81 I'll <tool>s 2023\r\n\t!?";
  for (const json& post_processor : {plain_template, processors}) {
    json whole = small_tokenizer().tokenizer_json();
    whole["post_processor"] = post_processor;
    whole["truncation"] = {
        {"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
    whole["padding"] = {{"strategy", "BatchLongest"},
                        {"direction", "Right"},
                        {"pad_to_multiple_of", nullptr},
                        {"pad_id", 300},
                        {"pad_type_id", 0},
                        {"pad_token", "<|endoftext|>"}};
    const json config = {{"add_prefix_space", false},
                         {"backend", "tokenizers"},
                         {"bos_token", nullptr},
                         {"eos_token", "<|im_end|>"},
                         {"extra_special_tokens", {"<|im_start|>", "<|im_end|>"}},
                         {"is_local", true},
                         {"model_specific_special_tokens", {{"tool_token", "<tool>"}}},
                         {"pad_token", "<|endoftext|>"},
                         {"split_special_tokens", false},
                         {"tokenizer_class", "TokenizersBackend"}};
    const ScratchDirectory directory;
    directory.write("tokenizer.json", whole.dump());
    directory.write("tokenizer_config.json", config.dump());
    const auto tokenizer = BytePairTokenizer::load(directory.path());
    EXPECT_EQ(tokenizer.encode(text), load_small().encode(text));
    EXPECT_EQ(tokenizer.eos(), 302);
    EXPECT_EQ(tokenizer.pad(), 300);
  }
}

TEST(Tokenizer, CompressedFilesGiveTheSameTokenizer) {
  const auto parts = small_tokenizer();
  const ScratchDirectory plain;
  parts.write_split_form(plain);
  const ScratchDirectory packed;
  packed.write("tokenizer_config.json", parts.config.dump());
  for (const auto& [name, text] :
       {std::pair<std::string, std::string>("vocab.json.gz", parts.vocabulary.dump()),
        {"merges.txt.gz", parts.merges_txt()}}) {
    const gzFile file = gzopen((packed.path() / name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
              static_cast<int>(text.size()));
    ASSERT_EQ(gzclose(file), Z_OK);
  }
  ASSERT_TRUE(BytePairTokenizer::present(packed.path()));
  const auto a = BytePairTokenizer::load(plain.path());
  const auto b = BytePairTokenizer::load(packed.path());
  EXPECT_EQ(a.content_hash(), b.content_hash());
  EXPECT_EQ(a.encode("hello wor"), b.encode("hello wor"));

  std::ifstream file(packed.path() / "merges.txt.gz", std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  packed.write("merges.txt.gz", whole + "a b\n");
  EXPECT_THROW(BytePairTokenizer::load(packed.path()), DataError);
  packed.write("merges.txt.gz", whole.substr(0, whole.size() - 9));
  EXPECT_THROW(BytePairTokenizer::load(packed.path()), DataError);
  packed.write("merges.txt.gz", parts.merges_txt());
  EXPECT_THROW(BytePairTokenizer::load(packed.path()), DataError);
}

TEST(Tokenizer, HashFollowsEveryFile) {
  const ScratchDirectory directory;
  auto parts = small_tokenizer();
  std::vector<std::string> hashes;
  const auto record = [&] {
    hashes.push_back(BytePairTokenizer::load(directory.path()).content_hash());
  };
  parts.write_split_form(directory);
  record();
  EXPECT_EQ(hashes[0].size(), 16U);
  EXPECT_EQ(BytePairTokenizer::load(directory.path()).content_hash(), hashes[0]);
  directory.write("chat_template.jinja", "x");
  record();
  parts.merges.pop_back();
  parts.write_split_form(directory);
  record();
  parts.config["model_max_length"] = 7;
  parts.write_split_form(directory);
  record();
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

}  // namespace
}  // namespace jforge
