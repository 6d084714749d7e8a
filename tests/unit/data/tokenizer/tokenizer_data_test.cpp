/// The real Qwen2.5 vocabulary, and Unicode's normalisation test.

#include <gtest/gtest.h>
#include <zlib.h>

#include <chrono>
#include <random>
#include <set>
#include <sstream>

#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/tokenizer_files.h"
#include "data/tokenizer/unicode.h"
#include "runtime/error.h"
#include "tests/unit/data/tokenizer/tokenizer_fixture.h"

namespace jforge {
namespace {

using Ids = std::vector<TokenId>;
namespace fs = std::filesystem;

class QwenTokenizer : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_TEST_DATA("qwen_tokenizer"); }
  static fs::path directory() { return test::test_data() / "qwen_tokenizer"; }
  static const BytePairTokenizer& tokenizer() {
    static const BytePairTokenizer kTokenizer = BytePairTokenizer::load(directory());
    return kTokenizer;
  }
};

TEST_F(QwenTokenizer, LoadsAndKnowsItsTokens) {
  const BytePairTokenizer& loaded = tokenizer();
  EXPECT_EQ(loaded.vocabulary_size(), 151665);
  EXPECT_EQ(loaded.eos(), 151645);
  EXPECT_EQ(loaded.pad(), 151643);
  EXPECT_EQ(loaded.token_id("<|im_start|>"), 151644);
  EXPECT_EQ(loaded.encode("<|im_start|>user\n<tool_call>"), (Ids{151644, 872, 198, 151657}));
}

TEST_F(QwenTokenizer, ConformanceCases) {
  const std::string input = read_file_or_gz(directory() / "ggml-vocab-qwen2.gguf.inp");
  std::istringstream output(read_file_or_gz(directory() / "ggml-vocab-qwen2.gguf.out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  int cases = 0;
  for (std::size_t begin = 0; begin < input.size(); ++cases) {
    const std::size_t end = input.find(separator, begin);
    ASSERT_NE(end, std::string::npos);
    const std::string text = input.substr(begin, end - begin);
    begin = end + separator.size();
    std::string line;
    ASSERT_TRUE(std::getline(output, line));
    std::istringstream numbers(line);
    Ids expected;
    for (TokenId id = 0; numbers >> id;) expected.push_back(id);
    EXPECT_EQ(tokenizer().encode(text), expected) << "case " << cases << ": " << text;
    EXPECT_EQ(tokenizer().decode(expected), to_nfc(text));
  }
  EXPECT_EQ(cases, 46);
}

TEST_F(QwenTokenizer, RoundTripOfEveryText) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(test::test_data() / "text")) {
    const std::string text = read_file_or_gz(entry.path());
    EXPECT_TRUE(tokenizer().decode(tokenizer().encode(text)) == to_nfc(text)) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 6);
}

std::string random_text(std::mt19937& random) {
  // Blocks with different rules: ASCII, Latin, combining marks, Hangul, CJK, white space, emoji,
  // any.
  constexpr std::array<std::pair<char32_t, char32_t>, 8> kRanges = {{{0x00, 0x7F},
                                                                     {0x80, 0x24F},
                                                                     {0x300, 0x36F},
                                                                     {0x1100, 0x11FF},
                                                                     {0x3000, 0x30FF},
                                                                     {0x2000, 0x206F},
                                                                     {0x1F300, 0x1F9FF},
                                                                     {0x00, 0x10FFFF}}};
  std::string text;
  const std::size_t length = random() % 60;
  while (text.size() < length) {
    const auto [low, high] = kRanges[random() % kRanges.size()];
    const auto c = static_cast<char32_t>(low + random() % (high - low + 1));
    if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
  }
  return text;
}

TEST_F(QwenTokenizer, RoundTripOfRandomStrings) {
  std::mt19937 random(20240601);
  for (int i = 0; i < 10000; ++i) {
    const std::string text = random_text(random);
    ASSERT_EQ(tokenizer().decode(tokenizer().encode(text)), to_nfc(text)) << i;
  }
}

