"""Decoding with a head as DFlash's published model defines it, with numpy and nothing of ours: the frozen model (Qwen2's
form), the head's files, and verification. Slow: every pass computes the whole sequence.

dflash_reference.py MODEL PROMPTS.json NEW_TOKENS BLOCK_SIZE [ROWS]: prints [[tokens, accepted by each pass], ...]; with
ROWS, of which the newest token has one, by a tree."""

import json
import pathlib
import struct
import sys

import numpy as np


def tensors(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    found = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            raw = np.frombuffer(data[begin:end], "<f4" if entry["dtype"] == "F32" else "<u2")
            if entry["dtype"] == "BF16":
                raw = (raw.astype("<u4") << 16).view("<f4")
            found[name] = raw.astype(np.float64).reshape(entry["shape"])
    return found


def norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


class Layers:
    """Decoder layers of Qwen2's or Qwen3's form."""

    def __init__(self, folder, prefix):
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.weights, self.prefix = tensors(folder / "model.safetensors"), prefix
        self.heads, self.key_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.size = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        self.epsilon = self.config["rms_norm_eps"]
        self.theta = (self.config.get("rope_parameters") or {}).get("rope_theta") or self.config["rope_theta"]

    def rotated(self, x, positions):
        half = self.size // 2
        angles = positions[:, None, None] * self.theta ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    def layer(self, index, x, positions, context=None):
        """`context` [rows, C], at positions from 0, gives keys and values before those of x."""
        w = {name.removeprefix(f"{self.prefix}layers.{index}."): value for name, value in self.weights.items()}

        def heads(rows, name, count):
            y = rows @ w[f"self_attn.{name}_proj.weight"].T + w.get(f"self_attn.{name}_proj.bias", 0)
            y = y.reshape(len(rows), count, self.size)
            return norm(y, w[f"self_attn.{name}_norm.weight"], self.epsilon) if f"self_attn.{name}_norm.weight" in w else y

        normed = norm(x, w["input_layernorm.weight"], self.epsilon)
        rows = normed if context is None else np.concatenate([context, normed])
        places = positions if context is None else np.concatenate([np.arange(len(context)), positions])
        q = self.rotated(heads(normed, "q", self.heads), positions)
        k = self.rotated(heads(rows, "k", self.key_heads), places).repeat(self.heads // self.key_heads, 1)
        v = heads(rows, "v", self.key_heads).repeat(self.heads // self.key_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.size)
        scores[:, places[None, :] > positions[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(len(x), -1)
        x = x + mixed @ w["self_attn.o_proj.weight"].T
        normed = norm(x, w["post_attention_layernorm.weight"], self.epsilon)
        gate = normed @ w["mlp.gate_proj.weight"].T
        return x + (gate / (1 + np.exp(-gate)) * (normed @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T


class Model:
    def __init__(self, folder):
        self.base, self.head = Layers(folder, "model."), Layers(folder / "drafter", "")
        self.embedding = self.base.weights["model.embed_tokens.weight"]
        self.logits = self.base.weights.get("lm_head.weight", self.embedding)
        own = self.head.config["dflash_config"]
        self.mask, self.features = own["mask_token_id"], own["target_layer_ids"]

    def forward(self, tokens):
        """Returns the next tokens and the features of all rows."""
        x, outputs = self.embedding[tokens], []
        for index in range(self.base.config["num_hidden_layers"]):
            x = self.base.layer(index, x, np.arange(len(tokens)))
            outputs.append(x)
        final = norm(x, self.base.weights["model.norm.weight"], self.base.epsilon)
        return (final @ self.logits.T).argmax(-1), np.concatenate([outputs[index] for index in self.features], -1)

    def proposals(self, features, newest, count):
        w = self.head.weights
        context = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"], self.head.epsilon)
        x = self.embedding[[newest] + [self.mask] * count]
        for index in range(self.head.config["num_hidden_layers"]):
            x = self.head.layer(index, x, len(features) + np.arange(count + 1), context)
        return (norm(x, w["norm.weight"], self.head.epsilon) @ self.logits.T)[1:]

    @staticmethod
    def paths(logits, rows):
        """Returns the likeliest paths of the first choices, of which one position may have another of the eight best."""
        if rows is None:
            return [tuple(map(int, logits.argmax(-1)))]
        values = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        order = np.argsort(-logits, axis=-1, kind="stable")[:, :8]
        found = {}
        for length in range(1, len(logits) + 1):
            for at in range(length):
                for choice in range(order.shape[1]):
                    path = tuple(int(order[i, choice if i == at else 0]) for i in range(length))
                    found[path] = sum(values[i, token] for i, token in enumerate(path))
        return sorted(found, key=found.get, reverse=True)[:rows - 1]

    def decode(self, prompt, new_tokens, block_size, rows=None):
        """Returns the new tokens and how many each pass made known."""
        next_tokens, features = self.forward(prompt)
        known, accepted = [*prompt, int(next_tokens[-1])], []
        while len(known) < len(prompt) + new_tokens:
            count = min(block_size, len(prompt) + new_tokens - len(known)) - 1
            most = 0
            for path in self.paths(self.proposals(features, known[-1], count), rows):
                next_tokens, of_path = self.forward(known + list(path))
                right = [int(token) for token in next_tokens[len(known) - 1:]]
                a = 1
                while a <= len(path) and path[a - 1] == right[a - 1]:
                    a += 1
                if a > most:
                    most, best, kept = a, list(path[:a - 1]) + [right[a - 1]], of_path[:len(known) - 1 + a]
            if not most:
                next_tokens, kept = self.forward(known)
                most, best = 1, [int(next_tokens[-1])]
            known, features = known + best, kept
            accepted.append(most)
        return known[len(prompt):], accepted


if __name__ == "__main__":
    model = Model(pathlib.Path(sys.argv[1]))
    prompts = json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))
    print(json.dumps([model.decode(prompt, *map(int, sys.argv[3:])) for prompt in prompts]))
