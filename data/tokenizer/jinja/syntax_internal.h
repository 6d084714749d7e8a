#pragma once

/// A template as a tree.

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/value.h"

namespace jforge::jinja {

struct Statement;

/// Where a variable is: so many frames outward, and which of its variables.
struct Place {
  std::uint32_t hops = 0;
  std::uint32_t slot = 0;
};

/// The variables of a scope and what they hold when it is entered.
struct FramePlan {
  enum class Source {
    parameter,  ///< Set by whoever enters.
    context,    ///< What the caller of the template gave under that name, or a global function.
    outer,      ///< The variable of that name further out.
    nothing,
  };
  struct Load {
    std::uint32_t slot;
    Source source;
    std::string_view name;
    Place outer;
  };
  std::size_t slots = 0;
  std::vector<Load> loads;
};

struct Expression {
  enum class Kind {
    constant,     ///< `constant`
    name,         ///< `name` at `place`
    list,         ///< operands
    tuple,        ///< operands
    mapping,      ///< key, value, key, value …
    conditional,  ///< condition, value, and otherwise if there is one
    logical_or,
    logical_and,
    logical_not,
    negative,
    positive,
    comparison,  ///< operands with `comparisons` between them
    add,
    subtract,
    concatenate,  ///< any number of operands
    multiply,
    divide,
    divide_whole,
    modulo,
    power,
    attribute,  ///< of operand 0, under `name`
    element,    ///< of operand 0, under operand 1
    slice,      ///< of operand 0; begin, end, step, null where not given
    filter,     ///< `name` on operand 0, null in a filter block; then arguments
    test,       ///< `name` on operand 0; then arguments
    call,       ///< of operand 0; then arguments
  };
  struct Keyword {
    std::string_view name;
    const Expression* value;
  };

  Kind kind;
  int line;
  int depth = 1;  ///< Of the tree below it.
  std::string_view name;
  Value constant;
  std::vector<Expression*> operands;
  std::vector<Comparison> comparisons;
  std::vector<std::pair<std::string_view, Expression*>> keywords;
  Place place;
  int builtin = -1;  ///< Of a filter or test: which; -1 if there is none of that name.
};

using Body = std::vector<Statement*>;

struct Statement {
  enum class Kind {
    text,        ///< `text`
    print,       ///< expressions[0]
    condition,   ///< branches: bodies[i] where expressions[i] is true, else the one more
    loop,        ///< over expressions[0], where expressions[1] holds if there is one
    set,         ///< targets from expressions[0]
    set_block,   ///< targets from bodies[0], through the filter expressions[0] if there is one
    macro,       ///< `text`(targets), the last of which have the defaults `expressions`
    filter,      ///< expressions[0] on bodies[0]
    generation,  ///< bodies[0]
    stop,        ///< break
    next,        ///< continue
  };
  /// A name, an attribute of a namespace, or a tuple of them.
  struct Target {
    std::string_view name;
    std::string_view attribute;
    Place place;
    std::vector<Target> parts;
    bool is_tuple = false;
  };

  Kind kind;
  int line;
  std::string_view text;
  std::vector<Expression*> expressions;
  std::vector<Body> bodies;  ///< Of a loop: the body, and `else` if there is one.
  Target target;
  std::vector<Target> parameters;  ///< Of a macro; of a loop's condition, the loop's target.
  FramePlan frame;                 ///< Of the body; there is none of a condition's.
  FramePlan test_frame;            ///< Of a loop's condition.
  FramePlan else_frame;            ///< Of a loop's `else`.
  std::uint32_t loop_slot = 0;     ///< Of the variable `loop` in the frame.
};

/// A parsed template; the nodes own nothing of each other, so that no depth is one of destruction.
struct Syntax {
  std::set<std::string, std::less<>> texts;  ///< Of names and constants, each once.
  std::deque<Expression> expressions;
  std::deque<Statement> statements;
  Body body;
  FramePlan frame;

  Syntax() = default;
  Syntax(const Syntax&) = delete;
  Syntax& operator=(const Syntax&) = delete;
};

/// Parses well-formed UTF-8 into `syntax`, places left out. TemplateError for what is no Jinja, or
/// not the Jinja of chat templates.
void parse(std::string_view source, Syntax& syntax);

/// Gives every name its place by jinja2's rules of scope.
void resolve_names(Syntax& syntax);

}  // namespace jforge::jinja
