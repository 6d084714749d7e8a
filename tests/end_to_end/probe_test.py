#!/usr/bin/env python3
"""Probes during training: repetition is measured, warned of or ends the run; a round ends without improvement."""

import json
import unittest

from harness import EndToEndTest

RANKS = 2
COLLAPSE = ("--set", "train.collapse_check_every=2")
STOP = ("--set", "train.early_stop_every=1", "--set", "train.early_stop_task=gsm8k:plain",
        "--set", "train.early_stop_problems=3", "--set", "evaluate.max_new_tokens=12",
        "--set", "train.learning_rate=1e-9", "--set", "train.early_stop_patience=4",
        "--set", "rounds.1.steps=7", "--set", "rounds.2.steps=7")


class Probe(EndToEndTest):
    def stop(self):
        """Hardly a weight changes: the first check is the best of each round, four more end it."""
        return *STOP, "--set", f"train.early_stop_data={self.prompts}"

    def lines(self, run):
        found = {}
        for path in sorted(run.glob("metrics.*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                found[record["round"], record["step"]] = record
        return found

    def test_repetition_is_measured_alike_at_any_rank_count_and_stage_and_changes_nothing(self):
        plain = self.uninterrupted(RANKS)
        found = {}
        for name, ranks, stage in (("one", 1, 1), ("two", 2, 2), ("three", 2, 3)):
            config, run = self.config(f"repetition-{name}")
            self.jforge("run", config, *COLLAPSE, "--set", f"train.zero_stage={stage}", ranks=ranks)
            found[name] = {key: (line["repetition"], line["distinct"])
                           for key, line in self.lines(run).items() if "repetition" in line}
            if ranks == RANKS:
                self.assertEqual(self.bytes_of(plain), self.bytes_of(run))
            self.assertEqual({(1, 2), (1, 4), (1, 6), (2, 2), (2, 4)}, set(found[name]))
            for repetition, distinct in found[name].values():
                self.assertTrue(0 <= repetition <= 1 and 0 < distinct <= 1)
        self.assertEqual(found["two"], found["three"])
        self.assertEqual(set(found["one"]), set(found["two"]))

    def test_a_collapse_is_warned_of_or_ends_the_run(self):
        low = (*COLLAPSE, "--set", "train.collapse_threshold=1e-9", "--set", "train.learning_rate=5e-2")
        config, run = self.config("warned")
        result = self.jforge("run", config, *low, ranks=RANKS)
        self.assertIn("repeat themselves: mean seq-rep-4", result.err)
        first = min(key for key, line in self.lines(run).items() if line.get("repetition", 0) > 0)
        config, run = self.config("stopped")
        result = self.jforge("run", config, *low, "--set", "train.collapse_action=stop", "--set",
                             "checkpoint.every_steps=1", ranks=RANKS, expect=5)
        self.assertEqual(1, len(result.lines()), result)
        self.assertRegex(result.lines()[0], f"step {first[1]}: .* repeat themselves.*; the step is not saved")
        self.assertEqual(max(self.lines(run)), first)
        self.assertNotIn(first, self.checkpoint_steps(run))
        self.assertIn((first[0], first[1] - 1), self.checkpoint_steps(run))  # The previous one was still being written.

    def test_a_round_without_gain_ends_early_killed_or_not(self):
        config, whole = self.config("early")
        result = self.jforge("run", config, *self.stop(), ranks=RANKS)
        self.assertIn("the round ends after step 5: 4 checks in a row without a gain on held-out gsm8k:plain", result.err)
        lines = self.lines(whole)
        self.assertEqual({(number, step) for number in (1, 2) for step in range(1, 6)}, set(lines))
        for line in lines.values():
            self.assertTrue(0 <= line["held_out_accuracy"] <= 1)
            self.assertGreaterEqual(line["held_out_tpf"], 1)
        self.assertIn((2, 5), self.checkpoint_steps(whole))
        self.assertEqual("finished", self.status(whole))
        # The checkpoint restores the checks' state.
        config, run = self.config("early-killed")
        self.jforge_with_fault(config, run, "kill@train:1:5", *self.stop(), ranks=RANKS)
        result = self.jforge("run", config, *self.stop(), "--set", "train.zero_stage=3", ranks=RANKS)
        self.assertRegex(result.err, "continuing from round-1-step-0000000[24]")
        self.assertEqual(self.bytes_of(whole), self.bytes_of(run))
        self.assertEqual({key: (line["held_out_tpf"], line["held_out_accuracy"]) for key, line in lines.items()},
                         {key: (line["held_out_tpf"], line["held_out_accuracy"])
                          for key, line in self.lines(run).items()})
        before = self.bytes_of(run)
        self.jforge("run", config, *self.stop(), "--set", "train.zero_stage=3", ranks=RANKS)
        self.assertEqual(before, self.bytes_of(run))
        self.assertEqual(set(lines), set(self.lines(run)))

    def test_what_cannot_be_is_refused(self):
        config, _ = self.config("refused")
        result = self.jforge("run", config, *self.stop(), "--set", "evaluate.max_new_tokens=250", expect=2)
        self.assertIn("lower evaluate.max_new_tokens", result.lines()[0])
        plan = self.jforge("run", config, *COLLAPSE, "--dry-run").out
        self.assertRegex(plan, r"checks [0-9.]+ MB, copy for checkpoints")


if __name__ == "__main__":
    unittest.main(verbosity=2)
