#include "data/tasks/math/math_expression.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "data/tasks/math/math_units.h"

namespace jforge {
namespace {

using Kind = MathToken::Kind;

constexpr int kMaxDepth = 50;
constexpr long kLargestFactorial = 3000;
constexpr std::size_t kLongestWordOfVariables = 3;

bool is_function(std::string_view name) {
  static const std::set<std::string_view> names{
      "sin",    "cos",    "tan",    "cot",  "sec",  "csc",  "asin", "acos", "atan",
      "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log",  "ln",   "exp",
      "lg",     "gcd",    "lcm",    "min",  "max",  "det",  "arg",
  };
  return names.contains(name);
}

bool is_variable_command(std::string_view name) {
  static const std::set<std::string_view> names{
      "\\alpha",  "\\beta",  "\\gamma", "\\delta", "\\epsilon", "\\varepsilon", "\\theta",
      "\\lambda", "\\mu",    "\\nu",    "\\rho",   "\\sigma",   "\\tau",        "\\phi",
      "\\varphi", "\\omega", "\\pi",    "\\infty", "\\ell",     "\\emptyset",   "\\Delta",
  };
  return names.contains(name);
}

/// Letters that are functions when a parenthesis follows: f(x).
bool names_function(const MathToken& token) {
  return token.kind == Kind::name && (token.text == "f" || token.text == "g" || token.text == "h");
}

mpz_class power_of_ten(std::size_t exponent) {
  mpz_class value;
  mpz_ui_pow_ui(value.get_mpz_t(), 10, exponent);
  return value;
}

mpz_class whole_number(std::string_view digits) {
  return mpz_class(digits.empty() ? "0" : std::string(digits), 10);
}

mpq_class decimal(std::string_view text) {
  const std::size_t point = text.find('.');
  const std::string_view decimals =
      point == std::string_view::npos ? std::string_view() : text.substr(point + 1);
  return whole_number(text.substr(0, point)) +
         mpq_class(whole_number(decimals), power_of_ten(decimals.size()));
}

/// The integer, not negative and at most `largest`, that an expression is.
std::optional<unsigned long> small_integer(const Expression& value, long largest) {
  const mpq_class* number = MathAlgebra::as_number(value);
  return number != nullptr && number->get_den() == 1 && *number >= 0 && *number <= largest
             ? std::optional<unsigned long>(number->get_num().get_ui())
             : std::nullopt;
}

class Parser {
 public:
  Parser(MathAlgebra& algebra, MathTokens tokens) : algebra_(algebra), tokens_(tokens) {}

  Expression run() {
    Expression value = sum();
    if (!at_end()) {
      throw MathRefusal("not an expression");
    }
    return value;
  }

 private:
  /// Counts nesting for the length of one call.
  class Level {
   public:
    explicit Level(int& depth) : depth_(depth) {
      if (++depth_ > kMaxDepth) {
        throw MathRefusal("nested too deep");
      }
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --depth_; }

   private:
    int& depth_;
  };

  [[nodiscard]] bool at_end() const { return at_ >= tokens_.size(); }
  [[nodiscard]] const MathToken* ahead(std::size_t distance = 0) const {
    return at_ + distance < tokens_.size() ? &tokens_[at_ + distance] : nullptr;
  }
  [[nodiscard]] bool next_is(char symbol) const {
    return ahead() != nullptr && ahead()->is_symbol(symbol);
  }
  [[nodiscard]] bool next_is(std::string_view command) const {
    return ahead() != nullptr && ahead()->is_command(command);
  }
  template <typename What>
  bool take(What what) {
    if (!next_is(what)) {
      return false;
    }
    ++at_;
    return true;
  }
  void need(char symbol) {
    if (!take(symbol)) {
      throw MathRefusal("unbalanced");
    }
  }

  Expression sum() {
    const Level level(depth_);
    Expression value = product();
    for (;;) {
      if (take('+')) {
        value = algebra_.add(value, product());
      } else if (take('-')) {
        value = algebra_.subtract(value, product());
      } else {
        return value;
      }
    }
  }

