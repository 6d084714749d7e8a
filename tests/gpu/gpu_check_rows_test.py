#!/usr/bin/env python3
"""launch/gpu_check.sh in a fake bundle of scripts; gpu_check_test.py tests the real one."""

import contextlib
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

SOURCE = pathlib.Path(os.environ.get("JFORGE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "launch/scripts"))
import gpu_bundle  # noqa: E402  (where it lies is known here only)

# FAKE_NCCL: "yes", or why NCCL is not used.
COLLECTIVES_TEST = """#!/bin/sh
echo "device_collectives $RANKS $* $JFORGE_CUDA_LIBRARIES" >>"$NOTES"
if [ "$FAKE_NCCL" = yes ]; then echo "[  PASSED  ] 11 tests."; exit; fi
for line in 213 226; do printf '%s\\n' "/a/device_collectives_test.cpp:$line: Skipped" "no NCCL, or ranks share a device" ""; done
printf '%s\\n' "[  PASSED  ] 9 tests." "[  SKIPPED ] 2 tests, listed below:" "[  SKIPPED ] NcclCollectives.A" "[  SKIPPED ] NcclCollectives.B"
"""
COLLECTIVES_BENCHMARK = """#!/bin/sh
echo "benchmark $RANKS" >>"$NOTES"
if [ "$FAKE_NCCL" = yes ]; then
  [ "$NCCL_DEBUG" != VERSION ] || echo "NCCL version 2.27.7+cuda13.0"
else
  echo "[2026-01-01 00:00:00.000] [info] collectives by MPI through host memory, not by NCCL: $FAKE_NCCL"
fi
for size in 1 16 256; do for name in all_reduce reduce_scatter all_gather; do
  echo "| $name of $size MiB, $RANKS ranks | 10 GB/s | 450 GB/s | 2.2 % |"
done; done
"""
BENCHMARK = """#!/bin/sh
echo "$(basename "$0") ${RANKS:-alone} $LC_ALL" >>"$NOTES"
for row in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do echo "| $(basename "$0") $row | 1 GB/s | 2 GB/s | 50 % |"; done
"""
# FAKE_SANITIZER: a command to run instead of reporting one passed case.
SANITIZER = """#!/bin/sh
echo "$*"
[ -z "$FAKE_SANITIZER" ] || { eval "$FAKE_SANITIZER"; exit; }
echo "[  PASSED  ] 1 test."
"""
NVIDIA_SMI = """#!/bin/sh
case $1 in
  --list-gpus) cat "$DEVICES" ;;
  *driver_version*) echo 580.1 ;;
  *compute_mode*) echo "${FAKE_MODE:-Default}" ;;
  *) echo "Another device" ;;
esac
"""
PIPELINE = """#!/bin/sh
cat <<'OUTPUT'
test_a (test.Pipeline.test_a)
What it does ... skipped "it's of one | of many"
test_b (test.Pipeline.test_b) ... ok
test_c (test.Pipeline.test_c) ... skipped 'never here'
test_d (test.Pipeline.test_d) ... skipped 'never here'
Ran 4 tests in 0.001s

OK (skipped=3)
OUTPUT
"""
PROGRAMS = {
    "gpu_kernel_agreement_test": "#!/bin/sh\necho 'device: A device'\n",
    "gpu_device_collectives_test": COLLECTIVES_TEST,
    "pipeline": PIPELINE,
    # Like on_device.py, first a probe without cases.
    "crash": '#!/bin/sh\necho "[  PASSED  ] 0 tests."\nexit 9\n',
    "nothing": '#!/bin/sh\necho "[  PASSED  ] 0 tests."\n',
    "collectives_benchmark": COLLECTIVES_BENCHMARK,
    **{name: BENCHMARK for name in ("kernel_benchmark", "model_benchmark", "trajectory_benchmark")},
    "jforge": "#!/bin/sh\n",
    "mpirun": '#!/bin/sh\nwhile [ "$1" != -n ]; do shift; done\nexport RANKS=$2\nshift 2\nexec "$@"\n',
    "compute-sanitizer": SANITIZER,
    "nvidia-smi": NVIDIA_SMI,
}
RANKS2 = ('gpu_device_collectives_test.ranks2\t60\t"$ROOT"/launch/scripts/local_mpirun.sh -n 2 '
          '"$ROOT"/bin/gpu_device_collectives_test --world-size=2')
ABSENT = "libnccl.so.2 cannot be opened"
SHARED = "ranks 0 and 1 share a device"
SLICED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)
  MIG 3g.40gb     Device  0: (UUID: MIG-0)
  MIG 3g.40gb     Device  1: (UUID: MIG-1)
"""


def heed_signals():
    """A shell cannot trap signals that nohup ignores."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Rows(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)
        self.root = self.folder / "bun dle"
        for name in ("bin", "lib", "libexec", "launch/scripts"):
            (self.root / name).mkdir(parents=True)
        scripts = ("local_mpirun", "mpi_env", "mpi_launcher", "outlive_readers")
        for name in ("gpu_check.sh", *(f"scripts/{one}.sh" for one in scripts)):
            shutil.copy(SOURCE / "launch" / name, self.root / "launch" / name)
        for name, text in PROGRAMS.items():
            self.write(f"bin/{name}", text).chmod(0o755)
        self.write("libexec/jforge", "… libnccl.so.2 …")
        self.write("cuda_libraries.txt", "libcudart.so.13\n")
        self.checks(RANKS2)
        self.cuda = self.folder / "cuda"
        self.cuda.mkdir()
        (self.cuda / "libcudart.so.13").touch()
        (self.folder / "python").mkdir()
        (self.folder / "python/torch.py").write_text("raise ImportError\n", encoding="utf-8")

    def write(self, name, text):
        (self.root / name).write_text(text, encoding="utf-8")
        return self.root / name

    def checks(self, *lines):
        self.write("checks.tsv", "".join(f"{line}\n" for line in lines))

    def environment(self, devices, nccl, **variables):
        listed = self.folder / "devices"
        listed.write_text(devices if isinstance(devices, str) else "".join(f"GPU {i}: A device\n" for i in range(devices)),
                          encoding="utf-8")
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "PYTHONPATH": str(self.folder / "python"),
                "PYTHONUSERBASE": str(self.folder / "packages"), "JFORGE_CUDA_LIBRARIES": str(self.cuda),
                "DEVICES": str(listed), "NOTES": str(self.folder / "notes"), "FAKE_NCCL": nccl,
                "GPU_CHECK_SYSTEM": str(self.folder / "system"), **variables}

    def check(self, devices=1, nccl=SHARED, *arguments, expected=0, **variables):
        """Returns the table; `notes` is what the programs noted."""
        (self.folder / "notes").write_text("", encoding="utf-8")
        said = subprocess.run([self.root / "launch/gpu_check.sh", *arguments], capture_output=True, text=True, check=False,
                              cwd=self.folder, env=self.environment(devices, nccl, **variables))
        self.assertEqual(said.returncode, expected, said.stdout + said.stderr)
        if "| what |" in said.stdout:
            self.assertEqual(said.stdout, (self.folder / "gpu_check.md").read_text(encoding="utf-8"))
        self.said = said.stderr
        self.notes = (self.folder / "notes").read_text(encoding="utf-8")
        return said.stdout

    def assert_row(self, table, what, result, figure):
        row = re.search(rf"(?m)^\| {re.escape(what)} \| .*$", table)
        self.assertTrue(row, f"no row {what}:\n{table}")
        self.assertRegex(row[0], rf"\A\| {re.escape(what)} \| {re.escape(result)} \| {figure} \|")

    def test_a_library_that_programs_open_comes_from_pythons_packages(self):
        place = subprocess.run([sys.executable, "-c", "import site; print(site.getusersitepackages())"], check=True, text=True,
                               capture_output=True, env=self.environment(1, "yes")).stdout.strip()
        path = pathlib.Path(place) / "nvidia/nccl/lib/libnccl.so.2"
        path.parent.mkdir(parents=True)
        path.touch()
        self.check(2, "yes", "--only", "tests")
        folders = self.notes.splitlines()[0].split(" ", 3)[3].split(":")
        self.assertEqual(folders[0], str(self.cuda))
        self.assertTrue(any((pathlib.Path(one) / "libnccl.so.2").exists() for one in folders), f"no libnccl in {folders}")
        self.assertNotIn("is not found", self.said)

    def test_skipped_cases_stand_in_their_row(self):
        self.checks(RANKS2, 'pipeline\t60\t"$ROOT"/bin/pipeline')
        table = self.check(1, SHARED, "--only", "tests")
        self.assert_row(table, "test: gpu_device_collectives_test.ranks2", "passed, 2 skipped",
                        r"9 cases, [\d.]+ s; 2 skipped: no NCCL, or ranks share a device")
        self.assert_row(table, "test: pipeline", "passed, 3 skipped",
                        r"1 cases, [\d.]+ s; 3 skipped: it's of one / of many; never here")
        self.assertIn("All passed but 5 skipped cases.", table)

    def test_what_ran_no_case_or_crashed_is_told_apart(self):
        self.checks('crash\t60\t"$ROOT"/bin/crash', 'nothing\t60\t"$ROOT"/bin/nothing')
        table = self.check(1, SHARED, "--only", "tests", expected=1)
        self.assert_row(table, "test: crash", "**failed (9)**", r"0 cases, [\d.]+ s")
        self.assert_row(table, "test: nothing", "**no case ran**", r"0 cases, [\d.]+ s")

    def test_an_empty_list_of_tests_fails(self):
        self.checks()
        table = self.check(1, SHARED, "--only", "tests", expected=1)
        self.assert_row(table, "tests", "**none listed**", "")
        self.assertIn("Not all passed", table)

    def test_tests_that_cannot_be_listed_end_it(self):
        (self.root / "checks.tsv").unlink()
        build = self.root / "build/cuda-release"
        for name in ("tests/gpu", "tests/benchmarks", "launch"):
            (build / name).mkdir(parents=True)
        shutil.copy(self.root / "bin/gpu_kernel_agreement_test", build / "tests/gpu")
        shutil.copy(SOURCE / "launch/scripts/gpu_bundle.py", self.root / "launch/scripts")
        self.write("bin/ctest", "#!/bin/sh\nexit 8\n").chmod(0o755)
        self.assertEqual("", self.check(1, SHARED, expected=4, PATH=f"{self.root / 'bin'}:/usr/bin:/bin"))
        self.assertRegex(self.said, r"(?m)^gpu_check\.sh: the tests cannot be listed, .*ctest.*exit status 8")

    def test_two_ranks_on_one_device_are_measured_by_mpi(self):
        table = self.check(1, SHARED, "--only", "collectives")
        self.assert_row(table, "benchmark: collectives", "passed", rf"by MPI: {SHARED}, [\d.]+ s")
        self.assert_row(table, "all_reduce of 256 MiB, 2 ranks, by MPI", "measured", "10 GB/s")
        self.assertNotIn("device_collectives_on", table)

    def test_several_devices_are_measured_by_nccl(self):
        table = self.check(2, "yes")
        self.assert_row(table, "test: gpu_device_collectives_test.ranks2", "passed", r"11 cases, [\d.]+ s")
        self.assert_row(table, "benchmark: collectives", "passed", r"by NCCL 2\.27\.7\+cuda13\.0, [\d.]+ s")
        self.assert_row(table, "all_reduce of 256 MiB, 2 ranks, by NCCL", "measured", "10 GB/s")
        self.assertIn("- device: A device, driver 580.1, the first of 2\n", table)
        self.assertRegex(table, r"\nAll passed\. Without FlexAttention \(ImportError\)\.\n\Z")
        table = self.check(2, "yes", "--only", "collectives", NCCL_DEBUG="WARN")
        self.assert_row(table, "benchmark: collectives", "passed", r"by NCCL, [\d.]+ s")

    def test_several_devices_without_nccl_fail(self):
        table = self.check(2, ABSENT, "--only", "collectives", expected=1)
        failed, get = "**failed: 2 devices, no NCCL**", "get libnccl.so.2: pip install nvidia-nccl-cu13, or"
        self.assert_row(table, "test: gpu_device_collectives_test.ranks2", failed, rf"9 cases, .*; 2 skipped: .*; {get} .*")
        self.assert_row(table, "benchmark: collectives", failed, rf"by MPI: {ABSENT}, .*; {get} .*")
        self.assertIn("Not all passed", table)

    def test_a_test_that_went_by_mpi_without_a_word_fails_too(self):
        self.checks('trainer\t60\tRANKS=2 "$ROOT"/bin/collectives_benchmark; echo "[  PASSED  ] 3 tests."')
        self.assert_row(self.check(2, ABSENT, "--only", "tests", expected=1), "test: trainer",
                        "**failed: 2 devices, no NCCL**", rf"3 cases, [\d.]+ s; by MPI: {ABSENT}; get .*")
        self.checks('trainer\t60\tFAKE_NCCL="ranks 0 and 2 share a device" RANKS=4 "$ROOT"/bin/collectives_benchmark; '
                    'echo "[  PASSED  ] 3 tests."')
        self.assert_row(self.check(2, "yes", "--only", "tests"), "test: trainer", "passed", r"3 cases, [\d.]+ s")

    def test_a_build_without_nccl_is_named(self):
        self.write("libexec/jforge", "")
        table = self.check(2, "this build has no NCCL (nccl.h was not found)", "--only", "collectives", expected=1)
        self.assert_row(table, "benchmark: collectives", "**failed: 2 devices, no NCCL**", ".*; this build has no NCCL: build where .*")

    def test_collectives_are_tested_on_every_device(self):
        table = self.check(3, "yes", "--only", "collectives")
        self.assert_row(table, "test: device_collectives_on_3", "passed", r"11 cases, [\d.]+ s")
        self.assertRegex(self.notes, r"(?m)^device_collectives 2 --world-size=2 ")
        self.assertRegex(self.notes, r"(?m)^device_collectives 3 --world-size=3 ")
        self.assertRegex(self.notes, r"(?m)^benchmark 3$")

    def test_slices_and_hidden_devices_do_not_count(self):
        for devices, chosen, counted in ((SLICED, None, 1), (4, "3", 1), (4, "0,1,3", 3), (3, "GPU-a,GPU-b,GPU-c,GPU-d", 3),
                                         ("", None, 1)):
            with self.subTest(devices=devices, chosen=chosen):
                table = self.check(devices, SHARED if counted == 1 else "yes", "--only", "collectives,training",
                                   **({} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}))
                self.assertRegex(self.notes, rf"(?m)^benchmark {max(counted, 2)}$")
                self.assertIn(f"the first of {counted}" if counted > 1 else "driver 580.1\n", table)
                self.assertRegex(self.notes, rf"(?m)^model_benchmark {counted} ")

    def test_devices_are_counted_by_the_programs_own_library(self):
        compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
        function = 'extern "C" int cudaGetDeviceCount(int* count)'
        library = self.cuda / "libcudart.so.13"
        subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13", "-o", library, "-x", "c++", "-"], check=True,
                       text=True, input=f"{function} {{ *count = 3; return 0; }}")
        subprocess.run([compiler, "-o", self.root / "libexec/gpu_kernel_agreement_test", "-x", "c++", "-", "-x", "none", library],
                       check=True, text=True, input=f"{function}; int main(int n, char**) {{ return cudaGetDeviceCount(&n); }}")
        for listed in (1, 8):
            self.check(listed, "yes", "--only", "collectives")
            self.assertRegex(self.notes, r"(?m)^benchmark 3$")

    def rows(self, table):
        return re.findall(r"(?m)^\| ([^|]+?) \|", table)[2:]

    def test_a_table_is_no_folder(self):
        self.check(1, SHARED, "--out", str(self.folder), expected=2)
        self.assertRegex(self.said, r"\Agpu_check\.sh: --out .*: is a folder; name a file\n\Z")

    def test_parts_and_rows_can_be_chosen(self):
        self.checks('pipeline\t60\t"$ROOT"/bin/pipeline', RANKS2)
        self.assertEqual(self.rows(self.check(1, SHARED, "--only", "tests")),
                         ["test: pipeline", "test: gpu_device_collectives_test.ranks2"])
        table = self.check(1, SHARED, "--only", "pipe,^compute-sanitizer: mem.*kernel,benchmark: training$")
        self.assertEqual([row for row in self.rows(table) if ":" in row],
                         ["test: pipeline", "benchmark: training", "compute-sanitizer: memcheck_gpu_kernel_agreement_test"])
        self.assertIn("All passed but 3 skipped cases. Only: pipe,^compute", table)
        self.check(1, SHARED, "--only", "no_row", expected=2)
        self.assertRegex(self.said, r"\Agpu_check\.sh: --only no_row: no row is called so\n\Z")

    def test_benchmarks_come_before_the_sanitizer(self):
        names = self.rows(self.check())
        kinds = [row.split(":")[0] for row in names if ":" in row]
        self.assertEqual(kinds, sorted(kinds, key=["test", "benchmark", "compute-sanitizer"].index))
        self.assertEqual(12, kinds.count("compute-sanitizer"))

    def test_what_no_longer_fits_is_left_out(self):
        self.checks('slow\t60\tsleep 3; echo "[  PASSED  ] 1 test."', 'endless\t60\tsleep 60', 'next\t60\ttrue')
        begin = time.monotonic()
        table = self.check(1, SHARED, "--only", "tests", "--seconds", "30")
        self.assertLess(time.monotonic() - begin, 30)
        self.assert_row(table, "test: slow", "passed", r"1 cases, [\d.]+ s")
        self.assert_row(table, "test: endless", "**left out: time**", r"[\d.]+ s")
        self.assert_row(table, "test: next", "**left out: time**", "")
        self.assertRegex(table, r"\nAll that ran passed\. Only: tests\. Left out for time: 2 rows\.\n\Z")
        table = self.check(1, SHARED, "--only", "tests", "--seconds", "1", expected=1)
        self.assert_row(table, "test: slow", "**left out: time**", "")
        self.assertIn("\nNothing ran. ", table)
        for wrong in ("0", "10s"):
            self.check(1, SHARED, "--seconds", wrong, expected=2)

    def test_only_what_took_its_time_is_called_timed_out(self):
        self.checks("killed\t60\tkill -KILL $$", "slow\t1\tsleep 9")
        table = self.check(1, SHARED, "--only", "tests", expected=1)
        self.assert_row(table, "test: killed", "**failed (137)**", r"[\d.]+ s")
        self.assert_row(table, "test: slow", "**timed out**", r"[\d.]+ s")

    def expect_ended(self, process):
        """The process may not be reaped yet."""
        status = pathlib.Path("/proc", process.strip(), "status")
        patience = time.monotonic() + 20
        try:
            while "\nState:\tZ" not in status.read_text(encoding="utf-8"):
                self.assertLess(time.monotonic(), patience)
                time.sleep(0.05)
        except (FileNotFoundError, ProcessLookupError):
            pass

    def test_a_signal_ends_what_runs_and_leaves_the_table(self):
        """Includes a program in a session of its own."""
        self.checks('first\t60\techo "[  PASSED  ] 1 test."',
                    'endless\t60\techo "| a figure | 1 | 2 | 3 |"; setsid sleep 1234 & echo $! >>"$NOTES"; sleep 1234')
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)):
            with self.subTest(number=number):
                notes = self.folder / "notes"
                notes.write_text("", encoding="utf-8")
                running = subprocess.Popen([self.root / "launch/gpu_check.sh"], stdout=subprocess.PIPE, text=True,
                                           stderr=subprocess.DEVNULL, cwd=self.folder, start_new_session=True,
                                           env=self.environment(1, SHARED), preexec_fn=heed_signals)
                while not re.fullmatch(r"\d+\n", notes.read_text(encoding="utf-8")):
                    self.assertIsNone(running.poll())
                    time.sleep(0.05)
                table = (self.folder / "gpu_check.md").read_text(encoding="utf-8")
                self.assert_row(table, "test: first", "passed", "1 cases, .*")
                self.assertIn("\nNot finished.", table)
                os.killpg(running.pid, number)
                table, _ = running.communicate(timeout=20)
                self.assertEqual(running.returncode, code)
                self.assertEqual(table, (self.folder / "gpu_check.md").read_text(encoding="utf-8"))
                self.assert_row(table, "test: first", "passed", "1 cases, .*")
                self.assert_row(table, "test: endless", f"**ended by {number.name}**", "")
                self.assert_row(table, "a figure", "measured", "1")
                self.assertIn(f"\nEnded by {number.name}: not all ran; ", table)
                self.expect_ended(notes.read_text(encoding="utf-8"))

    def test_what_a_program_leaves_running_is_ended(self):
        self.checks('leaves\t60\tsetsid sleep 1234 & echo $! >>"$NOTES"; echo "[  PASSED  ] 1 test."')
        self.check(1, SHARED, "--only", "tests")
        self.expect_ended(self.notes)

    def test_coloured_output_is_read(self):
        self.checks("coloured\t60\tprintf '\\033[0;32m%s\\033[m%s\\n' '[  PASSED  ] ' '2 tests.' "
                    "'[  SKIPPED ] ' '1 test, listed below:'",
                    'asked\t60\techo "[  PASSED  ] 1 test."; echo "$GTEST_COLOR $GTEST_FILTER" >>"$NOTES"')
        table = self.check(1, SHARED, "--only", "tests", GTEST_COLOR="yes", GTEST_FILTER="none")
        self.assert_row(table, "test: coloured", "passed, 1 skipped", r"2 cases, .*")
        self.assertEqual("no \n", self.notes)

    def test_a_benchmark_without_its_figures_fails(self):
        self.write("bin/kernel_benchmark", "#!/bin/sh\n")
        self.write("bin/trajectory_benchmark", "#!/bin/sh\necho '| one | 1 GB/s | 2 GB/s | 50 % |'\n")
        table = self.check(1, SHARED, "--only", "kernels,trajectories", expected=1)
        self.assert_row(table, "benchmark: kernels", "**no figure**", r"[\d.]+ s")
        self.assert_row(table, "benchmark: trajectories_bfloat16", "**1 of 2 figures**", r"[\d.]+ s")
        self.assertIn("Not all passed", table)

    def test_rows_of_tests_stand_in_the_table(self):
        self.checks('memory\t60\techo "| memory of training | 9 MB | planned 10 MB, target 0.9 to 1.1 | 0.90 |"; '
                    'echo "[  PASSED  ] 1 test."')
        self.assert_row(self.check(1, SHARED, "--only", "tests"), "memory of training", "measured", "9 MB")

    def test_flex_attentions_own_trouble_is_no_failure(self):
        """Whatever is missing, only the ratio is left out."""
        modules = ("import sys, types\nfor name in ('nn', 'nn.attention', {}):\n"
                   "    sys.modules['torch.' + name] = types.ModuleType(name)\n")
        there = modules.format("'nn.attention.flex_attention'") + (
            "sys.modules['torch.nn.attention.flex_attention'].flex_attention = None\n"
            "cuda = types.SimpleNamespace(is_available=lambda: True)\n")
        for text, why in (("raise ImportError", "ImportError"),
                          (modules.format("'other'"), "No module named 'torch.nn.attention.flex"), (there, "can't open file")):
            (self.folder / "python/torch.py").write_text(text, encoding="utf-8")
            table = self.check(1, SHARED, "--only", "kernels")
            self.assertRegex(table, rf"(?m)^\| FlexAttention \| ratio left out \| .*{why}.* \|")
            self.assertRegex(table, rf"\nAll that ran passed\..* Without FlexAttention \(.*{why}.*\)\.\n\Z")

    def test_a_sanitizer_that_does_not_work_is_no_failure(self):
        for said, why in (("echo '========= Error: Device not supported.'; exit 1", "Error: Device not supported."),
                          ("echo '========= Internal Sanitizer Error'; exit 9", "Internal Sanitizer Error"),
                          ("echo 'error 999 | at cudaMalloc'; exit 3", "error 999 / at cudaMalloc")):
            table = self.check(1, SHARED, "--only", "sanitizer", FAKE_SANITIZER=said, expected=1)
            self.assert_row(table, "compute-sanitizer", "unusable", re.escape(why))
            self.assertIn(f"Without compute-sanitizer (unusable: {why}).", table)
            self.assertEqual(["compute-sanitizer"], self.rows(table))
            self.assertIn("All passed but 2", self.check(1, SHARED, "--only", "tests,sanitizer", FAKE_SANITIZER=said))
        table = self.check(1, SHARED, "--only", "sanitizer", expected=1, FAKE_SANITIZER="exit 9")
        self.assert_row(table, "compute-sanitizer: racecheck_gpu_model_agreement_test", "**failed (9)**", r"[\d.]+ s")

    def test_the_sanitizer_leaves_errors_of_calls_and_long_cases_out(self):
        self.check(1, SHARED, "--only", "sanitizer")
        logs = self.folder / "gpu_check_logs"
        for log in logs.glob("*check_*"):
            self.assertIn("--report-api-errors no", log.read_text(encoding="utf-8"), log)
        self.assertIn("CudaErrors*", (logs / "memcheck_gpu_kernel_agreement_test.log").read_text(encoding="utf-8"))
        race = (logs / "racecheck_gpu_kernel_agreement_test.log").read_text(encoding="utf-8")
        self.assertNotIn("-*", race.split("filter=")[1])

    def test_a_sanitizer_that_is_not_there_is_told(self):
        (self.root / "bin/compute-sanitizer").unlink()
        if shutil.which("compute-sanitizer", path="/usr/bin:/bin:/usr/local/cuda/bin"):
            self.skipTest("this machine has one")
        table = self.check(1, SHARED, "--only", "tests,sanitizer")
        self.assert_row(table, "compute-sanitizer", "not on this machine", "")
        self.assertIn("Without compute-sanitizer (not on this machine).", table)

    def test_the_environment_of_a_job_is_not_passed_on(self):
        self.checks('asked\t60\tenv | grep -cE "^(SLURM|PMI|PMIX|OMPI)_" >>"$NOTES"; echo "[  PASSED  ] 1 test."')
        self.check(1, SHARED, "--only", "asked", SLURM_JOB_ID="1", PMI_RANK="0", PMIX_RANK="0", OMPI_MCA_pml="ucx")
        self.assertEqual("0\n", self.notes)

    def test_figures_have_a_decimal_point(self):
        locales = self.folder / "locales"
        locales.mkdir()
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", locales / "de_DE.UTF-8"], check=False,
                              capture_output=True)
        self.checks('asked\t60\techo "$LC_ALL" >>"$NOTES"; echo "[  PASSED  ] 1 test."')
        table = self.check(1, SHARED, "--only", "asked", LC_ALL="de_DE.UTF-8", LC_NUMERIC="de_DE.UTF-8",
                           **({"LOCPATH": str(locales)} if made.returncode == 0 else {}))
        self.assertRegex(self.notes, r"\AC(\.UTF-8)?\n\Z")
        self.assert_row(table, "test: asked", "passed", r"1 cases, \d+\.\d s")

    def test_an_exclusive_device_is_told(self):
        def told(devices, mode):
            table = self.check(devices, "yes", "--only", "tests", FAKE_MODE=mode)
            return "\n- note: compute mode Exclusive_Process: two ranks" in table
        self.assertTrue(told(1, "Exclusive_Process"))
        self.assertFalse(told(2, "Exclusive_Process") or told(1, "Default"))

    def refused(self, *arguments, expected=4, **variables):
        """Returns the only line that it prints."""
        self.assertEqual("", self.check(1, SHARED, *arguments, expected=expected, **variables))
        self.assertRegex(self.said, r"\Agpu_check\.sh: [^\n]+\n\Z")
        return self.said

    def test_a_driver_that_does_not_work_is_no_absent_gpu(self):
        probe = "#!/bin/sh\necho 'no CUDA device can be used: CUDA driver version is insufficient'\nexit 1\n"
        no_device = "#!/bin/sh\necho 'skipped: no CUDA device here'\nexit 77\n"
        smi = self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        self.write("bin/gpu_kernel_agreement_test", no_device)
        self.assertEqual("no GPU here: no CUDA device here\n", self.check(expected=77))
        for device in ("nvidiactl", "dxg"):
            file = self.folder / "system/dev" / device
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            for text, why in ((probe, "insufficient"), (no_device, "no CUDA device here")):
                self.write("bin/gpu_kernel_agreement_test", text)
                self.assertRegex(self.refused(), f"a driver \\(of unknown version; CUDA 13 needs 580 or newer\\) but .*{why}")
            file.unlink()
        file.touch()
        version = self.folder / "system/proc/driver/nvidia/version"
        version.parent.mkdir(parents=True)
        version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build\n",
                           encoding="utf-8")
        self.assertIn("a driver (550.90.07; ", self.refused())
        smi.write_text("#!/bin/sh\necho 535.1\n", encoding="utf-8")
        self.assertIn("a driver (535.1; ", self.refused())
        self.write("cuda_libraries.txt", "libcudart.so.13\nlibcublas_of_tomorrow.so.99\n")
        self.assertIn("CUDA's libraries are missing: libcublas_of_tomorrow.so.99", self.refused())

    def test_libraries_of_toolkits_and_conda_are_found(self):
        (self.cuda / "libcudart.so.13").unlink()
        conda = self.folder / "conda"
        for place, variables in ((self.folder / "system/usr/local/cuda-13.1/lib64", {}),
                                 (conda / "lib", {"CONDA_PREFIX": str(conda)})):
            place.mkdir(parents=True)
            (place / "libcudart.so.13").touch()
            self.check(1, SHARED, "--only", "collectives", **variables)
            self.assertIn(f" {place}", self.notes)
            (place / "libcudart.so.13").unlink()

    def test_places_that_are_not_there_are_named(self):
        self.assertIn("/dev/null", self.refused("--out", "/dev/null/gpu_check.md"))
        (self.folder / "gpu_check_logs").symlink_to("/dev/null/nothing")
        self.assertIn("--build /nonexistent: no such folder", self.refused("--build", "/nonexistent", expected=2))


