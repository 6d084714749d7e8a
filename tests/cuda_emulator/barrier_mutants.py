#!/usr/bin/env python3
"""barrier_mutants.py LIBRARIES [--sample SECONDS [--seed N]] [--registry FILE] PROGRAM …: leaves each block barrier and
each wait of the CUDA test programs on the emulated device out once and says which program notices, in a table. One that
none notices must stand in FILE with the reason why it is redundant, and one that stands there must be noticed by none;
else exit 1. --sample takes mutants in a drawn order and begins none after SECONDS."""

import argparse
import os
import pathlib
import random
import re
import subprocess
import sys
import time

FRAMES_TOLD = 3


def run(libraries, program, tests=None, **environment):
    path = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))
    return subprocess.run([program, *([f"--gtest_filter={tests}"] if tests else [])],
                          env={**os.environ, "LD_LIBRARY_PATH": path, "GTEST_FAIL_FAST": "1",
                               "JFORGE_REQUIRE_GPU": "1", **environment}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)


def kernel_name(mangled):
    """The kernel's own source and body, as far as they stand in its name."""
    source = re.search(r"_\d+_([a-z_]+)_cu_", mangled)
    body = re.search(r"([A-Z][A-Za-z]+)E+vT_$", mangled) or re.search(r"(?<=\d)([a-z][a-z_]+ILi\d+)E+v", mangled)
    return f"{source.group(1) if source else ''} {body.group(1) if body else mangled}"


def function_names(frames):
    """Of OBJECT+OFFSET …: the innermost functions of our own that led to a call."""
    names = []
    for frame in frames:
        program, offset = frame.rsplit("+", 1)
        if "/libraries/lib" in program:
            continue
        found = subprocess.run(["addr2line", "-f", "-C", "-e", program, hex(int(offset, 16) - 1)],
                               capture_output=True, text=True, check=False).stdout.splitlines()
        name = re.sub(r"\(anonymous namespace\)::|jforge::|\(.*", "", found[0]) if found else "?"
        if name and (not names or names[-1] != name):
            names.append(name)
    return names[:FRAMES_TOLD]


def sites(libraries, programs):
    """Site to (name, [(program, first test that comes to it)])."""
    found, numbers = {}, {}
    for program in programs:
        listed = run(libraries, program, JFORGE_EMULATED_LIST="1")
        if listed.returncode != 0:
            sys.exit(f"{program} fails without a mutant:\n{listed.stdout[-4000:]}")
        test = None
        for line in listed.stdout.splitlines():
            if match := re.match(r"\[ RUN +\] (\S+)", line):
                test = match.group(1)
            elif match := re.match(r"barrier (\S+) PTX", line):
                mangled, number = match.group(1).rsplit(":", 1)
                found.setdefault(match.group(1), (f"{kernel_name(mangled)}, barrier {number}", []))[1].append((program, test))
            elif match := re.match(r"wait ((\w+):\w+) (.*)", line):
                if match.group(1) not in found:
                    name = f"{match.group(2)} in {' < '.join(function_names(match.group(3).split()))}"
                    numbers[name] = numbers.get(name, 0) + 1
                    found[match.group(1)] = (f"{name}, {numbers[name]}", [])
                found[match.group(1)][1].append((program, test))
    return found


def noticed(libraries, site, users):
    """What notices that `site` is left out, or None."""
    # The test that comes to it first mostly does, and is soon over.
    for tests in ("first", "all"):
        for program, test in users:
            result = run(libraries, program, test if tests == "first" else None, JFORGE_EMULATED_OMIT=site)
            if result.returncode != 0:
                found = re.search(r"^emulated device: ([a-z ]+):", result.stdout, re.M)
                return f"{found.group(1) if found else 'wrong result'} ({os.path.basename(program)})"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries")
    parser.add_argument("--sample", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--registry", type=pathlib.Path)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    options = parser.parse_args()
    libraries = os.path.abspath(options.libraries)
    redundant = {}
    if options.registry:
        for line in options.registry.read_text(encoding="utf-8").splitlines():
            if line.startswith("| ") and " | redundant: " in line:
                name, reason = line.strip("| ").split(" | redundant: ")
                redundant[name] = reason
    begin = time.monotonic()
    all_sites = list(sites(libraries, [os.path.abspath(program) for program in options.programs]).items())
    if options.sample is not None:
        random.Random(options.seed).shuffle(all_sites)
    tried = killed = wrong = 0
    print("| left out | noticed by |\n| --- | --- |")
    for site, (name, users) in all_sites:
        if options.sample is not None and time.monotonic() - begin > options.sample:
            break
        if options.sample is not None and name in redundant:
            continue
        tried += 1
        how = noticed(libraries, site, users)
        killed += how is not None
        if how is None and name in redundant:
            how = f"redundant: {redundant[name]}"
        elif how is None or name in redundant:
            wrong += 1
            how = how or "NOT NOTICED"
        print(f"| {name} | {how} |", flush=True)
    print(f"\n{killed} of {tried} left out were noticed; {len(all_sites)} sites")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
