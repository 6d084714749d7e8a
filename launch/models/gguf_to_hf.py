#!/usr/bin/env python3
"""Converts a GGUF file of a Llama model with a byte-level tokenizer to a bfloat16 Hugging Face directory.

    gguf_to_hf.py FILE.gguf DIRECTORY

Needs the Python packages gguf and numpy. Refuses models that it does not know. Writes DIRECTORY.tmp, replacing an
earlier one, and renames it to DIRECTORY, which must not exist."""

import json
import os
import pathlib
import shutil
import struct
import sys

import numpy
from gguf import GGUFReader, dequantize

# Token types of GGUF.
CONTROL, USER_DEFINED = 3, 4
PRE_TOKENIZERS = {
    "smollm": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def refuse(what):
    sys.exit(f"gguf_to_hf.py: {what}")


def hf_name(name):
    stem, suffix = name.rsplit(".", 1)
    if suffix == "weight" and stem in TENSORS:
        return f"{TENSORS[stem]}.weight"
    parts = stem.split(".")
    if suffix == "weight" and len(parts) == 3 and parts[0] == "blk" and parts[2] in LAYER_TENSORS:
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.weight"
    return refuse(f"tensor {name} is not one of a Llama's")


def unpermute(weight, heads):
    """llama.cpp rotates neighbouring pairs of a head's rows; transformers rotates its two halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_bfloat16(values):
    """Rounds to nearest, ties to even. Requires: finite values."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(values.tobytes())


def tokenizer_files(field):
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    if field("tokenizer.ggml.model") != "gpt2" or field("tokenizer.ggml.pre") not in PRE_TOKENIZERS:
        refuse(f"tokenizer {field('tokenizer.ggml.model')}/{field('tokenizer.ggml.pre')} is not known")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": index, "content": token, **flags, "special": types[index] == CONTROL}
             for index, token in enumerate(tokens) if types[index] in (CONTROL, USER_DEFINED)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[field("tokenizer.ggml.pre")], "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: index for index, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in field("tokenizer.ggml.merges")]}}
    # For GPT2Tokenizer transformers 5 would replace the pre-tokenizer by byte level alone.
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False, "clean_up_tokenization_spaces": False,
              "added_tokens_decoder": {str(token["id"]): {key: token[key] for key in ("content", *flags, "special")}
                                       for token in added},
              "chat_template": field("tokenizer.chat_template"),
              "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
              "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
              "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
              "model_max_length": field("llama.context_length")}
    return tokenizer, config


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: gguf_to_hf.py FILE.gguf DIRECTORY")
    directory = pathlib.Path(sys.argv[2])
    if directory.exists():
        refuse(f"{directory} exists already: name another, or remove it")
    reader = GGUFReader(sys.argv[1])

    def field(name):
        return reader.fields[name].contents() if name in reader.fields else refuse(f"{name} is missing")

    if field("general.architecture") != "llama" or any("rope.scaling" in name for name in reader.fields):
        refuse("only Llama models without rope scaling are known")
    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        name = hf_name(tensor.name)
        if name.endswith("q_proj.weight") or name.endswith("k_proj.weight"):
            values = unpermute(values, heads if name.endswith("q_proj.weight") else kv_heads)
        tensors[name] = to_bfloat16(values)
    tokenizer, tokenizer_config = tokenizer_files(field)
    eos = field("tokenizer.ggml.eos_token_id")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
        "vocab_size": len(field("tokenizer.ggml.tokens")), "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"), "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "max_position_embeddings": field("llama.context_length"), "hidden_act": "silu",
        # GGUF stores float32, which would print as 9.999999747e-06.
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": field("llama.rope.freq_base"), "rope_scaling": None,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": eos, "torch_dtype": "bfloat16"}
    unfinished = directory.with_name(directory.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for name, content in (("config.json", config), ("generation_config.json", {"eos_token_id": eos}),
                          ("tokenizer.json", tokenizer), ("tokenizer_config.json", tokenizer_config)):
        (unfinished / name).write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    write_safetensors(unfinished / "model.safetensors", tensors)
    os.replace(unfinished, directory)


if __name__ == "__main__":
    main()
