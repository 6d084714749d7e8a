#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "data/tokenizer/jinja/syntax_internal.h"

namespace jforge::jinja {
namespace {

constexpr std::size_t kMaxTemplateBytes = std::size_t{256} << 10;
constexpr int kMaxNesting = 200;

using Names = std::initializer_list<std::string_view>;

/// Builds the tree, with jinja2's precedence.
class Parser {
 public:
  Parser(std::string_view source, Syntax& syntax) : syntax_(syntax), tokens_(tokens_of(source)) {}

  void run() {
    try {
      const OpenScope scope(*this, syntax_.scope);
      syntax_.body = parse_body({});
      finish_scopes();
    } catch (const Failure& failure) {
      throw TemplateError(now().line, failure.reason);
    }
  }

 private:
  using Make = Expression::Kind;
  using Type = Token::Kind;
  using Target = Statement::Target;

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

  [[noreturn]] void fail_unexpected(std::string_view expected) const {
    const Type kind = now().kind;
    fail(fmt::format("expected {}, found '{}'", expected,
                     kind == Type::print_end       ? "}}"
                     : kind == Type::statement_end ? "%}"
                     : kind == Type::end           ? "the end of the template"
                                                   : now().text));
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
  std::string_view keep(const std::string& text) { return *syntax_.texts.insert(text).first; }

  Expression* make(Make kind, int line, std::vector<Expression*> operands = {},
                   std::string_view name = {}) {
    Expression& made = syntax_.expressions.emplace_back();
    made.kind = kind;
    made.line = line;
    made.name = name;
    made.operands = std::move(operands);
    return &made;
  }
  Expression* make_constant(Value value, int line) {
    Expression* made = make(Make::constant, line);
    made->constant = value;
    return made;
  }
  Expression* make_unsupported(const std::string& what, int line) {
    return make(Make::unsupported, line, {}, keep(fmt::format("{} is not supported", what)));
  }
  Statement* make(Statement::Kind kind, int line) {
    Statement& made = syntax_.statements.emplace_back();
    made.kind = kind;
    made.line = line;
    return &made;
  }

  // Expressions, lowest precedence first.

  /// Parses an expression or tuple; returns null only if `may_be_empty`.
  Expression* parse_tuple(bool may_be_empty = false) {
    const int line = now().line;
    std::vector<Expression*> items;
    bool tuple = false;
    while (true) {
      if (!items.empty() && !skip_sign(",")) break;
      tuple = !items.empty();
      if (now().kind == Type::print_end || now().kind == Type::statement_end || is_sign(")")) break;
      items.push_back(parse_expression());
    }
    if (!tuple && items.size() == 1) return items[0];
    if (items.empty() && !may_be_empty) fail_unexpected("an expression");
    return make(Make::tuple, line, std::move(items));
  }

  Expression* parse_expression() {
    const Nesting nesting(nesting_, kMaxNesting);
    Expression* value = parse_operators();
    while (is_name("if")) {
      const int line = take().line;
      std::vector<Expression*> operands = {parse_operators(), value};
      if (skip_name("else")) operands.push_back(parse_expression());
      value = make(Make::conditional, line, std::move(operands));
    }
    return value;
  }

  /// Binary operators of equal precedence; `not` has no signs.
  struct Level {
    Make kind;
    std::array<std::string_view, 8> signs;
  };
  static constexpr std::array<Level, 8> kLevels = {{
      {Make::logical_or, {"or"}},
      {Make::logical_and, {"and"}},
      {Make::logical_not, {}},
      {Make::comparison, {"==", "!=", "<", "<=", ">", ">=", "in", "not in"}},
      {Make::arithmetic, {"+", "-"}},
      {Make::arithmetic, {"~"}},
      {Make::arithmetic, {"*", "/", "//", "%"}},
      {Make::arithmetic, {"**"}},
  }};

  Expression* parse_operators(std::size_t level = 0) {
    if (level == kLevels.size()) return parse_filters_and_tests(parse_unary());
    const auto& [kind, signs] = kLevels.at(level);
    if (kind == Make::logical_not && is_name("not")) {
      const Nesting nesting(nesting_, kMaxNesting);
      const int line = take().line;
      return make(kind, line, {parse_operators(level)});
    }
    Expression* left = parse_operators(level + 1);
    for (int count = 1;; ++count) {
      const int line = now().line;
      const std::string_view sign = take_one_of(signs);
      if (sign.empty()) return left;
      left = make(kind, line, {left, parse_operators(level + 1)}, sign);
      if (kind == Make::comparison && count > 1) {
        left = make_unsupported("more than one comparison without 'and'", line);
      }
    }
  }

  std::string_view take_one_of(std::span<const std::string_view> signs) {
    if (now().kind != Type::sign && now().kind != Type::name) return {};
    const bool is_not_in = is_name("not") && ahead().kind == Type::name && ahead().text == "in";
    const std::string_view text = is_not_in ? "not in" : std::string_view(now().text);
    const auto sign = std::ranges::find(signs, text);
    if (sign == signs.end()) return {};
    at_ += is_not_in ? 2 : 1;
    return *sign;
  }

  Expression* parse_unary() {
    const Nesting nesting(nesting_, kMaxNesting);
    const int line = now().line;
    Expression* node = nullptr;
    if (skip_sign("-")) {
      node = make(Make::negative, line, {parse_unary()});
    } else if (skip_sign("+")) {
      parse_unary();
      node = make_unsupported("the sign '+'", line);
    } else {
      node = parse_primary();
    }
    return parse_postfix(node);
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
        return make_constant(Value(keep(text)), line);
      }
      case Type::integer:
        return make_constant(Value(token.integer), line);
      case Type::unsupported:
        return make_unsupported(token.text, line);
      default:
        break;
    }
    if (token.kind == Type::sign && token.text == "(") {
      Expression* inner = parse_tuple(/*may_be_empty=*/true);
      expect_sign(")");
      return inner;
    }
    if (token.kind == Type::sign && token.text == "[") return parse_list(line);
    if (token.kind == Type::sign && token.text == "{") return parse_mapping(line);
    if (token.kind != Type::end) --at_;
    fail_unexpected("an expression");
  }

