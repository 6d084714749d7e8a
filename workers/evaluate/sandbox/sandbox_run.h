#pragma once

#include <string>

#include "data/tasks/code_runner.h"
#include "workers/evaluate/sandbox/sandbox_process.h"

namespace jforge {

/// As CodeRunner::run; sets `python_version` if not null.
[[nodiscard]] CodeRunResult run_in_sandbox(const SandboxSetup& setup, const CodeRunRequest& request,
                                           const CodeValueSink& sink,
                                           std::string* python_version = nullptr);

}  // namespace jforge
