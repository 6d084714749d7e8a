#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace jforge {
namespace {

using ::testing::HasSubstr;

std::string source_file(const std::string& name) {
  const char* root = std::getenv("JFORGE_SOURCE_DIR");
  EXPECT_NE(root, nullptr);
  std::ifstream stream(std::filesystem::path(root == nullptr ? "." : root) / name);
  EXPECT_TRUE(stream) << name;
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::set<std::string> found(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> words;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) {
    words.insert((*at)[1].str());
  }
  return words;
}

std::string part(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  EXPECT_NE(from, std::string::npos) << begin;
  if (from == std::string::npos) {
    return "";
  }
  const std::size_t to = text.find(end, from + begin.size());
  return text.substr(from, to == std::string::npos ? to : to - from);
}

constexpr const char* kManPage = "launch/shell/man_page.h2m";

TEST(ManPage, ExitCodesAreThoseOfTheCommandsPage) {
  const std::string exits = part(source_file(kManPage), "[EXIT STATUS]\n", "\n[");
  std::string rows = "| code | meaning |\n| --- | --- |\n";
  std::set<std::string> codes;
  const std::regex entry(R"(\n(\d+)  (.*)\n)");
  for (std::sregex_iterator at(exits.begin(), exits.end(), entry), end; at != end; ++at) {
    codes.insert((*at)[1].str());
    rows += "| " + (*at)[1].str() + " | " + (*at)[2].str() + " |\n";
  }
  EXPECT_THAT(source_file("docs/commands.md"), HasSubstr(rows));
  EXPECT_EQ(found(source_file("runtime/error.h"), "\n  [a-z_]+ = (\\d+),"), codes);
}

TEST(ManPage, FilesAreThoseOfTheResultsPage) {
  const std::set<std::string> named =
      found(part(source_file(kManPage), "[FILES]\n", "\n["), "\n([a-z./]+)  ");
  EXPECT_GE(named.size(), 5U);
  for (const std::string& name : named) {
    const std::string whole = name == "logs/" ? "`logs/rank_" : "`" + name + "`";
    EXPECT_THAT(source_file("results/README.md"), HasSubstr(whole));
  }
}

TEST(ManPage, NamesEveryVariableThatTheProgramReads) {
  const std::string page = source_file(kManPage);
  std::set<std::string> read;
  const char* root = std::getenv("JFORGE_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  for (const char* folder : {"runtime", "data", "model", "checkpoints", "workers", "coordinator",
                             "results/report", "launch"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(root) / folder)) {
      if (entry.path().extension() == ".cpp") {
        std::ifstream stream(entry.path());
        read.merge(found({std::istreambuf_iterator<char>(stream), {}},
                         "getenv\\(\"(JFORGE_[A-Z_]+)\"\\)"));
      }
    }
  }
  EXPECT_GE(read.size(), 2U);
  for (const std::string& name : read) {
    EXPECT_THAT(page, HasSubstr("\n" + name + "  "));
  }
}

}  // namespace
}  // namespace jforge
