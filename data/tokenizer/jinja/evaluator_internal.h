#pragma once

/// The half of the interpreter that evaluates expressions.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/syntax_internal.h"
#include "data/tokenizer/jinja/template.h"

namespace jforge::jinja {

/// The variables of a scope that is entered.
struct Frame {
  Frame* outer;
  std::span<Value> variables;
};

struct Macro {
  const Statement* definition;
  Frame* frame;  ///< Where it was defined.
};

/// The variable `loop`. A loop with a condition looks for its items as they are needed, as jinja2
/// does: the body may change what the condition says.
struct Loop {
  std::span<const Value> source;
  std::span<Value> items = {};  ///< As many as were found of the source's.
  std::size_t looked_at = 0;
  std::size_t found = 0;
  std::size_t index = 0;
  const Statement* statement = nullptr;
  Frame* test_frame = nullptr;
};

/// Variables and what is computed from them. Throws Failure.
class Evaluator {
 protected:
  Evaluator(std::span<const Variable> variables, Runtime& runtime)
      : variables_(variables), runtime_(runtime) {}
  virtual ~Evaluator() = default;

  /// Runs the body of a macro that is called.
  virtual void run_macro(const Body& body, Frame* frame, std::string& out) = 0;

  class Nesting {
   public:
    explicit Nesting(int& depth) : depth_(depth) {
      if (++depth_ > kDeepest) fail("it is nested too deeply");
    }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int& depth_;
  };

  // Scopes.

  Frame* enter(const FramePlan& plan, Frame* outer) {
    Frame* const frame =
        runtime_.make(Frame{.outer = outer, .variables = runtime_.array<Value>(plan.slots)});
    for (Value& variable : frame->variables) variable.kind = Kind::missing;
    load(plan, *frame);
    return frame;
  }

  /// Gives the variables of a scope what they hold at its begin.
  void load(const FramePlan& plan, Frame& frame) {
    runtime_.charge(plan.loads.size() / 4);
    for (const FramePlan::Load& load : plan.loads) {
      Value& variable = frame.variables[load.slot];
      switch (load.source) {
        case FramePlan::Source::parameter:
          break;
        case FramePlan::Source::context:
          runtime_.charge(1 + variables_.size() / 8);
          variable = given(load.name);
          break;
        case FramePlan::Source::outer:
          variable = at(load.outer, &frame);
          break;
        case FramePlan::Source::nothing:
          variable.kind = Kind::missing;
          break;
      }
    }
  }

  [[nodiscard]] Value given(std::string_view name) const {
    const auto variable = std::ranges::find(variables_, name, &Variable::name);
    if (variable != variables_.end()) return variable->value;
    if (const Function* function = find_function(name)) return Value::of(function);
    Value missing;
    missing.kind = Kind::missing;
    return missing;
  }

  static Value& at(Place place, Frame* frame) {
    for (std::uint32_t i = 0; i < place.hops; ++i) frame = frame->outer;
    return frame->variables[place.slot];
  }

  /// The value of a variable; undefined under its name if it has none.
  static Value read(Place place, std::string_view name, Frame* frame) {
    Value value = at(place, frame);
    if (value.is(Kind::missing)) {
      value = Value();
      value.text = name;
    }
    return value;
  }

  void assign(const Statement::Target& target, const Value& value, Frame* frame) {
    if (target.is_tuple) {
      const auto parts = items_of(runtime_, value);
      if (parts.size() != target.parts.size()) {
        fail(fmt::format("{} values for {} names", parts.size(), target.parts.size()));
      }
      for (std::size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i], frame);
    } else if (target.attribute.empty()) {
      at(target.place, frame) = value;
    } else {
      assign_attribute(target, value, frame);
    }
  }

  void assign_attribute(const Statement::Target& target, const Value& value, Frame* frame) {
    const Value space = read(target.place, target.name, frame);
    if (!space.is(Kind::name_space)) {
      fail(fmt::format("'{}' is no namespace: its attributes cannot be set", target.name));
    }
    if (target.attribute.starts_with('_')) {
      fail("a namespace takes no name that begins with '_'");
    }
    if (auto* attribute = space.name_space->find(runtime_, target.attribute)) {
      attribute->value = value;
    } else {
      ++space.name_space->size;
      space.name_space->first = runtime_.make(Namespace::Attribute{
          .name = target.attribute, .value = value, .next = space.name_space->first});
    }
  }

