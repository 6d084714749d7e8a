#pragma once

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

/// Returns one line; control characters and invalid UTF-8 become escapes ("\n", "\x1b").
[[nodiscard]] std::string visible_text(std::string_view bytes);

using TokenText = std::function<std::string(TokenId)>;

/// Returns a legend and a line per row. Accepted, recycled and stationary tokens are coloured, or
/// in [ ], { } and < >.
[[nodiscard]] std::string trace_text(std::span<const TraceRow> rows, const TokenText& text,
                                     bool colours);

struct TimedAnswer {
  std::string name;             ///< Method.
  std::vector<TraceRow> rows;   ///< PassRecorder::rows(); accepted and recycled tokens count.
  std::vector<double> seconds;  ///< From the prefill's end to each row.
};
/// Returns two answers side by side. Colours, or "|", separate the tokens of passes.
[[nodiscard]] std::string comparison_text(const TimedAnswer& left, const TimedAnswer& right,
                                          const TokenText& text, bool colours);
/// Returns the same as SVG, animated with the passes' times so that the longer answer takes some
/// seconds. Viewers without animation show everything.
[[nodiscard]] std::string comparison_svg(const TimedAnswer& left, const TimedAnswer& right,
                                         const TokenText& text);

}  // namespace jforge
