#include "launch/command_line.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <ctime>
#include <iostream>
#include <map>
#include <memory>
#include <ranges>
#include <sstream>

#include "data/tasks/task.h"
#include "launch/config/job_fields.h"
#include "launch/shell/shell_completion.h"
#include "launch/version.h"
#include "model/decoding/decoding_method.h"
#include "runtime/device/known_devices.h"
#include "runtime/nearest_name.h"
#include "runtime/stop_signal.h"

namespace jforge {

namespace {

// Groups of --help.
constexpr const char* kOfAllRanks = "Commands that all ranks run together under mpirun";
constexpr const char* kOfOneProcess = "Commands of one process";
// Argument of verify and inspect (commands/artefact.h).
constexpr const char* kArtefacts =
    "Prompt store, trajectories, checkpoint, model, evaluation or run directory";

template <class Options>
void run_single(CommandLine& line, std::shared_ptr<Options> options,
                ExitCode (*command)(const Options&)) {
  line.distributed = false;
  line.run = [options, command](const MpiSession*) { return command(*options); };
}

// Returns seconds since the epoch.
std::optional<double> parse_stop_time(const std::string& text) {
  if (text.starts_with('+')) {
    std::int32_t seconds = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + 1, end, seconds);
    return error == std::errc() && rest == end && seconds > 0
               ? std::optional(seconds_since_epoch() + seconds)
               : std::nullopt;
  }
  std::tm utc{};
  ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  const std::time_t time = ::timegm(&utc);
  const bool holds = fmt::format("{:%FT%TZ}", fmt::gmtime(time)) == text &&
                     static_cast<double>(time) > seconds_since_epoch();
  return holds ? std::optional(static_cast<double>(time)) : std::nullopt;
}

template <class Options>
void run_distributed(CLI::App& sub, CommandLine& line, std::shared_ptr<Options> options,
                     ExitCode (*command)(const Options&, const MpiSession&)) {
  sub.group(kOfAllRanks);
  sub.add_option("--inject", line.inject)->group("");
  sub.add_option_function<std::string>(
         "--stop-at",
         [&line](const std::string& text) {
           line.stop_at = parse_stop_time(text);
           if (!line.stop_at) {
             throw CLI::ValidationError(
                 "--stop-at",
                 "must be a future time, such as 2030-12-31T18:00:00Z or +3600, not " + text);
           }
         },
         "Stop in time, as after SIGUSR2: UTC, or +SECONDS from now (default: Slurm's end time)")
      ->type_name("TIME");
  sub.callback([&line, options, command] {
    line.distributed = true;
    line.run = [options, command](const MpiSession* session) {
      return command(*options, *session);
    };
  });
}

// Restricts the value to `words`, its type name (shell/shell_completion.h).
CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words) {
  return option->check(CLI::IsMember(words).description(""))
      ->type_name(fmt::format("{}", fmt::join(words, "|")));
}

// CLI11's own checks print a bound of 309 digits, and accept negative numbers and those beyond the
// option's type.
template <class T>
CLI::Validator integer_from(T least, const char* most, const char* type) {
  return {[=](const std::string& text) {
            T value = 0;
            const char* const end = text.data() + text.size();
            const auto [rest, error] = std::from_chars(text.data(), end, value);
            return error == std::errc() && rest == end && value >= least
                       ? ""
                       : fmt::format("must be a whole number from {} to {}, not {}", least, most,
                                     text);
          },
          type};
}

CLI::Validator positive_number() { return integer_from<std::int32_t>(1, "2147483647", "POSITIVE"); }
CLI::Validator seed_number() { return integer_from<std::uint64_t>(0, "2^64 - 1", "UINT"); }

// Words and values are the configuration's; without the option `value` stays "auto".
template <class Enum, std::size_t N>
void add_choice(CLI::App& sub, const char* option, Enum& value, const EnumName<Enum> (&table)[N],
                const char* help) {
  std::map<std::string, Enum> choices;
  std::vector<std::string> names;
  for (const auto& [choice, name] : table) {
    choices.emplace(name, choice);
    names.emplace_back(name);
  }
  one_of(
      sub.add_option_function<std::string>(
          option, [&value, choices](const std::string& name) { value = choices.at(name); }, help),
      names)
      ->default_str("auto");
}

