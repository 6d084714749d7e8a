#!/usr/bin/env python3
"""A CUDA build without a driver: the binary starts, "auto" computes on the CPU, asking for CUDA exits with 4 and a
remedy. With a device, only the first two are checked."""

import os
import pathlib
import subprocess
import sys
import tempfile


def run(binary, *arguments):
    return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60, check=False)


def main():
    binary = sys.argv[1]
    quickstart = pathlib.Path(os.environ["JFORGE_SOURCE_DIR"]) / "launch/quickstart"
    failures = []

    version = run(binary, "--version")
    if version.returncode != 0 or not version.stdout.strip():
        failures.append(f"--version: exit {version.returncode}: {version.stderr}")

    with tempfile.TemporaryDirectory() as folder:
        tokens = pathlib.Path(folder) / "tokens.json"
        tokens.write_text("[5, 6, 7]", encoding="utf-8")
        out = pathlib.Path(folder) / "out.json"
        decode = run(binary, "probe", "decode", "--model", str(quickstart / "model"), "--tokens", str(tokens),
                     "--out", str(out), "--method", "jacobi", "--max-new-tokens", "4")
        if decode.returncode != 0 or not out.exists():
            failures.append(f"probe decode: exit {decode.returncode}: {decode.stderr}")

        config = pathlib.Path(folder) / "job.toml"
        config.write_text(
            f'[run]\ndirectory = "{folder}/run"\n[model]\nsource = "{quickstart}/model"\ndevice = "cuda"\n'
            f'[prompts]\nfiles = ["{quickstart}/prompts.jsonl.gz"]\nfield = "question"\n'
            'limit = 8\n[[rounds]]\nblock_size = 4\nsteps = 1\n',
            encoding="utf-8")
        if not pathlib.Path("/dev/nvidiactl").exists():
            chosen = run(binary, "import", str(config), "--set", "model.device=auto")
            if (chosen.returncode != 0 or "computing on the CPU (no CUDA device" not in chosen.stderr
                    or "falls back" in chosen.stderr):
                failures.append(f"device = auto: exit {chosen.returncode}, stderr:\n{chosen.stderr}")
            refused = run(binary, "import", str(config))
            lines = [line for line in refused.stderr.splitlines() if "CUDA" in line and "cpu" in line]
            if refused.returncode != 4 or not lines:
                failures.append(f"device = cuda: exit {refused.returncode}, stderr:\n{refused.stderr}")

    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
