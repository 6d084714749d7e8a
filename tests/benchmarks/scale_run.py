#!/usr/bin/env python3
"""Many prompts through a whole run with a tiny model: seconds and peak memory of each rank in every phase.
  scale_run.py [--jforge BINARY] [--prompts N] [--ranks N] [--work DIRECTORY] [--shim LIBRARY]
Imports N short prompts (default 450,000) from the real data, generates half of them, kills a rank, generates the rest,
starts again on the finished store and begins to train. Checks that no prompt is lost or doubled and prints a Markdown
table; exits 1 if a check or a bound fails. --shim (tests/support/io_fault_shim.c) also counts the trajectory files that
rank 0 opens. Data: $JFORGE_TEST_DATA, default ../shared/data beside the tree."""

import argparse
import gzip
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "end_to_end"))
import tiny_model  # noqa: E402

MPIRUN = ROOT / "launch" / "scripts" / "local_mpirun.sh"
DATA = pathlib.Path(os.environ.get("JFORGE_TEST_DATA", ROOT.parent / "shared" / "data"))
BINARY = os.environ.get("JFORGE_BINARY", str(ROOT / "build" / "cpu-release" / "launch" / "jforge"))
SOURCES = ("prompts/*.jsonl.gz", "prompts/mbxp/*.jsonl.gz", "gsm8k/train.jsonl.gz", "math/test.jsonl.gz")
FIELDS = ("query", "prompt", "question", "problem")
PROMPT_BYTES = 32
# Bounds of a training start on the finished store, on two cores.
START_SECONDS, START_MEGABYTES = 10, 300

CONFIG = """
[run]
directory = "{run}"
seed = 42
[model]
source = "{model}"
[prompts]
files = ["{prompts}"]
field = "prompt"
[generate]
max_new_tokens = 8
batch_prompts = 128
prompts_per_lease = 256
[[rounds]]
block_size = 8
epochs = 1
[train]
batch_samples = 50
tokens_per_rank = 2048
[checkpoint]
every_steps = 1000000
"""


def real_lines():
    """Yields distinct lines of real prompts, cut at a word to about PROMPT_BYTES."""
    seen = set()
    for path in sorted(itertools.chain.from_iterable(DATA.glob(pattern) for pattern in SOURCES)):
        with gzip.open(path, "rt", encoding="utf-8") as records:
            for record in map(json.loads, filter(str.strip, records)):
                text = next(record[field] for field in FIELDS if record.get(field))
                for line in text.splitlines():
                    words = line.strip()[:PROMPT_BYTES].rsplit(" ", 1)[0]
                    if len(words) >= 4 and words not in seen:
                        seen.add(words)
                        yield words


def write_prompts(path, count):
    """Writes distinct lines, then numbered repeats. Returns the number of distinct ones."""
    lines = list(itertools.islice(real_lines(), count))
    if not lines:
        raise SystemExit(f"scale_run.py: no prompts under {DATA}; set JFORGE_TEST_DATA")
    with open(path, "w", encoding="utf-8") as out:
        for number in range(count):
            turn, place = divmod(number, len(lines))
            out.write(json.dumps({"prompt": f"{turn}. {lines[place]}" if turn else lines[place]}) + "\n")
    return len(lines)


def write_model(folder):
    tiny_model.HIDDEN, tiny_model.INTERMEDIATE, tiny_model.LAYERS = 16, 32, 1
    tiny_model.HEADS, tiny_model.KV_HEADS, tiny_model.HEAD_DIM = 2, 1, 8
    tiny_model.write_model(folder)


