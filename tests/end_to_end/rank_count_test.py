#!/usr/bin/env python3
"""A run may go on at other rank counts, with the same trajectories and nearly the same weights."""

import json
import os
import shutil
import unittest

from harness import EndToEndTest


class RankCount(EndToEndTest):
    def test_resume_at_another_rank_count(self):
        for place in ("generate:1:2", "train:1:3"):
            with self.subTest(place=place):
                config, run = self.config("stopped-" + place.replace(":", "-"))
                self.jforge_with_fault(config, run, f"interrupt@{place}", expect=75)
                for ranks in (4, 1):
                    _, copy = self.config(f"{run.name}-{ranks}")
                    shutil.copytree(run, copy)
                    self.jforge("run", self.root / f"{copy.name}.toml", ranks=ranks)
                    self.assertEqual(self.digest(self.uninterrupted(2), 1), self.digest(copy, 1))
                    self.assert_close_models(self.uninterrupted(2), copy)

    def test_parallel_generation_killed_and_resumed(self):
        cleaning = ("--set", "train.filter_repetition=0.1")
        words = ("--set", "generate.method=parallel", *cleaning)
        sequential, whole = self.uninterrupted(2, *cleaning), self.uninterrupted(2, *words)
        self.assertEqual(self.bytes_of(sequential), self.bytes_of(whole), "sequential and parallel")
        reports = [json.loads((whole / f"round-{number}" / "cleaning.json").read_text("utf-8")) for number in (1, 2)]
        self.assertTrue(all(any(rule["count"] > 0 for rule in report["dropped"]) for report in reports), reports)
        config, run = self.config("parallel")
        self.jforge_with_fault(config, run, "kill@generate:1:2", *words)
        for ranks in (4, 1):
            _, copy = self.config(f"{run.name}-{ranks}")
            shutil.copytree(run, copy)
            self.jforge("run", self.root / f"{copy.name}.toml", *words, ranks=ranks)
            self.assertEqual([self.digest(whole, number) for number in (1, 2)],
                             [self.digest(copy, number) for number in (1, 2)])
            self.assertEqual(reports, [json.loads((copy / f"round-{number}" / "cleaning.json").read_text("utf-8"))
                                       for number in (1, 2)])
            self.assert_close_models(whole, copy)

    def test_every_interruption_at_another_rank_count(self):
        config, run = self.config("wandering")
        copies = ("--set", "train.shard_ranks=2", "--set", "train.zero_stage=3")
        for ranks, place, options in ((4, "generate:3:1", copies), (1, "train:0:2", ()), (2, "train:1:5", ()),
                                      (4, "train.accumulate:2:2", copies)):
            self.jforge_with_fault(config, run, f"interrupt@{place}", *options, ranks=ranks, expect=75)
        refused = self.jforge("run", config, "--set", "train.shard_ranks=2", ranks=3, expect=2)
        self.assertIn("train.shard_ranks = 2 does not divide the 3 ranks", refused.err)
        result = self.jforge("run", config, ranks=2, env=os.environ | {"JFORGE_CHECK_COLLECTIVES": "1"})
        self.assertIn("collective checks are on", result.err)
        self.assert_close_models(self.uninterrupted(2), run)


if __name__ == "__main__":
    unittest.main(verbosity=2)
