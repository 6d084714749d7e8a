#!/usr/bin/env python3
"""A training step in PyTorch (eager and torch.compile, float32 and bfloat16) beside model_benchmark's.
  pytorch_step.py MODEL_BENCHMARK [--layers N] [--rows R] [--steps S] [--repetitions N] [--threads N]
  pytorch_step.py --check-only
Uses model_benchmark's packed rows, loss, clipping and AdamW, turn by turn on the same threads. First compares its
losses in float64 with our golden values (tests/golden/reference). Prints Markdown; needs an idle machine, PyTorch 2.5
or newer, and a C++ compiler for torch.compile; exits with 77 without PyTorch. bfloat16 is mixed precision as ours:
matrices, biases and activations in bfloat16; residual stream, masters, moments and the optimizer's gradients in
float32. PyTorch allocates tensors anew in every step. KEEP_MEMORY makes the C library keep freed memory, unless the
environment has MALLOC_… or LD_PRELOAD; this halves the processor time of a bfloat16 step of one layer and 256 rows."""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import platform
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden" / "reference"

KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def allocator_settings():
    return {key: value for key, value in os.environ.items() if key.startswith("MALLOC_") or key == "LD_PRELOAD"}


# The C library reads them when a process starts.
if __name__ == "__main__" and not allocator_settings():
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"pytorch_step.py: skipped, PyTorch cannot be imported: {error}")
    sys.exit(SKIPPED)
if not hasattr(F, "rms_norm"):
    print(f"pytorch_step.py: skipped, PyTorch {torch.__version__} is too old, 2.5 is needed")
    sys.exit(SKIPPED)


# ---- the model -------------------------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Shape:
    """A Qwen2 model; the keys of its config.json."""
    hidden_size: int = 896
    intermediate_size: int = 4864
    num_hidden_layers: int = 24
    num_attention_heads: int = 14
    num_key_value_heads: int = 2
    vocab_size: int = 151936
    tie_word_embeddings: bool = True
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6

    @property
    def head_size(self):
        return self.hidden_size // self.num_attention_heads


def read_shape(path):
    config = json.loads(path.read_text(encoding="utf-8"))
    return Shape(**{field.name: config[field.name] for field in dataclasses.fields(Shape)})


def random_weights(shape):
    """Returns float32 masters by Hugging Face name, drawn like model_benchmark's."""
    hidden, width = shape.hidden_size, shape.intermediate_size
    keys = shape.num_key_value_heads * shape.head_size
    into_residual = 0.02 / math.sqrt(2 * shape.num_hidden_layers)
    weights = {"model.embed_tokens.weight": torch.randn(shape.vocab_size, hidden) * 0.02}
    for layer in range(shape.num_hidden_layers):
        name = f"model.layers.{layer}."
        weights[name + "input_layernorm.weight"] = torch.ones(hidden)
        weights[name + "post_attention_layernorm.weight"] = torch.ones(hidden)
        for projection, rows in (("q", hidden), ("k", keys), ("v", keys)):
            weights[f"{name}self_attn.{projection}_proj.weight"] = torch.randn(rows, hidden) * 0.02
            weights[f"{name}self_attn.{projection}_proj.bias"] = torch.zeros(rows)
        weights[name + "self_attn.o_proj.weight"] = torch.randn(hidden, hidden) * into_residual
        weights[name + "mlp.gate_proj.weight"] = torch.randn(width, hidden) * 0.02
        weights[name + "mlp.up_proj.weight"] = torch.randn(width, hidden) * 0.02
        weights[name + "mlp.down_proj.weight"] = torch.randn(hidden, width) * into_residual
    weights["model.norm.weight"] = torch.ones(hidden)
    if not shape.tie_word_embeddings:
        weights["lm_head.weight"] = torch.randn(shape.vocab_size, hidden) * 0.02
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def rotation(shape, positions, dtype):
    """Returns cosine and sine [1, 1, L, D] of every position and pair of channels (i, i + D/2)."""
    channel = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
    angle = positions[:, None].to(torch.float64) / shape.rope_theta ** channel
    angle = torch.cat((angle, angle), dim=-1)[None, None]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x, cosine, sine):
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