void add_template(CLI::App& sub, bool& chatml) {
  one_of(sub.add_option_function<std::string>(
             "--template", [&chatml](const std::string& /*name*/) { chatml = true; },
             "Plain ChatML in the place of a chat template that is missing or not understood"),
         {"chatml"});
}

void add_settings(CLI::App& sub, std::vector<std::string>& settings) {
  sub.add_option("--setting", settings,
                 "Setting of the method, as [evaluate] of the configuration names it (repeatable)")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
}

void add_sampling(CLI::App& sub, std::vector<std::string>& settings) {
  for (const auto& [option, key] :
       {std::pair("--temperature", "temperature"), std::pair("--top-p", "top_p"),
        std::pair("--top-k", "top_k"), std::pair("--repetition-penalty", "repetition_penalty")}) {
    sub.add_option_function<std::string>(
           option,
           [&settings, key = std::string(key)](const std::string& value) {
             settings.push_back(fmt::format("{}={}", key, value));
           },
           decoding_key(key).meaning)
        ->type_name(decoding_key(key).fallback.index() == 0 ? "INT" : "FLOAT");
  }
}

// The default is the command's; a given value is a setting of the method.
void add_block_size(CLI::App& sub, std::int32_t& block_size, std::vector<std::string>& settings,
                    const char* help = "Tokens of a draft") {
  sub.add_option_function<std::int32_t>(
         "--block-size",
         [&](std::int32_t value) { settings.push_back(fmt::format("block_size={}", value)); }, help)
      ->check(positive_number())
      ->default_str(std::to_string(block_size));
}

void add_device(CLI::App& sub, DeviceChoice& device) {
  add_choice(sub, "--device", device, kDeviceNames, "What computes");
}

void add_decode_weights(CLI::App& sub, WeightStorage& storage) {
  add_choice(sub, "--decode-weights", storage, kWeightStorageNames,
             "Type of the matrices: bfloat16 if that loses nothing, float32, or rounded");
}

void add_set(CLI::App& sub, std::vector<std::string>& overrides) {
  sub.add_option("--set", overrides, "Override a key of the configuration (repeatable)")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);  // In "--set a=b my.toml" the second word is not a setting.
}

void add_part(CLI::App& sub, std::pair<int, int>& part, const char* what) {
  sub.add_option("--part", part,
                 fmt::format("Decode the K-th of N parts of the {}; without it: take all", what))
      ->type_name("K/N")
      ->delimiter('/');
}

void add_model(CLI::App& sub, std::filesystem::path& model, bool required) {
  sub.add_option("--model", model, "Hugging Face directory")->type_name("DIR")->required(required);
}

void add_job(CLI::App& app, CommandLine& line, const char* name, const char* help,
             ExitCode (*command)(const JobOptions&, const MpiSession&)) {
  auto options = std::make_shared<JobOptions>();
  CLI::App* sub = app.add_subcommand(name, help);
  sub->add_option("config", options->config, "Configuration")->type_name("TOML")->required();
  add_set(*sub, options->overrides);
  sub->add_option(
         "--resume", options->resume,
         "From the newest valid checkpoint; not at all, for a directory without a run (one "
         "that has a run is refused); or from this checkpoint")
      ->type_name("auto|never|DIR")
      ->capture_default_str();
  sub->add_option("--accept-change", options->accept_changes,
                  "Go on although this identity key differs from the checkpoint's (repeatable)")
      ->type_name("KEY")
      ->allow_extra_args(false);
  CLI::Option* const dry_run =
      sub->add_flag("--dry-run", options->dry_run,
                    "Print the plan (memory, disk, traffic, steps, leases, time) and stop");
  sub->add_option("--ranks", options->planned_ranks,
                  "With --dry-run: plan for so many ranks like those started now")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(dry_run);
  const std::string_view of = name;
  if (of != "pretrain" && of != "finetune") {
    std::map<std::string, std::string> names;
    std::vector<std::string> words;
    for (const KnownDevice& device : kKnownDevices) {
      std::string word(device.name);
      std::ranges::transform(word, word.begin(),
                             [](unsigned char c) { return c == ' ' ? '-' : std::tolower(c); });
      names.emplace(word, device.name);
      words.push_back(word);
    }
    one_of(sub->add_option_function<std::string>(
               "--device-plan",
               [options, names](const std::string& word) { options->device_plan = names.at(word); },
               "With --dry-run: calculate memory and times for ranks with one such GPU each"),
           words)
        ->needs(dry_run);
  }
  if (of == "generate" || of == "train") {
    sub->add_option("--round", options->round, "Round, from 1")->required();
  }
  if (of == "generate") {
    add_part(*sub, options->part, "prompts");
  }
  run_distributed(*sub, line, options, command);
}

