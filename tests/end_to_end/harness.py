"""Runs the jforge binary on tiny inputs in a temporary directory. Environment: JFORGE_BINARY (the program),
JFORGE_SOURCE_DIR (root of the tree); ctest sets both.
"""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import tiny_model

BINARY = os.environ.get("JFORGE_BINARY", "")
SOURCE = pathlib.Path(os.environ.get("JFORGE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
MPIRUN = SOURCE / "launch" / "scripts" / "local_mpirun.sh"
TIMEOUT_SECONDS = 120

START = """
[run]
directory = "{run}"
seed = 7
[model]
source = "{model}"
export_as = "float32"
"""
TRAIN = """[train]
learning_rate = 1e-3
batch_samples = 4
tokens_per_rank = 256
warmup_ratio = 0.1
"""
CHECKPOINT = """[checkpoint]
every_steps = 2
keep_last = 2
"""
CONFIG = START + """[prompts]
files = ["{prompts}"]
field = "question"
[generate]
max_new_tokens = 24
batch_prompts = 3
prompts_per_lease = 3
[[rounds]]
block_size = 4
noise_window = 2
schedule = "random"
steps = 6
[[rounds]]
block_size = 8
noise_window = 2
steps = 5
""" + TRAIN + CHECKPOINT
FINETUNE = START + """[finetune]
output = "{run}/model"
files = ["{prompts}"]
steps = 6
""" + TRAIN + CHECKPOINT

EVALUATE = """
[evaluate]
tasks = ["gsm8k"]
data = "{prompts}"
prompt_style = "plain"
block_size = 8
max_new_tokens = 16
limit = 4
speed_problems = 2
speed_repeats = 2
"""


class Result:
    def __init__(self, command, code, out, err, seconds):
        self.command, self.code, self.out, self.err, self.seconds = command, code, out, err, seconds

    def lines(self):
        """Returns the program's own error lines."""
        return [line for line in self.err.splitlines() if line.startswith("jforge: ")]

    def __str__(self):
        command = " ".join(str(word) for word in self.command)
        return f"{command}\nexit {self.code} after {self.seconds:.1f} s\n{self.out[-3000:]}\n{self.err[-6000:]}"


class EndToEndTest(unittest.TestCase):
    """A temporary directory with a tiny model and prompts."""

    evaluate = False

    @classmethod
    def setUpClass(cls):
        if not BINARY or not os.access(BINARY, os.X_OK):
            raise RuntimeError("JFORGE_BINARY must name the jforge program")
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="jforge-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.model = tiny_model.write_model(cls.root / "source-model")
        cls.prompts = cls.root / "prompts.jsonl"
        tiny_model.write_prompts(cls.prompts)

    def config(self, name, text=None, extra=""):
        """Writes NAME.toml; returns (configuration, run directory NAME)."""
        run = self.root / name
        path = self.root / f"{name}.toml"
        template = text or CONFIG + (EVALUATE if self.evaluate else "")
        path.write_text((template + extra).format(run=run, model=self.model, prompts=self.prompts), encoding="utf-8")
        return path, run

    @staticmethod
    def command(*words, ranks=1, program=BINARY):
        launcher = [MPIRUN, "-n", str(ranks)] if ranks > 1 else []
        return [str(word) for word in [*launcher, program, *words]]

    def start(self, command, **options):
        """Starts a program; its output can be read while it runs."""
        type(self).started = getattr(self, "started", 0) + 1
        files = [self.root / f"output-{self.started}.{kind}" for kind in ("out", "err")]
        options.setdefault("env", {**os.environ, "XDG_CACHE_HOME": str(self.root / "cache")})
        with open(files[0], "wb") as out, open(files[1], "wb") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True, **options)
        process.jforge_files, process.jforge_begin = files, time.monotonic()
        return process

    @staticmethod
    def result(process):
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in process.jforge_files]
        return Result(process.args, process.returncode, *texts, time.monotonic() - process.jforge_begin)

    def wait_for_text(self, process, text, timeout=60):
        end = time.monotonic() + timeout
        while text not in self.result(process).err:
            if process.poll() is not None or time.monotonic() > end:
                self.fail(f"\"{text}\" never came: {self.result(process)}")
            time.sleep(0.02)

    def wait_until_stopped(self, process):
        """Waits for a `stop` fault; an earlier SIGCONT would be lost."""
        self.wait_for_text(process, "injected fault stop@")
        end = time.monotonic() + 60
        while not re.search(r"^State:\tT", pathlib.Path("/proc", str(process.pid), "status").read_text(), re.MULTILINE):
            self.assertLess(time.monotonic(), end, "the program runs on")
            time.sleep(0.01)

    def finish(self, process, timeout=TIMEOUT_SECONDS):
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill_all(process)
            self.fail(f"did not end within {timeout} s: {self.result(process)}")
        return self.result(process)

    def kill_all(self, process):
        """Kills the program and all processes that name this directory."""
        for pid in {process.pid, *self.processes()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def jforge(self, *words, ranks=1, expect=0, timeout=TIMEOUT_SECONDS, **options):
        """Runs a command that must exit with `expect` (None: any)."""
        standard_input = options.pop("stdin", None)
        process = self.start(self.command(*words, ranks=ranks),
                             stdin=subprocess.DEVNULL if standard_input is None else subprocess.PIPE, **options)
        if standard_input is not None:
            process.stdin.write(standard_input)
            process.stdin.close()
        result = self.finish(process, timeout)
        if expect is not None:
            self.assertEqual(expect, result.code, f"exit code of {result}")
        return result

    @staticmethod
    def alone(fault, ranks=2, visit=1):
        """Delays other ranks by three seconds, so that this rank gets work: for prompts (a few at once) the first four
        times, for samples and completions the `visit`-th time."""
        place, rank, _ = fault.split(",")[0].split("@")[1].rsplit(":", 2)
        work = re.split("[. ]", place.removeprefix("phase "))[0]
        if work not in ("generate", "evaluate", "grade"):
            return fault
        visits = range(1, 5) if work == "generate" else (visit,)
        return ",".join([fault, *(f"delay@{work}.lease:{other}:{number}" for other in range(ranks) if other != int(rank)
                                  for number in visits)])

    def jforge_with_fault(self, config, run, fault, *words, ranks=2, expect=None, **options):
        """Runs with faults, which must take effect."""
        result = self.jforge("run", config, "--inject", self.alone(fault, ranks), *words, ranks=ranks, expect=None,
                             **options)
        for one in fault.split(","):
            self.assertIn(f"injected fault {one} acts now", result.err, str(result))
        if expect is None:
            self.assertNotIn(result.code, (0, 75), str(result))
        else:
            self.assertEqual(expect, result.code, str(result))
        return result

    def processes(self):
        """Returns the ids of processes that name this directory."""
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and str(self.root).encode() in pathlib.Path("/proc", entry, "cmdline").read_bytes():
                    found.append(int(entry))
        return found

    def ranks_of(self, process):
        """Returns the ranks' process ids."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                name = pathlib.Path("/proc", str(pid), "comm").read_text(encoding="utf-8").strip()
                if pid != process.pid and name == pathlib.Path(BINARY).name[:15]:
                    found.append(pid)
        return sorted(found)

    def expect_no_processes(self, seconds=10):
        end = time.monotonic() + seconds
        while self.processes():
            self.assertLess(time.monotonic(), end, f"processes are left: {self.processes()}")
            time.sleep(0.1)

    def expect_one_at_a_time(self, work, *words):
        """Refuses a second job while a first one runs this command, which ends after an interruption."""
        delays = ",".join(f"delay@{work}:0:{visit}" for visit in range(1, 1000))  # until the second job has started
        first = self.start(self.command(*words, "--inject", delays))
        self.wait_for_text(first, f"delay@{work}:0:1")
        self.assertIn("is in use by", "".join(self.jforge(*words, expect=4).lines()))
        first.send_signal(signal.SIGUSR2)
        result = self.finish(first)
        self.assertEqual(75, result.code, str(result))
        self.jforge(*words)

    @staticmethod
    def bytes_of(run):
        return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()

    @staticmethod
    def digest(run, number):
        return json.loads((run / f"round-{number}" / "generation.json").read_text(encoding="utf-8"))["digest"]

    @staticmethod
    def status(run):
        return json.loads((run / "run.json").read_text(encoding="utf-8"))["status"]

    @staticmethod
    def losses(run):
        """Returns {(round, step): loss} of the highest attempts."""
        values = {}
        files = [(int(path.name.split(".")[1]), path) for path in run.glob("metrics.*.jsonl")]
        for _, path in sorted(files):
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # a torn last line of a killed attempt
                    record = json.loads(line)
                    values[record["round"], record["step"]] = record["loss"]
        return values

    def checkpoint_steps(self, run):
        """Returns (round, step) of the complete checkpoints."""
        found = []
        for path in (run / "checkpoints").glob("*/manifest.json"):
            if ".abandoned" in path.parent.name:
                continue
            match = re.fullmatch(r"round-(\d+)-step-(\d+)", path.parent.name)
            self.assertIsNotNone(match, path)
            found.append((int(match[1]), int(match[2])))
        return sorted(found)

    def uninterrupted(self, ranks=2, *words):
        """Returns an uninterrupted run, made once for each class, rank count and `words`."""
        cache = type(self).__dict__.get("_finished")
        if cache is None:
            cache = {}
            type(self)._finished = cache
        key = (ranks, *words)
        if key not in cache:
            config, run = self.config(f"uninterrupted-{ranks}" + (f"-{len(cache)}" if words else ""))
            self.jforge("run", config, *words, ranks=ranks)
            cache[key] = run
        return cache[key]

    def assert_close_models(self, expected, actual, limit=1e-4, file="model.safetensors"):
        """Compares weights by relative L2 distance."""
        first = tiny_model.read_floats(expected / "model" / file)
        second = tiny_model.read_floats(actual / "model" / file)
        self.assertEqual(set(first), set(second))
        difference = sum((a - b) ** 2 for name in first for a, b in zip(first[name], second[name], strict=True))
        norm = sum(value ** 2 for values in first.values() for value in values)
        relative = math.sqrt(difference / norm)
        self.assertLessEqual(relative, limit, f"{actual} against {expected}")
        return relative