def hidden_states(weights, masters, shape, batch, dtype):
    """Returns hidden states after the final norm, [S, L, C] of dtype; the residual stream is at least float32."""
    samples, length = batch["tokens"].shape
    residual_dtype = torch.promote_types(dtype, torch.float32)

    def norm(x, name):
        return F.rms_norm(x, (shape.hidden_size,), masters[name + ".weight"], shape.rms_norm_eps).to(dtype)

    def linear(x, name):
        return F.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))

    def heads(x, count):
        return x.view(samples, length, count, shape.head_size).transpose(1, 2)

    def shared(x):
        """Repeats every key head for its query heads."""
        group = shape.num_attention_heads // shape.num_key_value_heads
        return x[:, :, None].expand(-1, -1, group, -1, -1).reshape(samples, -1, length, shape.head_size)

    cosine, sine = batch["cosine"].to(dtype), batch["sine"].to(dtype)
    x = F.embedding(batch["tokens"], weights["model.embed_tokens.weight"]).to(residual_dtype)
    for layer in range(shape.num_hidden_layers):
        name = f"model.layers.{layer}."
        y = norm(x, name + "input_layernorm")
        q = rotate(heads(linear(y, name + "self_attn.q_proj"), shape.num_attention_heads), cosine, sine)
        k = rotate(heads(linear(y, name + "self_attn.k_proj"), shape.num_key_value_heads), cosine, sine)
        v = heads(linear(y, name + "self_attn.v_proj"), shape.num_key_value_heads)
        y = F.scaled_dot_product_attention(q, shared(k), shared(v), attn_mask=batch["visible"])
        x = x + linear(y.transpose(1, 2).reshape(samples, length, -1), name + "self_attn.o_proj")
        y = norm(x, name + "post_attention_layernorm")
        y = F.silu(linear(y, name + "mlp.gate_proj")) * linear(y, name + "mlp.up_proj")
        x = x + linear(y, name + "mlp.down_proj")
    return norm(x, "model.norm")


def losses(masters, shape, batch, dtype):
    """Returns consistency (Σ weight · KL(teacher ‖ student)) and autoregressive loss (Σ weight · cross-entropy)."""
    weights = {name: weight if "norm" in name else weight.to(dtype) for name, weight in masters.items()}
    head = weights["model.embed_tokens.weight" if shape.tie_word_embeddings else "lm_head.weight"]
    hidden = hidden_states(weights, masters, shape, batch, dtype).flatten(0, 1)
    wide = torch.promote_types(dtype, torch.float32)

    def log_probabilities(rows):
        return F.log_softmax(F.linear(hidden.index_select(0, rows), head), dim=-1, dtype=wide)

    clean = log_probabilities(batch["clean_rows"])
    cross_entropy = F.nll_loss(clean, batch["targets"], ignore_index=-1, reduction="none")
    teacher = clean.detach().index_select(0, batch["teachers"])
    student = log_probabilities(batch["student_rows"])
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=-1)
    return (divergence * batch["divergence_weights"]).sum(), (cross_entropy * batch["target_weights"]).sum()


# ---- the batch -------------------------------------------------------------------------------------------------------

