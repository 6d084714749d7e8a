#include "workers/training_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "data/tasks/code/code_tasks.h"
#include "data/tokenizer/chat_template.h"
#include "model/decoding/decode_engine.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "workers/model_shard.h"

namespace jforge {

namespace {

EvaluateConfig held_out(const EarlyStopConfig& early_stop, const EvaluateConfig& evaluate) {
  EvaluateConfig config = evaluate;
  config.data = early_stop.data.empty() ? evaluate.data : early_stop.data;
  config.limit = early_stop.problems;
  // At most the task's own.
  const auto own = make_task(evaluate.choice(early_stop.task).name)->default_max_new_tokens();
  config.max_new_tokens = std::min(own, evaluate.max_new_tokens.value_or(own));
  return config;
}

ProblemSet held_out_problems(const JobConfig& config, const TransformerConfig& model) {
  TaskEncoder encoder(config.model.source, config.prompts.template_options());
  return load_problem_set(config.train.early_stop.task,
                          held_out(config.train.early_stop, config.evaluate), encoder,
                          model.vocabulary_size);
}

JacobiOptions drafts_of(const JobConfig& config, std::int32_t round) {
  return {.block_size = config.rounds.at(static_cast<std::size_t>(round - 1)).block_size,
          .window = DraftWindow::running,
          .seed = config.run.seed,
          .round = static_cast<std::uint64_t>(round)};
}

std::int64_t collapse_tokens(const GenerateConfig& generate) {
  return std::min(kCollapseTokens, generate.max_new_tokens);
}

std::vector<DecodeRequest> collapse_requests(const GenerateConfig& generate,
                                             const TransformerConfig& model,
                                             const PromptStore& prompts) {
  std::vector<DecodeRequest> requests;
  const std::int64_t count = std::min(kCollapsePrompts, prompts.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const PromptId id = i * prompts.size() / count;
    requests.push_back({.id = id,
                        .prompt = prompts.tokens(id),
                        .max_new_tokens = collapse_tokens(generate),
                        .eos_ids = model.eos_ids});
  }
  return requests;
}

std::vector<DecodeRequest> held_out_requests(const ProblemSet& problems,
                                             const TransformerConfig& model) {
  std::vector<DecodeRequest> requests;
  for (const Problem& problem : problems.problems) {
    requests.push_back(problems.request(problem.index, model.eos_ids));
  }
  return requests;
}

void expect_positions(const std::vector<DecodeRequest>& requests, const JacobiOptions& drafts,
                      const TransformerConfig& model) {
  for (const DecodeRequest& request : requests) {
    const std::int64_t positions = make_jacobi_decoder(request, drafts)->max_positions();
    if (positions > model.max_position_embeddings) {
      throw ConfigError(fmt::format(
          "a prompt of {} tokens and {} new ones need {} positions, the model has {}; lower "
          "evaluate.max_new_tokens",
          request.prompt.size(), request.max_new_tokens, positions, model.max_position_embeddings));
    }
  }
}

/// Identifies the problems on which gains are measured.
std::string held_out_hash(const ProblemSet& problems, const JacobiOptions& drafts) {
  return hash_hex(hash64(fmt::format("{} {} {} {}", problems.task->version(), problems.hash,
                                     problems.max_new_tokens, drafts.block_size)));
}

/// Maximum answers of a check, and their tokens.
struct ProbeSize {
  std::int64_t requests = 0;
  std::int64_t new_tokens = 0;
};

ProbeSize probe_size(const JobConfig& config) {
  ProbeSize size;
  if (config.train.collapse.check_every > 0) {
    size = {kCollapsePrompts, collapse_tokens(config.generate)};
  }
  const EarlyStopConfig& early_stop = config.train.early_stop;
  if (early_stop.every > 0) {
    size.requests = std::max(size.requests, early_stop.problems);
    size.new_tokens =
        std::max(size.new_tokens, *held_out(early_stop, config.evaluate).max_new_tokens);
  }
  return size;
}

std::int32_t slots_for(std::int64_t requests, int ranks, std::int32_t batch_prompts) {
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>((requests + ranks - 1) / ranks, 1, batch_prompts));
}

}  // namespace

