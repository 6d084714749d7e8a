#include "launch/commands/decode_display.h"

#include <fmt/color.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "data/tokenizer/unicode.h"
#include "results/report/chart.h"

namespace jforge {
namespace {

struct KindStyle {
  const char* name;
  const char* open;
  const char* close;
  fmt::text_style terminal;
};

const KindStyle& style_of(TraceKind kind) {
  static const std::array<KindStyle, 4> styles{{
      {"accepted", "[", "]", fmt::fg(fmt::terminal_color::green)},
      {"recycled", "{", "}", fmt::fg(fmt::terminal_color::magenta)},
      {"stationary", "<", ">", fmt::fg(fmt::terminal_color::yellow)},
      {"draft", "", "", fmt::emphasis::faint},
  }};
  return styles[static_cast<std::size_t>(kind)];
}

constexpr std::array kKinds{TraceKind::accepted, TraceKind::recycled, TraceKind::stationary,
                            TraceKind::draft};

std::string marked(TraceKind kind, const std::string& text, bool colours) {
  const KindStyle& style = style_of(kind);
  return colours ? fmt::format(style.terminal, "{}", text)
                 : fmt::format("{}{}{}", style.open, text, style.close);
}

std::ptrdiff_t known_tokens(const TraceRow& row) {
  return std::ranges::count_if(row, [](const TraceCell& cell) {
    return cell.kind == TraceKind::accepted || cell.kind == TraceKind::recycled;
  });
}

/// Returns whether terminals and XML show the character as it is.
bool is_visible(char32_t character) {
  return character >= 0x20 && (character < 0x7f || character > 0x9f) && character != 0xfffe &&
         character != 0xffff;
}

/// Returns 1 if `first` begins no character.
std::size_t character_bytes(unsigned char first) {
  if (first >= 0xf0) {
    return first <= 0xf4 ? 4 : 1;
  }
  return first >= 0xe0 ? 3 : (first >= 0xc2 ? 2 : 1);
}

/// A character, or the mark of a pass's end, and its pass.
struct PassCharacter {
  std::string bytes;
  std::size_t pass = 0;
};
using PassLine = std::vector<PassCharacter>;

/// Breaks lines at spaces if possible.
std::vector<PassLine> wrapped(const TimedAnswer& answer, const TokenText& text, std::size_t width,
                              bool marks) {
  std::vector<PassLine> lines(1);
  const auto add = [&](std::string bytes, std::size_t pass) {
    PassLine& line = lines.back();
    if (line.size() < width) {
      line.push_back({std::move(bytes), pass});
      return;
    }
    const auto space = std::find_if(line.rbegin(), line.rend(),
                                    [](const PassCharacter& one) { return one.bytes == " "; });
    PassLine next;
    if (space != line.rend()) {
      next.assign(space.base(), line.end());
      line.erase(space.base(), line.end());
    }
    next.push_back({std::move(bytes), pass});
    lines.push_back(std::move(next));
  };
  TextStream stream;
  for (std::size_t pass = 0; pass < answer.rows.size(); ++pass) {
    std::string bytes;
    for (const TraceCell& cell : answer.rows[pass]) {
      if (cell.kind == TraceKind::accepted || cell.kind == TraceKind::recycled) {
        bytes += text(cell.token);
      }
    }
    std::string shown = stream.add(bytes);
    if (pass + 1 == answer.rows.size()) {
      shown += stream.finish();
    }
    while (!shown.empty()) {
      const std::size_t taken =
          std::min(shown.size(), character_bytes(static_cast<unsigned char>(shown[0])));
      if (shown[0] == '\n') {
        lines.emplace_back();
      } else {
        for (std::string visible = visible_text(shown.substr(0, taken)); !visible.empty();) {
          const std::size_t first = character_bytes(static_cast<unsigned char>(visible[0]));
          add(visible.substr(0, first), pass);
          visible.erase(0, first);
        }
      }
      shown.erase(0, taken);
    }
    if (marks) {
      add("|", pass);
    }
  }
  return lines;
}

/// Calls run(column, text, pass) for each stretch of one pass.
template <class Run>
void each_run(const PassLine& line, const Run& run) {
  for (std::size_t begin = 0; begin < line.size();) {
    std::size_t end = begin;
    std::string text;
    for (; end < line.size() && line[end].pass == line[begin].pass; ++end) {
      text += line[end].bytes;
    }
    run(begin, text, line[begin].pass);
    begin = end;
  }
}

/// Returns "jacobi: 23 passes, 2.61 tokens each, 40.0 ms"; the prefill is not a pass.
std::string summary(const TimedAnswer& answer) {
  std::ptrdiff_t tokens = 0;
  for (const TraceRow& row : answer.rows) {
    tokens += known_tokens(row);
  }
  const auto passes = std::max<std::ptrdiff_t>(1, std::ssize(answer.rows) - 1);
  return fmt::format(
      "{}: {} passes, {:.2f} tokens each, {:.1f} ms", answer.name, answer.rows.size() - 1,
      static_cast<double>(tokens - 1) / static_cast<double>(passes), 1e3 * answer.seconds.back());
}

}  // namespace

std::string TextStream::add(std::string_view bytes) {
  held_ += bytes;
  std::size_t complete = held_.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, held_.size()); ++back) {
    const auto byte = static_cast<unsigned char>(held_[held_.size() - back]);
    if (byte < 0x80 || byte >= 0xc0) {  // The last character begins here.
      complete -= character_bytes(byte) > back ? back : 0;
      break;
    }
  }
  std::string shown = held_.substr(0, complete);
  held_.erase(0, complete);
  return shown;
}

