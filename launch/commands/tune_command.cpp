#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "checkpoints/drafter_files.h"
#include "checkpoints/jacobi_decoding.h"
#include "data/prompts/prompt_import.h"
#include "launch/commands/commands.h"
#include "launch/commands/evaluation_session.h"
#include "launch/config/field.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/console.h"
#include "runtime/error.h"
#include "workers/evaluate/tuning.h"

namespace jforge {

namespace {

/// Prompts, unlike tasks, have no length of their own.
constexpr std::int64_t kNewTokens = 256;

/// Returns requests for up to `count` of the prompts that training would take, evenly over them.
std::vector<DecodeRequest> prompt_requests(const JobConfig& config, const ModelUnderTest& model,
                                           std::int64_t count) {
  const std::vector<PromptCandidate> prompts =
      read_prompts(reader_options(config.prompts)).candidates;
  if (prompts.empty()) {
    throw DataError(fmt::format("{}: holds no prompt", config.prompts.files.front()));
  }
  const PromptEncoder encoder =
      make_prompt_encoder(BytePairTokenizer::load(model.directory),
                          ChatTemplate::load(model.directory, config.prompts.template_options()),
                          config.prompts.system);
  const std::int64_t all = std::ssize(prompts);
  std::vector<DecodeRequest> requests;
  for (std::int64_t i = 0; i < std::min(count, all); ++i) {
    const auto place = static_cast<std::size_t>(i * all / std::min(count, all));
    requests.push_back({i, encoder.encode(prompts[place].messages),
                        config.evaluate.max_new_tokens.value_or(kNewTokens), model.config.eos_ids,
                        SamplingOptions{}});
  }
  return requests;
}

std::string outcome(const Tuning& tuning, const std::filesystem::path& model, bool recorded) {
  const TunedCandidate& choice = tuning.choice();
  std::string text = fmt::format("\nFastest at batch {} on {}: {}\n", tuning.batch_prompts,
                                 tuning.machine, choice.method.label);
  if (choice.method.name == kBaselineMethod) {
    text += "No candidate is faster by the clock than one token at a time.\n";
  }
  return text + (recorded ? fmt::format("Written into {}\n", (model / kJacobiDecodingFile).string())
                          : fmt::format("Not written: {} is not an export, because it has no {}\n",
                                        model.string(), kJacobiDecodingFile));
}

}  // namespace

ExitCode tune_command(const TuneOptions& options, const MpiSession& session) {
  EvaluateOptions wanted = options.evaluate;
  if (!options.prompts.empty()) {
    wanted.overrides.push_back(fmt::format("prompts.files=[{}]", toml_quoted(options.prompts)));
  }
  EvaluationSession evaluation(session, {.config = wanted.config,
                                         .overrides = wanted.overrides,
                                         .model = wanted.model,
                                         .out = {},
                                         .name = {},
                                         .default_out = {},
                                         .folder = {},
                                         .shows_tables = false});
  JobConfig& job = evaluation.config();
  EvaluateConfig& config = job.evaluate;
  apply(wanted, config);
  if (wanted.methods.empty()) {
    config.methods = has_drafter(wanted.model)
                         ? std::vector<std::string>{"draft", "draft_lookup", "prompt_lookup"}
                         : std::vector<std::string>{"jacobi", "mr", "prompt_lookup"};
    if (has_head(wanted.model)) {
      config.methods.insert(config.methods.end(), {"draft_tree", "draft_tree_lookup"});
    }
  }
  if (!options.prompts.empty()) {
    config.tasks.clear();
  } else if (config.tasks.empty()) {
    throw ConfigError("nothing to decode: give --prompts FILE, or --tasks and --data");
  }
  config.validate();
  const TuningSettings settings{.batch_prompts = wanted.batch_prompts.value_or(1),
                                .problems = std::max(config.speed_problems, 1),
                                .repeats = config.speed_repeats};
  std::vector<DecodingMethod> candidates =
      tuning_candidates(config.methods, config.decoding, job.run.seed);
  if (candidates.size() < 2) {
    throw ConfigError("--methods: none of them drafts, so that there is nothing to tune");
  }
  std::optional<Tuning> tuning;
  if (evaluation.load_model()) {
    const EvaluationContext context = evaluation.context();
    const ModelUnderTest model = evaluation.model();
    const std::int64_t count =
        std::int64_t{std::max(settings.problems, settings.batch_prompts)} * settings.repeats;
    std::vector<DecodeRequest> requests;
    together(context.comm, [&] {
      requests = config.tasks.empty()
                     ? prompt_requests(job, model, count)
                     : tuning_requests(config, model, context.chat_template, count);
    });
    tuning = tune_decoding(model, context, requests, std::move(candidates), settings);
  }
  return evaluation.finish(tuning.has_value(), [&] {
    const std::filesystem::path model = evaluation.model().directory;
    const bool recorded = record_tuning(model, *tuning);
    tell(stdout, tuning_table(*tuning) + outcome(*tuning, model, recorded));
  });
}

}  // namespace jforge
