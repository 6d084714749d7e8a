#!/usr/bin/env python3
"""Trains a small byte-level BPE on JSONL problems and writes it as Hugging Face tokenizer files.

    python3 make_tokenizer.py --data train.jsonl.gz [--data more.jsonl] --out DIR [--vocab-size 344]

The text is the question and answer of each problem. Pre-tokenizer and normalizer are Qwen2's; the vocabulary is the 256
bytes, the merges and three special tokens; ChatML has no default system text. Deterministic. Standard library only.
"""

import argparse
import gzip
import heapq
import json
import os
import re
import sys
from collections import Counter, defaultdict

# For tokenizer.json, and the same rule for Python's `re`, which has no \p classes.
QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LETTER = r"[^\W\d_]"
WORD = re.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:[^\r\n\w]|_)?" + LETTER + r"+|\d|"
                  r" ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                 "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def byte_letters():
    """Returns GPT-2's printable letter for each of the 256 byte values."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    letters = [""] * 256
    for value in printable:
        letters[value] = chr(value)
    shift = 0
    for value in range(256):
        if not letters[value]:
            letters[value] = chr(256 + shift)
            shift += 1
    return letters


def read_words(paths):
    """Counts the pre-tokenized words of the problems in JSONL files (.gz or plain)."""
    words = Counter()
    for path in paths:
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    record = json.loads(line)
                    text = (record["question"], record["answer"])
                except (ValueError, KeyError) as error:
                    raise SystemExit(f"{path}:{number}: no question and answer: {error}") from error
                for part in text:
                    words.update(WORD.findall(part))
    # Weighted so that the chat format's roles become short.
    words.update({"user": 1 << 20, "assistant": 1 << 20, "system": 1 << 20})
    return words


def train_merges(words, count):
    """Returns the first `count` merges by pair frequency; ties go to the pair that sorts first."""
    letters = byte_letters()
    spelled = [([letters[byte] for byte in word.encode()], number)
               for word, number in sorted(words.items())]
    pairs = Counter()
    places = defaultdict(set)
    for index, (symbols, number) in enumerate(spelled):
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += number
            places[pair].add(index)
    queue = [(-number, pair) for pair, number in pairs.items()]
    heapq.heapify(queue)
    merges = []
    while len(merges) < count:
        if not queue:
            raise SystemExit(f"the text yields only {len(merges)} merges: lower --vocab-size")
        negative, pair = heapq.heappop(queue)
        if pairs[pair] != -negative or negative == 0:
            continue  # outdated: the pair was pushed again with its new count
        merges.append(pair)
        changed = set()
        for index in places.pop(pair):
            symbols, number = spelled[index]
            for old in zip(symbols, symbols[1:]):
                pairs[old] -= number
                changed.add(old)
            symbols[:] = merged(symbols, pair)
            for new in zip(symbols, symbols[1:]):
                pairs[new] += number
                places[new].add(index)
                changed.add(new)
        for touched in changed:
            heapq.heappush(queue, (-pairs[touched], touched))
    return merges


def merged(symbols, pair):
    """Returns `symbols` with non-overlapping occurrences of `pair` joined, from the left."""
    result = []
    index = 0
    while index < len(symbols):
        if index + 1 < len(symbols) and (symbols[index], symbols[index + 1]) == pair:
            result.append(symbols[index] + symbols[index + 1])
            index += 2
        else:
            result.append(symbols[index])
            index += 1
    return result


def added_token(text):
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": True}


def write_files(folder, vocabulary, merges):
    first_special = len(vocabulary)
    specials = {text: first_special + index for index, text in enumerate(SPECIALS)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": number, **added_token(text)} for text, number in specials.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated",
             "invert": False}, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary,
                  "merges": [f"{left} {right}" for left, right in merges]},
    }
    config = {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {str(number): added_token(text)
                                 for text, number in specials.items()},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None, "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 512,
        "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }
    files = {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n",
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False) + "\n",
        "merges.txt": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=2) + "\n",
    }
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        path = os.path.join(folder, name)
        with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", action="append", required=True, help="JSONL, plain or .gz")
    parser.add_argument("--out", required=True, help="folder to write into (made if missing)")
    parser.add_argument("--vocab-size", type=int, default=344, help="bytes, merges and specials")
    options = parser.parse_args()
    count = options.vocab_size - 256 - len(SPECIALS)
    if count < 0:
        parser.error(f"--vocab-size must be >= {256 + len(SPECIALS)}")
    merges = train_merges(read_words(options.data), count)
    # GPT-2's order: the printable bytes, then the shifted ones.
    letters = sorted(byte_letters())
    vocabulary = {text: number for number, text in
                  enumerate(letters + [left + right for left, right in merges])}
    if len(vocabulary) != 256 + len(merges):
        raise SystemExit("two merges gave the same token")
    write_files(options.out, vocabulary, merges)
    print(f"{options.out}: {len(vocabulary) + len(SPECIALS)} tokens, {len(merges)} merges")
    return 0


if __name__ == "__main__":
    sys.exit(main())
