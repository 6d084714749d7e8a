#include "data/tasks/math/math_compare.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "data/tasks/math/math_algebra.h"
#include "data/tasks/math/math_answer.h"
#include "data/tasks/math/math_expression.h"
#include "data/tasks/math/math_value.h"

namespace jforge {
namespace {

using Kind = MathValue::Kind;

class Comparer {
 public:
  explicit Comparer(MathAlgebra& algebra) : algebra_(algebra) {}

  bool same(const MathValue& gold, const MathValue& answer) {
    algebra_.spend(1);
    if ((gold.has_words || answer.has_words) && !gold.text.empty() && gold.text == answer.text) {
      return true;
    }
    if (gold.is_definition() && answer.kind != Kind::relation) {
      return same(gold.parts[1], answer);
    }
    if (answer.is_definition() && gold.kind != Kind::relation) {
      return same(gold, answer.parts[1]);
    }
    if ((gold.kind == Kind::sum_set && answer.kind == Kind::list) ||
        (gold.kind == Kind::list && answer.kind == Kind::sum_set)) {
      return gold.parts.size() == answer.parts.size() && match_once(gold.parts, answer.parts);
    }
    if (gold.kind == Kind::tuple && lists_coordinates(answer)) {
      return gold.label == "()" && same_coordinates(gold, answer);
    }
    if (answer.kind == Kind::tuple && lists_coordinates(gold)) {
      return answer.label == "()" && same_coordinates(answer, gold);
    }
    if (is_collection(gold) || is_collection(answer)) {
      return same_collection(gold, answer);
    }
    if (gold.kind == Kind::tuple && answer.kind == Kind::matrix) {
      return is_vector(answer) && gold.label == "()" && same_parts(gold, answer);
    }
    if (gold.kind == Kind::matrix && answer.kind == Kind::tuple) {
      return is_vector(gold) && answer.label == "()" && same_parts(gold, answer);
    }
    return gold.kind == answer.kind && same_kind(gold, answer);
  }

 private:
  static bool is_collection(const MathValue& value) {
    return value.kind == Kind::list || value.kind == Kind::set;
  }

  static bool is_vector(const MathValue& matrix) { return matrix.label == "matrix 1"; }

  /// "x = 1, y = 2": one value for each of several names, in their order.
  static bool lists_coordinates(const MathValue& value) {
    const auto& parts = value.parts;
    const auto in_order = [](const MathValue& a, const MathValue& b) {
      return a.parts[0].text < b.parts[0].text;
    };
    return value.kind == Kind::list &&
           std::all_of(parts.begin(), parts.end(),
                       [](const MathValue& part) { return part.is_definition(); }) &&
           std::adjacent_find(parts.begin(), parts.end(), std::not_fn(in_order)) == parts.end();
  }

  bool same_coordinates(const MathValue& point, const MathValue& list) {
    return point.parts.size() == list.parts.size() &&
           std::equal(
               point.parts.begin(), point.parts.end(), list.parts.begin(),
               [&](const MathValue& p, const MathValue& part) { return same(p, part.parts[1]); });
  }

  /// The unit, the percent or the degree sign: where both have one it must be the same.
  static std::string mark(const MathValue& value) {
    return value.scalar.percent ? "%" : (value.scalar.degrees ? "degree" : value.unit);
  }

  static bool marks_agree(const MathValue& gold, const MathValue& answer) {
    const std::string ours = mark(gold);
    const std::string theirs = mark(answer);
    return ours.empty() || theirs.empty() || ours == theirs;
  }

  bool same_kind(const MathValue& gold, const MathValue& answer) {
    switch (gold.kind) {
      case Kind::scalar:
        return same_scalar(gold, answer);
      case Kind::text:
        return !gold.text.empty() && gold.text == answer.text;
      case Kind::numeral:
        return gold.label == answer.label;
      case Kind::tuple:
      case Kind::matrix:
      case Kind::ratio:
        return gold.label == answer.label && marks_agree(gold, answer) && same_parts(gold, answer);
      case Kind::sum_set:
        return gold.parts.size() == answer.parts.size() && match_once(gold.parts, answer.parts);
      case Kind::relation:
        return gold.label == answer.label &&
               (same_parts(gold, answer) || same_equation(gold, answer));
      case Kind::list:
      case Kind::set:
        break;
    }
    return same_collection(gold, answer);
  }

  bool same_parts(const MathValue& gold, const MathValue& answer) {
    return gold.parts.size() == answer.parts.size() &&
           std::equal(gold.parts.begin(), gold.parts.end(), answer.parts.begin(),
                      [&](const MathValue& g, const MathValue& a) { return same(g, a); });
  }

  bool same_collection(const MathValue& gold, const MathValue& answer) {
    const std::vector<MathValue> ours = elements(gold);
    const std::vector<MathValue> theirs = elements(answer);
    if (gold.kind != Kind::set && answer.kind != Kind::set) {
      return ours.size() == theirs.size() && match_once(ours, theirs);
    }
    const auto covers = [&](const std::vector<MathValue>& all, const std::vector<MathValue>& some,
                            bool gold_first) {
      return std::all_of(some.begin(), some.end(), [&](const MathValue& one) {
        return std::any_of(all.begin(), all.end(), [&](const MathValue& other) {
          return gold_first ? same(other, one) : same(one, other);
        });
      });
    };
    return covers(ours, theirs, true) && covers(theirs, ours, false);
  }

