#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/jinja/value.h"

namespace jforge::jinja {

struct Token {
  enum class Kind {
    data,  ///< Literal text.
    print_begin,
    print_end,
    statement_begin,
    statement_end,
    name,
    string,
    integer,
    sign,         ///< Operator or bracket.
    unsupported,  ///< Unsupported literal, named by `text`.
    end,
  };
  Kind kind;
  int line;
  std::string text = {};  ///< A string's value.
  std::int64_t integer = 0;
};

/// Tokenises as in jinja2 with trim_blocks and lstrip_blocks, without comments; the last is `end`.
/// Requires: well-formed UTF-8. Throws TemplateError.
std::vector<Token> tokens_of(std::string_view source);

/// Names are views into Syntax::texts: equal names have equal addresses.
struct Expression {
  enum class Kind {
    constant,     ///< `constant`
    name,         ///< variable `name`
    block,        ///< text printed by a filter block's body
    list,         ///< operands
    tuple,        ///< operands
    mapping,      ///< key, value, key, value, …
    conditional,  ///< condition, value, optional else
    logical_or,
    logical_and,
    logical_not,
    negative,
    comparison,   ///< binary; `name` is the sign
    arithmetic,   ///< binary; `name` is the sign
    attribute,    ///< `name` of operand 0
    element,      ///< operand 0 at operand 1
    slice,        ///< operand 0; begin, end, step or null
    filter,       ///< `name` on operand 0 with arguments
    test,         ///< `name` on operand 0 with arguments
    call,         ///< operand 0 with arguments
    unsupported,  ///< fails with message `name` if evaluated
  };

  Kind kind;
  int line;
  std::string_view name;
  Value constant;
  std::vector<Expression*> operands;
  std::vector<std::pair<std::string_view, Expression*>> keywords;
};

struct Statement;
using Body = std::vector<Statement*>;

struct ScopePlan {
  struct Variable {
    std::string_view name;
    bool hides_outer;  ///< Undefined until set, even if it exists outside.
  };
  std::vector<Variable> variables;
};

struct Statement {
  enum class Kind {
    text,        ///< `text`
    print,       ///< expressions[0]
    condition,   ///< bodies[i] if expressions[i]; a last one for else
    loop,        ///< over expressions[0], filtered by optional expressions[1]
    set,         ///< targets = expressions[0]
    set_block,   ///< targets = bodies[0]
    macro,       ///< `text`(parameters); `expressions` are trailing defaults
    filter,      ///< expressions[0] on bodies[0]
    generation,  ///< bodies[0]
    stop,        ///< break
    next,        ///< continue
  };
  /// One or several names, or an attribute of a namespace.
  struct Target {
    std::vector<std::string_view> names;
    std::string_view attribute = {};
    bool is_tuple = false;
  };

  Kind kind;
  int line;
  std::string_view text;
  std::vector<Expression*> expressions;
  std::vector<Body> bodies;  ///< For a loop: body and optional else.
  Target target;
  std::vector<std::string_view> parameters;
  ScopePlan scope;
  ScopePlan test_scope;  ///< For a loop's condition.
  ScopePlan else_scope;  ///< For a loop's else.
};

/// Nodes hold raw pointers into the deques, so destroying a deep tree cannot overflow the stack.
struct Syntax {
  std::set<std::string, std::less<>> texts;  ///< Interned names and constants.
  std::deque<Expression> expressions;
  std::deque<Statement> statements;
  Body body;
  ScopePlan scope;

  Syntax() = default;
  Syntax(const Syntax&) = delete;
  Syntax& operator=(const Syntax&) = delete;
};

/// Requires: well-formed UTF-8. Throws TemplateError if `source` is not Jinja or unsupported.
void parse(std::string_view source, Syntax& syntax);

}  // namespace jforge::jinja