std::int64_t longest_held_out_problem(const JobConfig& config, const TransformerConfig& model) {
  if (config.train.early_stop.every == 0) {
    return 0;
  }
  const ProblemSet set = held_out_problems(config, model);
  std::int64_t longest = 0;
  for (const Problem& problem : set.problems) {
    longest = std::max(longest, std::ssize(problem.prompt));
  }
  return longest;
}

ProbeMemory probe_memory(const JobConfig& config, const TransformerConfig& model,
                         const ParameterTable& table, Device device, std::int64_t longest) {
  if (!TrainingProbe::wanted(config.train)) {
    return {};
  }
  const ProbeSize size = probe_size(config);
  ProbeMemory memory;
  memory.gathered = gathered_bytes(table);
  memory.decoding = static_cast<double>(InferenceTransformer::bytes(
      model,
      {.num_slots = slots_for(size.requests, table.shard_count(), config.generate.batch_prompts),
       .slot_capacity = static_cast<std::int32_t>(longest + size.new_tokens),
       .weights = config.model.decode_weights},
      device));
  return memory;
}

bool TrainingProbe::wanted(const TrainConfig& config) {
  return config.collapse.check_every > 0 || config.early_stop.every > 0;
}

void expect_probes_fit(const JobConfig& config, std::int32_t round,
                       const TransformerConfig& model) {
  if (config.train.early_stop.every > 0) {
    expect_positions(held_out_requests(held_out_problems(config, model), model),
                     drafts_of(config, round), model);
  }
}

TrainingProbe::TrainingProbe(const ProbeContext& context, const JobConfig& config,
                             std::int32_t round, const PromptStore& prompts)
    : context_(context),
      config_(config.train),
      drafts_(drafts_of(config, round)),
      batch_prompts_(config.generate.batch_prompts),
      decode_weights_(config.model.decode_weights),
      tokenizer_(BytePairTokenizer::load(config.model.source)),
      early_stop_(config.train.early_stop) {
  if (config_.collapse.check_every > 0) {
    prompts_.requests = collapse_requests(config.generate, context_.model, prompts);
  }
  if (config_.early_stop.every > 0) {
    problems_.problems = held_out_problems(config, context_.model);
    problems_.requests = held_out_requests(*problems_.problems, context_.model);
    expect_positions(problems_.requests, drafts_, context_.model);
    early_stop_ = EarlyStop(config_.early_stop, held_out_hash(*problems_.problems, drafts_));
  }
}

void TrainingProbe::restore(const EarlyStopState& state) {
  if (!early_stop_.restore(state) && context_.comm.rank() == 0) {
    log_info(
        "the held-out problems or their limits differ from those of the checkpoint: gains are "
        "counted from the next check on");
  }
}

std::unique_ptr<SequenceDecoder> TrainingProbe::decoder(const DecodeRequest& request) const {
  return make_jacobi_decoder(request, drafts_);
}

bool TrainingProbe::check(const ParameterStore& store, StepMetrics& metrics) {
  collapse_.clear();
  const bool collapse_due = config_.collapse.due(metrics.step);
  const bool early_stop_due = config_.early_stop.due(metrics.step);
  if (!collapse_due && !early_stop_due) {
    return false;
  }
  store.wait_for_weights();
  if (collapse_due) {
    note_collapse(decode(prompts_, store), metrics);
  }
  return early_stop_due && note_gain(decode(problems_, store), metrics);
}

