#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "data/tasks/code_runner.h"

namespace jforge {

class Sandbox;

/// Disk cache of deterministic runs (CodeRunRequest::repeatable): a benchmark's canonical
/// solutions. One sealed file (text_seal.h) per run, named by a hash of request and environment:
///  {"version": 1, "request": hash, "call_seconds": [...], "values": [JSON text, ...]}
/// Damaged or mismatched files are replaced after a new run; these and failed writes cause a
/// warning. Processes may share the folder. Thread-safe if the wrapped runner is.
class RememberedRuns final : public CodeRunner {
 public:
  /// Limit on the values of a cached run.
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20;

  /// `environment`: what else affects results: Sandbox::description() and the processor (times set
  /// limits). No folder: no cache.
  RememberedRuns(std::unique_ptr<CodeRunner> runner, std::string environment,
                 std::optional<std::filesystem::path> folder = default_folder());

  [[nodiscard]] CodeRunResult run(const CodeRunRequest& request,
                                  const CodeValueSink& sink = {}) override;

  /// $XDG_CACHE_HOME/jforge/runs, else $HOME/.cache/jforge/runs; nothing if neither is absolute.
  [[nodiscard]] static std::optional<std::filesystem::path> default_folder();

 private:
  std::unique_ptr<CodeRunner> runner_;
  std::string environment_;
  std::optional<std::filesystem::path> folder_;
};

/// Caches in default_folder(), by sandbox, processor and harness.
[[nodiscard]] std::unique_ptr<CodeRunner> remember_runs(std::unique_ptr<Sandbox> sandbox);

}  // namespace jforge