void add_pilot(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<PilotOptions>();
  CLI::App* sub = app.add_subcommand(
      "pilot", "Train the first round for a few steps with each of some recipes and compare them");
  sub->add_option("config", options->config, "Configuration of the run")
      ->type_name("TOML")
      ->required();
  add_set(*sub, options->overrides);
  sub->add_option("--recipes", options->recipes, "Recipes (train.recipe), separated by commas")
      ->type_name(fmt::format("{}", fmt::join(recipe_names(), "|")))
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("--steps", options->steps, "Optimizer steps of each")
      ->check(CLI::Range(std::int64_t{1}, kMostSteps))
      ->capture_default_str();
  run_distributed(*sub, line, options, pilot_command);
}

void add_selftest(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<SelftestOptions>();
  CLI::App* sub =
      app.add_subcommand("selftest", "Run the whole pipeline on the bundled model in 15 seconds");
  sub->add_option("--directory", options->directory,
                  "Where to write; must be new, all ranks must see it, removed at the end")
      ->type_name("DIR")
      ->capture_default_str();
  run_distributed(*sub, line, options, selftest_command);
}

void add_evaluation(CLI::App& sub, EvaluateOptions& options) {
  sub.add_option("config", options.config,
                 "Configuration whose [model] and [evaluate] are taken (optional)")
      ->type_name("TOML");
  add_set(sub, options.overrides);
  add_model(sub, options.model, false);
  sub.add_option("--tasks", options.tasks, "Tasks, separated by commas")
      ->type_name(fmt::format("{}", fmt::join(task_names(), "|")))
      ->delimiter(',')
      ->allow_extra_args(false);
  // Unknown names are rejected with the configuration's.
  sub.add_option("--methods", options.methods, "Decoding methods, separated by commas")
      ->type_name(fmt::format("{}", fmt::join(decoding_method_names(), "|")))
      ->delimiter(',')
      ->allow_extra_args(false);
  sub.add_option("--data", options.data, "Directory with the benchmark files, or one task's JSONL")
      ->type_name("PATH");
  sub.add_option("--max-new-tokens", options.max_new_tokens, "Instead of the tasks' own");
  sub.add_option("--batch-prompts", options.batch_prompts,
                 "Problems decoded at once per rank; does not change results");
  sub.add_option("--prompt-style", options.prompt_style, "For tasks that name none (TASK:STYLE)");
  sub.add_option("--limit", options.limit, "First so many problems only");
}

void add_evaluate(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* sub =
      app.add_subcommand("evaluate", "Measure accuracy, tokens per forward and tokens per second");
  add_evaluation(*sub, *options);
  sub->add_option("--out", options->out, "Directory for the results")->type_name("DIR");
  sub->add_option("--name", options->name, "The model's name in the results (its directory's)");
  sub->add_option_function<std::string>(
         "--block-size",
         [options](const std::string& value) {
           const std::string toml = value == "auto" ? "\"auto\"" : value;
           options->overrides.push_back("evaluate.block_size=" + toml);
         },
         "Block size of methods that draft; auto: each method's fastest on this machine")
      ->type_name("INT|auto");
  run_distributed(*sub, line, options, evaluate_command);
}