  // The variable `loop`.

  bool has_item(Loop& loop, std::size_t index) {
    if (loop.statement == nullptr) return index < loop.source.size();
    while (loop.found <= index && loop.looked_at < loop.source.size()) {
      const Value& value = loop.source[loop.looked_at++];
      runtime_.charge(1);
      assign(loop.statement->parameters[0], value, loop.test_frame);
      if (truth(evaluate(*loop.statement->expressions[1], loop.test_frame))) {
        loop.items[loop.found++] = value;
      }
    }
    return index < loop.found;
  }

  static const Value& item(const Loop& loop, std::size_t index) {
    return loop.statement == nullptr ? loop.source[index] : loop.items[index];
  }

  std::int64_t loop_length(Loop& loop) {
    if (loop.statement == nullptr) return std::ssize(loop.source);
    has_item(loop, loop.source.size());
    return static_cast<std::int64_t>(loop.found);
  }

  std::optional<Value> loop_attribute(Loop& loop, std::string_view name) {
    const auto index = static_cast<std::int64_t>(loop.index);
    if (name == "index") return Value::of(index + 1);
    if (name == "index0") return Value::of(index);
    if (name == "first") return Value::of(index == 0);
    if (name == "last") return Value::of(!has_item(loop, loop.index + 1));
    if (name == "length") return Value::of(loop_length(loop));
    if (name == "revindex") return Value::of(loop_length(loop) - index);
    if (name == "revindex0") return Value::of(loop_length(loop) - index - 1);
    if (name == "depth") return Value::of(std::int64_t{1});
    if (name == "depth0") return Value::of(std::int64_t{0});
    if (name == "previtem") {
      if (index > 0) return item(loop, loop.index - 1);
      return undefined_because(runtime_, "there is no previous item");
    }
    if (name == "nextitem") {
      if (has_item(loop, loop.index + 1)) return item(loop, loop.index + 1);
      return undefined_because(runtime_, "there is no next item");
    }
    return std::nullopt;
  }

  // Expressions.

  Value evaluate(const Expression& expression, Frame* frame) {
    const Nesting nesting(depth_);
    runtime_.charge(1);
    using Make = Expression::Kind;
    const auto operand = [&](std::size_t i) { return evaluate(*expression.operands[i], frame); };
    switch (expression.kind) {
      case Make::constant:
        return expression.constant;
      case Make::name:
        return read(expression.place, expression.name, frame);
      case Make::list:
      case Make::tuple:
        return make_sequence(expression, frame);
      case Make::mapping:
        return make_mapping_of(expression, frame);
      case Make::conditional:
        return evaluate_conditional(expression, frame);
      case Make::logical_or: {
        const Value left = operand(0);
        return truth(left) ? left : operand(1);
      }
      case Make::logical_and: {
        const Value left = operand(0);
        return truth(left) ? operand(1) : left;
      }
      case Make::logical_not:
        return Value::of(!truth(operand(0)));
      case Make::negative:
        return negative_at(expression, operand(0));
      case Make::positive:
        return positive_at(expression, operand(0));
      case Make::comparison:
        return compare(expression, frame);
      case Make::add:
        return calculate_at(Operator::add, expression, frame);
      case Make::subtract:
        return calculate_at(Operator::subtract, expression, frame);
      case Make::multiply:
        return calculate_at(Operator::multiply, expression, frame);
      case Make::divide:
        return calculate_at(Operator::divide, expression, frame);
      case Make::divide_whole:
        return calculate_at(Operator::divide_whole, expression, frame);
      case Make::modulo:
        return calculate_at(Operator::modulo, expression, frame);
      case Make::power:
        return calculate_at(Operator::power, expression, frame);
      case Make::concatenate:
        return concatenate(expression, frame);
      case Make::attribute:
        return attribute_at(expression, operand(0));
      case Make::element: {
        const Value object = operand(0);
        const Value key = operand(1);
        line_ = expression.line;
        if (object.is(Kind::loop) && key.is(Kind::string))
          return attribute_of_loop(object, key.text);
        return element(runtime_, object, key);
      }
      case Make::slice:
        return slice_at(expression, frame);
      case Make::filter:
        return filter(expression, frame, nullptr);
      case Make::test:
        return test(expression, frame);
      case Make::call:
        return call(expression, frame);
    }
    throw InternalError("unknown kind of expression");
  }