  Expression product() {
    Expression value = signed_factor();
    for (;;) {
      if (take('*') || take("\\cdot") || take("\\times")) {
        value = algebra_.multiply(value, signed_factor());
      } else if (take('/') || take("\\div")) {
        value = algebra_.divide(value, signed_factor());
      } else if (starts_factor()) {
        // Two numbers side by side are no product ("3 4"); mixed numbers were read as one.
        if (ahead()->kind == Kind::number) {
          throw MathRefusal("two numbers side by side");
        }
        value = algebra_.multiply(value, factor());
      } else {
        return value;
      }
    }
  }

  [[nodiscard]] bool starts_factor() const {
    const MathToken* token = ahead();
    if (token == nullptr || token->kind == Kind::text) {
      return false;
    }
    if (token->kind == Kind::symbol) {
      return token->text == "(" || token->text == "[" || token->text == "{" ||
             (token->text == "|" && bars_ == 0);
    }
    return token->kind != Kind::command || is_variable_command(token->text) ||
           token->text == "\\frac" || token->text == "\\sqrt" || token->text == "\\binom" ||
           token->text == "\\overline" || is_function(std::string_view(token->text).substr(1));
  }

  Expression signed_factor() {
    const Level level(depth_);
    if (take('-')) {
      return algebra_.multiply(algebra_.number(-1), signed_factor());
    }
    return take('+') ? signed_factor() : factor();
  }

  Expression factor() {
    const Level level(depth_);
    return postfix(primary());
  }

  Expression postfix(Expression value) {
    for (;;) {
      if (take('!')) {
        value = factorial(value);
      } else if (const auto zeros = scale()) {
        value = algebra_.multiply(
            value, algebra_.number(mpq_class(power_of_ten(static_cast<std::size_t>(*zeros)))));
      } else if (take('%')) {
        value = algebra_.divide(value, algebra_.number(100));
        value.percent = true;
      } else if (take("\\circ")) {
        value.degrees = true;
      } else if (take('^')) {
        if (is_degree_sign()) {
          value.degrees = true;
        } else {
          value = algebra_.power(value, exponent());
        }
      } else {
        return value;
      }
    }
  }

  /// Takes "million" and the like.
  std::optional<int> scale() {
    const MathToken* word = ahead();
    const auto zeros = word != nullptr && (word->kind == Kind::word || word->kind == Kind::text)
                           ? number_scale(word->text)
                           : std::nullopt;
    at_ += zeros ? 1 : 0;
    return zeros;
  }

  /// Takes "\circ" or "{\circ}".
  bool is_degree_sign() {
    const std::size_t brace = next_is('{') ? 1 : 0;
    const MathToken* sign = ahead(brace);
    // A small letter o stands in its place at times.
    if (sign == nullptr ||
        !(sign->is_command("\\circ") ||
          ((sign->kind == Kind::name || sign->kind == Kind::text) && sign->text == "o"))) {
      return false;
    }
    if (brace > 0 && (ahead(2) == nullptr || !ahead(2)->is_symbol('}'))) {
      return false;
    }
    at_ += 1 + 2 * brace;
    return true;
  }

  Expression exponent() {
    const Level level(depth_);
    if (take('-')) {
      return algebra_.multiply(algebra_.number(-1), exponent());
    }
    // Powers associate to the right: 2^3^2 is 2^9.
    const Expression base = primary();
    return take('^') ? algebra_.power(base, exponent()) : base;
  }

  Expression group(char close) {
    Expression value = sum();
    need(close);
    return value;
  }

  /// "{…}", "(…)" or one token; of a number one digit ("\frac12").
  Expression argument() {
    const Level level(depth_);
    const MathToken* token = ahead();
    if (token == nullptr) {
      throw MathRefusal("argument missing");
    }
    if (token->kind == Kind::number && token->text.find('.') == std::string::npos) {
      const int digit = token->text[digits_taken_] - '0';
      if (++digits_taken_ == token->text.size()) {
        ++at_;
        digits_taken_ = 0;
      }
      return algebra_.number(digit);
    }
    return primary();
  }

