#include "data/tokenizer/jinja/template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/syntax_internal.h"
#include "data/tokenizer/unicode.h"

namespace jforge::jinja {

/// An entered scope; variables are missing until set.
struct Frame {
  Frame* outer;
  const ScopePlan* plan;
  std::span<Value> variables;
};

struct Macro {
  const Statement* definition;
  Frame* frame;  ///< Scope of its definition.
};

/// The variable `loop`. As in jinja2, items are filtered lazily, because the body may change the
/// condition.
struct Loop {
  std::span<const Value> source;
  std::span<Value> items = {};  ///< Found so far.
  std::size_t looked_at = 0;
  std::size_t found = 0;
  std::size_t index = 0;
  const Statement* statement = nullptr;
  Frame* test_frame = nullptr;
};

namespace {

enum class Flow { next_statement, next_iteration, end_of_loop };

class Interpreter {
 public:
  Interpreter(std::span<const Variable> variables, Runtime& runtime)
      : variables_(variables), runtime_(runtime) {}

  std::string render(const Syntax& syntax) {
    std::string out;
    try {
      run(syntax.body, enter(syntax.scope, nullptr), out);
    } catch (const Failure& failure) {
      throw TemplateError(line_, failure.reason, failure.raised);
    }
    return out;
  }

 private:
  static constexpr int kMaxDepth = 1000;  // Nested expressions and statements.

  Frame* enter(const ScopePlan& plan, Frame* outer) {
    Frame* const frame = runtime_.make(Frame{
        .outer = outer, .plan = &plan, .variables = runtime_.array<Value>(plan.variables.size())});
    forget(*frame);
    return frame;
  }

  void forget(const Frame& frame) {
    runtime_.charge(frame.variables.size() / 4);
    std::ranges::fill(frame.variables, Value(Kind::missing));
  }

  /// Returns the index among the scope's own variables, or their number.
  std::size_t place_of(std::string_view name, const Frame& frame) {
    const auto& own = frame.plan->variables;
    runtime_.charge(own.size() / 8);
    std::size_t place = 0;
    while (place < own.size() && own[place].name.data() != name.data()) ++place;
    return place;
  }

  void set(std::string_view name, const Value& value, const Frame& frame) {
    frame.variables[place_of(name, frame)] = value;
  }

  /// Returns undefined, with the name, if there is no value.
  Value read(std::string_view name, const Frame* frame) {
    Value undefined;
    undefined.text = name;
    for (; frame != nullptr; frame = frame->outer) {
      const std::size_t place = place_of(name, *frame);
      if (place == frame->variables.size()) continue;
      if (!frame->variables[place].is(Kind::missing)) return frame->variables[place];
      if (frame->plan->variables[place].hides_outer) return undefined;
    }
    runtime_.charge(1 + variables_.size() / 8);
    const auto given = std::ranges::find(variables_, name, &Variable::name);
    if (given != variables_.end()) return given->value;
    const Builtin* function = find_function(name);
    return function == nullptr ? undefined : Value(function);
  }

