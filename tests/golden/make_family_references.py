#!/usr/bin/env python3
"""Makes random tiny models of the families and values that `transformers` computes with them (reference/README.md).
  make_family_references.py DIRECTORY
Existing models in DIRECTORY are kept; their losses are recomputed. Needs the Python packages torch, transformers,
peft and safetensors; the committed files came from transformers 5.23 and 5.24, peft 0.21 and torch 2.15 on a CPU. Only the
packed mask and the losses, which METHOD.md states, are computed here."""

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
    "gqa-untied": ("qwen2", {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "rope_theta": 50.0}),
    "mha-tied": ("qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 50.0}),
}
VOCABULARY, PROMPT, BLOCK, BLOCKS, WINDOW = 19, 5, 4, 4, 2
# Losses do not depend on the family. golden_test.cpp says what each part of a name means.
QWEN2_LOSSES = ("noise_token_mean", "clean_token_mean", "window_token_mean", "noise_repo", "noise_paper_all_ar10",
                "noise_token_mean_eos", "window_paper_eos")
LOSSES = {"gqa-untied": QWEN2_LOSSES, "mha-tied": QWEN2_LOSSES,
          "qwen3": ("noise_token_mean", "noise_token_mean_decay08", "clean_token_mean_decay08", "mixed_token_mean",
                    "mixed_token_mean_odd", "noise_token_mean_frozen", "clean_token_mean_decay08_frozen_distilled",
                    "noise_token_mean_frozen_distilled_prompt", "noise_repo_prompt")}


