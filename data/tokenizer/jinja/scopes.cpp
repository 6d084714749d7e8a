#include <algorithm>
#include <map>
#include <set>

#include "data/tokenizer/jinja/syntax_internal.h"

/// jinja2 looks a name up where its whole scope says it belongs, not where the last assignment
/// happened to put it: what a scope sets anywhere is its own from its beginning. This is jinja2's
/// own algorithm (idtracking.py), so that names set in branches, read before they are set or hidden
/// by an inner scope mean the same.

namespace jforge::jinja {
namespace {

using Source = FramePlan::Source;
using Names = std::set<std::string_view>;

constexpr std::size_t kMostCopied = 2'000'000;  // Names, for all branches; takes about a second.

/// What is known of the names of one scope. Branches of a condition work on copies.
struct Symbols {
  struct Load {
    Source source;
    std::uint32_t outer_level = 0;
  };

  std::size_t* copies_left = nullptr;  // Of the template.
  Symbols* parent = nullptr;
  std::uint32_t level = 0;
  Names references = {};  // Names that mean a variable of this scope.
  std::map<std::string_view, Load> loads = {};
  Names stores = {};

  /// The level of the variable that `name` means.
  [[nodiscard]] const Symbols* find(std::string_view name) const {
    const Symbols* at = this;
    while (at != nullptr && !at->references.contains(name)) at = at->parent;
    return at;
  }

  void define(std::string_view name, Load load) {
    references.insert(name);
    loads[name] = load;
  }
  void load(std::string_view name) {
    if (find(name) == nullptr) define(name, {Source::context});
  }
  void store(std::string_view name) {
    stores.insert(name);
    if (references.contains(name)) return;
    const Symbols* outer = parent == nullptr ? nullptr : parent->find(name);
    define(name, outer != nullptr ? Load{Source::outer, outer->level} : Load{Source::nothing});
  }
  void declare(std::string_view name) {
    stores.insert(name);
    define(name, {Source::parameter});
  }

  /// For a branch of the condition at `line`.
  [[nodiscard]] Symbols copy(int line) const {
    const std::size_t names = 1 + references.size();
    if (names > *copies_left) throw TemplateError(line, "too many names in too many branches");
    *copies_left -= names;
    return *this;
  }

  void update_from_branches(const std::vector<Symbols>& branches) {
    Names stored;
    for (const Symbols& branch : branches)
      stored.insert(branch.stores.begin(), branch.stores.end());
    std::erase_if(stored, [this](std::string_view name) { return stores.contains(name); });
    for (const Symbols& branch : branches) {
      references.insert(branch.references.begin(), branch.references.end());
      for (const auto& [name, load] : branch.loads) loads[name] = load;
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const std::string_view name : stored) {
      const Symbols* outer = parent == nullptr ? nullptr : parent->find(name);
      loads[name] = outer != nullptr ? Load{Source::outer, outer->level} : Load{Source::context};
    }
  }
};

// First all of a scope is looked at, without the scopes inside it …

void look_at(Symbols& symbols, const Expression* expression) {
  if (expression == nullptr) return;
  if (expression->kind == Expression::Kind::name) symbols.load(expression->name);
  for (const Expression* operand : expression->operands) look_at(symbols, operand);
  for (const auto& [name, value] : expression->keywords) look_at(symbols, value);
}

void look_at(Symbols& symbols, const Statement::Target& target, bool parameter) {
  if (target.is_tuple) {
    for (const auto& part : target.parts) look_at(symbols, part, parameter);
  } else if (!target.attribute.empty()) {
    symbols.load(target.name);
  } else if (parameter) {
    symbols.declare(target.name);
  } else {
    symbols.store(target.name);
  }
}

void look_at(Symbols& symbols, const Body& body);

/// All its `elif`s are one branch to jinja2.
void look_at_condition(Symbols& symbols, const Statement& condition) {
  const std::size_t tests = condition.expressions.size();
  look_at(symbols, condition.expressions[0]);
  std::vector<Symbols> branches;
  branches.push_back(symbols.copy(condition.line));
  look_at(branches.back(), condition.bodies[0]);
  branches.push_back(symbols.copy(condition.line));
  for (std::size_t i = 1; i < tests; ++i) {
    Symbols& all = branches.back();
    look_at(all, condition.expressions[i]);
    std::vector<Symbols> inner;
    for (int copies = 0; copies < 3; ++copies) inner.push_back(all.copy(condition.line));
    look_at(inner[0], condition.bodies[i]);
    all.update_from_branches(inner);
  }
  branches.push_back(symbols.copy(condition.line));
  if (condition.bodies.size() > tests) look_at(branches.back(), condition.bodies[tests]);
  symbols.update_from_branches(branches);
}

void look_at(Symbols& symbols, const Body& body) {
  for (const Statement* statement : body) {
    switch (statement->kind) {
      case Statement::Kind::condition:
        look_at_condition(symbols, *statement);
        break;
      case Statement::Kind::loop:  // Its condition sees the loop's own variables.
      case Statement::Kind::print:
        look_at(symbols, statement->expressions[0]);
        break;
      case Statement::Kind::set:
        look_at(symbols, statement->expressions[0]);
        look_at(symbols, statement->target, false);
        break;
      case Statement::Kind::set_block:
      case Statement::Kind::macro:
        look_at(symbols, statement->target, false);
        break;
      case Statement::Kind::filter:
        look_at(symbols, statement->expressions[0]);
        break;
      case Statement::Kind::text:
      case Statement::Kind::generation:
      case Statement::Kind::stop:
      case Statement::Kind::next:
        break;
    }
  }
}

// … then its names get their places, and the scopes inside it their turn.

class Scope {
 public:
  Scope(FramePlan& plan, std::size_t& copies_left)
      : parent_(nullptr), plan_(plan), symbols_{.copies_left = &copies_left} {}
  Scope(Scope* parent, FramePlan& plan)
      : parent_(parent), plan_(plan), symbols_{.copies_left = parent->symbols_.copies_left} {
    symbols_.parent = &parent->symbols_;
    symbols_.level = parent->symbols_.level + 1;
  }