std::string visible_text(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::string_view first =
        bytes.substr(0, character_bytes(static_cast<unsigned char>(bytes[0])));
    const bool valid = !first_invalid_utf8(first).has_value();
    const std::string_view taken = valid ? first : bytes.substr(0, 1);
    if (valid && is_visible(code_point_at(first, 0).value)) {
      text += taken;
    } else if (taken == "\n") {
      text += "\\n";
    } else {
      for (const char byte : taken) {
        text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      }
    }
    bytes.remove_prefix(taken.size());
  }
  return text;
}

std::string trace_text(std::span<const TraceRow> rows, const TokenText& text, bool colours) {
  std::string shown = "pass known";
  for (const TraceKind kind : kKinds) {
    shown += "  " + marked(kind, style_of(kind).name, colours);
  }
  shown += '\n';
  for (std::size_t pass = 0; pass < rows.size(); ++pass) {
    const TraceRow& row = rows[pass];
    shown += fmt::format("{:4} {:+5} ", pass, known_tokens(row));
    for (std::size_t i = 0; i < row.size();) {
      const TraceKind kind = row[i].kind;
      std::string run;  // Bytes, because tokens may cut a character.
      for (; i < row.size() && row[i].kind == kind; ++i) {
        run += text(row[i].token);
      }
      shown += marked(kind, visible_text(run), colours);
    }
    shown += '\n';
  }
  return shown;
}

std::string comparison_text(const TimedAnswer& left, const TimedAnswer& right,
                            const TokenText& text, bool colours) {
  constexpr std::size_t kWidth = 48;
  const std::vector<PassLine> columns[2] = {wrapped(left, text, kWidth, !colours),
                                            wrapped(right, text, kWidth, !colours)};
  std::string shown = fmt::format("{:<{}}   {}\n", summary(left), kWidth, summary(right));
  for (std::size_t i = 0; i < std::max(columns[0].size(), columns[1].size()); ++i) {
    for (const std::vector<PassLine>& column : columns) {
      const PassLine line = i < column.size() ? column[i] : PassLine();
      each_run(line, [&](std::size_t, const std::string& run, std::size_t pass) {
        const auto colour =
            pass % 2 == 0 ? fmt::terminal_color::green : fmt::terminal_color::yellow;
        shown += colours ? fmt::format(fmt::fg(colour), "{}", run) : run;
      });
      if (&column == columns) {
        shown += std::string(kWidth - line.size(), ' ') + "   ";
      }
    }
    shown.erase(shown.find_last_not_of(' ') + 1);
    shown += '\n';
  }
  return shown;
}

std::string comparison_svg(const TimedAnswer& left, const TimedAnswer& right,
                           const TokenText& text) {
  constexpr std::size_t kColumns = 52;
  constexpr int kFont = 13;
  constexpr double kAdvance = 7.8;  // Width of a monospace character, forced for every font.
  constexpr double kLine = 20;
  constexpr double kMargin = 16;
  constexpr double kTop = 48;
  constexpr double kPanel = kColumns * kAdvance;
  constexpr double kShownSeconds = 8;  // Duration of the longer answer.
  constexpr double kPause = 3;         // Before it repeats.
  const double longest = std::max({left.seconds.back(), right.seconds.back(), 1e-9});
  const double slower = kShownSeconds / longest;
  std::string body;
  std::size_t most_lines = 0;
  double x = kMargin;
  for (const TimedAnswer* answer : {&left, &right}) {
    body += svg_text(x, 24, summary(*answer), "start", 14);
    const std::vector<PassLine> lines = wrapped(*answer, text, kColumns, false);
    most_lines = std::max(most_lines, lines.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const double y = kTop + kLine * static_cast<double>(i);
      each_run(lines[i], [&](std::size_t column, const std::string& run, std::size_t pass) {
        const double at = x + kAdvance * static_cast<double>(column);
        const auto length =
            std::ranges::count_if(run, [](char byte) { return (byte & 0xc0) != 0x80; });
        const double width = kAdvance * static_cast<double>(length);
        // A share of the loop; 0 and 1 would leave no time hidden or shown.
        const double appears =
            std::clamp(answer->seconds[pass] * slower / (kShownSeconds + kPause), 0.0001, 0.9999);
        body += fmt::format(
            "<g><title>pass {}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
            "height=\"{:.1f}\" rx=\"3\" fill=\"{}\"/>{}<animate attributeName=\"opacity\" "
            "values=\"0;1;1\" keyTimes=\"0;{:.4f};1\" calcMode=\"discrete\" dur=\"{:.1f}s\" "
            "repeatCount=\"indefinite\"/></g>\n",
            pass, at, y, width, kLine - 2, pass % 2 == 0 ? "#bfe3d7" : "#f7d9b0",
            svg_text(at, y + 14, run, "start", kFont,
                     fmt::format("font-family=\"monospace\" xml:space=\"preserve\" "
                                 "textLength=\"{:.1f}\" lengthAdjust=\"spacingAndGlyphs\"",
                                 width)),
            appears, kShownSeconds + kPause);
      });
    }
    x += kPanel + 2 * kMargin;
  }
  const double width = x - kMargin;
  const double height = kTop + kLine * static_cast<double>(most_lines) + 30;
  body += svg_text(kMargin, height - 10,
                   fmt::format("A box is what one forward pass gave. {} than it ran.",
                               slower >= 1 ? fmt::format("Shown {:.0f} times slower", slower)
                                           : fmt::format("Shown {:.0f} times faster", 1 / slower)),
                   "start", kFont);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.1f}\" height=\"{1:.1f}\" "
      "viewBox=\"0 0 {0:.1f} {1:.1f}\" font-family=\"sans-serif\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{2}</svg>\n",
      width, height, body);
}

}  // namespace jforge
