#!/usr/bin/env python3
"""The rows of launch/gpu_check.sh in a make-believe bundle, whose programs are scripts and whose devices are lines: skipped
cases, how many devices there are, what collectives go by. gpu_check_test.py has the real bundle."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("JFORGE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))

# FAKE_NCCL: "yes", or why the programs go without it.
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
echo "| all_reduce of 256 MiB, $RANKS ranks | 10 GB/s | 450 GB/s | 2.2 % |"
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
    "gpu_kernel_agreement_test": "#!/bin/sh\n",
    "gpu_device_collectives_test": COLLECTIVES_TEST,
    "pipeline": PIPELINE,
    # As on_device.py: first a probe, which runs no case.
    "crash": '#!/bin/sh\necho "[  PASSED  ] 0 tests."\nexit 9\n',
    "nothing": '#!/bin/sh\necho "[  PASSED  ] 0 tests."\n',
    "collectives_benchmark": COLLECTIVES_BENCHMARK,
    **{name: "#!/bin/sh\n" for name in ("kernel_benchmark", "model_benchmark", "trajectory_benchmark", "jforge")},
    "mpirun": '#!/bin/sh\nwhile [ "$1" != -n ]; do shift; done\nexport RANKS=$2\nshift 2\nexec "$@"\n',
    "compute-sanitizer": '#!/bin/sh\necho "[  PASSED  ] 1 test."\n',
    "nvidia-smi": '#!/bin/sh\n[ "$1" != --list-gpus ] || { cat "$DEVICES"; exit; }\necho "A device, 580.1, 81559 MiB"\n',
}
RANKS2 = ('gpu_device_collectives_test.ranks2\t60\t"$ROOT"/launch/scripts/local_mpirun.sh -n 2 '
          '"$ROOT"/bin/gpu_device_collectives_test --world-size=2')
ABSENT = "libnccl.so.2 cannot be opened"
SHARED = "ranks 0 and 1 share a device"
SLICED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)
  MIG 3g.40gb     Device  0: (UUID: MIG-0)
  MIG 3g.40gb     Device  1: (UUID: MIG-1)
"""