void add_tune(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* sub = app.add_subcommand(
      "tune", "Find the fastest decoding settings on this machine and write them into the model");
  add_evaluation(*sub, options->evaluate);
  sub->add_option("--prompts", options->prompts,
                  "Prompts to decode instead of tasks, read as by prompts.* of the configuration")
      ->type_name("FILE");
  run_distributed(*sub, line, options, tune_command);
}

void add_sweep(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<SweepOptions>();
  CLI::App* sub = app.add_subcommand(
      "sweep", "Evaluate a decoding method at every combination of some settings");
  sub->add_option("config", options->config, "Configuration with [sweep] and [evaluate]")
      ->type_name("TOML")
      ->required();
  add_set(*sub, options->overrides);
  add_model(*sub, options->model, false);
  sub->add_option("--out", options->out, "Directory for the results")->type_name("DIR");
  sub->add_option("--name", options->name, "The model's name in the results (its directory's)");
  add_part(*sub, options->part, "combinations");
  run_distributed(*sub, line, options, sweep_command);
}

void add_grade(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<GradeOptions>();
  CLI::App* sub = app.add_subcommand("grade", "Verdicts for existing completions, without a model");
  sub->add_option("--task", options->task,
                  "Task, for instance humaneval_plus or humaneval_plus:evalplus")
      ->type_name(fmt::format("{}", fmt::join(task_names(), "|")))
      ->required();
  sub->add_option("--completions", options->completions,
                  "JSON lines with task_id and completion or solution")
      ->type_name("FILE")
      ->required();
  sub->add_option("--data", options->data, "Directory with the benchmark files, or the task's file")
      ->type_name("PATH")
      ->required();
  sub->add_option("--out", options->out, "Verdict file to write")->type_name("FILE")->required();
  sub->add_option("--jobs", options->jobs, "Programs at a time on every rank (its cores)")
      ->check(positive_number());
  sub->add_flag("--allow-missing", options->allow_missing,
                "Grade what is there when problems have no completion");
  run_distributed(*sub, line, options, grade_command);
}

void add_probe(CLI::App& app, CommandLine& line) {
  CLI::App* probe =
      app.add_subcommand("probe", "Values for checking against other implementations");
  probe->require_subcommand(1);
  const auto add = [&](const char* name, const char* help,
                       ExitCode (*command)(const ProbeOptions&)) {
    auto options = std::make_shared<ProbeOptions>();
    CLI::App* sub = probe->add_subcommand(name, help);
    add_model(*sub, options->model, true);
    sub->add_option("--out", options->out, "Result file")->type_name("FILE")->required();
    add_device(*sub, options->device);
    sub->callback([&line, options, command] { run_single(line, options, command); });
    return std::pair{sub, options};
  };
  const auto [logits, logits_options] =
      add("logits", "Logits of token sequences", probe_logits_command);
  logits->add_option("--tokens", logits_options->tokens, "IDS.json")->type_name("FILE")->required();
  add_decode_weights(*logits, logits_options->decode_weights);
  const auto [loss, loss_options] =
      add("loss", "Losses and gradients of a packed sample", probe_loss_command);
  loss->add_option("--packed", loss_options->packed, "P.json")->type_name("FILE")->required();
  add_set(*loss, loss_options->overrides);
  loss->add_option("--teacher", loss_options->teacher,
                   "Model of train.teacher = \"frozen\" (default: --model)")
      ->type_name("DIR");
  const auto [likelihood, likelihood_options] = add(
      "likelihood", "Log-probabilities of given answers to questions", probe_likelihood_command);
  likelihood
      ->add_option("--pairs", likelihood_options->pairs,
                   "JSON lines with question and answer, plain or gzip")
      ->type_name("FILE")
      ->required();
  add_template(*likelihood, likelihood_options->chatml);
  add_decode_weights(*likelihood, likelihood_options->decode_weights);
  const auto [decode, decode_options] =
      add("decode", "Tokens, forwards and states of decoding", probe_decode_command);
  decode->add_option("--tokens", decode_options->tokens, "IDS.json")->type_name("FILE")->required();
  one_of(decode->add_option("--method", decode_options->method, "Decoding method"),
         decoding_method_names())
      ->required();
  add_settings(*decode, decode_options->settings);
  add_sampling(*decode, decode_options->settings);
  one_of(decode->add_option("--window", decode_options->window,
                            "Form of jacobi's draft: shrinking as in trajectories"),
         {"running", "shrinking"})
      ->capture_default_str();
  add_block_size(*decode, decode_options->block_size, decode_options->settings);
  decode->add_option("--max-new-tokens", decode_options->max_new_tokens, "Length at most")
      ->check(positive_number())
      ->capture_default_str();
  decode->add_option("--seed", decode_options->seed, "Of drafts and sampling")
      ->check(seed_number())
      ->capture_default_str();
  add_decode_weights(*decode, decode_options->decode_weights);
  decode->add_flag("--ignore-eos", decode_options->ignore_eos, "Do not stop at end of sequence");
}

