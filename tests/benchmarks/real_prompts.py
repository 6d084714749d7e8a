#!/usr/bin/env python3
"""Prompts of real data sets for a distillation, without the problems that models are tested on.
  python3 real_prompts.py --data ../shared/data --out DIR
writes DIR/gsm8k.jsonl.gz (training questions, {"question", "answer"}) and DIR/code.jsonl.gz (LeetCodeDataset's queries
and MBXP's prompts, {"question"}), for [prompts] files with field = "question". Leaves out prompts that contain a whole
test problem of GSM8K, MATH, HumanEval (+) or MBPP (+, sanitized: tasks 11 to 510 and all that the other two name), or
share --window words in a row with one. Texts are compared by words in lower case, with "a c++ function" as "a
function". MBXP's tasks with the number of a tested MBPP task are also left out. Prints the counts. Standard library
only, Python >= 3.9.
"""

import argparse
import gzip
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch", "quickstart"))
from make_ledger import write_jsonl_gz  # noqa: E402

WORD = re.compile(r"[a-z0-9]+")
FUNCTION = re.compile(r"\ban? \S+ function\b")
# A shorter test problem is not distinctive ("Write a function to find …").
FEWEST_WORDS = 5


def words(text):
    return WORD.findall(FUNCTION.sub("a function", text.lower()))


def records(path):
    """Returns the records of JSON lines, plain or gzip, or of a JSON array."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as stream:
        text = stream.read()
    return json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line]


def docstring(prompt):
    """Returns a HumanEval prompt without code and examples."""
    found = re.search(r"(\"\"\"|''')(.*?)(>>>|Example|\1)", prompt[prompt.rfind("def "):], re.DOTALL)
    return found.group(2) if found else prompt


def tested_mbpp(data):
    plus = {int(record["task_id"].split("/")[1]) for record in records(os.path.join(data, "mbpp/MbppPlus.jsonl.gz"))}
    sanitized = {record["task_id"] for record in records(os.path.join(data, "mbpp/sanitized-mbpp.json"))}
    return plus | sanitized | set(range(11, 511))


def test_problems(data):
    def at(name):
        return records(os.path.join(data, name))

    tested = tested_mbpp(data)
    return [*(record["question"] for record in at("gsm8k/test.jsonl")),
            *(record["problem"] for record in at("math/test.jsonl.gz")),
            *(docstring(record["prompt"]) for record in at("humaneval/HumanEval.jsonl.gz")),
            *(record["prompt"] for record in at("mbpp/sanitized-mbpp.json")),
            *(record["text"] for record in at("mbpp/mbpp.jsonl") if record["task_id"] in tested)]


class TestTexts:
    """Finds texts that contain a test problem."""

    def __init__(self, problems, window):
        self.window = window
        self.windows, self.whole = set(), {}
        for problem in problems:
            text = words(problem)
            self.windows.update(self.runs(text, window))
            if FEWEST_WORDS <= len(text):
                self.whole.setdefault(len(text), set()).add(" ".join(text))

    @staticmethod
    def runs(text, length):
        return (" ".join(text[i:i + length]) for i in range(len(text) - length + 1))

    def found_in(self, prompt):
        text = words(prompt)
        return (any(run in self.windows for run in self.runs(text, self.window)) or
                any(run in known for length, known in self.whole.items() for run in self.runs(text, length)))


def code_prompts(data):
    tested = tested_mbpp(data)
    folder = os.path.join(data, "prompts")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".jsonl.gz"):
            yield from (record.get("query") or record["prompt"] for record in records(os.path.join(folder, name)))
    mbxp = os.path.join(folder, "mbxp")
    for name in sorted(os.listdir(mbxp)):
        for record in records(os.path.join(mbxp, name)):
            if int(record["task_id"].split("/")[1]) in tested:
                continue
            yield f"Complete this {record['language']} program:\n\n{record['prompt'].strip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", required=True, help="folder with gsm8k, math, humaneval, mbpp and prompts")
    parser.add_argument("--out", required=True, help="folder to write into (made if missing)")
    parser.add_argument("--window", type=int, default=13, help="words in a row that no prompt shares with a test problem")
    options = parser.parse_args()
    tested = TestTexts(test_problems(options.data), options.window)
    sets = {"gsm8k": [{"question": record["question"], "answer": record["answer"]}
                      for record in records(os.path.join(options.data, "gsm8k/train.jsonl.gz"))],
            "code": [{"question": prompt} for prompt in code_prompts(options.data)]}
    os.makedirs(options.out, exist_ok=True)
    for name, prompts in sets.items():
        kept = [prompt for prompt in prompts if not tested.found_in(prompt["question"])]
        path = os.path.join(options.out, f"{name}.jsonl.gz")
        _, digest = write_jsonl_gz(path, kept)
        print(f"{path}: {len(kept)} prompts, {len(prompts) - len(kept)} left out for a test problem's text, "
              f"sha256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
