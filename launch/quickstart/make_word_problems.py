#!/usr/bin/env python3
"""Writes arithmetic word problems in GSM8K's form, for the quickstart's base model and the task word_problems.

Every problem is a template with drawn names, things, places and numbers. The answer has one step per line and ends in
"#### N". The same seed and sizes give the same problems (the printed digests are of the text).

Hashes decide the set, so that sets are disjoint whatever their sizes: one answer in ten is for test only, one in ten for
validation only; of the others, one question in four is a prompt, the rest is training. Exits if a test or validation text
is part of another set's.

    python3 make_word_problems.py --out DIR [--train 120000] [--prompts 6000] [--validation 1000]
                                  [--test 1000] [--seed 7]

writes DIR/train.jsonl.gz (for the base model), DIR/prompts.jsonl.gz (for the distillation),
DIR/validation.jsonl.gz (for choosing settings) and DIR/test.jsonl.gz; a size of 0 leaves a file out.
A larger set begins with the smaller one. Standard library only, Python >= 3.9.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import random
import re
import sys
from collections import Counter


def read_words(name):
    """Returns the words and wordings of the file NAME beside this script."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), encoding="utf-8") as file:
        return json.load(file)


# Words, and templates. A template has ranges of drawn numbers, rules for derived ones (each in 1..LARGEST), question
# wordings and an answer. Fields: n, m names with he/He/his and she/She/her for the first and the second; t things, u
# other things; c1, c container(s); p place; d day; w1, w ware(s); j job; f plants; c_ the number c beside containers.
BOYS, GIRLS, THINGS, CONTAINERS, PLACES, DAYS, WARES, JOBS, PLANTS, TEMPLATES = read_words("word_problems.json").values()

LARGEST = 150
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def derive(numbers, rules):
    """Adds the derived numbers; returns False if one is outside 1..LARGEST."""
    for rule in rules.split():
        name, term = rule.split("=")
        parts = re.split(r"([-+*])", term)
        left = numbers[parts[0]] if parts[0] in numbers else int(parts[0])
        if len(parts) == 1:
            value = left
        else:
            right = numbers[parts[2]]
            value = {"+": left + right, "-": left - right, "*": left * right}[parts[1]]
        if not 1 <= value <= LARGEST:
            return False
        numbers[name] = value
    return True


def draw_problem(rng):
    """Returns a template's name and {"question", "answer"}."""
    name, ranges, rules, questions, answer = TEMPLATES[rng.randrange(len(TEMPLATES))].values()
    while True:
        numbers = {key: rng.randint(*bounds) for key, bounds in ranges.items()}
        if derive(numbers, rules):
            break
    fields = dict(numbers)
    if "c" in numbers:
        fields["c_"] = numbers["c"]  # c may become the container below
    boy = rng.random() < 0.5
    first = rng.choice(BOYS if boy else GIRLS)
    second = rng.choice([other for other in BOYS + GIRLS if other != first])
    thing, other_thing = rng.sample(THINGS, 2)
    ware = rng.choice(WARES)
    container = rng.choice(CONTAINERS)
    fields.update(n=first, m=second, t=thing, u=other_thing, p=rng.choice(PLACES), d=rng.choice(DAYS),
                  w1=ware[0], w=ware[1], j=rng.choice(JOBS), f=rng.choice(PLANTS), c1=container[0],
                  he="he" if boy else "she", He="He" if boy else "She", his="his" if boy else "her")
    uses_container = any("{c1}" in text for text in questions)
    if uses_container:
        fields["c"] = container[1]
    text = answer.format(**fields)
    question = rng.choice(questions).format(**fields)
    steps = EQUATION.findall(text)
    for left, sign, right, result in steps:
        a, b = int(left), int(right)
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
        if value != int(result) or (sign == "/" and a % b):
            raise SystemExit(f"template {name}: wrong equation in: {text}")
    return name, {"question": question, "answer": f"{text}\n#### {steps[-1][3]}"}


def hashed(text, buckets):
    """Returns a number below `buckets` that depends only on `text`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % buckets


def part_of(problem):
    """Returns the only set that may hold `problem`."""
    held_out = {0: "test", 1: "validation"}.get(hashed(problem["answer"], 10))
    return held_out or ("prompts" if hashed(problem["question"], 4) == 0 else "train")


def draw_part(part, count, seed, counts):
    """Returns `count` problems of one set with different questions; adds their templates to `counts`."""
    rng = random.Random(f"jforge word problems {seed} {part}")
    problems, taken = [], set()
    misses = 0
    while len(problems) < count:
        name, problem = draw_problem(rng)
        if part_of(problem) != part or problem["question"] in taken:
            misses += 1
            if misses > 200 * count + 1000:
                raise SystemExit("the templates hold too few distinct problems for these sizes")
            continue
        taken.add(problem["question"])
        problems.append(problem)
        counts[name] += 1
    return problems


def endings(text, lengths):
    """Yields the endings of `text` with one of `lengths`. Requires: `lengths` is sorted."""
    for length in lengths:
        if length > len(text):
            return
        yield text[-length:]


def require_disjoint(held_out, others, field, mark):
    """Exits if a held-out problem's `field` occurs in that of another problem.

    Each text holds `mark` once, near its end, so a text can contain another only as its ending.
    """
    texts = {problem[field] for problem in held_out}
    lengths = sorted({len(text) for text in texts})
    for problem in others:
        text = problem[field]
        if text.count(mark) != 1:
            raise SystemExit(f"not one {field}: {text}")
        if any(ending in texts for ending in endings(text, lengths)):
            raise SystemExit(f"a held-out {field} is part of: {text}")


def write_jsonl_gz(path, problems):
    """Writes gzip JSONL. Returns its size and the sha256 of the unpacked text."""
    text = "".join(json.dumps(problem) + "\n" for problem in problems).encode()
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0, filename="") as stream:
        stream.write(text)
    with open(path + ".tmp", "wb") as file:
        file.write(buffer.getvalue())
    os.replace(path + ".tmp", path)
    return len(buffer.getvalue()), hashlib.sha256(text).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, help="folder to write into (made if missing)")
    parser.add_argument("--train", type=int, default=120000, help="training problems")
    parser.add_argument("--prompts", type=int, default=6000, help="distillation problems")
    parser.add_argument("--validation", type=int, default=1000, help="problems for choosing settings")
    parser.add_argument("--test", type=int, default=1000, help="test problems")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    if min(options.train, options.prompts, options.validation, options.test) < 0:
        parser.error("sizes must be >= 0")
    os.makedirs(options.out, exist_ok=True)

    counts = Counter()
    parts = {part: draw_part(part, getattr(options, part), options.seed, counts)
             for part in ("test", "validation", "prompts", "train")}
    held_out = parts["test"] + parts["validation"]
    for field, mark in (("question", "?"), ("answer", "####")):
        require_disjoint(held_out, parts["prompts"] + parts["train"], field, mark)
        require_disjoint(parts["test"], parts["validation"], field, mark)
    for part, problems in parts.items():
        if problems:
            path = os.path.join(options.out, f"{part}.jsonl.gz")
            size, digest = write_jsonl_gz(path, problems)
            print(f"{path}: {len(problems)} problems, {size} bytes, sha256 {digest}")
    print(f"{len(TEMPLATES)} templates, {sum(len(t['questions']) for t in TEMPLATES)} wordings; "
          f"least used template: {min(counts.values())} problems; test and validation disjoint from the rest")
    return 0


if __name__ == "__main__":
    sys.exit(main())
