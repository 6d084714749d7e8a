#!/usr/bin/env python3
"""launch/gpu_check.sh and its bundle without a GPU: unpacked elsewhere, in an empty environment, it has all libraries,
says that there is no GPU, and prints a correct table on the emulated device."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("JFORGE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("JFORGE_BUILD_DIR", SOURCE / "build/cuda-release"))
sys.path.insert(0, str(SOURCE / "launch/scripts"))
import gpu_bundle  # noqa: E402  (where it lies is known here only)

NO_GPU, MISSING = 77, 4
BWRAP = shutil.which("bwrap") and subprocess.run(["bwrap", "--dev-bind", "/", "/", "true"], check=False).returncode == 0

# Every measurement takes one second.
TORCH = {
    "__init__.py": """import contextlib, itertools, os, time, types
time.perf_counter = itertools.count().__next__
class Tensor(list):
    def __add__(self, other):
        return Tensor(a + b for a, b in zip(self, other if isinstance(other, list) else itertools.repeat(other)))
    def __sub__(self, other):
        return self + Tensor(-one for one in other)
    def sum(self):
        return sum(self)
__version__, bfloat16, no_grad = "0", None, contextlib.nullcontext
tensor = lambda values, device: Tensor(values)
arange = lambda count, device: Tensor(range(count))
randn = randn_like = compile = lambda first, *_, **__: first
autograd = types.SimpleNamespace(grad=lambda *_, **__: None)
cuda = types.SimpleNamespace(is_available=lambda: "NO_CUDA" not in os.environ, get_device_name=lambda: "none",
                             synchronize=lambda: None)
