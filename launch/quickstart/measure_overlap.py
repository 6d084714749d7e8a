#!/usr/bin/env python3
"""How much of word problems that a model is tested on stood in its training data, as Markdown list items.

    python3 measure_overlap.py --train train.jsonl.gz [--train prompts.jsonl.gz] --test test.jsonl.gz

A text's shape is its template and wording: "0" replaces every number and "_" every word that make_word_problems.py draws.
A "verbatim" text equals or is part of a training text of the same kind. Standard library only, Python >= 3.9.
"""

import argparse
import gzip
import json
import re
import sys

import make_word_problems as source

DRAWN = [*source.BOYS, *source.GIRLS, *source.THINGS, *source.PLACES, *source.DAYS, *source.JOBS, *source.PLANTS,
         *(word for pair in source.CONTAINERS + source.WARES for word in pair),
         "he", "she", "He", "She", "his", "her"]
DRAWN_WORD = re.compile(r"\b(?:%s)\b" % "|".join(sorted(map(re.escape, DRAWN), key=len, reverse=True)))
NUMBER = re.compile(r"\d+")


def shape(text):
    """Returns `text` without the numbers and words drawn into its template."""
    return NUMBER.sub("0", DRAWN_WORD.sub("_", text))


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def share_of(texts, known):
    return sum(text in known for text in texts) / len(texts)


def overlap(train, test):
    """Returns shares of the test problems (0-1) by (question or answer, "verbatim" or "shape")."""
    shares = {}
    for field in ("question", "answer"):
        tested = [problem[field] for problem in test]
        trained = [problem[field] for problem in train]
        lengths = sorted({len(text) for text in tested})
        # As in require_disjoint(), a text can contain another only as its ending.
        known = {ending for text in trained for ending in source.endings(text, lengths)}
        shares[field, "verbatim"] = share_of(tested, known)
        shares[field, "shape"] = share_of([shape(text) for text in tested], {shape(text) for text in trained})
    return shares


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--train", action="append", required=True, help="training problems (.jsonl.gz); may be repeated")
    parser.add_argument("--test", required=True, help="test problems (.jsonl.gz)")
    options = parser.parse_args()
    train = [problem for path in options.train for problem in read(path)]
    test = read(options.test)
    shares = overlap(train, test)
    for field in ("question", "answer"):
        print(f"- test {field}s whose shape is that of a training {field}: {100 * shares[field, 'shape']:.1f} %; "
              f"verbatim in a training {field}: {100 * shares[field, 'verbatim']:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