class Phase:
    """A command under mpirun, and its ranks' peak memory."""

    def __init__(self, work, ranks, words, shim=None, store=None):
        self.lines, self.peak, self.pids = [], {}, {}
        self.counts = work / "opened" if shim else None
        command = [str(MPIRUN), "-n", str(ranks), *words]
        if shim:
            self.counts.unlink(missing_ok=True)
            script = ('if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then export JFORGE_IO_ROOT="$1" JFORGE_IO_COUNT="$2" '
                      'LD_PRELOAD="$3"; fi; shift 3; exec "$@"')
            command = [str(MPIRUN), "-n", str(ranks), "bash", "-c", script, "-", f"{store}/lease-", str(self.counts), shim,
                       *words]
        self.begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "JFORGE_LOG": "info"}, start_new_session=True)
        self.reader = threading.Thread(target=self.read)
        self.sampler = threading.Thread(target=self.sample)
        self.reader.start()
        self.sampler.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic() - self.begin, line.rstrip("\n")))

    def sample(self):
        while self.process.poll() is None:
            self.find_ranks()
            for rank, pid in self.pids.items():
                try:
                    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
                except OSError:
                    continue
                found = re.search(r"VmHWM:\s+(\d+) kB", status)
                if found:
                    self.peak[rank] = max(self.peak.get(rank, 0), int(found[1]) * 1024 / 1e6)
            time.sleep(0.01 if time.monotonic() - self.begin < 5 else 0.1)

    def find_ranks(self):
        """Ranks are children of mpirun, which replaced the script."""
        try:
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except OSError:
            return
        for pid in map(int, children.split()):
            if pid in self.pids.values():
                continue
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
                name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            except OSError:
                continue
            found = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", environment)
            if found and name == "jforge":
                self.pids[int(found[1])] = pid

    def seconds_until(self, words):
        """Returns the time of the first log line with `words`."""
        return next((second for second, line in self.lines if words in line), None)

    def wait_until(self, condition):
        while not condition():
            if self.process.poll() is not None:
                self.end(None)
                raise SystemExit("scale_run.py: the command ended early:\n" +
                                 "\n".join(line for _, line in self.lines[-20:]))
            time.sleep(0.02)

    def end(self, expected=0):
        self.process.wait()
        self.seconds = time.monotonic() - self.begin
        self.reader.join()
        self.sampler.join()
        if expected is not None and self.process.returncode != expected:
            raise SystemExit(f"scale_run.py: exit {self.process.returncode}, expected {expected}:\n" +
                             "\n".join(line for _, line in self.lines[-20:]))
        return self

    def opened(self):
        if not self.counts:
            return None
        # The library writes no file if it counted nothing.
        lines = self.counts.read_text(encoding="ascii").splitlines() if self.counts.exists() else ["open 0"]
        return dict(line.split() for line in lines)["open"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jforge", default=BINARY)
    parser.add_argument("--prompts", type=int, default=450_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--shim")
    options = parser.parse_args()
    work = options.work or pathlib.Path(tempfile.mkdtemp(prefix="jforge-scale-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        failed = measure(options, work)
    finally:
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if failed else 0)


def measure(options, work):
    run, prompts = work / "run", work / "prompts.jsonl"
    config, store = work / "config.toml", run / "round-1" / "trajectories"
    different = write_prompts(prompts, options.prompts)
    write_model(work / "model")
    config.write_text(CONFIG.format(run=run, model=work / "model", prompts=prompts), encoding="utf-8")

    def phase(*words):
        return Phase(work, options.ranks, [options.jforge, words[0], str(config), *words[1:]], options.shim, store)

    rows, failed = [], []

    def row(name, seconds, done, **more):
        rows.append((name, seconds, [done.peak.get(rank) for rank in range(options.ranks)], more.get("opened")))

    def check(holds, text):
        if not holds:
            failed.append(text)

    importing = phase("import").end()
    row("import", importing.seconds, importing)

    # Killed when about half is committed, which stays.
    half = phase("generate", "--round", "1")
    half.wait_until(lambda: store.is_dir() and
                    len(list(store.glob("lease-*.h5"))) >= options.prompts / 256 / 2)
    os.kill(half.pids[options.ranks - 1], signal.SIGKILL)
    half.end(None)
    kept = len(list(store.glob("lease-*.h5")))
    row(f"generate, killed with {kept} shards", half.seconds, half)

    rest = phase("generate", "--round", "1").end()
    chosen = rest.seconds_until("] generate round 1")
    row("start on what the kill left, until generation begins", chosen, rest)
    row("generate the rest", rest.seconds - (chosen or 0), rest, opened=rest.opened())
    coordinator = next((line.split("] ")[-1] for _, line in rest.lines if "coordinator: " in line), None)
    shards = sorted(store.glob("lease-*.h5"))
    size = sum(path.stat().st_size for path in shards)

    again = phase("generate", "--round", "1").end()
    row("start on the finished store (nothing to do)", again.seconds, again, opened=again.opened())

    metrics = "metrics.{}.jsonl"
    before = set(run.glob(metrics.format("*")))
    train = phase("train", "--round", "1")
    # An attempt's metrics begin with its first step.
    train.wait_until(lambda: any(path.stat().st_size for path in set(run.glob(metrics.format("*"))) - before))
    start_seconds = time.monotonic() - train.begin
    os.kill(train.pids[0], signal.SIGUSR2)
    train.end(75)
    row("training, until its first step is done", start_seconds, train, opened=train.opened())

    report = json.loads((run / "round-1" / "generation.json").read_text(encoding="utf-8"))
    check(report["prompts"] == options.prompts, f"{report['prompts']} of {options.prompts} trajectories")
    verify = subprocess.run([options.jforge, "verify", str(run)], capture_output=True, text=True, check=False)
    check(verify.returncode == 0, "verify: " + verify.stdout + verify.stderr)
    check(start_seconds <= START_SECONDS, f"training began after {start_seconds:.1f} s")
    check(max(train.peak.values()) <= START_MEGABYTES, f"training took {max(train.peak.values()):.0f} MB")

    cpu = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True,
                            check=False).stdout.strip()
    print(f"- command: `tests/benchmarks/scale_run.py --prompts {options.prompts} --ranks {options.ranks}"
          f"{' --shim ...' if options.shim else ''}`")
    print(f"- CPU: {cpu}, {os.cpu_count()} cores; commit: {commit or 'unknown'}")
    print(f"- {options.prompts} prompts, {different} of them different lines of the real data, the others numbered "
          f"repetitions; {len(shards)} shards, {size / 1e6:.0f} MB")
    if coordinator:
        print(f"- {coordinator}")
    print()
    print("| phase | seconds | " + " | ".join(f"rank {rank} peak MB" for rank in range(options.ranks)) +
          " | openings of shards on rank 0 |")
    print("| --- |" + " ---: |" * (options.ranks + 2))
    for name, seconds, peaks, opened in rows:
        cells = [f"{seconds:.1f}" if seconds is not None else "?"]
        cells += [f"{peak:.0f}" if peak else "–" for peak in peaks]
        print(f"| {name} | {' | '.join(cells)} | {opened if opened is not None else '–'} |")
    for text in failed:
        print(f"scale_run.py: {text}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    main()
