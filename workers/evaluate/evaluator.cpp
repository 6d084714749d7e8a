#include "workers/evaluate/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "model/decoding/batch_decoder.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/evaluation_store.h"
#include "workers/evaluate/host_programs.h"
#include "workers/evaluate/problem_set.h"
#include "workers/evaluate/sample_grader.h"
#include "workers/evaluate/sample_record.h"
#include "workers/evaluate/sandbox/sandbox.h"
#include "workers/evaluate/work_queue.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto kGradingPoll = std::chrono::milliseconds(5);
constexpr std::int32_t kWarmUpRows = 512;

/// Part of every sample's settings: raise it when the records' meaning changes.
constexpr int kRecordVersion = 2;

std::string weights_hash(const ModelUnderTest& model) {
  std::uint64_t hash = 0;
  for (const ParameterEntry& entry : model.table.entries()) {
    const auto values = model.table.tensor(model.weights, entry.name).span<float>();
    hash = hash64(std::as_bytes(values), hash64(entry.name, hash));
  }
  return hash_hex(hash);
}

Json architecture(const TransformerConfig& config) {
  return {{"vocabulary_size", config.vocabulary_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_layers", config.num_layers},
          {"num_heads", config.num_heads},
          {"num_kv_heads", config.num_kv_heads},
          {"rms_norm_eps", config.rms_norm_eps},
          {"rope_theta", config.rope_theta},
          {"tied", config.tie_word_embeddings},
          {"eos_ids", config.eos_ids}};
}

/// What rank 0 found and all ranks act on.
std::string plans_to_text(const std::vector<MethodRun>& runs) {
  Json plans = Json::array();
  for (const MethodRun& run : runs) {
    plans.push_back({{"current", run.current}, {"attempt", run.attempt}, {"done", run.done}});
  }
  return plans.dump();
}

void take_plans(const std::string& text, std::vector<MethodRun>& runs) {
  const Json plans = Json::parse(text);
  expect(plans.size() == runs.size(), "rank 0 evaluates other methods");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].current = plans[i].at("current").get<bool>();
    runs[i].attempt = plans[i].at("attempt").get<std::int64_t>();
    runs[i].done = plans[i].at("done").get<std::vector<PromptId>>();
  }
}

/// One sample that is left to do.
struct WorkItem {
  std::size_t run = 0;
  PromptId id = 0;
};

/// In the order in which they are leased: one task and method after another, so that a rank seldom
/// changes and its seconds belong to one of them.
std::vector<WorkItem> items_left(const std::vector<MethodRun>& runs) {
  std::vector<WorkItem> items;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    if (runs[run].current) {
      continue;
    }
    const std::set<PromptId> done(runs[run].done.begin(), runs[run].done.end());
    for (const PromptId id : runs[run].samples()) {
      if (!done.contains(id)) {
        items.push_back({run, id});
      }
    }
  }
  return items;
}

/// Where each task and method's items end.
std::vector<std::int64_t> group_ends(const std::vector<WorkItem>& items) {
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i + 1 == items.size() || items[i + 1].run != items[i].run) {
      ends.push_back(static_cast<std::int64_t>(i) + 1);
    }
  }
  return ends;
}

/// One model's evaluation on this rank.
class ModelEvaluation {
 public:
  ModelEvaluation(const EvaluateConfig& config, std::vector<DecodingMethod> methods,
                  const ModelUnderTest& model, const EvaluationContext& context,
                  const std::filesystem::path& directory);
  /// Programs that still run are of no use any more.
  ~ModelEvaluation() { abandoned_ = true; }
  ModelEvaluation(const ModelEvaluation&) = delete;
  ModelEvaluation& operator=(const ModelEvaluation&) = delete;

  /// Collective.
  bool run();

 private:
  /// What this rank has finished of one task and method in this call.
  struct Share {
    std::optional<AppendLog> log = {};
    std::string lines = {};  ///< As appended to the log.
    std::int64_t tokens = 0;
    std::int64_t forwards = 0;
  };

  void load();
  void check_capacity(const ProblemSet& set);
  void expect_same_problems() const;
  void make_runs();
  [[nodiscard]] std::string settings_of(const ProblemSet& set, const DecodingMethod& method) const;
  bool plan();

