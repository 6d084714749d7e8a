#include "workers/evaluate/sample_grader.h"

#include <utility>

#include "data/tasks/code/code_tasks.h"

namespace jforge {

void SampleGrader::add(const Task& task, const TaskRecord& problem, GradedSample sample) {
  const auto answer = task.extract(cut_at(sample.sample.record.text, task.stop_texts()), problem);
  const std::int64_t ticket = next_ticket_++;
  waiting_.emplace(ticket, std::move(sample));
  pool_.submit(ticket, task, answer, problem);
}

std::vector<GradedSample> SampleGrader::take() {
  std::vector<GradedSample> samples;
  for (const GradedAnswer& graded : pool_.take()) {
    auto node = waiting_.extract(graded.ticket);
    SampleRecord& record = node.mapped().sample.record;
    record.answer = graded.verdict.answer;
    record.verdict = to_string(graded.verdict.status);
    record.reason = graded.verdict.reason;
    if (graded.verdict.base_status) {
      record.base_verdict = to_string(*graded.verdict.base_status);
    }
    record.rules = graded.verdict.rules;
    samples.push_back(std::move(node.mapped()));
  }
  return samples;
}

}  // namespace jforge