  Expression primary() {
    const MathToken* token = ahead();
    if (token == nullptr) {
      throw MathRefusal("operand missing");
    }
    switch (token->kind) {
      case Kind::number:
        return number();
      case Kind::name:
        return name();
      case Kind::word:
        return word();
      case Kind::command:
        return command();
      case Kind::symbol:
        return bracketed();
      case Kind::text:
        break;
    }
    throw MathRefusal("text inside an expression");
  }

  Expression bracketed() {
    if (take('(')) {
      const int outer = std::exchange(bars_, 0);
      Expression value = group(')');
      bars_ = outer;
      return value;
    }
    if (take('[')) {
      return group(']');
    }
    if (take('{')) {
      return group('}');
    }
    if (take('|')) {
      ++bars_;
      const Expression value = group('|');
      --bars_;
      return algebra_.absolute(value);
    }
    throw MathRefusal("operand missing");
  }

  Expression number() {
    const std::string_view text = std::string_view(tokens_[at_].text).substr(digits_taken_);
    digits_taken_ = 0;
    ++at_;
    mpq_class value = decimal(text);
    if (next_is("\\overline") && text.find('.') != std::string_view::npos) {
      value += repeating_part(text);
    } else if (const auto factor = scientific_factor(text)) {
      value *= *factor;
    } else if (text.find('.') == std::string_view::npos) {
      value += proper_fraction().value_or(0);
    }
    return algebra_.number(value);
  }

  /// "\overline{36}" behind "0.1": 0.036 repeating.
  mpq_class repeating_part(std::string_view before) {
    ++at_;
    if (!take('{') || ahead() == nullptr || ahead()->kind != Kind::number ||
        ahead()->text.find('.') != std::string::npos) {
      throw MathRefusal("overline without digits");
    }
    const std::string digits = ahead()->text;
    ++at_;
    need('}');
    const std::size_t places = before.size() - before.find('.') - 1;
    const mpz_class nines = power_of_ten(digits.size()) - 1;
    return mpq_class(whole_number(digits), nines * power_of_ten(places));
  }

  /// "E-5" or "E6" right behind a number. A small "e" is the constant ("2e+3" is 2·e + 3), except
  /// where nothing but a number as programs print it is there: "1.5e-3", with a decimal point.
  std::optional<mpq_class> scientific_factor(std::string_view mantissa) {
    const MathToken* letter = ahead();
    if (letter == nullptr || letter->kind != Kind::name || letter->space_before ||
        (letter->text != "e" && letter->text != "E")) {
      return std::nullopt;
    }
    const std::size_t before = at_ - 1 - (tokens_[0].is_symbol('-') ? 1 : 0);
    std::size_t skip = 1;
    const bool negative = ahead(skip) != nullptr && ahead(skip)->is_symbol('-');
    if (negative || (ahead(skip) != nullptr && ahead(skip)->is_symbol('+'))) {
      skip += ahead(skip)->space_before ? 0 : 1;
    }
    const MathToken* digits = ahead(skip);
    const bool all = before == 0 && ahead(skip + 1) == nullptr;
    if (digits == nullptr || digits->kind != Kind::number || digits->space_before ||
        digits->text.size() > 2 || digits->text.find('.') != std::string::npos ||
        (letter->text == "e" && (!all || mantissa.find('.') == std::string_view::npos))) {
      return std::nullopt;
    }
    at_ += skip + 1;
    const mpz_class power = power_of_ten(whole_number(digits->text).get_ui());
    return negative ? mpq_class(1, power) : mpq_class(power);
  }