  bool decode(const std::vector<WorkItem>& items);
  void build_grader();
  void build_transformer(std::size_t items);
  void warm_up();
  void decode_leases(const std::vector<WorkItem>& items, WorkQueue& queue);
  void decode_run(std::size_t run, const std::vector<WorkItem>& items, WorkQueue& queue);
  [[nodiscard]] std::int32_t even_share(std::size_t run, const std::vector<WorkItem>& items) const;
  [[nodiscard]] GradedSample decoded_sample(std::size_t run, const DecodeResult& result,
                                            const BatchDecoderStatistics& statistics) const;
  void attend_grading(WorkQueue& queue);
  void commit_graded(WorkQueue& queue);
  void commit(const GradedSample& graded, WorkQueue& queue);
  void tell_progress(const MethodRun& run, const WorkQueue& queue);

  bool merge();
  bool compare();

  [[nodiscard]] bool root() const { return context_.comm.rank() == 0; }
  [[nodiscard]] std::string phase_of(const MethodRun& run) const {
    return fmt::format("evaluate {} {} {}", model_.name, run.task(), run.method.label);
  }
  /// Collective: `work` on rank 0; every rank learns of its failure. True when a stop was asked
  /// for.
  [[nodiscard]] bool on_root(const std::function<void()>& work) const {
    return agree(context_.comm, stop_requested(), [&] {
      if (root()) {
        work();
      }
    });
  }

  const EvaluateConfig& config_;
  const ModelUnderTest& model_;
  const EvaluationContext& context_;
  const EvaluationStore store_;
  const double deadline_seconds_;
  MemoryAccount account_{"evaluation"};
  std::optional<BytePairTokenizer> tokenizer_;
  std::vector<ProblemSet> sets_;
  std::vector<DecodingMethod> methods_;
  std::string weights_hash_;
  std::int64_t capacity_ = 0;  ///< Positions the longest request needs.
  std::vector<MethodRun> runs_;
  std::vector<Share> shares_;  ///< Of runs_.
  std::int64_t items_total_ = 0;
  std::int64_t samples_here_ = 0;
  std::int64_t told_ = 0;  ///< Samples done, as on_progress heard last.
  std::atomic<bool> abandoned_ = false;
  std::atomic<std::uint64_t> waits_ = 0;  ///< For programs that run, each within its own limits.
  std::uint64_t grading_signs_ = 0;       ///< As attend_grading() saw them last.
  HostPrograms programs_;
  std::unique_ptr<CodeRunner> code_runner_;  ///< Null unless a task runs code.
  std::optional<SampleGrader> grader_;
  std::unique_ptr<InferenceTransformer> transformer_;
};

ModelEvaluation::ModelEvaluation(const EvaluateConfig& config, std::vector<DecodingMethod> methods,
                                 const ModelUnderTest& model, const EvaluationContext& context,
                                 const std::filesystem::path& directory)
    : config_(config),
      model_(model),
      context_(context),
      store_(directory, model.name, context.seed),
      deadline_seconds_(context.clock.read().deadline_seconds),
      methods_(std::move(methods)) {}

bool ModelEvaluation::run() {
  if (agree(context_.comm, stop_requested(), [&] { load(); })) {
    return false;
  }
  expect_same_problems();
  if (!plan()) {
    return false;
  }
  const std::vector<WorkItem> items = items_left(runs_);
  if (!items.empty()) {
    build_grader();
    if (!decode(items)) {
      return false;
    }
  }
  if (!merge() || !compare()) {
    return false;
  }
  (void)on_root([&] { store_.set_complete(); });
  transformer_.reset();
  expect(account_.live_bytes() == 0, "evaluation kept memory");
  return true;
}

void ModelEvaluation::load() {
  config_.validate();
  if (model_.name.empty() || model_.name == "." || model_.name == ".." ||
      model_.name.find('/') != std::string::npos) {
    throw ConfigError(
        fmt::format("\"{}\" cannot name a model in the evaluation's files", model_.name));
  }
  tokenizer_ = BytePairTokenizer::load(model_.directory);
  const ChatTemplate chat_template = ChatTemplate::load(model_.directory, context_.force_chatml);
  for (const std::string& entry : config_.tasks) {
    sets_.push_back(load_problem_set(entry, config_, *tokenizer_, chat_template,
                                     model_.config.vocabulary_size));
    check_capacity(sets_.back());
  }
  weights_hash_ = weights_hash(model_);
  make_runs();
}

