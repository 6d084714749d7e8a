// What the three rules for mathematical answers make of labelled pairs, and how long they take:
//   math_rules_benchmark [--misses] < pairs.tsv
// Lines are "gold TAB answer TAB equal|unequal TAB class" (math_pairs.py makes them; the class may
// be missing). --misses lists the pairs that the value rule gets wrong.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "data/tasks/math/math_compare.h"
#include "data/tasks/math/math_string_rules.h"

namespace jforge {
namespace {

struct Rule {
  const char* name;
  bool (*equal)(std::string_view gold, std::string_view answer);
  std::int64_t wrongly_equal = 0;
  std::int64_t wrongly_unequal = 0;
  double microseconds = 0;
  double longest = 0;
};

bool value_equal(std::string_view gold, std::string_view answer) {
  return compare_math(gold, answer).equal;
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == '\t') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

/// Whether `rule` judges as the label says.
bool judge(Rule& rule, const std::vector<std::string>& pair) {
  const auto begin = std::chrono::steady_clock::now();
  const bool equal = rule.equal(pair[0], pair[1]);
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  rule.microseconds += time.count();
  rule.longest = std::max(rule.longest, time.count());
  const bool wanted = pair[2] == "equal";
  rule.wrongly_equal += equal && !wanted ? 1 : 0;
  rule.wrongly_unequal += !equal && wanted ? 1 : 0;
  return equal == wanted;
}

int run(bool misses) {
  std::array<Rule, 3> rules{
      {{"string", string_equal}, {"minerva", minerva_equal}, {"value", value_equal}}};
  std::int64_t equal = 0;
  std::int64_t pairs = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const std::vector<std::string> pair = fields_of(line);
    if (line.starts_with("# ")) {
      continue;
    }
    if (pair.size() < 3 || (pair[2] != "equal" && pair[2] != "unequal")) {
      std::cerr << "math_rules_benchmark: not a labelled pair: " << line << "\n";
      return 3;
    }
    ++pairs;
    equal += pair[2] == "equal" ? 1 : 0;
    for (Rule& rule : rules) {
      if (!judge(rule, pair) && misses && &rule == &rules.back()) {
        std::cout << line << "\n";
      }
    }
  }
  if (pairs == 0) {
    std::cerr << "math_rules_benchmark: no pairs on standard input\n";
    return 3;
  }
  std::cout << fmt::format("{} pairs, {} of them equal\n", pairs, equal);
  for (const Rule& rule : rules) {
    std::cout << fmt::format(
        "{:8} {:5} wrongly equal {:5} wrongly unequal {:8.1f} us/pair {:9.1f} longest\n", rule.name,
        rule.wrongly_equal, rule.wrongly_unequal, rule.microseconds / static_cast<double>(pairs),
        rule.longest);
  }
  return 0;
}

}  // namespace
}  // namespace jforge

int main(int argc, char** argv) {
  const bool misses = argc == 2 && std::string_view(argv[1]) == "--misses";
  if (argc > 1 && !misses) {
    std::cerr << "usage: math_rules_benchmark [--misses] < pairs.tsv\n";
    return 2;
  }
  return jforge::run(misses);
}
