#pragma once

/// Runs the tests' own programs with the system's Python, unprotected.

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "data/tasks/code_runner.h"
#include "tests/support/temporary_directory.h"

namespace jforge::test {

inline constexpr const char* kPython = "/usr/bin/python3";

inline constexpr const char* kPythonRunnerScript = R"PY(
import json, signal, sys, time
request = json.load(open(sys.argv[1]))
out = open(sys.argv[2], "w")
sys.stdout = sys.stderr = open("/dev/null", "w")
class OutOfTime(BaseException):
    pass
def ring(*_):
    raise OutOfTime()
signal.signal(signal.SIGALRM, ring)
def plain(v, depth=0):
    if depth > 100:
        return {"other": type(v).__name__}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(v, numpy.ndarray):
        return {"array": plain(v.tolist(), depth + 1)}
    if numpy is not None and isinstance(v, numpy.generic):
        return plain(v.item(), depth + 1)
    if v is None or isinstance(v, bool):
        return v
    if isinstance(v, str):
        try:
            v.encode("utf-8")
            return str(v)
        except UnicodeEncodeError:
            return {"str_utf16": v.encode("utf-16-be", "surrogatepass").hex()}
    if isinstance(v, int):
        sys.set_int_max_str_digits(0)
        return {"int": int.__repr__(v)}
    if isinstance(v, float):
        return {"float": float.__repr__(v)}
    if isinstance(v, complex):
        return {"complex": [repr(v.real), repr(v.imag)]}
    if isinstance(v, (bytes, bytearray)):
        return {"bytes": v.hex()}
    if isinstance(v, list):
        return [plain(x, depth + 1) for x in v]
    if isinstance(v, tuple):
        return {"tuple": [plain(x, depth + 1) for x in v]}
    if isinstance(v, (set, frozenset)):
        return {"set": [plain(x, depth + 1) for x in v]}
    if isinstance(v, dict):
        return {"dict": [[plain(k, depth + 1), plain(x, depth + 1)] for k, x in v.items()]}
    return {"other": type(v).__name__}
def say(**what):
    out.write(json.dumps(what) + "\n")
    out.flush()
calls = [eval(c) for c in request["calls"]]
where = "loading"
try:
    scope = {"__name__": "candidate"}
    signal.setitimer(signal.ITIMER_REAL, request["check_seconds"])
    exec(compile(request["candidate"], "candidate", "exec"), scope)
    where = "check"
    exec(compile(request["check"], "check", "exec"), scope)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for i, arguments in enumerate(calls):
        where = "call %d" % i
        signal.setitimer(signal.ITIMER_REAL, request["call_seconds"][i])
        begin = time.monotonic()
        value = scope[request["entry_point"]](*arguments)
        seconds = time.monotonic() - begin
        signal.setitimer(signal.ITIMER_REAL, 0)
        say(value=json.dumps(plain(value)), seconds=seconds)
    say(end="completed", reason="")
except OutOfTime:
    say(end="timed_out", reason=where)
except BaseException as error:
    signal.setitimer(signal.ITIMER_REAL, 0)
    say(end="failed", reason=where + ": " + repr(error)[:200])
)PY";

class PythonCodeRunner final : public CodeRunner {
 public:
  static bool available() { return std::filesystem::exists(kPython); }

  CodeRunResult run(const CodeRunRequest& request, const CodeValueSink& sink = {}) override {
    const TemporaryDirectory directory;
    nlohmann::json json{{"candidate", request.candidate},
                        {"check", request.check},
                        {"entry_point", request.entry_point},
                        {"calls", request.calls},
                        {"check_seconds", request.check_seconds}};
    auto seconds = request.call_seconds;
    seconds.resize(request.calls.size(), request.check_seconds);
    json["call_seconds"] = seconds;
    std::ofstream(directory / "request") << json.dump();
    std::ofstream(directory / "script.py") << kPythonRunnerScript;
    return answer(start(directory, request), directory, sink);
  }

 private:
  static bool start(const TemporaryDirectory& directory, const CodeRunRequest& request) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("PYTHONHASHSEED", fmt::format("{}", request.hash_seed).c_str(), 1);
      ::execl(kPython, kPython, (directory / "script.py").c_str(), (directory / "request").c_str(),
              (directory / "answer").c_str(), nullptr);
      ::_exit(127);
    }
    const double limit = request.total_seconds + 2.0;
    int status = 0;
    for (double waited = 0.0; ::waitpid(child, &status, WNOHANG) == 0; waited += 0.005) {
      if (waited > limit) {
        ::kill(child, SIGKILL);
        ::waitpid(child, &status, 0);
        return false;
      }
      ::usleep(5000);
    }
    return true;
  }

  static CodeRunResult answer(bool ended, const TemporaryDirectory& directory,
                              const CodeValueSink& sink) {
    CodeRunResult result;
    result.status = ended ? CodeRunStatus::failed : CodeRunStatus::timed_out;
    result.reason = ended ? "no end" : "timed out";
    std::ifstream lines(directory / "answer");
    for (std::string line; std::getline(lines, line);) {
      const auto said = nlohmann::json::parse(line);
      if (said.contains("end")) {
        const std::string end = said.at("end");
        result.status = end == "completed" ? CodeRunStatus::completed
                        : end == "failed"  ? CodeRunStatus::failed
                                           : CodeRunStatus::timed_out;
        result.reason = said.at("reason");
        continue;
      }
      if (sink && !sink(result.calls_returned, said.at("value").get<std::string>())) {
        result.status = CodeRunStatus::failed;
        result.reason = fmt::format("value of call {} not accepted", result.calls_returned);
        return result;
      }
      ++result.calls_returned;
      result.call_seconds.push_back(said.at("seconds"));
    }
    return result;
  }
};

}  // namespace jforge::test
