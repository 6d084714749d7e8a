#include "workers/evaluate/sandbox/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <limits>
#include <thread>

#include "tests/support/message_of.h"
#include "tests/unit/workers/sandbox/sandbox_fixture.h"

namespace jforge {
namespace {

/// The value of f(*arguments), or the reason why there is none.
std::string value_of(CodeRunner& sandbox, const std::string& candidate,
                     const std::string& arguments = "[]") {
  CodeRunRequest request;
  request.candidate = candidate;
  request.entry_point = "f";
  request.calls = {arguments};
  request.check_seconds = request.total_seconds = 60;
  std::string value;
  const CodeRunResult result = sandbox.run(request, [&](std::int64_t, std::string_view json) {
    value = json;
    return true;
  });
  return result.status == CodeRunStatus::completed ? value : result.reason;
}

TEST_P(SandboxTest, ChecksAndCalls) {
  std::vector<std::string> values;
  const CodeRunResult result = sandbox_->run(
      request("def f(x):\n    return x + 1\n", "assert f(1) == 2", {"[1]", "[2.5]", "[10**30]"}),
      [&](std::int64_t call, std::string_view json) {
        EXPECT_EQ(call, static_cast<std::int64_t>(values.size()));
        values.emplace_back(json);
        return true;
      });
  EXPECT_EQ(result.status, CodeRunStatus::completed) << result.reason;
  EXPECT_EQ(result.reason, "");
  EXPECT_EQ(result.calls_returned, 3);
  EXPECT_EQ(result.call_seconds.size(), 3U);
  EXPECT_EQ(values, (std::vector<std::string>{R"({"int": "2"})", R"({"float": "3.5"})",
                                              R"({"int": "1000000000000000000000000000001"})"}));
}

TEST_P(SandboxTest, KindIsTheOneAskedFor) {
  EXPECT_EQ(sandbox_->kind(), GetParam());
  EXPECT_NE(sandbox_->description().find("Python 3"), std::string::npos);
  EXPECT_NE(sandbox_->description().find("numpy "), std::string::npos);
}

TEST_P(SandboxTest, ValuesKeepTheirExactTypes) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"None", "null"},
      {"True", "true"},
      {"[False, 0, -5]", R"([false, {"int": "0"}, {"int": "-5"}])"},
      {"(1,)", R"({"tuple": [{"int": "1"}]})"},
      {"()", R"({"tuple": []})"},
      {"'a\"\\n\\u00e9\\U0001f600'", R"("a\"\n\u00e9\ud83d\ude00")"},
      {"'x\\ud800'", R"({"str_utf16": "0078d800"})"},
      {"float('nan')", R"({"float": "nan"})"},
      {"[float('inf'), -float('inf'), -0.0, 1e-7]",
       R"([{"float": "inf"}, {"float": "-inf"}, {"float": "-0.0"}, {"float": "1e-07"}])"},
      {"1 - 2j", R"({"complex": ["1.0", "-2.0"]})"},
      {"b'\\x00\\xff'", R"({"bytes": "00ff"})"},
      {"bytearray(b'a')", R"({"bytes": "61"})"},
      {"{3}", R"({"set": [{"int": "3"}]})"},
      {"frozenset()", R"({"set": []})"},
      {"{'k': [1], 2: {}}", R"({"dict": [["k", [{"int": "1"}]], [{"int": "2"}, {"dict": []}]]})"},
      {"len", R"({"other": "builtin_function_or_method"})"},
      {"object()", R"({"other": "object"})"},
      {"[f]", R"([{"other": "function"}])"},
      {"__import__('collections').Counter('a')", R"({"dict": [["a", {"int": "1"}]]})"},
      {"__import__('collections').OrderedDict([(1, 2)])",
       R"({"dict": [[{"int": "1"}, {"int": "2"}]]})"},
      {"__import__('numpy').float64(0.5)", R"({"float": "0.5"})"},
      {"__import__('numpy').int32(7)", R"({"int": "7"})"},
      {"__import__('numpy').bool_(True)", "true"},
      {"__import__('numpy').datetime64('2020-01-01')", R"({"other": "date"})"},
      {"__import__('numpy').array([[1, 2]])", R"({"array": [[{"int": "1"}, {"int": "2"}]]})"},
      {"__import__('decimal').Decimal(1)", R"({"other": "Decimal"})"},
  };
  for (const auto& [expression, expected] : cases) {
    EXPECT_EQ(value_of(*sandbox_, "def f():\n    return " + expression + "\n"), expected)
        << expression;
  }
}