void ModelEvaluation::check_capacity(const ProblemSet& set) {
  for (const DecodingMethod& method : methods_) {
    for (const Problem& problem : set.problems) {
      const std::int64_t positions =
          method.make(set.request(problem.index, model_.config.eos_ids))->max_positions();
      if (positions > model_.config.max_position_embeddings) {
        throw DataError(fmt::format(
            "problem {}: a prompt of {} tokens and {} new ones need {} positions, the model has "
            "{}; lower evaluate.max_new_tokens",
            problem.record.id, problem.prompt.size(), set.max_new_tokens, positions,
            model_.config.max_position_embeddings));
      }
      capacity_ = std::max(capacity_, positions);
    }
  }
}

void ModelEvaluation::make_runs() {
  std::set<std::string> stems;
  for (const ProblemSet& set : sets_) {
    for (const DecodingMethod& method : methods_) {
      runs_.push_back({set, method, settings_of(set, method),
                       SampleFiles(store_.model_directory(), set.choice.label, method.label)});
      if (!stems.insert(runs_.back().files.stem()).second) {
        throw ConfigError(fmt::format("{} and {} would write the same file twice: {}",
                                      set.choice.label, method.label,
                                      runs_.back().files.merged().filename().string()));
      }
    }
  }
  shares_.resize(runs_.size());
}

std::string ModelEvaluation::settings_of(const ProblemSet& set,
                                         const DecodingMethod& method) const {
  const Json settings{{"version", kRecordVersion},
                      {"weights", weights_hash_},
                      {"architecture", architecture(model_.config)},
                      {"tokenizer", tokenizer_->content_hash()},
                      {"task", set.task->version()},
                      {"problems", set.hash},
                      {"max_new_tokens", set.max_new_tokens},
                      {"method", method.name},
                      {"samples_per_problem", method.samples_per_problem},
                      {"method_settings", method.settings}};
  return hash_hex(hash64(settings.dump()));
}

void ModelEvaluation::expect_same_problems() const {
  std::string mine = weights_hash_;
  for (const ProblemSet& set : sets_) {
    mine += " " + set.hash;
  }
  const std::string roots = broadcast_text(context_.comm, mine, 0);
  together(context_.comm, [&] {
    if (mine != roots) {
      throw DataError(
          "evaluation: this rank has other weights, tokenizer or benchmark files than rank 0; all "
          "ranks must see the same directories");
    }
  });
}

/// Collective. False when a stop was asked for.
bool ModelEvaluation::plan() {
  std::string text;
  const bool stop = on_root([&] {
    store_.claim(weights_hash_, model_.directory, context_.refuse_other_weights);
    for (MethodRun& run : runs_) {
      store_.plan(run);
    }
    text = plans_to_text(runs_);
  });
  if (stop) {
    return false;
  }
  take_plans(broadcast_text(context_.comm, text, 0), runs_);
  return true;
}

/// Collective. Whether programs can be run at all is found out here, before anything is decoded.
void ModelEvaluation::build_grader() {
  const bool runs_code =
      std::ranges::any_of(sets_, [](const ProblemSet& set) { return set.task->runs_code(); });
  if (runs_code) {
    programs_ = share_host_programs(context_.comm);
  }
  together(context_.comm, [&] {
    if (runs_code) {
      SandboxOptions options;
      options.cancelled = [this] {
        ++waits_;
        return abandoned_ || stop_requested();
      };
      code_runner_ = std::make_unique<Sandbox>(options);
    }
    grader_.emplace(code_runner_.get(), programs_.threads, programs_.turns.get());
  });
}

void ModelEvaluation::build_transformer(std::size_t items) {
  const auto slots = std::min(static_cast<std::size_t>(config_.batch_prompts), items);
  transformer_ = std::make_unique<InferenceTransformer>(
      model_.config, model_.table, model_.weights, context_.kernels, account_,
      InferenceTransformer::Options{.num_slots = static_cast<std::int32_t>(slots),
                                    .slot_capacity = static_cast<std::int32_t>(capacity_)});
  if (context_.kernels.device() != Device::cpu) {
    warm_up();
  }
}

/// A device's first pass loads its code and makes its buffers: no method's time is to hold that.
void ModelEvaluation::warm_up() {
  std::vector<DecodeRow> rows(
      static_cast<std::size_t>(std::min(transformer_->slot_capacity(), kWarmUpRows)));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].place.position = static_cast<std::int32_t>(i);
  }
  std::vector<TokenId> predictions(rows.size());
  transformer_->predict(rows, predictions);
}

