#!/usr/bin/env python3
"""`jforge sweep`: the same at any rank count, and after SIGKILL."""

import json
import random
import signal
import unittest

from harness import EndToEndTest

PROBLEMS = 12
BLOCKS = [2, 4, 8]
SEED = 20250312
CONFIG = """
[run]
seed = 7
[model]
source = "{model}"
[evaluate]
tasks = ["gsm8k"]
data = "{prompts}"
max_new_tokens = 16
limit = 12
batch_prompts = 3
[sweep]
method = "jacobi"
block_size = [2, 4, 8]
"""


class Sweep(EndToEndTest):
    def sweep(self, out, *words, ranks=2, **settings):
        config, _ = self.config("sweep", CONFIG)
        return self.jforge("sweep", config, "--out", out, *words, ranks=ranks, **settings)

    @staticmethod
    def samples(out):
        return {path.name: path.read_bytes() for path in (out / "sweep" / "source-model").glob("*.jsonl")}

    @staticmethod
    def points(out):
        return json.loads((out / "sweep" / "sweep.json").read_text(encoding="utf-8"))

    def whole(self):
        out = self.root / "whole"
        if not out.exists():
            self.sweep(out)
        return out

    def test_writes_the_points_with_the_baseline_of_the_same_run(self):
        out = self.whole()
        sweep = self.points(out)
        self.assertEqual(("source-model", "gsm8k", "jacobi", ["block_size"]),
                         tuple(sweep[key] for key in ("model", "task", "method", "keys")))
        self.assertEqual(1.0, sweep["baseline"]["tpf"])
        self.assertEqual([{"block_size": block} for block in BLOCKS], [point["settings"] for point in sweep["points"]])
        for point in sweep["points"]:
            self.assertEqual(PROBLEMS, point["n"])
            self.assertEqual(0, point["disagreements_with_ar"])
            self.assertEqual(sweep["baseline"]["tokens"], point["tokens"])
            self.assertGreaterEqual(point["tpf"], 1.0)
            for speed, baseline, batch in zip(point["speed"], sweep["baseline"]["speed"], (1, 3), strict=True):
                self.assertEqual((batch, 5), (speed["batch_prompts"], speed["repeats"]))
                self.assertAlmostEqual(speed["tokens_per_second"] / baseline["tokens_per_second"], speed["speed_up"])
                self.assertLess(speed["speed_up_low"], speed["speed_up_high"])
            for key in ("accuracy", "accuracy_low", "accuracy_high", "forwards", "tokens_per_second_with_prefill"):
                self.assertIn(key, point)
        self.assertEqual({"gsm8k.ar.jsonl"} | {f"gsm8k.jacobi.block_size={block}.jsonl" for block in BLOCKS},
                         set(self.samples(out)))
        self.assertTrue((out / "report.md").exists())

    def test_rank_count_and_batch_size_change_nothing(self):
        expected = self.samples(self.whole())
        for ranks, batch in ((1, 1), (4, 8)):
            with self.subTest(ranks=ranks, batch=batch):
                out = self.root / f"same-{ranks}"
                self.sweep(out, "--set", f"evaluate.batch_prompts={batch}", ranks=ranks)
                self.assertEqual(expected, self.samples(out))

    def test_a_point_is_the_evaluation_of_its_settings(self):
        out = self.root / "alone"
        config, _ = self.config("sweep", CONFIG)
        self.jforge("evaluate", config, "--block-size", 4, "--out", out)
        self.assertEqual((out / "evaluation" / "source-model" / "gsm8k.jacobi.jsonl").read_bytes(),
                         self.samples(self.whole())["gsm8k.jacobi.block_size=4.jsonl"])

    def test_killed_sweeps_go_on(self):
        expected = self.samples(self.whole())
        rng = random.Random(SEED)
        for number in range(2):
            rank, visit = rng.randrange(2), rng.randint(2, 14)
            with self.subTest(rank=rank, visit=visit):
                out = self.root / f"killed-{number}"
                fault = f"kill@evaluate:{rank}:{visit}"
                killed = self.sweep(out, "--inject", self.alone(fault), expect=None)
                self.assertIn(f"injected fault {fault} acts now", killed.err, str(killed))
                self.expect_no_processes()
                self.assertFalse((out / "sweep" / "sweep.json").exists())
                self.sweep(out)
                self.assertEqual(expected, self.samples(out))
                self.assertEqual(len(BLOCKS), len(self.points(out)["points"]))

    def test_parts_make_the_sweep_of_one_job(self):
        expected = self.samples(self.whole())
        out = self.root / "parts"
        config, _ = self.config("sweep", CONFIG)
        words = ("sweep", config, "--out", out)
        delays = ",".join(f"delay@evaluate:0:{visit}" for visit in range(1, 1000))
        first = self.start(self.command(*words, "--part", "1/2", "--inject", delays))  # until the others have been tried
        self.wait_for_text(first, "delay@evaluate:0:1")
        self.assertIn("is in use by part 1-of-2", self.jforge(*words, expect=4).lines()[0])
        done = self.jforge(*words, "--part", "2/2", ranks=2)
        self.assertIn("Part 2-of-2 is done", done.out)
        first.send_signal(signal.SIGUSR2)
        self.assertEqual(75, self.finish(first).code)
        self.assertEqual({}, self.samples(out))
        self.jforge(*words, "--part", "1/2")
        self.assertFalse((out / "sweep" / "sweep.json").exists())
        merged = self.jforge(*words, "--inject", "kill@evaluate:0:1", ranks=2)  # nothing is left to decode
        self.assertEqual(4, merged.err.count(f"{PROBLEMS} of {PROBLEMS} samples done before"))
        self.assertEqual(expected, self.samples(out))
        self.assertEqual(len(BLOCKS), len(self.points(out)["points"]))
        self.assertFalse((out / "sweep.parts").exists())

    def test_a_second_start_has_nothing_to_do(self):
        out = self.whole()
        before = self.points(out)
        self.sweep(out, ranks=1)
        self.assertEqual(before, self.points(out))

    def test_bad_sweeps_are_refused(self):
        for override, part in (("sweep.block_size=[]", "sweep"), ("sweep.block_size=[0]", "sweep.block_size"),
                               ("sweep.block_size=[4, 4]", "named twice"), ("sweep.block_size=[4.5]", "block_size"),
                               ("sweep.block_sizes=[4]", "block_sizes"), ("sweep.method=magic", "magic"),
                               ("sweep.method=ar", "sweep.block_size"), ("evaluate.tasks=[]", "task")):
            with self.subTest(override=override):
                result = self.sweep(self.root / "bad", "--set", override, ranks=1, expect=2)
                self.assertEqual(1, len(result.lines()), str(result))
                self.assertIn(part, result.lines()[0])
        for part in ("0/2", "3/2", "1/5", "1", "a/b", "-1/2"):
            with self.subTest(part=part):
                result = self.sweep(self.root / "bad", "--part", part, ranks=1, expect=2)
                self.assertEqual(1, len(result.lines()), str(result))
                self.assertIn("--part", result.lines()[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
