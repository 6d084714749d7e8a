#!/usr/bin/env python3
"""What rounding a float32 model's matrices to bfloat16 does to its decoding (model.decode_weights = "bfloat16").

    weight_rounding.py JFORGE MODEL PROBLEMS [--limit N] [--max-new-tokens N]

PROBLEMS: JSON lines with a "question", plain or .gz, put to the model in ChatML. Each is answered greedily with float32
weights; then both storages predict the next token behind every position of those answers, and answer by themselves.
Prints Markdown. Both are the same in every bit when the model holds bfloat16 values already, which is checked first."""

import argparse
import array
import gzip
import json
import pathlib
import struct
import subprocess
import sys
import tempfile


def read_questions(path, limit):
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
    with opened as lines:
        return [json.loads(line)["question"] for line in lines][:limit]


def read_logits(path):
    """The rows of every tensor logits.N, as lists of token ids chosen: the first of the largest."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    chosen = {}
    for name, entry in header.items():
        if not name.startswith("logits"):
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = array.array("f", data[begin:end])
        rows, vocabulary = entry["shape"]
        found = []
        for row in range(rows):
            logits = values[row * vocabulary:(row + 1) * vocabulary]
            found.append(logits.index(max(logits)))
        chosen[int(name.split(".")[1])] = found
    return [chosen[i] for i in range(len(chosen))]


class Model:
    def __init__(self, jforge, directory, scratch):
        self.jforge, self.directory, self.scratch = jforge, directory, scratch

    def run(self, *arguments, text=None):
        words = [self.jforge, *arguments, "--model", str(self.directory)]
        return subprocess.run(words, input=text, check=True, capture_output=True, text=True).stdout

    def tokens(self, text):
        return [int(word) for word in self.run("tokenize", text=text).split()]

    def probe(self, what, sequences, storage, *arguments):
        ids, out = self.scratch / "ids.json", self.scratch / "out"
        ids.write_text(json.dumps(sequences))
        self.run("probe", what, "--tokens", str(ids), "--out", str(out), "--decode-weights", storage, "--device", "cpu",
                 *arguments)
        return out

    def answers(self, prompts, storage, length):
        out = self.probe("decode", prompts, storage, "--method", "ar", "--max-new-tokens", str(length))
        return [result["tokens"] for result in json.loads(out.read_text())]

    def choices(self, sequences, storage):
        return read_logits(self.probe("logits", sequences, storage))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jforge")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("problems", type=pathlib.Path)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = Model(options.jforge, options.model, pathlib.Path(scratch))
        prompts = [
            model.tokens(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
            for question in read_questions(options.problems, options.limit)
        ]
        exact = model.answers(prompts, "float32", options.max_new_tokens)
        if exact != model.answers(prompts, "auto", options.max_new_tokens):
            sys.exit('weight_rounding.py: "auto" decodes other tokens than "float32"')
        rounded = model.answers(prompts, "bfloat16", options.max_new_tokens)
        sequences = [prompt + answer for prompt, answer in zip(prompts, exact)]
        before = model.choices(sequences, "float32")
        after = model.choices(sequences, "bfloat16")
    # Behind positions of the question the model is unsure what comes: more of its choices are close.
    decisions, flips = [0, 0], [0, 0]
    for prompt, sequence, one, other in zip(prompts, sequences, before, after):
        for position in range(len(sequence) - 1):
            part = 0 if position >= len(prompt) - 1 else 1
            decisions[part] += 1
            flips[part] += one[position] != other[position]
    changed = sum(one != other for one, other in zip(exact, rounded))
    tokens = sum(len(answer) for answer in exact)
    # From the first difference on an answer is another one: what comes after it counts as changed.
    kept = 0
    for one, other in zip(exact, rounded):
        for a, b in zip(one, other):
            if a != b:
                break
            kept += 1
    print("| rounding every matrix to bfloat16 | of | changed | share |\n| --- | --- | --- | --- |")
    for part, where in enumerate(("the answers", "the questions")):
        print(f"| next token behind each position of {where} | {decisions[part]} | {flips[part]} | "
              f"{100 * flips[part] / decisions[part]:.3f} % |")
    print(f"| greedy answers | {len(exact)} | {changed} | {100 * changed / len(exact):.2f} % |")
    print(f"| their tokens, from the first difference on | {tokens} | {tokens - kept} | "
          f"{100 * (tokens - kept) / tokens:.2f} % |")


if __name__ == "__main__":
    main()
