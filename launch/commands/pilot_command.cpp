#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "launch/commands/commands.h"
#include "launch/commands/evaluation_session.h"
#include "launch/commands/run_directory.h"
#include "launch/config/job_fields.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/console.h"
#include "runtime/read_file.h"
#include "workers/evaluate/part_files.h"
#include "workers/evaluate/sweep.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::int64_t, 2> kBlocks = {16, 64};
constexpr std::int64_t kProblems = 100;  // Per task, unless evaluate.limit is set.

struct Plan {
  fs::path directory;  ///< DIR/pilot
  fs::path source;     ///< The base model.
  std::vector<std::string> tasks;
};

/// Returns the job that trains the first round with `recipe`. It stores all states, so that its
/// trajectories serve every recipe.
JobOptions job_of(const PilotOptions& options, const Plan& plan, const std::string& recipe) {
  JobOptions job;
  job.config = options.config;
  job.overrides = options.overrides;
  job.overrides.insert(
      job.overrides.end(),
      {"train.recipe=" + recipe, "run.directory=" + toml_quoted((plan.directory / recipe).string()),
       "generate.store_states=all", "evaluate.tasks=[]"});
  job.first_round_steps = options.steps;
  return job;
}

Plan read_plan(const PilotOptions& options, const Communicator& comm) {
  Plan plan;
  load_configuration(comm, options.config, [&](const std::string& text) {
    const JobConfig config = read_job_config(text, options.config.string(), options.overrides);
    config.validate(comm.size());
    if (config.rounds.empty()) {
      throw ConfigError("the configuration has no [[rounds]]; add at least one");
    }
    if (config.evaluate.tasks.empty()) {
      throw ConfigError(
          "evaluate.tasks is empty: name a task (and evaluate.data) that the pilot measures on");
    }
    plan = {config.run.directory / "pilot", config.model.source, config.evaluate.tasks};
    for (const std::string& recipe : options.recipes) {
      // Rejects a recipe's forbidden keys before training begins.
      const JobOptions job = job_of(options, plan, recipe);
      read_job_config(text, options.config.string(), job.overrides).validate(comm.size());
    }
  });
  return plan;
}

