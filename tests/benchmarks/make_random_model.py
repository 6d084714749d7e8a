#!/usr/bin/env python3
"""Writes a Hugging Face directory with a small random Qwen2 over the real Qwen2.5 vocabulary.
  make_random_model.py TOKENIZER_DIRECTORY OUTPUT_DIRECTORY [--seed N] [--hidden N] [--layers N]
TOKENIZER_DIRECTORY holds vocab.json, merges.txt (or both as .gz) and tokenizer_config.json, which are copied unpacked.
Float32 weights depend on the arguments only."""

import argparse
import array
import gzip
import json
import math
import pathlib
import random
import shutil
import struct
import sys

VOCABULARY = 151936
HEADS = 2
EOS = [151645, 151643]


def copy_tokenizer(source, target):
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        plain, packed = source / name, source / (name + ".gz")
        if plain.exists():
            shutil.copyfile(plain, target / name)
        elif packed.exists():
            with gzip.open(packed, "rb") as reader, open(target / name, "wb") as writer:
                shutil.copyfileobj(reader, writer)
        else:
            raise SystemExit(f"make_random_model.py: neither {plain} nor {packed.name} exists")


def tensor_shapes(hidden, layers):
    """Returns {name: (shape, standard deviation)}; None stands for ones."""
    intermediate = 2 * hidden
    head = hidden // HEADS
    shapes = {"model.embed_tokens.weight": ((VOCABULARY, hidden), 1.0)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        # One key/value head. About unit gain, so that the residual stream leaves its token; else every answer would
        # repeat the prompt's last one.
        for name, rows, columns in (("q_proj", hidden, hidden), ("k_proj", head, hidden), ("v_proj", head, hidden),
                                    ("o_proj", hidden, hidden)):
            shapes[f"{attention}{name}.weight"] = ((rows, columns), 2 / math.sqrt(columns))
            if name != "o_proj":
                shapes[f"{attention}{name}.bias"] = ((rows,), 0.1)
        for name, rows, columns in (("gate_proj", intermediate, hidden), ("up_proj", intermediate, hidden),
                                    ("down_proj", hidden, intermediate)):
            shapes[f"{prefix}mlp.{name}.weight"] = ((rows, columns), 2 / math.sqrt(columns))
        shapes[prefix + "input_layernorm.weight"] = ((hidden,), None)
        shapes[prefix + "post_attention_layernorm.weight"] = ((hidden,), None)
    shapes["model.norm.weight"] = ((hidden,), None)
    return shapes


def write_safetensors(path, shapes, seed):
    header, offset = {}, 0
    for name, (shape, _) in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = random.Random(seed).gauss
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape, deviation in shapes.values():
            count = math.prod(shape)
            values = array.array("f", (draw(0, deviation) for _ in range(count)) if deviation else [1.0] * count)
            if sys.byteorder == "big":
                values.byteswap()
            values.tofile(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.hidden % (2 * HEADS) or arguments.hidden < 1 or arguments.layers < 1:
        parser.error(f"--hidden must be a multiple of {2 * HEADS} and --layers at least 1")
    arguments.output.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(arguments.tokenizer, arguments.output)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": VOCABULARY,
        "hidden_size": arguments.hidden, "intermediate_size": 2 * arguments.hidden,
        "num_hidden_layers": arguments.layers, "num_attention_heads": HEADS, "num_key_value_heads": 1,
        "max_position_embeddings": 32768, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "tie_word_embeddings": True, "use_sliding_window": False, "eos_token_id": EOS[0], "torch_dtype": "float32",
    }
    (arguments.output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (arguments.output / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}) + "\n")
    write_safetensors(arguments.output / "model.safetensors", tensor_shapes(arguments.hidden, arguments.layers),
                      arguments.seed)


if __name__ == "__main__":
    main()
