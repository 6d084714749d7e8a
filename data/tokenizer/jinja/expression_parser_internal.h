#pragma once

/// The half of the parser that reads expressions.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/lexer_internal.h"
#include "data/tokenizer/jinja/syntax_internal.h"

namespace jforge::jinja {

/// Reads expressions from a template's tokens into a tree, with jinja2's precedence.
class ExpressionParser {
 protected:
  using Make = Expression::Kind;
  using Type = Token::Kind;

  ExpressionParser(std::string_view source, Syntax& syntax)
      : syntax_(syntax), tokens_(tokens_of(source)) {}

  // Tokens.

  [[nodiscard]] const Token& now() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const {
    return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
  }
  const Token& take() {
    const Token& token = now();
    if (token.kind != Type::end) ++at_;
    return token;
  }
  [[nodiscard]] bool is_sign(std::string_view sign) const {
    return now().kind == Type::sign && now().text == sign;
  }
  [[nodiscard]] bool is_name(std::string_view name) const {
    return now().kind == Type::name && now().text == name;
  }
  bool skip_sign(std::string_view sign) { return is_sign(sign) && (++at_, true); }
  bool skip_name(std::string_view name) { return is_name(name) && (++at_, true); }

  [[noreturn]] void fail(const std::string& what, int line) const {
    throw TemplateError(line, what);
  }
  [[nodiscard]] std::string shown() const {
    switch (now().kind) {
      case Type::print_end:
        return "}}";
      case Type::statement_end:
        return "%}";
      case Type::end:
        return "the end of the template";
      default:
        return now().text;
    }
  }
  [[noreturn]] void fail_unexpected(std::string_view expected) const {
    fail(fmt::format("expected {}, found '{}'", expected, shown()), now().line);
  }
  void expect_sign(std::string_view sign) {
    if (!skip_sign(sign)) fail_unexpected(fmt::format("'{}'", sign));
  }
  void expect_kind(Type kind, std::string_view what) {
    if (now().kind != kind) fail_unexpected(what);
    ++at_;
  }
  std::string_view take_name() {
    if (now().kind != Type::name) fail_unexpected("a name");
    return keep(take().text);
  }
  std::string_view keep(const std::string& text) {
    // What finding out the scopes takes grows with the names.
    if (syntax_.texts.size() >= kMostTexts) fail("it has too many names and texts", now().line);
    return *syntax_.texts.insert(text).first;
  }

  // Nodes.

  Expression* make(Make kind, int line, std::vector<Expression*> operands = {}) {
    Expression& made = syntax_.expressions.emplace_back();
    made.kind = kind;
    made.line = line;
    for (const Expression* operand : operands) {
      if (operand != nullptr) deepen(made, *operand);
    }
    made.operands = std::move(operands);
    return &made;
  }
  void deepen(Expression& node, const Expression& below) const {
    node.depth = std::max(node.depth, below.depth + 1);
    if (node.depth > kDeepestTree) fail("an expression is nested too deeply", node.line);
  }
  Expression* make_constant(Value value, int line) {
    Expression* made = make(Make::constant, line);
    made->constant = value;
    return made;
  }
  Statement* make(Statement::Kind kind, int line) {
    Statement& made = syntax_.statements.emplace_back();
    made.kind = kind;
    made.line = line;
    return &made;
  }

