#!/usr/bin/env python3
"""FlexAttention over the packed rows of kernel_benchmark --device cuda: the same samples, mask and heads, forward and
backward, compiled, in bfloat16. Prints the same rows; packed attention should reach 1.2 times its speed.
launch/gpu_check.sh runs it if PyTorch (2.5 or newer) with CUDA is installed; --device cpu --tiny shows that it works.
"""

import argparse
import time

import torch
import torch._functorch.config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BLOCK, WINDOW = 32, 8  # tokens of a block; blocks of a window


def row_bounds(samples, prompt, blocks):
    """Returns each row's end of the visible prefix and begin of its causal run, for samples [prompt | clean | noisy]. A
    noisy row sees prompt and clean rows up to its window, then noisy rows of its window up to itself."""
    begins, prefixes, runs = [], [], []
    base = 0
    for _ in range(samples):
        clean, answer = base + prompt, blocks * BLOCK
        noisy = clean + answer
        for _ in range(base, noisy):
            begins.append(base), prefixes.append(base), runs.append(base)
        for block in range(blocks):
            first = block // WINDOW * WINDOW * BLOCK
            for _ in range(BLOCK):
                begins.append(base), prefixes.append(clean + first), runs.append(noisy + first)
        base = noisy + answer
    return begins, prefixes, runs


def milliseconds(device, work, repetitions):
    def wait():
        if device == "cuda":
            torch.cuda.synchronize()
    work()
    best = float("inf")
    for _ in range(3):
        wait()
        begin = time.perf_counter()
        for _ in range(repetitions):
            work()
        wait()
        best = min(best, (time.perf_counter() - begin) / repetitions)
    return 1e3 * best


def measure(options, heads, key_heads, size, samples, prompt, blocks):
    device = options.device
    begins, prefixes, runs = (torch.tensor(one, device=device) for one in row_bounds(samples, prompt, blocks))
    rows = len(begins)
    visible = int((prefixes - begins + torch.arange(rows, device=device) - runs + 1).sum())

    def sees(_batch, _head, row, key):
        return ((key >= begins[row]) & (key < prefixes[row])) | ((key >= runs[row]) & (key <= row))

    mask = create_block_mask(sees, 1, 1, rows, rows, device=device)
    attend = flex_attention if options.tiny else torch.compile(flex_attention, dynamic=False)
    make = lambda count: torch.randn(1, count, rows, size, device=device, dtype=torch.bfloat16, requires_grad=not options.tiny)
    q, k, v = make(heads), make(key_heads), make(key_heads)
    forward = lambda: attend(q, k, v, block_mask=mask, enable_gqa=True)
    repetitions = 1 if options.tiny else 20
    name = f"{rows} rows, {visible} pairs, heads {heads}/{key_heads} of {size}, bfloat16"
    products = 2 * visible * heads * size
    with torch.no_grad():
        taken = milliseconds(device, forward, repetitions)
    print(f"| FlexAttention forward, {name} | {2 * products / taken / 1e9:.4g} TFLOP/s | | |")
    if options.tiny:  # its backward is only compiled
        return
    output = forward()
    gradient = torch.randn_like(output)
    taken = milliseconds(device, lambda: torch.autograd.grad(output, (q, k, v), gradient, retain_graph=True), repetitions)
    print(f"| FlexAttention backward, {name} | {5 * products / taken / 1e9:.4g} TFLOP/s | | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    print(f"- PyTorch {torch.__version__}, {torch.cuda.get_device_name() if options.device == 'cuda' else 'CPU'}\n\n"
          "| measurement | figure | bound | ratio |\n| --- | --- | --- | --- |")
    torch._functorch.config.donated_buffer = False  # backward runs many times after one forward
    if options.tiny:
        measure(options, 4, 2, 64, 1, 16, 2)
    else:
        measure(options, 14, 2, 64, 4, 512, 24)
        measure(options, 28, 4, 128, 4, 512, 24)


if __name__ == "__main__":
    main()
