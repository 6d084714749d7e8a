#include "launch/config/job_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace jforge {

// Found by FieldList::add through SweepAxis's namespace.
std::optional<std::string> read_value(const toml::node& node, SweepAxis& axis) {
  const toml::array* array = node.as_array();
  const std::string expected =
      std::string("an array, each element ") +
      (std::holds_alternative<double>(axis.kind) ? "a number" : "a whole number");
  if (array == nullptr) {
    return expected;
  }
  std::vector<DecodingValue> values;
  for (const toml::node& element : *array) {
    DecodingValue value = axis.kind;
    if (read_value(element, value)) {
      return expected;
    }
    values.push_back(value);
  }
  axis.values = std::move(values);
  return std::nullopt;
}

std::optional<std::string> write_value(const SweepAxis& axis) {
  std::string text = "[";
  for (const DecodingValue& value : axis.values) {
    text += (text.size() == 1 ? "" : ", ") + write_value(value).value_or("");
  }
  return text + "]";
}

std::string value_schema(const SweepAxis& axis) {
  return R"({"type": "array", "items": )" + value_schema(axis.kind) + "}";
}

namespace {

constexpr FieldKind kIdentity = FieldKind::identity;
constexpr FieldKind kOperational = FieldKind::operational;
const Commands kRun = {ConfigFor::run};
constexpr KeyChange kFromImport = {.fixed_from = FixedFrom::import};
constexpr KeyChange kOfLoss = {.other_loss = true};

constexpr EnumName<ComputeType> kComputeTypes[] = {{ComputeType::automatic, "auto"},
                                                   {ComputeType::float32, "float32"},
                                                   {ComputeType::bfloat16, "bfloat16"}};
constexpr EnumName<ComputeType> kExportTypes[] = {{ComputeType::float32, "float32"},
                                                  {ComputeType::bfloat16, "bfloat16"}};
constexpr EnumName<PromptSample> kSamples[] = {{PromptSample::first, "first"},
                                               {PromptSample::random, "random"}};
constexpr EnumName<StoredStates> kStoredStates[] = {{StoredStates::all, "all"},
                                                    {StoredStates::selected, "selected"}};
constexpr EnumName<GenerationMethod> kGenerationMethods[] = {
    {GenerationMethod::sequential, "sequential"}, {GenerationMethod::parallel, "parallel"}};
constexpr EnumName<ScheduleKind> kSchedules[] = {{ScheduleKind::linear, "linear"},
                                                 {ScheduleKind::random, "random"},
                                                 {ScheduleKind::reverse, "reverse"}};
constexpr EnumName<MaskKind> kMasks[] = {{MaskKind::noise, "noise"},
                                         {MaskKind::window, "window"},
                                         {MaskKind::clean, "clean"},
                                         {MaskKind::mixed, "mixed"}};
constexpr EnumName<KeptOffsets> kKept[] = {
    {KeptOffsets::from_first_difference, "from_first_difference"}, {KeptOffsets::all, "all"}};
constexpr EnumName<TeacherKind> kTeachers[] = {{TeacherKind::detached, "detached"},
                                               {TeacherKind::frozen, "frozen"}};
constexpr EnumName<ArLoss> kArLosses[] = {{ArLoss::cross_entropy, "cross_entropy"},
                                          {ArLoss::distillation, "distillation"}};
constexpr EnumName<CollapseAction> kCollapseActions[] = {{CollapseAction::warn, "warn"},
                                                         {CollapseAction::stop, "stop"}};
constexpr EnumName<CollectivesChoice> kCollectives[] = {{CollectivesChoice::automatic, "auto"},
                                                        {CollectivesChoice::nccl, "nccl"},
                                                        {CollectivesChoice::mpi, "mpi"}};
constexpr EnumName<OptimizerStart> kOptimizerStarts[] = {{OptimizerStart::fresh, "fresh"},
                                                         {OptimizerStart::carry, "carry"}};
constexpr EnumName<Recipe> kRecipes[] = {{Recipe::none, "none"},
                                         {Recipe::jacobi_forcing, "jacobi-forcing"},
                                         {Recipe::authors, "authors"},
                                         {Recipe::clean_context, "clean-context"}};
constexpr EnumName<Drafter> kDrafters[] = {
    {Drafter::none, "none"}, {Drafter::adapter, "adapter"}, {Drafter::head, "head"}};
constexpr EnumName<Compat> kCompat[] = {
    {Compat::none, "none"}, {Compat::repo, "repo"}, {Compat::paper, "paper"}};

void add_run(FieldList& fields, RunSettings& run) {
  fields.in("run");
  fields.add("directory", run.directory, kOperational,
             "Required. Where the run writes; all ranks must see it. Relative paths, here and "
             "below, start where `jforge` is started");
  fields.add("seed", run.seed, kIdentity, "Of every random choice");
  fields.last().change = kFromImport;
  fields.add("heartbeat_limit_seconds", run.heartbeat_limit_seconds, kOperational,
             "Ends the job (exit 70) if a rank is silent for longer; at least 2");
  fields.add("hang_limit_seconds", run.hang_limit_seconds, kOperational,
             "Ends the job (exit 70) if a phase makes no progress for longer; at least 10. Prompts "
             "without progress for so long are given to another rank. MPI's start and end have "
             "their own limit: 600 s, or `JFORGE_MPI_LIMIT_SECONDS` in the environment");
  fields.add("stop_seconds", run.stop_seconds, kOperational,
             "Time that running answers have to finish after a stop");
}

void add_decode_weights(FieldList& fields, ModelSettings& model) {
  fields.add_enum(
      "decode_weights", model.decode_weights, kIdentity, kWeightStorageNames,
      "How generation and evaluation hold the matrices, which every decoded token reads whole. "
      "`\"auto\"`: bfloat16 where that loses nothing (a published or exported bfloat16 model), "
      "else "
      "float32; on CUDA, unless `compute` is `\"float32\"`, bfloat16_arithmetic. `\"float32\"`: "
      "the "
      "same results, more memory; a run may change between these two. `\"bfloat16\"`: rounded "
      "where "
      "they hold more (after training), which changes some tokens. `\"bfloat16_arithmetic\"`: "
      "products of bfloat16, rounding activations too: faster for many rows (on CUDA by tensor "
      "cores, on processors with AMX or AMD's AVX-512 BF16; others are warned of). `\"int8\"`, CPU "
      "only: half of bfloat16's bytes and nearly half its time a token, but more tokens change. On "
      "CUDA keys and values are bfloat16 beside both kinds of bfloat16. Methods always agree with "
      "greedy decoding");
  fields.last().same_as_before({"auto", "float32"});
  fields.last().applies_to = kRun;
  fields.last().change.fixed_from = FixedFrom::never;
}

void add_device(FieldList& fields, DeviceChoice& device) {
  fields.add_enum(
      "device", device, kOperational, kDeviceNames,
      "`\"cpu\"`, `\"cuda\"` (needs a build with `-DJFORGE_CUDA=ON` and a device; exit 4 without) "
      "or `\"auto\"`: CUDA where both are there, else the CPU; ranks that find different kinds "
      "refuse (exit 4). Rank r of a host takes device r mod their number");
  fields.last().applies_to = kAllCommands;
}

void add_model(FieldList& fields, ModelSettings& model) {
  fields.in("model", {ConfigFor::run, ConfigFor::finetune}, kFromImport);
  fields.add("source", model.source, kOperational,
             "Required. Hugging Face directory with weights and tokenizer (its content is "
             "identity)");  // its content is hashed into the identity
  fields.add_enum(
      "compute", model.compute, kIdentity, kComputeTypes,
      "Type that training computes in. `\"auto\"`: bfloat16 on CUDA, else float32; the resolved "
      "file has what was chosen. With `\"bfloat16\"` weights and activations are rounded to it (a "
      "CPU whose products of bfloat16 are slow gives a warning); "
      "masters, moments, gradients of parameters, losses and sums stay float32");
  add_device(fields, model.device);
  add_decode_weights(fields, model);
  fields.add_enum("export_as", model.export_as, kOperational, kExportTypes,
                  "Type of the exported weights: `\"bfloat16\"` or `\"float32\"`");
}

void add_prompts(FieldList& fields, PromptImportConfig& prompts) {
  fields.in("prompts", kRun, kFromImport);
  fields.add("files", prompts.files, kIdentity,
             "Required. Paths or glob patterns (`**`: any directories): JSON lines, one JSON "
             "array, or CSV with a header, plain, `.gz`, `.bz2` or `.zst`; or Parquet, for which "
             "`python3` needs pyarrow");
  fields.add("field", prompts.field, kIdentity,
             "Where the text or the list of chat messages is: a field name, or a JSON pointer such "
             "as `\"/conversations/0/value\"`; `!` enters a text that itself holds JSON; `\"A | "
             "B\"` takes the first that is there and not null");
  fields.last().unless = "prompts.text";
  fields.add("text", prompts.text, kIdentity,
             "Instead of `field`: a text made of fields, as `\"{instruction} {input}\"`; `{{` and "
             "`}}` are braces");
  fields.last().unset_as_before();
  fields.add("answer_field", prompts.answer_field, kIdentity,
             "Where the reference answer is, a text or a number, written as `field`; for "
             "`train.filter_task`. A record may lack it. Default: none are stored");
  fields.add("keep_if", prompts.keep_if, kIdentity,
             "Conditions `\"PATH OP VALUE\"`, all must hold; OP is `>=` `<=` `>` `<` `=` `!=`. "
             "Compared as numbers when either side is one");
  fields.add("order_by", prompts.order_by, kIdentity,
             "Path to sort by; `\"-PATH\"` from the greatest down. Records without it come last");
  fields.add_enum("sample", prompts.sample, kIdentity, kSamples,
                  "Prompts taken if there are more than `limit`: the `\"first\"`, or a seeded "
                  "`\"random\"` choice");
  fields.add("system", prompts.system, kIdentity,
             "System message. Default: the one in the model's own chat template");
  fields.add("template", prompts.chat_template, kIdentity,
             "`\"chatml\"` forces plain ChatML when the model has no template, or one that is not "
             "understood, which is refused otherwise; the tokenizer must have its tokens");
  fields.add(
      "template_arguments", prompts.template_arguments, kIdentity,
      "Variables of the chat template, of evaluation too, such as `{ enable_thinking = true, "
      "date_string = \"1 Jan 2026\" }`: `true`, `false`, a whole number or a text each, as further "
      "arguments of transformers' `apply_chat_template`. `strftime_now = \"2026-01-31\"` is the "
      "day that a template's `strftime_now()` prints, at midnight. One that the template does not "
      "name is refused. Default: `enable_thinking` is false, and there is no `strftime_now`");
  fields.last().unset_as_before();
  fields.add("limit", prompts.limit, kIdentity, "Prompts to keep at most");
  fields.add("max_prompt_tokens", prompts.max_prompt_tokens, kIdentity,
             "Longer prompts, template included, are dropped");
  fields.add("max_bad_fraction", prompts.max_bad_fraction, kOperational,
             "A larger share of unreadable records, from 100 records on, stops the import (exit "
             "3); 0: a single one does");
}

void add_generate(FieldList& fields, GenerateConfig& generate) {
  fields.in("generate", kRun);
  fields.add_enum("method", generate.method, kIdentity, kGenerationMethods,
                  "How the states are computed; they are the same. `\"sequential\"`: block after "
                  "block. `\"parallel\"`: the answer first, then all its blocks at once, each "
                  "until the state that the noise schedule asks for has passed: faster with larger "
                  "blocks and `store_states = \"selected\"`, slower with `\"all\"`");
  fields.last().same_as_before({"sequential"});
  fields.add("max_new_tokens", generate.max_new_tokens, kIdentity,
             "Tokens of an answer at most, rounded up to whole blocks");
  fields.add("batch_prompts", generate.batch_prompts, kOperational,
             "Prompts decoded at once per rank, at most; changes speed and memory, never results");
  fields.add("cache_mb", generate.cache_mb, kOperational,
             "Key/value cache of a rank, in MB. A prompt begins when the cache has room for it and "
             "its longest answer. 0: room for `batch_prompts` of the prompts");
  fields.add_enum("store_states", generate.store_states, kIdentity, kStoredStates,
                  "`\"selected\"`: the scheduled state and the fixed point of each block; "
                  "`\"all\"`: every state");
  fields.add("prompts_per_lease", generate.prompts_per_lease, kOperational,
             "Prompts leased to a rank at once, at most; fewer towards the end, for slow ranks, "
             "and if they would take over a minute. A rank that dies loses those not committed");
}

void add_rounds(FieldList& fields, std::vector<RoundSettings>& rounds) {
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    RoundSettings& round = rounds[i];
    const std::string section = "rounds." + std::to_string(i + 1);
    fields.in(section, kRun, kOfLoss);
    fields.add("block_size", round.block_size, kIdentity,
               "n: tokens drafted and corrected together");
    fields.add("noise_window", round.noise_window, kIdentity,
               "w: blocks over which the noise of the schedule runs through its range");
    fields.add_enum("schedule", round.schedule, kIdentity, kSchedules,
                    "Noise from block to block: `\"random\"` is drawn, `\"linear\"` rises over the "
                    "window (the paper), `\"reverse\"` falls");
    fields.add("drop_initial_state", round.drop_initial_state, kIdentity,
               "If true, the schedule never takes a block's initial draft, whose tokens are drawn "
               "at random: the authors' code records none, and `train.compat` \"repo\" takes none");
    fields.last().same_results.emplace_back("false");
    fields.add_enum(
        "mask", round.mask, kIdentity, kMasks,
        "Blocks that a noisy block sees before it: `\"clean\"` clean ones (CLLM), `\"noise\"` all "
        "noisy ones (the paper), `\"window\"` those of its window and clean ones before, "
        "`\"mixed\"` noisy ones in every other sample, clean ones in the rest");
    fields.in(section, kRun);
    fields.add("epochs", round.epochs, kIdentity,
               "Length of the training in passes over the prompts; an incomplete last batch is "
               "neither generated nor trained …");
    fields.add("steps", round.steps, kIdentity,
               "… or in optimizer steps. One of the two is required");
    fields.add("learning_rate", round.learning_rate, kIdentity,
               "Instead of `train.learning_rate` in this round");
    fields.add_enum(
        "optimizer", round.optimizer, kIdentity, kOptimizerStarts,
        "Adam's moments at the round's start: `\"fresh\"` zero, `\"carry\"` those the round before "
        "ended with, with their update count; warm-up and cosine begin anew either way");
  }
}