class Rows(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)
        self.root = self.folder / "bun dle"
        for name in ("bin", "lib", "libexec", "launch/scripts"):
            (self.root / name).mkdir(parents=True)
        for name in ("gpu_check.sh", *(f"scripts/{one}.sh" for one in ("local_mpirun", "mpi_env", "outlive_readers"))):
            shutil.copy(SOURCE / "launch" / name, self.root / "launch" / name)
        for name, text in PROGRAMS.items():
            self.write(f"bin/{name}", text).chmod(0o755)
        self.write("libexec/jforge", "… libnccl.so.2 …")
        self.write("cuda_libraries.txt", "libcudart.so.13\n")
        self.checks(RANKS2)
        self.cuda = self.folder / "cuda"
        self.cuda.mkdir()
        (self.cuda / "libcudart.so.13").touch()
        # No PyTorch here, whatever the machine has.
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
                "DEVICES": str(listed), "NOTES": str(self.folder / "notes"), "FAKE_NCCL": nccl, **variables}

    def check(self, devices, nccl, expected=0, **variables):
        """The table; `notes`: what the programs noted."""
        (self.folder / "notes").write_text("", encoding="utf-8")
        said = subprocess.run([self.root / "launch/gpu_check.sh"], capture_output=True, text=True, check=False,
                              cwd=self.folder, env=self.environment(devices, nccl, **variables))
        self.assertEqual(said.returncode, expected, said.stdout + said.stderr)
        self.said = said.stderr
        self.notes = (self.folder / "notes").read_text(encoding="utf-8")
        return said.stdout

    def assert_row(self, table, what, result, figure):
        row = re.search(rf"(?m)^\| {re.escape(what)} \| .*$", table)
        self.assertTrue(row, f"no row {what}:\n{table}")
        self.assertRegex(row[0], rf"\A\| {re.escape(what)} \| {re.escape(result)} \| {figure} \|")

    def test_libraries_that_programs_open_come_from_pythons_packages(self):
        place = subprocess.run([sys.executable, "-c", "import site; print(site.getusersitepackages())"], check=True, text=True,
                               capture_output=True, env=self.environment(1, "yes")).stdout.strip()
        for library in ("nccl/lib/libnccl.so.2", "cudnn/lib/libcudnn.so.9"):
            path = pathlib.Path(place) / "nvidia" / library
            path.parent.mkdir(parents=True)
            path.touch()
        self.check(2, "yes")
        folders = self.notes.splitlines()[0].split(" ", 3)[3].split(":")
        self.assertEqual(folders[0], str(self.cuda))
        for library in ("libnccl.so.2", "libcudnn.so.9"):
            self.assertTrue(any((pathlib.Path(one) / library).exists() for one in folders), f"no {library} in {folders}")
        self.assertNotIn("is not found", self.said)

    def test_skipped_cases_stand_in_their_row(self):
        self.checks(RANKS2, 'pipeline\t60\t"$ROOT"/bin/pipeline')
        table = self.check(1, SHARED)
        self.assert_row(table, "test: gpu_device_collectives_test.ranks2", "passed, 2 skipped",
                        r"9 cases, [\d.]+ s; 2 skipped: no NCCL, or ranks share a device")
        self.assert_row(table, "test: pipeline", "passed, 3 skipped",
                        r"1 cases, [\d.]+ s; 3 skipped: it's of one / of many; never here")
        self.assertIn("All passed but 5 skipped cases.", table)

    def test_what_ran_no_case_or_crashed_is_told_apart(self):
        self.checks('crash\t60\t"$ROOT"/bin/crash', 'nothing\t60\t"$ROOT"/bin/nothing')
        table = self.check(1, SHARED, expected=1)
        self.assert_row(table, "test: crash", "**failed (9)**", r"0 cases, [\d.]+ s")
        self.assert_row(table, "test: nothing", "**no case ran**", r"0 cases, [\d.]+ s")

    def test_an_empty_list_of_tests_fails(self):
        self.checks()
        table = self.check(1, SHARED, expected=1)
        self.assert_row(table, "tests", "**none listed**", "")
        self.assertIn("Not all passed", table)

    def test_tests_that_cannot_be_listed_end_it(self):
        """In a build, where ctest knows them."""
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
        table = self.check(1, SHARED)
        self.assert_row(table, "benchmark: collectives", "passed", rf"by MPI: {SHARED}, [\d.]+ s")
        self.assert_row(table, "all_reduce of 256 MiB, 2 ranks, by MPI", "measured", "10 GB/s")
        self.assertNotIn("device_collectives_on", table)

    def test_several_devices_are_measured_by_nccl(self):
        table = self.check(2, "yes")
        self.assert_row(table, "test: gpu_device_collectives_test.ranks2", "passed", r"11 cases, [\d.]+ s")
        self.assert_row(table, "benchmark: collectives", "passed", r"by NCCL 2\.27\.7\+cuda13\.0, [\d.]+ s")
        self.assert_row(table, "all_reduce of 256 MiB, 2 ranks, by NCCL", "measured", "10 GB/s")
        self.assertIn("A device, 580.1, 81559 MiB, the first of 2", table)
        self.assertIn("All passed.", table)
        # What the user asks of NCCL is left so.
        self.assert_row(self.check(2, "yes", NCCL_DEBUG="WARN"), "benchmark: collectives", "passed", r"by NCCL, [\d.]+ s")

    def test_several_devices_without_nccl_fail(self):
        table = self.check(2, ABSENT, expected=1)
        failed, get = "**failed: 2 devices, no NCCL**", "get libnccl.so.2: pip install nvidia-nccl-cu13, or"
        self.assert_row(table, "test: gpu_device_collectives_test.ranks2", failed, rf"9 cases, .*; 2 skipped: .*; {get} .*")
        self.assert_row(table, "benchmark: collectives", failed, rf"by MPI: {ABSENT}, .*; {get} .*")
        self.assertIn("Not all passed", table)

    def test_a_test_that_went_by_mpi_without_a_word_fails_too(self):
        self.checks('trainer\t60\tRANKS=2 "$ROOT"/bin/collectives_benchmark; echo "[  PASSED  ] 3 tests."')
        self.assert_row(self.check(2, ABSENT, expected=1), "test: trainer", "**failed: 2 devices, no NCCL**",
                        rf"3 cases, [\d.]+ s; by MPI: {ABSENT}; get .*")
        # Four ranks of a pipeline on two devices share them.
        self.checks('trainer\t60\tFAKE_NCCL="ranks 0 and 2 share a device" RANKS=4 "$ROOT"/bin/collectives_benchmark; '
                    'echo "[  PASSED  ] 3 tests."')
        self.assert_row(self.check(2, "yes"), "test: trainer", "passed", r"3 cases, [\d.]+ s")

    def test_a_build_without_nccl_is_named(self):
        self.write("libexec/jforge", "")
        table = self.check(2, "this build has no NCCL (nccl.h was not found)", expected=1)
        self.assert_row(table, "benchmark: collectives", "**failed: 2 devices, no NCCL**", ".*; this build has no NCCL: build where .*")

    def test_collectives_are_tested_on_every_device(self):
        table = self.check(3, "yes")
        self.assert_row(table, "test: device_collectives_on_3", "passed", r"11 cases, [\d.]+ s")
        self.assertRegex(self.notes, r"(?m)^device_collectives 2 --world-size=2 ")
        self.assertRegex(self.notes, r"(?m)^device_collectives 3 --world-size=3 ")
        self.assertRegex(self.notes, r"(?m)^benchmark 3$")

    def test_slices_and_hidden_devices_do_not_count(self):
        for devices, chosen, counted in ((SLICED, None, 1), (4, "3", 1), (4, "0,1,3", 3), (3, "GPU-a,GPU-b,GPU-c,GPU-d", 3),
                                         ("", None, 1)):
            with self.subTest(devices=devices, chosen=chosen):
                table = self.check(devices, SHARED if counted == 1 else "yes",
                                   **({} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}))
                self.assertRegex(self.notes, rf"(?m)^benchmark {max(counted, 2)}$")
                self.assertIn(f"the first of {counted}" if counted > 1 else "81559 MiB\n", table)

    def test_devices_are_counted_by_the_programs_own_library(self):
        compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
        function = 'extern "C" int cudaGetDeviceCount(int* count)'
        library = self.cuda / "libcudart.so.13"
        subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13", "-o", library, "-x", "c++", "-"], check=True,
                       text=True, input=f"{function} {{ *count = 3; return 0; }}")
        subprocess.run([compiler, "-o", self.root / "libexec/gpu_kernel_agreement_test", "-x", "c++", "-", "-x", "none", library],
                       check=True, text=True, input=f"{function}; int main(int n, char**) {{ return cudaGetDeviceCount(&n); }}")
        for listed in (1, 8):
            self.check(listed, "yes")
            self.assertRegex(self.notes, r"(?m)^benchmark 3$")


if __name__ == "__main__":
    unittest.main()
