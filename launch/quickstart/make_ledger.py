#!/usr/bin/env python3
"""Writes ledger problems for the task ledger: a start and many changes, whose answer works every line out.

A problem names a start and 10 to 20 changes. Its answer, which follows from the question, has a line with the sum for
each change and ends in "#### N". The same seed and sizes give the same problems (the printed digests are of the text).

A hash of the answer's sequence (the kinds of its lines, in order) decides its set: one sequence in ten is for test only,
one in ten for validation only. A hash of the question makes half of the others prompts, half training problems. So no
test or validation sequence occurs elsewhere, whatever the names and numbers. The script checks this, and that no sums,
question or answer do.

    python3 make_ledger.py --out DIR [--train 20000] [--prompts 20000] [--validation 500] [--test 500] [--seed 7]
                           [--fewest 10] [--most 20]

writes DIR/train.jsonl.gz (for the base model), DIR/prompts.jsonl.gz (for the distillation), DIR/validation.jsonl.gz
(for choosing settings) and DIR/ledger/test.jsonl.gz; a size of 0 leaves a file out. A larger set begins with the smaller
one. Standard library only, Python >= 3.9.
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

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
LARGEST = 99  # The largest number in a ledger.
MOST_PACKED = 2  # Changes "k containers of g" at most: their lines are twice as long.
START, AMOUNT, FACTOR = (20, 80), (2, 30), (2, 5)

# Each change: sign, question wording, answer wording. Fields: He/he/him owner; m friend; t things; p place; d day; a
# amount, or k containers c of g each.
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ledger.json"), encoding="utf-8") as words_file:
    BOYS, GIRLS, THINGS, CONTAINERS, PLACES, DAYS, CHANGES, STARTS, ENDS = json.load(words_file).values()


def is_packed(index):
    return "{k}" in CHANGES[index][2]


def draw_change(rng, total, words, packing):
    """Draws a change that keeps `total` in 1..LARGEST: (index, question sentence, answer line, new total)."""
    while True:
        index = rng.randrange(len(CHANGES))
        sign, asked, told = CHANGES[index]
        fields = dict(words, p=rng.choice(PLACES), d=rng.choice(DAYS), m=rng.choice(words["friends"]),
                      c=rng.choice(CONTAINERS)[1], k=rng.randint(*FACTOR), g=rng.randint(*FACTOR), a=rng.randint(*AMOUNT))
        packed = is_packed(index)
        amount = fields["k"] * fields["g"] if packed else fields["a"]
        after = total + amount if sign == "+" else total - amount
        if 1 <= after <= LARGEST and (packing or not packed):
            break
    sums = f"{fields['k']} * {fields['g']} = {amount}, " if packed else ""
    line = f"{told.format(**fields)}: {sums}{total} {sign} {amount} = {after}."
    return index, asked.format(**fields), line, after


def draw_problem(rng, fewest, most):
    """Returns (indices of its start and its changes, {"question", "answer"})."""
    name, *friends = rng.sample(BOYS + GIRLS, 4)
    boy = name in BOYS
    start, ending = rng.randrange(len(STARTS)), rng.randrange(len(ENDS))
    total = rng.randint(*START)
    words = dict(n=name, t=rng.choice(THINGS), friends=friends, x=total, he="he" if boy else "she",
                 He="He" if boy else "She", him="him" if boy else "her")
    asked, told = STARTS[start]
    question, answer, sequence = [asked.format(**words)], [told.format(**words)], [start]
    for _ in range(rng.randint(fewest, most)):
        packing = sum(map(is_packed, sequence[1:])) < MOST_PACKED
        index, sentence, line, total = draw_change(rng, total, words, packing)
        question.append(sentence)
        answer.append(line)
        sequence.append(index)
    question.append(ENDS[ending].format(**words))
    return tuple(sequence), {"question": " ".join(question), "answer": "\n".join([*answer, f"#### {total}"])}


def check(problem):
    """Exits unless every sum is right and each line starts from the total of the line before."""
    total = None
    for left, sign, right, result in EQUATION.findall(problem["answer"]):
        a, b = int(left), int(right)
        if {"+": a + b, "-": a - b, "*": a * b}[sign] != int(result):
            raise SystemExit(f"wrong sum in: {problem['answer']}")
        if sign != "*":
            if total is not None and a != total:
                raise SystemExit(f"a line does not go on from the one before in: {problem['answer']}")
            total = int(result)
    if not problem["answer"].endswith(f"\n#### {total}"):
        raise SystemExit(f"not the last total: {problem['answer']}")


def hashed(text, buckets):
    """Returns a number below `buckets` that depends only on `text`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % buckets


def part_of(sequence, problem):
    """Returns the only set that may hold `problem`."""
    held_out = {0: "test", 1: "validation"}.get(hashed(repr(sequence), 10))
    return held_out or ("prompts" if hashed(problem["question"], 2) == 0 else "train")


def draw_part(part, count, options):
    """Returns `count` problems of one set with different questions, and their sequences."""
    rng = random.Random(f"jforge ledger {options.seed} {part}")
    problems, sequences, taken = [], set(), set()
    while len(problems) < count:
        sequence, problem = draw_problem(rng, options.fewest, options.most)
        if part_of(sequence, problem) == part and problem["question"] not in taken:
            check(problem)
            taken.add(problem["question"])
            sequences.add(sequence)
            problems.append(problem)
    return problems, sequences


def sums_of(problem):
    return tuple(EQUATION.findall(problem["answer"]))


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
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", required=True, help="folder to write into (made if missing)")
    parser.add_argument("--train", type=int, default=20000, help="training problems")
    parser.add_argument("--prompts", type=int, default=20000, help="distillation problems")
    parser.add_argument("--validation", type=int, default=500, help="problems for choosing settings")
    parser.add_argument("--test", type=int, default=500, help="test problems")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--fewest", type=int, default=10, help="changes of a ledger, at least")
    parser.add_argument("--most", type=int, default=20, help="and at most")
    options = parser.parse_args()
    if min(options.train, options.prompts, options.validation, options.test) < 0:
        parser.error("sizes must be >= 0")
    # Fewer changes have too few sequences to hold some back.
    if not 4 <= options.fewest <= options.most:
        parser.error("a ledger has at least 4 changes, and --fewest no more than --most")
    os.makedirs(os.path.join(options.out, "ledger"), exist_ok=True)

    drawn = {part: draw_part(part, getattr(options, part), options)
             for part in ("test", "validation", "prompts", "train")}
    parts = {part: problems for part, (problems, _) in drawn.items()}
    others = parts["prompts"] + parts["train"]
    known_sums = {sums_of(problem) for problem in others}
    for part in ("test", "validation"):
        for field, mark in (("question", "?"), ("answer", "####")):
            require_disjoint(parts[part], others, field, mark)
        if drawn[part][1] & (drawn["prompts"][1] | drawn["train"][1]):
            raise SystemExit(f"a {part} answer's sequence of lines is that of a training answer")
        if any(sums_of(problem) in known_sums for problem in parts[part]):
            raise SystemExit(f"a {part} answer's sums are those of a training answer")
    for part, problems in parts.items():
        if problems:
            path = os.path.join(options.out, *(["ledger"] if part == "test" else []), f"{part}.jsonl.gz")
            size, digest = write_jsonl_gz(path, problems)
            print(f"{path}: {len(problems)} problems, {size} bytes, sha256 {digest}")
    print(f"{len(CHANGES)} kinds of changes; sequences of lines, sums, questions and answers of test and validation "
          "are not in the rest")
    return 0


if __name__ == "__main__":
    sys.exit(main())