// Rates, batches and AdamW.
void add_optimizer(FieldList& fields, TrainConfig& train) {
  fields.add("learning_rate", train.learning_rate, kIdentity, "Peak, after the warm-up");
  fields.add("minimum_rate_ratio", train.minimum_rate_ratio, kIdentity,
             "The cosine ends at `learning_rate` times this");
  fields.add("warmup_ratio", train.warmup_ratio, kIdentity,
             "Share of a round's steps with a rising rate");
  fields.add("batch_samples", train.batch_samples, kIdentity,
             "Samples of one step, over all ranks");
  fields.last().change.fixed_from = FixedFrom::round;
  fields.add(
      "tokens_per_rank", train.tokens_per_rank, kOperational,
      "Packed rows of one micro-batch at most; the longest sample (prompt + 2 × answer) must fit");
  fields.add("gradient_norms_every", train.gradient_norms_every, kOperational,
             "Steps between measurements of the gradient norm of each of the two loss terms "
             "(`consistency_gradient_norm`, `ar_gradient_norm`: mean over rank 0's first "
             "micro-batch), from step 1; each costs two more backward passes over it; 0 = never");
  fields.add("beta1", train.optimizer.beta1, kIdentity, "AdamW");
  fields.add("beta2", train.optimizer.beta2, kIdentity, "AdamW");
  fields.add("epsilon", train.optimizer.epsilon, kIdentity, "AdamW");
  fields.add("weight_decay", train.optimizer.weight_decay, kIdentity,
             "Decoupled, on matrices only");
  fields.add("clip_norm", train.optimizer.clip_norm, kIdentity,
             "Largest gradient norm; 0 turns clipping off");
}