TEST_P(SandboxTest, SubclassesCountAsTheirBaseWhateverTheyOverride) {
  const std::string lies =
      "class I(int):\n    __repr__ = __str__ = __int__ = __index__ = lambda s: '2'\n"
      "class S(str):\n    __str__ = __repr__ = encode = lambda *a: b'2'\n"
      "class F(float):\n    __repr__ = __float__ = lambda s: '2'\n"
      "class L(list):\n    __iter__ = __len__ = lambda s: 1 / 0\n"
      "class D(dict):\n    items = keys = __iter__ = lambda s: 1 / 0\n"
      "class M(type):\n    __mro__ = (int, object)\n    __eq__ = lambda a, b: True\n"
      "    __hash__ = lambda a: 0\n    __name__ = property(lambda c: 1 / 0)\n"
      "class O(metaclass=M):\n    __class__ = int\n    __eq__ = lambda a, b: True\n"
      "class T(tuple):\n    __getitem__ = __iter__ = lambda *a: 1 / 0\n";
  const auto value = [&](const std::string& expression) {
    return value_of(*sandbox_, lies + "def f():\n    return " + expression + "\n");
  };
  EXPECT_EQ(value("I(7)"), R"({"int": "7"})");
  EXPECT_EQ(value("S('abc')"), R"("abc")");
  EXPECT_EQ(value("F(0.5)"), R"({"float": "0.5"})");
  EXPECT_EQ(value("L([1])"), R"([{"int": "1"}])");
  EXPECT_EQ(value("D(a=1)"), R"({"dict": [["a", {"int": "1"}]]})");
  EXPECT_EQ(value("T((1,))"), R"({"tuple": [{"int": "1"}]})");
  EXPECT_EQ(value("O()"), R"({"other": "O"})");
}

TEST_P(SandboxTest, DepthAndSizeOfValuesAreBounded) {
  const std::string deep =
      "def f(n):\n    v = 0\n    for _ in range(n):\n        v = [v]\n    return v\n";
  EXPECT_EQ(value_of(*sandbox_, deep, "[100]"),
            std::string(100, '[') + R"({"int": "0"})" + std::string(100, ']'));
  const std::string deeper = value_of(*sandbox_, deep, "[5000]");
  EXPECT_EQ(deeper, std::string(101, '[') + R"({"other": "list"})" + std::string(101, ']'));
  const std::string digits = "def f(n):\n    return -(10 ** n)\n";
  for (const int count : {6000, 30000, 1'000'000}) {
    // A quadratic search would take minutes.
    EXPECT_EQ(value_of(*sandbox_, digits, fmt::format("[{}]", count)),
              R"({"int": "-1)" + std::string(static_cast<std::size_t>(count), '0') + R"("})");
  }
}

TEST_P(SandboxTest, AValueThatGrowsWithoutEndIsRefused) {
  SandboxOptions options;
  options.kind = GetParam();
  options.value_bytes = 100'000;
  Sandbox sandbox(options);
  const std::string wide =
      "def f(n):\n    v = []\n    for _ in range(n):\n        v = [v, v]\n    return v\n";
  EXPECT_EQ(value_of(sandbox, wide, "[60]"), "call 0: value larger than 100000 bytes");
  EXPECT_EQ(value_of(sandbox, wide, "[2]"), "[[[], []], [[], []]]");
}