  void assign(const Statement::Target& target, const Value& value, Frame* frame) {
    if (!target.attribute.empty()) return assign_attribute(target, value, frame);
    if (!target.is_tuple) return set(target.names[0], value, *frame);
    const auto parts = items_of(runtime_, value);
    if (parts.size() != target.names.size()) {
      fail(fmt::format("{} values for {} names", parts.size(), target.names.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) set(target.names[i], parts[i], *frame);
  }

  void assign_attribute(const Statement::Target& target, const Value& value, Frame* frame) {
    const Value space = read(target.names[0], frame);
    if (!space.is(Kind::name_space)) {
      fail(fmt::format("'{}' is no namespace: its attributes cannot be set", target.names[0]));
    }
    if (target.attribute.starts_with('_')) {
      fail("a namespace takes no name that begins with '_'");
    }
    space.name_space->set(runtime_, target.attribute, value);
  }

  bool has_item(Loop& loop, std::size_t index) {
    if (loop.statement == nullptr) return index < loop.source.size();
    while (loop.found <= index && loop.looked_at < loop.source.size()) {
      const Value& value = loop.source[loop.looked_at++];
      runtime_.charge(1);
      assign(loop.statement->target, value, loop.test_frame);
      if (truth(evaluate(*loop.statement->expressions[1], loop.test_frame))) {
        loop.items[loop.found++] = value;
      }
    }
    return index < loop.found;
  }

  static const Value& item(const Loop& loop, std::size_t index) {
    return loop.statement == nullptr ? loop.source[index] : loop.items[index];
  }

  Value loop_attribute(Loop& loop, std::string_view name) {
    const auto index = static_cast<std::int64_t>(loop.index);
    if (name == "index") return Value(index + 1);
    if (name == "index0") return Value(index);
    if (name == "first") return Value(index == 0);
    if (name == "last") return Value(!has_item(loop, loop.index + 1));
    if (name == "length") {
      if (loop.statement == nullptr) return Value(std::ssize(loop.source));
      has_item(loop, loop.source.size());
      return Value(static_cast<std::int64_t>(loop.found));
    }
    if (name == "previtem") {
      if (index > 0) return item(loop, loop.index - 1);
      return undefined_because(runtime_, "there is no previous item");
    }
    if (name == "nextitem") {
      if (has_item(loop, loop.index + 1)) return item(loop, loop.index + 1);
      return undefined_because(runtime_, "there is no next item");
    }
    fail(fmt::format("'loop.{}' is not supported", name));
  }

  Value evaluate(const Expression& expression, Frame* frame) {
    const Nesting nesting(depth_, kMaxDepth);
    runtime_.charge(1);
    const auto operand = [&](std::size_t i) { return evaluate(*expression.operands[i], frame); };
    switch (expression.kind) {
      case Expression::Kind::constant:
        return expression.constant;
      case Expression::Kind::name:
        return read(expression.name, frame);
      case Expression::Kind::block:
        return block_;
      case Expression::Kind::conditional:
        if (truth(operand(0))) return operand(1);
        if (expression.operands.size() > 2) return operand(2);
        return undefined_because(runtime_,
                                 "the inline if-expression evaluated to false and no else section "
                                 "was defined");
      case Expression::Kind::logical_or: {
        const Value left = operand(0);
        return truth(left) ? left : operand(1);
      }
      case Expression::Kind::logical_and: {
        const Value left = operand(0);
        return truth(left) ? operand(1) : left;
      }
      default:
        return apply(expression, frame);
    }
  }

  /// Evaluates the operands first; absent ones are missing.
  Value apply(const Expression& expression, Frame* frame) {
    const std::size_t count = expression.operands.size();
    const bool keeps =
        expression.kind == Expression::Kind::list || expression.kind == Expression::Kind::tuple;
    std::array<Value, 4> few;
    const std::span<Value> values =
        keeps || count > few.size() ? runtime_.array<Value>(count) : std::span(few).first(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Expression* operand = expression.operands[i];
      values[i] = operand == nullptr ? Value(Kind::missing) : evaluate(*operand, frame);
    }
    const auto named = runtime_.array<Argument>(expression.keywords.size());
    for (std::size_t i = 0; i < named.size(); ++i) {
      const auto& [name, value] = expression.keywords[i];
      named[i] = {name, evaluate(*value, frame)};
    }
    line_ = expression.line;
    const auto arguments = [&] { return Arguments{values.subspan(1), named}; };
    switch (expression.kind) {
      case Expression::Kind::list:
        return {Kind::list, runtime_.make(Sequence{.items = values})};
      case Expression::Kind::tuple:
        return {Kind::tuple, runtime_.make(Sequence{.items = values})};
      case Expression::Kind::mapping:
        return mapping_of(values);
      case Expression::Kind::logical_not:
        return Value(!truth(values[0]));
      case Expression::Kind::negative:
        return calculate(runtime_, "-", Value(std::int64_t{0}), values[0]);
      case Expression::Kind::comparison:
        return Value(holds(runtime_, expression.name, values[0], values[1]));
      case Expression::Kind::arithmetic:
        return calculate(runtime_, expression.name, values[0], values[1]);
      case Expression::Kind::attribute:
        if (values[0].is(Kind::loop)) return loop_attribute(*values[0].loop, expression.name);
        return attribute(runtime_, values[0], expression.name);
      case Expression::Kind::element:
        return element(runtime_, values[0], values[1]);
      case Expression::Kind::slice:
        return slice(runtime_, values[0], values[1], values[2], values[3]);
      case Expression::Kind::filter:
        return call_filter(runtime_, expression.name, values[0], arguments());
      case Expression::Kind::test:
        return Value(call_test(runtime_, expression.name, values[0], arguments()));
      case Expression::Kind::call:
        return call(values[0], arguments());
      case Expression::Kind::unsupported:
        fail(std::string(expression.name));
      default:
        throw InternalError("unknown kind of expression");
    }
  }

  Value mapping_of(std::span<const Value> values) {
    const auto entries = runtime_.array<Entry>(values.size() / 2);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i] = {.key = values[2 * i], .value = values[2 * i + 1]};
    }
    return Value(make_mapping(runtime_, entries));
  }