void add_losses(FieldList& fields, TrainConfig& train) {
  fields.in("train", kAllCommands, kOfLoss);
  fields.add("ar_weight", train.ar_weight, kIdentity,
             "Weight of the autoregressive loss. Larger keeps accuracy, smaller gains speed");
  fields.add("train_prompt", train.train_prompt, kIdentity,
             "Whether the autoregressive loss covers the prompt as well");
  fields.in("train", kRun, kOfLoss);
  fields.add("consistency_weight", train.consistency_weight, kIdentity,
             "Weight of the consistency loss; 0 is plain fine-tuning on the model's own answers");
  fields.add_enum(
      "kept", train.kept, kIdentity, kKept,
      "Offsets with a consistency target: those from the first wrong token on, or `\"all\"`");
  fields.add("consistency_decay", train.consistency_decay, kIdentity,
             "Factor γ between the weights of neighbouring offsets of a block, above 0 and at most "
             "1. Below 1 the first tokens after the right ones count most, because decoding "
             "accepts no others without them");
  fields.last().same_as_before(1.0);
  fields.add_enum(
      "teacher", train.teacher, kIdentity, kTeachers,
      "Model whose predictions at the clean tokens are the consistency targets: `\"detached\"` the "
      "present one, `\"frozen\"` the one that the round began with (one more copy of the weights, "
      "and a forward pass over prompt and clean tokens)");
  fields.add_enum(
      "ar_loss", train.ar_loss, kIdentity, kArLosses,
      "The autoregressive loss: `\"cross_entropy\"` of the answer's tokens, or `\"distillation\"`, "
      "the divergence from what the frozen teacher predicts at each of them, which keeps the model "
      "close to the one that it comes from (needs `teacher = \"frozen\"`)");
  fields.last().same_as_before({"cross_entropy"});
}

