#!/usr/bin/env python3
"""on_device.py PROBE COMMAND …: runs COMMAND where there is a CUDA device. PROBE is one of the GPU test programs, whose
own answer without a device (77, skipped; a failure with JFORGE_REQUIRE_GPU set) is passed on."""

import subprocess
import sys


def main():
    probe, command = sys.argv[1], sys.argv[2:]
    answer = subprocess.run([probe, "--gtest_filter=-*"], timeout=120, check=False).returncode
    return answer if answer != 0 else subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