  Value negative_at(const Expression& expression, const Value& value) {
    line_ = expression.line;
    return negative(value);
  }

  Value positive_at(const Expression& expression, const Value& value) {
    line_ = expression.line;
    return negative(negative(value));
  }

  Value calculate_at(Operator sign, const Expression& expression, Frame* frame) {
    const Value left = evaluate(*expression.operands[0], frame);
    const Value right = evaluate(*expression.operands[1], frame);
    line_ = expression.line;
    return calculate(runtime_, sign, left, right);
  }

  Value make_sequence(const Expression& expression, Frame* frame) {
    const auto items = runtime_.array<Value>(expression.operands.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      items[i] = evaluate(*expression.operands[i], frame);
    }
    Value result;
    result.kind = expression.kind == Expression::Kind::list ? Kind::list : Kind::tuple;
    result.sequence = runtime_.make(Sequence{.items = items});
    return result;
  }

  Value make_mapping_of(const Expression& expression, Frame* frame) {
    const auto entries = runtime_.array<Entry>(expression.operands.size() / 2);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].key = evaluate(*expression.operands[2 * i], frame);
      entries[i].value = evaluate(*expression.operands[2 * i + 1], frame);
    }
    line_ = expression.line;
    return Value::of(make_mapping(runtime_, entries));
  }

  Value evaluate_conditional(const Expression& expression, Frame* frame) {
    if (truth(evaluate(*expression.operands[0], frame))) {
      return evaluate(*expression.operands[1], frame);
    }
    if (expression.operands.size() > 2) return evaluate(*expression.operands[2], frame);
    return undefined_because(
        runtime_, "the inline if-expression evaluated to false and no else section was defined");
  }

  Value compare(const Expression& expression, Frame* frame) {
    Value left = evaluate(*expression.operands[0], frame);
    for (std::size_t i = 0; i < expression.comparisons.size(); ++i) {
      const Value right = evaluate(*expression.operands[i + 1], frame);
      line_ = expression.line;
      if (!holds(runtime_, expression.comparisons[i], left, right)) return Value::of(false);
      left = right;
    }
    return Value::of(true);
  }

  Value concatenate(const Expression& expression, Frame* frame) {
    const auto values = runtime_.array<Value>(expression.operands.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = evaluate(*expression.operands[i], frame);
    }
    line_ = expression.line;
    std::string text;
    for (const Value& value : values) {
      expect_plain(value);
      append_text(text, value);
      if (text.size() > kMostBytes) fail("a text is too long");
    }
    runtime_.charge_bytes(text.size());
    return runtime_.text(text);
  }

  Value attribute_at(const Expression& expression, const Value& object) {
    line_ = expression.line;
    if (object.is(Kind::loop)) return attribute_of_loop(object, expression.name);
    return attribute(runtime_, object, expression.name);
  }

  Value attribute_of_loop(const Value& loop, std::string_view name) {
    const auto found = loop_attribute(*loop.loop, name);
    if (!found) fail(fmt::format("'loop.{}' is not supported", name));
    return *found;
  }

  Value slice_at(const Expression& expression, Frame* frame) {
    std::array<Value, 4> values;
    std::array<const Value*, 4> parts{};
    for (std::size_t i = 0; i < 4; ++i) {
      if (expression.operands[i] == nullptr) continue;
      values[i] = evaluate(*expression.operands[i], frame);
      parts[i] = &values[i];
    }
    line_ = expression.line;
    return slice(runtime_, values[0], parts[1], parts[2], parts[3]);
  }

  /// The arguments behind operand 0.
  Arguments arguments_of(const Expression& expression, Frame* frame) {
    const auto positional = runtime_.array<Value>(expression.operands.size() - 1);
    for (std::size_t i = 0; i < positional.size(); ++i) {
      positional[i] = evaluate(*expression.operands[i + 1], frame);
    }
    const auto named = runtime_.array<Argument>(expression.keywords.size());
    for (std::size_t i = 0; i < named.size(); ++i) {
      const auto& [name, value] = expression.keywords[i];
      named[i] = {name, evaluate(*value, frame)};
    }
    line_ = expression.line;
    return {positional, named};
  }

  /// A filter on operand 0, or on `block` where the first of a chain has none.
  Value filter(const Expression& expression, Frame* frame, const Value* block) {
    const Nesting nesting(depth_);
    const Expression* operand = expression.operands[0];
    const Value value = operand == nullptr ? *block
                        : block != nullptr ? filter(*operand, frame, block)
                                           : evaluate(*operand, frame);
    const Arguments arguments = arguments_of(expression, frame);
    if (expression.builtin < 0) {
      fail(fmt::format("the filter '{}' is not supported", expression.name));
    }
    return call_filter(runtime_, expression.builtin, value, arguments);
  }

  Value test(const Expression& expression, Frame* frame) {
    const Value value = evaluate(*expression.operands[0], frame);
    const Arguments arguments = arguments_of(expression, frame);
    if (expression.builtin < 0) {
      fail(fmt::format("the test '{}' is not supported", expression.name));
    }
    return Value::of(call_test(runtime_, expression.builtin, value, arguments));
  }

  // Calls.

  Value call(const Expression& expression, Frame* frame) {
    const Expression& callee = *expression.operands[0];
    if (callee.kind == Expression::Kind::attribute) {
      const Value object = evaluate(*callee.operands[0], frame);
      if (object.is(Kind::loop) && callee.name == "cycle") {
        const Arguments arguments = arguments_of(expression, frame);
        if (arguments.positional.empty()) fail("no items for cycling given");
        return arguments.positional[object.loop->index % arguments.positional.size()];
      }
      return call_value(attribute_at(callee, object), expression, frame);
    }
    return call_value(evaluate(callee, frame), expression, frame);
  }

  Value call_value(const Value& callee, const Expression& expression, Frame* frame) {
    const Arguments arguments = arguments_of(expression, frame);
    switch (callee.kind) {
      case Kind::macro:
        return call_macro(*callee.macro, arguments);
      case Kind::method:
        expect_plain(callee.method->receiver);
        return callee.method->entry->call(runtime_, callee.method->receiver, arguments);
      case Kind::function:
        if (callee.function->call == nullptr) {
          fail(fmt::format("the function '{}' is not supported", callee.function->name));
        }
        return callee.function->call(runtime_, arguments);
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
    Frame* const frame = enter(definition.frame, macro.frame);
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
      at(parameters[i].place, frame) = arguments.positional[i];
    }
    for (const Argument& argument : arguments.named) {
      runtime_.charge(parameters.size() / 8);
      const auto parameter = std::ranges::find(parameters, argument.name, &Statement::Target::name);
      const bool positional = parameter - parameters.begin() < std::ssize(arguments.positional);
      if (parameter == parameters.end() || positional) {
        fail(fmt::format("macro '{}' takes no keyword argument '{}'", definition.text,
                         argument.name));
      }
      at(parameter->place, frame) = argument.value;
    }
    give_defaults(definition, frame);
    std::string printed;
    run_macro(definition.bodies[0], frame, printed);
    runtime_.charge_bytes(printed.size());
    return runtime_.text(printed);
  }

  void give_defaults(const Statement& macro, Frame* frame) {
    const std::size_t required = macro.parameters.size() - macro.expressions.size();
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      Value& parameter = at(macro.parameters[i].place, frame);
      if (!parameter.is(Kind::missing)) continue;
      parameter = i < required
                      ? undefined_because(runtime_, fmt::format("parameter '{}' was not provided",
                                                                macro.parameters[i].name))
                      : evaluate(*macro.expressions[i - required], frame);
    }
  }

  static constexpr int kDeepest = 1000;  // Expressions and statements in each other.

  std::span<const Variable> variables_;
  Runtime& runtime_;
  int depth_ = 0;
  int line_ = 1;  // Of the template, of what is evaluated.
};

}  // namespace jforge::jinja
