#!/usr/bin/env python3
"""barrier_mutants.py LIBRARIES COMMAND …: omits each barrier and wait of the CUDA test programs on the emulated device
once and prints which test notices; takes an hour. COMMAND: a test program or "mpirun -n 2 PROGRAM --world-size=2".
--only REGEX: sites with such a name. --draw N [--seed N]: N random sites. --filter PATTERN: these tests (gtest's)."""

import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile

FRAMES_TOLD = 3
LIMIT_SECONDS = 240
WAIT = re.compile(r"wait ((cuda\w+):\w+)((?: \S+\+0x\w+)+)")
BARRIERS = {"b": "barrier", "w": "warp barrier", "c": "copies' wait"}


def run(libraries, command, *arguments, **environment):
    """Returns (exit status or None after a timeout, output)."""
    path = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))
    with subprocess.Popen([*shlex.split(command), *arguments], start_new_session=True,
                          env={**os.environ, "LD_LIBRARY_PATH": path, "GTEST_FAIL_FAST": "1",
                               "JFORGE_REQUIRE_GPU": "1", **environment}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        try:
            said, _ = process.communicate(timeout=LIMIT_SECONDS)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            # mpirun ends its processes only if it is not killed.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            return None, ""


def kernel_name(mangled, known={}):
    if mangled not in known:
        source = re.search(r"_\d+_([a-z_]+)_cu_", mangled)
        shown = subprocess.run(["c++filt", "-p", mangled], capture_output=True, text=True, check=False).stdout.strip()
        shown = re.sub(r"^void |jforge::|\(anonymous namespace\)::|_GLOBAL__N__\w+::|\((int|bool)\)", "", shown)
        body = re.fullmatch(r"run_body<(.*)>", shown.replace(" >", ">"))
        known[mangled] = f"{source.group(1) if source else ''} {body.group(1) if body else shown}".strip()
    return known[mangled]


def look_up(frames, known):
    """Adds the functions of OBJECT+OFFSET … to `known`."""
    objects = {}
    for frame in frames:
        if frame not in known:
            program, offset = frame.rsplit("+", 1)
            objects.setdefault(program, {})[frame] = hex(int(offset, 16) - 1)
    for program, offsets in objects.items():
        lines = subprocess.run(["addr2line", "-f", "-C", "-e", program], input="\n".join(offsets.values()) + "\n",
                               capture_output=True, text=True, check=False).stdout.splitlines()[::2]
        known.update(zip(offsets, lines + ["?"] * (len(offsets) - len(lines))))


def function_names(frames, known={}):
    """Returns the innermost functions of a call's OBJECT+OFFSET …, without the tests' own."""
    look_up(frames, known)
    names = []
    for frame in frames:
        if re.search(r"testing::|_Test::|jforge::test::|^main$", known[frame]):
            break
        name = re.sub(r"\(anonymous namespace\)::|jforge::|\(.*", "", known[frame])
        if name and (not names or names[-1] != name):
            names.append(name)
    return names[:FRAMES_TOLD]


def wait_name(call, frames):
    return f"{call} in {' < '.join(function_names(frames))}"


def tests_of(libraries, program):
    """Reads a file, because the output of several ranks mixes."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tests.json"
        run(libraries, program, "--gtest_list_tests", f"--gtest_output=json:{path}")
        suites = json.loads(path.read_text(encoding="utf-8"))["testsuites"]
    return [f"{suite['name']}.{test['name']}" for suite in suites for test in suite["testsuite"]]


def sites(libraries, tests):
    """Returns {sites to omit together, joined by commas: (name, [(program, test)], redundant by neighbouring
    barriers)}."""
    found, groups, idle = {}, {}, set()
    for program, test in tests:
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as listed:
            status, said = run(libraries, program, f"--gtest_filter={test}", JFORGE_EMULATED_LIST=listed.name)
            if status != 0:
                sys.exit(f"{program} fails without a mutant:\n{said[-4000:]}")
            lines = listed.read().splitlines()
        for line in lines:
            if match := re.fullmatch(r"barrier (\S+:[bwc]\d+) PTX line \d+( idle)?", line):
                mangled, number = match.group(1).rsplit(":", 1)
                name = key = f"{kernel_name(mangled)}, {BARRIERS[number[0]]} {number[1:]}"
                idle.update({key} if match.group(2) else ())
            elif match := WAIT.fullmatch(line):
                frames = match.group(3).split()  # A place that several tests reach is one mutant.
                name = wait_name(match.group(2), frames)
                key = (name, frames[0])
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
    for program, test in users:
        status, said = run(libraries, program, f"--gtest_filter={test}", JFORGE_EMULATED_OMIT=site)
        if status is None:
            return f"no end ({test})"
        if status != 0:
            found = re.search(r"^emulated device: ([a-z ]+):", said, re.M)
            return f"{found.group(1) if found else 'wrong result'} ({test})"
    return None


def try_all(libraries, tests, only, draw, seed):
    killed = idle = 0
    all_sites = {site: one for site, one in sites(libraries, tests).items() if re.search(only, one[0])}
    if draw is not None and draw < len(all_sites):
        print(f"{draw} drawn of {len(all_sites)}, seed {seed}", file=sys.stderr)
        drawn = set(random.Random(seed).sample(list(all_sites), draw))
        all_sites = {site: one for site, one in all_sites.items() if site in drawn}
    print("| left out | noticed by |\n| --- | --- |")
    for site, (name, users, is_idle) in all_sites.items():
        how = noticed(libraries, site, users)
        idle += is_idle and how is None
        killed += how is not None
        print(f"| {name} | {how or ('idle' if is_idle else 'not noticed')} |", flush=True)
    print(f"\n{killed} of {len(all_sites)} left out were noticed, {idle} are idle")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries")
    parser.add_argument("--seed", type=int, default=datetime.date.today().toordinal())
    parser.add_argument("--only", default="")
    parser.add_argument("--draw", type=int)
    parser.add_argument("--filter", default="*")
    parser.add_argument("commands", nargs="+", metavar="COMMAND")
    options = parser.parse_args()
    libraries = os.path.abspath(options.libraries)
    tests = [(command, test) for command in options.commands for test in tests_of(libraries, command)
             if any(fnmatch.fnmatchcase(test, pattern) for pattern in options.filter.split(":"))]
    return try_all(libraries, tests, options.only, options.draw, options.seed)


if __name__ == "__main__":
    sys.exit(main())
