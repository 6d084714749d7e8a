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

TEST(TraceSvg, ShowsEachTokenEscapedAndIsDeterministic) {
  const std::string svg = trace_svg(some_rows(), some_text);
  for (const char* token : {">one<", ">&lt;two&gt;<", ">th\\n<", ">&amp;4<", ">\\xe2<"}) {
    EXPECT_THAT(svg, HasSubstr(token));
  }
  EXPECT_THAT(svg, HasSubstr("pass 1, position 2: recycled"));
  EXPECT_EQ(svg, trace_svg(some_rows(), some_text));
}

}  // namespace
}  // namespace jforge
