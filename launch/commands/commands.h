#pragma once

/// The commands of the binary, one options struct and one function each. Functions throw the errors
/// of runtime/error.h; main turns those into exit codes.

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
  std::optional<int> planned_ranks;  ///< With dry_run: of the planned job, instead of this one's.
  std::string device_plan;  ///< With dry_run: a known device to plan for; empty: what is here.
  std::optional<std::int32_t> round;              ///< generate and train: this round alone.
  std::optional<std::int64_t> first_round_steps;  ///< Runs only the first round, for these steps.
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
/// Prints one table of what the base and these models reach on evaluate.tasks.
[[nodiscard]] ExitCode pilot_command(const PilotOptions& options, const MpiSession& session);

struct SelftestOptions {
  std::filesystem::path directory = "jforge-selftest";  ///< All ranks must see it.
};
/// The quickstart's pipeline in few steps, whose figures and checksums are checked. Removes
/// `directory`, which must be new, if all is well. Throws InternalError if a figure is wrong.
[[nodiscard]] ExitCode selftest_command(const SelftestOptions& options, const MpiSession& session);

struct EvaluateOptions {
  std::filesystem::path config;  ///< Optional: [model] and [evaluate] of a configuration.
  std::vector<std::string> overrides;
  std::filesystem::path model;
  std::vector<std::string> tasks;
  std::vector<std::string> methods;
  std::filesystem::path data;
  std::filesystem::path out;
  std::string name;  ///< Of the model in results; default: its directory's.
  std::optional<std::int64_t> block_size;
  std::optional<std::int64_t> max_new_tokens;
  std::optional<std::int32_t> batch_prompts;
  std::optional<std::string> prompt_style;
  std::optional<std::int64_t> limit;
};
[[nodiscard]] ExitCode evaluate_command(const EvaluateOptions& options, const MpiSession& session);

struct SweepOptions {
  std::filesystem::path config;  ///< [sweep], [evaluate] and [model] of a configuration.
  std::vector<std::string> overrides;
  std::filesystem::path model;
  std::filesystem::path out;
  std::string name;       ///< As in EvaluateOptions.
  bool roofline = false;  ///< Also measure latency against tokens decoded in parallel.
};
[[nodiscard]] ExitCode sweep_command(const SweepOptions& options, const MpiSession& session);

struct GradeOptions {
  std::string task;
  std::filesystem::path completions;  ///< JSON lines, plain or gzip.
  std::filesystem::path data;
  std::filesystem::path out;
  std::optional<std::int32_t> jobs;  ///< Programs at a time on this rank; default: its cores.
  bool allow_missing = false;        ///< Problems without a completion are left out.
};
[[nodiscard]] ExitCode grade_command(const GradeOptions& options, const MpiSession& session);

// ---- one process
struct ProbeOptions {
  std::filesystem::path model;
  std::filesystem::path tokens;  ///< logits, decode: IDS.json
  std::filesystem::path packed;  ///< loss: P.json
  std::filesystem::path pairs;   ///< likelihood: JSON lines of question and answer.
  bool chatml = false;           ///< likelihood: plain ChatML where the template is not understood.
  std::filesystem::path out;
  DeviceChoice device = DeviceChoice::automatic;
  WeightStorage decode_weights = WeightStorage::automatic;
  std::filesystem::path teacher;       ///< loss: a frozen teacher's model; empty: `model`.
  std::vector<std::string> overrides;  ///< loss: train.KEY=VALUE and rounds.1.mask=VALUE.
  std::string method = "ar";
  std::vector<std::string> settings;  ///< KEY=VALUE each, of the method.
  std::string window =
      "running";  ///< decode with jacobi, or "shrinking": as trajectories are made.
  std::int32_t block_size = 16;
  std::int64_t max_new_tokens = 64;
  std::uint64_t seed = 0;
  bool ignore_eos = false;
};
[[nodiscard]] ExitCode probe_logits_command(const ProbeOptions& options);
[[nodiscard]] ExitCode probe_loss_command(const ProbeOptions& options);
[[nodiscard]] ExitCode probe_likelihood_command(const ProbeOptions& options);
[[nodiscard]] ExitCode probe_decode_command(const ProbeOptions& options);

/// Writes a whole document to standard output; EnvironmentError when that cannot be done, since a
/// part of it would pass for the whole.
[[nodiscard]] ExitCode print_document(const std::string& text);

struct SchemaOptions {
  bool reference = false;  ///< The page launch/configs/REFERENCE.md instead of the JSON schema.
};
[[nodiscard]] ExitCode schema_command(const SchemaOptions& options);

struct InitOptions {
  std::filesystem::path config;  ///< File to write, which must not exist; empty: standard output.
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
  std::string method = "jacobi";
  std::vector<std::string> settings;  ///< KEY=VALUE each, of the method.
  std::optional<std::string> system;
  bool chatml = false;  ///< Plain ChatML where the template is missing or not understood.
  std::vector<std::string> template_arguments;  ///< NAME=VALUE each.
  std::int32_t block_size = 16;
  std::int64_t max_new_tokens = 256;
  std::uint64_t seed = 42;
  bool trace = false;
  std::filesystem::path trace_svg;  ///< Empty: none.
  bool compare = false;             ///< With method ar.
  std::filesystem::path compare_svg;
};
[[nodiscard]] ExitCode decode_command(const DecodeOptions& options);

struct ExportOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path out;
  std::filesystem::path
      source;  ///< HF directory whose config and tokenizer files are kept; default: the run's.
  std::string dtype = "bfloat16";
  /// α in [0, 1]: what is written is source + α · (checkpoint − source), weight by weight.
  double interpolate = 1;
};
[[nodiscard]] ExitCode export_command(const ExportOptions& options);

[[nodiscard]] ExitCode verify_command(const std::filesystem::path& path);
[[nodiscard]] ExitCode inspect_command(const std::filesystem::path& path);
/// How far the run in `directory` is: on a terminal refreshed until it ends or the process is
/// interrupted, else once. Throws DataError when there is no run.json.
[[nodiscard]] ExitCode top_command(const std::filesystem::path& directory);
/// Prints two runs or evaluations side by side (results/report/run_comparison.h).
[[nodiscard]] ExitCode compare_command(const std::filesystem::path& first,
                                       const std::filesystem::path& second);

}  // namespace jforge