TEST_P(SandboxTest, LargeArgumentsAndValuesPass) {
  const std::string argument = "['" + std::string(8 << 20, 'x') + "']";
  EXPECT_EQ(value_of(*sandbox_, "def f(s):\n    return s + s\n", argument),
            '"' + std::string(16 << 20, 'x') + '"');
}

TEST_P(SandboxTest, EveryCallHasFreshArgumentsAndKeepsModuleState) {
  std::vector<std::string> values;
  const CodeRunResult result =
      sandbox_->run(request("seen = []\ndef f(v):\n    v.append(1)\n    seen.append(0)\n"
                            "    return len(v), len(seen)\n",
                            "", {"[[]]", "[[]]"}),
                    [&](std::int64_t, std::string_view json) {
                      values.emplace_back(json);
                      return true;
                    });
  EXPECT_EQ(result.status, CodeRunStatus::completed) << result.reason;
  EXPECT_EQ(values, (std::vector<std::string>{R"({"tuple": [{"int": "1"}, {"int": "1"}]})",
                                              R"({"tuple": [{"int": "1"}, {"int": "2"}]})"}));
}

TEST_P(SandboxTest, TheSinkCanEndTheRun) {
  std::int64_t asked = 0;
  const CodeRunResult result =
      sandbox_->run(request("def f(x):\n    return x\n", "", {"[0]", "[1]", "[2]"}),
                    [&](std::int64_t call, std::string_view) {
                      ++asked;
                      return call < 1;
                    });
  EXPECT_EQ(result.status, CodeRunStatus::failed);
  EXPECT_EQ(result.reason, "value of call 1 not accepted");
  EXPECT_EQ(result.calls_returned, 1);
  EXPECT_EQ(asked, 2);
}

TEST_P(SandboxTest, AnExceptionOfTheSinkLeavesNothingBehind) {
  const std::size_t before = open_descriptors();
  CodeRunRequest asked = request("def f_sink():\n    return 1\n", "", {"[]"});
  asked.entry_point = "f_sink";
  const CodeValueSink sink = [](std::int64_t, std::string_view) -> bool { throw DataError("no"); };
  EXPECT_THROW((void)sandbox_->run(asked, sink), DataError);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_TRUE(processes_with("f_sink").empty());
}

TEST_P(SandboxTest, ReasonsSayWhatHappened) {
  const auto reason = [&](const std::string& candidate, const std::string& check) {
    return sandbox_->run(request(candidate, check)).reason;
  };
  EXPECT_EQ(reason("x = 1", "assert x == 1\nassert x == 2"),
            "AssertionError at line 2 of the check");
  EXPECT_EQ(reason("x = 1", "assert x == 2, 'off'"), "AssertionError: off at line 1 of the check");
  EXPECT_EQ(reason("1 / 0", ""), "loading: ZeroDivisionError: division by zero");
  EXPECT_NE(reason("def f(:", "").find("loading: SyntaxError"), std::string::npos);
  EXPECT_EQ(reason("raise ValueError('a\\nb\\u00e9')", ""), "loading: ValueError: a b\\xe9");
  EXPECT_EQ(reason("raise ValueError(repr(object()))", ""),
            "loading: ValueError: <object object at 0x>");
  EXPECT_EQ(reason("import os\nos._exit(3)", ""), "ended with status 3 in loading");
}

TEST_P(SandboxTest, ChecksRunInTheModulesNamespace) {
  const CodeRunResult result = sandbox_->run(request(
      "from dataclasses import dataclass\n"
      "@dataclass\nclass P:\n    x: 'int'\n\ndef helper(p):\n    return p.x\n",
      "import math\ndef check(g):\n    assert g(P(3)) == 3\n    assert math.pi > helper(P(3))\n"
      "check(helper)"));
  EXPECT_EQ(result.status, CodeRunStatus::completed) << result.reason;
}