std::vector<TrainingProbe::Answer> TrainingProbe::decode(const Set& set,
                                                         const ParameterStore& store) {
  // A rank decodes every size-th request and keeps zeros for the others, so that the sum over ranks
  // is exact.
  std::vector<Answer> answers(set.requests.size());
  const std::int32_t slots =
      slots_for(std::ssize(set.requests), context_.comm.size(), batch_prompts_);
  std::optional<InferenceTransformer> transformer;
  const auto own_block = [&](std::int32_t group, const TensorView& target) {
    store.copy_own(group, target);
  };
  const auto build = [&](const ParameterReader& read) {
    std::int64_t capacity = 0;
    for (const DecodeRequest& request : set.requests) {
      capacity = std::max(capacity, decoder(request)->max_positions());
    }
    transformer.emplace(
        context_.model, context_.table, read, context_.kernels, context_.account,
        InferenceTransformer::Options{.num_slots = slots,
                                      .slot_capacity = static_cast<std::int32_t>(capacity),
                                      .weights = decode_weights_});
  };
  with_gathered_weights(context_.comm, context_.within, context_.table, own_block, context_.account,
                        build);
  together(context_.comm, [&] {
    const auto first = static_cast<std::size_t>(context_.comm.rank());
    const auto stride = static_cast<std::size_t>(context_.comm.size());
    if (first >= set.requests.size()) {
      return;
    }
    std::vector<std::unique_ptr<SequenceDecoder>> decoders;
    for (std::size_t index = first; index < set.requests.size(); index += stride) {
      decoders.push_back(decoder(set.requests[index]));
    }
    DecodeEngine engine(*transformer, slots);
    for (const DecodeResult& result : decode_all(engine, std::move(decoders))) {
      const auto request = std::ranges::find(set.requests, result.id, &DecodeRequest::id);
      const auto index = static_cast<std::size_t>(request - set.requests.begin());
      answers[index] = judge(set, index, result);
    }
  });
  static_assert(sizeof(Answer) == 5 * sizeof(double));
  all_reduce_sum<double>(context_.comm,
                         std::span(reinterpret_cast<double*>(answers.data()), 5 * answers.size()));
  return answers;
}

TrainingProbe::Answer TrainingProbe::judge(const Set& set, std::size_t index,
                                           const DecodeResult& result) const {
  Answer answer;
  answer.tokens = static_cast<double>(result.tokens.size());
  answer.forwards = static_cast<double>(result.forwards);
  answer.repetition = sequence_repetition(result.tokens);
  answer.distinct = distinct_share(result.tokens);
  if (set.problems && !set.problems->task->runs_code()) {
    const Task& task = *set.problems->task;
    const TaskRecord& record = set.problems->problems[index].record;
    const std::string text = set.problems->text_of(result.tokens, tokenizer_);
    const auto given = task.extract(cut_at(text, task.stop_texts()), record);
    answer.right = task.grade(given, record, nullptr).status == VerdictStatus::pass ? 1 : 0;
  }
  return answer;
}

void TrainingProbe::note_collapse(const std::vector<Answer>& answers, StepMetrics& metrics) {
  Answer sum;
  for (const Answer& answer : answers) {
    sum.repetition += answer.repetition;
    sum.distinct += answer.distinct;
  }
  const auto count = static_cast<double>(answers.size());
  metrics.repetition = sum.repetition / count;
  metrics.distinct = sum.distinct / count;
  if (!(*metrics.repetition > config_.collapse.threshold)) {
    return;
  }
  const std::string found = fmt::format(
      "step {}: the answers to {} prompts repeat themselves: mean seq-rep-{} {:.3f}, above "
      "train.collapse_threshold = {}, distinct-1 {:.3f}",
      metrics.step, answers.size(), kRepetitionLength, *metrics.repetition,
      config_.collapse.threshold, *metrics.distinct);
  if (config_.collapse.action == CollapseAction::stop) {
    collapse_ = found;
  } else if (context_.comm.rank() == 0) {
    log_warn("{}", found);
  }
}

void TrainingProbe::expect_no_collapse() const {
  if (collapse_.empty()) {
    return;
  }
  NumericalError error(collapse_ +
                       "; the step is not saved: resume from an earlier checkpoint with a lower "
                       "train.learning_rate or a larger train.ar_weight");
  // The figures are equal on every rank.
  error.set_on_all_ranks();
  throw error;
}

bool TrainingProbe::note_gain(const std::vector<Answer>& answers, StepMetrics& metrics) {
  DecodingCost cost;
  double right = 0;
  for (const Answer& answer : answers) {
    cost += {.sequences = 1,
             .tokens = static_cast<std::int64_t>(answer.tokens),
             .forwards = static_cast<std::int64_t>(answer.forwards)};
    right += answer.right;
  }
  metrics.held_out_tpf = cost.tokens_per_forward();
  if (!problems_.problems->task->runs_code()) {
    metrics.held_out_accuracy = right / static_cast<double>(answers.size());
  }
  const bool ends = early_stop_.add(metrics.held_out_tpf, metrics.held_out_accuracy);
  if (ends && context_.comm.rank() == 0) {
    log_info("the round ends after step {}: {} checks in a row without a gain on held-out {}",
             metrics.step, early_stop_.state().without_gain, config_.early_stop.task);
  }
  return ends;
}

}  // namespace jforge
