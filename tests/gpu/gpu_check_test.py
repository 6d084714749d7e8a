#!/usr/bin/env python3
"""launch/gpu_check.sh and its bundle where no GPU is: packed, unpacked elsewhere and started in an empty environment, it has
every library that it needs, says that there is no GPU, and its own table is right on the emulated device."""

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


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.scratch.name)
        packed = folder / ("bundle.tar.zst" if shutil.which("zstd") else "bundle.tar.gz")
        cls.packing = subprocess.run([SOURCE / "launch/gpu_check.sh", "--build", BUILD, "--bundle", packed],
                                     capture_output=True, text=True, check=False)
        if cls.packing.returncode != 0:
            raise AssertionError(cls.packing.stdout + cls.packing.stderr)
        cls.mib = packed.stat().st_size / 2**20
        # A folder whose name needs quoting.
        place = folder / "else where"
        place.mkdir()
        subprocess.run(["tar", "xf", packed, "-C", place], check=True)
        packed.unlink()
        cls.root, = place.iterdir()

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def check(self, *arguments, **variables):
        return subprocess.run([self.root / "launch/gpu_check.sh", *arguments], capture_output=True, text=True, check=False,
                              cwd=self.scratch.name,
                              env={"PATH": "/usr/bin:/bin", "HOME": self.scratch.name, "OMP_NUM_THREADS": "1", **variables})

    def test_is_small_and_has_every_test(self):
        print(self.packing.stdout.strip())
        self.assertLessEqual(self.mib, gpu_bundle.LIMIT_MIB)
        checks = (self.root / "checks.tsv").read_text(encoding="utf-8")
        names = [line.split("\t")[0] for line in checks.splitlines()]
        self.assertEqual(names, [test[0] for test in gpu_bundle.tests(BUILD)])
        self.assertIn("gpu_pipeline", names)
        for place in (str(SOURCE), str(BUILD)):
            self.assertNotIn(place, checks + (self.root / "README.md").read_text(encoding="utf-8"))

    def test_brings_every_library(self):
        files = [*self.root.glob("libexec/*"), *self.root.glob("lib/**/*.so*"), *self.root.glob("emulator/*")]
        programs = [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]
        self.assertGreater(len(programs), 20)
        shown = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True,
                               env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": f"{self.root}/lib:{self.root}/emulator"})
        for name, path in re.findall(r"^\s+(\S+) => (not found|[^(]+?)(?: \(0x.*)?$", shown.stdout, re.M):
            if not gpu_bundle.SYSTEM.match(name):
                self.assertTrue(path.startswith(f"{self.root}/"), f"{name} => {path}")

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
        for name in ("kernels", "decoding", "decoding_float32", "training", "training_float32", "trajectories", "collectives"):
            self.assertIn(f"| benchmark: {name} | passed |", said.stdout)
        for row in (r"packed attention forward, .* \| measured \| .* TFLOP/s \| unknown \| unknown",
                    r"vocabulary loss, .* \| measured \| .* ms \| its products .* target 1\.25 at most \| [\d.]+",
                    r"AR decoding, .* weights of 2 bytes \| measured \| .* GB/s",
                    r"AR decoding, .* weights of 4 bytes \| measured \| .* GB/s", r"64 rows in flight, weights of 2 bytes \| measured \| .* target 1\.15 at most",
                    r"training step .* bfloat16, .* \| measured \| .* TFLOP/s",
                    r"training step .* float32, .* \| measured \| .* TFLOP/s", r"all_reduce of 1 MiB, 2 ranks \| measured \| .* GB/s",
                    r"trajectories, parallel, .* \| measured \| "):
            self.assertRegex(said.stdout, rf"(?m)^\| {row}")

    def test_a_failure_is_told(self):
        away = {}
        for name in ("gpu_zero_trainer_test", "kernel_benchmark", "model_benchmark", "trajectory_benchmark", "collectives_benchmark"):
            program = self.root / "libexec" / name
            away[program] = program.rename(f"{program}.away")
            program.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
            program.chmod(0o755)
        try:
            said = self.check("--emulated")
        finally:
            for program, place in away.items():
                place.rename(program)
        self.assertEqual(said.returncode, 1, said.stdout + said.stderr)
        self.assertRegex(said.stdout, r"\| test: two_ranks \| \*\*failed \(\d+\)\*\* \|")
        self.assertIn("| benchmark: kernels | **failed (3)** |", said.stdout)
        self.assertIn("Not all passed", said.stdout)


class Usage(unittest.TestCase):
    def test_wrong_options_are_refused(self):
        for arguments in (["--foo"], ["--build"], ["extra"]):
            said = subprocess.run([SOURCE / "launch/gpu_check.sh", *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(said.returncode, 2)
            self.assertIn("Exit codes:", said.stderr)


if __name__ == "__main__":
    unittest.main()
