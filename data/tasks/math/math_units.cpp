#include "data/tasks/math/math_units.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace jforge {
namespace {

std::string lower(std::string_view word) {
  std::string result;
  for (const char c : word) {
    if (c != '.') {
      result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return result;
}

const std::map<std::string, std::string, std::less<>>& units() {
  static const std::map<std::string, std::string, std::less<>> table{
      {"mm", "mm"},         {"millimeter", "mm"}, {"cm", "cm"},         {"centimeter", "cm"},
      {"centimetre", "cm"}, {"dm", "dm"},         {"m", "m"},           {"meter", "m"},
      {"metre", "m"},       {"km", "km"},         {"kilometer", "km"},  {"kilometre", "km"},
      {"in", "in"},         {"inch", "in"},       {"inches", "in"},     {"ft", "ft"},
      {"foot", "ft"},       {"feet", "ft"},       {"yd", "yd"},         {"yard", "yd"},
      {"mi", "mile"},       {"mile", "mile"},     {"mph", "mph"},       {"kph", "kph"},
      {"g", "g"},           {"gm", "g"},          {"gram", "g"},        {"kg", "kg"},
      {"kilogram", "kg"},   {"lb", "pound"},      {"lbs", "pound"},     {"pound", "pound"},
      {"oz", "oz"},         {"ounce", "oz"},      {"ton", "ton"},       {"l", "liter"},
      {"liter", "liter"},   {"litre", "liter"},   {"ml", "ml"},         {"milliliter", "ml"},
      {"gallon", "gallon"}, {"quart", "quart"},   {"cup", "cup"},       {"s", "second"},
      {"sec", "second"},    {"second", "second"}, {"min", "minute"},    {"minute", "minute"},
      {"h", "hour"},        {"hr", "hour"},       {"hour", "hour"},     {"day", "day"},
      {"week", "week"},     {"month", "month"},   {"year", "year"},     {"cent", "cent"},
      {"dollar", "dollar"}, {"euro", "euro"},     {"am", "am"},         {"pm", "pm"},
      {"radian", "radian"}, {"unit", ""},         {"degree", "degree"}, {"way", ""},
      {"integer", ""},      {"point", ""},        {"digit", ""},        {"number", ""},
      {"student", ""},      {"meal", ""},         {"edge", ""},         {"multiple", ""},
      {"people", ""},       {"person", ""},       {"apple", ""},        {"ticket", ""},
      {"game", ""},         {"book", ""},         {"solution", ""},     {"value", ""},
      {"time", ""},         {"triangle", ""},     {"pair", ""},         {"page", ""},
      {"teacher", ""},      {"child", ""},        {"children", ""},     {"each", ""},
      {"per", ""},          {"of", ""},           {"total", ""},        {"factor", ""},
      {"element", ""},      {"term", ""},         {"marble", ""},       {"side", ""},
  };
  return table;
}

}  // namespace

std::optional<std::string> canonical_unit(std::string_view word) {
  const std::string plain = lower(word);
  auto found = units().find(plain);
  if (found == units().end() && plain.size() > 2 && plain.ends_with('s')) {
    found = units().find(plain.substr(0, plain.size() - 1));
  }
  return found == units().end() ? std::nullopt : std::optional<std::string>(found->second);
}

std::optional<int> number_scale(std::string_view word) {
  static const std::map<std::string, int, std::less<>> scales{
      {"hundred", 2}, {"thousand", 3}, {"million", 6}, {"billion", 9}, {"trillion", 12}};
  const auto found = scales.find(lower(word));
  return found == scales.end() ? std::nullopt : std::optional<int>(found->second);
}

std::optional<int> number_word(std::string_view word) {
  constexpr std::array<std::string_view, 13> kWords{"zero", "one",    "two",   "three", "four",
                                                    "five", "six",    "seven", "eight", "nine",
                                                    "ten",  "eleven", "twelve"};
  const auto* const found = std::find(kWords.begin(), kWords.end(), lower(word));
  return found == kWords.end() ? std::nullopt
                               : std::optional<int>(static_cast<int>(found - kWords.begin()));
}

bool changes_number(std::string_view word) {
  static const std::set<std::string, std::less<>> words{
      "hundred",  "thousand",  "million",  "billion",  "trillion", "dozen", "half",      "halves",
      "third",    "thirds",    "quarter",  "percent",  "squared",  "cubed", "factorial", "minus",
      "plus",     "times",     "over",     "mod",      "modulo",   "more",  "less",      "not",
      "hundreds", "thousands", "millions", "billions", "pi",       "base",  "score",
  };
  return words.contains(lower(word));
}

}  // namespace jforge
