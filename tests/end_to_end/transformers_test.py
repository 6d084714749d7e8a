#!/usr/bin/env python3
"""Against Hugging Face's own packages, where Python has them: tokenizers of the families, models that go there and come
back, and exported models that stock `transformers` decodes by Jacobi iteration.

ctest's Python has seldom got these packages; by hand: JFORGE_BINARY=build/cpu-release/launch/jforge PYTHON THIS_FILE"""

import gzip
import json
import os
import pathlib
import random
import unittest

import tiny_model
from harness import EndToEndTest, SOURCE

try:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers
except ImportError:
    tokenizers = None
try:
    import torch
    import transformers
except ImportError:
    transformers = None

DATA = pathlib.Path(os.environ.get("JFORGE_TEST_DATA", SOURCE / ".." / "shared" / "data")) / "text"
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                  r"\s*[\r\n]+|\s+(?!\S)|\s+")
# Mistral's tekken: words begin with a capital.
TEKKEN_PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
                  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
                  r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BOS, END = "<|begin_of_text|>", "<|eot_id|>"
# The families' tokens for ends, so that a tokenizer.json says all that jforge reads.
TOKENIZER_CONFIG = {"bos_token": BOS, "eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}


def shared_texts():
    texts = []
    for path in sorted(DATA.glob("*")) if DATA.is_dir() else []:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        texts.append(content.decode("utf-8", errors="ignore"))
    return texts


def hostile_strings(count):
    """Blanks and signs of every kind, marks, surrogates' neighbours, long runs, almost tokens."""
    rng = random.Random(11)
    pools = [" \t\r\n\u00a0\u2003\u3000\u0085\u1680\u200b\ufeff", "'’sStTrReEvVmMlLdD\u017f\u212a", "0123456789²½٣Ⅷ一",
             "aAzZéÉß\u0130ı中文日本語한국어Ωжあ", "!?.,;:-_/\\()[]{}<>|#@*&^%$~`\"", "\u0301\u0308\u0327\u093f\u20dd",
             "\U0001f600\U0001f468\u200d\U0001f469\ufe0f\U0001f1e9", "\ud7ff\ue000\ufffd\U0010ffff\x01\x1f\x7f"]
    parts = [BOS, END, "<|", "|>", "<|eot_id", "hello", " world", "\r\n", "\n\n", "   ", "I'll", "don'T"]
    strings = []
    for _ in range(count):
        text = ""
        for _ in range(rng.randint(1, 24)):
            choice = rng.random()
            if choice < 0.15:
                text += rng.choice(parts)
            elif choice < 0.25:
                text += rng.choice(rng.choice(pools)) * rng.randint(2, 30)
            else:
                text += rng.choice(rng.choice(pools))
        strings.append(text)
    return strings


@unittest.skipUnless(tokenizers, "the Python package tokenizers is not installed")
class Tokenizers(EndToEndTest):
    def train(self, pattern, ignore_merges):
        tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=[BOS, END], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        corpus = [path.read_text(encoding="utf-8") for path in sorted(pathlib.Path(SOURCE).glob("*.md"))]
        tokenizer.train_from_iterator(corpus, trainer)
        if ignore_merges:  # Tokens that no merge makes, which is what the flag is for.
            definition = json.loads(tokenizer.to_str())
            dropped = definition["model"]["merges"][200::3]
            definition["model"]["merges"] = [merge for merge in definition["model"]["merges"] if merge not in dropped]
            # A merge needs its parts, but they need not be made by one.
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])])
        return tokenizer

    def compare(self, name, tokenizer):
        directory = self.root / name
        directory.mkdir()
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG), encoding="utf-8")
        # One text: an added token cuts it as two texts are cut.
        for texts in (hostile_strings(5000), shared_texts()):
            text = END.join(texts)
            result = self.jforge("tokenize", "--model", directory, stdin=text.encode("utf-8"))
            ids = [int(token) for token in result.out.split()]
            expected = tokenizer.encode(text).ids
            self.assertEqual(tokenizer.token_to_id(BOS), ids[0])
            first = next((i for i, pair in enumerate(zip(ids, expected)) if pair[0] != pair[1]), None)
            self.assertIsNone(first, f"{name}: {ids[first - 2:first + 6] if first else ids[:6]} at {first}")
            self.assertEqual(len(expected), len(ids))

    def test_llama3_split_with_and_without_merges(self):
        for ignore_merges in (True, False):
            self.compare(f"llama3-{ignore_merges}", self.train(LLAMA3_PATTERN, ignore_merges))

    def test_other_splits(self):
        self.compare("tekken", self.train(TEKKEN_PATTERN, True))
        self.compare("qwen", self.train(tiny_model.QWEN2_PATTERN, False))


if __name__ == "__main__":
    unittest.main()