void add_config(CLI::App& app, CommandLine& line) {
  {
    auto options = std::make_shared<InitOptions>();
    CLI::App* sub = app.add_subcommand("init", "Write a commented configuration to start from");
    sub->add_option("config", options->config, "File to write (default: standard output)")
        ->type_name("TOML");
    sub->add_option("--directory", options->start.directory, "Where the run will write")
        ->type_name("DIR")
        ->capture_default_str();
    sub->add_option("--model", options->start.source, "Hugging Face directory")
        ->type_name("DIR")
        ->capture_default_str();
    sub->add_option("--prompts", options->start.files, "File of prompts (repeatable)")
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->capture_default_str();
    sub->callback([&line, options] { run_single(line, options, init_command); });
  }
  {
    auto options = std::make_shared<SchemaOptions>();
    CLI::App* sub = app.add_subcommand("schema", "JSON schema of the configuration, for editors");
    sub->add_flag("--reference", options->reference, "The keys' reference page (Markdown) instead");
    sub->callback([&line, options] { run_single(line, options, schema_command); });
  }
}

void add_text(CLI::App& app, CommandLine& line) {
  {
    auto options = std::make_shared<TokenizeOptions>();
    CLI::App* sub = app.add_subcommand("tokenize", "Standard input to token ids, or back");
    add_model(*sub, options->model, true);
    sub->add_flag("--decode", options->decode, "Ids to text");
    sub->callback([&line, options] { run_single(line, options, tokenize_command); });
  }
  {
    auto options = std::make_shared<DecodeOptions>();
    CLI::App* sub = app.add_subcommand("decode", "Answer one prompt");
    add_model(*sub, options->model, true);
    sub->add_option("--prompt", options->prompt, "User message")->required();
    sub->add_option("--system", options->system, "System message (default: the template's own)");
    add_template(*sub, options->chatml);
    sub->add_option("--template-argument", options->template_arguments,
                    "Variable of the chat template, as prompts.template_arguments has it "
                    "(repeatable)")
        ->type_name("NAME=VALUE")
        ->allow_extra_args(false);
    one_of(
        sub->add_option("--method", options->method,
                        "Decoding method (default: draft if the model has a drafter, else jacobi)"),
        decoding_method_names());
    add_settings(*sub, options->settings);
    add_sampling(*sub, options->settings);
    add_block_size(
        *sub, options->block_size, options->settings,
        "Tokens of a draft; by default, with jacobi and draft, those that an export names");
    sub->add_option("--max-new-tokens", options->max_new_tokens, "Length at most")
        ->check(positive_number())
        ->capture_default_str();
    sub->add_option("--seed", options->seed, "Of drafts and sampling")
        ->check(seed_number())
        ->capture_default_str();
    add_device(*sub, options->device);
    add_decode_weights(*sub, options->decode_weights);
    CLI::Option* const trace = sub->add_flag(
        "--trace", options->trace,
        "Show what each pass accepted, before the answer (NO_COLOR: without colours)");
    for (CLI::Option* const compares :
         {sub->add_flag("--compare", options->compare,
                        "Show ar's answer and this method's side by side, pass by pass"),
          sub->add_option("--compare-svg", options->compare_svg,
                          "The same as a picture that moves at the pace of both")
              ->type_name("FILE")}) {
      compares->excludes(trace);
    }
    sub->callback([&line, options] { run_single(line, options, decode_command); });
  }
}