/// Rank 0: copies prompts and trajectories to a new run, which checks their hashes. Prompts come
/// last, so that a killed copy begins again.
void share_trajectories(const RunLayout& from, const RunLayout& to) {
  if (fs::exists(to.prompts()) || !fs::exists(from.generation_report(1))) {
    return;
  }
  const auto copy = [&](const fs::path& path) {
    fs::copy(path, to.directory() / fs::relative(path, from.directory()),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  };
  fs::create_directories(to.round(1));
  copy(from.trajectories(1));
  copy(from.generation_report(1));
  copy(from.prompts_report());
  copy(from.prompts());
}

bool measure(const PilotOptions& options, const MpiSession& session, const Plan& plan,
             const std::string& name, const fs::path& model) {
  EvaluationSession evaluation(session, {.config = options.config,
                                         .overrides = options.overrides,
                                         .model = model,
                                         .out = plan.directory,
                                         .name = name,
                                         .default_out = plan.directory,
                                         .folder = "evaluation",
                                         .shows_tables = false});
  EvaluateConfig& config = evaluation.config().evaluate;
  config.limit = config.limit.value_or(kProblems);
  SweepConfig sweep;
  sweep.axes.at("block_size").values.assign(kBlocks.begin(), kBlocks.end());
  const bool finished =
      evaluation.load_model() &&
      evaluate_methods(config, sweep_methods(sweep, config.decoding, evaluation.config().run.seed),
                       evaluation.model(), evaluation.context(), evaluation.directory());
  return evaluation.finish(finished, {}) == ExitCode::ok;
}

/// Returns token hashes of the greedy answers by problem.
std::map<std::int64_t, std::string> answers_of(const fs::path& file) {
  std::map<std::int64_t, std::string> answers;
  static_cast<void>(for_each_line(file, [&](std::string_view line, const std::string& origin) {
    const auto record = parse_bounded_json<nlohmann::json>(line, origin);
    answers[record.at("index").get<std::int64_t>()] = record.at("token_hash").get<std::string>();
  }));
  return answers;
}

std::string table(const Plan& plan, const std::vector<std::string>& recipes,
                  const std::string& task) {
  const fs::path evaluation = plan.directory / "evaluation";
  const auto summary =
      parse_bounded_json<nlohmann::json>(read_file(evaluation / "summary.json"), "summary.json");
  const auto base = answers_of(evaluation / "base" / (task + ".ar.jsonl"));
  std::string text = fmt::format("\n{}\n  {:<16} {:>8} {:>14} {:>14} {:>16}\n", task, "recipe",
                                 "right", "TPF, block 16", "TPF, block 64", "answers as base");
  std::vector<std::string> names = {"base"};
  names.insert(names.end(), recipes.begin(), recipes.end());
  for (const std::string& name : names) {
    const auto& figures = summary.at("models").at(name).at(task);
    const auto tpf = [&](std::int64_t block) {
      return figures.at(fmt::format("jacobi.block_size={}", block)).at("tpf").get<double>();
    };
    const auto answers = answers_of(evaluation / name / (task + ".ar.jsonl"));
    const auto same = std::ranges::count_if(
        answers, [&](const auto& answer) { return base.at(answer.first) == answer.second; });
    text += fmt::format("  {:<16} {:>6.1f} % {:>14.2f} {:>14.2f} {:>14.1f} %\n", name,
                        100 * figures.at("ar").at("accuracy").get<double>(), tpf(kBlocks[0]),
                        tpf(kBlocks[1]),
                        100.0 * static_cast<double>(same) / static_cast<double>(answers.size()));
  }
  return text;
}

void expect_recipes(const std::vector<std::string>& recipes) {
  const std::vector<std::string> known = recipe_names();
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    const auto begin = recipes.begin();
    if (std::ranges::find(known, recipes[i]) == known.end() ||
        std::find(begin, begin + static_cast<std::ptrdiff_t>(i), recipes[i]) !=
            begin + static_cast<std::ptrdiff_t>(i)) {
      throw ConfigError(fmt::format("--recipes {}: name each of {} at most once",
                                    fmt::join(recipes, ","), fmt::join(known, ", ")));
    }
  }
}

}  // namespace

ExitCode pilot_command(const PilotOptions& options, const MpiSession& session) {
  expect_recipes(options.recipes);
  const Communicator& world = session.world();
  session.clock().enter("read the configuration");
  const Plan plan = read_plan(options, world);
  for (const std::string& recipe : options.recipes) {
    together(world, [&] {
      if (world.rank() == 0 && recipe != options.recipes.front()) {
        share_trajectories(RunLayout(plan.directory / options.recipes.front()),
                           RunLayout(plan.directory / recipe));
      }
    });
    const ExitCode code = run_command(job_of(options, plan, recipe), session);
    if (code != ExitCode::ok) {
      return code;
    }
  }
  if (!measure(options, session, plan, "base", plan.source)) {
    return ExitCode::interrupted;
  }
  for (const std::string& recipe : options.recipes) {
    if (!measure(options, session, plan, recipe, RunLayout(plan.directory / recipe).model())) {
      return ExitCode::interrupted;
    }
  }
  together(world, [&] {
    if (world.rank() != 0) {
      return;
    }
    std::string text =
        fmt::format("\nPilot: {} steps of each recipe on the same trajectories\n", options.steps);
    for (const std::string& task : plan.tasks) {
      text += table(plan, options.recipes, task);
    }
    tell(stdout, text + fmt::format("\nIntervals and speeds: {}\n",
                                    (plan.directory / "report.md").string()));
  });
  return ExitCode::ok;
}

}  // namespace jforge