TEST_P(SandboxTest, ProgramsThatAreNoMainAndMakeNoiseStillPass) {
  const CodeRunResult result = sandbox_->run(
      request("import sys, atexit, tempfile, threading\n"
              "print('out'); print('err', file=sys.stderr)\n"
              "atexit.register(lambda: 1 / 0)\n"
              "class D:\n    def __del__(self):\n        raise ValueError\nD()\n"
              "with tempfile.TemporaryFile() as t:\n    t.write(b'x')\n"
              "worker = threading.Thread(target=print)\nworker.start()\nworker.join()\n"
              "if __name__ == '__main__':\n    raise SystemExit(1)\n"
              "import warnings; warnings.warn('w'); x = '\\d'\n",
              "assert x == '\\\\d'"));
  EXPECT_EQ(result.status, CodeRunStatus::completed) << result.reason;
}

TEST_P(SandboxTest, HashSeedIsTheOneAskedFor) {
  CodeRunRequest asked = request("def f():\n    return hash('a')\n", "", {"[]"});
  std::vector<std::string> values;
  for (const std::uint32_t seed : {0U, 0U, 4294967295U, 4294967295U}) {
    asked.hash_seed = seed;
    const CodeRunResult result = sandbox_->run(asked, [&](std::int64_t, std::string_view json) {
      values.emplace_back(json);
      return true;
    });
    ASSERT_EQ(result.status, CodeRunStatus::completed) << result.reason;
  }
  EXPECT_EQ(values[0], values[1]);
  EXPECT_EQ(values[2], values[3]);
  EXPECT_NE(values[0], values[2]);
}

TEST_P(SandboxTest, LimitsOfTimeAreKept) {
  CodeRunRequest slow_call =
      request("import time\ndef f(s):\n    time.sleep(s)\n", "", {"[0]", "[30]"});
  slow_call.call_seconds = {60, 0.2};
  CodeRunResult result = sandbox_->run(slow_call);
  EXPECT_EQ(result.status, CodeRunStatus::timed_out);
  EXPECT_EQ(result.reason, "out of time in call 1");
  EXPECT_EQ(result.calls_returned, 1);

  CodeRunRequest slow_check = request("x = 1", "import time\ntime.sleep(30)");
  slow_check.check_seconds = 0.3;
  EXPECT_EQ(sandbox_->run(slow_check).reason, "out of time in the check");

  CodeRunRequest total =
      request("import time\ndef f():\n    time.sleep(0.3)\n", "", {"[]", "[]", "[]", "[]"});
  total.total_seconds = 0.8;
  result = sandbox_->run(total);
  EXPECT_EQ(result.status, CodeRunStatus::timed_out);
  EXPECT_LT(result.calls_returned, 3);
}

TEST_P(SandboxTest, ProcessorTimeIsLimitedToo) {
  // Threads, because loading is limited by wall clock.
  CodeRunRequest burner = request(
      "import hashlib, threading\n"
      "def burn():\n    while True:\n        hashlib.sha256(bytes(1 << 22))\n"
      "for _ in range(3):\n    threading.Thread(target=burn).start()\nburn()\n");
  burner.total_seconds = 1;
  burner.check_seconds = 1;
  const CodeRunResult result = sandbox_->run(burner);
  EXPECT_EQ(result.status, CodeRunStatus::timed_out) << result.reason;
  burner.candidate =
      "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" + burner.candidate;
  const CodeRunResult deaf = sandbox_->run(burner);
  EXPECT_EQ(deaf.status, CodeRunStatus::timed_out) << deaf.reason;
}

TEST_P(SandboxTest, ProcessorTimeEndsByASignalOfItsOwn) {
  // SIGKILL may have other senders, and the measured time may be below the limit.
  EXPECT_EQ(value_of(*sandbox_,
                     "import resource\ndef f():\n"
                     "    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)\n"
                     "    return hard - soft\n"),
            R"({"int": "1"})");
}

