#!/usr/bin/env python3
"""Judges answers to MATH by their value, with Math-Verify as lm-evaluation-harness calls it.

    math_values.py --data math500.jsonl ANSWERS.jsonl [--verdicts V.json]

ANSWERS are the completions that `jforge grade` reads, or an evaluation's file evaluation/MODEL/TASK.METHOD.jsonl. Prints
the share of right answers; with --verdicts, adds `math_verify` to the `rules` of each entry of the file that
`jforge grade` made of the same completions. Needs `pip install 'math-verify[antlr4_13_2]'`.
"""
import argparse
import gzip
import json
import multiprocessing
import os
import pathlib
import sys


def read_lines(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def judge(pair):
    """Returns whether the values are equal. Math-Verify's time limits need a process's main thread."""
    from math_verify import parse, verify

    gold, answer = pair
    return bool(verify(parse(gold), parse(answer)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=pathlib.Path, help="completions, one JSON object a line")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="math500.jsonl or test.jsonl.gz")
    parser.add_argument("--verdicts", type=pathlib.Path, help="file of `jforge grade` that gets the column")
    options = parser.parse_args()
    try:
        import math_verify  # noqa: F401
    except ImportError:
        sys.exit("math_values.py: Math-Verify is missing: pip install 'math-verify[antlr4_13_2]'")
    problems = read_lines(options.data)
    golds = [problem.get("solution") or "\\boxed{" + problem["answer"] + "}" for problem in problems]
    ids, pairs = [], []
    for line in read_lines(options.answers):
        ids.append(line.get("task_id") or line["id"])
        text = next(line[key] for key in ("completion", "solution", "text") if line.get(key) is not None)
        pairs.append((golds[int(ids[-1].rsplit("/", 1)[1])], text))
    with multiprocessing.Pool(os.cpu_count()) as pool:
        right = pool.map(judge, pairs, chunksize=8)
    if options.verdicts:
        document = json.loads(options.verdicts.read_text(encoding="utf-8"))
        places = {}
        for name, verdict in zip(ids, right):
            places.setdefault(name, []).append(verdict)
        if {name: len(entries) for name, entries in document["eval"].items()} != {n: len(v) for n, v in places.items()}:
            sys.exit(f"math_values.py: {options.verdicts}: its verdicts are on other completions than {options.answers}")
        for name, entries in document["eval"].items():
            for entry, verdict in zip(entries, places[name]):
                entry.setdefault("rules", {})["math_verify"] = verdict
        document.pop("checksum", None)  # of what grade wrote
        fresh = options.verdicts.with_name(options.verdicts.name + ".new")
        fresh.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(fresh, options.verdicts)
    print(f"{sum(right)} of {len(right)} answers are right by value ({100 * sum(right) / max(len(right), 1):.1f} %)")


if __name__ == "__main__":
    main()
