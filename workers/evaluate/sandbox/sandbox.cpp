#include "workers/evaluate/sandbox/sandbox.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/error.h"
#include "runtime/log.h"
#include "workers/evaluate/sandbox/sandbox_internal.h"

namespace jforge {
namespace {

// The machine may be busy.
constexpr double kProbeSeconds = 60;

OwnedDescriptor init_program() {
  const std::string_view image = sandbox_init_image();
  OwnedDescriptor file(memfd_create("jforge-sandbox-init", MFD_CLOEXEC));
  if (file.get() < 0 || write(file.get(), image.data(), image.size()) != std::ssize(image)) {
    throw EnvironmentError(
        fmt::format("code sandbox: no memory for its first process: {}", std::strerror(errno)));
  }
  return file;
}

CodeRunRequest probe_request(std::string candidate, std::string check) {
  CodeRunRequest request;
  request.candidate = std::move(candidate);
  request.check = std::move(check);
  request.check_seconds = kProbeSeconds;
  request.total_seconds = kProbeSeconds;
  return request;
}

}  // namespace

SandboxSetup make_sandbox_setup(const SandboxOptions& options) {
  if (access(options.interpreter.c_str(), X_OK) != 0) {
    throw EnvironmentError(
        fmt::format("code sandbox: no interpreter at {}: apt-get install python3 python3-numpy",
                    options.interpreter.string()));
  }
  SandboxSetup setup;
  setup.bubblewrap_program = options.bubblewrap;
  setup.interpreter = options.interpreter;
  setup.interpreter_options = options.interpreter_options;
  setup.work_bytes = options.work_bytes;
  setup.value_bytes = options.value_bytes;
  setup.plan = make_namespace_plan(options.work_bytes);
  setup.filter = make_seccomp_filter();
  setup.init = init_program();
  return setup;
}

Sandbox::Sandbox(const SandboxOptions& options) : setup_(make_sandbox_setup(options)) {
  const bool installed = access(options.bubblewrap.c_str(), X_OK) == 0;
  std::string refusal = "bubblewrap is not installed";
  if (options.kind != SandboxKind::namespaces && installed) {
    refusal = try_kind(SandboxKind::bubblewrap);
  }
  if (!refusal.empty() && options.kind != SandboxKind::bubblewrap) {
    const std::string own = try_kind(SandboxKind::namespaces);
    refusal = own.empty() ? own : refusal + "; without it: " + own;
  }
  if (!refusal.empty()) {
    throw EnvironmentError(fmt::format(
        "code sandbox: this machine lets no program run in namespaces of its own ({}): "
        "apt-get install bubblewrap, allow user namespaces (sysctl user.max_user_namespaces, "
        "kernel.unprivileged_userns_clone), or start the container with --security-opt "
        "seccomp=unconfined",
        refusal));
  }
  probe_numpy();
  setup_.cancelled = options.cancelled;
  setup_.waiting = options.waiting;
}

std::string Sandbox::try_kind(SandboxKind kind) {
  setup_.bubblewrap = kind == SandboxKind::bubblewrap;
  try {
    const CodeRunResult result =
        run_in_sandbox(setup_, probe_request("one = 1", "assert one == 1"), {}, &python_version_);
    return result.status == CodeRunStatus::completed ? std::string()
                                                     : "a first program failed: " + result.reason;
  } catch (const EnvironmentError& error) {
    return error.what();
  }
}

void Sandbox::probe_numpy() {
  CodeRunRequest request = probe_request(
      "import numpy\ndef version():\n    assert numpy.arange(3).sum() == 3\n"
      "    return numpy.__version__",
      "");
  request.entry_point = "version";
  request.calls = {"[]"};
  std::string numpy;
  const CodeRunResult result =
      run_in_sandbox(setup_, request, [&](std::int64_t, std::string_view json) {
        numpy = json.substr(1, json.size() - 2);
        return true;
      });
  if (result.status != CodeRunStatus::completed) {
    throw EnvironmentError(
        fmt::format("code sandbox: numpy does not work with {} ({}): apt-get install python3-numpy",
                    setup_.interpreter.string(), result.reason));
  }
  description_ =
      fmt::format("{}, Python {}, numpy {}", setup_.bubblewrap ? "bubblewrap" : "own namespaces",
                  python_version_, numpy);
  log_info("code sandbox: {}", description_);
}

CodeRunResult Sandbox::run(const CodeRunRequest& request, const CodeValueSink& sink) {
  return run_in_sandbox(setup_, request, sink);
}

}  // namespace jforge