""",
    "_functorch/config.py": "",
    "nn/attention/flex_attention.py": "flex_attention = create_block_mask = lambda *_, **__: None",
}
# The number of cases, or just that it works.
SANITIZER = """#!/bin/sh
while [ "$1" != 9 ]; do shift; done
shift
"$@" --gtest_list_tests | sed -n 's/^  /case /p' >"$0.cases"
cat "$0.cases"
echo "[  PASSED  ] $(grep -c . "$0.cases") tests."
"""
FIGURES = """#!/bin/sh
for row in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do echo "| figure $row | 1 GB/s | 2 GB/s | 50 % |"; done
"""
BENCHMARKS = ("kernel_benchmark", "model_benchmark", "trajectory_benchmark", "collectives_benchmark")


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.scratch.name)
        packed = folder / ("bundle.tar.zst" if shutil.which("zstd") else "bundle.tar.xz")
        cls.packing = subprocess.run([SOURCE / "launch/gpu_check.sh", "--build", BUILD, "--bundle", packed],
                                     capture_output=True, text=True, check=False)
        if cls.packing.returncode != 0:
            raise AssertionError(cls.packing.stdout + cls.packing.stderr)
        cls.mib = packed.stat().st_size / 2**20
        place = folder / "else where"
        place.mkdir()
        subprocess.run(["tar", "xf", packed, "-C", place], check=True)
        packed.unlink()
        cls.root, = place.iterdir()
        cls.torch = folder / "fake"
        for name, text in TORCH.items():
            path = cls.torch / "torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def check(self, *arguments, **variables):
        return subprocess.run([self.root / "launch/gpu_check.sh", *arguments], capture_output=True, text=True, check=False,
                              cwd=self.scratch.name,
                              env={"PATH": "/usr/bin:/bin", "HOME": self.scratch.name, "OMP_NUM_THREADS": "1",
                                   "TERM": "xterm-256color", "PYTHONPATH": str(self.torch), **variables})

    @contextlib.contextmanager
    def programs(self, texts):
        away = {}
        for name, text in texts.items():
            program = self.root / "libexec" / name
            away[program] = program.rename(f"{program}.away")
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
        try:
            yield
        finally:
            for program, place in away.items():
                place.rename(program)

    def test_is_small_and_has_every_test(self):
        print(self.packing.stdout.strip())
        self.assertLessEqual(self.mib, 60)
        checks = (self.root / "checks.tsv").read_text(encoding="utf-8")
        names = [line.split("\t")[0] for line in checks.splitlines()]
        self.assertEqual(names, [test[0] for test in gpu_bundle.tests(BUILD)])
        self.assertIn("gpu_pipeline", names)
        self.assertEqual("this build has no NCCL" in self.packing.stderr, not list(self.root.glob("emulator/libnccl.so.2")))
        for place in (str(SOURCE), str(BUILD)):
            self.assertNotIn(place, checks + (self.root / "README.md").read_text(encoding="utf-8"))
        self.assertRegex((self.root / "glibc.txt").read_text(encoding="utf-8"), r"\A2\.\d+\n\Z")

    def test_brings_every_library(self):
        files = [*self.root.glob("libexec/*"), *self.root.glob("lib/**/*.so*"), *self.root.glob("emulator/*")]
        programs = [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]
        self.assertGreater(len(programs), 20)
        shown = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True,
                               env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": f"{self.root}/lib:{self.root}/emulator"})
        for name, path in re.findall(r"^\s+(\S+) => (not found|[^(]+?)(?: \(0x.*)?$", shown.stdout, re.M):
            if not gpu_bundle.SYSTEM.match(name):
                self.assertTrue(path.startswith(f"{self.root}/"), f"{name} => {path}")

    def test_its_programs_take_its_own_c_library_where_the_system_has_an_older_one(self):
        with tempfile.TemporaryDirectory() as scratch:
            getconf = pathlib.Path(scratch) / "getconf"
            for version, taken in (("2.9", True), ("2.99", False)):
                getconf.write_text(f"#!/bin/sh\necho glibc {version}\n", encoding="utf-8")
                getconf.chmod(0o755)
                said = subprocess.run(
                    [self.root / "launch/scripts/local_mpirun.sh", "-n", "2", self.root / "bin/jforge", "--version"],
                    capture_output=True, text=True, check=True,
                    env={**os.environ, "PATH": f"{scratch}:{self.root}/bin:/usr/bin:/bin", "LD_DEBUG": "libs",
                         "JFORGE_CUDA_LIBRARIES": str(self.root / "emulator")})
                self.assertTrue(said.stdout.startswith("jforge "), said.stdout)
                # mpirun and both ranks.
                begun = len(re.findall(rf"calling init: {self.root}/lib/system/libc\.so", said.stderr))
                self.assertEqual(3 if taken else 0, begun)

    @unittest.skipIf(pathlib.Path("/dev/nvidiactl").exists(), "there may be a GPU here")
    def test_says_that_there_is_no_gpu(self):
        said = self.check()
        self.assertEqual(said.returncode, NO_GPU, said.stderr)
        self.assertRegex(said.stdout, r"\Ano GPU here: .+\n\Z")

    def test_names_a_library_that_the_machine_lacks(self):
        libraries = self.root / "cuda_libraries.txt"
        before = libraries.read_text(encoding="utf-8")
        libraries.write_text("libcublas_of_tomorrow.so.99\n", encoding="utf-8")
        try:
            said = self.check()
        finally:
            libraries.write_text(before, encoding="utf-8")
        self.assertIn("missing: libcublas_of_tomorrow.so.99", said.stdout + said.stderr)
        self.assertEqual(said.returncode, MISSING if pathlib.Path("/dev/nvidiactl").exists() else NO_GPU)

    def test_its_table_is_true_on_the_emulated_device(self):
        said = self.check("--emulated", "--out", "table.md")
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        self.assertEqual((pathlib.Path(self.scratch.name) / "table.md").read_text(encoding="utf-8"), said.stdout)
        self.assertIn("emulated GPU: no figure here says anything about a device", said.stdout)
        self.assertRegex(said.stdout, r"\| test: kernel_agreement \| passed \| \d+ cases, ")
        self.assertIn("| test: two_ranks | passed |", said.stdout)
        for name in ("kernels", "flex_attention", "decoding_bfloat16_arithmetic", "decoding_bfloat16", "decoding_float32", "training",
                     "training_zero3", "training_float32", "trajectories_bfloat16_arithmetic", "trajectories_bfloat16", "collectives"):
            self.assertIn(f"| benchmark: {name} | passed |", said.stdout)
        self.assertIn("| benchmark: collectives | passed | by MPI: ranks 0 and 1 share a device, ", said.stdout)
        for row in (r"packed attention forward, .* \| measured \| .* TFLOP/s \| unknown \| unknown",
                    r"vocabulary loss, .* \| measured \| .* ms \| its products .* target 1\.25 at most \| [\d.]+",
                    r"AR decoding, .* weights bfloat16_arithmetic \| measured \| .* GB/s",
                    r"AR decoding, .* weights bfloat16 \| measured \| .* GB/s",
                    r"AR decoding, .* weights float32 \| measured \| .* GB/s",
                    r"AR decoding, .* \| measured \| .* GB/s \| unknown, target 80 % \|",
                    r"64 rows in flight, .* weights bfloat16_arithmetic \| measured \| .* target 1\.15 at most",
                    r"64 rows in flight, .* weights bfloat16 \| measured \| .* target none",
                    r"training step .* bfloat16, ZeRO 1, state checked, .* \| measured \| .* TFLOP/s \| unknown, target 50 % \|",
                    r"training step .* bfloat16, ZeRO 1, state not checked, .* \| measured \| .* TFLOP/s \| unknown, target 50 % \|",
                    r"training step .* ZeRO 3, state not checked, .* \| measured \| .* TFLOP/s \| unknown, target 50 % \|",
                    r"training step .* float32, .* state not checked, .* \| measured \| .* TFLOP/s \| unknown \|",
                    r"all_reduce of 1 MiB, 2 ranks, by MPI \| measured \| .* GB/s",
                    r"trajectories, .* parallel, weights bfloat16_arithmetic, .* \| measured \| .* \| unknown, target 45 % \|",
                    r"trajectories, .* parallel, weights bfloat16, .* \| measured \| "):
            self.assertRegex(said.stdout, rf"(?m)^\| {row}")
        shape = r"forward, 144 rows, \d+ pairs, heads 4/2 of 64, bfloat16"
        own, other, ratio = re.search(rf"(?m)^\| packed attention against FlexAttention, {shape} \| measured \| (\S+) TFLOP/s "
                                      r"\| FlexAttention (\S+) TFLOP/s, target 1\.2 at least \| (\S+) \|$", said.stdout).groups()
        self.assertAlmostEqual(float(own) / float(other), float(ratio), delta=0.006)

    def test_the_first_script_for_a_rented_gpu_leaves_tables_and_logs(self):
        out = pathlib.Path(self.scratch.name) / "right"
        said = subprocess.run([self.root / "launch/gpu_hour/1_right.sh", out, "120"], capture_output=True, text=True,
                              check=False, env={"PATH": "/usr/bin:/bin", "HOME": self.scratch.name, "OMP_NUM_THREADS": "1",
                                                "GPU_HOUR_EMULATED": "1"})
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        self.assertIn("| test: two_ranks | passed |", (out / "tests/gpu_check.md").read_text(encoding="utf-8"))
        logs = subprocess.run(["tar", "tzf", out / "logs.tar.gz"], capture_output=True, text=True, check=True).stdout
        self.assertIn("tests/gpu_check_logs/two_ranks.log", logs)
        self.assertEqual({"machine.txt", "tests", "logs.tar.gz"}, {path.name for path in out.iterdir()})

    def test_the_part_for_a_device_is_all_there(self):
        (self.torch / "compute-sanitizer").write_text(SANITIZER, encoding="utf-8")
        (self.torch / "compute-sanitizer").chmod(0o755)
        checks = self.root / "checks.tsv"
        before = checks.read_text(encoding="utf-8")
        checks.write_text("nothing\t60\ttrue\n", encoding="utf-8")
        flex = self.root / "tests/benchmarks/flex_attention.py"
        same_rows = f"#!/bin/sh\npython3 -B '{flex}' | sed 's/FlexAttention/packed attention/'\n"
        try:
            with self.programs({name: FIGURES for name in BENCHMARKS} | {"kernel_benchmark": same_rows + FIGURES}):
                said = self.check(JFORGE_CUDA_LIBRARIES=str(self.root / "emulator"), PATH=f"{self.torch}:/usr/bin:/bin")
        finally:
            checks.write_text(before, encoding="utf-8")
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        for passed in ("forward", "backward"):
            for heads in ("14/2 of 64", "28/4 of 128"):
                self.assertRegex(said.stdout, rf"(?m)^\| packed attention against FlexAttention, {passed}, 8192 rows, \d+ pairs, "
                                 rf"heads {heads}, bfloat16 \| measured \| .* \| 1\.00 \|$")
        logs = pathlib.Path(self.scratch.name) / "gpu_check_logs"
        for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
            for program, wanted, unwanted in (
                    ("gpu_kernel_agreement_test", ("Bfloat16Arithmetic", "SampledTokensAreTheCpus"), "OutOfMemory"),
                    ("gpu_tensor_core_attention_test", ("AgreesWithFloat32OnTheCpu", "DoesNotDependOnTheBatch/8Over2Of128"), "OutOfMemory"),
                    ("gpu_model_agreement_test", ("HasTheCpusTokensForwardsAndStates",), "LittleDevice")):
                self.assertRegex(said.stdout, rf"\| compute-sanitizer: {tool}_{program} \| passed \| \d+ cases, ")
                cases = (logs / f"{tool}_{program}.log").read_text(encoding="utf-8")
                for name in wanted:
                    self.assertIn(f"case {name}", cases)
                self.assertNotIn(unwanted, cases)

    def test_a_failure_is_told(self):
        with self.programs({name: "#!/bin/sh\nexit 3\n" for name in ("gpu_zero_trainer_test", *BENCHMARKS)}):
            said = self.check("--emulated", NO_CUDA="1")
        self.assertEqual(said.returncode, 1, said.stdout + said.stderr)
        self.assertRegex(said.stdout, r"\| test: two_ranks \| \*\*failed \(\d+\)\*\* \|")
        self.assertIn("| benchmark: kernels | **failed (3)** |", said.stdout)
        self.assertIn("| FlexAttention | ratio left out | no torch with CUDA |", said.stdout)
        self.assertIn("Not all passed", said.stdout)


    @unittest.skipUnless(BWRAP, "bwrap is not here, or may not hide anything")
    @unittest.skipIf(pathlib.Path("/dev/nvidiactl").exists(), "there may be a GPU here")
    def test_a_driver_that_does_not_work_is_a_failure(self):
        probe = [BUILD / "tests/gpu/gpu_kernel_agreement_test", "--gtest_filter=-*"]
        for driver, code, why in (((), NO_GPU, "skipped: no CUDA device here"),
                                  (("--ro-bind", "/dev/null", "/dev/nvidiactl"), 1, "no CUDA device can be used: .*driver")):
            said = subprocess.run(["bwrap", "--bind", "/", "/", "--dev", "/dev", *driver, *probe], capture_output=True,
                                  text=True, check=False)
            self.assertRegex(said.stdout, why)
            self.assertEqual(said.returncode, code)

    @unittest.skipUnless(BWRAP, "bwrap is not here, or may not hide anything")
    def test_each_check_finds_what_it_reads_without_the_source_tree(self):
        filters = {"gpu_kernel_agreement_test": "*.RmsNorm", "gpu_tensor_core_attention_test": "*.PlansReach*",
                   "gpu_model_agreement_test": "Plans*", "gpu_golden_test": "*/gqa_untied",
                   "gpu_quickstart_equality_test": "QuickstartAnswers.*", "gpu_sharded_adamw_test.ranks2": "*TakesTheBytes*",
                   "gpu_zero_trainer_test.ranks2": "*TwoRuns*"}
        cases = {"gpu_pipeline": ("RunPipeline.test_finishes_and_verifies.*", "RunPipeline.test_training_changed_the_model"),
                 "gpu_device_pipeline": (
                     "$", " DevicePipeline.test_every_method_gives_greedy_decodings_tokens_over_a_rounded_cache")}
        hidden = [word for place in {SOURCE, BUILD} for word in ("--tmpfs", place)]
        place = self.scratch.name
        variables = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "HOME": place, "TMPDIR": place, "ROOT": str(self.root),
                     "JFORGE_CUDA_LIBRARIES": f"{self.root}/emulator", "JFORGE_REQUIRE_GPU": "1", "GTEST_COLOR": "no",
                     "JFORGE_QUICKSTART_PROBLEMS": "1", "OMP_WAIT_POLICY": "passive"}
        for line in (self.root / "checks.tsv").read_text(encoding="utf-8").splitlines():
            name, _, command = line.split("\t")
            if name in ("gpu_memory_plan_test.ranks2", "gpu_device_resume_test"):  # read no file, and take long
                continue
            with self.subTest(name):
                command = re.sub(*cases.get(name, ("$", "")), command, count=1)
                run = ["bwrap", "--dev-bind", "/", "/", *hidden, "--bind", place, place, "bash", "-c", command]
                said = subprocess.run(run, capture_output=True, text=True, check=False, cwd=place,
                                      env={**variables, "GTEST_FILTER": filters.get(name, "*")})
                self.assertEqual(said.returncode, 0, said.stdout[-3000:] + said.stderr[-3000:])
                self.assertRegex(said.stdout + said.stderr, r"(?m)^(\[  PASSED  \] [1-9]|Ran [1-9])")


class Usage(unittest.TestCase):
    def test_wrong_options_are_refused(self):
        for arguments in (["--foo"], ["--build"], ["extra"]):
            said = subprocess.run([SOURCE / "launch/gpu_check.sh", *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(said.returncode, 2)
            self.assertIn("Exit codes:", said.stderr)


if __name__ == "__main__":
    unittest.main()
