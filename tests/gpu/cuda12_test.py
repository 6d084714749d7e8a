#!/usr/bin/env python3
"""Checks that CUDA 12.4 to 12.9 can build this CUDA build: host sources compile against their headers, and the
assembler of NVIDIA's CUDA 12 packages for Python accepts nvcc's PTX. Looks for the packages in the folder JFORGE_CUDA12
and on sys.path:
  pip install --target DIR --no-deps nvidia-cuda-runtime-cu12==12.4.* nvidia-cublas-cu12==12.4.* nvidia-cuda-nvcc-cu12==12.9.*
cuda12_test.py BUILD"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
# The newest PTX version that each assembler reads.
PTX_OF = {"12.4": "8.4", "12.5": "8.5", "12.6": "8.5", "12.8": "8.7", "12.9": "8.8"}


def packages():
    """The folder nvidia/ of CUDA 12, or None."""
    for place in filter(None, [os.environ.get("JFORGE_CUDA12"), *sys.path]):
        folder = pathlib.Path(place) / "nvidia"
        header = folder / "cuda_runtime/include/cuda_runtime_api.h"
        if header.exists() and re.search(r"define CUDART_VERSION +12\d{3}$", header.read_text(encoding="utf-8"), re.M) and \
                (folder / "cublas/include/cublasLt.h").exists() and (folder / "cuda_nvcc/bin/ptxas").exists():
            return folder
    return None


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@unittest.skipUnless(packages(), "no CUDA 12 packages for Python")
class Cuda12(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.nvidia = packages()
        cls.compiled = {}
        for one in json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8")):
            if one["file"].endswith(".cpp") or "--generate-code" in one["command"]:
                cls.compiled.setdefault(pathlib.Path(one["file"]), one)

    def words(self, source):
        words = shlex.split(self.compiled[source]["command"])
        words = words[1:] if words[0].endswith("ccache") else words
        output = words.index("-o")
        return [word for word in words[:output] + words[output + 2:] if word != "-c"]

    def all_pass(self, commands):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            results = threads.map(lambda command: run(command, BUILD), commands.values())
        for name, (status, said) in zip(commands, results, strict=True):
            with self.subTest(name):
                self.assertEqual(0, status, said[:2000])

    def test_host_sources_compile(self):
        headers = [word for folder in ("cuda_runtime", "cublas", "cuda_nvcc")
                   for word in ("-isystem", str(self.nvidia / folder / "include"))]
        sources = [source for source in self.compiled
                   if source.is_relative_to(ROOT / "runtime") and re.match(r"(cuda|nccl)_.*(?<!_absent)\.cpp$", source.name)]
        self.assertGreaterEqual(len(sources), 4)
        for source in sources:
            words = self.words(source)
            _, defined = run([words[0], *headers, *words[1:], "-E", "-dM"], BUILD)
            self.assertRegex(defined, r"define CUDART_VERSION 12\d{3}\n", source)
        self.all_pass({source.name: [words[0], *headers, *words[1:], "-fsyntax-only"]
                       for source in sources for words in [self.words(source)]})

    def test_kernels_assemble(self):
        ptxas = self.nvidia / "cuda_nvcc/bin/ptxas"
        ptxas.chmod(ptxas.stat().st_mode | 0o111)  # pip drops the executable bit
        release = re.search(r"release (\d+\.\d+)", run([ptxas, "--version"], BUILD)[1])[1]
        sources = [source for source in self.compiled if source.parent == ROOT / "model/kernels/cuda" and source.suffix == ".cu"]
        self.assertGreaterEqual(len(sources), 10)
        with tempfile.TemporaryDirectory() as scratch:
            made = []
            for source in sources:
                command = shlex.split(self.compiled[source]["command"])
                # The build keeps compute_80's PTX, uncompressed; no kernel has code of its own for another device.
                [found] = re.findall(rb"\.version [^\0]*", (BUILD / command[command.index("-o") + 1]).read_bytes())
                text, changed = re.subn(r"^\.version .*$", f".version {PTX_OF[release]}", found.decode(), flags=re.M)
                self.assertEqual(1, changed)
                made.append(pathlib.Path(scratch, f"{source.stem}.ptx"))
                made[-1].write_text(text, encoding="utf-8")
            self.all_pass({f"{file.stem} {device}": [ptxas, f"-arch={device}", "-O1", "-o", "/dev/null", file]
                           for file in made for device in ("sm_80", "sm_90a")})


if __name__ == "__main__":
    unittest.main(verbosity=2)
