#include "launch/commands/decode_display.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace jforge {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TextStream, PassesOnWholeCharactersOnly) {
  const std::string text = "a\u00e9\u20ac\U0001f600z\u00e9";
  for (std::size_t cut = 1; cut <= 5; ++cut) {
    TextStream stream;
    std::string shown;
    for (std::size_t at = 0; at < text.size(); at += cut) {
      shown += stream.add(text.substr(at, cut));
      EXPECT_TRUE(text.starts_with(shown));
      const auto next =
          static_cast<unsigned char>(shown.size() < text.size() ? text[shown.size()] : 0);
      EXPECT_NE(next & 0xC0U, 0x80U) << "cut within a character";
      EXPECT_GE(shown.size() + 3, std::min(at + cut, text.size())) << "held back too much";
    }
    EXPECT_EQ(shown + stream.finish(), text);
  }
}

TEST(TextStream, WhatIsNoTextPassesThrough) {
  TextStream stream;
  std::string shown = stream.add("\x80\xff\xe2");
  EXPECT_EQ(shown, "\x80\xff");
  shown += stream.add("\x41");
  EXPECT_EQ(shown, "\x80\xff\xe2\x41");
  shown += stream.add("\xf0\x9f\x98");
  EXPECT_EQ(shown, "\x80\xff\xe2\x41");
  EXPECT_EQ(stream.finish(), "\xf0\x9f\x98");
}

TEST(VisibleText, EscapesWhatATerminalOrXmlWouldTakeForSomethingElse) {
  EXPECT_EQ(visible_text("a \u00e9\n\t\x1b[0m"), "a \u00e9\\n\\x09\\x1b[0m");
  EXPECT_EQ(visible_text("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(visible_text("\u009b\uffff"), "\\xc2\\x9b\\xef\\xbf\\xbf");
}

std::vector<TraceRow> some_rows() {
  return {{{0, 0, TraceKind::accepted}},
          {{1, 1, TraceKind::accepted},
           {2, 2, TraceKind::recycled},
           {3, 3, TraceKind::draft},
           {4, 4, TraceKind::stationary}}};
}
std::string some_text(TokenId token) {
  static const std::vector<std::string> texts{"one", "<two>", "th\n", "&4", "\xe2"};
  return texts.at(static_cast<std::size_t>(token));
}

TEST(TraceText, MarksKindsWithOrWithoutColours) {
  const std::string plain = trace_text(some_rows(), some_text, false);
  EXPECT_EQ(plain,
            "pass known  [accepted]  {recycled}  <stationary>  draft\n"
            "   0    +1 [one]\n"
            "   1    +2 [<two>]{th\\n}&4<\\xe2>\n");
  const std::string coloured = trace_text(some_rows(), some_text, true);
  EXPECT_THAT(coloured, HasSubstr("\x1b[32m<two>\x1b[0m\x1b[35mth\\n\x1b[0m"));
  EXPECT_THAT(coloured, Not(HasSubstr("[one]")));
}

TimedAnswer timed(std::string name, std::vector<TraceRow> rows, std::vector<double> seconds) {
  return {std::move(name), std::move(rows), std::move(seconds)};
}
TraceRow accepted(std::vector<TokenId> tokens) {
  TraceRow row;
  for (const TokenId token : tokens) {
    row.push_back({0, token, TraceKind::accepted});
  }
  return row;
}

TEST(Comparison, SetsPassesOffFromEachOther) {
  const auto text = [](TokenId token) {
    return token == 9 ? "\n" : "t" + std::to_string(token) + " ";
  };
  const TimedAnswer ar =
      timed("ar", {accepted({0}), accepted({1}), accepted({9}), accepted({2})}, {0, 1, 2, 3});
  TraceRow draft = accepted({1, 9, 2});
  draft.push_back({4, 7, TraceKind::draft});
  const TimedAnswer jacobi = timed("jacobi", {accepted({0}), draft}, {0, 1.5});
  EXPECT_EQ(
      comparison_text(ar, jacobi, text, false),
      "ar: 3 passes, 1.00 tokens each, 3000.0 ms          jacobi: 1 passes, 3.00 tokens each, "
      "1500.0 ms\n"
      "t0 |t1 |                                           t0 |t1\n"
      "|t2 |                                              t2 |\n");
  EXPECT_THAT(comparison_text(ar, jacobi, text, true),
              HasSubstr("\x1b[32mt0 \x1b[0m\x1b[33mt1 \x1b[0m"));
}

TEST(Comparison, BreaksLinesAtSpacesAndKeepsEveryCharacter) {
  const auto text = [](TokenId token) {
    return token == 3   ? std::string("\xe2\x82")
           : token == 4 ? std::string("\xac")
                        : std::string("word ");
  };
  std::vector<TraceRow> rows(30, accepted({1}));
  rows.push_back(accepted({3}));
  rows.push_back(accepted({4}));
  const TimedAnswer answer = timed("ar", rows, std::vector<double>(rows.size(), 1.0));
  const std::string shown = comparison_text(answer, answer, text, true);
  std::size_t words = 0;
  for (std::size_t at = shown.find("word"); at != std::string::npos;
       at = shown.find("word", at + 1)) {
    ++words;
  }
  EXPECT_EQ(words, 60U);
  EXPECT_THAT(shown, HasSubstr("\u20ac"));
}

TEST(Comparison, PictureShowsPassesWhenTheyEnded) {
  const auto text = [](TokenId token) { return "<" + std::to_string(token); };
  const TimedAnswer ar = timed("ar", {accepted({0}), accepted({1}), accepted({2})}, {0, 0.1, 0.2});
  const TimedAnswer jacobi = timed("jacobi", {accepted({0}), accepted({1, 2})}, {0, 0.1});
  const std::string svg = comparison_svg(ar, jacobi, text);
  EXPECT_THAT(svg, HasSubstr(">&lt;1&lt;2<"));
  EXPECT_THAT(svg, HasSubstr("Shown 40 times slower"));
  // 0.1 s of 0.2 s, which take 8 of the loop's 11 seconds.
  EXPECT_THAT(svg, HasSubstr("keyTimes=\"0;0.3636;1\""));
  EXPECT_THAT(svg, HasSubstr("keyTimes=\"0;0.7273;1\""));
}

}  // namespace
}  // namespace jforge