void add_spike_guard(FieldList& fields, TrainConfig& train) {
  fields.add("spike_guard_ratio", train.spike_guard.ratio, kIdentity,
             "Updates are left out, on all ranks, when the loss exceeds this times its median over "
             "the last 32 steps that were not; greater than 1, for example 4. 0: no guard. More "
             "than 8 in a row end the run (exit 5). Metrics lines then have `skipped`, "
             "`skipped_steps` and `spike_reference`");
}

// Checks of a few answers in the middle of training.
void add_checks(FieldList& fields, TrainConfig& train) {
  fields.in("train", kRun);
  fields.add("collapse_check_every", train.collapse.check_every, kOperational,
             "Steps between checks of eight greedy answers of up to 128 tokens for repetition. "
             "Metrics lines then have `repetition` (seq-rep-4: share of repeated 4-grams) and "
             "`distinct` (distinct-1: share of distinct tokens), means over answers; 0 = never");
  fields.add("collapse_threshold", train.collapse.threshold, kOperational,
             "Mean seq-rep-4 above which the model counts as collapsed");
  fields.add_enum("collapse_action", train.collapse.action, kOperational, kCollapseActions,
                  "If it has collapsed: `\"warn\"` writes a line in the log, `\"stop\"` ends the "
                  "run (exit 5) without saving that step");
  fields.add("early_stop_every", train.early_stop.every, kIdentity,
             "Steps between checks on held-out problems (`held_out_tpf`, `held_out_accuracy` in "
             "metrics lines); a round ends early, with its last checkpoint, when neither gains a "
             "hundredth any more; 0 = never. Tokens per forward are those of Jacobi decoding with "
             "the round's block size; tasks whose grading runs programs have no accuracy. Answers "
             "are as long as the task's own limit and `evaluate.max_new_tokens` allow");
  fields.add("early_stop_task", train.early_stop.task, kIdentity,
             "Benchmark of these held-out problems, as in `evaluate.tasks`");
  fields.add(
      "early_stop_data", train.early_stop.data, kOperational,
      "File of held-out problems, or directory of benchmarks; never the problems that the "
      "evaluation measures. Default: `evaluate.data`, unless `evaluate.tasks` name the task");
  fields.add("early_stop_problems", train.early_stop.problems, kIdentity,
             "The first so many problems");
  fields.add("early_stop_patience", train.early_stop.patience, kIdentity,
             "Ends the round after so many checks in a row without a gain");
}