  /// The rest of a mixed number: "\frac{1}{2}", "\frac12" or " 1/2" with above < below.
  std::optional<mpq_class> proper_fraction() {
    const std::size_t begin = at_;
    std::optional<mpq_class> above;
    std::optional<mpq_class> below;
    if (take("\\frac")) {
      above = integer_argument();
      below = above ? integer_argument() : std::nullopt;
    } else if (ahead() != nullptr && ahead()->kind == Kind::number && ahead(1) != nullptr &&
               ahead(1)->is_symbol('/') && ahead(2) != nullptr && ahead(2)->kind == Kind::number) {
      above = decimal(ahead()->text);
      below = decimal(ahead(2)->text);
      at_ += 3;
    }
    if (above && below && above->get_den() == 1 && below->get_den() == 1 && *above > 0 &&
        *above < *below) {
      return mpq_class(*above / *below);
    }
    at_ = begin;
    digits_taken_ = 0;
    return std::nullopt;
  }

  std::optional<mpq_class> integer_argument() {
    const bool braced = next_is('{');
    const MathToken* digits = ahead(braced ? 1 : 0);
    if (digits == nullptr || digits->kind != Kind::number) {
      return std::nullopt;
    }
    if (!braced) {
      return *MathAlgebra::as_number(argument());
    }
    if (ahead(2) == nullptr || !ahead(2)->is_symbol('}')) {
      return std::nullopt;
    }
    at_ += 3;
    return decimal(digits->text);
  }

  Expression name() {
    const MathToken& token = tokens_[at_++];
    if (names_function(token) && next_is('(')) {
      return call(token.text, std::nullopt);
    }
    if (names_function(token) && takes_inverse()) {
      return call(token.text + "^{-1}", std::nullopt);
    }
    return algebra_.atom(token.text + subscript());
  }

  /// Takes "^{-1}" in front of an argument: an inverse function.
  bool takes_inverse() {
    constexpr std::array<std::string_view, 6> kInverse{"^", "{", "-", "1", "}", "("};
    for (std::size_t i = 0; i < kInverse.size(); ++i) {
      if (ahead(i) == nullptr || ahead(i)->text != kInverse[i]) {
        return false;
      }
    }
    at_ += kInverse.size() - 1;
    return true;
  }

  /// "_1" or "_{n}" behind a variable, as part of its name.
  std::string subscript() {
    if (!take('_')) {
      return {};
    }
    const Level level(depth_);
    return "_" + MathAlgebra::key(primary());
  }

  /// "(…)" behind a function's name; of several arguments only the name of the whole is known.
  Expression call(const std::string& function, const std::optional<Expression>& base) {
    need('(');
    const Expression first = sum();
    if (take(')')) {
      return apply(function, base, first);
    }
    std::string arguments = MathAlgebra::key(first);
    while (take(',')) {
      arguments += "," + MathAlgebra::key(sum());
    }
    need(')');
    return algebra_.atom(function + "(" + arguments + ")");
  }

  Expression apply(const std::string& function, const std::optional<Expression>& base,
                   const Expression& argument) {
    if (!base) {
      return algebra_.function(function, argument);
    }
    return function == "log" ? algebra_.logarithm(*base, argument)
                             : algebra_.atom(function + "_" + MathAlgebra::key(*base) + "(" +
                                             MathAlgebra::key(argument) + ")");
  }

  Expression word() {
    const std::string& text = tokens_[at_].text;
    ++at_;
    if (text == "pi" || text == "Pi") {
      return algebra_.atom("\\pi");
    }
    if (text == "inf" || text == "infinity" || text == "oo") {
      return MathAlgebra::infinity();
    }
    if (text == "sqrt") {
      return square_root();
    }
    if (is_function(text)) {
      return function(text);
    }
    const bool variables = text.size() <= kLongestWordOfVariables &&
                           std::all_of(text.begin(), text.end(), [](char c) { return c >= 'a'; });
    if (!variables) {
      return algebra_.atom("word " + text);
    }
    Expression value = algebra_.number(1);
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      value = algebra_.multiply(value, algebra_.atom(std::string(1, text[i])));
    }
    // An exponent behind the word belongs to its last letter.
    return algebra_.multiply(value,
                             postfix(algebra_.atom(std::string(1, text.back()) + subscript())));
  }

