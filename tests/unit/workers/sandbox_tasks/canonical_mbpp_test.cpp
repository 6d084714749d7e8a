#include "data/tasks/code/code_tasks.h"
#include "tests/unit/workers/sandbox_tasks/benchmark_fixture.h"

namespace jforge {
namespace {

TEST_F(BenchmarkTest, EveryReferenceProgramOfMbppPasses) {
  const auto records = load_all_mbpp(MbppSet::full, data_);
  ASSERT_EQ(records.size(), 974u);
  expect_all(true, records,
             grade(*make_task("mbpp"), records, programs_of(records, canonical_program)));
}

}  // namespace
}  // namespace jforge