  Symbols& symbols() { return symbols_; }

  /// Slots for what was looked at. To be called before anything is placed.
  void plan() {
    for (const auto& [name, load] : symbols_.loads) {
      FramePlan::Load planned{
          .slot = slot_of(name), .source = load.source, .name = name, .outer = {}};
      if (load.source == Source::outer) planned.outer = parent_->place_of(name, symbols_.level);
      plan_.loads.push_back(planned);
    }
  }

  void place(Expression* expression) {
    if (expression == nullptr) return;
    if (expression->kind == Expression::Kind::name) {
      expression->place = place_of(expression->name, symbols_.level);
    }
    for (Expression* operand : expression->operands) place(operand);
    for (auto& [name, value] : expression->keywords) place(value);
  }

  void place(Statement::Target& target) {
    for (auto& part : target.parts) place(part);
    if (!target.is_tuple) target.place = place_of(target.name, symbols_.level);
  }

  void place(Body& body) {
    for (Statement* statement : body) place(*statement);
  }

 private:
  void place(Statement& statement) {
    switch (statement.kind) {
      case Statement::Kind::condition:
        for (Expression* test : statement.expressions) place(test);
        for (Body& body : statement.bodies) place(body);
        return;
      case Statement::Kind::loop:
        place_loop(statement);
        return;
      case Statement::Kind::set:
      case Statement::Kind::print:
        place(statement.expressions[0]);
        if (statement.kind == Statement::Kind::set) place(statement.target);
        return;
      case Statement::Kind::set_block:
      case Statement::Kind::macro:
        place(statement.target);
        place_inner(statement);
        return;
      case Statement::Kind::filter:
      case Statement::Kind::generation:
        place_inner(statement);
        return;
      case Statement::Kind::text:
      case Statement::Kind::stop:
      case Statement::Kind::next:
        return;
    }
  }

  /// A scope of parameters, expressions and one body.
  void place_inner(Statement& statement) {
    Scope inner(this, statement.frame);
    for (const auto& parameter : statement.parameters) look_at(inner.symbols_, parameter, true);
    const bool macro = statement.kind == Statement::Kind::macro;
    if (macro) inner.look_at_all(statement.expressions);
    look_at(inner.symbols_, statement.bodies[0]);
    if (!macro) inner.look_at_all(statement.expressions);
    inner.plan();
    for (auto& parameter : statement.parameters) inner.place(parameter);
    for (Expression* expression : statement.expressions) inner.place(expression);
    inner.place(statement.bodies[0]);
  }

  void look_at_all(const std::vector<Expression*>& expressions) {
    for (const Expression* expression : expressions) look_at(symbols_, expression);
  }

  void place_loop(Statement& statement) {
    place(statement.expressions[0]);
    if (statement.expressions.size() > 1) {
      Scope test(this, statement.test_frame);
      look_at(test.symbols_, statement.target, true);
      look_at(test.symbols_, statement.expressions[1]);
      test.plan();
      test.place(statement.expressions[1]);
      Statement::Target target = statement.target;
      test.place(target);
      statement.parameters = {target};
    }
    Scope inner(this, statement.frame);
    inner.symbols_.declare("loop");
    look_at(inner.symbols_, statement.target, true);
    look_at(inner.symbols_, statement.bodies[0]);
    inner.plan();
    inner.place(statement.target);
    statement.loop_slot = inner.slot_of("loop");
    inner.place(statement.bodies[0]);
    if (statement.bodies.size() > 1) {
      Scope otherwise(this, statement.else_frame);
      look_at(otherwise.symbols_, statement.bodies[1]);
      otherwise.plan();
      otherwise.place(statement.bodies[1]);
    }
  }

  Place place_of(std::string_view name, std::uint32_t from_level) {
    Scope* at = this;
    while (at != nullptr && !at->symbols_.references.contains(name)) at = at->parent_;
    expect(at != nullptr, "a name of no scope");
    return {.hops = from_level - at->symbols_.level, .slot = at->slot_of(name)};
  }

  std::uint32_t slot_of(std::string_view name) {
    const auto slot = slots_.try_emplace(name, static_cast<std::uint32_t>(slots_.size())).first;
    plan_.slots = slots_.size();
    return slot->second;
  }

  Scope* parent_;
  FramePlan& plan_;
  Symbols symbols_;
  std::map<std::string_view, std::uint32_t> slots_;
};

}  // namespace

void resolve_names(Syntax& syntax) {
  std::size_t copies_left = kMostCopied;
  Scope root(syntax.frame, copies_left);
  look_at(root.symbols(), syntax.body);
  root.plan();
  root.place(syntax.body);
}

}  // namespace jforge::jinja
