#!/usr/bin/env python3
"""clang-tidy over every source of the program (not the tests): run_clang_tidy.py ROOT BUILD [FILE…], on all cores. Prints
each finding once and exits 1 when there is any; exits 77, which ctest counts as skipped, without clang-tidy-16.

Nearly all of its time goes into the headers of libraries. Sources are therefore read in groups, as one translation unit
that includes them all, with the options of them all. Sources that define the same name at namespace scope go to
different groups, and a group that does not compile is read in halves."""

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

# The version is named: checks differ between versions, and clang-tidy 14 does not read GCC 12's C++20 headers.
TOOL = "clang-tidy-16"
# The headers take about as long as 5,000 lines of our own.
GROUP_LINES = 8000
# GCC's omp.h, since the packages with clang's exclude each other; it uses an attribute that clang has without argument.
OPENMP = ("-D__malloc__(x)=__malloc__", "-idirafter",
          subprocess.run(["c++", "-print-file-name=include"], capture_output=True, text=True, check=True).stdout.strip())
# What a line without indentation defines at namespace scope: a type, an alias, a constant or a function.
DEFINITION = re.compile(r"^(?:\[\[\w+\]\] )?(?:(?:struct|class|enum class|enum|using|namespace) (\w+)|\w[\w:<>, *&]*[ *&](\w+)(?:\(|\[|\{| =|;|$))")
# What may be said twice.
ALIASES = ("using ", "namespace ")


def tidy(root, source, arguments):
    """(findings in files of ROOT, the compiler's complaint or None) of one translation unit."""
    command = [TOOL, "--quiet", f"--config-file={root}/.clang-tidy", f"--header-filter=^{re.escape(str(root))}/.*\\.cpp$",
               str(source), "--", *itertools.chain(*arguments), "-w", *OPENMP]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if re.search(r": (warning|error): ", line)]
    broken = [line for line in lines if "clang-diagnostic-" in line]
    if done.returncode != 0 and not lines:
        broken = [f"{source}: {TOOL} failed: {done.stderr.strip().splitlines()[-1:]}"]
    return [line for line in lines if line.startswith(f"{root}/")], broken


def findings(root, files, arguments):
    """Findings in `files`, which are compiled with the same arguments."""
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
    """Options, each with its value, of a command of compile_commands.json, without the source and what is written."""
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


def alike(sources):
    """{arguments: files} of `sources`, {file: arguments}: an argument that some lack is given to all, since a macro or a
    folder more changes nothing, but for files of another language, for another processor or with OpenMP."""
    together = {path: arguments for path, arguments in sources.items()
                if not any(option[0].startswith(("-x", "-m", "-fopenmp")) for option in arguments)}
    union = tuple(dict.fromkeys(option for arguments in together.values() for option in arguments))
    result = collections.defaultdict(set)
    for path, arguments in sources.items():
        result[union if path in together else arguments].add(path)
    return result


def definitions(path):
    """Names at namespace scope and the lines that define them."""
    names = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := DEFINITION.match(line):
            names[match[1] or match[2]] = line
    names.pop("jforge", None)
    return names


def groups(files):
    """`files`, all compiled alike, as lists that can be one translation unit each: the first that has room and no
    name in common, a repeated alias of the same text apart."""
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
        path = pathlib.Path(entry["file"]).resolve()
        ours = path.suffix == ".cpp" and path.is_relative_to(root) and path.relative_to(root).parts[0] not in ("tests", "build")
        if path in chosen or (ours and not chosen):
            sources[path] = compile_arguments(entry)
    work = [(lines, arguments, group) for arguments, files in alike(sources).items() for lines, group in groups(files)]
    # The longest first, so that no core waits for one of them at the end.
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
