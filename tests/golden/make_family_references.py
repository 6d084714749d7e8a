#!/usr/bin/env python3
"""Makes random tiny models of the families and values that `transformers` computes with them (reference/README.md).
  make_family_references.py DIRECTORY
Existing models in DIRECTORY are kept; their losses are recomputed. Needs the Python packages torch, transformers,
peft and safetensors; the committed files came from transformers 5.23, peft 0.21 and torch 2.15 on a CPU. Only the packed mask and the
losses, which METHOD.md states, are computed here."""

import copy
import json
import pathlib
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 48}
# Two layers suffice to show what a family adds.
FAMILIES = {
    "qwen3": ("qwen3", {"head_dim": 6, "rope_theta": 50.0}),
    "qwen3-tied": ("qwen3", {"head_dim": 6, "tie_word_embeddings": True}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}}),
    "llama3": ("llama", {"head_dim": 6, "rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"head_dim": 6, "sliding_window": None, "rope_theta": 50.0}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2, "rope_theta": 50.0}),
    "olmo2": ("olmo2", {"num_key_value_heads": 2, "rope_theta": 50.0}),
    "granite": ("granite", {"embedding_multiplier": 3.0, "attention_multiplier": 0.75, "residual_multiplier": 0.4,
                            "logits_scaling": 2.5, "rope_theta": 50.0}),
}
VOCABULARY, PROMPT, BLOCK, BLOCKS, WINDOW = 19, 5, 4, 4, 4


def make_model(family, options):
    config = transformers.AutoConfig.for_model(
        family, vocab_size=VOCABULARY, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=128, bos_token_id=None, eos_token_id=None, pad_token_id=None, attn_implementation="eager",
        **{"num_key_value_heads": 1, "tie_word_embeddings": False, **options})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn_like(parameter)
            values = 1 + 0.3 * values if name.endswith("norm.weight") else 0.6 * values
            parameter.copy_(values.bfloat16().float())  # small files, without loss
    return model


def packed_mask(positions, blocks, clean_context):
    """Returns [T, T] of 0 and −inf for prompt | clean | noisy (METHOD.md §3), noise-conditioned or, with
    `clean_context`, noisy blocks after clean ones. `blocks`: −1 for the prompt, i for clean block i, i + BLOCKS for
    noisy block i."""
    rows = len(blocks)
    mask = torch.full((rows, rows), float("-inf"))
    for q in range(rows):
        for k in range(rows):
            noisy = [blocks[row] >= BLOCKS for row in (q, k)]
            if blocks[k] == -1:
                visible = k <= q
            elif clean_context and noisy[0]:
                visible = blocks[k] < blocks[q] - BLOCKS or (blocks[k] == blocks[q] and positions[k] <= positions[q])
            else:
                visible = noisy[0] == noisy[1] and positions[k] <= positions[q]
            if visible:
                mask[q, k] = 0
    return mask


def divergence(teacher, student):
    """Returns KL(teacher‖student) of two rows of logits."""
    teacher, student = teacher.detach().log_softmax(-1), student.log_softmax(-1)
    return (teacher.exp() * (teacher - student)).sum()


def packed_losses(model, packed, teacher=None, clean_context=False, decay=1.0, divide_by_blocks=False, distilled=False,
                  prompt_trained=False):
    """Returns consistency and autoregressive loss, from the first difference on (METHOD.md §4). `teacher`: another
    model, which sees only prompt and clean blocks; `distilled`: it is the autoregressive loss's target."""
    prompt, clean, noisy = packed["prompt"], packed["clean"], packed["noisy"]
    answer = BLOCK * BLOCKS
    tokens = torch.tensor([prompt + sum(clean, []) + sum(noisy, [])])
    positions = list(range(PROMPT + answer)) + list(range(PROMPT, PROMPT + answer))
    blocks = [-1] * PROMPT + [i // BLOCK for i in range(2 * answer)]
    mask = packed_mask(positions, blocks, clean_context)[None, None]
    logits = model(input_ids=tokens, position_ids=torch.tensor([positions]), attention_mask=mask).logits[0]
    teaching = logits if teacher is None else teacher(input_ids=tokens[:, :PROMPT + answer]).logits[0]
    first_row = 0 if prompt_trained else PROMPT - 1
    last_row = PROMPT + answer - 1
    if distilled:
        autoregressive = torch.stack([divergence(teaching[row], logits[row]) for row in range(first_row, last_row)]).mean()
    else:
        autoregressive = torch.nn.functional.cross_entropy(logits[first_row:last_row], tokens[0, first_row + 1:last_row + 1])
    total = weights = 0
    for block in range(BLOCKS):
        first = next((o for o in range(BLOCK) if clean[block][o] != noisy[block][o]), BLOCK)
        for offset in range(first, BLOCK):
            row = PROMPT + block * BLOCK + offset
            total = total + decay ** (offset - first) * divergence(teaching[row], logits[row + answer])
            weights += decay ** (offset - first)
    return total / weights / (BLOCKS if divide_by_blocks else 1), autoregressive


def scaled(model, factor):
    """Returns a copy with every parameter times `factor`, for a frozen teacher."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(factor)
    return copied


def write_losses(directory, family):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    packed = json.loads((directory / "packed.json").read_text())
    cases = {"noise_token_mean": {}}
    if family == "qwen3":
        teacher = scaled(model, 0.75)
        cases |= {
            "noise_token_mean_decay08": {"decay": 0.8},
            "clean_token_mean_decay08": {"clean_context": True, "decay": 0.8},
            "mixed_token_mean": {},
            "mixed_token_mean_odd": {"clean_context": True},
            "noise_token_mean_frozen": {"teacher": teacher},
            "clean_token_mean_decay08_frozen_distilled": {"teacher": teacher, "distilled": True, "clean_context": True,
                                                          "decay": 0.8},
            "noise_token_mean_frozen_distilled_prompt": {"teacher": teacher, "distilled": True, "prompt_trained": True},
            "noise_repo_prompt": {"divide_by_blocks": True, "prompt_trained": True},
        }
    for name, options in cases.items():
        model.zero_grad()
        consistency, autoregressive = packed_losses(model, packed, **options)
        (consistency + autoregressive).backward()
        values = {"consistency_loss": consistency, "ar_loss": autoregressive, "loss": consistency + autoregressive}
        values = {name: value.detach().reshape(1) for name, value in values.items()}
        values |= {name: parameter.grad for name, parameter in model.named_parameters()}
        save_file(values, directory / f"loss_{name}.safetensors")


RANK, SCALE = 3, 2.0


def write_adapter(directory):
    """Low-rank additions to every projection of the noisy rows, and their gradients, of the consistency loss alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    packed = json.loads((directory / "packed.json").read_text())
    answer = BLOCK * BLOCKS
    noisy = torch.arange(PROMPT + 2 * answer)[:, None] >= PROMPT + answer
    weights = {}

    def add(name, layer):
        inner = (0.4 * torch.randn(RANK, layer.in_features)).requires_grad_()
        outer = (0.4 * torch.randn(layer.out_features, RANK)).requires_grad_()
        weights.update({f"{name}.lora_A.weight": inner, f"{name}.lora_B.weight": outer})
        layer.register_forward_hook(lambda _, inputs, output: output + SCALE * noisy * (inputs[0] @ inner.T @ outer.T))

    for name, layer in model.named_modules():
        if name.endswith("_proj"):
            add(name, layer)
    consistency, _ = packed_losses(model, packed, clean_context=True, decay=0.8)
    consistency.backward()
    values = {"consistency_loss": consistency.detach().reshape(1)}
    for name, weight in weights.items():
        values |= {name: weight.detach(), f"gradient.{name}": weight.grad}
    save_file(values, directory / "adapter.safetensors")


def write_drafter(directory):
    """A LoRA as PEFT saves it, and the logits of ids.json with it in every row."""
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=2, lora_alpha=3, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(0.4 * torch.randn_like(parameter))
        ids = json.loads((directory / "ids.json").read_text())
        logits = model(torch.tensor([ids])).logits[0].contiguous()
    model.peft_config["default"].base_model_name_or_path = ".."
    model.save_pretrained(directory / "drafter")
    (directory / "drafter" / "README.md").unlink()
    save_file({"logits": logits}, directory / "drafter" / "logits.safetensors")


def write_model(directory, family, options):
    model = make_model(family, options)
    directory.mkdir(parents=True)
    # A copy, because the rotary frequencies also lose digits.
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
    for block in range(BLOCKS):  # a state shares a beginning with its fixed point
        noisy[block][:block % 3] = clean[block][:block % 3]
    prompt = torch.randint(VOCABULARY, (PROMPT,)).tolist()
    (directory / "packed.json").write_text(json.dumps(
        {"prompt": prompt, "block_size": BLOCK, "window": WINDOW, "noisy": noisy, "clean": clean, "eos": -1}))


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_family_references.py DIRECTORY")
    torch.manual_seed(7)
    for name, (family, options) in FAMILIES.items():
        directory = pathlib.Path(sys.argv[1]) / name
        if not directory.exists():
            write_model(directory, family, options)
        write_losses(directory, name)
        if name in ("qwen3", "olmo2", "granite"):
            write_adapter(directory)
            write_drafter(directory)


if __name__ == "__main__":
    main()
