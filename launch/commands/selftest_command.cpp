#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/commands/commands.h"
#include "launch/config/job_fields.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/console.h"
#include "runtime/read_file.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;

/// The bundled model solves 198 of 200 problems.
constexpr double kLeastAccuracy = 0.9;

/// Returns the folder of the installed program's files, or the source tree of its build.
fs::path files_of_program() {
  for (fs::path place = fs::read_symlink("/proc/self/exe"); place != place.root_path();) {
    place = place.parent_path();
    for (const fs::path& root : {place / "share" / "jforge", place}) {
      if (fs::exists(root / "launch/configs/quickstart.toml")) {
        return root;
      }
    }
  }
  throw EnvironmentError(
      "the quickstart's files are neither in ../share/jforge beside this program nor above it; "
      "install with cmake --install");
}

JobOptions job_in(const fs::path& directory, const fs::path& root) {
  const auto quoted = [](const fs::path& path) { return toml_quoted(path.string()); };
  JobOptions job;
  job.config = root / "launch/configs/quickstart.toml";
  job.overrides = {
      "run.directory=" + quoted(directory),
      "model.source=" + quoted(root / "launch/quickstart/model"),
      fmt::format("prompts.files=[{}]", quoted(root / "launch/quickstart/prompts.jsonl.gz")),
      "evaluate.data=" + quoted(root / "launch/quickstart"),
      "prompts.limit=48",
      "rounds.1.steps=24",
      "train.batch_samples=4",
      "evaluate.limit=24",
      "evaluate.block_size=16",
      "evaluate.speed_problems=0"};
  return job;
}

/// Throws InternalError if a figure of the run is wrong.
void check_figures(const RunLayout& run) {
  const auto summary = parse_bounded_json<nlohmann::json>(
      read_file(run.directory() / "evaluation" / "summary.json"), "summary.json");
  const auto figure = [&](const char* model, const char* method, const char* name) {
    return summary.at("models").at(model).at("ledger").at(method).at(name).get<double>();
  };
  const auto expect_figure = [](bool holds, const std::string& what) {
    if (!holds) {
      throw InternalError("selftest: this program computes wrongly on this machine: " + what);
    }
  };
  const double accuracy = figure("base", "ar", "accuracy");
  expect_figure(accuracy >= kLeastAccuracy,
                fmt::format("the bundled model answers {:.0f} % of its problems right, not 99 %",
                            100 * accuracy));
  for (const char* model : {"base", "final"}) {
    expect_figure(figure(model, "jacobi", "disagreements_with_ar") == 0,
                  fmt::format("Jacobi decoding of {} gives other answers than AR", model));
  }
  const double before = figure("base", "jacobi", "tpf");
  const double after = figure("final", "jacobi", "tpf");
  expect_figure(
      after > before,
      fmt::format("training took the tokens per forward from {:.2f} to {:.2f}", before, after));
}

}  // namespace

ExitCode selftest_command(const SelftestOptions& options, const MpiSession& session) {
  const auto start = std::chrono::steady_clock::now();
  const Communicator& world = session.world();
  const fs::path directory = fs::absolute(options.directory);
  together(world, [&] {
    if (world.rank() == 0 && fs::exists(directory)) {
      throw ConfigError(fmt::format(
          "{} exists: remove it, or name another directory with --directory", directory.string()));
    }
  });
  if (const ExitCode code = run_command(job_in(directory, files_of_program()), session);
      code != ExitCode::ok) {
    return code;
  }
  together(world, [&] {
    if (world.rank() != 0) {
      return;
    }
    static_cast<void>(verify_command(directory));
    check_figures(RunLayout(directory));
    fs::remove_all(directory);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    tell(stdout,
         fmt::format("Self-test passed: {} ranks, {:.0f} s\n", world.size(), taken.count()));
  });
  return ExitCode::ok;
}

}  // namespace jforge
