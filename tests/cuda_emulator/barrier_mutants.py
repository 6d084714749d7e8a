#!/usr/bin/env python3
"""barrier_mutants.py LIBRARIES PROGRAM …: leaves each block barrier that the CUDA test programs execute on the emulated
device out once and says which program notices: a line per barrier and a count. By hand; takes minutes."""

import os
import re
import subprocess
import sys


def run(libraries, program, **environment):
    path = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))
    return subprocess.run([program], env={**os.environ, "LD_LIBRARY_PATH": path, "GTEST_FAIL_FAST": "1",
                                          "JFORGE_REQUIRE_GPU": "1", **environment},
                          capture_output=True, text=True, errors="replace", check=False)


def kernel_name(mangled):
    """The kernel's own source and body, as far as they stand in its name."""
    source = re.search(r"_\d+_([a-z_]+)_cu_", mangled)
    body = re.search(r"([A-Z][A-Za-z]+)E+vT_$", mangled) or re.search(r"(?<=\d)([a-z][a-z_]+ILi\d+)E+v", mangled)
    return f"{source.group(1) if source else ''} {body.group(1) if body else mangled}"


def main():
    libraries, programs = os.path.abspath(sys.argv[1]), [os.path.abspath(p) for p in sys.argv[2:]]
    users = {}
    for program in programs:
        listed = run(libraries, program, JFORGE_EMULATED_LIST="1")
        if listed.returncode != 0:
            sys.exit(f"{program} fails without a mutant:\n{listed.stdout[-2000:]}{listed.stderr[-2000:]}")
        for site in re.findall(r"^barrier (\S+) PTX", listed.stderr, re.M):
            users.setdefault(site, []).append(program)
    noticed = 0
    for site, own in users.items():
        reason = None
        for program in own:
            result = run(libraries, program, JFORGE_EMULATED_OMIT=site)
            if result.returncode != 0:
                found = re.search(r"^emulated device: ([a-z ]+):", result.stderr, re.M)
                reason = f"{found.group(1) if found else 'wrong result'} ({os.path.basename(program)})"
                break
        noticed += reason is not None
        mangled, number = site.rsplit(":", 1)
        print(f"{kernel_name(mangled)}, barrier {number}: {reason or 'NOT NOTICED'}", flush=True)
    print(f"{noticed} of {len(users)} left out were noticed")


if __name__ == "__main__":
    main()