class Packing(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.place = pathlib.Path(scratch.name)
        self.folder = self.place / "jforge-gpu"
        (self.folder / "bin").mkdir(parents=True)
        program = self.folder / "bin/program"
        program.write_text("#!/bin/sh\necho it runs\n", encoding="utf-8")
        program.chmod(0o755)
        (self.folder / "bin/link").symlink_to("program")

    @unittest.skipUnless(shutil.which("xz"), "xz is not here")
    def test_python_unpacks_what_xz_packs(self):
        out = self.place / "bundle.tar.xz"
        self.assertLess(gpu_bundle.archive(self.folder, out), 1)
        elsewhere = self.place / "else where"
        subprocess.run([sys.executable, "-W", "ignore", "-m", "tarfile", "-e", out, elsewhere], check=True)
        self.assertEqual("it runs\n", subprocess.run([elsewhere / "jforge-gpu/bin/link"], capture_output=True, text=True,
                                                     check=True).stdout)

    def test_a_failure_leaves_nothing(self):
        out = self.place / "bundle.tar.zst"
        for compress, limit, why in (("cat", 1e-4, "more than"), ("false", 60, "failed"), ("no_such_program", 60, "failed")):
            with unittest.mock.patch.dict(gpu_bundle.FORMATS, {".tar.zst": (compress, limit)}), \
                    self.assertRaisesRegex(SystemExit, why):
                gpu_bundle.archive(self.folder, out)
            self.assertEqual([self.folder], list(self.place.iterdir()))

    def test_other_formats_are_refused(self):
        out = self.place / "bundle.tar.gz"
        said = subprocess.run([SOURCE / "launch/gpu_check.sh", "--build", self.place, "--bundle", out], capture_output=True,
                              text=True, check=False)
        self.assertEqual((2, f"gpu_check.sh: --bundle {out}: must end with .tar.xz or .tar.zst\n"), (said.returncode, said.stderr))
        self.assertEqual([self.folder], list(self.place.iterdir()))

    def test_programs_of_another_commit_are_told(self):
        with unittest.mock.patch("subprocess.run", lambda *_, **__: subprocess.CompletedProcess((), 0, "abcdef012345678\n")):
            for version, told in (("jforge 0.1.0 (commit abcdef0123)", False),
                                  ("jforge 0.1.0 (commit abcdef0123+changes)", False), ("jforge 0.1.0 (commit 0123abcdef)", True)):
                with contextlib.redirect_stderr(io.StringIO()) as said:
                    gpu_bundle.expect_same_commit(version)
                self.assertEqual(told, "of commit 0123abcdef, the scripts of abcdef0123" in said.getvalue(), said.getvalue())


if __name__ == "__main__":
    unittest.main()
