#include "data/tokenizer/jinja/template.h"

#include <fmt/format.h>

#include <utility>

#include "data/tokenizer/jinja/evaluator_internal.h"
#include "data/tokenizer/jinja/syntax_internal.h"
#include "data/tokenizer/unicode.h"

namespace jforge::jinja {
namespace {

enum class Flow { next_statement, next_iteration, end_of_loop };

class Interpreter final : private Evaluator {
 public:
  Interpreter(std::span<const Variable> variables, Runtime& runtime)
      : Evaluator(variables, runtime) {}

  std::string render(const Syntax& syntax) {
    std::string out;
    try {
      Frame* const frame = enter(syntax.frame, nullptr);
      run(syntax.body, frame, out);
    } catch (const Failure& failure) {
      throw TemplateError(line_, failure.reason, failure.raised);
    }
    return out;
  }

 private:
  void run_macro(const Body& body, Frame* frame, std::string& out) override {
    run(body, frame, out);
  }

  Flow run(const Body& body, Frame* frame, std::string& out) {
    const Nesting nesting(depth_);
    for (const Statement* statement : body) {
      const Flow flow = run(*statement, frame, out);
      if (flow != Flow::next_statement) return flow;
    }
    return Flow::next_statement;
  }

  /// All printing, so that what macros and blocks in each other hold is bounded in sum.
  void print(const Value& value, std::string& out) {
    const std::size_t before = out.size();
    append_text(out, value);
    const std::size_t grown = out.size() - before;
    runtime_.charge_bytes(grown);
    printed_ += grown;
    if (printed_ > kMostBytes) {
      fail(fmt::format("it prints more than {} MiB", kMostBytes >> 20));
    }
  }

  Flow run(const Statement& statement, Frame* frame, std::string& out) {
    line_ = statement.line;
    runtime_.charge(1);
    switch (statement.kind) {
      case Statement::Kind::text:
        print(Value::of(statement.text), out);
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
      case Statement::Kind::macro: {
        Value macro;
        macro.kind = Kind::macro;
        macro.macro = runtime_.make(Macro{.definition = &statement, .frame = frame});
        assign(statement.target, macro, frame);
        break;
      }
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

  /// What a body prints goes through a filter, into a variable, or just out.
  Flow run_block(const Statement& statement, Frame* frame, std::string& out) {
    Frame* const inner = enter(statement.frame, frame);
    std::string printed;
    const Flow flow = run(statement.bodies[0], inner, printed);
    if (flow != Flow::next_statement) return flow;
    runtime_.charge_bytes(printed.size());
    Value value = runtime_.text(printed);
    if (statement.kind != Statement::Kind::generation && !statement.expressions.empty()) {
      value = filter(*statement.expressions[0], inner, &value);
    }
    if (statement.kind == Statement::Kind::set_block) {
      assign(statement.target, value, frame);
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
      loop->test_frame = enter(statement.test_frame, frame);
      loop->items = runtime_.array<Value>(loop->source.size());
    }
    Frame* const inner = enter(statement.frame, frame);
    Value& variable = inner->variables[statement.loop_slot];
    variable.kind = Kind::loop;
    variable.loop = loop;
    bool begun = false;
    bool ran_through = false;  // To jinja2 a loop whose items are all left early has none.
    for (; has_item(*loop, loop->index); ++loop->index) {
      runtime_.charge(1);
      if (std::exchange(begun, true)) load(statement.frame, *inner);
      line_ = statement.line;
      assign(statement.target, item(*loop, loop->index), inner);
      const Flow flow = run(statement.bodies[0], inner, out);
      if (flow == Flow::end_of_loop) break;
      ran_through = ran_through || flow == Flow::next_statement;
    }
    // What a macro of the body sees when it is called later.
    for (const auto& planned : statement.frame.loads) {
      inner->variables[planned.slot].kind = Kind::missing;
    }
    if (statement.bodies.size() == 1 || ran_through) return Flow::next_statement;
    return run(statement.bodies[1], enter(statement.else_frame, frame), out);
  }

  std::size_t printed_ = 0;  // Bytes, by all bodies so far.
};

}  // namespace

Template::Template(std::string_view source) {
  require_valid_utf8(source, "the chat template");
  auto syntax = std::make_shared<Syntax>();
  parse(source, *syntax);
  resolve_names(*syntax);
  syntax_ = std::move(syntax);
}

std::string Template::render(std::span<const Variable> variables, Runtime& runtime) const {
  return Interpreter(variables, runtime).render(*syntax_);
}

}  // namespace jforge::jinja
