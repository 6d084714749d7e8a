#!/usr/bin/env python3
"""run_clang_tidy.py ROOT BUILD [FILE…]: runs clang-tidy over every source of the program (not the tests). Prints each
finding once; exits 1 if there is any; exits 77, which ctest counts as skipped, without clang-tidy-16. Library headers
take nearly all of the time, so a group of sources is checked as one translation unit that includes them all, with all
their options. Sources that define the same name at namespace scope go to different groups; a group that does not
compile is halved."""

import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

# A fixed version, because checks differ; clang-tidy 14 cannot read GCC 12's C++20 headers.
TOOL = "clang-tidy-16"
# Headers take about as long as 10,000 lines of our own.
GROUP_LINES = 22500
# GCC's omp.h, because clang's package conflicts; one attribute has no argument in clang.
OPENMP = ("-D__malloc__(x)=__malloc__", "-idirafter",
          subprocess.run(["c++", "-print-file-name=include"], capture_output=True, text=True, check=True).stdout.strip())
# An unindented line that defines a name at namespace scope.
DEFINITION = re.compile(r"^(?:\[\[\w+\]\] )?(?:(?:struct|class|enum class|enum|namespace) ([\w:]+)|using (?:\w+::)*(\w+)"
                        r"|\w[\w:<>, *&]*[ *&](\w+)(?:\(|\[|\{| =|;|$))")
# These may be repeated.
ALIASES = ("using ", "namespace ")


def tidy(root, source, arguments):
    """Returns (findings in files of ROOT, the compiler's error or None)."""
    command = [TOOL, "--quiet", f"--config-file={root}/.clang-tidy", f"--header-filter=^{re.escape(str(root))}/.*\\.cpp$",
               str(source), "--", *itertools.chain(*arguments), "-w", *OPENMP]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if re.search(r": (warning|error): ", line)]
    broken = [line for line in lines if "clang-diagnostic-" in line]
    if done.returncode != 0 and not lines:
        broken = [f"{source}: {TOOL} failed: {done.stderr.strip().splitlines()[-1:]}"]
    return [line for line in lines if line.startswith(f"{root}/")], broken


def findings(root, files, arguments):
    """Returns findings in `files`, which have the same arguments."""
    if len(files) == 1:
        lines, broken = tidy(root, files[0], arguments)
        return lines + [line for line in broken if line not in lines]
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as unit:
        unit.write("".join(f'#include "{path}"\n' for path in files))
        unit.flush()
        lines, broken = tidy(root, unit.name, arguments)
    if not broken:
        return lines
    print(f"read in halves: {' '.join(path.name for path in files)}: {broken[0]}", file=sys.stderr)
    half = len(files) // 2
    return findings(root, files[:half], arguments) + findings(root, files[half:], arguments)


def compile_arguments(entry):
    """Returns the options and their values of an entry of compile_commands.json, without source and outputs."""
    words = shlex.split(entry["command"])
    words = iter(words[next(i for i, word in enumerate(words) if word.startswith("-")):])
    kept = []
    for word in words:
        if word in ("-o", "-MF", "-MT", "-MQ"):
            next(words)
        elif word in ("-isystem", "-include", "-x"):
            kept.append((word, next(words)))
        elif word not in ("-c", "-MD", "-MMD", "-fpch-preprocess", "-Winvalid-pch", entry["file"]):
            kept.append((word,))
    return tuple(kept)


def sources_of(path):
    """Returns the sources that `path` compiles: those that it includes if CMake wrote it for JFORGE_UNITY."""
    if path.parent.name != "Unity":
        return [path]
    return [pathlib.Path(name) for name in re.findall(r'^#include "(.*)"$', path.read_text(encoding="utf-8"), re.MULTILINE)]


def alike(sources):
    """Returns {arguments: files} of `sources` {file: arguments}. Options are merged, because further macros and folders
    are harmless; other languages, other processors and OpenMP are not."""
    kinds = collections.defaultdict(list)
    for path, arguments in sources.items():
        kinds[tuple(option for option in arguments if option[0].startswith(("-x", "-m", "-fopenmp")))].append(path)
    return {tuple(dict.fromkeys(option for path in paths for option in sources[path])): set(paths) for paths in kinds.values()}


def definitions(path):
    """Returns {name at namespace scope: line}; of a function its types, too, because overloads are no clash."""
    names = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = DEFINITION.match(line)
        if match and not (line.startswith("namespace ") and line.endswith("{")):
            types = re.sub(r"\w+(?=[,)])", "", line[match.end():].replace("std::string_view", "const std::string&"))
            names[match[match.lastindex] + (types if match[0].endswith("(") else "")] = line
    return names


def groups(files):
    """Splits `files` into translation units: first fit by size, without common names other than equal aliases."""
    result = []
    for path in sorted(files):
        names = definitions(path)
        lines = path.read_text(encoding="utf-8").count("\n")
        for group in result:
            clash = any(name in group["names"] and not (line == group["names"][name] and line.startswith(ALIASES))
                        for name, line in names.items())
            if not clash and group["lines"] + lines <= GROUP_LINES:
                break
        else:
            group = {"names": {}, "lines": 0, "files": []}
            result.append(group)
        group["names"].update(names)
        group["lines"] += lines
        group["files"].append(path)
    return [(group["lines"], group["files"]) for group in result]


def main():
    root, build = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    if shutil.which(TOOL) is None:
        print(f"{TOOL} is not installed (Debian package {TOOL}): skipped")
        return 77
    chosen = {pathlib.Path(a).resolve() for a in sys.argv[3:]}
    sources = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        for path in sources_of(pathlib.Path(entry["file"]).resolve()):
            ours = path.suffix == ".cpp" and path.is_relative_to(root) and path.relative_to(root).parts[0] not in ("tests", "build")
            if path in chosen or (ours and not chosen):
                sources[path] = compile_arguments(entry)
    work = [(lines, arguments, group) for arguments, files in alike(sources).items() for lines, group in groups(files)]
    # Longest first, so that all cores end at about the same time.
    work.sort(key=lambda item: -item[0])
    seen = set()
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JFORGE_TIDY_JOBS", os.cpu_count()))) as pool:
        for lines in pool.map(lambda item: findings(root, item[2], item[1]), work):
            for line in lines:
                if line not in seen:
                    seen.add(line)
                    print(line.replace(f"{root}/", ""), flush=True)
    print(f"{sum(len(group) for _, _, group in work)} files in {len(work)} groups, {len(seen)} findings")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
