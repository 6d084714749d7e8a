#!/usr/bin/env python3
"""barrier_mutants.py LIBRARIES PROGRAM …: leaves each block barrier and each wait of the CUDA test programs on the
emulated device out once and says in a table which test notices; by hand, since it takes half an hour.
barrier_mutants.py LIBRARIES --sample SECONDS [--seed N] --table mutants.md PROGRAM …: a drawn part of those that the table
says are noticed; exit 1 where one is not any more."""

import argparse
import datetime
import os
import pathlib
import random
import re
import subprocess
import sys
import time

FRAMES_TOLD = 3


def run(libraries, program, argument, **environment):
    path = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))
    return subprocess.run([program, argument],
                          env={**os.environ, "LD_LIBRARY_PATH": path, "GTEST_FAIL_FAST": "1",
                               "JFORGE_REQUIRE_GPU": "1", **environment}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)


def kernel_name(mangled):
    """The kernel's own source and body, as far as they stand in its name."""
    source = re.search(r"_\d+_([a-z_]+)_cu_", mangled)
    body = re.search(r"([A-Z][A-Za-z]+)E+vT_$", mangled) or re.search(r"(?<=\d)([a-z][a-z_]+ILi\d+)E+v", mangled)
    return f"{source.group(1) if source else ''} {body.group(1) if body else mangled}"


def function_names(frames, known={}):
    """Of OBJECT+OFFSET …: the innermost functions that led to a call, without the tests' own."""
    names = []
    for frame in frames:
        if frame not in known:
            program, offset = frame.rsplit("+", 1)
            found = subprocess.run(["addr2line", "-f", "-C", "-e", program, hex(int(offset, 16) - 1)],
                                   capture_output=True, text=True, check=False).stdout.splitlines()
            known[frame] = found[0] if found else "?"
        if re.search(r"testing::|_Test::|jforge::test::|^main$", known[frame]):
            break
        name = re.sub(r"\(anonymous namespace\)::|jforge::|\(.*", "", known[frame])
        if name and (not names or names[-1] != name):
            names.append(name)
    return names[:FRAMES_TOLD]


def tests_of(libraries, program):
    """Their full names."""
    suite, tests = "", []
    for line in run(libraries, program, "--gtest_list_tests").stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if name.endswith(".") and not line.startswith(" "):
            suite = name
        elif line.startswith("  "):
            tests.append(suite + name.strip())
    return tests


def sites(libraries, tests):
    """`tests`: (program, test). What is left out together, with commas between, to (name, [(program, test that comes to
    it)], whether the barriers beside it make it superfluous)."""
    found, groups, idle = {}, {}, set()
    for program, test in tests:
        listed = run(libraries, program, f"--gtest_filter={test}", JFORGE_EMULATED_LIST="1")
        if listed.returncode != 0:
            sys.exit(f"{program} fails without a mutant:\n{listed.stdout[-4000:]}")
        for line in listed.stdout.splitlines():
            if match := re.match(r"barrier (\S+) PTX line \d+( idle)?", line):
                mangled, number = match.group(1).rsplit(":", 1)
                name = key = f"{kernel_name(mangled)}, barrier {number}"
                idle.update({key} if match.group(2) else ())
            elif match := re.match(r"wait ((\w+):\w+) (\S+)(.*)", line):
                # One place that is come to by several tests is one mutant.
                name = f"{match.group(2)} in {' < '.join(function_names([match.group(3), *match.group(4).split()]))}"
                key = (name, match.group(3))
            else:
                continue
            found.setdefault(key, (name, []))
            groups.setdefault(key, set()).add(match.group(1))
            if (program, test) not in found[key][1]:
                found[key][1].append((program, test))
    numbers, result = {}, {}
    for key, (name, users) in found.items():
        numbers[name] = numbers.get(name, 0) + 1
        several = f", {numbers[name]}" if isinstance(key, tuple) and numbers[name] > 1 else ""
        result[",".join(sorted(groups[key]))] = (name + several, users, key in idle)
    return result


def noticed(libraries, site, users):
    """What notices that `site` is left out, or None."""
    for program, test in users:
        result = run(libraries, program, f"--gtest_filter={test}", JFORGE_EMULATED_OMIT=site)
        if result.returncode != 0:
            found = re.search(r"^emulated device: ([a-z ]+):", result.stdout, re.M)
            return f"{found.group(1) if found else 'wrong result'} ({test})"
    return None


def try_all(libraries, tests):
    killed = idle = 0
    all_sites = sites(libraries, tests)
    print("| left out | noticed by |\n| --- | --- |")
    for site, (name, users, is_idle) in all_sites.items():
        how = "idle" if is_idle else noticed(libraries, site, users)
        idle += is_idle
        killed += how is not None and not is_idle
        print(f"| {name} | {how or 'not noticed'} |", flush=True)
    print(f"\n{killed} of {len(all_sites)} left out were noticed, {idle} are idle")
    return 0


def try_some(libraries, tests, table, seconds, seed):
    """Of the table's lines "| NAME | FAULT (TEST) |"."""
    noticed_once = re.findall(r"^\| (.+) \| [a-z ]+ \((\S+)\) \|$", table.read_text(encoding="utf-8"), re.M)
    random.Random(seed).shuffle(noticed_once)
    programs = {test: program for program, test in tests}
    begin, tried, wrong = time.monotonic(), 0, 0
    for name, test in noticed_once:
        if time.monotonic() - begin > seconds:
            break
        found = {}
        if test in programs:
            found = {own: site for site, (own, _, _) in sites(libraries, [(programs[test], test)]).items()}
        how = noticed(libraries, found[name], [(programs[test], test)]) if name in found else "gone"
        tried += how != "gone"
        wrong += how is None
        print(f"{name}: {how or 'NOT NOTICED any more by ' + test}", flush=True)
    print(f"seed {seed}: {tried - wrong} of {tried} tried were noticed")
    return 1 if wrong or tried == 0 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries")
    parser.add_argument("--sample", type=float)
    parser.add_argument("--seed", type=int, default=datetime.date.today().toordinal())
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    options = parser.parse_args()
    libraries = os.path.abspath(options.libraries)
    programs = [os.path.abspath(program) for program in options.programs]
    tests = [(program, test) for program in programs for test in tests_of(libraries, program)]
    if options.sample is None:
        return try_all(libraries, tests)
    return try_some(libraries, tests, options.table, options.sample, options.seed)


if __name__ == "__main__":
    sys.exit(main())