// How memory and work are spread over ranks.
void add_sharding(FieldList& fields, TrainConfig& train) {
  fields.add("activation_checkpointing", train.activation_checkpointing, kOperational,
             "Recompute activations in the backward pass: less memory, more time");
  fields.add("allow_idle_ranks", train.allow_idle_ranks, kOperational,
             "Accept fewer samples in a batch than ranks (otherwise exit 2)");
  fields.add("zero_stage", train.optimizer.zero_stage, kOperational,
             "ZeRO stage, which shards over ranks: 0 nothing, 1 optimizer state, 2 gradients too, "
             "3 weights too");
  fields.add("shard_ranks", train.shard_ranks, kOperational,
             "Number of consecutive ranks, such as a node's, over which `zero_stage` shards: only "
             "gradients then travel between these groups; 0 = all ranks");
  fields.add(
      "optimizer_offload", train.optimizer.offload, kOperational,
      "On a device: keeps masters, moments and gradients' sums in host memory, where the optimizer "
      "and collectives (by MPI) then run; the device has copies of weights and gradients");
  fields.add_enum("collectives", train.collectives, kOperational, kCollectives,
                  "Library that sends gradients and weights on devices: `\"nccl\"`, `\"mpi\"` "
                  "(through host memory), or `\"auto\"`: NCCL, or MPI if ranks share a device (if "
                  "each has its own and NCCL cannot be used, the run ends with exit 4). With "
                  "`optimizer_offload` it is MPI, and `\"nccl\"` is refused");
  fields.add("check_state_every", train.optimizer.guard.check_state_every, kOperational,
             "Steps between checks of each rank's own weights and moments for silent changes since "
             "the step before; 0 = never. Default: 1, or 50 where they lie on a device");
}

void add_train(FieldList& fields, TrainConfig& train) {
  fields.in("train");
  add_optimizer(fields, train);
  add_losses(fields, train);
  fields.in("train");
  add_spike_guard(fields, train);
  add_checks(fields, train);
  fields.in("train");
  add_sharding(fields, train);
}

void add_filter(FieldList& fields, SampleFilterConfig& filter) {
  fields.in("train", kRun, {.fixed_from = FixedFrom::round});
  fields.add("filter_repetition", filter.max_repetition, kIdentity,
             "Leaves answers out of training whose seq-rep-4 (share of repeated 4-grams) is "
             "greater, for example 0.3; 1: no limit. Trajectories stay in the store, so `filter_*` "
             "keys may change without a new generation; the steps stay, so kept answers are seen "
             "more often. Counts are in `round-R/cleaning.json` and in the report");
  fields.add("filter_eos", filter.require_eos, kIdentity,
             "If true, leaves out answers that `generate.max_new_tokens` cut");
  fields.add("filter_task", filter.task, kIdentity,
             "Leaves out answers that this task's check (`\"gsm8k\"`, `\"math\"`, `\"ledger\"`) "
             "does not find right by the prompt's reference answer (`prompts.answer_field`), or "
             "whose prompt has none. Default: no check");
}

void add_checkpoint(FieldList& fields, CheckpointConfig& checkpoint) {
  fields.in("checkpoint");
  fields.add("every_steps", checkpoint.every_steps, kOperational,
             "Steps between checkpoints; one more at the end of each round and on a stop");
  fields.add(
      "keep_last", checkpoint.keep_last, kOperational,
      "Newest checkpoints to keep, at least 1; the last one of the round before stays as well");
  fields.add("keep_every", checkpoint.keep_every, kOperational,
             "Checkpoints whose step is a multiple of this stay for ever; 0 = none");
}

void add_block_size(FieldList& fields, EvaluateConfig& evaluate, DecodingValue& block_size) {
  fields.add(
      "block_size", kOperational,
      decoding_key("block_size").meaning +
          ". `\"auto\"`: of 2, 4, … 64 each method's fastest for each model on this machine at "
          "batch 1, kept in `evaluation/MODEL/tuning.json`",
      R"({"oneOf": [{"type": "integer"}, {"enum": ["auto"]}]})",
      [&](const toml::node& node) -> std::optional<std::string> {
        evaluate.tunes_block_size = node.value_exact<std::string>() == "auto";
        if (evaluate.tunes_block_size || !read_value(node, block_size)) {
          return std::nullopt;
        }
        return "a whole number or \"auto\"";
      },
      [&]() -> std::optional<std::string> {
        return evaluate.tunes_block_size ? "\"auto\"" : write_value(block_size);
      });
}

void add_evaluate(FieldList& fields, EvaluateConfig& evaluate) {
  fields.in("evaluate", kRun);
  fields.add("tasks", evaluate.tasks, kOperational,
             "[Benchmarks](../../docs/evaluation.md#benchmarks), each `\"TASK\"` or with a prompt "
             "style of its own `\"TASK:STYLE\"` (`\"humaneval:evalplus\"`). Empty: no evaluation");
  fields.add("methods", evaluate.methods, kOperational, "Decoders to measure");
  fields.add("data", evaluate.data, kOperational,
             "Directory that holds the [benchmarks'](../../docs/evaluation.md#benchmarks) folders; "
             "with one task also its file itself");
  fields.add("prompt_style", evaluate.prompt_style, kOperational,
             "Prompt style of tasks that name none. Default: the task's own, see "
             "[Benchmarks](../../docs/evaluation.md#benchmarks)");
  for (auto& [key, value] : evaluate.decoding) {
    if (key == "block_size") {
      add_block_size(fields, evaluate, value);
    } else {
      fields.add(key.c_str(), value, kOperational, decoding_key(key).meaning);
    }
  }
  fields.add("samples_per_problem", evaluate.samples_per_problem, kOperational,
             "Answers sampled for each problem, each counted; above 1 with `temperature` above 0");
  fields.add("max_new_tokens", evaluate.max_new_tokens, kOperational,
             "Tokens of an answer at most. Default: the task's own (gsm8k 512)");
  fields.add("limit", evaluate.limit, kOperational, "Evaluates this many problems only, the first");
  fields.add("batch_prompts", evaluate.batch_prompts, kOperational,
             "Problems decoded at once per rank; does not change results");
  fields.add("speed_problems", evaluate.speed_problems, kOperational,
             "Problems of each task in one repeat of the speed measurement at batch 1; at "
             "`batch_prompts`, as many as fill the batch. 0: speeds are not measured");
  fields.add("speed_repeats", evaluate.speed_repeats, kOperational,
             "Repeats of the speed measurement, AR and every method in turn, each on the next "
             "problems; at least 2");
}