  Expression* parse_name(const std::string& name, int line) {
    if (name == "none" || name == "None") return make_constant(Value(Kind::none), line);
    if (is_constant(name)) return make_constant(Value(name == "true" || name == "True"), line);
    const bool of_macro = name == "caller" || name == "varargs" || name == "kwargs";
    if (name == "self" || (macros_ > 0 && of_macro)) {
      return make_unsupported(fmt::format("'{}'", name), line);
    }
    const std::string_view kept = keep(name);
    scope_->mentioned.insert(kept);
    return make(Make::name, line, {}, kept);
  }

  Expression* parse_list(int line) {
    std::vector<Expression*> items;
    parse_items("]", [&] { items.push_back(parse_expression()); });
    return make(Make::list, line, std::move(items));
  }

  Expression* parse_mapping(int line) {
    std::vector<Expression*> items;
    parse_items("}", [&] {
      items.push_back(parse_expression());
      expect_sign(":");
      items.push_back(parse_expression());
    });
    return make(Make::mapping, line, std::move(items));
  }

  /// Calls `parse_item` up to the bracket `end`; allows a trailing comma.
  template <typename ParseItem>
  void parse_items(std::string_view end, ParseItem parse_item) {
    while (!skip_sign(end)) {
      parse_item();
      if (!is_sign(end)) expect_sign(",");
    }
  }

