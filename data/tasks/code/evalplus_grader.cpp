#include "data/tasks/code/evalplus_grader.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/json_tree.h"
#include "data/tokenizer/unicode.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {

const char* evalplus_call_source();    // Text of evalplus_call.py.
const char* evalplus_oracle_source();  // Text of evalplus_oracle.py.

namespace {

constexpr double kLoadSeconds = 10.0;
constexpr double kCallFloorSeconds = 10.0;
constexpr double kReferenceFactor = 4.0;
constexpr double kRunFloorSeconds = 120.0;
constexpr double kReferenceSeconds = 600.0;

constexpr double kCompareSeconds = 600.0;  ///< All values of a run.

}  // namespace

std::string EvalPlusGrader::version() const {
  return fmt::format("evalplus-{}-floor-{:.0f}s",
                     rules_ == EvalPlusRules::v0_2_1 ? "0.2.1" : "0.3.1", kCallFloorSeconds);
}

CodeRunRequest EvalPlusGrader::request(std::string program, const TaskRecord& record,
                                       const Part& part) const {
  CodeRunRequest request;
  if (rules_ == EvalPlusRules::v0_2_1) {
    request.hash_seed = static_cast<std::uint32_t>(hash64(std::string_view(program)));
  }
  request.candidate = std::move(program);
  // Separate namespace: the program may have redefined builtins.
  request.check = fmt::format(
      "import builtins as _builtins\n_evalplus = {{'function': {}, 'task': {}}}\n"
      "_builtins.exec({}, _evalplus)\n_evalplus_call = _evalplus['call']\n",
      record.fields.at("entry_point"), python_text_literal(record.fields.at("task_id")),
      python_text_literal(evalplus_call_source()));
  request.entry_point = "_evalplus_call";
  for (const std::string& input : part.inputs) {
    request.calls.push_back("[" + python_text_literal(input) + "]");
  }
  request.check_seconds = kLoadSeconds;
  request.call_seconds = part.limits;
  request.total_seconds = part.run_limit;
  return request;
}

EvalPlusGrader::Part EvalPlusGrader::expected_values(const TaskRecord& record, const char* field,
                                                     CodeRunner& runner) const {
  const auto inputs = parse_json(record.fields.at(field));
  if (!inputs) {
    throw DataError(fmt::format("{}: its {} is no JSON", record.id, field));
  }
  Part part{.name = std::string(field).substr(0, 4)};
  for (const JsonNode& input : inputs->items) {
    part.inputs.emplace_back(input.raw);
  }
  CodeRunRequest run =
      request(record.fields.at("prompt") + record.fields.at("canonical_solution"), record, part);
  run.call_seconds.assign(part.inputs.size(), kReferenceSeconds);
  run.total_seconds = kReferenceSeconds;
  run.repeatable = true;
  const CodeRunResult result = runner.run(run, [&](std::int64_t, std::string_view json) {
    part.expected.emplace_back(json);
    return true;
  });
  if (result.status != CodeRunStatus::completed || part.expected.size() != part.inputs.size()) {
    throw DataError(fmt::format("{} ({}): its canonical solution does not run on its {}: {}",
                                record.id, record.fields.at("task_id"), field, result.reason));
  }
  for (const double seconds : result.call_seconds) {
    part.limits.push_back(std::max(kCallFloorSeconds, kReferenceFactor * seconds));
  }
  part.limits.resize(part.inputs.size(), kCallFloorSeconds);
  part.run_limit = std::max(kRunFloorSeconds,
                            kReferenceFactor * std::accumulate(result.call_seconds.begin(),
                                                               result.call_seconds.end(), 0.0));
  return part;
}

std::shared_ptr<EvalPlusGrader::Reference> EvalPlusGrader::reference(const TaskRecord& record,
                                                                     CodeRunner& runner) const {
  std::shared_ptr<Reference> reference;
  {
    const std::lock_guard lock(mutex_);
    auto& entry = references_[record.id];
    if (!entry) {
      entry = std::make_shared<Reference>();
    }
    reference = entry;
  }
  const std::lock_guard lock(reference->mutex);
  if (reference->parts.empty()) {
    std::vector<Part> parts;
    parts.push_back(expected_values(record, "base_input", runner));
    parts.push_back(expected_values(record, "plus_input", runner));
    reference->parts = std::move(parts);
  }
  return reference;
}

CodeRunResult EvalPlusGrader::run_part(const std::string& program, const TaskRecord& record,
                                       const Part& part, CodeRunner& runner) const {
  std::vector<std::string> values;
  CodeRunResult result =
      runner.run(request(program, record, part), [&](std::int64_t, std::string_view json) {
        if (first_invalid_utf8(json) || values.size() == part.expected.size()) {
          return false;
        }
        values.emplace_back(json);
        return true;
      });
  if (values.empty()) {
    return result;
  }
  // A wrong value counts, whatever happened afterwards.
  CodeRunResult compared = compare(values, record, part, runner);
  return compared.status == CodeRunStatus::completed ? std::move(result) : std::move(compared);
}

CodeRunResult EvalPlusGrader::compare(const std::vector<std::string>& values,
                                      const TaskRecord& record, const Part& part,
                                      CodeRunner& runner) const {
  CodeRunRequest request;
  request.candidate = evalplus_oracle_source();
  request.check = fmt::format("oracle = Oracle('{}', {}, {}, float({}))",
                              suite_ == EvalPlusSuite::mbpp ? "mbpp" : "humaneval",
                              rules_ == EvalPlusRules::v0_3_1 ? "True" : "False",
                              python_text_literal(record.fields.at("entry_point")),
                              python_text_literal(record.fields.at("atol")));
  request.entry_point = "judge";
  for (std::size_t i = 0; i < values.size(); ++i) {
    request.calls.push_back(fmt::format("[{}, {}, {}]", python_text_literal(values[i]),
                                        python_text_literal(part.expected[i]),
                                        python_text_literal(part.inputs[i])));
  }
  request.check_seconds = kLoadSeconds;
  request.call_seconds.assign(values.size(), kCompareSeconds);
  request.total_seconds = kCompareSeconds;
  return runner.run(request, [](std::int64_t, std::string_view json) { return json == "true"; });
}

Verdict EvalPlusGrader::grade(const std::string& program, const TaskRecord& record,
                              CodeRunner& runner) const {
  const auto parts = reference(record, runner);
  Verdict verdict{.status = VerdictStatus::pass, .reason = "", .answer = program};
  for (const Part& part : parts->parts) {
    const CodeRunResult result = run_part(program, record, part, runner);
    verdict.status = verdict_status(result.status);
    if (!verdict.base_status) {
      verdict.base_status = verdict.status;
    }
    if (verdict.status != VerdictStatus::pass) {
      verdict.reason = fmt::format("{} inputs: {}", part.name, result.reason);
      break;
    }
  }
  return verdict;
}

}  // namespace jforge
