#!/usr/bin/env python3
"""The whole pipeline at 1, 2 and 4 ranks: it ends, its artefacts verify, and rank counts agree."""

import json
import unittest

import tiny_model
from harness import EndToEndTest


class RunPipeline(EndToEndTest):
    evaluate = True

    def test_finishes_and_verifies(self):
        for ranks in (1, 2, 4):
            with self.subTest(ranks=ranks):
                run = self.uninterrupted(ranks)
                self.assertEqual("finished", self.status(run))
                self.assertTrue((run / "report.md").stat().st_size > 0)
                self.assertIn("hold", self.jforge("verify", run).out)
                summary = json.loads((run / "evaluation" / "summary.json").read_text(encoding="utf-8"))
                for model in ("base", "final"):
                    for method in ("ar", "jacobi"):
                        self.assertEqual(4, summary["models"][model]["gsm8k"][method]["n"])
                self.assertEqual({(1, step) for step in range(1, 7)} | {(2, step) for step in range(1, 6)},
                                 set(self.losses(run)))

    def test_training_changed_the_model(self):
        run = self.uninterrupted(1)
        before = tiny_model.read_floats(self.model / "model.safetensors")
        after = tiny_model.read_floats(run / "model" / "model.safetensors")
        self.assertEqual({name: len(values) for name, values in before.items()},
                         {name: len(values) for name, values in after.items()})
        for name, values in before.items():
            self.assertNotEqual(values, after[name], f"{name} was not trained")

    def test_trajectories_do_not_depend_on_rank_count(self):
        digests = {ranks: self.digest(self.uninterrupted(ranks), 1) for ranks in (1, 2, 4)}
        self.assertEqual(1, len(set(digests.values())), digests)

    def test_weights_agree_between_rank_counts(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.assert_close_models(self.uninterrupted(1), self.uninterrupted(ranks))

    def test_weights_that_no_rank_holds_whole_are_exported_too(self):
        config, run = self.config("sharded")
        self.jforge("run", config, "--set", "train.zero_stage=3", "--set", "evaluate.tasks=[]", ranks=2)
        self.assert_close_models(self.uninterrupted(2), run)
        exported = run / "model" / "model.safetensors"
        weights = exported.read_bytes()
        exported.unlink()
        self.jforge("run", config, "--set", "train.zero_stage=3", "--set", "evaluate.tasks=[]", ranks=2)
        self.assertEqual(weights, exported.read_bytes())

    def test_a_second_start_has_nothing_to_do(self):
        run = self.uninterrupted(2)
        before = self.bytes_of(run)
        shards = {path: path.stat().st_mtime_ns for path in run.glob("round-*/trajectories/*.h5")}
        self.assertTrue(shards)
        self.jforge("run", self.root / "uninterrupted-2.toml", ranks=2)
        self.assertEqual(before, self.bytes_of(run))
        self.assertEqual(shards, {path: path.stat().st_mtime_ns for path in run.glob("round-*/trajectories/*.h5")})

    def test_another_seed_gives_other_trajectories(self):
        config, run = self.config("other-seed")
        self.jforge("run", config, "--set", "run.seed=8", "--set", "evaluate.tasks=[]", ranks=2)
        self.assertNotEqual(self.digest(self.uninterrupted(2), 1), self.digest(run, 1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
