#!/usr/bin/env python3
"""Trajectories by a hand-written PyTorch loop in bfloat16 beside trajectory_benchmark's.
  pytorch_trajectories.py TRAJECTORY_BENCHMARK [--layers N] [--vocabulary N] [--prompts N] [--blocks N] [--threads N]
Random weights, so that a pass accepts one token of each draft: both sides forward 16, 15, … 1 rows of every sequence for
a block. Prints Markdown; needs an idle machine and PyTorch 2.5 or newer; exits with 77 without it."""

import argparse
import os
import re
import subprocess
import sys
import time

try:
    import torch
    from torch.nn import functional
except ImportError as error:
    print(f"pytorch_trajectories.py: skipped, PyTorch cannot be imported: {error}")
    sys.exit(77)

HIDDEN, INTERMEDIATE, HEADS, KEY_HEADS, DIM = 896, 4864, 14, 2, 64  # Qwen2.5-0.5B
BLOCK, PROMPT = 16, 64


class Model:
    def __init__(self, layers, vocabulary, sequences, positions):
        def matrix(rows, columns):
            return (torch.randn(rows, columns) * 0.02).to(torch.bfloat16)
        widths = (HEADS + 2 * KEY_HEADS) * DIM
        self.layers = [(matrix(widths, HIDDEN), matrix(HIDDEN, HIDDEN), matrix(2 * INTERMEDIATE, HIDDEN),
                        matrix(HIDDEN, INTERMEDIATE)) for _ in range(layers)]
        self.embedding = matrix(vocabulary, HIDDEN)
        self.keys = torch.zeros(layers, sequences, KEY_HEADS, positions, DIM, dtype=torch.bfloat16)
        self.values = torch.zeros_like(self.keys)
        angles = torch.outer(torch.arange(positions), 1e6 ** (-torch.arange(0, DIM, 2) / DIM))
        self.cosines, self.sines = (f(angles).to(torch.bfloat16) for f in (torch.cos, torch.sin))

    def rotated(self, x, first):
        low, high = x.chunk(2, -1)
        cosines, sines = (t[first:first + x.shape[2]] for t in (self.cosines, self.sines))
        return torch.cat((low * cosines - high * sines, high * cosines + low * sines), -1)

    def __call__(self, tokens, first, all_rows=True):
        """Returns the predictions after tokens [B, R] at positions `first` on."""
        count, rows = tokens.shape
        end = first + rows
        mask = torch.arange(end) <= torch.arange(first, end)[:, None]
        x = self.embedding[tokens]
        for layer, (qkv, out, gate_up, down) in enumerate(self.layers):
            projected = functional.linear(functional.rms_norm(x, (HIDDEN,)), qkv)
            q, k, v = (t.unflatten(-1, (-1, DIM)).transpose(1, 2)
                       for t in projected.split((HEADS * DIM, KEY_HEADS * DIM, KEY_HEADS * DIM), -1))
            self.keys[layer, :, :, first:end] = self.rotated(k, first)
            self.values[layer, :, :, first:end] = v
            attended = functional.scaled_dot_product_attention(
                self.rotated(q, first), self.keys[layer, :, :, :end], self.values[layer, :, :, :end],
                attn_mask=mask, enable_gqa=True)
            x = x + functional.linear(attended.transpose(1, 2).reshape(count, rows, HIDDEN), out)
            gate, up = functional.linear(functional.rms_norm(x, (HIDDEN,)), gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, down)
        x = functional.rms_norm(x, (HIDDEN,))
        return functional.linear(x if all_rows else x[:, -1:], self.embedding).max(-1).indices  # argmax() takes 2.6 times as long.


def generate(model, tokens, blocks):
    """Decodes so many blocks of each prompt; one token of a draft is accepted a pass."""
    first = tokens.shape[1]
    last = model(tokens, 0, all_rows=False)
    for _ in range(blocks):
        draft = torch.cat((last, torch.randint(len(model.embedding), (tokens.shape[0], BLOCK - 1))), 1)
        for _ in range(BLOCK):
            predicted = model(draft, first)
            first += 1
            last = predicted[:, -1:]
            draft = predicted[:, :-1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("benchmark")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Model(options.layers, options.vocabulary, options.prompts, PROMPT + (options.blocks + 1) * BLOCK)
    prompts = torch.randint(options.vocabulary, (options.prompts, PROMPT))
    seconds = []
    with torch.inference_mode():
        generate(model, prompts, 1)  # Warms up.
        for _ in range(3):
            begin = time.perf_counter()
            generate(model, prompts, options.blocks)
            seconds.append(time.perf_counter() - begin)
    theirs = options.prompts * options.blocks * BLOCK / sorted(seconds)[1]
    ours = subprocess.run([options.benchmark, "--only", "batch", "--batch", str(options.prompts), "--batch-blocks",
                           str(options.blocks), "--prompt", str(PROMPT), "--layers", str(options.layers),
                           "--vocabulary", str(options.vocabulary)], check=True, text=True, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": str(options.threads)})
    print(f"- command: `pytorch_trajectories.py {' '.join(sys.argv[1:])}`\n- PyTorch {torch.__version__}\n")
    print(f"PyTorch's loop, bfloat16: {theirs:.1f} tokens/s of {options.prompts} prompts\n\n{ours.stdout}")
    row = re.search(r"^\| bfloat16_arithmetic \| [\d.]+ \| ([\d.]+) ", ours.stdout, re.MULTILINE)
    print(f"Ours in bfloat16 arithmetic is {float(row.group(1)) / theirs:.2f} times as fast.")


if __name__ == "__main__":
    main()
