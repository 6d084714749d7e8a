#!/usr/bin/env python3
"""Lists the tests of launch/gpu_check.sh, or bundles all of it for a machine without our packages.

    gpu_bundle.py list BUILD           one line per test labelled gpu in a CUDA build: name, seconds, command (tabs between)
    gpu_bundle.py pack BUILD OUT       OUT: a .tar.xz, made in minutes, for a machine that takes 64 MiB with the source tree,
                                       or a .tar.zst, made in seconds; prints its size and what it needs

The programs of a bundle find their libraries from its root, which may lie anywhere:

    launch/gpu_check.sh                runs everything
    bin/NAME                           starts libexec/NAME with the libraries of lib/ and Open MPI's places
    lib/, libexec/                     shared libraries except the driver's and CUDA's; programs, stripped
    lib/system/                        the C library, for machines with an older one
    python/                            jinja2, for chat templates
    emulator/                          stand-ins for CUDA's libraries (tests/cuda_emulator), for gpu_check.sh --emulated
    checks.tsv                         the tests
    cuda_libraries.txt, glibc.txt      CUDA's libraries that the target must have, and the oldest C library that serves
    tests/, launch/                    scripts, models and golden values that the tests read, as in the source tree"""

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Compression command and maximum MiB. The window spans the bundle, because programs share code; zstd unpacks windows up
# to 128 MiB without an option.
FORMATS = {".tar.xz": ("xz --lzma2=preset=6,dict=192MiB", 48), ".tar.zst": ("zstd -6 --long=27 -q", 60)}
BENCHMARKS = ("kernel_benchmark", "model_benchmark", "trajectory_benchmark", "collectives_benchmark")
# SYSTEM: the C library. CUDA: the driver and CUDA, which the target has. NETWORK: only plug-ins left out need it.
SYSTEM = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so")
CUDA = re.compile(r"lib(cudart|cublas|cublasLt|nccl|nvrtc|nvJitLink|cuda)\.so")
NETWORK = re.compile(r"lib(fabric|psm|uc[mpst]\b|ibverbs|rdmacm|efa|infinipath|oshmem|mca_common_(ofi|ucx|verbs))")
# As in the tree; moved() adds files that a command names.
DATA = ("tests/golden/reference", "tests/end_to_end", "tests/benchmarks/flex_attention.py", "launch/gpu_check.sh",
        "launch/gpu_hour", "launch/configs/quickstart.toml",
        "launch/quickstart/model", "launch/quickstart/prompts.jsonl.gz", "launch/quickstart/ledger",
        "launch/scripts/local_mpirun.sh", "launch/scripts/mpi_env.sh", "launch/scripts/mpi_launcher.sh",
        "launch/scripts/outlive_readers.sh", "LICENSE")
STARTER = """#!/bin/sh
# Starts libexec/NAME for bin/NAME. JFORGE_CUDA_LIBRARIES: folders of CUDA's libraries (launch/gpu_check.sh finds them).
root=$(cd "$(dirname "$0")/.." && pwd)
export OPAL_PREFIX="$root" OPAL_BINDIR="$root/bin" OPAL_LIBDIR="$root/lib" OPAL_PKGLIBDIR="$root/lib/openmpi"
export OPAL_PKGDATADIR="$root/share/openmpi" OPAL_SYSCONFDIR="$root/share/openmpi"
export PMIX_PKGLIBDIR="$root/lib/pmix" PMIX_PKGDATADIR="$root/share/pmix" PMIX_SYSCONFDIR="$root/share/openmpi"
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$root/python"
program=$root/libexec/$(basename "$0")
libraries=$root/lib${JFORGE_CUDA_LIBRARIES:+:$JFORGE_CUDA_LIBRARIES}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
needed=$(cat "$root/glibc.txt") glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
if [ "$(printf '%s\\n' "$needed" "${glibc#glibc }" | sort -V | head -n 1)" != "$needed" ]; then
  # This machine's C library is too old. Its own programs, which ours start, must not see the bundle's.
  unset LD_LIBRARY_PATH
  exec "$root/lib/system/ld-linux-x86-64.so.2" --library-path "$root/lib/system:$libraries" "$program" "$@"
fi
export LD_LIBRARY_PATH="$libraries"
exec "$program" "$@"
"""
README = """# Jacobi Forge on this machine's GPU

    launch/gpu_check.sh                 # tests, benchmarks, compute-sanitizer where it is; one table, also in gpu_check.md
    launch/gpu_check.sh --seconds 540   # as much of it as fits; --only benchmarks: a part
    launch/gpu_check.sh --emulated      # a few of them without a GPU, on an emulated one

Made at commit {commit}. Needs bash, Linux on x86-64, python3 (also with PyTorch, for a comparison with
FlexAttention), and a driver for CUDA {cuda}. If the C library is older than glibc {glibc}, the programs take the one
in lib/system. Everything else is here except CUDA's own libraries:

    {libraries}

and one that the programs open when they first need it: libnccl.so.2, without which a machine of several devices fails. All
are looked for in JFORGE_CUDA_LIBRARIES (folders, with colons between), LD_LIBRARY_PATH, CUDA_HOME, /usr/local/cuda,
CONDA_PREFIX, the system's folders and python3's packages.
`pip install nvidia-cuda-runtime nvidia-cublas nvidia-nccl-cu13` brings them.
Exit codes: 0 all that ran passed, 1 something failed, 2 usage, 4 a library, program or driver is missing or does not work,
77 no GPU here.
"""


