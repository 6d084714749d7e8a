#include "launch/command_line.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <memory>

#include "launch/config/job_fields.h"

namespace jforge {

namespace {

using Distributed = ExitCode (*)(const JobOptions&, const MpiSession&);

// Options outlive the parser inside the closure that runs the command.
template <class Options>
void run_single(CommandLine& line, std::shared_ptr<Options> options,
                ExitCode (*command)(const Options&)) {
  line.distributed = false;
  line.run = [options, command](const MpiSession*) { return command(*options); };
}

void add_device(CLI::App& sub, DeviceChoice& device) {
  std::map<std::string, DeviceChoice> choices;
  for (const auto& [choice, name] : kDeviceNames) {
    choices.emplace(name, choice);
  }
  sub.add_option_function<std::string>(
         "--device", [&device, choices](const std::string& name) { device = choices.at(name); },
         "auto | cpu | cuda")
      ->check(CLI::IsMember(choices).description(""))
      ->default_str("auto");
}

void add_job(CLI::App& app, CommandLine& line, const char* name, const char* help,
             Distributed command) {
  auto options = std::make_shared<JobOptions>();
  CLI::App* sub = app.add_subcommand(name, help);
  sub->add_option("config", options->config, "Configuration (TOML)")->required();
  sub->add_option("--set", options->overrides, "Override: section.key=value (repeatable)")
      ->take_all();
  sub->add_option("--resume", options->resume, "auto | never | PATH of a checkpoint")
      ->capture_default_str();
  sub->add_option("--accept-change", options->accept_changes,
                  "Go on although this identity key differs from the checkpoint's (repeatable)");
  sub->add_flag("--dry-run", options->dry_run,
                "Print the plan (memory, disk, steps, leases) and stop");
  if (std::string(name) == "generate" || std::string(name) == "train") {
    sub->add_option("--round", options->round, "Round, from 1")->required();
  }
  sub->add_option("--inject", line.inject)->group("");
  sub->callback([&line, options, command] {
    line.distributed = true;
    line.run = [options, command](const MpiSession* session) {
      return command(*options, *session);
    };
  });
}

void add_evaluate(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* sub =
      app.add_subcommand("evaluate", "Measure accuracy, tokens per forward and tokens per second");
  sub->add_option("config", options->config,
                  "Configuration whose [model] and [evaluate] are taken (optional)");
  sub->add_option("--set", options->overrides, "Override: section.key=value (repeatable)");
  sub->add_option("--model", options->model, "Hugging Face directory");
  sub->add_option("--tasks", options->tasks, "Tasks, separated by commas")->delimiter(',');
  sub->add_option("--methods", options->methods, "ar, jacobi")->delimiter(',');
  sub->add_option("--data", options->data,
                  "Directory with the benchmark files, or one task's JSONL");
  sub->add_option("--out", options->out, "Directory for the results");
  sub->add_option("--name", options->name, "The model's name in the results (its directory's)");
  sub->add_option("--block-size", options->block_size, "Of the Jacobi method");
  sub->add_option("--max-new-tokens", options->max_new_tokens, "Instead of the tasks' own");
  sub->add_option("--batch-prompts", options->batch_prompts,
                  "Problems decoded at once per rank; does not change results");
  sub->add_option("--prompt-style", options->prompt_style, "Of tasks that name none (TASK:STYLE)");
  sub->add_option("--limit", options->limit, "First so many problems only");
  sub->add_option("--inject", line.inject)->group("");
  sub->callback([&line, options] {
    line.distributed = true;
    line.run = [options](const MpiSession* session) {
      return evaluate_command(*options, *session);
    };
  });
}

void add_sweep(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<SweepOptions>();
  CLI::App* sub = app.add_subcommand(
      "sweep", "Evaluate a decoding method at every combination of some settings");
  sub->add_option("config", options->config, "Configuration with [sweep] and [evaluate]")
      ->required();
  sub->add_option("--set", options->overrides, "Override: section.key=value (repeatable)");
  sub->add_option("--model", options->model, "Hugging Face directory");
  sub->add_option("--out", options->out, "Directory for the results");
  sub->add_option("--name", options->name, "The model's name in the results (its directory's)");
  sub->add_flag("--roofline", options->roofline,
                "Also measure latency against tokens decoded in parallel");
  sub->add_option("--inject", line.inject)->group("");
  sub->callback([&line, options] {
    line.distributed = true;
    line.run = [options](const MpiSession* session) { return sweep_command(*options, *session); };
  });
}

void add_grade(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<GradeOptions>();
  CLI::App* sub = app.add_subcommand("grade", "Verdicts for existing completions, without a model");
  sub->add_option("--task", options->task, "Task, for instance humaneval_plus")->required();
  sub->add_option("--completions", options->completions,
                  "JSON lines with task_id and completion or solution")
      ->required();
  sub->add_option("--data", options->data, "Directory with the benchmark files, or the task's file")
      ->required();
  sub->add_option("--out", options->out, "Verdict file to write")->required();
  sub->add_option("--jobs", options->jobs, "Programs at a time on every rank (its cores)")
      ->check(CLI::PositiveNumber);
  sub->add_flag("--allow-missing", options->allow_missing,
                "Grade what is there when problems have no completion");
  sub->add_option("--inject", line.inject)->group("");
  sub->callback([&line, options] {
    line.distributed = true;
    line.run = [options](const MpiSession* session) { return grade_command(*options, *session); };
  });
}

void add_probe(CLI::App& app, CommandLine& line) {
  CLI::App* probe =
      app.add_subcommand("probe", "Values for checking against other implementations");
  probe->require_subcommand(1);
  const auto add = [&](const char* name, const char* help,
                       ExitCode (*command)(const ProbeOptions&)) {
    auto options = std::make_shared<ProbeOptions>();
    CLI::App* sub = probe->add_subcommand(name, help);
    sub->add_option("--model", options->model, "Hugging Face directory")->required();
    sub->add_option("--out", options->out, "Result file")->required();
    add_device(*sub, options->device);
    sub->callback([&line, options, command] { run_single(line, options, command); });
    return std::pair{sub, options};
  };
  const auto [logits, logits_options] =
      add("logits", "Logits of token sequences", probe_logits_command);
  logits->add_option("--tokens", logits_options->tokens, "IDS.json")->required();
  const auto [loss, loss_options] =
      add("loss", "Losses and gradients of a packed sample", probe_loss_command);
  loss->add_option("--packed", loss_options->packed, "P.json")->required();
  loss->add_option("--mask", loss_options->mask, "noise | window | clean")->capture_default_str();
  loss->add_option("--reduction", loss_options->reduction, "token_mean | paper | repo")
      ->capture_default_str();
  loss->add_option("--kept", loss_options->kept, "from_first_difference | all")
      ->capture_default_str();
  loss->add_option("--ar-weight", loss_options->ar_weight, "Weight of the AR loss")
      ->capture_default_str();
  const auto [decode, decode_options] =
      add("decode", "Tokens, forwards and states of decoding", probe_decode_command);
  decode->add_option("--tokens", decode_options->tokens, "IDS.json")->required();
  decode->add_option("--method", decode_options->method, "ar | jacobi")->required();
  decode->add_option("--window", decode_options->window, "shrinking | running")
      ->capture_default_str();
  decode->add_option("--block-size", decode_options->block_size, "n")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  decode->add_option("--max-new-tokens", decode_options->max_new_tokens, "T")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  decode->add_option("--seed", decode_options->seed, "Of the drafts")->capture_default_str();
  decode->add_flag("--ignore-eos", decode_options->ignore_eos, "Do not stop at end of sequence");
}

void add_text(CLI::App& app, CommandLine& line) {
  {
    auto options = std::make_shared<TokenizeOptions>();
    CLI::App* sub = app.add_subcommand("tokenize", "Standard input to token ids, or back");
    sub->add_option("--model", options->model, "Hugging Face directory")->required();
    sub->add_flag("--decode", options->decode, "Ids to text");
    sub->callback([&line, options] { run_single(line, options, tokenize_command); });
  }
  {
    auto options = std::make_shared<DecodeOptions>();
    CLI::App* sub = app.add_subcommand("decode", "Answer one prompt");
    sub->add_option("--model", options->model, "Hugging Face directory")->required();
    sub->add_option("--prompt", options->prompt, "User message")->required();
    sub->add_option("--system", options->system, "System message (default: the template's own)");
    sub->add_option("--method", options->method, "ar | jacobi")->capture_default_str();
    sub->add_option("--block-size", options->block_size, "n")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    sub->add_option("--max-new-tokens", options->max_new_tokens, "T")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    sub->add_option("--seed", options->seed, "Of the drafts")->capture_default_str();
    add_device(*sub, options->device);
    sub->add_flag("--trace", options->trace, "Show the trajectory of every block");
    sub->callback([&line, options] { run_single(line, options, decode_command); });
  }
}

void add_artefacts(CLI::App& app, CommandLine& line) {
  {
    auto options = std::make_shared<ExportOptions>();
    CLI::App* sub = app.add_subcommand("export", "Checkpoint to Hugging Face directory");
    sub->add_option("checkpoint", options->checkpoint, "Checkpoint directory")->required();
    sub->add_option("out", options->out, "Directory to write")->required();
    sub->add_option("--source", options->source,
                    "HF directory whose config and tokenizer files are kept");
    sub->add_option("--dtype", options->dtype, "bfloat16 | float32")->capture_default_str();
    sub->callback([&line, options] { run_single(line, options, export_command); });
  }
  const auto add_path = [&](const char* name, const char* help,
                            ExitCode (*command)(const std::filesystem::path&)) {
    auto path = std::make_shared<std::filesystem::path>();
    CLI::App* sub = app.add_subcommand(name, help);
    sub->add_option("path", *path, "Prompt store, trajectories, checkpoint, model or run directory")
        ->required();
    sub->callback([&line, path, command] { run_single(line, path, command); });
  };
  add_path("verify", "Check any artefact: checksums, completeness, consistency", verify_command);
  {
    struct Paths {
      std::filesystem::path first;
      std::optional<std::filesystem::path> second;
    };
    auto paths = std::make_shared<Paths>();
    CLI::App* sub = app.add_subcommand("inspect", "Describe any artefact, or compare two runs");
    sub->add_option("path", paths->first,
                    "Prompt store, trajectories, checkpoint, model or run directory")
        ->required();
    sub->add_option("other", paths->second,
                    "With it both are runs or evaluations, and are compared");
    sub->callback([&line, paths] {
      line.distributed = false;
      line.run = [paths](const MpiSession*) {
        return paths->second ? compare_command(paths->first, *paths->second)
                             : inspect_command(paths->first);
      };
    });
  }
}

}  // namespace

std::optional<CommandLine> parse_command_line(int argc, char** argv, ExitCode& exit_code) {
  CommandLine line;
  CLI::App app("Jacobi Forge: turns an autoregressive model into a causal parallel decoder.",
               "jforge");
  app.require_subcommand(1);
  app.set_version_flag("--version", JFORGE_VERSION);
  add_job(app, line, "run", "The whole pipeline: import, generate, train, export, evaluate, report",
          run_command);
  add_job(app, line, "pretrain", "Plain autoregressive training of a small base model",
          pretrain_command);
  add_job(app, line, "import", "Prompts into the run's prompt store", import_command);
  add_job(app, line, "generate", "Trajectories of one round", generate_command);
  add_job(app, line, "train", "Distillation of one round", train_command);
  add_evaluate(app, line);
  add_sweep(app, line);
  add_grade(app, line);
  add_text(app, line);
  add_artefacts(app, line);
  add_probe(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == 0;
    if (asked) {
      app.exit(error);
    } else {
      std::cerr << "jforge: " << error.what() << " (jforge --help lists the commands)\n";
    }
    exit_code = asked ? ExitCode::ok : ExitCode::usage;
    return std::nullopt;
  }
  return line;
}

}  // namespace jforge
