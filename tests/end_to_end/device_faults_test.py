#!/usr/bin/env python3
"""A rank is killed, hangs or fails, or a communicator breaks, while NCCL reduces gradients on the emulated device: the
job ends, and the next start ends with the bytes of an uninterrupted run. NcclFaultsOfFour needs four idle cores."""

import os
import unittest

from harness import CHECKPOINT, START, TRAIN, EndToEndTest

CONFIG = START + """device = "cuda"
compute = "float32"
[finetune]
output = "{run}/model"
files = ["{prompts}"]
steps = 5
""" + TRAIN + """zero_stage = 3
collectives = "nccl"
""" + CHECKPOINT.replace("every_steps = 2", "every_steps = 1")


class NcclFaults(EndToEndTest):
    ranks = 2

    def broken(self, name, *words, expect=None, failure=None, within_a_host=False):
        """Runs to an early end and continues; returns the first result."""
        config, run = self.config(name, CONFIG)
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.root / "cache")}
        if failure is not None:
            environment["JFORGE_EMULATED_NCCL_FAILURE"] = failure
        if within_a_host:
            environment["JFORGE_EMULATED_NCCL_HOST"] = "1"
        result = self.jforge("finetune", config, *words, ranks=self.ranks, expect=expect, env=environment)
        self.assertNotIn(result.code, (0, 75), str(result))
        self.expect_no_processes()
        self.assertTrue(self.checkpoint_steps(run), f"no checkpoint before the fault: {result}")
        self.jforge("verify", run)
        self.jforge("finetune", config, ranks=self.ranks)
        whole_config, whole = self.config(f"whole-{self.ranks}", CONFIG)
        if not whole.exists():
            self.jforge("finetune", whole_config, ranks=self.ranks)
        self.assertEqual(self.losses(whole), self.losses(run))
        self.assertEqual((whole / "model" / "model.safetensors").read_bytes(),
                         (run / "model" / "model.safetensors").read_bytes())
        self.assertEqual([], sorted(run.rglob(".tmp-*")))
        return result

    def test_killed(self):
        result = self.broken("killed", "--inject", "kill@train.reduce:1:14")
        self.assertIn("injected fault kill@train.reduce:1:14 acts now", result.err)

    def test_hung(self):
        result = self.broken("hung", "--inject", "stall@train.reduce:1:14", "--set", "run.hang_limit_seconds=10",
                             expect=70)
        self.assertRegex(result.err, r"hang: rank 1 \(\S+, pid \d+\) stands still in phase")

    def test_failed(self):
        result = self.broken("failed", "--inject", "throw@train.reduce:1:14", expect=70)
        self.assertRegex(result.lines()[0], r"rank 1 \(.*injected fault throw@train.reduce")

    def test_broken_link(self):
        result = self.broken("broken", failure="1:40", expect=4)
        self.assertRegex(result.lines()[0], r"rank \d \(\S+\): NCCL: .*: (unhandled system error|remote process exited)")

    def test_broken_link_within_a_host(self):
        """The other ranks are not notified, and NCCL's abort does not return."""
        result = self.broken("within", failure="1:40", within_a_host=True, expect=4)
        self.assertRegex(result.lines()[0], r"rank 1 \(\S+\): NCCL: .*: unhandled system error.*"
                                            r" at \S+/nccl_collectives\.cpp:\d+$")

    def test_communicator_that_cannot_be_asked(self):
        result = self.broken("silent", failure="1:?40", expect=4)
        self.assertRegex(result.err, r"rank 1 \(\S+\): NCCL: a collective: internal error.*"
                                     r" at \S+/nccl_collectives\.cpp:\d+")

    def test_no_communicator(self):
        config, run = self.config("none", CONFIG)
        result = self.jforge("finetune", config, ranks=self.ranks, expect=4, env={
            **os.environ, "XDG_CACHE_HOME": str(self.root / "cache"), "JFORGE_EMULATED_NCCL_FAILURE": "1:0"})
        self.assertRegex(result.lines()[0], r"rank 1 \(\S+\): NCCL: make a communicator: unhandled "
                                            r"system error: .*as it was told at \S+/nccl_collectives\.cpp:\d+$")
        self.expect_no_processes()
        self.assertFalse((run / "model").exists())


class NcclFaultsOfFour(NcclFaults):
    ranks = 4


if __name__ == "__main__":
    unittest.main(verbosity=2)
