#include "data/tasks/code/evalplus_grader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/evalplus_inputs.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {
namespace {

constexpr double kLoadSeconds = 10.0;
constexpr double kCallFloorSeconds = 10.0;
constexpr double kReferenceFactor = 4.0;
constexpr double kRunFloorSeconds = 120.0;
constexpr double kReferenceSeconds = 600.0;

/// Name of the function that is called in the entry point's place.
constexpr const char* kCaller = "_evalplus_call";
/// Python behind a program: calls its entry point, _evalplus_function, and hands the value on, or
/// what stands for it when it is too large to send: one MBPP value has 128 million parts. marshal's
/// version 2 writes the same bytes for the same content.
constexpr const char* kCallerSource = R"PY(

def _evalplus_call(*arguments):
    value = _evalplus_function(*arguments)
    rest, parts = [value], 0
    while rest and parts + len(rest) <= 200000:
        part = rest.pop()
        parts += 1
        if isinstance(part, (list, tuple, set, frozenset)):
            rest.extend(part)
        elif isinstance(part, dict):
            rest.extend(part.keys())
            rest.extend(part.values())
    if not rest:
        return value
    import hashlib
    import marshal
    digest = hashlib.sha256()
    for part in value if isinstance(value, (list, tuple)) else [value]:
        try:
            digest.update(marshal.dumps(part, 2))
        except ValueError:
            digest.update(repr(part).encode("utf-8", "surrogatepass"))
    return (type(value).__name__, len(value), digest.hexdigest())
)PY";

}  // namespace

std::string EvalPlusGrader::version() const {
  return fmt::format("{}-floor-{:.0f}s", to_string(rules_), kCallFloorSeconds);
}

EvalPlusOracle EvalPlusGrader::oracle(const TaskRecord& record) const {
  return {suite_, rules_, record.fields.at("entry_point"),
          std::strtod(record.fields.at("atol").c_str(), nullptr)};
}

CodeRunRequest EvalPlusGrader::request(std::string program, const TaskRecord& record,
                                       const Part& part) const {
  CodeRunRequest request;
  if (rules_ == EvalPlusRules::v0_2_1) {
    request.hash_seed = static_cast<std::uint32_t>(hash64(std::string_view(program)));
  }
  request.candidate = std::move(program);
  request.check =
      fmt::format("_evalplus_function = {}\n{}", record.fields.at("entry_point"), kCallerSource);
  request.entry_point = kCaller;
  request.calls = part.calls;
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
  Part part{.name = std::string(field).substr(0, 4),
            .calls = evalplus_calls(record.fields.at("task_id"), *inputs)};
  if (oracle(record).needs_inputs()) {
    for (const JsonNode& input : inputs->items) {
      part.inputs.emplace_back(input.raw);
    }
  }
  CodeRunRequest run =
      request(record.fields.at("prompt") + record.fields.at("canonical_solution"), record, part);
  run.call_seconds.assign(part.calls.size(), kReferenceSeconds);
  run.total_seconds = kReferenceSeconds;
  run.repeatable = true;
  const CodeRunResult result = runner.run(run, [&](std::int64_t, std::string_view json) {
    part.expected.emplace_back(json);
    return parse_python_value(json).has_value();
  });
  if (result.status != CodeRunStatus::completed || part.expected.size() != part.calls.size()) {
    throw DataError(fmt::format("{} ({}): its canonical solution does not run on its {}: {}",
                                record.id, record.fields.at("task_id"), field, result.reason));
  }
  for (const double seconds : result.call_seconds) {
    part.limits.push_back(std::max(kCallFloorSeconds, kReferenceFactor * seconds));
  }
  part.limits.resize(part.calls.size(), kCallFloorSeconds);
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
  EvalPlusOracle judge = oracle(record);
  return runner.run(request(program, record, part), [&](std::int64_t call, std::string_view json) {
    const auto index = static_cast<std::size_t>(call);
    const auto value = parse_python_value(json);
    if (!value || index >= part.expected.size()) {
      return false;
    }
    return judge.accepts(*value, *parse_python_value(part.expected[index]),
                         part.inputs.empty() ? std::string_view() : part.inputs[index]);
  });
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