def tests(build):
    """Yields (name, seconds, {variable: value}, command) of each test labelled gpu."""
    shown = subprocess.run(["ctest", "--show-only=json-v1", "-L", "^gpu$"], cwd=build, capture_output=True, text=True,
                           check=True).stdout
    for test in json.loads(shown)["tests"]:
        values = {one["name"]: one["value"] for one in test.get("properties", [])}
        environment = dict(pair.partition("=")[::2] for pair in values.get("ENVIRONMENT", []))
        yield test["name"], int(values.get("TIMEOUT", 600)), environment, test["command"]


def line(name, seconds, environment, command, shown=shlex.quote):
    words = ["env", *(f"{key}={shown(value)}" for key, value in environment.items() if value), *map(shown, command)]
    return "\t".join([name, str(seconds), " ".join(words)])


def libraries_of(program):
    """{name: path or None} of the libraries that `program` loads."""
    shown = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = {pathlib.Path(loader).name: loader for loader in re.findall(r"^\s+(/\S*/ld-\S+)", shown, re.M)}
    for name, path in re.findall(r"^\s+(\S+) => (not found|\S+)", shown, re.M):
        found[name] = None if path == "not found" else path
    return found


class Bundle:
    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        self.cuda = set()
        self.taken = set()

    def copy(self, source, to):
        target = self.folder / to
        target.parent.mkdir(parents=True, exist_ok=True)
        if pathlib.Path(source).is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)  # follows links

    def strip(self, to):
        subprocess.run(["strip", "--strip-unneeded", self.folder / to], check=True)

    def libraries(self, program):
        for name, path in libraries_of(program).items():
            if CUDA.match(name):
                self.cuda.add(name)
            elif name not in self.taken:
                if path is None:
                    raise SystemExit(f"gpu_bundle.py: {program} needs {name}, which is not found")
                self.taken.add(name)
                if SYSTEM.match(name):
                    self.copy(path, f"lib/system/{name}")
                else:
                    self.copy(path, f"lib/{name}")
                    self.strip(f"lib/{name}")

    def program(self, path):
        """Adds a program with its libraries; returns bin/NAME."""
        name = pathlib.Path(path).name
        if not (self.folder / "libexec" / name).exists():
            self.copy(path, f"libexec/{name}")
            self.strip(f"libexec/{name}")
            self.libraries(path)
            (self.folder / "bin").mkdir(exist_ok=True)
            (self.folder / "bin" / name).symlink_to("../libexec/start")
        return f"bin/{name}"

    def open_mpi(self):
        """Adds mpirun and its plug-ins, except those for networks."""
        for name in ("mpirun", "orted"):
            path = shutil.which(name)
            if path is None:
                raise SystemExit(f"gpu_bundle.py: {name} is missing (Debian package openmpi-bin)")
            self.program(path)
        shown = subprocess.run(["ompi_info", "--path", "all", "--parsable"], capture_output=True, text=True,
                               check=True).stdout
        places = dict(re.findall(r"^path:(\w+):(.*)$", shown, re.M))
        plugins = pathlib.Path(places["pkglibdir"])
        for plugin in sorted(plugins.glob("mca_*.so")):
            if not any(NETWORK.match(name) for name in libraries_of(plugin)):
                self.libraries(plugin)
                self.copy(plugin, f"lib/openmpi/{plugin.name}")
        self.copy(places["pkgdatadir"], "share/openmpi")
        for config in pathlib.Path(places["sysconfdir"]).glob("*.conf"):
            self.copy(config, f"share/openmpi/{config.name}")
        # PMIx has its own plug-ins.
        pmix = libraries_of(plugins / "mca_pmix_ext3x.so").get("libpmix.so.2")
        if pmix:
            place = pathlib.Path(pmix).resolve().parent
            for plugin in sorted((place / "pmix").glob("*.so")):
                self.libraries(plugin)
                self.copy(plugin, f"lib/pmix/{plugin.name}")
            self.copy(place.parent / "share" / "pmix", "share/pmix")
            self.copy(place.parent / "share" / "pmix-mca-params.conf", "share/openmpi/pmix-mca-params.conf")

    def moved(self, text):
        """Returns a command's word for the bundle, under gpu_check.sh's $ROOT; copies the file that it names."""
        key, sign, value = text.partition("=") if re.match(r"\w+=/", text) else ("", "", text)
        path = pathlib.Path(value)
        if value.startswith(f"{self.build}/") and not path.exists():
            raise SystemExit(f"gpu_bundle.py: {value} is not built (target gpu_tests)")
        if value.startswith(f"{self.build}/") and path.is_file():
            return f'{key}{sign}"$ROOT"/{self.program(path)}'
        if re.search(r"/python3[.\d]*$", value):
            return "python3"
        if value.startswith(f"{ROOT}/") and path.is_file() and not (self.folder / path.relative_to(ROOT)).exists():
            self.copy(path, path.relative_to(ROOT))
        if value == str(ROOT) or value.startswith(f"{ROOT}/"):
            return f'{key}{sign}"$ROOT"{shlex.quote(value[len(str(ROOT)):]) if value != str(ROOT) else ""}'
        return shlex.quote(text)