  Value call(const Value& callee, const Arguments& arguments) {
    switch (callee.kind) {
      case Kind::macro:
        return call_macro(*callee.macro, arguments);
      case Kind::method:
        expect_plain(callee.method->receiver);
        return jinja::call(runtime_, *callee.method->method, callee.method->receiver, arguments);
      case Kind::function:
        return jinja::call(runtime_, *callee.function, Value(), arguments);
      default:
        expect_defined(callee);
        fail(fmt::format("{} is not callable", type_name(callee.kind)));
    }
  }

  Value call_macro(const Macro& macro, const Arguments& arguments) {
    const Statement& definition = *macro.definition;
    const auto& parameters = definition.parameters;
    if (arguments.positional.size() > parameters.size()) {
      fail(fmt::format("macro '{}' takes not more than {} arguments", definition.text,
                       parameters.size()));
    }
    Frame* const frame = enter(definition.scope, macro.frame);
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
      set(parameters[i], arguments.positional[i], *frame);
    }
    for (const Argument& argument : arguments.named) {
      runtime_.charge(parameters.size() / 8);
      const auto parameter = std::ranges::find(parameters, argument.name);
      const bool positional = parameter - parameters.begin() < std::ssize(arguments.positional);
      if (parameter == parameters.end() || positional) {
        fail(fmt::format("macro '{}' takes no keyword argument '{}'", definition.text,
                         argument.name));
      }
      set(*parameter, argument.value, *frame);
    }
    give_defaults(definition, frame);
    std::string printed;
    run(definition.bodies[0], frame, printed);
    runtime_.charge_bytes(printed.size());
    return runtime_.text(printed);
  }

  void give_defaults(const Statement& macro, Frame* frame) {
    const std::size_t required = macro.parameters.size() - macro.expressions.size();
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const std::string_view name = macro.parameters[i];
      if (!frame->variables[place_of(name, *frame)].is(Kind::missing)) continue;
      const Value value =
          i < required
              ? undefined_because(runtime_, fmt::format("parameter '{}' was not provided", name))
              : evaluate(*macro.expressions[i - required], frame);
      set(name, value, *frame);
    }
  }

  Flow run(const Body& body, Frame* frame, std::string& out) {
    const Nesting nesting(depth_, kMaxDepth);
    for (const Statement* statement : body) {
      const Flow flow = run(*statement, frame, out);
      if (flow != Flow::next_statement) return flow;
    }
    return Flow::next_statement;
  }

  /// Bounds the total of all nested output.
  void print(const Value& value, std::string& out) {
    const std::size_t before = out.size();
    append_text(runtime_, out, value);
    const std::size_t grown = out.size() - before;
    runtime_.charge_bytes(grown);
    printed_ += grown;
    if (printed_ > kMaxBytes) {
      fail(fmt::format("it prints more than {} MiB", kMaxBytes >> 20));
    }
  }

