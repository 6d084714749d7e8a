#!/usr/bin/env python3
"""Checks layer edges, private headers, where MPI, HDF5, TOML and CUDA may be visible, and that JSON and TOML are parsed
with a depth limit. Prints a line per breach; exits 1 if there is any."""

import pathlib
import re
import sys

ALLOWED = {  # A folder may include itself and these folders; layers never depend upwards.
    "runtime": set(),
    "data": {"runtime"},
    "model": {"runtime", "data"},
    "checkpoints": {"runtime", "data", "model"},
    "workers": {"runtime", "data", "model", "checkpoints"},
    "results": {"runtime", "data"},
    "launch": {"runtime", "data", "model", "checkpoints", "workers", "results", "coordinator"},
    "tests": {"runtime", "data", "model", "checkpoints", "workers", "results", "coordinator", "launch"},
}
# The coordinator sees the workers' protocol and report writer, never their compute.
ALLOWED["coordinator"] = {"runtime", "data", "workers/protocol", "results"}

# Vendor headers and the folders that may see them.
VENDOR = [
    (re.compile(r"^mpi\.h$"), ("runtime/comm/", "tests/support/", "tests/distributed/", "tests/benchmarks/"), "MPI"),
    (re.compile(r"^(hdf5|H5\w*)\.h$"), ("data/", "checkpoints/", "tests/"), "HDF5"),
    (re.compile(r"^toml\+\+/"), ("launch/", "tests/unit/launch/"), "TOML"),
    (re.compile(r"^(cuda|cublas|nccl)|^runtime/tensor/cuda_(handles|products)\.h$"), (), "CUDA"),
]
# Parsers without a depth limit, and the files that add it.
UNBOUNDED = [
    (re.compile(r"\w*[jJ]son::parse\("), ("runtime/bounded_json.cpp", "checkpoints/safetensors.cpp"),
     "parse_bounded_json (runtime/bounded_json.h)"),
    (re.compile(r"\btoml::parse\("), ("launch/config/bounded_toml.cpp",),
     "parse_bounded_toml (launch/config/bounded_toml.h)"),
]
CUDA_PLACES = re.compile(r"\.(cu|cuh)$|^runtime/tensor/cuda_|^runtime/comm/nccl_|^tests/cuda_emulator/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def included(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def check_file(root, path):
    relative = path.relative_to(root).as_posix()
    folder = relative.split("/")[0]
    text = path.read_text(encoding="utf-8")
    for pattern, places, instead in UNBOUNDED:
        if folder != "tests" and relative not in places and pattern.search(text):
            yield f"{relative}: parses without a limit of depth: use {instead}"
    for number, quote, target in included(path):
        where = f"{relative}:{number}"
        for pattern, places, name in VENDOR:
            if pattern.match(target) and not relative.startswith(places or "\0"):
                if name != "CUDA" or not CUDA_PLACES.search(relative):
                    yield f"{where}: {name} header {target} may not be seen here"
        if quote != '"' or "/" not in target:
            continue
        other = target.split("/")[0]
        if other not in ALLOWED:
            yield f"{where}: \"{target}\" is not included from the root of the tree"
        elif other != folder and not any(
            target == edge or target.startswith(edge + "/") for edge in ALLOWED[folder]
        ):
            yield f"{where}: {folder} may not include {target}"
        parent = target.rsplit("/", 1)[0]
        if target.endswith("_internal.h") and folder != "tests" and not relative.startswith(parent + "/"):
            yield f"{where}: {target} is private to {parent}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    breaches = []
    for folder in sorted(ALLOWED):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu", ".cuh"} and "build" not in path.parts:
                breaches += check_file(root, path)
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