def highest_glibc(folder):
    versions = {(2, 17)}
    for path in [*folder.glob("libexec/*"), *folder.glob("lib/*.so*"), *folder.glob("lib/*/*.so*")]:
        if path.parent.name != "system" and path.read_bytes()[:4] == b"\x7fELF":
            shown = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
            versions.update((int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", shown))
    return ".".join(map(str, max(versions)))


def expect_same_commit(version):
    """Warns if programs and scripts are of different commits."""
    built = re.search(r"\(commit (\w+)", version)
    asked = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if built and asked.returncode == 0 and not asked.stdout.startswith(built[1]):
        print(f"gpu_bundle.py: the programs are of commit {built[1]}, the scripts of {asked.stdout[:len(built[1])]}: "
              "build gpu_tests again", file=sys.stderr)


def archive(folder, out):
    """Packs `folder` into `out`. Returns MiB; leaves no partial file."""
    compress, limit = next(value for suffix, value in FORMATS.items() if out.name.endswith(suffix))
    part = out.with_name(f"{out.name}.part")
    try:
        packed = subprocess.run(["tar", "--sort=name", "--owner=0", "--group=0", f"--use-compress-program={compress}", "-cf",
                                 part, "-C", folder.parent, folder.name], check=False)
        if packed.returncode != 0:
            raise SystemExit(f"gpu_bundle.py: `{compress}` failed")
        size = part.stat().st_size / 2**20
        if size > limit:
            raise SystemExit(f"gpu_bundle.py: {size:.1f} MiB, more than {limit}")
        part.replace(out)
        return size
    finally:
        part.unlink(missing_ok=True)


def pack(build, out):
    if not out.name.endswith(tuple(FORMATS)):
        raise SystemExit(f"gpu_bundle.py: OUT must end with {' or '.join(FORMATS)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "jforge-gpu"
        (folder / "libexec").mkdir(parents=True)
        (folder / "libexec" / "start").write_text(STARTER, encoding="utf-8")
        (folder / "libexec" / "start").chmod(0o755)
        bundle = Bundle(build, folder)
        for name in DATA:
            bundle.copy(ROOT / name, name)
        for name in ("jinja2", "markupsafe"):
            bundle.copy(f"/usr/lib/python3/dist-packages/{name}", f"python/{name}")
        checks = [line(*test, shown=bundle.moved) for test in tests(build)]
        if not checks:
            raise SystemExit(f"gpu_bundle.py: {build} has no tests labelled gpu; configure with -DJFORGE_CUDA=ON")
        for name in BENCHMARKS:
            path = build / "tests" / "benchmarks" / name
            if path.exists():
                bundle.program(path)
        bundle.program(build / "launch" / "jforge")
        if b"libnccl.so.2" not in (build / "launch" / "jforge").read_bytes():
            print("gpu_bundle.py: this build has no NCCL (nccl.h was not found): on a machine of several devices it will fail",
                  file=sys.stderr)
        bundle.open_mpi()
        for library in sorted((build / "tests/cuda_emulator/libraries").glob("*.so.*")):
            bundle.copy(library, f"emulator/{library.name}")
            bundle.strip(f"emulator/{library.name}")
            bundle.libraries(library)
        glibc = highest_glibc(folder)
        (folder / "glibc.txt").write_text(f"{glibc}\n", encoding="utf-8")
        commit = subprocess.run([folder / "bin" / "jforge", "--version"], capture_output=True, text=True,
                                check=True).stdout.splitlines()[0]
        expect_same_commit(commit)
        cuda = re.search(r"CUDAToolkit_VERSION_MAJOR|libcudart\.so\.(\d+)", " ".join(bundle.cuda))
        (folder / "checks.tsv").write_text("".join(f"{one}\n" for one in checks), encoding="utf-8")
        (folder / "cuda_libraries.txt").write_text("".join(f"{name}\n" for name in sorted(bundle.cuda)), encoding="utf-8")
        (folder / "README.md").write_text(
            README.format(commit=commit, glibc=glibc, cuda=cuda[1], libraries=" ".join(sorted(bundle.cuda))),
            encoding="utf-8")
        unpacked = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        size = archive(folder, out)
    print(f"{out}: {size:.1f} MiB ({unpacked / 2**20:.0f} MiB unpacked), {len(checks)} tests; the target must have "
          f"{' '.join(sorted(bundle.cuda))}")


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "list":
        for test in tests(arguments[1]):
            print(line(*test))
    elif len(arguments) == 3 and arguments[0] == "pack":
        pack(pathlib.Path(arguments[1]).resolve(), pathlib.Path(arguments[2]).resolve())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
