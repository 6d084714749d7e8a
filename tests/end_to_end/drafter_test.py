#!/usr/bin/env python3
"""A drafter is trained beside a model that stays as it is; decoding with it gives the model's own tokens."""

import json
import random
import shutil
import unittest

from harness import EndToEndTest

DRAFTER = ("--set", "train.drafter=adapter", "--set", "train.drafter_rank=4", "--set", "train.drafter_proposals=0.5",
           "--set", "train.learning_rate=2e-3")
WEIGHTS = "drafter/adapter_model.safetensors"


class Drafter(EndToEndTest):
    evaluate = True

    def assert_untouched(self, run):
        for file in self.model.iterdir():
            self.assertEqual(file.read_bytes(), (run / "model" / file.name).read_bytes(), file.name)
        self.jforge("verify", run)

    def test_every_rank_count_leaves_the_model_and_trains_the_same(self):
        alone = self.uninterrupted(1, *DRAFTER)
        for ranks in (2, 4):
            run = self.uninterrupted(ranks, *DRAFTER)
            self.assert_untouched(run)
            self.assert_close_models(alone, run, limit=1e-3, file=WEIGHTS)
            for number in (1, 2):
                self.assertEqual(self.digest(alone, number), self.digest(run, number))
        losses = self.losses(alone)
        self.assertLess(losses[2, 5], losses[1, 1])
        methods = {row["method"]: row for row in json.loads(
            (alone / "evaluation" / "summary.json").read_text(encoding="utf-8"))["models"]["final"]["gsm8k"].values()}
        self.assertEqual({"ar", "draft"}, set(methods))

    def test_killed_and_resumed(self):
        whole = self.uninterrupted(2, *DRAFTER)
        # Rank 1's 11th micro-batch is in round 2.
        for number, fault in enumerate(("kill@train:0:5", "kill@train.accumulate:1:11")):
            config, run = self.config(f"killed-{number}")
            self.jforge_with_fault(config, run, fault, *DRAFTER)
            _, copy = self.config(f"killed-{number}-4")
            shutil.copytree(run, copy)
            self.jforge("run", config, *DRAFTER, ranks=2)
            self.assertEqual((whole / "model" / WEIGHTS).read_bytes(), (run / "model" / WEIGHTS).read_bytes(), fault)
            self.jforge("run", self.root / f"{copy.name}.toml", *DRAFTER, ranks=4)
            self.assert_close_models(whole, copy, limit=1e-3, file=WEIGHTS)
            self.assert_untouched(copy)

    def test_the_text_is_the_model_s(self):
        model = self.uninterrupted(2, *DRAFTER) / "model"
        draw = random.Random(3)
        prompts = self.root / "tokens.json"
        prompts.write_text(json.dumps([[draw.randrange(200) for _ in range(9)] for _ in range(6)]), encoding="utf-8")

        def tokens(method, *words):
            out = self.root / f"{method}.json"
            self.jforge("probe", "decode", "--model", model, "--tokens", prompts, "--method", method, "--ignore-eos",
                        "--max-new-tokens", "24", "--block-size", "6", "--out", out, *words)
            results = json.loads(out.read_text(encoding="utf-8"))
            return [result["tokens"] for result in results], sum(result["forwards"] for result in results)

        for weights in ("float32", "bfloat16_arithmetic", "int8"):
            expected, passes = tokens("ar", "--decode-weights", weights)
            for method in ("draft", "draft_lookup"):
                found, fewer = tokens(method, "--decode-weights", weights)
                self.assertEqual(expected, found, f"{method} {weights}")
                self.assertLess(fewer, passes)

    def test_what_a_frozen_model_has_no_use_for_is_refused(self):
        config, _ = self.config("refused")
        for setting, advice in (("train.zero_stage=3", "set train.zero_stage = 0 or 1"),
                                ("train.ar_weight=1", "set train.ar_weight = 0"),
                                ("train.early_stop_every=2", "set train.early_stop_every = 0"),
                                ("train.drafter_rank=0", "must be positive"),
                                ("train.drafter_targets=['qkv']", "such as \"q_proj\""),
                                ("rounds.2.mask=noise", "mask must be \"clean\""),
                                ("train.recipe=jacobi-forcing", "contradicts train.recipe")):
            result = self.jforge("run", config, *DRAFTER, "--set", setting, expect=2)
            self.assertIn(advice, result.err)
            self.assertEqual(1, len([line for line in result.lines() if line.startswith("jforge:")]), str(result))
        result = self.jforge("decode", "--model", self.model, "--prompt", "a", "--method", "draft", expect=2)
        self.assertIn("has none in its folder drafter", result.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