TEST_F(QwenTokenizer, RandomBytesAreTokenizedOrRefused) {
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 12, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 == 0 ? random() : 'a');
    if (first_invalid_utf8(bytes)) {
      EXPECT_THROW((void)tokenizer().encode(bytes), DataError);
    } else {
      EXPECT_EQ(tokenizer().decode(tokenizer().encode(bytes)), to_nfc(bytes));
    }
  }
}

TEST_F(QwenTokenizer, OneLongWordIsNotQuadratic) {
  std::mt19937 random(3);
  std::string word(1 << 20, 'a');
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer().decode(tokenizer().encode(word)), word);
  for (char& c : word) c = static_cast<char>('a' + random() % 26);
  EXPECT_TRUE(tokenizer().decode(tokenizer().encode(word)) == word);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  RecordProperty("two_megabytes_seconds", fmt::format("{:.2f}", seconds.count()));
  EXPECT_LT(seconds.count(), 60.0);  // about 1 s; hours if quadratic
}

TEST_F(QwenTokenizer, TokenizerJsonGivesTheSameIds) {
  test::TokenizerParts parts;
  parts.vocabulary = nlohmann::json::parse(read_file_or_gz(directory() / "vocab.json.gz"));
  std::istringstream merges(read_file_or_gz(directory() / "merges.txt.gz"));
  for (std::string line; std::getline(merges, line);) parts.merges.push_back(line);
  parts.config = nlohmann::json::parse(read_file_or_gz(directory() / "tokenizer_config.json"));
  const test::ScratchDirectory scratch;
  scratch.write("tokenizer.json", parts.tokenizer_json().dump());
  scratch.write("tokenizer_config.json", parts.config.dump());
  const auto whole = BytePairTokenizer::load(scratch.path());
  EXPECT_EQ(whole.vocabulary_size(), tokenizer().vocabulary_size());
  EXPECT_EQ(whole.eos(), tokenizer().eos());
  for (const auto& entry : fs::directory_iterator(test::test_data() / "text")) {
    const std::string text = read_file_or_gz(entry.path());
    EXPECT_TRUE(whole.encode(text) == tokenizer().encode(text)) << entry.path();
  }
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(random);
    ASSERT_EQ(whole.encode(text), tokenizer().encode(text)) << i;
  }
}

std::array<std::string, 5> columns_of(const std::string& line, std::vector<char32_t>& first) {
  std::array<std::string, 5> columns;
  std::istringstream fields(line);
  first.clear();
  for (std::size_t i = 0; i < columns.size(); ++i) {
    std::string field;
    std::getline(fields, field, ';');
    std::istringstream points(field);
    for (std::uint32_t c = 0; points >> std::hex >> c;) {
      append_utf8(columns[i], c);
      if (i == 0) first.push_back(c);
    }
  }
  return columns;
}

TEST_F(QwenTokenizer, UnicodeNormalizationTest) {
  std::istringstream file(read_file_or_gz(test::test_data() / "text" / "NormalizationTest.txt.gz"));
  std::set<char32_t> part1;
  bool in_part1 = false;
  int lines = 0;
  std::vector<char32_t> first;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("@")) in_part1 = line.starts_with("@Part1");
    if (line.empty() || line[0] == '#' || line[0] == '@') continue;
    const auto c = columns_of(line, first);
    if (in_part1) part1.insert(first.at(0));
    for (const std::size_t i : {0U, 1U, 2U}) ASSERT_EQ(to_nfc(c[i]), c[1]) << line;
    for (const std::size_t i : {3U, 4U}) ASSERT_EQ(to_nfc(c[i]), c[3]) << line;
    ++lines;
  }
  EXPECT_GT(lines, 18000);
  // Others are their own normal form.
  for (char32_t c = 0; c < 0x110000; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || part1.count(c) > 0) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(to_nfc(text), text) << static_cast<std::uint32_t>(c);
  }
}

}  // namespace
}  // namespace jforge