void add_artefacts(CLI::App& app, CommandLine& line) {
  {
    auto options = std::make_shared<ExportOptions>();
    CLI::App* sub = app.add_subcommand("export", "Checkpoint to Hugging Face directory");
    sub->add_option("checkpoint", options->checkpoint, "Checkpoint directory")
        ->type_name("DIR")
        ->required();
    sub->add_option("out", options->out, "Directory to write")->type_name("DIR")->required();
    sub->add_option("--source", options->source,
                    "HF directory whose config and tokenizer files are kept")
        ->type_name("DIR");
    one_of(sub->add_option("--dtype", options->dtype, "Type of the weights"),
           {"bfloat16", "float32"})
        ->capture_default_str();
    sub->add_option("--interpolate", options->interpolate,
                    "Weights so far on the way from the source's to the checkpoint's: less gives "
                    "fewer tokens per forward and answers closer to the source's")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    sub->callback([&line, options] { run_single(line, options, export_command); });
  }
  {
    auto path = std::make_shared<std::filesystem::path>();
    CLI::App* sub =
        app.add_subcommand("verify", "Check any artefact: checksums, completeness, consistency");
    sub->add_option("path", *path, kArtefacts)->type_name("PATH")->required();
    sub->callback([&line, path] { run_single(line, path, verify_command); });
  }
  {
    struct Paths {
      std::filesystem::path first;
      std::optional<std::filesystem::path> second;
    };
    auto paths = std::make_shared<Paths>();
    CLI::App* sub = app.add_subcommand("inspect", "Describe any artefact, or compare two runs");
    sub->add_option("path", paths->first, kArtefacts)->type_name("PATH")->required();
    sub->add_option("other", paths->second,
                    "With it both are runs or evaluations, and are compared")
        ->type_name("PATH");
    sub->callback([&line, paths] {
      line.distributed = false;
      line.run = [paths](const MpiSession*) {
        return paths->second ? compare_command(paths->first, *paths->second)
                             : inspect_command(paths->first);
      };
    });
  }
}

void add_shell(CLI::App& app, CommandLine& line) {
  {
    auto shell = std::make_shared<std::string>();
    CLI::App* sub =
        app.add_subcommand("completion", "Completion of commands, options and keys for a shell");
    const auto shells = std::views::keys(completion_scripts());
    one_of(sub->add_option("shell", *shell, "Whose script is printed"),
           {shells.begin(), shells.end()})
        ->required();
    sub->callback([&line, shell] {
      line.distributed = false;
      line.run = [shell](const MpiSession*) {
        return print_document(completion_scripts().at(*shell));
      };
    });
  }
}

// Returns a parser that fills `line`, which must outlive it.
std::unique_ptr<CLI::App> make_parser(CommandLine& line) {
  auto parser = std::make_unique<CLI::App>(
      "Jacobi Forge: turns an autoregressive model into a causal parallel decoder.", "jforge");
  CLI::App& app = *parser;
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text);
  app.set_help_all_flag("--help-all", "Print the help of every command and exit");
  add_job(app, line, "run", "The whole pipeline: import, generate, train, export, evaluate, report",
          run_command);
  add_job(app, line, "pretrain", "Plain autoregressive training of a small base model",
          pretrain_command);
  add_job(app, line, "finetune", "Plain autoregressive training of an existing model",
          finetune_command);
  add_job(app, line, "import", "Prompts into the run's prompt store", import_command);
  add_job(app, line, "generate", "Trajectories of one round", generate_command);
  add_job(app, line, "train", "Distillation of one round", train_command);
  add_pilot(app, line);
  add_selftest(app, line);
  add_evaluate(app, line);
  add_tune(app, line);
  add_sweep(app, line);
  add_grade(app, line);
  add_config(app, line);
  add_text(app, line);
  add_artefacts(app, line);
  add_probe(app, line);
  add_shell(app, line);
  for (CLI::App* sub : app.get_subcommands(nullptr)) {
    if (sub->get_group() != kOfAllRanks) {
      sub->group(kOfOneProcess);
    }
  }
  return parser;
}