  /// Counts how deep the parser is in itself.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : depth_(parser.nesting_) {
      if (++depth_ > kDeepestNesting) {
        parser.fail("the template is nested too deeply", parser.now().line);
      }
    }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int& depth_;
  };

  // Expressions, from what binds least to what binds most.

  struct TupleRules {
    bool conditional = true;  ///< `a if b else c` may stand in it.
    std::string_view end = {};
    bool bracketed = false;
  };

  Expression* parse_tuple() { return parse_tuple(TupleRules{}); }

  Expression* parse_tuple(const TupleRules& rules) {
    const int line = now().line;
    std::vector<Expression*> items;
    bool tuple = false;
    while (true) {
      if (!items.empty() && !skip_sign(",")) break;
      tuple = !items.empty();
      if (now().kind == Type::print_end || now().kind == Type::statement_end || is_sign(")") ||
          (!rules.end.empty() && is_name(rules.end))) {
        break;
      }
      items.push_back(rules.conditional ? parse_expression() : parse_or());
    }
    if (!tuple && items.size() == 1) return items[0];
    if (items.empty() && !rules.bracketed) fail_unexpected("an expression");
    return make(Make::tuple, line, std::move(items));
  }

  Expression* parse_expression() {
    const Nesting nesting(*this);
    Expression* value = parse_or();
    while (is_name("if")) {
      const int line = take().line;
      std::vector<Expression*> operands = {parse_or(), value};
      if (skip_name("else")) operands.push_back(parse_expression());
      value = make(Make::conditional, line, std::move(operands));
    }
    return value;
  }

  Expression* parse_or() {
    const Nesting nesting(*this);
    Expression* left = parse_and();
    while (is_name("or")) {
      const int line = take().line;
      left = make(Make::logical_or, line, {left, parse_and()});
    }
    return left;
  }

  Expression* parse_and() {
    Expression* left = parse_not();
    while (is_name("and")) {
      const int line = take().line;
      left = make(Make::logical_and, line, {left, parse_not()});
    }
    return left;
  }

  Expression* parse_not() {
    const Nesting nesting(*this);
    if (!is_name("not")) return parse_comparison();
    const int line = take().line;
    return make(Make::logical_not, line, {parse_not()});
  }

  Expression* parse_comparison() {
    constexpr std::array<std::pair<std::string_view, Comparison>, 6> kSigns = {
        {{"==", Comparison::equal},
         {"!=", Comparison::unequal},
         {"<", Comparison::less},
         {"<=", Comparison::less_equal},
         {">", Comparison::greater},
         {">=", Comparison::greater_equal}}};
    const int line = now().line;
    std::vector<Expression*> operands = {parse_sum()};
    std::vector<Comparison> comparisons;
    while (true) {
      const auto sign =
          std::ranges::find_if(kSigns, [&](const auto& s) { return is_sign(s.first); });
      if (sign != kSigns.end()) {
        take();
        comparisons.push_back(sign->second);
      } else if (skip_name("in")) {
        comparisons.push_back(Comparison::in);
      } else if (is_name("not") && ahead().kind == Type::name && ahead().text == "in") {
        at_ += 2;
        comparisons.push_back(Comparison::not_in);
      } else {
        break;
      }
      operands.push_back(parse_sum());
    }
    if (comparisons.empty()) return operands[0];
    Expression* made = make(Make::comparison, line, std::move(operands));
    made->comparisons = std::move(comparisons);
    return made;
  }

  Expression* parse_sum() {
    Expression* left = parse_concatenation();
    while (is_sign("+") || is_sign("-")) {
      const Token& sign = take();
      const Make kind = sign.text == "+" ? Make::add : Make::subtract;
      left = make(kind, sign.line, {left, parse_concatenation()});
    }
    return left;
  }

  Expression* parse_concatenation() {
    const int line = now().line;
    std::vector<Expression*> operands = {parse_product()};
    while (skip_sign("~")) operands.push_back(parse_product());
    if (operands.size() == 1) return operands[0];
    return make(Make::concatenate, line, std::move(operands));
  }

  Expression* parse_product() {
    Expression* left = parse_power();
    while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
      const Token& sign = take();
      const Make kind = sign.text == "*"    ? Make::multiply
                        : sign.text == "/"  ? Make::divide
                        : sign.text == "//" ? Make::divide_whole
                                            : Make::modulo;
      left = make(kind, sign.line, {left, parse_power()});
    }
    return left;
  }

  Expression* parse_power() {
    Expression* left = parse_unary(true);
    while (is_sign("**")) {
      const int line = take().line;
      left = make(Make::power, line, {left, parse_unary(true)});
    }
    return left;
  }

  Expression* parse_unary(bool with_filters) {
    const Nesting nesting(*this);
    Expression* node = nullptr;
    if (is_sign("-") || is_sign("+")) {
      const Token& sign = take();
      const Make kind = sign.text == "-" ? Make::negative : Make::positive;
      node = make(kind, sign.line, {parse_unary(false)});
    } else {
      node = parse_primary();
    }
    node = parse_postfix(node);
    return with_filters ? parse_filters_and_tests(node) : node;
  }

  static bool is_constant(std::string_view name) {
    return name == "true" || name == "True" || name == "false" || name == "False" ||
           name == "none" || name == "None";
  }

  Expression* parse_primary() {
    const Token& token = take();
    const int line = token.line;
    switch (token.kind) {
      case Type::name:
        return parse_name(token.text, line);
      case Type::string: {
        std::string text = token.text;
        while (now().kind == Type::string) text += take().text;
        return make_constant(Value::of(keep(text)), line);
      }
      case Type::integer:
        return make_constant(Value::of(token.integer), line);
      case Type::real:
        return make_constant(Value::of(token.real), line);
      default:
        break;
    }
    if (token.kind == Type::sign && token.text == "(") {
      Expression* inner = parse_tuple({.bracketed = true});
      expect_sign(")");
      return inner;
    }
    if (token.kind == Type::sign && token.text == "[") return parse_list(line);
    if (token.kind == Type::sign && token.text == "{") return parse_mapping(line);
    if (token.kind != Type::end) --at_;
    fail_unexpected("an expression");
  }

  Expression* parse_name(const std::string& name, int line) {
    if (is_constant(name)) {
      const bool none = name == "none" || name == "None";
      return make_constant(none ? Value::none() : Value::of(name == "true" || name == "True"),
                           line);
    }
    if (name == "self") fail("'self' is not supported", line);
    if (macros_ > 0 && (name == "caller" || name == "varargs" || name == "kwargs")) {
      fail(fmt::format("'{}' in a macro is not supported", name), line);
    }
    Expression* made = make(Make::name, line);
    made->name = keep(name);
    return made;
  }

  Expression* parse_list(int line) {
    std::vector<Expression*> items;
    while (!is_sign("]")) {
      if (!items.empty()) expect_sign(",");
      if (is_sign("]")) break;
      items.push_back(parse_expression());
    }
    expect_sign("]");
    return make(Make::list, line, std::move(items));
  }

  Expression* parse_mapping(int line) {
    std::vector<Expression*> items;
    while (!is_sign("}")) {
      if (!items.empty()) expect_sign(",");
      if (is_sign("}")) break;
      items.push_back(parse_expression());
      expect_sign(":");
      items.push_back(parse_expression());
    }
    expect_sign("}");
    return make(Make::mapping, line, std::move(items));
  }

  Expression* parse_postfix(Expression* node) {
    while (true) {
      const int line = now().line;
      if (skip_sign(".")) {
        if (now().kind == Type::integer) {
          Expression* key = make_constant(Value::of(take().integer), line);
          node = make(Make::element, line, {node, key});
        } else {
          node = make(Make::attribute, line, {node});
          node->name = take_name();
        }
      } else if (skip_sign("[")) {
        node = parse_subscript(node, line);
      } else if (is_sign("(")) {
        node = make(Make::call, line, {node});
        parse_arguments(*node);
      } else {
        return node;
      }
    }
  }

  Expression* parse_subscript(Expression* node, int line) {
    Expression* begin = is_sign(":") ? nullptr : parse_expression();
    if (!skip_sign(":")) {
      if (is_sign(",")) fail("an element under more than one key is not supported", line);
      expect_sign("]");
      return make(Make::element, line, {node, begin});
    }
    const auto part = [this]() -> Expression* {
      return is_sign(":") || is_sign("]") ? nullptr : parse_expression();
    };
    Expression* end = part();
    Expression* step = skip_sign(":") ? part() : nullptr;
    expect_sign("]");
    return make(Make::slice, line, {node, begin, end, step});
  }

  /// `(a, b, name=c)` into the operands and keywords of `node`.
  void parse_arguments(Expression& node) {
    expect_sign("(");
    bool first = true;
    while (!is_sign(")")) {
      if (!std::exchange(first, false)) {
        expect_sign(",");
        if (is_sign(")")) break;
      }
      if (is_sign("*") || is_sign("**")) {
        fail(fmt::format("the argument '{}' is not supported", now().text), now().line);
      }
      const bool keyword =
          now().kind == Type::name && ahead().kind == Type::sign && ahead().text == "=";
      std::string_view name;
      if (keyword) {
        name = take_name();
        take();
      } else if (!node.keywords.empty()) {
        fail("an argument without a name behind one with a name", now().line);
      }
      Expression* value = parse_expression();
      deepen(node, *value);
      if (keyword) {
        node.keywords.emplace_back(name, value);
      } else {
        node.operands.push_back(value);
      }
    }
    expect_sign(")");
  }

  Expression* parse_filters_and_tests(Expression* node) {
    while (true) {
      if (is_sign("|")) {
        node = parse_filters(node, false);
      } else if (is_name("is")) {
        node = parse_test(node);
      } else if (is_sign("(")) {
        node = make(Make::call, now().line, {node});
        parse_arguments(*node);
      } else {
        return node;
      }
    }
  }

  /// `| name(…)` any number of times; the first without its sign where `begun`.
  Expression* parse_filters(Expression* node, bool begun) {
    while (begun || skip_sign("|")) {
      begun = false;
      node = make(Make::filter, now().line, {node});
      node->name = take_dotted_name();
      node->builtin = find_filter(node->name);
      if (is_sign("(")) parse_arguments(*node);
    }
    return node;
  }

  std::string_view take_dotted_name() {
    std::string name(take_name());
    while (skip_sign(".")) name += "." + std::string(take_name());
    return keep(name);
  }

  Expression* parse_test(Expression* node) {
    const int line = take().line;
    const bool negated = skip_name("not");
    Expression* made = make(Make::test, line, {node});
    made->name = take_dotted_name();
    made->builtin = find_test(made->name);
    const Type kind = now().kind;
    if (is_sign("(")) {
      parse_arguments(*made);
    } else if (kind == Type::string || kind == Type::integer || kind == Type::real ||
               is_sign("[") || is_sign("{") ||
               (kind == Type::name && !is_name("else") && !is_name("or") && !is_name("and"))) {
      if (is_name("is")) fail("tests cannot be chained", line);
      Expression* argument = parse_postfix(parse_primary());
      deepen(*made, *argument);
      made->operands.push_back(argument);
    }
    return negated ? make(Make::logical_not, line, {made}) : made;
  }

  Syntax& syntax_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int macros_ = 0;  // Around the present place.

 private:
  static constexpr int kDeepestNesting = 200;
  static constexpr int kDeepestTree = 500;
  static constexpr std::size_t kMostTexts = 4000;

  int nesting_ = 0;
};

}  // namespace jforge::jinja