  Expression command() {
    const std::string& text = tokens_[at_].text;
    ++at_;
    if (text == "\\frac") {
      const Expression above = argument();
      return algebra_.divide(above, argument());
    }
    if (text == "\\sqrt") {
      return square_root();
    }
    if (text == "\\binom") {
      const Expression above = argument();
      return binomial(above, argument());
    }
    if (text == "\\infty") {
      return MathAlgebra::infinity();
    }
    if (is_variable_command(text)) {
      return algebra_.atom(text + subscript());
    }
    if (text == "\\overline") {
      need('{');
      std::string letters;
      while (ahead() != nullptr && (ahead()->kind == Kind::word || ahead()->kind == Kind::name)) {
        letters += tokens_[at_++].text;
      }
      need('}');
      return algebra_.atom("word " + letters);
    }
    if (is_function(std::string_view(text).substr(1))) {
      return function(text.substr(1));
    }
    throw MathRefusal("unknown command");
  }

  Expression square_root() {
    Expression degree = algebra_.number(2);
    if (take('[')) {
      degree = group(']');
    }
    // "sqrt12" in plain text and "\sqrt12" are read as the root of the first digit, as TeX does.
    const Expression inside = argument();
    return algebra_.power(inside, algebra_.divide(algebra_.number(1), degree));
  }

  /// sin^2 x, \log_2 8, \cos 13^\circ: the argument is a bracket or the factors up to the next
  /// sign.
  Expression function(const std::string& name) {
    const Level level(depth_);
    std::optional<Expression> base;
    if (take('_')) {
      base = argument();
    }
    std::optional<Expression> power;
    if (take('^')) {
      power = exponent();
    }
    // "\sin^{-1} x" is the inverse function.
    const mpq_class* number = power ? MathAlgebra::as_number(*power) : nullptr;
    const bool inverse =
        number != nullptr && *number == -1 && (name == "sin" || name == "cos" || name == "tan");
    const std::string applied = inverse ? "a" + name : name;
    Expression value;
    if (next_is('(')) {
      value = call(applied, base);
    } else {
      Expression argument = factor();
      while (starts_factor() && !starts_function()) {
        argument = algebra_.multiply(argument, factor());
      }
      value = apply(applied, base, argument);
    }
    return power && !inverse ? algebra_.power(value, *power) : value;
  }

  [[nodiscard]] bool starts_function() const {
    const MathToken* token = ahead();
    const std::string_view text = token->text;
    return (token->kind == Kind::word && is_function(text)) ||
           (token->kind == Kind::command && is_function(text.substr(1)));
  }

  Expression factorial(const Expression& value) {
    const auto number = small_integer(value, kLargestFactorial);
    if (!number) {
      return algebra_.atom("factorial(" + MathAlgebra::key(value) + ")");
    }
    algebra_.spend(static_cast<std::int64_t>(*number));
    mpz_class product;
    mpz_fac_ui(product.get_mpz_t(), *number);
    return algebra_.number(mpq_class(product));
  }

  Expression binomial(const Expression& above, const Expression& below) {
    const auto n = small_integer(above, kLargestFactorial);
    const auto k = small_integer(below, kLargestFactorial);
    if (!n || !k) {
      return algebra_.atom("binom(" + MathAlgebra::key(above) + "," + MathAlgebra::key(below) +
                           ")");
    }
    algebra_.spend(static_cast<std::int64_t>(*n));
    mpz_class ways;
    mpz_bin_uiui(ways.get_mpz_t(), *n, *k);
    return algebra_.number(mpq_class(ways));
  }

  MathAlgebra& algebra_;
  MathTokens tokens_;
  std::size_t at_ = 0;
  std::size_t digits_taken_ = 0;  ///< Of the number at at_, by arguments without braces.
  int depth_ = 0;
  int bars_ = 0;  ///< Open "|".
};

}  // namespace

Expression parse_expression(MathAlgebra& algebra, MathTokens tokens) {
  return Parser(algebra, tokens).run();
}

}  // namespace jforge