bool is_of_all_ranks(const CLI::App& app, const std::string& word) {
  return std::ranges::any_of(app.get_subcommands(nullptr), [&](const CLI::App* sub) {
    return sub->get_name() == word && sub->get_group() == kOfAllRanks;
  });
}

// Describes wrong first words, for which CLI11 only says that a command is missing.
std::optional<std::string> wrong_command(const CLI::App& app, int argc, char** argv) {
  const std::string program = app.get_parent() == nullptr ? "jforge" : "jforge " + app.get_name();
  if (argc < 2) {
    return fmt::format("a command is missing; {} --help lists them", program);
  }
  const std::string word = argv[1];
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    names.push_back(sub->get_name());
    if (word == sub->get_name()) {
      // Only probe has subcommands.
      return sub->get_subcommands(nullptr).empty() ? std::nullopt
                                                   : wrong_command(*sub, argc - 1, argv + 1);
    }
  }
  if (word.starts_with('-')) {
    const bool known = app.get_option_no_throw(word) != nullptr;
    return known ? std::nullopt
                 : std::optional(fmt::format("{} has no option {}; {} --help lists commands and "
                                             "options",
                                             program, word, program));
  }
  return fmt::format("{} has no command {}{} ({} --help lists them)", program, word,
                     did_you_mean(word, names), program);
}

const CLI::App& named_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
  }
  return *command;
}

// "jforge probe logits"
std::string whole_name(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  return (parent == nullptr ? "" : whole_name(*parent) + " ") + command.get_name();
}

// Names an unknown option and suggests a similar one.
std::string unknown_arguments(const CLI::App& app, const std::string& reason) {
  const CLI::App& command = named_command(app);
  const std::vector<std::string> extras = app.remaining(true);
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  const auto option =
      std::ranges::find_if(extras, [](const std::string& extra) { return extra.starts_with('-'); });
  if (option == extras.end()) {
    return reason;
  }
  return fmt::format("{} has no option {}{}", command.get_name(), *option,
                     did_you_mean(option->substr(0, option->find('=')), names));
}

// Explains CLI11's "Could not convert: --limit = many".
std::string not_converted(const std::string& reason) {
  constexpr std::string_view kTheirs = "Could not convert: ";
  return reason.starts_with(kTheirs)
             ? reason.substr(kTheirs.size()) + ": not a number, or one beyond the option's range"
             : reason;
}

}  // namespace

std::optional<std::string> asked_completions(int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "__complete") {
    return std::nullopt;
  }
  if (argc < 4 || std::string_view(argv[2]) != "--") {
    return "";
  }
  const std::vector<std::string> words(argv + 3, argv + argc);
  CommandLine unused;
  return completion_candidates(*make_parser(unused), words);
}

std::optional<CommandLine> parse_command_line(int argc, char** argv, ExitCode& exit_code,
                                              bool silent) {
  CommandLine line;
  const std::unique_ptr<CLI::App> parser = make_parser(line);
  CLI::App& app = *parser;
  // Only for a rank of a job, not for another program's rank that calls this one.
  silent = silent && (argc < 2 || argv[1][0] == '-' || is_of_all_ranks(app, argv[1]));
  std::ostringstream nowhere;
  std::ostream& out = silent ? nowhere : std::cout;
  std::ostream& err = silent ? nowhere : std::cerr;
  if (const std::optional<std::string> wrong = wrong_command(app, argc, argv)) {
    err << "jforge: " << *wrong << "\n";
    exit_code = ExitCode::usage;
    return std::nullopt;
  }
  const auto refuse = [&](const std::string& what) {
    err << "jforge: " << what << " (" << whole_name(named_command(app))
        << " --help lists its options)\n";
    exit_code = ExitCode::usage;
    return std::nullopt;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    return refuse(unknown_arguments(app, error.what()));
  } catch (const CLI::ConversionError& error) {
    return refuse(not_converted(error.what()));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      return refuse(error.what());
    }
    app.exit(error, out, err);
    exit_code = ExitCode::ok;
    return std::nullopt;
  }
  return line;
}

}  // namespace jforge