void add_sweep(FieldList& fields, SweepConfig& sweep) {
  fields.in("sweep", kRun);
  fields.add("method", sweep.method, kOperational, "Decoding method whose settings vary");
  for (auto& [key, axis] : sweep.axes) {
    const bool whole = std::holds_alternative<std::int64_t>(decoding_key(key).fallback);
    fields.add(key.c_str(), axis, kOperational,
               fmt::format("Values of `evaluate.{}` to try, for example `{}`", key,
                           whole ? "[4, 8, 16]" : "[0.25, 0.5, 0.85]"));
  }
}

std::optional<std::string> read_projections(const toml::node& node,
                                            std::vector<LayerWeight>& targets) {
  std::vector<std::string> names;
  if (auto problem = read_value(node, names)) {
    return problem;
  }
  std::vector<LayerWeight> found;
  for (const auto& [weight, name] : kProjections) {
    if (std::erase(names, name) > 0) {
      found.push_back(weight);
    }
  }
  if (!names.empty()) {
    return "an array of names of projections such as \"q_proj\" or \"down_proj\"";
  }
  targets = std::move(found);
  return std::nullopt;
}

std::optional<std::string> read_layers(const toml::node& node, std::vector<std::int32_t>& layers) {
  const char* const expected = "an array of whole numbers";
  if (!node.is_array()) {
    return expected;
  }
  std::vector<std::int32_t> found;
  for (const toml::node& value : *node.as_array()) {
    if (read_value(value, found.emplace_back())) {
      return expected;
    }
  }
  layers = std::move(found);
  return std::nullopt;
}

std::string write_projections(const std::vector<LayerWeight>& targets) {
  std::vector<std::string> names;
  for (const auto& [weight, name] : kProjections) {
    if (std::ranges::find(targets, weight) != targets.end()) {
      names.emplace_back(name);
    }
  }
  return write_value(names).value_or("[]");
}

void add_drafter(FieldList& fields, TrainConfig& train) {
  fields.in("train", kRun);
  fields.add_enum(
      "drafter", train.drafter, kIdentity, kDrafters,
      "`\"adapter\"`: the model stays as it is, byte for byte, and low-rank additions to its "
      "projections (LoRA, on drafting rows only) are trained to propose what it would say, which "
      "decoding with `method` draft verifies: the text is the model's own. `\"head\"`: instead, "
      "decoder layers that read the model's hidden states and propose a whole block at once "
      "(DFlash's form, causal). Means `recipe` clean-context and `ar_weight` 0 unless they are "
      "given; rounds must have `mask` clean");
  fields.last().same_as_before({"none"});
  fields.add("drafter_rank", train.adapter.rank, kIdentity, "Rank of the additions");
  fields.last().same_results.push_back(std::to_string(AdapterShape{}.rank));
  fields.add("drafter_alpha", train.adapter.alpha, kIdentity,
             "The additions are multiplied by this divided by the rank");
  fields.last().same_as_before(AdapterShape{}.alpha);
  std::vector<LayerWeight>& targets = train.adapter.targets;
  fields.add(
      "drafter_targets", kIdentity, "Projections that have an addition",
      value_schema(std::vector<std::string>()),
      [&targets](const toml::node& node) { return read_projections(node, targets); },
      [&targets] { return write_projections(targets); });
  fields.last().same_results.push_back(write_projections(AdapterShape{}.targets));
  fields.add("drafter_proposals", train.own_proposals, kIdentity,
             "Share of samples whose noise the drafter has just proposed itself, as in decoding; "
             "each costs a forward");
  fields.last().same_as_before(TrainConfig{}.own_proposals);
  fields.add("drafter_layers", train.head.layers, kIdentity, "Layers of a head");
  fields.last().same_results.push_back(std::to_string(HeadShape{}.layers));
  std::vector<std::int32_t>& features = train.head.features;
  fields.add(
      "drafter_features", kIdentity,
      "Layers of the model, from 0, whose outputs a head reads. Empty: as many as it has layers, "
      "evenly spread, as DFlash chooses them",
      R"({"type": "array", "items": {"type": "integer", "minimum": 0}})",
      [&features](const toml::node& node) { return read_layers(node, features); },
      [&features] { return fmt::format("[{}]", fmt::join(features, ", ")); });
  fields.last().same_results.emplace_back("[]");
  fields.add(
      "drafter_mask_token", train.head.mask_token, kIdentity,
      "Token that stands in a head's blocks for what it proposes. -1: the vocabulary's last");
  fields.last().same_results.push_back(std::to_string(HeadShape{}.mask_token));
}

