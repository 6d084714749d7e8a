#include "data/prompts/prompt_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/error.h"
#include "runtime/random.h"
#include "runtime/read_file.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

class PromptStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    content_ = {.prompts = {{{5, 6, 7}, 11, 0, 1}, {{}, 12, 0, 2}, {{8}, ~std::uint64_t{0}, 1, 9}},
                .answers = {"42", "", "é 7"},
                .identity = "00000000000000aa",
                .report = "{}"};
  }

  test::TemporaryDirectory scratch_;
  const fs::path directory_ = scratch_.path();
  const fs::path path_ = directory_ / "prompts.h5";
  PromptStoreContent content_;
};

TEST_F(PromptStoreTest, RoundTrip) {
  write_prompt_store(path_, content_);
  const PromptStore store = PromptStore::open(path_);
  EXPECT_EQ(store.size(), 3);
  EXPECT_EQ(store.tokens(0), (std::vector<TokenId>{5, 6, 7}));
  EXPECT_TRUE(store.tokens(1).empty());
  EXPECT_EQ(store.tokens(2), (std::vector<TokenId>{8}));
  EXPECT_EQ(store.length(0), 3);
  EXPECT_EQ(store.identity(), "00000000000000aa");
  EXPECT_EQ(store.report(), "{}");
  EXPECT_EQ(store.text_hashes(), (std::vector<std::uint64_t>{11, 12, ~std::uint64_t{0}}));
  EXPECT_TRUE(store.has_answers());
  EXPECT_EQ(store.answer(0), "42");
  EXPECT_EQ(store.answer(1), "");
  EXPECT_EQ(store.answer(2), "é 7");
  EXPECT_NO_THROW(store.verify());
  EXPECT_THROW(static_cast<void>(store.tokens(3)), DataError);
  EXPECT_THROW(static_cast<void>(store.answer(3)), DataError);
  EXPECT_THROW(static_cast<void>(store.length(-1)), DataError);
}

TEST_F(PromptStoreTest, DigestTellsTokensAndBordersApart) {
  const auto digest_of = [&](const std::vector<std::vector<TokenId>>& prompts) {
    PromptStoreContent content;
    for (const auto& tokens : prompts) {
      content.prompts.push_back({tokens, 1, 0, 1});
    }
    write_prompt_store(path_, content);
    return PromptStore::open(path_).digest();
  };
  const std::string base = digest_of({{1, 2}, {3}});
  EXPECT_EQ(base, digest_of({{1, 2}, {3}}));
  EXPECT_NE(base, digest_of({{1}, {2, 3}}));
  EXPECT_NE(base, digest_of({{1, 2}, {4}}));
  EXPECT_NE(base, digest_of({{3}, {1, 2}}));
}

TEST_F(PromptStoreTest, StoreLargerThanOnePiece) {
  content_.prompts.clear();
  content_.answers.clear();
  for (int i = 0; i < 600; ++i) {  // 6 million tokens; pieces are of 4 million
    content_.prompts.push_back({std::vector<TokenId>(10'000, i), 1, 0, 1});
  }
  write_prompt_store(path_, content_);
  const PromptStore store = PromptStore::open(path_);
  EXPECT_EQ(store.tokens(599), std::vector<TokenId>(10'000, 599));
  EXPECT_NO_THROW(store.verify());
}

TEST_F(PromptStoreTest, EveryTruncationAndFlipIsRefused) {
  write_prompt_store(path_, content_);
  const std::string whole = read_file(path_);
  RandomStream stream(1, RandomPurpose::test);
  for (int trial = 0; trial < 200; ++trial) {
    std::string bytes = whole;
    if (trial % 2 == 0) {
      bytes.resize(stream.below(whole.size()));
    } else {
      bytes[stream.below(whole.size())] ^= static_cast<char>(1 << stream.below(8));
    }
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_THROW(static_cast<void>(PromptStore::open(path_)), DataError) << trial;
  }
}

TEST_F(PromptStoreTest, InconsistentStoresAreRefused) {
  const auto write = [&](const std::vector<std::int64_t>& offsets, std::int64_t count,
                         const std::string& format, std::int64_t version,
                         const std::vector<std::int64_t>& answer_offsets = {0, 2}) {
    Hdf5Writer file(path_);
    file.attribute("format", format);
    file.attribute("format_version", version);
    file.attribute("num_prompts", count);
    file.attribute("digest", "0000000000000000");
    file.attribute("identity", "");
    file.write("offsets", offsets);
    file.write("tokens", std::vector<TokenId>{1, 2, 3});
    file.write("answers", std::vector<std::uint8_t>{'4', '2'});
    file.write("answer_offsets", answer_offsets);
    file.write("text_hash", std::vector<std::int64_t>{1});
    file.write("source_file", std::vector<std::int32_t>{1});
    file.write("source_line", std::vector<std::int64_t>{1});
    file.close();
  };
  const auto refused = [&] {
    EXPECT_THROW(static_cast<void>(PromptStore::open(path_)), DataError);
  };
  write({0, 4}, 1, "jforge-prompts", 1);
  refused();
  write({1, 3}, 1, "jforge-prompts", 1);
  refused();
  write({0, 3}, 2, "jforge-prompts", 1);
  refused();
  write({0, 1, 3}, 2, "jforge-prompts", 1);
  refused();
  write({0, 3}, 1, "jforge-trajectories", 1);
  refused();
  write({0, 3}, 1, "jforge-prompts", 2);
  refused();
  write({0, 3}, 1, "jforge-prompts", 1, {0, 3});
  refused();
  write({0, 3}, 1, "jforge-prompts", 1, {0, 1, 2});
  refused();
  write({0, 3}, 1, "jforge-prompts", 1);
  const PromptStore store = PromptStore::open(path_);
  EXPECT_THROW(store.verify(), DataError);  // made-up digest
}

TEST_F(PromptStoreTest, UnwritableDirectoryIsAnEnvironmentErrorAndLeavesNothing) {
  EXPECT_THROW(write_prompt_store(directory_ / "absent" / "prompts.h5", content_),
               EnvironmentError);
  EXPECT_TRUE(fs::is_empty(directory_));
}

}  // namespace
}  // namespace jforge