  Expression* parse_postfix(Expression* node) {
    while (true) {
      const int line = now().line;
      if (skip_sign(".")) {
        if (now().kind == Type::integer) {
          Expression* key = make_constant(Value(take().integer), line);
          node = make(Make::element, line, {node, key});
        } else {
          node = make(Make::attribute, line, {node}, take_name());
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
      if (is_sign(",")) fail("an element under more than one key is not supported");
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

  /// Parses `(a, b, name=c)` into `node`.
  void parse_arguments(Expression& node) {
    expect_sign("(");
    parse_items(")", [&] {
      if (is_sign("*") || is_sign("**")) {
        fail(fmt::format("the argument '{}' is not supported", now().text));
      }
      const bool keyword =
          now().kind == Type::name && ahead().kind == Type::sign && ahead().text == "=";
      const std::string_view name = keyword ? take_name() : std::string_view();
      if (keyword) {
        take();
      } else if (!node.keywords.empty()) {
        fail("an argument without a name follows one with a name");
      }
      Expression* value = parse_expression();
      if (keyword) {
        node.keywords.emplace_back(name, value);
      } else {
        node.operands.push_back(value);
      }
    });
  }

  Expression* parse_filters_and_tests(Expression* node) {
    while (true) {
      if (is_sign("|")) {
        node = parse_filter(node);
      } else if (is_name("is")) {
        node = parse_test(node);
      } else {
        return node;
      }
    }
  }

  /// Parses `name(…)` after an optional "|".
  Expression* parse_filter(Expression* node) {
    skip_sign("|");
    const int line = now().line;
    node = make(Make::filter, line, {node}, take_name());
    if (is_sign("(")) parse_arguments(*node);
    return node;
  }

  Expression* parse_test(Expression* node) {
    const int line = take().line;
    const bool negated = skip_name("not");
    Expression* made = make(Make::test, line, {node}, take_name());
    if (is_name("is")) fail("tests cannot be chained");
    if (is_sign("(")) parse_arguments(*made);
    return negated ? make(Make::logical_not, line, {made}) : made;
  }

  // Scopes: if the first mention in a scope sets a name unconditionally, it is undefined before,
  // unless an outer scope mentions it.

  struct Scope {
    Scope* outer;
    ScopePlan* plan;
    std::set<std::string_view> mentioned = {};
    int branches = 0;  ///< Number of enclosing branches.
  };

  class OpenScope {
   public:
    OpenScope(Parser& parser, ScopePlan& plan) : parser_(parser) {
      parser.scope_ = &parser.scopes_.emplace_back(Scope{.outer = parser.scope_, .plan = &plan});
    }
    ~OpenScope() { parser_.scope_ = parser_.scope_->outer; }
    OpenScope(const OpenScope&) = delete;
    OpenScope& operator=(const OpenScope&) = delete;

   private:
    Parser& parser_;
  };

  void set_name(std::string_view name) {
    const bool is_new = scope_->mentioned.insert(name).second;
    auto& variables = scope_->plan->variables;
    if (is_new || std::ranges::find(variables, name, &ScopePlan::Variable::name) == variables.end())
      variables.push_back({.name = name, .hides_outer = is_new && scope_->branches == 0});
  }

  void set_names(const Target& target) {
    for (const std::string_view name : target.names) {
      if (target.attribute.empty()) {
        set_name(name);
      } else {
        scope_->mentioned.insert(name);
      }
    }
  }

  void finish_scopes() {
    for (const Scope& scope : scopes_) {
      for (ScopePlan::Variable& variable : scope.plan->variables) {
        for (const Scope* at = scope.outer; at != nullptr && variable.hides_outer; at = at->outer) {
          variable.hides_outer = !at->mentioned.contains(variable.name);
        }
      }
    }
  }

  /// Parses statements up to a tag in `ends`, whose name is then the current token.
  Body parse_body(Names ends) {
    const Nesting nesting(nesting_, kMaxNesting);
    Body body;
    while (now().kind != Type::end) {
      const Token& token = take();
      if (token.kind == Type::data) {
        body.push_back(make(Statement::Kind::text, token.line));
        body.back()->text = keep(token.text);
      } else if (token.kind == Type::print_begin) {
        body.push_back(make(Statement::Kind::print, token.line));
        body.back()->expressions = {parse_tuple()};
        expect_kind(Type::print_end, "'}}'");
      } else {
        if (now().kind == Type::name && std::ranges::find(ends, now().text) != ends.end()) {
          return body;
        }
        body.push_back(parse_statement());
        expect_kind(Type::statement_end, "'%}'");
      }
    }
    if (ends.size() > 0) fail(fmt::format("'{}' is missing", *(ends.end() - 1)));
    return body;
  }

  /// Returns the body after a statement's head and the tag that ends it.
  std::pair<Body, std::string_view> parse_block(Names ends) {
    expect_kind(Type::statement_end, "'%}'");
    Body body = parse_body(ends);
    return {std::move(body), take_name()};
  }

  Statement* parse_statement() {
    const int line = now().line;
    const std::string_view name = take_name();
    if (name == "if") return parse_if(line);
    if (name == "for") return parse_for(line);
    if (name == "set") return parse_set(line);
    if (name == "macro") return parse_macro(line);
    if (name == "filter") return parse_filter_block(line);
    if (name == "generation") {
      Statement* made = make(Statement::Kind::generation, line);
      const OpenScope scope(*this, made->scope);
      made->bodies.push_back(parse_function_body("endgeneration"));
      return made;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail(fmt::format("'{}' outside a loop", name));
      return make(name == "break" ? Statement::Kind::stop : Statement::Kind::next, line);
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      fail(fmt::format("unexpected '{}'", name));
    }
    fail(fmt::format("the statement '{}' is not supported", name));
  }

  /// Parses a body that `break` cannot leave.
  Body parse_function_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = parse_block({end}).first;
    loops_ = loops;
    return body;
  }

  Statement* parse_filter_block(int line) {
    Statement* made = make(Statement::Kind::filter, line);
    const OpenScope scope(*this, made->scope);
    Expression* filter = parse_filter(make(Make::block, line));
    while (is_sign("|")) filter = parse_filter(filter);
    made->expressions = {filter};
    made->bodies.push_back(parse_block({"endfilter"}).first);
    return made;
  }

  Statement* parse_if(int line) {
    Statement* made = make(Statement::Kind::condition, line);
    std::string_view end = "elif";
    while (end == "elif") {
      made->expressions.push_back(parse_operators());
      ++scope_->branches;
      auto [body, next] = parse_block({"elif", "else", "endif"});
      --scope_->branches;
      made->bodies.push_back(std::move(body));
      end = next;
    }
    ++scope_->branches;
    if (end == "else") made->bodies.push_back(parse_block({"endif"}).first);
    --scope_->branches;
    return made;
  }

  Statement* parse_for(int line) {
    Statement* made = make(Statement::Kind::loop, line);
    made->target = parse_target();
    if (!skip_name("in") || !made->target.attribute.empty()) fail_unexpected("'in'");
    made->expressions = {parse_operators()};
    if (skip_name("if")) {
      const OpenScope scope(*this, made->test_scope);
      set_names(made->target);
      made->expressions.push_back(parse_expression());
    }
    if (is_name("recursive")) fail("a recursive loop is not supported");
    ++loops_;
    {
      const OpenScope scope(*this, made->scope);
      set_name(keep("loop"));
      set_names(made->target);
      auto [body, end] = parse_block({"else", "endfor"});
      made->bodies.push_back(std::move(body));
      made->text = end;
    }
    --loops_;
    if (made->text == "else") {
      const OpenScope scope(*this, made->else_scope);
      made->bodies.push_back(parse_block({"endfor"}).first);
    }
    return made;
  }

  Statement* parse_set(int line) {
    Statement* made = make(Statement::Kind::set, line);
    made->target = parse_target();
    if (skip_sign("=")) {
      made->expressions = {parse_tuple()};
      set_names(made->target);
      return made;
    }
    if (is_sign("|")) fail("a filter of a 'set' block is not supported");
    made->kind = Statement::Kind::set_block;
    set_names(made->target);
    const OpenScope scope(*this, made->scope);
    made->bodies.push_back(parse_block({"endset"}).first);
    return made;
  }

  Statement* parse_macro(int line) {
    Statement* made = make(Statement::Kind::macro, line);
    made->text = take_new_name();
    set_name(made->text);
    const OpenScope scope(*this, made->scope);
    expect_sign("(");
    parse_items(")", [&] {
      made->parameters.push_back(take_new_name());
      set_name(made->parameters.back());
      if (skip_sign("=")) {
        made->expressions.push_back(parse_expression());
      } else if (!made->expressions.empty()) {
        fail("a parameter without a default follows one with a default");
      }
    });
    ++macros_;
    made->bodies.push_back(parse_function_body("endmacro"));
    --macros_;
    return made;
  }

  std::string_view take_new_name() {
    if (is_name("loop") || is_name("self") || is_constant(now().text)) {
      fail(fmt::format("'{}' cannot be set", now().text));
    }
    return take_name();
  }

  Target parse_target() {
    const bool in_brackets = skip_sign("(");
    Target target{.names = {take_new_name()}};
    if (skip_sign(".")) target.attribute = take_name();
    while (target.attribute.empty() && skip_sign(",")) {
      target.is_tuple = true;
      if (now().kind == Type::name && !is_name("in")) target.names.push_back(take_new_name());
    }
    if (in_brackets) expect_sign(")");
    return target;
  }

  Syntax& syntax_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::deque<Scope> scopes_;
  Scope* scope_ = nullptr;
  int nesting_ = 0;
  int macros_ = 0;  // Enclosing ones.
  int loops_ = 0;   // Enclosing ones in this function.
};

}  // namespace

void parse(std::string_view source, Syntax& syntax) {
  if (source.size() > kMaxTemplateBytes) {
    throw TemplateError(1, fmt::format("it is longer than {} KiB", kMaxTemplateBytes >> 10));
  }
  Parser(source, syntax).run();
}

}  // namespace jforge::jinja