/// Collective. False when a stop was asked for.
bool ModelEvaluation::decode(const std::vector<WorkItem>& items) {
  const PhaseClock::Reading caller = context_.clock.read();
  items_total_ = std::ssize(items);
  together(context_.comm, [&] { build_transformer(items.size()); });
  WorkQueue queue(context_.comm, group_ends(items), config_.batch_prompts);
  // Another rank may need longer; that it hangs is for its own clock to say.
  const bool stopped = work_together(
      context_.comm, queue, [&] { decode_leases(items, queue); },
      [&] {
        context_.clock.enter(fmt::format("evaluate {}, waiting for other ranks", model_.name), 0);
      });
  context_.clock.enter(caller.phase, caller.deadline_seconds);
  // The last samples may have been other ranks'.
  if (!stopped && told_ < items_total_) {
    tell_progress(runs_[items.back().run], queue);
  }
  queue.close();
  return !agree(context_.comm, stopped || stop_requested(), {});
}

/// Until nothing is left to lease and all that was is committed, or the work was stopped.
void ModelEvaluation::decode_leases(const std::vector<WorkItem>& items, WorkQueue& queue) {
  while (const auto next = queue.peek(/*wait=*/true)) {
    const std::size_t run = items[static_cast<std::size_t>(*next)].run;
    context_.clock.enter(phase_of(runs_[run]), deadline_seconds_);
    decode_run(run, items, queue);
  }
  while (grader_->pending() && !queue.stopped()) {
    std::this_thread::sleep_for(kGradingPoll);
    attend_grading(queue);
  }
}

/// Samples decoded at once: no more than leave as many for every other rank.
std::int32_t ModelEvaluation::even_share(std::size_t run,
                                         const std::vector<WorkItem>& items) const {
  const std::int64_t count =
      std::ranges::count_if(items, [run](const WorkItem& item) { return item.run == run; });
  const std::int64_t share = (count + context_.comm.size() - 1) / context_.comm.size();
  return static_cast<std::int32_t>(std::min<std::int64_t>(config_.batch_prompts, share));
}

/// What this rank can lease of one task and method.
void ModelEvaluation::decode_run(std::size_t run_index, const std::vector<WorkItem>& items,
                                 WorkQueue& queue) {
  const MethodRun& run = runs_[run_index];
  BatchDecoder decoder(*transformer_, even_share(run_index, items));
  std::int64_t decoding = 0;
  const auto source = [&]() -> std::unique_ptr<SequenceDecoder> {
    // An empty batch has nothing better to do than to wait for the next lease.
    const auto next = queue.peek(/*wait=*/decoding == 0);
    if (!next || items[static_cast<std::size_t>(*next)].run != run_index) {
      return nullptr;
    }
    queue.pop();
    decoding += 1;
    const PromptId id = items[static_cast<std::size_t>(*next)].id;
    return run.method.make(run.set.request(id, model_.config.eos_ids));
  };
  const auto sink = [&](const DecodeResult& result) {
    decoding -= 1;
    while (grader_->full() && !queue.stopped()) {
      std::this_thread::sleep_for(kGradingPoll);
      attend_grading(queue);
    }
    if (queue.stopped()) {
      return;
    }
    grader_->add(*run.set.task, run.set.problem(result.id).record,
                 decoded_sample(run_index, result, decoder.statistics()));
    commit_graded(queue);
  };
  const auto stop = [&] {
    context_.clock.progress(samples_here_);
    attend_grading(queue);
    return queue.stopped();
  };
  decoder.run(source, sink, stop);
}