std::vector<ConfigField> all_fields(JobConfig& config) {
  FieldList fields;
  add_run(fields, config.run);
  add_model(fields, config.model);
  add_prompts(fields, config.prompts);
  add_generate(fields, config.generate);
  add_rounds(fields, config.rounds);
  add_train(fields, config.train);
  fields.in("train", kRun, kOfLoss);
  fields.add_enum(
      "recipe", config.recipe, kOperational, kRecipes,
      "Settings by one name, which sets the keys that follow from it (those are identity): "
      "`\"jacobi-forcing\"` the paper's: `mask` noise, `schedule` linear, `noise_window` 256 "
      "tokens (16 at `block_size` 16, 8 at 32), blocks of 16 in the first round and 32 in later "
      "ones, `consistency_decay` 1; `\"authors\"` the formulas of the authors' code: `compat` "
      "`\"repo\"` with `ar_weight` 1, and windows of 16; `\"clean-context\"`: `mask` clean, "
      "`schedule` random, `consistency_decay` 0.8; `\"none\"`: keys as they are given. Giving one "
      "of those keys another value beside a named recipe is refused; without `recipe` it makes "
      "this \"none\"");
  fields.add_enum("compat", config.compat, kIdentity, kCompat,
                  "`\"paper\"` or `\"repo\"` sets the formulas of the paper or of its authors' "
                  "code where those two differ: `kept`, `train_prompt`, and how losses are reduced "
                  "and a round's states chosen ([METHOD.md](../../model/decoding/METHOD.md) §4), "
                  "beside `teacher` and `consistency_decay` as both have them; `\"repo\"` also "
                  "never selects a block's initial draft, as in the authors' data, and has an "
                  "`ar_weight` of 10 unless another is given. Those keys then have these values in "
                  "`resolved_config.toml` too; giving one another value is refused");
  add_drafter(fields, config.train);
  add_filter(fields, config.train.filter);
  add_checkpoint(fields, config.checkpoint);
  add_evaluate(fields, config.evaluate);
  add_sweep(fields, config.sweep);
  return fields.take();
}

constexpr const char* kOutput =
    "Required. Hugging Face directory to write. What an earlier export has written there is "
    "replaced, anything else refused, `run.directory` and what is above it too";

std::vector<ConfigField> all_fields(PretrainConfig& config) {
  FieldList fields;
  add_run(fields, config.run);
  PretrainSettings& pretrain = config.pretrain;
  fields.in("model");
  add_device(fields, pretrain.device);
  fields.in("pretrain", {ConfigFor::pretrain});
  fields.add("tokenizer", pretrain.tokenizer, kOperational,
             "Required. Directory with tokenizer files and chat template");
  fields.add("output", pretrain.output, kOperational, kOutput);
  fields.add("files", pretrain.files, kOperational,
             "Required. JSON lines with texts `question` and `answer`");
  fields.add("hidden_size", pretrain.hidden_size, kIdentity, "Width of the model");
  fields.add("intermediate_size", pretrain.intermediate_size, kIdentity,
             "Width inside the feed-forward layers");
  fields.add("num_layers", pretrain.num_layers, kIdentity, "Layers");
  fields.add("num_heads", pretrain.num_heads, kIdentity, "Query heads");
  fields.add("num_kv_heads", pretrain.num_kv_heads, kIdentity, "Key/value heads");
  fields.add("max_position_embeddings", pretrain.max_position_embeddings, kIdentity,
             "Longest sequence; longer samples are left out");
  fields.add("rope_theta", pretrain.rope_theta, kIdentity, "Base of the rotary embedding");
  fields.add("tie_word_embeddings", pretrain.tie_word_embeddings, kIdentity,
             "One matrix for embedding and output");
  fields.add("steps", pretrain.steps, kIdentity, "Optimizer steps");
  add_train(fields, config.train);
  add_checkpoint(fields, config.checkpoint);
  return fields.take();
}

std::vector<ConfigField> all_fields(FinetuneConfig& config) {
  FieldList fields;
  add_run(fields, config.run);
  add_model(fields, config.model);
  FinetuneSettings& finetune = config.finetune;
  fields.in("finetune", {ConfigFor::finetune});
  fields.add("output", finetune.output, kOperational, kOutput);
  fields.add("files", finetune.files, kOperational,
             "Required. JSON lines of questions and answers (their content is identity)");
  fields.add("question_field", finetune.question_field, kIdentity, "Field of the question");
  fields.add("answer_field", finetune.answer_field, kIdentity, "Field of the answer");
  fields.add("template", finetune.chat_template, kIdentity, "As `prompts.template`");
  fields.last().unset_as_before();
  fields.add("template_arguments", finetune.template_arguments, kIdentity,
             "As `prompts.template_arguments`");
  fields.last().unset_as_before();
  fields.add("max_tokens", finetune.max_tokens, kIdentity,
             "Longer pairs, template included, are left out. Default: the model's positions");
  fields.add("epochs", finetune.epochs, kIdentity,
             "Length of the training in passes over the pairs, in whole batches alone …");
  fields.add("steps", finetune.steps, kIdentity,
             "… or in optimizer steps. One of the two is required");
  add_train(fields, config.train);
  add_checkpoint(fields, config.checkpoint);
  return fields.take();
}

using Values = std::vector<std::optional<std::string>>;

Values values_of(const std::vector<ConfigField>& fields) {
  Values values;
  for (const ConfigField& field : fields) {
    values.push_back(field.write());
  }
  return values;
}

