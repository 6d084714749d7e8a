#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/durable_file.h"
#include "tests/support/temporary_directory.h"
#include "workers/grade/completion_set.h"

namespace jforge::test {

class CompletionFixture {
 public:
  static constexpr int kProblems = 3;

  CompletionFixture() { write_problems("return"); }

  void write_problems(const std::string& word) {
    std::string text;
    for (int index = 0; index < kProblems; ++index) {
      const std::string name = std::to_string(index);
      text += R"({"task_id": "HumanEval/)" + name + R"(", "prompt": "def f)" + name +
              R"(():\n", "entry_point": "f)" + name +
              R"(", "canonical_solution": "    pass\n", "test": ")" + word + "\"}\n";
    }
    replace_file(directory / "HumanEval.jsonl", text);
  }

  /// A solution for each problem in turn.
  [[nodiscard]] CompletionSet load(const std::vector<std::string>& solutions) const {
    std::string text;
    int place = 0;
    for (const std::string& solution : solutions) {
      text += R"({"task_id": "HumanEval/)" + std::to_string(place++ % kProblems) +
              R"(", "solution": ")" + solution + "\"}\n";
    }
    replace_file(directory / "completions.jsonl", text);
    return load_completions({.task = "humaneval",
                             .data = directory / "HumanEval.jsonl",
                             .completions = directory / "completions.jsonl",
                             .allow_missing = true});
  }

  TemporaryDirectory directory;
};

}  // namespace jforge::test