TEST_P(SandboxTest, OnlyTheHarnesssDescriptorsAreOpen) {
  // Inheritable on purpose.
  const int open_end = open("/", O_RDONLY | O_DIRECTORY);
  const std::string value =
      value_of(*sandbox_,
               "import os\ndef is_open(d):\n    try:\n        os.fstat(d)\n        return True\n"
               "    except OSError:\n        return False\n"
               "def f():\n    return [d for d in range(4096) if is_open(d)][:3], "
               "sum(is_open(d) for d in range(4096))\n");
  close(open_end);
  EXPECT_EQ(value, R"({"tuple": [[{"int": "0"}, {"int": "1"}, {"int": "2"}], {"int": "5"}]})");
}

TEST_P(SandboxTest, InsideIsAnEmptyMachine) {
  const auto value = [&](const std::string& expression) {
    return value_of(*sandbox_, "import os\ndef f():\n    return " + expression + "\n");
  };
  EXPECT_EQ(value("sorted(set(os.listdir('/')) - {'bin', 'lib', 'lib32', 'lib64', 'init'})"),
            R"(["dev", "etc", "tmp", "usr"])");
  EXPECT_EQ(value("os.listdir('/tmp')"), "[]");
  EXPECT_EQ(value("set(os.listdir('/etc')) - {'alternatives', 'ld.so.cache'}"), R"({"set": []})");
  EXPECT_EQ(value("[os.getpid(), os.getppid(), os.getuid()]"),
            R"([{"int": "2"}, {"int": "1"}, {"int": "65534"}])");
  EXPECT_EQ(value("os.uname().nodename"), R"("sandbox")");
  EXPECT_EQ(value("os.getcwd()"), R"("/tmp")");
  EXPECT_EQ(value("os.environ.get('JFORGE_SOURCE_DIR')"), "null");
}

TEST_P(SandboxTest, ThreadsRunAtTheSameTime) {
  std::vector<std::thread> threads;
  std::vector<int> completed(4, 0);
  for (std::size_t thread = 0; thread < completed.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 8; ++round) {
        const CodeRunResult result = sandbox_->run(
            request(fmt::format("def f():\n    return {}\n", thread), "assert f() >= 0", {"[]"}),
            [&](std::int64_t, std::string_view json) {
              return json == fmt::format(R"({{"int": "{}"}})", thread);
            });
        completed[thread] += result.status == CodeRunStatus::completed ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(completed, std::vector<int>(4, 8));
}

TEST_P(SandboxTest, WorksForAnOrdinaryUser) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user; this user's own runs are the other tests";
  }
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int code = 1;
    if (setgroups(0, nullptr) == 0 && setresgid(65533, 65533, 65533) == 0 &&
        setresuid(65533, 65533, 65533) == 0) {
      try {
        SandboxOptions options;
        options.kind = GetParam();
        Sandbox sandbox(options);
        code = value_of(sandbox, "def f():\n    return 4\n") == R"({"int": "4"})" ? 0 : 2;
      } catch (const std::exception& error) {
        fmt::print("{}\n", error.what());
        code = 3;
      }
    }
    std::fflush(stdout);
    _exit(code);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Attempts to survive parent or first process.
const char* const kClinging[] = {
    "",
    // PR_SET_PDEATHSIG, also with bits that the kernel ignores.
    "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "for option in (1, (1 << 32) + 1):\n"
    "    assert libc.syscall(157, ctypes.c_ulong(option), 0, 0, 0, 0) == -1\n"
    "    assert ctypes.get_errno() == 1\n",
    "import os, threading, time\n"  // an exec by a thread drops the signal
    "threading.Thread(target=lambda: os.execv('/usr/bin/python3', ['python3', '-c', "
    "'import time; time.sleep(900) # NAME'])).start()\ntime.sleep(900)\n",
    "import os, signal\n"
    "for s in range(1, 65):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n"
    "    except (OSError, ValueError):\n        pass\n",
    "import os\nos.setsid() if os.getsid(0) != os.getpid() else 0\n"
    "for s in range(1, 65):\n    os.kill(1, s)\n",
};

