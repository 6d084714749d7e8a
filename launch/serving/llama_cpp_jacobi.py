#!/usr/bin/env python3
"""Jacobi decoding of a Jacobi-forced model in llama.cpp, by llama-cpp-python as it is.

    llama = open_llama("model.gguf", block_size=16)
    llama.create_chat_completion([{"role": "user", "content": "…"}], temperature=0)

    llama_cpp_jacobi.py FILE.gguf PROMPT [--block-size N] [--max-tokens T]

llama.cpp's own answer, in fewer passes: it verifies the drafts. model/decoding/METHOD.md, section 6.2, has the rule."""

import argparse
import random
import sys

try:
    import numpy
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaDraftModel
except ImportError:
    Llama, LlamaDraftModel = None, object


class JacobiDraft(LlamaDraftModel):
    """Drafts the predictions after the point where the last draft failed, then tokens drawn from the text. Requires:
    `llama` keeps the logits of all rows (logits_all)."""

    def __init__(self, block_size=16, seed=0):
        if block_size < 1:
            raise ValueError("block_size must be at least 1")
        self.block_size, self.random, self.llama = block_size, random.Random(seed), None
        self.forwards, self.seen, self.end = 0, [], 0  # Forwards after the prompts'.

    def __call__(self, input_ids, /, **kwargs):
        return numpy.array(self.after(input_ids.tolist()), dtype=numpy.intc)

    def predictions(self, first, end):
        return self.llama.scores[first:end].argmax(axis=-1).tolist()

    def after(self, known):
        """Returns the draft after the `known` tokens, of which llama.cpp has run all but the newest."""
        self.forwards += 1
        draft = []
        # The last pass ran rows up to `end`. Those after the accepted ones predict what follows the newest token.
        if len(self.seen) < len(known) <= self.end + 1 and known[:len(self.seen)] == self.seen:
            draft = self.predictions(len(known) - 1, self.end)
        while len(draft) < self.block_size - 1:
            draft.append(self.random.choice(known[:-1]))
        self.seen, self.end = list(known), min(len(known) + len(draft), self.llama.n_ctx())
        return draft


def open_llama(path, block_size=16, seed=0, **options):
    """Returns a Llama that decodes by Jacobi iteration; `options` are its own."""
    if Llama is None:
        sys.exit("llama_cpp_jacobi.py: needs llama-cpp-python: python3 -m pip install llama-cpp-python")
    draft = JacobiDraft(block_size, seed)
    draft.llama = Llama(str(path), draft_model=draft, logits_all=True, **options)
    return draft.llama


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("file")
    parser.add_argument("prompt")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=256)
    options = parser.parse_args()
    llama = open_llama(options.file, options.block_size, n_ctx=0, verbose=False)
    answer = llama.create_chat_completion([{"role": "user", "content": options.prompt}], temperature=0,
                                          max_tokens=options.max_tokens)
    print(answer["choices"][0]["message"]["content"])
    print(f"{answer['usage']['completion_tokens']} tokens in {llama.draft_model.forwards} passes", file=sys.stderr)


if __name__ == "__main__":
    main()