def pack_sample(sample, packing):
    """Returns rows [prompt | clean blocks | noisy blocks] of a sample with their mask and targets."""
    size = sample["block_size"]
    clean, noisy = sum(sample["clean"], []), sum(sample["noisy"], [])
    ends = sample["eos"] if isinstance(sample["eos"], list) else [sample["eos"]]
    end = next((i for i, token in enumerate(clean) if token in ends), None)
    targets = len(clean) if end is None else end + 1
    blocks = -(-targets // size)
    used = blocks * size
    prompt = len(sample["prompt"])
    first_noisy = prompt + used
    window = {"noise": blocks, "window": sample["window"], "clean": 1}[packing["mask"]] * size

    visible = torch.ones(first_noisy + used, first_noisy + used).tril().bool()
    for answer in range(used):
        row, begin = first_noisy + answer, answer // window * window
        visible[row] = False
        visible[row, :prompt + begin] = True
        visible[row, first_noisy + begin:row + 1] = True

    kept = []
    for begin in range(0, used, size):
        offsets = range(begin, min(begin + size, used if end is None else end))
        first = 0
        if packing["kept"] == "from_first_difference":
            first = next((i for i in range(size) if noisy[begin + i] != clean[begin + i]), size)
        kept += [answer for answer in offsets if answer >= begin + first]
    divisor = {"token_mean": len(kept), "paper": blocks, "repo": len(kept) * blocks}[packing["reduction"]]
    return {"tokens": sample["prompt"] + clean[:used] + noisy[:used],
            "positions": list(range(first_noisy)) + list(range(prompt, first_noisy)),
            "visible": visible, "prompt": prompt, "used": used, "targets": clean[:targets], "kept": kept,
            "divisor": divisor}


def pack(samples, packing, shape, dtype):
    """Returns tensors of a batch; a sample adds sample_loss / number of samples. Samples have one layout, because
    PyTorch's batch dimension separates them."""
    packed = [pack_sample(sample, packing) for sample in samples]
    layout = packed[0]
    for other in packed:
        if other["positions"] != layout["positions"] or not torch.equal(other["visible"], layout["visible"]):
            sys.exit("pytorch_step.py: the samples differ in layout")
    length = len(layout["tokens"])
    clean_rows, targets, target_weights, teachers, student_rows, divergence_weights = [], [], [], [], [], []
    for base, sample in zip(range(0, length * len(packed), length), packed):
        first = base + sample["prompt"] - 1
        kept = [len(clean_rows) + 1 + answer for answer in sample["kept"]]
        own = max(len(sample["targets"]), 2 + max(sample["kept"], default=-1))  # the last row is a teacher only
        clean_rows += range(first, first + own)
        missing = own - len(sample["targets"])
        targets += sample["targets"] + [-1] * missing
        target_weights += [1 / len(sample["targets"]) / len(packed)] * own
        teachers += kept
        student_rows += [base + sample["prompt"] + sample["used"] + answer for answer in sample["kept"]]
        divergence_weights += [1 / sample["divisor"] / len(packed)] * len(kept)
    cosine, sine = rotation(shape, torch.tensor(layout["positions"]), dtype)
    return {"tokens": torch.tensor([sample["tokens"] for sample in packed]), "visible": layout["visible"],
            "cosine": cosine, "sine": sine, "clean_rows": torch.tensor(clean_rows), "targets": torch.tensor(targets),
            "target_weights": torch.tensor(target_weights, dtype=dtype), "teachers": torch.tensor(teachers),
            "student_rows": torch.tensor(student_rows),
            "divergence_weights": torch.tensor(divergence_weights, dtype=dtype)}


def counts(batch):
    return {"rows": batch["tokens"].numel(), "kept_offsets": batch["teachers"].numel(),
            "ar_targets": int((batch["targets"] >= 0).sum())}


# ---- the same loss ---------------------------------------------------------------------------------------------------

def read_tensors(path):
    """Reads a safetensors file of float32 tensors as float64."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32", (path, name)
            first, last = (begin + offset for offset in entry["data_offsets"])
            values = torch.frombuffer(bytearray(data[first:last]), dtype=torch.float32)
            tensors[name] = values.double().view(entry["shape"])
    return tensors


def check_golden():
    """Compares losses and gradients with golden_test's values. Returns their number and the largest relative
    differences of a loss and of a gradient (L2)."""
    worst_loss, worst_gradient, cases = 0, 0, 0
    for path in sorted(GOLDEN.glob("*/loss_*.safetensors")):
        if json.loads((path.parent / "config.json").read_text())["model_type"] != "qwen2":
            continue  # this file's model is a Qwen2
        name = path.stem
        mask = re.match(r"loss_(noise|window|clean)_", name).group(1)
        reduction = re.search(r"_(token_mean|paper|repo)", name).group(1)
        packing = {"mask": mask, "reduction": reduction, "kept": "all" if "_all" in name else "from_first_difference"}
        sample = json.loads((path.parent / ("packed_eos.json" if "_eos" in name else "packed.json")).read_text())
        shape = read_shape(path.parent / "config.json")
        model = read_tensors(path.parent / "model.safetensors")
        weights = {key: value.requires_grad_() for key, value in model.items()}
        golden = read_tensors(path)
        batch = pack([sample], packing, shape, torch.float64)
        consistency, autoregressive = losses(weights, shape, batch, torch.float64)
        loss = consistency + (10 if "_ar10" in name else 1) * autoregressive
        loss.backward()
        for key, value in (("loss", loss), ("consistency_loss", consistency), ("ar_loss", autoregressive)):
            worst_loss = max(worst_loss, abs(value.item() / golden[key].item() - 1))
        for key, weight in weights.items():
            difference = torch.linalg.vector_norm(weight.grad - golden[key])
            worst_gradient = max(worst_gradient, (difference / torch.linalg.vector_norm(golden[key])).item())
        cases += 1
    # The golden values are float32.
    if cases == 0 or worst_loss > 1e-5 or worst_gradient > 1e-3:
        sys.exit(f"pytorch_step.py: of {cases} golden cases losses differ by up to {worst_loss:.1e}, "
                 f"gradients by up to {worst_gradient:.1e}")
    return cases, worst_loss, worst_gradient


# ---- the steps -------------------------------------------------------------------------------------------------------

class PyTorch:
    """A model and its optimizer, with the settings of model_benchmark's step."""

    def __init__(self, shape, batch):
        self.shape, self.batch = shape, batch
        self.masters = random_weights(shape)
        self.initial = {name: value.detach().clone() for name, value in self.masters.items()}
        self.optimizer = torch.optim.AdamW(self.masters.values(), lr=1e-6, betas=(0.9, 0.95), eps=1e-8, weight_decay=0,
                                           fused=True)

    def first_step(self, function, dtype):
        """Starts from the initial weights, so that all variants' first losses compare."""
        with torch.no_grad():
            for name, value in self.masters.items():
                value.copy_(self.initial[name])
        self.optimizer.state.clear()
        return self.step(function, dtype)

    def step(self, function, dtype):
        self.optimizer.zero_grad(set_to_none=True)
        consistency, autoregressive = function(self.masters, self.shape, self.batch, dtype)
        (consistency + autoregressive).backward()
        torch.nn.utils.clip_grad_norm_(self.masters.values(), 1.0, error_if_nonfinite=True)
        self.optimizer.step()
        return consistency.item(), autoregressive.item()

    def seconds(self, function, dtype, steps):
        """Returns the seconds of a step, after a warm-up, like model_benchmark."""
        self.step(function, dtype)
        begin = time.perf_counter()
        for _ in range(steps):
            self.step(function, dtype)
        return (time.perf_counter() - begin) / steps


class Ours:
    def __init__(self, options, scratch):
        self.options, self.batch_file = options, scratch / "batch.json"
        self.environment = {key: value for key, value in os.environ.items() if key not in allocator_settings()}
        self.environment["OMP_NUM_THREADS"] = str(options.threads)
        self.batch, self.peak = None, 0

    def command(self):
        o = self.options
        return ["model_benchmark", "--only", "training", "--compute", "both", "--layers", o.layers, "--rows", o.rows,
                "--steps", o.steps, "--repetitions", 2, "--read-megabytes", 64]

    def run(self):
        """Returns seconds of a step and first losses of float32 and bfloat16. Requires: all runs have the same
        batch."""
        words = [self.options.model_benchmark, *self.command()[1:], "--batch-out", self.batch_file]
        text = subprocess.run([str(word) for word in words], env=self.environment, check=True, stdout=subprocess.PIPE,
                              text=True).stdout
        batch = json.loads(self.batch_file.read_text())
        if self.batch not in (None, batch):
            sys.exit("pytorch_step.py: model_benchmark's batch changed between runs")
        self.batch = batch
        peaks = re.findall(r"^\| sgemm peak.*? \| ([\d.]+) GFLOP/s", text, re.MULTILINE)
        self.peak = max(self.peak, *map(float, peaks))
        found = {}
        for part in text.split("| training step of ")[1:]:
            rows, dtype, seconds = re.match(r"(\d+) rows, (\w+) \| ([\d.]+) s", part).groups()
            kept, targets = re.search(r"kept offsets and AR targets \| (\d+), (\d+) ", part).groups()
            first = re.search(r"first step's consistency and AR loss \| ([\d.]+), ([\d.]+) ", part).groups()
            if (int(rows), int(kept), int(targets)) != tuple(batch[x] for x in ("rows", "kept_offsets", "ar_targets")):
                sys.exit("pytorch_step.py: model_benchmark trained on another batch than it wrote")
            found[dtype] = float(seconds), tuple(float(x) for x in first)
        if sorted(found) != ["bfloat16", "float32"]:
            sys.exit(f"pytorch_step.py: no training figures of both types in what model_benchmark printed:\n{text}")
        return found


def product_peak(dtype):
    """Returns the FLOP/s of the fastest product of 2048 × 2048 matrices."""
    a, b = (torch.randn(2048, 2048).to(dtype) for _ in range(2))
    fastest = math.inf
    for _ in range(10):
        begin = time.perf_counter()
        torch.mm(a, b)
        fastest = min(fastest, time.perf_counter() - begin)
    return 2 * 2048 ** 3 / fastest


def cpu_name():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    match = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return match.group(1) if match else platform.processor()


def check_first_losses(ours, theirs):
    """The weights have one distribution, so losses over many rows must be close, also in bfloat16, which has no golden
    values."""
    for name in theirs:
        mine = ours[name.split()[-1]][1]
        if any(abs(a / b - 1) > 0.05 for a, b in zip(theirs[name], mine)):
            sys.exit(f"pytorch_step.py: first losses of {name} {theirs[name]} are far from ours {mine}")


def measure(options):
    print(f"- command: `pytorch_step.py {' '.join(sys.argv[1:])}`")
    print(f"- CPU: {cpu_name()}, {options.threads} threads; load at the start {os.getloadavg()[0]:.2f}")
    commit = subprocess.run(["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True)
    print(f"- commit: {commit.stdout.strip() or 'unknown'}")
    print(f"- PyTorch {torch.__version__}, Python {platform.python_version()}, "
          f"{torch.backends.cpu.get_cpu_capability()}; allocator: "
          f"{' '.join(f'{key}={value}' for key, value in allocator_settings().items())}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        ours = Ours(options, pathlib.Path(scratch))
        first = ours.run()
        shape = Shape(num_hidden_layers=options.layers)
        packing = {key: ours.batch[key] for key in ("mask", "reduction", "kept")}
        batch = pack(ours.batch["samples"], packing, shape, torch.float32)
        if any(ours.batch[key] != count for key, count in counts(batch).items()):
            sys.exit(f"pytorch_step.py: packed {counts(batch)}, model_benchmark "
                     f"{ {key: ours.batch[key] for key in counts(batch)} }")
        print(f"- ours: `{' '.join(map(str, ours.command()))}`\n- batch: {ours.batch['rows']} rows of "
              f"{len(ours.batch['samples'])} samples, {ours.batch['kept_offsets']} kept offsets, "
              f"{ours.batch['ar_targets']} AR targets; mask {packing['mask']}, reduction {packing['reduction']}; "
              "equal on both sides", flush=True)

        theirs = PyTorch(shape, batch)
        functions = {"eager": losses}
        if not options.no_compile:
            functions["compiled"] = torch.compile(losses, dynamic=False, fullgraph=True)
        variants = {f"{how}, {dtype}": (functions[how], getattr(torch, dtype))
                    for dtype in ("float32", "bfloat16") for how in functions}
        first_losses, compile_seconds = {}, {}
        for name, variant in variants.items():
            begin = time.perf_counter()
            first_losses[name] = theirs.first_step(*variant)
            compile_seconds[name] = time.perf_counter() - begin
        check_first_losses(first, first_losses)

        times = {name: [] for name in variants}
        our_times = {"float32": [], "bfloat16": []}
        for _ in range(options.repetitions):
            for name, (function, dtype) in variants.items():
                times[name].append(theirs.seconds(function, dtype, options.steps))
            for dtype, (seconds, _) in ours.run().items():
                our_times[dtype].append(seconds)
    print_table(options, ours, times, our_times, first, first_losses)
    if not options.no_compile:
        spent = ", ".join(f"{seconds:.0f} s ({name.split()[-1]})" for name, seconds in compile_seconds.items()
                          if name.startswith("compiled"))
        print(f"\nCompiling with the first step took {spent}. Load at the end: {os.getloadavg()[0]:.2f}.")


def print_table(options, ours, times, our_times, first, first_losses):
    rows = ours.batch["rows"]
    print(f"\nMedians of {options.repetitions} turns; a turn is the mean of {options.steps} steps after one more. "
          "Ratios are medians of pairs of one turn.\n")
    print("| training step | s (fastest to slowest) | rows/s | ours is so many times as fast | first losses |\n"
          "| --- | --- | --- | --- | --- |")

    def line(name, seconds, ratio, first_loss):
        middle = statistics.median(seconds)
        print(f"| {name} | {middle:.3f} ({min(seconds):.3f} to {max(seconds):.3f}) | {rows / middle:.1f} | {ratio} | "
              f"{first_loss[0]:.4f}, {first_loss[1]:.4f} |")

    for dtype, mine in our_times.items():
        line(f"ours, {dtype}", mine, "", first[dtype][1])
        for name, seconds in times.items():
            if name.endswith(dtype):
                ratios = [a / b for a, b in zip(seconds, mine)]
                between = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                line(f"PyTorch {name}", seconds, between, first_losses[name])
    print(f"\nProducts of 2048³: PyTorch {product_peak(torch.float32) / 1e9:.0f} GFLOP/s in float32, "
          f"{product_peak(torch.bfloat16) / 1e9:.0f} in bfloat16; the float32 peak that model_benchmark measured "
          f"(oneDNN): {ours.peak:.0f}.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_benchmark", nargs="?", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=1, help="measured steps of a turn, after one")
    parser.add_argument("--repetitions", type=int, default=5, help="turns of every variant")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-compile", action="store_true", help="eager only")
    parser.add_argument("--check-only", action="store_true", help="compare the losses with the golden values, no more")
    options = parser.parse_args()
    if options.model_benchmark is None and not options.check_only:
        parser.error("give the model_benchmark program, or --check-only")
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    cases, loss, gradient = check_golden()
    print(f"- same loss: {cases} golden cases in float64, losses within {loss:.1e}, gradients within {gradient:.1e}",
          flush=True)
    if not options.check_only:
        measure(options)


if __name__ == "__main__":
    main()