TEST_P(SandboxTest, AKilledParentTakesItsProgramsAlong) {
  int number = 0;
  for (const char* const clinging : kClinging) {
    const std::string name =
        fmt::format("f_orphan_{}_{}_{}", getpid(), static_cast<int>(GetParam()), number++);
    SCOPED_TRACE(clinging);
    const auto wait_until = [&](bool there) {
      for (int tries = 0; tries < 600 && processes_with(name).empty() == there; ++tries) {
        usleep(50'000);
      }
      return processes_with(name).empty() != there;
    };
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::string program = clinging;
      if (const std::size_t at = program.find("NAME"); at != std::string::npos) {
        program.replace(at, 4, name);
      }
      CodeRunRequest sleeper = request(program + "import time\ntime.sleep(900)\n");
      sleeper.entry_point = name;
      sleeper.check_seconds = sleeper.total_seconds = 900;
      (void)sandbox_->run(sleeper);
      _exit(0);
    }
    EXPECT_TRUE(wait_until(true));
    usleep(1'000'000);
    EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "the program did not survive its own deed";
    EXPECT_FALSE(processes_with(name).empty());
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(wait_until(false));
  }
}

// The sandbox has its own limit.
TEST_P(SandboxTest, AStoppedParentsProgramsEndByThemselves) {
  SandboxSetup setup = make_sandbox_setup({});
  setup.bubblewrap = GetParam() == SandboxKind::bubblewrap;
  const std::string name = fmt::format("f_late_{}_{}", getpid(), static_cast<int>(GetParam()));
  SandboxProcess process(setup, {std::int64_t{1} << 30, 900, 1, 0}, name);
  const auto end = process.wait(std::chrono::seconds(60));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_code, 124);
  for (int tries = 0; tries < 600 && !processes_with(name).empty(); ++tries) {
    usleep(50'000);
  }
  EXPECT_TRUE(processes_with(name).empty());
}

TEST_P(SandboxTest, TheFirstProcessCannotBeReached) {
  const CodeRunResult result =
      sandbox_->run(request("import os, resource\n"
                            "for s in range(1, 65):\n    os.kill(1, s)\n"
                            "try:\n    os.kill(-1, 9)\nexcept ProcessLookupError:\n    pass\n",
                            "import os\nos.kill(1, 0)\nassert os.getppid() == 1"));
  EXPECT_EQ(result.status, CodeRunStatus::completed) << result.reason;
}

TEST_P(SandboxTest, ACancelledProgramEndsSoonWithoutAVerdict) {
  std::atomic<bool> cancelled = false;
  SandboxOptions options;
  options.kind = GetParam();
  options.cancelled = [&] { return cancelled.load(); };
  Sandbox sandbox(options);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    cancelled = true;
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW((void)sandbox.run(request("import time\ntime.sleep(50)\n")), Interrupted);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  later.join();
}

/// Keeps a processor busy with programs in sessions of their own, which the scheduler counts
/// singly, and binds this thread and its children to it.
class BusyProcessor {
 public:
  BusyProcessor() {
    CPU_ZERO(&before_);
    EXPECT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
    int processor = 0;
    while (CPU_ISSET(processor, &before_) == 0) {
      ++processor;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    for (pid_t& child : children_) {
      child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setsid();
        for (std::atomic<unsigned> spin = 0;;) {
          ++spin;
        }
      }
    }
  }
  ~BusyProcessor() {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    sched_setaffinity(0, sizeof(before_), &before_);
  }
  BusyProcessor(const BusyProcessor&) = delete;
  BusyProcessor& operator=(const BusyProcessor&) = delete;

 private:
  cpu_set_t before_{};
  std::array<pid_t, 10> children_{};
};

/// f(seconds) computes for that much processor time.
constexpr const char* kComputes =
    "import time\ndef f(seconds):\n    end = time.process_time() + seconds\n"
    "    while time.process_time() < end:\n        pass\n";

