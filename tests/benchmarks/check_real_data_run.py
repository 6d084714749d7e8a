#!/usr/bin/env python3
"""Checks a run of real_data_run.sh with h5dump, not with our readers, and prints its figures as Markdown. Exits 1 if a
prompt is lost or doubled."""

import argparse
import array
import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile


def read_dataset(file, name, type_code):
    """Reads a one-dimensional HDF5 dataset ("q" int64, "i" int32, "B" uint8)."""
    with tempfile.NamedTemporaryFile() as output:
        subprocess.run(["h5dump", "-d", "/" + name, "-b", "LE", "-o", output.name, str(file)], check=True,
                       stdout=subprocess.DEVNULL)
        values = array.array(type_code)
        values.frombytes(pathlib.Path(output.name).read_bytes())
        if sys.byteorder == "big":
            values.byteswap()
        return values


def count_records(directory):
    """Counts records to import."""
    records = 0
    for path in sorted(directory.glob("*.jsonl.gz")) + sorted(directory.glob("mbxp/*.jsonl.gz")):
        with gzip.open(path, "rb") as lines:
            records += sum(1 for line in lines if line.strip())
    return records


class Checks:
    def __init__(self):
        self.failed = 0

    def row(self, what, found, expected):
        holds = found == expected
        self.failed += not holds
        print(f"| {what} | {found} | {expected} | {'yes' if holds else 'NO'} |")


def check_import(checks, arguments, report, store):
    dropped = {rule["rule"]: rule["count"] for rule in report["dropped"]}
    checks.row("records read", report["records"], count_records(arguments.data))
    checks.row("read = kept + dropped + unreadable", report["records"],
               report["kept"] + sum(dropped.values()) + report["unreadable"])
    places = list(zip(read_dataset(store, "source_file", "i"), read_dataset(store, "source_line", "q")))
    checks.row("prompts stored", len(places), report["kept"])
    checks.row("different source lines among them", len(set(places)), len(places))
    checks.row("different texts among them", len(set(read_dataset(store, "text_hash", "q"))), len(places))
    if arguments.limit is None:
        checks.row("dropped other than as duplicate or empty text",
                   sum(count for rule, count in dropped.items() if rule not in ("duplicate text", "empty text")), 0)
    return dropped


def check_trajectories(checks, kept, store, shards):
    ids, blocks, prompts_seen = [], 0, True
    offsets = read_dataset(store, "offsets", "q")
    prompt_tokens = read_dataset(store, "tokens", "i")
    for shard in shards:
        own = read_dataset(shard, "record_prompt_id", "q")
        starts = read_dataset(shard, "prompt_offset", "q")
        copied = read_dataset(shard, "prompt_tokens", "i")
        for place, prompt in enumerate(own):
            prompts_seen &= (0 <= prompt < kept and copied[starts[place]:starts[place + 1]]
                             == prompt_tokens[offsets[prompt]:offsets[prompt + 1]])
        ids.extend(own)
        blocks += len(read_dataset(shard, "block_num_states", "i"))
    checks.row("trajectories", len(ids), kept)
    checks.row("prompt ids lost", len(set(range(kept)) - set(ids)), 0)
    checks.row("prompt ids doubled", len(ids) - len(set(ids)), 0)
    checks.row("every trajectory holds its prompt's tokens", prompts_seen, True)
    return blocks


def import_speed(log):
    """Returns the log's MB and MB/s, without the program's start."""
    found = re.search(r"([0-9.]+) MB at ([0-9.]+) MB/s", log)
    if not found:
        raise SystemExit("check_real_data_run.py: import.log has no line with MB/s")
    return float(found[1]), float(found[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--import-seconds", type=float, required=True)
    parser.add_argument("--generate-seconds", type=float, required=True)
    arguments = parser.parse_args()
    run = arguments.work / "run"
    store = run / "prompts.h5"
    report = json.loads((run / "prompts_import.json").read_text())
    generation = json.loads((run / "round-1" / "generation.json").read_text())
    shards = sorted((run / "round-1" / "trajectories").glob("lease-*.h5"))

    checks = Checks()
    print("| check | found | expected | holds |\n| --- | --- | --- | --- |")
    dropped = check_import(checks, arguments, report, store)
    blocks = check_trajectories(checks, report["kept"], store, shards)
    checks.row("trajectories by the run's own report", generation["prompts"], report["kept"])
    checks.row("tokens by the run's own report", generation["tokens"], blocks * generation["block_size"])

    megabytes, speed = import_speed((arguments.work / "import.log").read_text())
    seconds = arguments.generate_seconds
    print("\n| figure | value |\n| --- | --- |")
    print(f"| dropped | {', '.join(f'{rule}: {count}' for rule, count in dropped.items())} |")
    print(f"| import | {megabytes:.1f} MB (unpacked) at {speed:.1f} MB/s, {report['tokens']} tokens; "
          f"{arguments.import_seconds:.1f} s with program start and tokenizer |")
    print(f"| generate | {generation['prompts']} prompts, {generation['tokens']} tokens, {generation['forwards']} "
          f"forwards (block TPF {generation['block_tpf']:.3f}), {len(shards)} leases in {seconds:.1f} s with program start |")
    print(f"| prompts/s | {generation['prompts'] / seconds:.1f} |")
    print(f"| tokens/s | {generation['tokens'] / seconds:.0f} generated, "
          f"{report['tokens'] / seconds:.0f} of prompts forwarded beside them |")
    print(f"| digest of the trajectories | {generation['digest']} |")
    if checks.failed:
        raise SystemExit(f"check_real_data_run.py: {checks.failed} checks do not hold")


if __name__ == "__main__":
    main()
