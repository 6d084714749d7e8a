#!/usr/bin/env python3
"""The page of tests/benchmarks/study.sh: figures of its runs and what they do and do not say, as Markdown."""

import argparse
import json
import os
import pathlib
import re
import subprocess

TASK = "word_problems"
TITLES = {"noise": "noise mask, random schedule", "sft": "SFT (consistency weight 0)",
          "clean": "clean mask, random schedule"}


def cells(title, figures):
    accuracy = f"{100 * figures['accuracy']:.1f} %"
    between = f"{100 * figures['accuracy_low']:.1f}–{100 * figures['accuracy_high']:.1f} %"
    tpf_between = f"{figures['tpf_low']:.2f}–{figures['tpf_high']:.2f}"
    return f"| {title:<35} | {accuracy:<8} | {between:<13} | {figures['tpf']:.2f} | {tpf_between:<13} |"


def arms_table(arms, summaries):
    """Base model and every arm, Jacobi decoding; the base model must have come out alike in all arms."""
    bases = [{key: models["base"][TASK]["jacobi"][key] for key in ("accuracy", "tpf")} for models in summaries]
    if any(base != bases[0] for base in bases):
        raise SystemExit(f"the arms measured different base models: {bases}")
    lines = ["| model                               | accuracy | 95 % interval | TPF  | 95 % interval |",
             "|-------------------------------------|----------|---------------|------|---------------|",
             cells("base", summaries[0]["base"][TASK]["jacobi"])]
    lines += [cells(TITLES[name], models["final"][TASK]["jacobi"])
              for (name, *_), models in zip(arms, summaries)]
    return "\n".join(lines)


def cpu_name():
    match = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1) if match else "unknown"


def report_part(run):
    """The report's part on accuracy and speed without its pictures: tables, what is fastest, remarks."""
    report = (pathlib.Path(run) / "report.md").read_text(encoding="utf-8")
    part = re.search(r"^## Accuracy and speed\n(.*?)^## ", report, re.MULTILINE | re.DOTALL)
    lines = [line for line in part.group(1).splitlines() if not line.startswith("!")] if part else []
    if not any(line.startswith("|") for line in lines):
        raise SystemExit(f"{run}/report.md has no table of accuracy and speed")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).strip("\n"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", nargs=4, action="append", required=True,
                        metavar=("NAME", "RUN", "SECONDS", "OVERRIDES"))
    parser.add_argument("--overlap", required=True, help="what measure_overlap.py printed")
    parser.add_argument("--masks", required=True, help="what mask_contexts printed")
    options = parser.parse_args()
    summaries = [json.loads((pathlib.Path(run) / "evaluation/summary.json").read_text(encoding="utf-8"))["models"]
                 for _, run, _, _ in options.arm]
    base = summaries[0]["base"][TASK]["jacobi"]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], check=True, capture_output=True,
                            text=True).stdout.strip()
    print(f"""# Study: two rounds on the quickstart's base model

- command: `tests/benchmarks/study.sh`; configuration launch/configs/study.toml
- CPU: {cpu_name()}, {os.cpu_count()} cores, 2 ranks
- commit: {commit}

Task: home-made word problems (`{base['scorer']}`), {base['n']} test problems; Jacobi decoding with block size \
{base['block_size']}, greedy. Accuracies are decoding's with either method: the tokens are the same.

{arms_table(options.arm, summaries)}

## What this says, and what not

Consistency training multiplies the tokens per forward of this model on problems of its training's kind, and SFT on the \
same answers does not. It says nothing about noisy against clean context, and no arm has the keys of the paper's rounds:

{options.overlap}
{options.masks}

The first lines are of the test problems against all that base model and rounds were trained on (`python3 \
launch/quickstart/measure_overlap.py`); the last is of round 2 of the noise mask's arm (`mask_contexts \
results/runs/study-noise/round-2/trajectories`). An answer has two or three blocks in round 1 and one or two \
in round 2, so for nearly all targets the two masks are one and the same, and what is left of a difference between \
the arms is mostly chance and what the few others bring: which of the two comes out ahead here means nothing. Whether \
the mask pays needs long answers of many blocks.

No setting was chosen on these test problems: they were carried over from the data before and checked on validation \
problems, which share no answer with test or training (`make_word_problems.py` writes them).""")
    for name, run, seconds, overrides in options.arm:
        print(f"\n## {TITLES[name]}\n\nOverrides: {overrides}. Wall time {seconds} s.\n\n{report_part(run)}")


if __name__ == "__main__":
    main()
