#pragma once

/// Displays text as it is decoded, and the passes that made it.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoding/pass_recorder.h"

namespace jforge {

/// Joins tokens' bytes into whole characters, because a token may end within one.
class TextStream {
 public:
  /// Appends `bytes`; returns what can be shown: all but an incomplete last character.
  [[nodiscard]] std::string add(std::string_view bytes);
  /// Returns the rest, complete or not.
  [[nodiscard]] std::string finish() { return std::move(held_); }

 private:
  std::string held_;
};

/// Returns one line of visible characters; control characters and invalid UTF-8 become escapes
/// ("\n", "\x1b").
[[nodiscard]] std::string visible_text(std::string_view bytes);

/// Returns a token as a trace shows it.
using TokenText = std::function<std::string(TokenId)>;

/// Returns a legend and a line per row. Without colours, [ ] mark accepted, { } recycled and < >
/// stationary tokens.
[[nodiscard]] std::string trace_text(std::span<const TraceRow> rows, const TokenText& text,
                                     bool colours);
/// Returns the same as an SVG picture, positions from left to right. Equal rows give equal bytes.
[[nodiscard]] std::string trace_svg(std::span<const TraceRow> rows, const TokenText& text);

/// An answer and the passes that made it, for a comparison.
struct TimedAnswer {
  std::string name;             ///< Of the method.
  std::vector<TraceRow> rows;   ///< PassRecorder::rows(); accepted and recycled tokens count.
  std::vector<double> seconds;  ///< From the prefill's end to each row.
};
/// Returns two answers side by side. Colours or, without them, "|" separate the tokens of the
/// passes.
[[nodiscard]] std::string comparison_text(const TimedAnswer& left, const TimedAnswer& right,
                                          const TokenText& text, bool colours);
/// Returns the same as an SVG picture that shows the passes at their times, slowed down so that the
/// longer answer takes some seconds. Without animation it shows everything.
[[nodiscard]] std::string comparison_svg(const TimedAnswer& left, const TimedAnswer& right,
                                         const TokenText& text);

}  // namespace jforge
