// Each program attacks while loading: if it does not complete, the attack failed.

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/support/temporary_directory.h"
#include "tests/unit/workers/sandbox/sandbox_fixture.h"

namespace jforge {
namespace {

struct Hostile {
  const char* name;
  std::string deed;
  double seconds = 60;      ///< for loading and check
  const char* reason = "";  ///< part of the reason, if it matters
  std::string check = "assert f(1) == 2";
  std::string function = "def f(x):\n    return x + 1\n";
};

// SECRET stands for a file of the host.
const char* const kLibc =
    "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "def must(*words):\n"
    "    if libc.syscall(*words) < 0:\n        raise OSError(ctypes.get_errno(), 'refused')\n";

std::vector<Hostile> hostile_programs() {
  const std::string frames =
      "import os\ndef shout(bytes_):\n    for d in range(3, 256):\n        try:\n"
      "            os.write(d, bytes_)\n        except OSError:\n            pass\n";
  std::vector<Hostile> programs{
      {"fork_bomb", "import os\nwhile True:\n    os.fork()\n"},
      {"fork_through_subprocess", "import subprocess\nsubprocess.run(['/usr/bin/true'])\n"},
      {"vfork_through_posix_spawn",
       "import os\nos.posix_spawn('/usr/bin/python3', ['python3'], {})\n"},
      {"thread_bomb",
       "import threading, time\nwhile True:\n"
       "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"},
      {"memory_bomb", "x = []\nwhile True:\n    x.append(bytearray(1 << 26))\n", 60, "MemoryError"},
      {"memfd_bomb",
       "import os\nblock = bytes(1 << 24)\nfor _ in range(8):\n    d = os.memfd_create('x')\n"
       "    os.write(d, block)\n",
       60, "not permitted"},
      {"large_allocation", "x = bytearray(10 << 30)\n", 60, "MemoryError"},
      {"disk_filler",
       "n = 0\nwhile True:\n    n += 1\n    with open(f'/tmp/{n}', 'wb') as t:\n"
       "        t.write(bytes(1 << 24))\n",
       60, "No space left"},
      {"one_large_file",
       "with open('/tmp/x', 'wb') as t:\n    while True:\n        t.write(bytes(1 << 24))\n"},
      {"file_bomb", "n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{n}', 'w').close()\n", 3},
      {"descriptor_bomb", "x = []\nwhile True:\n    x.append(open('/dev/null'))\n", 60,
       "Too many open files"},
      {"delete_everything",
       "import shutil\nshutil.rmtree('/etc', ignore_errors=True)\n"
       "shutil.rmtree('/usr/share', ignore_errors=True)\nshutil.rmtree('/usr/bin')\n"},
      {"delete_a_file", "import os\nos.remove('SECRET')\n"},
      {"overwrite_a_library", "open('/usr/lib/os-release', 'a').write('x')\n"},
      {"write_beside_the_work_directory", "open('/x', 'w')\n"},
      {"kill_all", "import os\nos.kill(-1, 9)\n"},
      {"internet_socket", "import socket\nsocket.socket(socket.AF_INET)\n", 60, "not permitted"},
      {"connect_outside", "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)\n"},
      {"internet6_socket", "import socket\nsocket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n"},
      {"netlink_socket", "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\n"},
      {"look_up_a_name", "import urllib.request\nurllib.request.urlopen('http://example.org')\n"},
      {"read_shadow", "open('/etc/shadow').read()\n"},
      {"read_passwd", "open('/etc/passwd').read()\n"},
      {"read_the_run_directory", "open('SECRET').read()\n"},
      {"read_homes", "import os\nos.listdir('/root') + os.listdir('/home')\n"},
      {"read_proc", "open('/proc/1/environ').read()\n"},
      {"read_sys", "import os\nos.listdir('/sys')\n"},
      {"read_the_environment", "import os\nos.environ['JFORGE_TEST_SECRET']\n"},
      {"link_out", "import os\nos.symlink('/etc/passwd', '/tmp/x')\nopen('/tmp/x').read()\n"},
      {"climb_out", "open('../../../../../../../etc/passwd').read()\n"},
      {"make_a_device", "import os\nos.mknod('/tmp/d', 0o60600, os.makedev(8, 0))\n"},
      {"change_a_mode", "import os\nos.chmod('/usr/bin/python3', 0o777)\n"},
      {"execute_from_the_work_directory",
       "import shutil, os\nshutil.copy('/usr/bin/true', '/tmp/t')\nos.chmod('/tmp/t', 0o755)\n"
       "os.execv('/tmp/t', ['t'])\n"},
      {"become_another_program", "import os\nos.execv('/usr/bin/true', ['true'])\n", 60,
       "status 0"},
      {"close_all_descriptors", "import os\nos.closerange(0, 4096)\n"},
      {"ignore_signals_and_loop",
       "import signal\nfor s in range(1, 65):\n    try:\n"
       "        signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError):\n"
       "        pass\nwhile True:\n    pass\n",
       0.7, "out of time"},
      {"swallow_every_exception",
       "while True:\n    try:\n        while True:\n            pass\n"
       "    except BaseException:\n        pass\n",
       0.7, "out of time"},
      {"print_a_gigabyte",
       "import os\nblock = bytes(1 << 20)\nfor _ in range(512):\n    os.write(1, block)\n"
       "    os.write(2, block)\nprint(block)\nraise ValueError('through')\n",
       60, "through"},
      {"print_without_end", "while True:\n    print('x' * (1 << 16))\n", 0.7, "out of time"},
      {"daemon_grandchild",
       "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
       "        import time\n        time.sleep(999)\n"},
      {"exit_at_once", "import os\nos._exit(0)\n", 60, "status 0"},
      {"sys_exit", "import sys\nsys.exit(0)\n", 60, "SystemExit"},
      {"exit_in_the_function", "", 60, "status 0", "assert f(1) == 2",
       "import os\ndef f(x):\n    os._exit(0)\n"},
      {"system_exit_in_the_function", "", 60, "SystemExit", "assert f(1) == 2",
       "def f(x):\n    raise SystemExit(0)\n"},
      {"fake_verdict_on_output",
       "import sys, os\nprint('{\"status\": \"pass\"}')\nprint('ok', file=sys.stderr)\n"
       "os._exit(0)\n"},
      {"fake_loaded_on_every_descriptor",
       frames + "shout(b'L' + (16).to_bytes(4, 'little') + bytes(16))\n", 60, "not its own"},
      {"fake_nonce_on_every_descriptor",
       frames + "shout(b'N' + (16).to_bytes(4, 'little') + os.urandom(16))\nos._exit(0)\n"},
      {"enormous_frame", frames + "shout(b'V' + b'\\xff' * 4)\n", 60, "not its own"},
      {"verdict_during_the_function", "", 60, "not its own", "assert f(1) == 2",
       frames + "def f(x):\n    shout(b'N' + (16).to_bytes(4, 'little') + bytes(16))\n"
                "    return 2\n"},
      {"thread_that_waits_for_the_nonce",
       "import os, threading, time\ndef steal():\n    while True:\n        time.sleep(0.01)\n"
       "threading.Thread(target=steal, daemon=True).start()\n",
       60, "thread goes on"},
      {"patched_builtins", "import builtins\nbuiltins.abs = builtins.isinstance = lambda *a: 0\n",
       60, "AssertionError", "assert abs(f(1) - 3) == 0"},
      {"replaced_builtins", "__builtins__ = {'abs': lambda x: 0}\n", 60, "AssertionError",
       "assert abs(f(1) - 3) == 0"},
      {"patched_assertion_error",
       "import builtins\nclass Quiet(Exception):\n    pass\nbuiltins.AssertionError = Quiet\n", 60,
       "AssertionError", "assert f(1) == 3"},
      {"patched_modules",
       "import os, posix, sys, json\nos._exit = posix._exit = sys.exit = lambda *a: None\n"
       "os.write = posix.write = lambda d, b: len(b)\nos.read = posix.read = lambda d, n: b''\n",
       60, "AssertionError", "assert f(1) == 3"},
      {"trace_function",
       "import sys\ndef tracer(frame, event, argument):\n    frame.f_lineno = 99\n"
       "    return tracer\nsys.settrace(tracer)\nsys.setprofile(tracer)\n",
       60, "", "assert f(1) == 3"},
      {"timer_that_ends_it_well",
       "import signal, os\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
       "signal.setitimer(signal.ITIMER_REAL, 0.3)\n",
       60, "AssertionError", "import time\ntime.sleep(0.6)\nassert f(1) == 3"},
      {"exit_hook", "import atexit, os\natexit.register(lambda: os._exit(0))\n", 60,
       "AssertionError", "assert f(1) == 3"},
      {"long_power", "x = 9 ** 9 ** 9\n", 0.7, "out of time"},
      {"recursion", "", 60, "RecursionError", "assert f(1) == 2", "def f(x):\n    return f(x)\n"},
      {"stack_overflow",
       "import sys\nsys.setrecursionlimit(10 ** 9)\nclass A:\n    def __getattr__(self, n):\n"
       "        return getattr(self, n)\nrepr(A().x)\n"},
      {"crash", "import ctypes\nctypes.string_at(0)\n", 60, "signal 11"},
      {"abort", "import os\nos.abort()\n"},
      {"raises_while_it_is_described",
       "class E(Exception):\n    def __str__(self):\n        raise SystemExit(0)\nraise E\n"},
      {"standard_input", "input()\n", 60, "EOFError"},
      {"no_such_encoding", "x = '\xff'\n"},
      {"zero_byte", std::string("x = 1\n\0\n", 8)},
      {"deep_source", std::string(100'000, '(') + std::string(100'000, ')') + "\n"},
      {"sleep", "import time\ntime.sleep(999)\n", 0.7, "out of time"},
      {"wait_for_a_signal", "import signal\nsignal.pause()\n", 0.7, "out of time"},
      {"shared_memory",
       "from multiprocessing import shared_memory\n"
       "shared_memory.SharedMemory('x', create=True, size=1 << 20)\n"},
      {"leave_by_chroot", "import os\nos.chroot('/tmp')\n"},
      {"raise_a_limit", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"},
      {"set_the_user", "import os\nos.setuid(0)\n"},
  };
  const std::vector<std::pair<const char*, std::string>> calls{
      {"call_mount", "must(165, b'none', b'/tmp', b'tmpfs', 0, None)"},
      {"call_umount", "must(166, b'/tmp', 2)"},
      {"call_unshare", "must(272, 0x10000000)"},
      {"call_setns", "must(308, 0, 0)"},
      {"call_clone_with_namespaces", "must(56, 0x10000000 | 17, 0, 0, 0, 0)"},
      {"call_clone3", "must(435, None, 0)"},
      {"call_keyctl", "must(250, 0, -3, 1)"},
      {"call_perf_event_open", "must(298, None, 0, -1, -1, 0)"},
      {"call_userfaultfd", "must(323, 0)"},
      {"call_io_uring", "must(425, 1, None)"},
      {"call_personality", "must(135, 0x0040000)"},
      {"call_memfd_create", "must(319, b'x', 0)"},
      {"call_memfd_secret", "must(447, 0)"},
      {"call_shmget", "must(29, 0, 4096, 0o1600)"},
      {"call_prctl_parent_death_signal", "must(157, 1, 0, 0, 0, 0)"},
      {"call_mq_open", "must(240, b'x', 0o102, 0o600, None)"},
      {"call_vmsplice", "import os\nr, w = os.pipe()\nmust(278, w, None, 0, 0)"},
  };
  const std::vector<std::pair<const char*, std::string>> deadly{
      {"call_ptrace", "must(101, 0, 0, 0, 0)"},
      {"call_bpf", "must(321, 0, None, 0)"},
      {"call_reboot", "must(169, 0, 0, 0, 0)"},
      {"call_init_module", "must(175, None, 0, b'')"},
      {"call_kexec_load", "must(246, 0, 0, None, 0)"},
      {"call_process_vm_readv", "must(310, 1, None, 0, None, 0, 0)"},
  };
#if defined(__x86_64__)
  for (const auto& [name, call] : calls) {
    programs.push_back({name, kLibc + call + "\n", 60, "refused"});
  }
  for (const auto& [name, call] : deadly) {
    programs.push_back({name, kLibc + call + "\n", 60, "signal 31"});
  }
#endif
  return programs;
}

class HostileTest : public SandboxTest {
 protected:
  void SetUp() override {
    SandboxTest::SetUp();
    std::filesystem::permissions(directory_.path(), std::filesystem::perms::all);
    secret_ = directory_.path() / "secret";
    std::ofstream(secret_) << "the run directory's";
    std::filesystem::permissions(secret_, std::filesystem::perms::all);
    setenv("JFORGE_TEST_SECRET", "the parent's", 1);
    // In the command line of every process, to find leftovers.
    function_ = fmt::format("f_{}_{}", getpid(), static_cast<int>(GetParam()));
  }

  CodeRunResult run(const Hostile& hostile) const {
    CodeRunRequest asked;
    asked.candidate = hostile.deed;
    if (const std::size_t place = asked.candidate.find("SECRET'");
        place != std::string::npos && asked.candidate.find("JFORGE") == std::string::npos) {
      asked.candidate.replace(place, 6, secret_.string());
    }
    asked.candidate += hostile.function + function_ + " = f\n";
    asked.check = hostile.check;
    asked.entry_point = function_;
    asked.calls = {"[1]"};
    asked.check_seconds = hostile.seconds;
    asked.total_seconds = 100;
    asked.memory_bytes = std::int64_t{256} << 20;
    return sandbox_->run(
        asked, [](std::int64_t, std::string_view json) { return json == R"({"int": "2"})"; });
  }

  test::TemporaryDirectory directory_;
  std::filesystem::path secret_;
  std::string function_;
};

TEST_P(HostileTest, EachIsACountedFailureAndLeavesNothing) {
  EXPECT_EQ(run({"peaceful", ""}).status, CodeRunStatus::completed);
  const std::size_t descriptors = open_descriptors();
  const std::vector<Hostile> programs = hostile_programs();
  EXPECT_GE(programs.size(), 25U);
  for (const Hostile& hostile : programs) {
    SCOPED_TRACE(hostile.name);
    const CodeRunResult result = run(hostile);
    EXPECT_NE(result.status, CodeRunStatus::completed);
    EXPECT_NE(result.reason, "");
    EXPECT_NE(result.reason.find(hostile.reason), std::string::npos) << result.reason;
    EXPECT_EQ(result.status == CodeRunStatus::timed_out, result.reason.starts_with("out of time"))
        << result.reason;
    EXPECT_TRUE(processes_with(function_).empty());
    EXPECT_EQ(open_descriptors(), descriptors);
    std::ifstream file(secret_);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    ASSERT_EQ(text, "the run directory's");
  }
  EXPECT_EQ(run({"peaceful", ""}).status, CodeRunStatus::completed);
}

TEST_P(HostileTest, ObjectsEqualToEverythingDoNotPassACall) {
  const CodeRunResult result =
      run({"equal_to_everything", "", 60, "", "",
           "class E:\n    __eq__ = lambda a, b: True\ndef f(x):\n    return E()\n"});
  EXPECT_EQ(result.status, CodeRunStatus::failed);
  EXPECT_EQ(result.reason, "value of call 0 not accepted");
  EXPECT_EQ(run({"repr_lies", "", 60, "", "",
                 "class I(int):\n    __repr__ = lambda s: '2'\ndef f(x):\n    return I(7)\n"})
                .reason,
            "value of call 0 not accepted");
}

INSTANTIATE_TEST_SUITE_P(Kinds, HostileTest,
                         ::testing::Values(SandboxKind::bubblewrap, SandboxKind::namespaces),
                         kind_name);

}  // namespace
}  // namespace jforge
