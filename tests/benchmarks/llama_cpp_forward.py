#!/usr/bin/env python3
"""Forward passes of 1 and 16 rows in llama.cpp and in model_benchmark: Qwen2.5-0.5B's shape, random weights.
  llama_cpp_forward.py MODEL_BENCHMARK [--layers N] [--vocabulary N] [--threads N] [--rounds N] [--passes N]
Both programs hold float32 and then bfloat16 matrices after 64 tokens, turn by turn on the same threads; a pass of one
row is a token of AR decoding. llama.cpp gets the weights as GGUF files, F32 and BF16, in a temporary folder (3 GB at
the whole shape; both programs need about 8 GB of memory). It keeps keys and values as float16, its default, ours are
float32. Prints Markdown; needs an idle machine and the packages llama-cpp-python and gguf (pip builds the former for
this processor); exits with 77 without them."""

import argparse
import ctypes
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
PROMPT = 64
ROWS = (1, 16)
HIDDEN, INTERMEDIATE, HEADS, KEY_HEADS = 896, 4864, 14, 2
# Intended multiples of llama.cpp's speed.
GOALS = {(1, "float32"): 1.15, (1, "bfloat16"): 1.1, (16, "float32"): 1.2, (16, "bfloat16"): 1.2}

try:
    import gguf
    import llama_cpp
    import numpy
except ImportError as error:
    print(f"llama_cpp_forward.py: skipped, {error}")
    sys.exit(SKIPPED)


def write_model(path, layers, vocabulary, matrix_type):
    """Writes a random Qwen2 with tied embeddings, without a tokenizer."""
    random = numpy.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("none")

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=numpy.float32) * numpy.float32(0.02)
        writer.add_tensor(name, gguf.quants.quantize(values, matrix_type), raw_dtype=matrix_type)

    def vector(name, value, size):
        writer.add_tensor(name, numpy.full(size, value, dtype=numpy.float32))

    keys = HIDDEN // HEADS * KEY_HEADS
    matrix("token_embd.weight", vocabulary, HIDDEN)
    vector("output_norm.weight", 1, HIDDEN)
    for layer in range(layers):
        block = f"blk.{layer}."
        for name, rows in (("attn_q", HIDDEN), ("attn_k", keys), ("attn_v", keys)):
            matrix(f"{block}{name}.weight", rows, HIDDEN)
            vector(f"{block}{name}.bias", 0, rows)
        matrix(block + "attn_output.weight", HIDDEN, HIDDEN)
        matrix(block + "ffn_gate.weight", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_up.weight", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, INTERMEDIATE)
        vector(block + "attn_norm.weight", 1, HIDDEN)
        vector(block + "ffn_norm.weight", 1, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaModel:
    """A GGUF model in llama.cpp that has read PROMPT tokens."""

    def __init__(self, path, threads, vocabulary):
        model_settings = llama_cpp.llama_model_default_params()
        model_settings.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_settings)
        if not self.model:
            raise SystemExit(f"llama_cpp_forward.py: llama.cpp cannot load {path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = 256
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        if not self.context:
            raise SystemExit("llama_cpp_forward.py: llama.cpp makes no context")
        self.vocabulary = vocabulary
        self.forward(0, PROMPT)

    def forward(self, begin, rows):
        """Returns the seconds of a pass that predicts a token for each row."""
        batch = llama_cpp.llama_batch_init(rows, 0, 1)
        batch.n_tokens = rows
        for i in range(rows):
            batch.token[i] = (begin + i) * 7919 % self.vocabulary
            batch.pos[i] = begin + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        start = time.perf_counter()
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_cpp_forward.py: llama_decode failed")
        logits = llama_cpp.llama_get_logits(self.context)
        numpy.ctypeslib.as_array(logits, shape=(rows, self.vocabulary)).argmax(axis=1)
        seconds = time.perf_counter() - start
        llama_cpp.llama_batch_free(batch)
        if begin > 0:
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), 0, begin, -1)
        return seconds

    def passes_per_second(self, rows, passes):
        self.forward(PROMPT, rows)
        return 1 / statistics.median(self.forward(PROMPT, rows) for _ in range(passes))


def our_passes_per_second(options):
    """Returns {(rows, type): passes/s}, medians of a run of model_benchmark."""
    command = [options.model_benchmark, "--shape", "qwen2.5-0.5b", "--only", "storage", "--layers", options.layers,
               "--vocabulary", options.vocabulary, "--prompt", PROMPT, "--warmup", 1, "--tokens", options.passes,
               "--repetitions", 1, "--read-megabytes", 64]
    out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True,
                         env=os.environ | {"OMP_NUM_THREADS": str(options.threads)}).stdout
    found = {}
    for rows, kind, passes in re.findall(r"(\d+) rows?, (float32|bfloat16): passes/s \| ([\d.]+)", out):
        found[int(rows), kind] = float(passes)
    return {key: found[key] for key in GOALS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_benchmark", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=10)
    options = parser.parse_args()
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p())
    types = {"float32": gguf.GGMLQuantizationType.F32, "bfloat16": gguf.GGMLQuantizationType.BF16}
    ours = {key: [] for key in GOALS}
    theirs = {key: [] for key in GOALS}
    with tempfile.TemporaryDirectory() as folder:
        models = {}
        for kind, matrix_type in types.items():
            path = pathlib.Path(folder) / f"{kind}.gguf"
            write_model(path, options.layers, options.vocabulary, matrix_type)
            models[kind] = LlamaModel(path, options.threads, options.vocabulary)
        for _ in range(options.rounds):
            for key, passes in our_passes_per_second(options).items():
                ours[key].append(passes)
            for rows, kind in GOALS:
                theirs[rows, kind].append(models[kind].passes_per_second(rows, options.passes))
    print(f"- command: `llama_cpp_forward.py MODEL_BENCHMARK --layers {options.layers} --vocabulary {options.vocabulary} "
          f"--threads {options.threads} --rounds {options.rounds} --passes {options.passes}`")
    print(f"- llama-cpp-python {llama_cpp.__version__}, Python {platform.python_version()}, "
          f"{llama_cpp.llama_print_system_info().decode().strip()}")
    print("\n| rows | weights | ours, rows/s | llama.cpp, rows/s | ratio (of each round) | goal |\n"
          "| --- | --- | --- | --- | --- | --- |")
    for (rows, kind), goal in GOALS.items():
        ratios = sorted(a / b for a, b in zip(ours[rows, kind], theirs[rows, kind], strict=True))
        print(f"| {rows} | {kind} | {rows * statistics.median(ours[rows, kind]):.1f} | "
              f"{rows * statistics.median(theirs[rows, kind]):.1f} | {statistics.median(ratios):.2f} "
              f"({ratios[0]:.2f}–{ratios[-1]:.2f}) | {goal} |")


if __name__ == "__main__":
    main()
