#pragma once

/// Text as it is decoded, and the passes that it took.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoding/pass_recorder.h"

namespace jforge {

/// Bytes of tokens, of which only whole characters are passed on: a token may end within one.
class TextStream {
 public:
  /// What can be shown now that `bytes` follow: all but a last character that is incomplete.
  [[nodiscard]] std::string add(std::string_view bytes);
  /// What is left, complete or not.
  [[nodiscard]] std::string finish() { return std::move(held_); }

 private:
  std::string held_;
};

/// On one line, of visible characters: line ends, other control characters and what is not UTF-8 as
/// escapes ("\n", "\x1b").
[[nodiscard]] std::string visible_text(std::string_view bytes);

/// A token as a trace shows it.
using TokenText = std::function<std::string(TokenId)>;

/// A legend and a line for each row. In colour, or else with accepted tokens in [ ], recycled ones
/// in { } and stationary ones in < >.
[[nodiscard]] std::string trace_text(std::span<const TraceRow> rows, const TokenText& text,
                                     bool colours);
/// The same as an SVG picture: a line of boxes for each row, positions from left to right. Equal
/// rows give equal bytes.
[[nodiscard]] std::string trace_svg(std::span<const TraceRow> rows, const TokenText& text);

/// An answer as its passes made it, for a comparison.
struct TimedAnswer {
  std::string name;             ///< Of the method.
  std::vector<TraceRow> rows;   ///< PassRecorder::rows(); what they accepted and recycled counts.
  std::vector<double> seconds;  ///< From the prefill's end to each row's; as many as rows.
};
/// Two answers side by side, each pass's tokens set off from those of the passes around it: by
/// colours, or else by "|" at the end of each.
[[nodiscard]] std::string comparison_text(const TimedAnswer& left, const TimedAnswer& right,
                                          const TokenText& text, bool colours);
/// The same as an SVG picture, in which the passes appear at the times that they took, drawn out so
/// that the longer answer takes some seconds. A viewer without animation shows the whole.
[[nodiscard]] std::string comparison_svg(const TimedAnswer& left, const TimedAnswer& right,
                                         const TokenText& text);

}  // namespace jforge
