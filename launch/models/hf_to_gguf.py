#!/usr/bin/env python3
"""Converts a Hugging Face directory of a Llama, Qwen2 or Qwen3 model with a byte-level BPE tokenizer to a GGUF file.

    hf_to_gguf.py DIRECTORY FILE.gguf [--type F32|BF16|Q8_0] [--pre NAME]

--type is that of the matrices (default: F32 if the weights are, else BF16), --pre llama.cpp's name of the pre-tokenizer
if this script does not know it. Refuses models that it does not know."""

import argparse
import json
import math
import os
import pathlib
import struct
import sys

try:
    import gguf
    import numpy
    from gguf_to_hf import CONTROL, LAYER_TENSORS, TENSORS, USER_DEFINED
except ImportError as missing:
    sys.exit(f"hf_to_gguf.py: {missing}: python3 -m pip install gguf")

NORMAL, UNUSED = 1, 5
TYPES = {name: gguf.GGMLQuantizationType[name] for name in ("F32", "BF16", "Q8_0")}
GGUF_NAMES = {hf: own for own, hf in {**LAYER_TENSORS, "attn_q_norm": "self_attn.q_norm",
                                      "attn_k_norm": "self_attn.k_norm"}.items()}
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
               r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PRE_TOKENIZERS = {QWEN2_SPLIT: "qwen2", QWEN2_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|"): "llama-bpe"}


def refuse(what):
    sys.exit(f"hf_to_gguf.py: {what}")


def read_json(path, otherwise=None):
    if not path.is_file() and otherwise is not None:
        return otherwise
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return refuse(f"{path}: {error}")


def read_tensors(directory):
    """Returns {name: values, mapped from the files}; bfloat16 ones as uint16."""
    dtypes, tensors = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}, {}
    index = read_json(directory / "model.safetensors.index.json", {"weight_map": {"": "model.safetensors"}})
    for path in sorted({directory / name for name in index["weight_map"].values()}):
        data = numpy.memmap(path, dtype="u1", mode="r") if path.is_file() else refuse(f"{path} is missing")
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:begin].tobytes()).items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in dtypes:
                refuse(f"{path}: {name} is {entry['dtype']}, not one of {', '.join(dtypes)}")
            first, last = entry["data_offsets"]
            tensors[name] = data[begin + first:begin + last].view(dtypes[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def to_float32(values):
    return (values.astype("u4") << 16).view("f4") if values.dtype == numpy.uint16 else values.astype("f4")


def permute(weight, heads):
    """llama.cpp rotates neighbouring pairs of a head's rows; transformers rotates its two halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def gguf_name(name):
    stem, suffix = name.rsplit(".", 1)
    own = {hf: own for own, hf in TENSORS.items()}.get(stem)
    if own is not None and suffix == "weight":
        return f"{own}.weight"
    parts = stem.split(".", 3)
    if parts[:2] == ["model", "layers"] and parts[-1] in GGUF_NAMES:
        return f"blk.{parts[2]}.{GGUF_NAMES[parts[-1]]}.{suffix}"
    return refuse(f"tensor {name} is not one of a Llama's or a Qwen's")


def rope_factors(rope, dimension):
    """Returns what llama.cpp divides each frequency by, for Llama 3's rope."""
    factors = []
    for i in range(0, dimension, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (i / dimension)
        low, high = (rope["original_max_position_embeddings"] / rope[f"{end}_freq_factor"] for end in ("low", "high"))
        smooth = min(max((low / length - 1) / (low / high - 1), 0), 1)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return numpy.array(factors, dtype="f4")


def pre_tokenizer(tokenizer, path):
    """Returns llama.cpp's name."""
    parts = (tokenizer["pre_tokenizer"] or {}).get("pretokenizers", [tokenizer["pre_tokenizer"]])
    kinds = [part["type"] for part in parts if part]
    if kinds == ["Split", "ByteLevel"] and not parts[1]["use_regex"]:
        name = PRE_TOKENIZERS.get(parts[0]["pattern"].get("Regex"))
    else:
        digits = kinds == ["Digits", "ByteLevel"] and parts[0]["individual_digits"]
        name = "smollm" if digits else "gpt-2" if kinds == ["ByteLevel"] else None
    return name or refuse(f"{path}: pre-tokenizer {kinds} is not known: name llama.cpp's with --pre")


def add_tokenizer(writer, directory, vocabulary, pre, eos):
    path = directory / "tokenizer.json"
    tokenizer, config = read_json(path), read_json(directory / "tokenizer_config.json", {})
    if tokenizer["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(tokenizer["decoder"]):
        refuse(f"{path}: not a byte-level BPE tokenizer")
    tokens, types = [f"[PAD{i}]" for i in range(vocabulary)], [UNUSED] * vocabulary
    for token, number in tokenizer["model"]["vocab"].items():
        tokens[number], types[number] = token, NORMAL
    for token in tokenizer["added_tokens"]:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre or pre_tokenizer(tokenizer, path))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge)
                             for merge in tokenizer["model"]["merges"]])
    for name, add in (("bos", writer.add_bos_token_id), ("pad", writer.add_pad_token_id)):
        token = config.get(f"{name}_token")
        token = token["content"] if isinstance(token, dict) else token
        if token in tokens:
            add(tokens.index(token))
    for number, add in zip(eos, (writer.add_eos_token_id, writer.add_eot_token_id)):
        add(number)
    writer.add_add_bos_token("TemplateProcessing" in json.dumps(tokenizer["post_processor"]))
    template = directory / "chat_template.jinja"
    template = template.read_text(encoding="utf-8") if template.is_file() else config.get("chat_template")
    if isinstance(template, str):
        writer.add_chat_template(template)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--type", choices=TYPES)
    parser.add_argument("--pre", metavar="NAME")
    options = parser.parse_args()
    config = read_json(options.directory / "config.json")
    family, heads, kv_heads = (config[key] for key in ("model_type", "num_attention_heads", "num_key_value_heads"))
    rope = {"rope_theta": config.get("rope_theta", 1e4), **(config.get("rope_scaling") or {}),
            **(config.get("rope_parameters") or {})}
    kind = rope.get("rope_type", "default")
    odd = [key for key in ("attention_bias", "mlp_bias", "use_sliding_window") if config.get(key)]
    if family not in ("llama", "qwen2", "qwen3") or kind not in ("default", "llama3") or odd:
        refuse(f"{options.directory}: model {' with '.join([family, f'{kind} rope', *odd])} is not known")
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    tensors = read_tensors(options.directory)
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    matrices = options.type or ("F32" if tensors["model.embed_tokens.weight"].dtype == numpy.float32 else "BF16")
    unfinished = options.file.with_name(options.file.name + ".tmp")
    writer = gguf.GGUFWriter(unfinished, family)
    for add, key in (
            (writer.add_vocab_size, "vocab_size"), (writer.add_context_length, "max_position_embeddings"),
            (writer.add_embedding_length, "hidden_size"), (writer.add_block_count, "num_hidden_layers"),
            (writer.add_feed_forward_length, "intermediate_size"), (writer.add_head_count, "num_attention_heads"),
            (writer.add_head_count_kv, "num_key_value_heads"), (writer.add_layer_norm_rms_eps, "rms_norm_eps")):
        add(config[key])
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(head_size)
    writer.add_rope_freq_base(rope["rope_theta"])
    eos = read_json(options.directory / "generation_config.json", {}).get("eos_token_id", config.get("eos_token_id"))
    add_tokenizer(writer, options.directory, config["vocab_size"], options.pre, eos if isinstance(eos, list) else [eos])
    named = {gguf_name(name): values for name, values in tensors.items()}
    if kind == "llama3":
        named["rope_freqs.weight"] = rope_factors(rope, head_size)
    stored = {name: TYPES[matrices if values.ndim == 2 else "F32"] for name, values in named.items()}
    for name, values in named.items():
        if stored[name] == TYPES["Q8_0"] and values.shape[1] % 32 != 0:
            refuse(f"{name} has rows of {values.shape[1]}, which Q8_0 cannot hold: take another --type")
        size = gguf.quant_shape_to_byte_shape(values.shape, stored[name])
        writer.add_tensor_info(name, values.shape, numpy.dtype("f4"), math.prod(size), stored[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, values in named.items():
        values = to_float32(values)
        if family == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
            values = permute(values, heads if name.endswith("attn_q.weight") else kv_heads)
        writer.write_tensor_data(gguf.quantize(values, stored[name]))
    writer.close()
    os.replace(unfinished, options.file)


if __name__ == "__main__":
    main()
