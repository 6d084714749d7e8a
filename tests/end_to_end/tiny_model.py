"""A tiny random Qwen2 model, prompts and problems: a run takes about two seconds."""

import json
import pathlib
import random
import struct

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 256 + len(SPECIALS)
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 64, 2, 4, 2, 8
QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                 "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def byte_letters():
    """Returns GPT-2's printable letter for each byte value."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [value for value in range(256) if value not in printable]
    shifted = {value: chr(256 + shift) for shift, value in enumerate(hidden)}
    return [shifted.get(value, chr(value)) for value in range(256)]


def tensor_shapes():
    """Returns {name: shape} in Hugging Face's naming (tied head)."""
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = [HIDDEN]
        shapes[prefix + "post_attention_layernorm.weight"] = [HIDDEN]
        for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = [rows, HIDDEN]
            shapes[f"{prefix}self_attn.{name}_proj.bias"] = [rows]
        shapes[prefix + "self_attn.o_proj.weight"] = [HIDDEN, HEADS * HEAD_DIM]
        shapes[prefix + "mlp.gate_proj.weight"] = [INTERMEDIATE, HIDDEN]
        shapes[prefix + "mlp.up_proj.weight"] = [INTERMEDIATE, HIDDEN]
        shapes[prefix + "mlp.down_proj.weight"] = [HIDDEN, INTERMEDIATE]
    return shapes


def write_safetensors(path, tensors):
    """`tensors`: {name: (shape, bytes of little-endian float32)}."""
    header, offset = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            stream.write(data)


def read_safetensors(path):
    """Returns {name: (dtype, shape, bytes)}."""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    base = 8 + length
    return {name: (entry["dtype"], entry["shape"],
                   content[base + entry["data_offsets"][0]:base + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


def read_floats(path):
    """Returns {name: values} of float32 tensors."""
    values = {}
    for name, (dtype, _, data) in read_safetensors(path).items():
        if dtype != "F32":
            raise ValueError(f"{path}: {name} is {dtype}, expected F32")
        values[name] = list(struct.unpack(f"<{len(data) // 4}f", data))
    return values


def random_tensors(seed):
    rng = random.Random(seed)
    tensors = {}
    for name, shape in tensor_shapes().items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        if name.endswith("norm.weight"):
            values = [1.0] * count
        else:
            values = [rng.gauss(0.0, 0.25) for _ in range(count)]  # Wide, so that greedy tokens vary between prompts.
        tensors[name] = (shape, struct.pack(f"<{count}f", *values))
    return tensors


def write_tokenizer(folder):
    letters = byte_letters()
    vocabulary = {letter: number for number, letter in enumerate(sorted(letters))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    added = [{"id": 256 + index, "content": text, "lstrip": False, "normalized": False, "rstrip": False,
              "single_word": False, "special": True} for index, text in enumerate(SPECIALS)]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": False},
            byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None,
        "tokenizer_class": "Qwen2Tokenizer"}), encoding="utf-8")


def write_model(folder, seed=1):
    """Writes config, float32 weights and a byte-level tokenizer without merges."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 256, "use_sliding_window": False, "torch_dtype": "float32",
        "eos_token_id": 258,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}), encoding="utf-8")
    write_tokenizer(folder)
    write_safetensors(folder / "model.safetensors", random_tensors(seed))
    return folder


def write_prompts(path, count=24):
    things = ["pens", "eggs", "cups", "maps", "nuts", "keys"]
    with open(path, "w", encoding="utf-8") as stream:
        for index in range(count):
            text = f"{index + 3} {things[index % len(things)]} and {index * 7 % 11} more?"
            stream.write(json.dumps({"question": text, "answer": f"#### {index + 3 + index * 7 % 11}"}) + "\n")
