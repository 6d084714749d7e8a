#!/usr/bin/env python3
"""equal_in_every_order.py PROGRAM FILTER: runs the chosen tests of PROGRAM on the emulated device in several orders of its
work (JFORGE_EMULATED_ORDER); the lines "digest …" that they print must be equal."""

import os
import subprocess
import sys


def digests(program, chosen, order):
    result = subprocess.run([program, f"--gtest_filter={chosen}"], env={**os.environ, "JFORGE_EMULATED_ORDER": order},
                            capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"order {order}:\n{result.stdout}{result.stderr}")
    return [line for line in result.stdout.splitlines() if line.startswith("digest ")]


def main():
    program, chosen = sys.argv[1:]
    expected = digests(program, chosen, "lazy")
    if not expected:
        sys.exit(f"{chosen} prints no digest")
    for order in ("eager", "random:1", "random:2"):
        if (found := digests(program, chosen, order)) != expected:
            sys.exit(f"order {order} gives {found}, lazy gives {expected}")
    print("\n".join(expected))


if __name__ == "__main__":
    main()
