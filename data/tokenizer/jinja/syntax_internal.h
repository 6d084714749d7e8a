#pragma once

/// A template as tokens and as a tree.

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
    sign,         ///< An operator or bracket.
    unsupported,  ///< A string or number that is not supported, which `text` names.
    end,
  };
  Kind kind;
  int line;
  std::string text = {};  ///< Of a string its value.
  std::int64_t integer = 0;
};

/// The tokens of well-formed UTF-8 as jinja2 makes them with trim_blocks and lstrip_blocks:
/// comments are gone, blanks are where they are printed. The last is an `end`. Throws
/// TemplateError for what does not lex.
std::vector<Token> tokens_of(std::string_view source);

/// Names of variables and attributes are views into Syntax::texts, so that equal names have equal
/// addresses.
struct Expression {
  enum class Kind {
    constant,     ///< `constant`
    name,         ///< the variable `name`
    block,        ///< what the body of a filter block printed
    list,         ///< operands
    tuple,        ///< operands
    mapping,      ///< key, value, key, value …
    conditional,  ///< condition, value, and otherwise if there is one
    logical_or,
    logical_and,
    logical_not,
    negative,
    comparison,   ///< two operands; `name` is the sign
    arithmetic,   ///< two operands; `name` is the sign
    attribute,    ///< of operand 0, under `name`
    element,      ///< of operand 0, under operand 1
    slice,        ///< of operand 0; begin, end, step, null if not given
    filter,       ///< `name` on operand 0; then arguments
    test,         ///< `name` on operand 0; then arguments
    call,         ///< of operand 0; then arguments
    unsupported,  ///< fails when it is evaluated, with the message `name`
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

/// The variables that a scope sets.
struct ScopePlan {
  struct Variable {
    std::string_view name;
    /// Before it is set, the name means nothing, not even what is outside the scope.
    bool hides_outer;
  };
  std::vector<Variable> variables;
};

struct Statement {
  enum class Kind {
    text,        ///< `text`
    print,       ///< expressions[0]
    condition,   ///< branches: bodies[i] where expressions[i] is true, else the one more
    loop,        ///< over expressions[0], where expressions[1] holds if there is one
    set,         ///< targets from expressions[0]
    set_block,   ///< targets from bodies[0]
    macro,       ///< `text`(parameters), the last of which have the defaults `expressions`
    filter,      ///< expressions[0] on bodies[0]
    generation,  ///< bodies[0]
    stop,        ///< break
    next,        ///< continue
  };
  /// Names that take the parts of a value, or one name or attribute of a namespace.
  struct Target {
    std::vector<std::string_view> names;
    std::string_view attribute = {};
    bool is_tuple = false;
  };

  Kind kind;
  int line;
  std::string_view text;
  std::vector<Expression*> expressions;
  std::vector<Body> bodies;  ///< Of a loop: the body, and `else` if there is one.
  Target target;
  std::vector<std::string_view> parameters;
  ScopePlan scope;       ///< Of the body; a condition has none.
  ScopePlan test_scope;  ///< Of a loop's condition.
  ScopePlan else_scope;  ///< Of a loop's `else`.
};

/// A parsed template. Nodes hold raw pointers into the deques, so destroying a deep tree cannot
/// overflow the stack.
struct Syntax {
  std::set<std::string, std::less<>> texts;  ///< Of names and constants, each once.
  std::deque<Expression> expressions;
  std::deque<Statement> statements;
  Body body;
  ScopePlan scope;

  Syntax() = default;
  Syntax(const Syntax&) = delete;
  Syntax& operator=(const Syntax&) = delete;
};

/// Parses well-formed UTF-8 into `syntax`. Throws TemplateError if `source` is not
/// Jinja, or uses what chat templates do not.
void parse(std::string_view source, Syntax& syntax);

}  // namespace jforge::jinja