TEST_P(SandboxTest, OthersLoadTimesNobodyOut) {
  CodeRunRequest busy = request(kComputes, "", {"[0.5]"});
  busy.call_seconds = {1.5};
  const BusyProcessor load;
  const CodeRunResult result = sandbox_->run(busy);
  EXPECT_EQ(result.status, CodeRunStatus::completed) << result.reason;
}

TEST_P(SandboxTest, SleepIsTheProgramsOwn) {
  CodeRunRequest sleeps = request("import time\ndef f(s):\n    time.sleep(s)\n", "", {"[600]"});
  sleeps.call_seconds = {0.3};
  const BusyProcessor load;
  EXPECT_EQ(sandbox_->run(sleeps).status, CodeRunStatus::timed_out);
}

/// It must hold on a quiet machine, too.
TEST_P(SandboxTest, TimesTakenUnderLoadAreTheProgramsOwn) {
  // Four seconds by the clock. The smallest of several, because noticing the end takes time.
  constexpr double kEnough = 0.75;
  double measured = std::numeric_limits<double>::infinity();
  for (int round = 0; measured >= kEnough && round < 10; ++round) {
    const BusyProcessor load;
    const CodeRunResult result = sandbox_->run(request(kComputes, "", {"[0.4]"}));
    ASSERT_EQ(result.status, CodeRunStatus::completed) << result.reason;
    measured = std::min(measured, result.call_seconds[0]);
  }
  ASSERT_LT(measured, kEnough);
  CodeRunRequest slow = request(kComputes, "", {"[30]"});
  slow.call_seconds = {4 * measured};
  EXPECT_EQ(sandbox_->run(slow).status, CodeRunStatus::timed_out);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SandboxTest,
                         testing::Values(SandboxKind::bubblewrap, SandboxKind::namespaces),
                         kind_name);

std::string refusal_of(const SandboxOptions& options) {
  return test::message_of<EnvironmentError>([&] { const Sandbox sandbox(options); });
}

bool some_sandbox_works() {
  return shared_sandbox(SandboxKind::bubblewrap).sandbox != nullptr ||
         shared_sandbox(SandboxKind::namespaces).sandbox != nullptr;
}

TEST(SandboxStart, MissingInterpreterNamesThePackage) {
  SandboxOptions options;
  options.interpreter = "/usr/bin/no-such-python3";
  EXPECT_NE(refusal_of(options).find("apt-get install python3"), std::string::npos);
}

TEST(SandboxStart, MissingNumpyNamesThePackage) {
  if (!some_sandbox_works()) {
    GTEST_SKIP() << "no sandbox on this machine";
  }
  SandboxOptions options;
  options.interpreter_options = {"-S"};  // hides the distribution's packages
  const std::string refusal = refusal_of(options);
  EXPECT_NE(refusal.find("apt-get install python3-numpy"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("ModuleNotFoundError"), std::string::npos) << refusal;
}

TEST(SandboxStart, BubblewrapThatIsAbsentOrFailsIsReplaced) {
  if (shared_sandbox(SandboxKind::namespaces).sandbox == nullptr) {
    GTEST_SKIP() << shared_sandbox(SandboxKind::namespaces).refusal;
  }
  SandboxOptions options;
  for (const char* program : {"/usr/bin/no-such-bwrap", "/usr/bin/false"}) {
    options.bubblewrap = program;
    EXPECT_EQ(Sandbox(options).kind(), SandboxKind::namespaces);
  }
}

TEST(SandboxStart, WithoutAnySandboxNothingRuns) {
  SandboxOptions options;
  options.kind = SandboxKind::bubblewrap;
  options.bubblewrap = "/usr/bin/no-such-bwrap";
  std::string refusal = refusal_of(options);
  EXPECT_NE(refusal.find("not installed"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("apt-get install bubblewrap"), std::string::npos) << refusal;
  options.bubblewrap = "/usr/bin/false";
  refusal = refusal_of(options);
  EXPECT_NE(refusal.find("bubblewrap did not start"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace jforge