const ConfigField& field_at(const std::vector<ConfigField>& fields, const std::string& path) {
  const ConfigField* found = find_field(fields, path);
  expect(found != nullptr, "no such field");
  return *found;
}

// Returns an error message for the first key to which the document gives another value than `cause`
// implies. `given` holds the values before `cause`, a key that sets many, was applied.
std::optional<std::string> contradiction(const std::vector<ConfigField>& fields,
                                         const Values& given, const TomlDocument& document,
                                         const std::string& cause) {
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::optional<std::string> fixed = fields[i].write();
    if (fixed != given[i] && document.holds(fields[i])) {
      return fmt::format("{} = {} contradicts {} = {}, which means {}; leave out one of the two",
                         fields[i].path(), given[i].value_or(""), cause,
                         field_at(fields, cause).write().value_or(""), fixed.value_or(""));
    }
  }
  return std::nullopt;
}

// Sets the keys that follow from the recipe. If the document contradicts one of them, this refuses
// a recipe that the document names, and otherwise keeps the document's values and names no recipe.
void apply_recipe(JobConfig& config, const TomlDocument& document) {
  const std::vector<ConfigField> fields = job_fields(config);
  if (config.train.drafter != Drafter::none) {
    if (!document.holds(field_at(fields, "train.recipe"))) {
      config.recipe = Recipe::clean_context;
    }
    if (!document.holds(field_at(fields, "train.ar_weight"))) {
      config.train.ar_weight = 0;
    }
    if (!document.holds(field_at(fields, "evaluate.methods"))) {
      config.evaluate.methods = {"ar", "draft"};
    }
  }
  if (config.recipe == Recipe::jacobi_forcing || config.recipe == Recipe::authors) {
    for (std::size_t i = 1; i < config.rounds.size(); ++i) {
      if (!document.holds(field_at(fields, fmt::format("rounds.{}.block_size", i + 1)))) {
        config.rounds[i].block_size = 32;
      }
    }
  }
  const Values given = values_of(fields);
  config.apply_recipe();
  const std::optional<std::string> other = contradiction(fields, given, document, "train.recipe");
  if (!other) {
    return;
  }
  if (document.holds(field_at(fields, "train.recipe"))) {
    throw ConfigError(*other + ", or set train.recipe = \"none\"");
  }
  document.apply(fields);
  config.recipe = Recipe::none;
}

// What train.compat fixes becomes the value of those keys, so that resolved file and identity say
// what is computed. A value of the document that contradicts it is refused.
void apply_compat(JobConfig& config, const TomlDocument& document) {
  const std::vector<ConfigField> fields = job_fields(config);
  const Values given = values_of(fields);
  config.train.apply(config.compat);
  if (const auto other = contradiction(fields, given, document, "train.compat")) {
    throw ConfigError(*other);
  }
  // Only a default: which weight keeps the answers depends on the model.
  if (config.compat == Compat::repo && config.recipe == Recipe::none &&
      !document.holds(field_at(fields, "train.ar_weight"))) {
    config.train.ar_weight = 10;
  }
}

std::vector<ConfigField> applicable(std::vector<ConfigField> fields, ConfigFor command) {
  std::erase_if(fields,
                [&](const ConfigField& field) { return !field.applies_to.contains(command); });
  return fields;
}

TomlDocument parse(const std::string& text, const std::string& file_name,
                   const std::vector<std::string>& overrides) {
  TomlDocument document(text, file_name);
  for (const std::string& assignment : overrides) {
    document.set(assignment);
  }
  return document;
}

}  // namespace

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const auto& [recipe, name] : kRecipes) {
    if (recipe != Recipe::none) {
      names.emplace_back(name);
    }
  }
  return names;
}

std::vector<ConfigField> job_fields(JobConfig& config) {
  return applicable(all_fields(config), ConfigFor::run);
}
std::vector<ConfigField> pretrain_fields(PretrainConfig& config) {
  return applicable(all_fields(config), ConfigFor::pretrain);
}
std::vector<ConfigField> finetune_fields(FinetuneConfig& config) {
  return applicable(all_fields(config), ConfigFor::finetune);
}

Identity identity_of(JobConfig& config) { return identity_values(all_fields(config)); }
Identity identity_of(PretrainConfig& config) { return identity_values(all_fields(config)); }
Identity identity_of(FinetuneConfig& config) { return identity_values(all_fields(config)); }

JobConfig read_job_config(const std::string& text, const std::string& file_name,
                          const std::vector<std::string>& overrides) {
  const TomlDocument document = parse(text, file_name, overrides);
  JobConfig config;
  config.rounds.resize(document.array_size("rounds"));
  document.apply(all_fields(config));
  apply_recipe(config, document);
  apply_compat(config, document);
  return config;
}

PretrainConfig read_pretrain_config(const std::string& text, const std::string& file_name,
                                    const std::vector<std::string>& overrides) {
  PretrainConfig config;
  parse(text, file_name, overrides).apply(all_fields(config), ConfigFor::pretrain);
  return config;
}

FinetuneConfig read_finetune_config(const std::string& text, const std::string& file_name,
                                    const std::vector<std::string>& overrides) {
  FinetuneConfig config;
  parse(text, file_name, overrides).apply(all_fields(config), ConfigFor::finetune);
  return config;
}

}  // namespace jforge
