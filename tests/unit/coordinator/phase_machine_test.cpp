#include "coordinator/phase_machine.h"

#include <gtest/gtest.h>

#include "runtime/error.h"

namespace jforge {
namespace {

using Kind = Command::Kind;

void apply(JobFacts& facts, const Command& command) {
  switch (command.kind) {
    case Kind::import_prompts:
      facts.prompts_imported = true;
      break;
    case Kind::generate:
      facts.round_generated = command.round;
      break;
    case Kind::train:
      facts.rounds_trained = command.round;
      break;
    case Kind::export_model:
      facts.exported = true;
      break;
    case Kind::evaluate:
      facts.models_evaluated.push_back(command.model);
      break;
    case Kind::report:
      facts.reported = true;
      break;
    case Kind::finish:
      break;
  }
}

TEST(PhaseMachine, WalksThroughAWholeJobInOrder) {
  JobFacts facts;
  facts.rounds = 2;
  facts.models_to_evaluate = {"base", "final"};
  std::vector<std::string> seen;
  for (int i = 0; i < 20; ++i) {
    const Command command = next_command(facts);
    seen.push_back(to_string(command));
    if (command.kind == Kind::finish) {
      break;
    }
    apply(facts, command);
  }
  EXPECT_EQ(seen,
            (std::vector<std::string>{"import", "generate round 1", "train round 1",
                                      "generate round 2", "train round 2", "export",
                                      "evaluate base", "evaluate final", "report", "finish"}));
}

TEST(PhaseMachine, TheSameFactsGiveTheSameCommandAfterARestart) {
  JobFacts facts;
  facts.rounds = 2;
  facts.prompts_imported = true;
  facts.rounds_trained = 1;
  facts.round_generated = 1;
  EXPECT_EQ(next_command(facts), (Command{Kind::generate, 2, ""}));
  EXPECT_EQ(next_command(facts), next_command(facts));
  facts.round_generated = 2;
  EXPECT_EQ(next_command(facts), (Command{Kind::train, 2, ""}));
}

TEST(PhaseMachine, NoRoundsMeansExportAndEvaluate) {
  JobFacts facts;
  EXPECT_EQ(next_command(facts).kind, Kind::export_model);
}

TEST(Command, RoundTripAndRefusal) {
  for (const Command& command :
       {Command{Kind::generate, 3, ""}, Command{Kind::evaluate, 0, "base"}}) {
    EXPECT_EQ(parse_command(encode(command)), command);
  }
  EXPECT_ANY_THROW((void)parse_command("not json"));
  EXPECT_ANY_THROW((void)parse_command(R"({"kind":99,"round":0,"model":""})"));
  EXPECT_ANY_THROW((void)parse_command(R"({"kind":1})"));
  EXPECT_THROW((void)parse_command(R"({"kind":"1","round":0,"model":""})"), CommError);
  EXPECT_THROW((void)parse_command(R"({"kind":1,"round":[],"model":""})"), CommError);
  EXPECT_THROW((void)parse_command(R"({"kind":1,"round":0,"model":7})"), CommError);
}

}  // namespace
}  // namespace jforge
