#include <algorithm>
#include <initializer_list>
#include <utility>

#include "data/tokenizer/jinja/expression_parser_internal.h"

namespace jforge::jinja {
namespace {

constexpr std::size_t kLongestTemplate = std::size_t{256} << 10;

using Names = std::initializer_list<std::string_view>;

class Parser : private ExpressionParser {
 public:
  Parser(std::string_view source, Syntax& syntax) : ExpressionParser(source, syntax) {}

  void run() { syntax_.body = parse_body({}); }

 private:
  using Target = Statement::Target;

  /// Statements up to one of the tags `ends`, whose name is the present token then.
  Body parse_body(Names ends) {
    const Nesting nesting(*this);
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
    if (ends.size() > 0) fail(fmt::format("'{}' is missing", *(ends.end() - 1)), now().line);
    return body;
  }

  /// The body that follows a statement's head, and the name of the tag that ends it.
  std::pair<Body, std::string_view> parse_block(Names ends) {
    skip_sign(":");
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
    if (name == "filter") {
      Statement* made = make(Statement::Kind::filter, line);
      made->expressions = {parse_filters(nullptr, true)};
      made->bodies.push_back(parse_block({"endfilter"}).first);
      return made;
    }
    if (name == "generation") {
      Statement* made = make(Statement::Kind::generation, line);
      made->bodies.push_back(parse_function_body("endgeneration"));
      return made;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail(fmt::format("'{}' outside a loop", name), line);
      return make(name == "break" ? Statement::Kind::stop : Statement::Kind::next, line);
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      fail(fmt::format("unexpected '{}'", name), line);
    }
    fail(fmt::format("the statement '{}' is not supported", name), line);
  }

  /// A body that no `break` leaves.
  Body parse_function_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = parse_block({end}).first;
    loops_ = loops;
    return body;
  }

  Statement* parse_if(int line) {
    Statement* made = make(Statement::Kind::condition, line);
    std::string_view end = "elif";
    while (end == "elif") {
      made->expressions.push_back(parse_tuple({.conditional = false}));
      auto [body, next] = parse_block({"elif", "else", "endif"});
      made->bodies.push_back(std::move(body));
      end = next;
    }
    if (end == "else") made->bodies.push_back(parse_block({"endif"}).first);
    return made;
  }

  Statement* parse_for(int line) {
    Statement* made = make(Statement::Kind::loop, line);
    made->target = parse_target(/*attributes=*/false, "in");
    if (!skip_name("in")) fail_unexpected("'in'");
    made->expressions = {parse_tuple({.conditional = false, .end = "recursive"})};
    if (skip_name("if")) made->expressions.push_back(parse_expression());
    if (is_name("recursive")) fail("a recursive loop is not supported", line);
    ++loops_;
    auto [body, end] = parse_block({"else", "endfor"});
    --loops_;
    made->bodies.push_back(std::move(body));
    if (end == "else") made->bodies.push_back(parse_block({"endfor"}).first);
    return made;
  }

  Statement* parse_set(int line) {
    Statement* made = make(Statement::Kind::set, line);
    made->target = parse_target(/*attributes=*/true, "");
    if (skip_sign("=")) {
      made->expressions = {parse_tuple()};
      return made;
    }
    made->kind = Statement::Kind::set_block;
    if (Expression* filter = parse_filters(nullptr, false)) made->expressions = {filter};
    made->bodies.push_back(parse_block({"endset"}).first);
    return made;
  }

  Statement* parse_macro(int line) {
    Statement* made = make(Statement::Kind::macro, line);
    made->target = name_target();
    made->text = made->target.name;
    expect_sign("(");
    while (!is_sign(")")) {
      if (!made->parameters.empty()) expect_sign(",");
      made->parameters.push_back(name_target());
      if (skip_sign("=")) {
        made->expressions.push_back(parse_expression());
      } else if (!made->expressions.empty()) {
        fail("a parameter without a default behind one with a default", line);
      }
    }
    expect_sign(")");
    ++macros_;
    made->bodies.push_back(parse_function_body("endmacro"));
    --macros_;
    return made;
  }

  Target name_target() {
    const int line = now().line;
    Target target;
    target.name = take_name();
    if (target.name == "loop" || is_constant(target.name)) {
      fail(fmt::format("'{}' cannot be set", target.name), line);
    }
    if (target.name == "self") fail("'self' is not supported", line);
    return target;
  }

  Target parse_target(bool attributes, std::string_view end) {
    const Nesting nesting(*this);
    std::vector<Target> parts;
    bool tuple = false;
    while (true) {
      if (!parts.empty()) {
        if (!skip_sign(",")) break;
        tuple = true;
        if (now().kind == Type::statement_end || is_sign(")") || is_sign("=") ||
            (!end.empty() && is_name(end))) {
          break;
        }
      }
      if (skip_sign("(")) {
        parts.push_back(parse_target(attributes, ""));
        expect_sign(")");
      } else {
        parts.push_back(name_target());
        if (attributes && skip_sign(".")) parts.back().attribute = take_name();
      }
    }
    if (!tuple) return std::move(parts.front());
    Target target;
    target.is_tuple = true;
    target.parts = std::move(parts);
    return target;
  }

  int loops_ = 0;  // Around the present place, in the same function.
};

}  // namespace

void parse(std::string_view source, Syntax& syntax) {
  if (source.size() > kLongestTemplate) {
    throw TemplateError(1, fmt::format("it is longer than {} KiB", kLongestTemplate >> 10));
  }
  Parser(source, syntax).run();
}

}  // namespace jforge::jinja