def make_model(family, options):
    config = transformers.AutoConfig.for_model(
        family, vocab_size=VOCABULARY, intermediate_size=12, num_hidden_layers=2, max_position_embeddings=128,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, attn_implementation="eager",
        **{"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False, **options})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn_like(parameter)
            values = 1 + 0.3 * values if name.endswith("norm.weight") else 0.6 * values
            parameter.copy_(values.bfloat16().float())  # small files, without loss
    return model


def packed_mask(blocks, count, window):
    """Returns [T, T] of 0 and −inf for prompt | clean | noisy (METHOD.md §3). `blocks`: −1 for the prompt, i for clean
    block i, i + count for noisy block i. A window of 1 is the clean mask, of `count` the noise mask."""
    rows = len(blocks)
    mask = torch.full((rows, rows), float("-inf"))
    for q in range(rows):
        start = (blocks[q] - count) // window * window
        for k in range(rows):
            if blocks[q] < count or blocks[k] == -1:
                visible = k <= q
            elif blocks[k] < count:
                visible = blocks[k] < start
            else:
                visible = k <= q and blocks[k] - count >= start
            if visible:
                mask[q, k] = 0
    return mask


def divergence(teacher, student):
    """Returns KL(teacher‖student) of two rows of logits."""
    teacher, student = teacher.detach().log_softmax(-1), student.log_softmax(-1)
    return (teacher.exp() * (teacher - student)).sum()


def packed_losses(model, packed, name, teacher=None):
    """Returns consistency and autoregressive loss (METHOD.md §4) of the case `name`. `teacher`: of cases "frozen", a model
    that sees only prompt and clean blocks."""
    prompt, clean, noisy, parts = packed["prompt"], packed["clean"], packed["noisy"], name.split("_")
    size, count = packed["block_size"], len(clean)
    answer = size * count
    text = sum(clean, [])
    tokens = torch.tensor([prompt + text + sum(noisy, [])])
    positions = list(range(len(prompt) + answer)) + list(range(len(prompt), len(prompt) + answer))
    blocks = [-1] * len(prompt) + [i // size for i in range(2 * answer)]
    window = 1 if "clean" in parts or "odd" in parts else packed["window"] if "window" in parts else count
    mask = packed_mask(blocks, count, window)[None, None]
    logits = model(input_ids=tokens, position_ids=torch.tensor([positions]), attention_mask=mask).logits[0]
    teaching = teacher(input_ids=tokens[:, :len(prompt) + answer]).logits[0] if "frozen" in parts else logits
    end = text.index(packed["eos"]) if packed["eos"] in text else answer
    first_row = 0 if "prompt" in parts else len(prompt) - 1
    last_row = len(prompt) + min(end, answer - 1)
    if "distilled" in parts:
        autoregressive = torch.stack([divergence(teaching[row], logits[row]) for row in range(first_row, last_row)]).mean()
    else:
        autoregressive = torch.nn.functional.cross_entropy(logits[first_row:last_row], tokens[0, first_row + 1:last_row + 1])
    total = weights = 0
    for block in range(count):
        differs = (o for o in range(size) if clean[block][o] != noisy[block][o])
        first = 0 if "all" in parts else next(differs, size)
        for offset in range(first, min(size, end - block * size)):
            row = len(prompt) + block * size + offset
            weight = 0.8 ** (offset - first) if "decay08" in parts else 1
            total = total + weight * divergence(teaching[row], logits[row + answer])
            weights += weight
    reached = min(end // size + 1, count)
    return total / (1 if "paper" in parts else weights) / (1 if "mean" in parts else reached), autoregressive


def scaled(model, factor):
    """Returns a copy with every parameter times `factor`, for a frozen teacher."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(factor)
    return copied


def write_losses(directory, family):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    for name in LOSSES.get(family, ("noise_token_mean",)):
        packed = json.loads((directory / ("packed_eos.json" if name.endswith("_eos") else "packed.json")).read_text())
        model.zero_grad()
        consistency, autoregressive = packed_losses(model, packed, name, scaled(model, 0.75))
        loss = consistency + (10 if name.endswith("_ar10") else 1) * autoregressive
        loss.backward()
        values = {"consistency_loss": consistency, "ar_loss": autoregressive, "loss": loss}
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
    consistency, _ = packed_losses(model, packed, "clean_token_mean_decay08")
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


class Head(torch.nn.Module):
    """DFlash's head, causal in a block, with the names of its published models."""

    def __init__(self, base, features, layers):
        super().__init__()
        qwen3, wide = transformers.models.qwen3.modeling_qwen3, base.hidden_size
        config = transformers.Qwen3Config(
            hidden_size=wide, intermediate_size=base.intermediate_size, num_attention_heads=base.num_attention_heads,
            num_key_value_heads=base.num_key_value_heads, head_dim=getattr(base, "head_dim", None) or wide // base.num_attention_heads,
            num_hidden_layers=layers, rms_norm_eps=base.rms_norm_eps, rope_parameters=base.rope_parameters,
            vocab_size=base.vocab_size, attention_bias=False, tie_word_embeddings=base.tie_word_embeddings)
        config.architectures, config.num_target_layers = ["DFlashDraftModel"], base.num_hidden_layers
        config.dflash_config = {"mask_token_id": base.vocab_size - 1, "target_layer_ids": features, "causal": True}
        self.config, self.rotate = config, qwen3.apply_rotary_pos_emb
        self.fc = torch.nn.Linear(len(features) * wide, wide, bias=False)
        self.hidden_norm = qwen3.Qwen3RMSNorm(wide, config.rms_norm_eps)
        self.layers = torch.nn.ModuleList(qwen3.Qwen3DecoderLayer(config, index) for index in range(layers))
        self.norm = qwen3.Qwen3RMSNorm(wide, config.rms_norm_eps)
        self.rotary = qwen3.Qwen3RotaryEmbedding(config)

    def block(self, features, x):
        """Returns the outputs of a block's embedded rows `x` behind positions with `features`."""
        known, rows, size = len(features), len(x), self.config.head_dim
        context = self.hidden_norm(self.fc(features))
        cos, sin = self.rotary(x, torch.arange(known + rows)[None])
        visible = torch.arange(known + rows) <= known + torch.arange(rows)[:, None]
        for layer in self.layers:
            own = layer.self_attn
            queries = layer.input_layernorm(x)
            both = torch.cat([context, queries])
            q = own.q_norm(own.q_proj(queries).view(rows, -1, size)).transpose(0, 1)[None]
            k = own.k_norm(own.k_proj(both).view(known + rows, -1, size)).transpose(0, 1)[None]
            v = own.v_proj(both).view(known + rows, -1, size).transpose(0, 1)[None]
            _, q = self.rotate(q, q, cos[:, known:], sin[:, known:])
            _, k = self.rotate(k, k, cos, sin)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
            x = x + own.o_proj(mixed[0].transpose(0, 1).reshape(rows, -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)


def write_head(directory):
    """A head of two layers on the first layer's output; loss with decay 0.8 and gradients of the packed sample."""
    torch.manual_seed(13)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    head = Head(model.config, [0], 2)
    with torch.no_grad():
        for parameter in head.parameters():
            values = torch.randn_like(parameter)
            parameter.copy_(1 + 0.3 * values if values.dim() == 1 else 0.5 * values)
    packed = json.loads((directory / "packed.json").read_text())
    tokens = torch.tensor(packed["prompt"] + sum(packed["clean"], []))
    with torch.no_grad():
        found = model(tokens[None], output_hidden_states=True)
    features = torch.cat([found.hidden_states[layer + 1][0] for layer in head.config.dflash_config["target_layer_ids"]], -1)
    total = weights = 0
    for start in range(PROMPT, len(tokens), BLOCK):  # row o proposes what the model predicts at row o - 1
        block = torch.full((BLOCK,), head.config.dflash_config["mask_token_id"])
        block[0] = tokens[start]
        logits = model.lm_head(head.block(features[:start], model.get_input_embeddings()(block).detach()))
        for offset in range(1, BLOCK):
            weight = 0.8 ** (offset - 1)
            total = total + weight * divergence(found.logits[0, start + offset - 1], logits[offset])
            weights += weight
    loss = total / weights
    loss.backward()
    (directory / "drafter").mkdir(exist_ok=True)
    head.config.to_json_file(directory / "drafter" / "config.json")
    save_file({name: value.detach() for name, value in head.named_parameters()}, directory / "drafter" / "model.safetensors")
    names = {"fc.weight": "fc.0.weight", "hidden_norm.weight": "hidden_norm.weight"}  # elsewhere "model." precedes
    save_file({"consistency_loss": loss.detach().reshape(1)} |
              {names.get(name, f"model.{name}"): value.grad for name, value in head.named_parameters()},
              directory / "drafter" / "loss.safetensors")


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
    packed = {"prompt": prompt, "block_size": BLOCK, "window": WINDOW, "noisy": noisy, "clean": clean, "eos": -1}
    (directory / "packed.json").write_text(json.dumps(packed))
    if family == "qwen2":  # text ends in the third block, after its first difference
        packed["eos"] = clean[2][3] = min(set(range(VOCABULARY)) - set(sum(clean, [])))
        (directory / "packed_eos.json").write_text(json.dumps(packed))


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_family_references.py DIRECTORY")
    for name, (family, options) in FAMILIES.items():
        torch.manual_seed(7)
        directory = pathlib.Path(sys.argv[1]) / name
        if not directory.exists():
            write_model(directory, family, options)
        write_losses(directory, name)
        if name in ("qwen3", "olmo2", "granite"):
            write_adapter(directory)
            write_drafter(directory)
        if name in ("qwen3-tied", "gqa-untied", "llama-tied", "smollm3"):
            write_head(directory)


if __name__ == "__main__":
    main()