  /// The elements; of "x = 1, x = 2" the values.
  static std::vector<MathValue> elements(const MathValue& value) {
    if (!is_collection(value)) {
      return {value};
    }
    const auto& parts = value.parts;
    const bool one_name = std::all_of(parts.begin(), parts.end(), [&](const MathValue& part) {
      return part.is_definition() && part.parts[0].text == parts.front().parts[0].text;
    });
    if (!one_name) {
      return parts;
    }
    std::vector<MathValue> values;
    for (const MathValue& part : parts) {
      values.push_back(part.parts[1]);
    }
    return values;
  }

  /// One partner for each, every one used once. Definitions of several names match only those.
  bool match_once(const std::vector<MathValue>& gold, const std::vector<MathValue>& answer) {
    std::vector<bool> used(answer.size(), false);
    for (const MathValue& one : gold) {
      bool found = false;
      for (std::size_t i = 0; i < answer.size() && !found; ++i) {
        const bool both = one.is_definition() == answer[i].is_definition() || gold.size() == 1;
        if (!used[i] && both && same(one, answer[i])) {
          used[i] = true;
          found = true;
        }
      }
      if (!found) {
        return false;
      }
    }
    return true;
  }

  bool same_scalar(const MathValue& gold, const MathValue& answer) {
    if (!marks_agree(gold, answer)) {
      return false;
    }
    if (algebra_.equal(gold.scalar, answer.scalar)) {
      return true;
    }
    // "50\%" is 50 as well as a half.
    const auto times_hundred = [&](const Expression& marked) {
      return algebra_.multiply(marked, algebra_.number(100));
    };
    return gold.scalar.percent != answer.scalar.percent &&
           (gold.scalar.percent ? algebra_.equal(times_hundred(gold.scalar), answer.scalar)
                                : algebra_.equal(gold.scalar, times_hundred(answer.scalar)));
  }

  /// Left minus right, equal up to a constant factor.
  bool same_equation(const MathValue& gold, const MathValue& answer) {
    if (gold.label != "=") {
      return false;
    }
    std::array<Expression, 2> differences;
    for (const std::size_t i : {0U, 1U}) {
      const MathValue& equation = i == 0 ? gold : answer;
      if (equation.parts[0].kind != Kind::scalar || equation.parts[1].kind != Kind::scalar) {
        return false;
      }
      differences[i] = algebra_.subtract(equation.parts[0].scalar, equation.parts[1].scalar);
    }
    return algebra_.proportional(differences[0], differences[1]);
  }

  MathAlgebra& algebra_;
};

/// Whether both are written alike, but for blanks, sizes and spellings of commands.
bool same_tokens(const std::vector<MathToken>& a, const std::vector<MathToken>& b) {
  return !a.empty() && std::equal(a.begin(), a.end(), b.begin(), b.end(),
                                  [](const MathToken& x, const MathToken& y) {
                                    return x.kind == y.kind && x.text == y.text;
                                  });
}

/// "1,000" holds no number 000: it cannot be read as a list.
bool has_leading_zeros(const std::vector<MathToken>& tokens) {
  return std::any_of(tokens.begin(), tokens.end(), [](const MathToken& token) {
    return token.kind == MathToken::Kind::number && token.text.starts_with("00");
  });
}

MathComparison compare_readings(std::string_view gold, std::string_view answer,
                                CommaReading commas) {
  MathAlgebra algebra;
  MathComparison result;
  try {
    const std::vector<MathToken> gold_tokens = math_tokens(gold, commas);
    const std::vector<MathToken> answer_tokens = math_tokens(answer, commas);
    if (same_tokens(gold_tokens, answer_tokens)) {
      return {true, "text", 0};
    }
    if (commas == CommaReading::list &&
        (has_leading_zeros(gold_tokens) || has_leading_zeros(answer_tokens))) {
      return {false, "different", 0};
    }
    const MathValue gold_value = read_math_value(algebra, gold_tokens);
    const MathValue answer_value = read_math_value(algebra, answer_tokens);
    result.equal = Comparer(algebra).same(gold_value, answer_value);
    result.rule = result.equal ? "value" : "different";
  } catch (const MathRefusal& refusal) {
    result.equal = false;
    result.rule = refusal.what();
  }
  result.steps = algebra.steps();
  return result;
}

}  // namespace

MathComparison compare_math_values(std::string_view gold, std::string_view answer) {
  if (answer.size() > kMaxMathAnswer || gold.size() > kMaxMathAnswer) {
    return {false, "too long", 0};
  }
  MathComparison result = compare_readings(gold, answer, CommaReading::thousands);
  // "70,110" may be one number or two; both sides are then read the other way.
  if (!result.equal &&
      (gold.find(',') != std::string_view::npos || answer.find(',') != std::string_view::npos)) {
    MathComparison other = compare_readings(gold, answer, CommaReading::list);
    other.steps += result.steps;
    if (other.equal) {
      return other;
    }
    result.steps = other.steps;
  }
  return result;
}

MathComparison compare_math(std::string_view gold, std::string_view answer) {
  if (answer.size() > kMaxMathAnswer || gold.size() > kMaxMathAnswer) {
    return {false, "too long", 0};
  }
  const std::string_view ours = trimmed_answer(gold);
  const std::string_view theirs = trimmed_answer(answer);
  return !ours.empty() && ours == theirs ? MathComparison{true, "text", 0}
                                         : compare_math_values(ours, theirs);
}

}  // namespace jforge
