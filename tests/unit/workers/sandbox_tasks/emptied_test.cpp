#include "data/tasks/code/code_tasks.h"
#include "tests/unit/workers/sandbox_tasks/benchmark_fixture.h"

namespace jforge {
namespace {

/// The function that an MBPP assertion calls first, without wrappers.
std::string called_function(const TaskRecord& record) {
  const std::string& code = record.fields.at("code");
  const std::string test = text_list(record, "test_list").at(0);
  for (std::size_t at = code.find("def "); at != std::string::npos;
       at = code.find("def ", at + 1)) {
    const std::size_t begin = code.find_first_not_of(' ', at + 4);
    const std::string name = code.substr(begin, code.find_first_of("( ", begin) - begin);
    if (mentions_word(test, name)) {
      return name;
    }
  }
  return "none";
}

class Emptied : public BenchmarkTest {
 protected:
  template <typename Name>
  void expect_failures(const Task& task, const std::vector<TaskRecord>& records, Name name) {
    expect_all(false, records,
               grade(task, records, programs_of(records, [&](const TaskRecord& record) {
                       return empty_function(name(record));
                     })));
  }
};

TEST_F(Emptied, EveryThirdOfHumanevalFails) {
  const auto task = make_task("humaneval");
  expect_failures(*task, every(3, task->load(data_)),
                  [](const TaskRecord& record) { return record.fields.at("entry_point"); });
}

TEST_F(Emptied, EveryThirdOfMbppFails) {
  expect_failures(*make_task("mbpp"), every(3, load_all_mbpp(MbppSet::full, data_)),
                  called_function);
}

}  // namespace
}  // namespace jforge
