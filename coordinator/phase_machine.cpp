#include "coordinator/phase_machine.h"

#include <algorithm>

namespace jforge {

Command next_command(const JobFacts& facts) {
  using Kind = Command::Kind;
  if (facts.rounds_trained < facts.rounds) {
    const std::int32_t round = facts.rounds_trained + 1;
    if (!facts.prompts_imported) {
      return {Kind::import_prompts, 0, {}};
    }
    if (facts.round_generated < round) {
      return {Kind::generate, round, {}};
    }
    return {Kind::train, round, {}};
  }
  if (!facts.exported) {
    return {Kind::export_model, 0, {}};
  }
  for (const std::string& model : facts.models_to_evaluate) {
    if (std::ranges::find(facts.models_evaluated, model) == facts.models_evaluated.end()) {
      return {Kind::evaluate, 0, model};
    }
  }
  if (!facts.reported) {
    return {Kind::report, 0, {}};
  }
  return {Kind::finish, 0, {}};
}

}  // namespace jforge
