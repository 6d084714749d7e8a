#!/usr/bin/env python3
"""Random tiny models of the families, and values that `transformers` computes with them (reference/README.md).

    make_family_references.py DIRECTORY

Needs the Python packages torch, transformers and safetensors; the committed files came from transformers 5.23 and
torch 2.15 on a CPU. The arithmetic is theirs but for the packed sequence's mask and losses, which METHOD.md states."""

import copy
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 48}
# Small on purpose: what a family adds shows in two layers as well as in thirty.
FAMILIES = {
    "qwen3": ("qwen3", {"head_dim": 6, "rope_theta": 50.0}),
    "qwen3-tied": ("qwen3", {"head_dim": 6, "tie_word_embeddings": True}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}}),
    "llama3": ("llama", {"head_dim": 6, "rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"head_dim": 6, "sliding_window": None, "rope_theta": 50.0}),
}
VOCABULARY, PROMPT, BLOCK, BLOCKS, WINDOW = 19, 5, 4, 4, 4


def make_model(family, options):
    config = transformers.AutoConfig.for_model(
        family, vocab_size=VOCABULARY, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        attn_implementation="eager", **{"tie_word_embeddings": False, **options})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn_like(parameter)
            values = 1 + 0.3 * values if name.endswith("norm.weight") else 0.6 * values
            parameter.copy_(values.bfloat16().float())  # So that the files are small and lose nothing.
    return model


def packed_mask(positions, blocks):
    """[T, T] of 0 and −inf: prompt | clean | noisy, noise-conditioned (METHOD.md §3); `blocks` holds −1 for the
    prompt, i for clean block i and i + BLOCKS for noisy block i."""
    rows = len(blocks)
    mask = torch.full((rows, rows), float("-inf"))
    for q in range(rows):
        for k in range(rows):
            noisy = [blocks[row] >= BLOCKS for row in (q, k)]
            if blocks[k] == -1:
                visible = k <= q
            else:
                visible = noisy[0] == noisy[1] and positions[k] <= positions[q]
            if visible:
                mask[q, k] = 0
    return mask


def packed_losses(model, prompt, clean, noisy):
    """Consistency and autoregressive loss, `token_mean` and from the first difference (METHOD.md §4)."""
    answer = BLOCK * BLOCKS
    tokens = torch.tensor([prompt + sum(clean, []) + sum(noisy, [])])
    positions = list(range(PROMPT + answer)) + list(range(PROMPT, PROMPT + answer))
    blocks = [-1] * PROMPT + [i // BLOCK for i in range(2 * answer)]
    mask = packed_mask(positions, blocks)[None, None]
    logits = model(input_ids=tokens, position_ids=torch.tensor([positions]), attention_mask=mask).logits[0]
    targets = tokens[0, PROMPT:PROMPT + answer]
    autoregressive = torch.nn.functional.cross_entropy(logits[PROMPT - 1:PROMPT + answer - 1], targets)
    terms = []
    for block in range(BLOCKS):
        first = next((o for o in range(BLOCK) if clean[block][o] != noisy[block][o]), BLOCK)
        for offset in range(first, BLOCK):
            row = PROMPT + block * BLOCK + offset
            teacher = logits[row].detach().log_softmax(-1)
            student = logits[row + answer].log_softmax(-1)
            terms.append((teacher.exp() * (teacher - student)).sum())
    return torch.stack(terms).mean(), autoregressive


def write(directory, family, options):
    model = make_model(family, options)
    directory.mkdir(parents=True)
    # A copy: the rotary frequencies, too, lose their last digits.
    copy.deepcopy(model).bfloat16().save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)

    ids = torch.randint(VOCABULARY, (12,)).tolist()
    with torch.no_grad():
        save_file({"logits": model(torch.tensor([ids])).logits[0].contiguous()}, directory / "logits.safetensors")
        greedy = list(ids)
        for _ in range(48):
            greedy.append(int(model(torch.tensor([greedy])).logits[0, -1].argmax()))
    (directory / "ids.json").write_text(json.dumps(ids))
    (directory / "greedy48.json").write_text(json.dumps(greedy[len(ids):]))

    draw = torch.randint(VOCABULARY, (2, BLOCKS, BLOCK)).tolist()
    clean, noisy = draw
    for block in range(BLOCKS):  # A state shares a beginning with its fixed point.
        noisy[block][:block % 3] = clean[block][:block % 3]
    prompt = torch.randint(VOCABULARY, (PROMPT,)).tolist()
    (directory / "packed.json").write_text(json.dumps(
        {"prompt": prompt, "block_size": BLOCK, "window": WINDOW, "noisy": noisy, "clean": clean, "eos": -1}))
    consistency, autoregressive = packed_losses(model, prompt, clean, noisy)
    (consistency + autoregressive).backward()
    values = {"consistency_loss": consistency, "ar_loss": autoregressive, "loss": consistency + autoregressive}
    values = {name: value.detach().reshape(1) for name, value in values.items()}
    values |= {name: parameter.grad for name, parameter in model.named_parameters()}
    save_file(values, directory / "loss_noise_token_mean.safetensors")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_family_references.py DIRECTORY")
    torch.manual_seed(7)
    for name, (family, options) in FAMILIES.items():
        directory = pathlib.Path(sys.argv[1]) / name
        shutil.rmtree(directory, ignore_errors=True)
        write(directory, family, options)


if __name__ == "__main__":
    main()
