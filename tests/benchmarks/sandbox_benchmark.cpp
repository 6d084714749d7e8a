// Cost of the code sandbox per program beyond the interpreter's start, and of a pool grading
// HumanEval's 164 canonical solutions. sandbox_benchmark [DATA [JOBS]]

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "workers/evaluate/sandbox/grading_pool.h"
#include "workers/evaluate/sandbox/sandbox.h"

namespace {

using namespace jforge;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 60;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Returns the seconds of "python3 -c pass" with the sandbox's options.
double bare_start() {
  const std::vector<std::string> words{"/usr/bin/python3", "-s", "-W", "ignore", "-c", "pass"};
  std::vector<char*> arguments;
  for (const std::string& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  char* environment[] = {nullptr};
  const Clock::time_point begin = Clock::now();
  pid_t child = -1;
  int status = 0;
  if (posix_spawn(&child, words[0].c_str(), nullptr, nullptr, arguments.data(), environment) != 0 ||
      waitpid(child, &status, 0) != child || status != 0) {
    throw EnvironmentError("the bare interpreter did not run");
  }
  return seconds_since(begin);
}

double sandboxed(Sandbox& sandbox) {
  CodeRunRequest request;
  request.candidate = "def f(x):\n    return x + 1\n";
  request.check = "assert f(1) == 2";
  request.entry_point = "f";
  request.calls = {"[1]", "[2]"};
  const Clock::time_point begin = Clock::now();
  if (sandbox.run(request).status != CodeRunStatus::completed) {
    throw InternalError("the sandbox failed a program that passes");
  }
  return seconds_since(begin);
}

void measure_overhead(SandboxKind kind) {
  SandboxOptions options;
  options.kind = kind;
  Sandbox sandbox(options);
  std::vector<double> bare;
  std::vector<double> inside;
  // In turns, so that other load slows both.
  for (int round = 0; round < kRounds; ++round) {
    bare.push_back(bare_start());
    inside.push_back(sandboxed(sandbox));
  }
  fmt::print(
      "{}\n  bare interpreter {:.1f} ms, sandboxed program {:.1f} ms, overhead {:.1f} ms "
      "(medians of {})\n",
      sandbox.description(), 1e3 * median(bare), 1e3 * median(inside),
      1e3 * (median(inside) - median(bare)), kRounds);
}

void measure_throughput(const std::filesystem::path& data, int jobs) {
  const auto task = make_task("humaneval");
  const std::vector<TaskRecord> records = task->load(data);
  Sandbox sandbox;
  GradingPool pool(&sandbox, jobs);
  const Clock::time_point begin = Clock::now();
  for (std::size_t index = 0; index < records.size(); ++index) {
    pool.submit(static_cast<std::int64_t>(index), *task,
                records[index].fields.at("prompt") + records[index].fields.at("canonical_solution"),
                records[index]);
  }
  const std::vector<GradedAnswer> graded = pool.drain();
  const auto passed = std::count_if(graded.begin(), graded.end(), [](const GradedAnswer& one) {
    return one.verdict.status == VerdictStatus::pass;
  });
  fmt::print("humaneval: {} of {} canonical solutions pass, {:.1f} s with {} at a time\n", passed,
             records.size(), seconds_since(begin), jobs);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    for (const SandboxKind kind : {SandboxKind::bubblewrap, SandboxKind::namespaces}) {
      try {
        measure_overhead(kind);
      } catch (const EnvironmentError& error) {
        fmt::print("{}\n", error.what());
      }
    }
    if (argc > 1) {
      measure_throughput(argv[1], argc > 2 ? std::atoi(argv[2]) : share_of_cores(1));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
