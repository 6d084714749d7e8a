#!/usr/bin/env python3
"""The reader agrees with ptxas, and each kind of breach is found."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import kernel_resources

SOURCE = """
__global__ void local_array(const int* x, float* y) {
  __shared__ float shared[37];
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = x[i];
  shared[threadIdx.x] = values[x[threadIdx.x] & 63];
  __syncthreads();
  y[threadIdx.x] = shared[36 - threadIdx.x];
}
__global__ void __launch_bounds__(1024, 2) spilled(const float* x, float* y) {
  float values[48];
#pragma unroll
  for (int i = 0; i < 48; ++i) values[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 48; ++i) y[i * 1024 + threadIdx.x] = values[i] * values[(i * 29 + 7) % 48] + values[47 - i];
}
__global__ void multiplied(const unsigned* a, float* y) {
  float d[4] = {0, 0, 0, 0};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));
  y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


def said_by_ptxas(log):
    """Returns {(name, architecture): (registers, shared, frame)} of ptxas -v."""
    said = {}
    for name, architecture, text in re.findall(
            r"Compiling entry function '(\w+)' for 'sm_(\d+)a?'(.*?Used.*?)(?=\n)", log, re.S):
        shared = re.search(r"(\d+) bytes smem", text)
        said[kernel_resources.short_names([name])[name], int(architecture)] = (
            int(re.search(r"Used (\d+) registers", text)[1]), int(shared[1]) if shared else 0,
            int(re.search(r"(\d+) bytes stack frame", text)[1]))
    return said


class KernelResources(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "kernels.cu"
            source.write_text(SOURCE, encoding="utf-8")
            compiled = subprocess.run(
                [os.environ["JFORGE_NVCC"], "--threads=2", "--generate-code=arch=compute_80,code=[compute_80,sm_80]",
                 "--generate-code=arch=compute_90a,code=sm_90a", "--no-compress", "-Xptxas=-v", "-c", source.name],
                cwd=folder, capture_output=True, text=True, check=True)
            cls.log = compiled.stderr
            cls.code, cls.texts = kernel_resources.kernels_of(source.with_suffix(".o").read_bytes())

    def found(self, limits, architectures=(80, 90)):
        return "\n".join(kernel_resources.breaches(self.code, self.texts, kernel_resources.read_limits(limits),
                                                   architectures))

    def test_reads_what_ptxas_says(self):
        said = said_by_ptxas(self.log)
        self.assertEqual(len(said), 6, self.log)
        read = {(name, architecture): (kernel.registers, kernel.shared, kernel.local)
                for architecture, kernels in self.code.items() for name, kernel in kernels.items()}
        self.assertEqual(read, said)
        self.assertIn("spill stores", self.log)
        for kernels in self.code.values():
            self.assertGreater(kernels["spilled"].local, 0)
            self.assertEqual({name: kernel.tensor for name, kernel in kernels.items()},
                             {"local_array": 0, "spilled": 0, "multiplied": 1})

    def test_nothing_is_found_within_the_limits(self):
        self.assertEqual(self.found("| `multiplied` | 40 | 0 | 0 | `mma.sync` |\n| `*` | 64 | 148 | 512 | |\n"), "")

    def test_finds_each_breach(self):
        everything = "| `*` | 64 | 148 | 512 | |\n"
        for limits, line in [
                ("| `*` | 64 | 148 | 0 | |\n", "spilled, sm_80: local"),
                ("| `*` | 16 | 148 | 512 | |\n", "local_array, sm_90: registers"),
                ("| `*` | 64 | 147 | 512 | |\n", "local_array, sm_80: shared 148, at most 147"),
                ("| `multiplied` | 64 | 0 | 0 | |\n", "spilled: no row"),
                ("| `Gone*` | 64 | 0 | 0 | |\n" + everything, "row Gone*: no kernel"),
                ("| `spilled` | 64 | 0 | 512 | `mma.sync` |\n" + everything, "spilled: its PTX has no mma.sync"),
                ("| `spilled` | 64 | 0 | 512 | `mma.sync` |\n" + everything, "spilled, sm_90: no tensor-core"),
                ("| `multiplied` | 64 | 0 | 0 | `ldmatrix` |\n" + everything, "multiplied: its PTX has no ldmatrix")]:
            self.assertIn(line, self.found(limits))
        header = "| kernels | registers sm_80 / sm_90a | shared | local | instructions |\n"
        taken = {architecture: kernels["multiplied"].registers for architecture, kernels in self.code.items()}
        rest = "| `local_array`, `spilled` | 64 | 148 | 512 | |\n"
        row = "| `multiplied` | {} / {} | 0 | 0 | |\n"
        self.assertEqual(self.found(header + row.format(taken[80], taken[90]) + rest), "")
        self.assertEqual(self.found(header + row.format(40, taken[90] - 1) + rest),
                         f"multiplied, sm_90: registers {taken[90]}, at most {taken[90] - 1} by row multiplied")
        self.assertEqual(self.found(header + row.format(taken[80] - 1, 40) + rest),
                         f"multiplied, sm_80: registers {taken[80]}, at most {taken[80] - 1} by row multiplied")
        self.assertIn("no machine code for sm_100", self.found(everything, (80, 90, 100)))


if __name__ == "__main__":
    unittest.main()
