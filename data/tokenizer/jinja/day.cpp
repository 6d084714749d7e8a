#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <optional>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/template.h"

namespace jforge::jinja {
namespace {

/// Conversions whose text depends on the day alone; of a time they print midnight. Those of a zone,
/// an epoch and microseconds are left out.
constexpr std::string_view kConversions = "aAbBcCdDeFgGhHIjmMnprRStTuUVwWxXyY%";

std::optional<std::chrono::year_month_day> parse_day(std::string_view text) {
  constexpr std::string_view kPattern = "0000-00-00";
  const auto fits = [](char given, char pattern) {
    return pattern == '0' ? given >= '0' && given <= '9' : given == pattern;
  };
  if (!std::ranges::equal(text, kPattern, fits) || text.front() == '0') return std::nullopt;
  const auto number = [&](std::size_t begin, std::size_t count) {
    int value = 0;
    std::from_chars(text.data() + begin, text.data() + begin + count, value);
    return value;
  };
  const std::chrono::year_month_day day{std::chrono::year(number(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  return day.ok() ? std::optional(day) : std::nullopt;
}

std::tm broken_down(const std::chrono::year_month_day& day) {
  const std::chrono::sys_days days = day;
  const std::chrono::sys_days new_year = day.year() / std::chrono::January / 1;
  std::tm time{};
  time.tm_year = static_cast<int>(day.year()) - 1900;
  time.tm_mon = static_cast<int>(static_cast<unsigned>(day.month())) - 1;
  time.tm_mday = static_cast<int>(static_cast<unsigned>(day.day()));
  time.tm_wday = static_cast<int>(std::chrono::weekday(days).c_encoding());
  time.tm_yday = static_cast<int>((days - new_year).count());
  time.tm_isdst = -1;
  return time;
}

/// One conversion at a time, since a day's longest text is known.
Value print_day(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {"format"}, 1);
  const std::string_view format = given.text(0);
  runtime.charge(format.size());
  const std::tm time = broken_down(parse_day(self.text).value());
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const std::size_t begin = i++;
    if (i < format.size() && format[i] == '-') ++i;  // glibc's: no padding.
    if (i >= format.size() || kConversions.find(format[i]) == std::string_view::npos) {
      fail(fmt::format("strftime_now does not support '{}'", format.substr(begin, i + 1 - begin)));
    }
    const std::string conversion(format.substr(begin, i + 1 - begin));
    std::array<char, 128> text{};
    out.append(text.data(), std::strftime(text.data(), text.size(), conversion.c_str(), &time));
  }
  return runtime.text(out);
}

constexpr MethodEntry kPrintDay = {"strftime_now", print_day};

}  // namespace

bool is_day(std::string_view text) { return parse_day(text).has_value(); }

Value strftime_on(Runtime& runtime, std::string_view day) {
  Value function;
  function.kind = Kind::method;
  function.method = runtime.make(Method{.receiver = Value::of(day), .entry = &kPrintDay});
  return function;
}

}  // namespace jforge::jinja