  Flow run(const Statement& statement, Frame* frame, std::string& out) {
    line_ = statement.line;
    runtime_.charge(1);
    switch (statement.kind) {
      case Statement::Kind::text:
        print(Value(statement.text), out);
        break;
      case Statement::Kind::print:
        print(evaluate(*statement.expressions[0], frame), out);
        break;
      case Statement::Kind::condition:
        return run_condition(statement, frame, out);
      case Statement::Kind::loop:
        return run_loop(statement, frame, out);
      case Statement::Kind::set:
        assign(statement.target, evaluate(*statement.expressions[0], frame), frame);
        break;
      case Statement::Kind::set_block:
      case Statement::Kind::filter:
      case Statement::Kind::generation:
        return run_block(statement, frame, out);
      case Statement::Kind::macro:
        set(statement.text, Value(runtime_.make(Macro{.definition = &statement, .frame = frame})),
            *frame);
        break;
      case Statement::Kind::stop:
        return Flow::end_of_loop;
      case Statement::Kind::next:
        return Flow::next_iteration;
    }
    return Flow::next_statement;
  }

  Flow run_condition(const Statement& statement, Frame* frame, std::string& out) {
    const auto& tests = statement.expressions;
    std::size_t branch = 0;
    while (branch < tests.size() && !truth(evaluate(*tests[branch], frame))) ++branch;
    if (branch == statement.bodies.size()) return Flow::next_statement;
    return run(statement.bodies[branch], frame, out);
  }

  /// Prints a body's output, filtered or not, or assigns it.
  Flow run_block(const Statement& statement, Frame* frame, std::string& out) {
    Frame* const inner = enter(statement.scope, frame);
    std::string printed;
    const Flow flow = run(statement.bodies[0], inner, printed);
    if (flow != Flow::next_statement) return flow;
    runtime_.charge_bytes(printed.size());
    const Value value = runtime_.text(printed);
    if (statement.kind == Statement::Kind::set_block) {
      assign(statement.target, value, frame);
    } else if (statement.kind == Statement::Kind::filter) {
      block_ = value;
      print(evaluate(*statement.expressions[0], inner), out);
    } else {
      print(value, out);
    }
    return Flow::next_statement;
  }

  Flow run_loop(const Statement& statement, Frame* frame, std::string& out) {
    Loop* const loop = runtime_.make(
        Loop{.source = items_of(runtime_, evaluate(*statement.expressions[0], frame))});
    if (statement.expressions.size() > 1) {
      loop->statement = &statement;
      loop->test_frame = enter(statement.test_scope, frame);
      loop->items = runtime_.array<Value>(loop->source.size());
    }
    Frame* const inner = enter(statement.scope, frame);
    bool ran_through = false;  // jinja2 runs `else` if no iteration reached its end.
    for (; has_item(*loop, loop->index); ++loop->index) {
      runtime_.charge(1);
      forget(*inner);
      inner->variables[0] = Value(loop);
      line_ = statement.line;
      assign(statement.target, item(*loop, loop->index), inner);
      const Flow flow = run(statement.bodies[0], inner, out);
      if (flow == Flow::end_of_loop) break;
      ran_through = ran_through || flow == Flow::next_statement;
    }
    if (statement.bodies.size() == 1 || ran_through) return Flow::next_statement;
    return run(statement.bodies[1], enter(statement.else_scope, frame), out);
  }

  std::span<const Variable> variables_;
  Runtime& runtime_;
  Value block_;              // Output of the filter block's body.
  std::size_t printed_ = 0;  // Bytes.
  int depth_ = 0;
  int line_ = 1;  // In the template.
};

}  // namespace

Template::Template(std::string_view source) {
  require_valid_utf8(source, "the chat template");
  auto syntax = std::make_shared<Syntax>();
  parse(source, *syntax);
  syntax_ = std::move(syntax);
}

std::string Template::render(std::span<const Variable> variables, Runtime& runtime) const {
  return Interpreter(variables, runtime).render(*syntax_);
}

}  // namespace jforge::jinja
