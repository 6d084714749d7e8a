#!/usr/bin/env python3
"""The layering lint finds each kind of breach."""

import pathlib
import subprocess
import sys
import tempfile

LINT = pathlib.Path(__file__).with_name("check_layering.py")

CASES = [
    ("runtime/a.h", '#include "data/x.h"\n', "runtime may not include data/x.h"),
    ("data/a.cpp", "#include <mpi.h>\n", "MPI header mpi.h"),
    ("model/a.cpp", "#include <hdf5.h>\n", "HDF5 header hdf5.h"),
    ("workers/a.cpp", "#include <toml++/toml.h>\n", "TOML header"),
    ("coordinator/a.cpp", '#include "workers/train/x.h"\n', "coordinator may not include workers/train/x.h"),
    ("launch/a.cpp", "#include <cuda_runtime.h>\n", "CUDA header"),
    ("model/a.cpp", '#include "runtime/tensor/cuda_handles.h"\n', "CUDA header"),
    ("model/a.cpp", '#include "data/tokenizer/x_internal.h"\n', "is private to data/tokenizer"),
    ("data/a.cpp", "auto a = nlohmann::ordered_json::parse(text);\n", "data/a.cpp: parses without a limit of depth"),
    ("workers/a.cpp", "auto a = Json::parse(text, nullptr, false);\n", "use parse_bounded_json"),
    ("launch/a.cpp", "auto a = toml::parse(text);\n", "use parse_bounded_toml"),
]
CLEAN = [
    ("workers/a.cpp", '#include "model/x.h"\n#include <vector>\n'),
    ("coordinator/a.cpp", '#include "workers/protocol/x.h"\n'),
    ("runtime/comm/a.cpp", "#include <mpi.h>\n"),
    ("model/kernels/cuda/a.cu", "#include <cuda_runtime.h>\n"),
    ("model/kernels/cuda/a.cuh", '#include "runtime/tensor/cuda_handles.h"\n'),
    ("model/kernels/a.cpp", '#include "runtime/tensor/cuda_memory.h"\n'),
]


def run(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files:
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, str(LINT), root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout


failures = 0
for name, text, expected in CASES:
    code, output = run([(name, text)])
    if code != 1 or expected not in output:
        print(f"missed: {name}: {text!r}: {output!r}")
        failures += 1
code, output = run(CLEAN)
if code != 0:
    print(f"false alarm: {output}")
    failures += 1
sys.exit(1 if failures else 0)
