#include "tests/unit/workers/sandbox_tasks/benchmark_fixture.h"

namespace jforge {
namespace {

class CanonicalPlus : public BenchmarkTest {
 protected:
  /// Uses one task object, so that references are computed once.
  void expect_canonical_passes_and_emptied_fails(const char* name) {
    const auto task = make_task(name);
    auto records = task->load(data_);
    expect_all(true, records, grade(*task, records, programs_of(records, canonical_program)));
    // Mbpp/164 accepts every answer by EvalPlus' rules.
    std::erase_if(records, [](const TaskRecord& record) {
      return record.fields.at("entry_point") == "are_equivalent";
    });
    expect_all(false, records,
               grade(*task, records, programs_of(records, [](const TaskRecord& record) {
                 return empty_function(record.fields.at("entry_point"));
               })));
  }
};

TEST_F(CanonicalPlus, HumanevalPlus) {
  expect_canonical_passes_and_emptied_fails("humaneval_plus");
}
TEST_F(CanonicalPlus, MbppPlus) { expect_canonical_passes_and_emptied_fails("mbpp_plus"); }
TEST_F(CanonicalPlus, MbppPlusOfTheFirstVersion) {
  expect_canonical_passes_and_emptied_fails("mbpp_plus@0.1.0");
}

}  // namespace
}  // namespace jforge
