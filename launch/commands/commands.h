#pragma once

/// The commands: options and a function each, which throws the errors of runtime/error.h.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launch/config/config_reference.h"
#include "model/kernels/device_choice.h"
#include "model/kernels/kernel_set.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"

namespace jforge {

// ---- configuration-driven, distributed
struct JobOptions {
  std::filesystem::path config;
  std::vector<std::string> overrides;       ///< --set section.key=value
  std::string resume = "auto";              ///< auto | never | PATH of a checkpoint
  std::vector<std::string> accept_changes;  ///< --accept-change KEY
  bool dry_run = false;
  std::optional<int> planned_ranks;   ///< With dry_run: ranks of the planned job.
  std::string device_plan;            ///< With dry_run: a known device; empty: this machine.
  std::optional<std::int32_t> round;  ///< generate and train: only this round.
  std::pair<int, int> part{1, 1};     ///< generate: as in SweepOptions.
  std::optional<std::int64_t> first_round_steps;  ///< Runs only the first round.
  std::string inject;                             ///< Faults for tests.
};
[[nodiscard]] ExitCode run_command(const JobOptions& options, const MpiSession& session);
[[nodiscard]] ExitCode import_command(const JobOptions& options, const MpiSession& session);
[[nodiscard]] ExitCode generate_command(const JobOptions& options, const MpiSession& session);
[[nodiscard]] ExitCode train_command(const JobOptions& options, const MpiSession& session);
[[nodiscard]] ExitCode pretrain_command(const JobOptions& options, const MpiSession& session);
[[nodiscard]] ExitCode finetune_command(const JobOptions& options, const MpiSession& session);

struct PilotOptions {
  std::filesystem::path config;
  std::vector<std::string> overrides;
  std::vector<std::string> recipes = {"jacobi-forcing", "clean-context"};
  std::int64_t steps = 300;
};
/// Trains the first round with each recipe on the same trajectories, under run.directory/pilot.
/// Prints a table of the models' results on evaluate.tasks.
[[nodiscard]] ExitCode pilot_command(const PilotOptions& options, const MpiSession& session);

struct SelftestOptions {
  std::filesystem::path directory = "jforge-selftest";  ///< All ranks must see it.
};
/// Runs the quickstart in few steps and checks figures and checksums. `directory` must be new;
/// success removes it. Throws InternalError if a figure is wrong.
[[nodiscard]] ExitCode selftest_command(const SelftestOptions& options, const MpiSession& session);

struct EvaluateOptions {
  std::filesystem::path config;  ///< Optional: [model] and [evaluate].
  std::vector<std::string> overrides;
  std::filesystem::path model;
  std::vector<std::string> tasks;
  std::vector<std::string> methods;
  std::filesystem::path data;
  std::filesystem::path out;
  std::string name;  ///< In results; default: the directory's.
  std::optional<std::int64_t> max_new_tokens;
  std::optional<std::int32_t> batch_prompts;
  std::optional<std::string> prompt_style;
  std::optional<std::int64_t> limit;
};
[[nodiscard]] ExitCode evaluate_command(const EvaluateOptions& options, const MpiSession& session);

struct TuneOptions {
  EvaluateOptions evaluate;  ///< Without `name`; `batch_prompts` is 1 by default.
  std::string prompts;       ///< Pattern of files as in prompts.files, instead of tasks.
};
/// Measures decoding settings, prints a table and writes the fastest into the model's
/// jacobi_decoding.json.
[[nodiscard]] ExitCode tune_command(const TuneOptions& options, const MpiSession& session);

struct SweepOptions {
  std::filesystem::path config;  ///< [sweep], [evaluate] and [model].
  std::vector<std::string> overrides;
  std::filesystem::path model;
  std::filesystem::path out;
  std::string name;                ///< As in EvaluateOptions.
  std::pair<int, int> part{1, 1};  ///< This job's, from 1, and their number.
};
[[nodiscard]] ExitCode sweep_command(const SweepOptions& options, const MpiSession& session);

struct GradeOptions {
  std::string task;
  std::filesystem::path completions;  ///< JSON lines, plain or gzip.
  std::filesystem::path data;
  std::filesystem::path out;
  std::optional<std::int32_t> jobs;  ///< Concurrent programs of this rank; default: its cores.
  bool allow_missing = false;        ///< Skip problems without a completion.
};
[[nodiscard]] ExitCode grade_command(const GradeOptions& options, const MpiSession& session);

// ---- one process
struct ProbeOptions {
  std::filesystem::path model;
  std::filesystem::path tokens;  ///< logits, decode: IDS.json
  std::filesystem::path packed;  ///< loss: P.json
  std::filesystem::path pairs;   ///< likelihood: JSON lines of question and answer.
  bool chatml = false;           ///< likelihood: as in DecodeOptions.
  std::filesystem::path out;
  DeviceChoice device = DeviceChoice::automatic;
  WeightStorage decode_weights = WeightStorage::automatic;
  std::filesystem::path teacher;       ///< loss: a frozen teacher; empty: `model`.
  std::vector<std::string> overrides;  ///< loss: train.KEY=VALUE and rounds.1.mask=VALUE.
  std::string method = "ar";
  std::vector<std::string> settings;  ///< KEY=VALUE of the method.
  std::string window = "running";     ///< decode with jacobi; "shrinking": as for trajectories.
  std::int32_t block_size = 16;
  std::int64_t max_new_tokens = 64;
  std::uint64_t seed = 0;
  bool ignore_eos = false;
};
[[nodiscard]] ExitCode probe_logits_command(const ProbeOptions& options);
[[nodiscard]] ExitCode probe_loss_command(const ProbeOptions& options);
[[nodiscard]] ExitCode probe_likelihood_command(const ProbeOptions& options);
[[nodiscard]] ExitCode probe_decode_command(const ProbeOptions& options);

/// Prints `text`. Throws EnvironmentError on failure: a part would pass for the whole.
[[nodiscard]] ExitCode print_document(const std::string& text);

struct SchemaOptions {
  bool reference = false;  ///< Prints REFERENCE.md instead of the JSON schema.
};
[[nodiscard]] ExitCode schema_command(const SchemaOptions& options);

struct InitOptions {
  std::filesystem::path config;  ///< New file to write; empty: standard output.
  ConfigStart start;
};
[[nodiscard]] ExitCode init_command(const InitOptions& options);

struct TokenizeOptions {
  std::filesystem::path model;
  bool decode = false;
};
[[nodiscard]] ExitCode tokenize_command(const TokenizeOptions& options);

struct DecodeOptions {
  std::filesystem::path model;
  DeviceChoice device = DeviceChoice::automatic;
  WeightStorage decode_weights = WeightStorage::automatic;
  std::string prompt;
  std::string method;                 ///< Empty: draft if the model has a drafter, else jacobi.
  std::vector<std::string> settings;  ///< KEY=VALUE of the method.
  std::optional<std::string> system;
  bool chatml = false;                          ///< If the template is missing or not understood.
  std::vector<std::string> template_arguments;  ///< NAME=VALUE.
  std::int32_t block_size = 16;
  std::int64_t max_new_tokens = 256;
  std::uint64_t seed = 42;
  bool trace = false;
  bool compare = false;  ///< With method ar.
  std::filesystem::path compare_svg;
};
[[nodiscard]] ExitCode decode_command(const DecodeOptions& options);

struct ExportOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path out;
  std::filesystem::path source;  ///< HF directory of config and tokenizer; default: the run's.
  std::string dtype = "bfloat16";
  /// α in [0, 1]: writes source + α · (checkpoint − source).
  double interpolate = 1;
};
[[nodiscard]] ExitCode export_command(const ExportOptions& options);

[[nodiscard]] ExitCode verify_command(const std::filesystem::path& path);
[[nodiscard]] ExitCode inspect_command(const std::filesystem::path& path);
/// Compares two runs or evaluations (results/report/report.h).
[[nodiscard]] ExitCode compare_command(const std::filesystem::path& first,
                                       const std::filesystem::path& second);

}  // namespace jforge
