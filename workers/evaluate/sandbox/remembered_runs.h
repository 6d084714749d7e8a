#pragma once

/// Results of programs that do the same in every run, kept on disk: a benchmark's canonical
/// solutions, which every evaluation asks for again.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "data/tasks/code_runner.h"

namespace jforge {

class Sandbox;

/// A runner that takes completed runs of requests with CodeRunRequest::repeatable from a folder,
/// where there is one, and keeps new ones there; all else it passes on. One file for a run, named
/// by a hash of everything in the request and of where it runs, sealed (text_seal.h):
///   {"version": 1, "request": hash, "call_seconds": [...], "values": [JSON text, ...]}
/// A file that is damaged or another request's is warned of, and its run repeated and kept anew;
/// one that cannot be written is warned of. Processes may share a folder. Thread-safe, as the
/// runner it asks is.
class RememberedRuns final : public CodeRunner {
 public:
  /// Values' text that is kept of a run at most; a run with more is not.
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20;

  /// `environment`: what results depend on besides the request: Sandbox::description(), the
  /// processor (times decide limits). Without a folder nothing is kept.
  RememberedRuns(std::unique_ptr<CodeRunner> runner, std::string environment,
                 std::optional<std::filesystem::path> folder = default_folder());

  [[nodiscard]] CodeRunResult run(const CodeRunRequest& request,
                                  const CodeValueSink& sink = {}) override;

  /// $XDG_CACHE_HOME/jforge/runs, else $HOME/.cache/jforge/runs; nothing where neither is an
  /// absolute path.
  [[nodiscard]] static std::optional<std::filesystem::path> default_folder();

 private:
  std::unique_ptr<CodeRunner> runner_;
  std::string environment_;
  std::optional<std::filesystem::path> folder_;
};

/// The sandbox with what default_folder() remembers of its like on such a processor.
[[nodiscard]] std::unique_ptr<CodeRunner> remember_runs(std::unique_ptr<Sandbox> sandbox);

}  // namespace jforge
