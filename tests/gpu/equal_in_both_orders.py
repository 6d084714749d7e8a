#!/usr/bin/env python3
"""equal_in_both_orders.py COMMAND FILTER: runs tests of COMMAND ("PROGRAM" or "mpirun -n 2 PROGRAM …") with all work as
late and as early as allowed (JFORGE_EMULATED_ORDER) and compares the printed lines "digest …"."""

import os
import shlex
import subprocess
import sys


def digests(command, chosen, order):
    result = subprocess.run([*shlex.split(command), f"--gtest_filter={chosen}"], capture_output=True, text=True, check=False,
                            env={**os.environ, "JFORGE_EMULATED_ORDER": order})
    if result.returncode != 0:
        sys.exit(f"order {order}:\n{result.stdout}{result.stderr}")
    return [line for line in result.stdout.splitlines() if line.startswith("digest ")]


def main():
    command, chosen = sys.argv[1:]
    expected = digests(command, chosen, "lazy")
    if not expected:
        sys.exit(f"{chosen} prints no digest")
    if (found := digests(command, chosen, "eager")) != expected:
        sys.exit(f"order eager gives {found}, lazy gives {expected}")
    print("\n".join(expected))


if __name__ == "__main__":
    main()