/// All of a sample's record that decoding knows.
GradedSample ModelEvaluation::decoded_sample(std::size_t run, const DecodeResult& result,
                                             const BatchDecoderStatistics& statistics) const {
  const Problem& problem = runs_[run].set.problem(result.id);
  GradedSample graded{.run = run, .sample = {}};
  SampleRecord& record = graded.sample.record;
  record.index = problem.index;
  record.sample = sample_of(result.id);
  record.id = problem.record.id;
  record.prompt_hash = problem.hash;
  record.settings = runs_[run].settings;
  record.tokens = static_cast<std::int64_t>(result.tokens.size());
  record.forwards = result.forwards;
  record.prefill_forwards = result.prefill_forwards;
  record.stopped_by_eos = result.stop == StopReason::eos;
  record.token_hash = hash_hex(hash64(std::as_bytes(std::span(result.tokens))));
  record.text = tokenizer_->decode(result.tokens, /*skip_special=*/true);
  graded.sample.timing = {.attempt = runs_[run].attempt,
                          .rank = context_.comm.rank(),
                          .ranks = context_.comm.size(),
                          .batch_prompts = config_.batch_prompts,
                          .decode_seconds = statistics.decode_seconds,
                          .prefill_seconds = statistics.prefill_seconds};
  return graded;
}

/// Commits what is graded, shows the watchdog that grading goes on, and passes a stop on.
void ModelEvaluation::attend_grading(WorkQueue& queue) {
  commit_graded(queue);
  const std::uint64_t signs = grader_->signs_of_life() + waits_;
  if (std::exchange(grading_signs_, signs) != signs) {
    context_.clock.progress(samples_here_);
  }
  if (stop_requested()) {
    queue.stop();
  }
}

void ModelEvaluation::commit_graded(WorkQueue& queue) {
  for (const GradedSample& graded : grader_->take()) {
    commit(graded, queue);
  }
}

void ModelEvaluation::commit(const GradedSample& graded, WorkQueue& queue) {
  const MethodRun& run = runs_[graded.run];
  Share& share = shares_[graded.run];
  if (!share.log) {
    share.log.emplace(run.files.part(run.attempt, context_.comm.rank(), context_.comm.size()));
  }
  const std::string line = to_line(graded.sample.record, graded.sample.timing);
  share.log->append(line);
  share.lines += line;
  share.lines += '\n';
  share.tokens += graded.sample.record.tokens;
  share.forwards += graded.sample.record.forwards;
  samples_here_ += 1;
  queue.finished();
  context_.clock.progress(samples_here_);
  tell_progress(run, queue);
  fault_point("evaluate");
}

void ModelEvaluation::tell_progress(const MethodRun& run, const WorkQueue& queue) {
  told_ = queue.finished_by_all();
  if (context_.on_progress) {
    const Share& share = shares_[static_cast<std::size_t>(&run - runs_.data())];
    context_.on_progress({.task = run.task(),
                          .method = run.method.label,
                          .samples_done = told_,
                          .samples_total = items_total_,
                          .samples_here = samples_here_,
                          .tokens = share.tokens,
                          .forwards = share.forwards});
  }
}

/// Collective. False when a stop was asked for.
bool ModelEvaluation::merge() {
  const Json extra{{"weights", weights_hash_}};
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    if (runs_[i].current) {
      continue;
    }
    const std::vector<std::string> lines = gather_texts(context_.comm, shares_[i].lines, 0);
    if (on_root([&] { store_.merge(runs_[i], lines, extra); })) {
      return false;
    }
  }
  return true;
}

/// Collective. False when a stop was asked for.
bool ModelEvaluation::compare() {
  return !on_root([&] {
    for (std::size_t begin = 0; begin < runs_.size(); begin += methods_.size()) {
      std::vector<const MethodRun*> task;
      for (std::size_t i = begin; i < begin + methods_.size(); ++i) {
        task.push_back(&runs_[i]);
      }
      store_.compare(task);
    }
  });
}

}  // namespace

bool evaluate_methods(const EvaluateConfig& config, std::vector<DecodingMethod> methods,
                      const ModelUnderTest& model, const EvaluationContext& context,
                      const std::filesystem::path& evaluation_directory) {
  const PhaseClock::Reading caller = context.clock.read();
  ModelEvaluation evaluation(config, std::move(methods), model, context, evaluation_directory);
  const bool finished = evaluation.run();
  context.clock.enter(caller.phase, caller.deadline_seconds);
  return finished;
}

bool evaluate_model(const EvaluateConfig& config, const ModelUnderTest& model,
                    const EvaluationContext& context,
                    const std::filesystem::path& evaluation_directory) {
  std::vector<DecodingMethod> methods;
  together(context.comm, [&] {
    config.validate();
    for (const std::string& name : config.methods) {
      methods.push_back(make_decoding_method(name, config.decoding, context.seed));
    }
  });
  return evaluate_methods(config, std::move(methods), model, context, evaluation_directory);
}

}  // namespace jforge
