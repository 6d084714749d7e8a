#!/usr/bin/env python3
"""The pipeline on a device at 1, 2 and 4 ranks with ZeRO 1 and 3, kills and resumes, also on the host. Every method
gives AR's tokens with rounded weights and cache."""

import contextlib
import json
import os
import shutil
import unittest
import unittest.mock

import tiny_model
from device_faults_test import CONFIG as TUNING
from harness import CHECKPOINT, START, TRAIN
from kill_and_resume_test import KilledRun

CONFIG = START + """device = "cuda"
compute = "float32"
[prompts]
files = ["{prompts}"]
field = "question"
limit = 12
[generate]
max_new_tokens = 12
batch_prompts = 3
prompts_per_lease = 3
[[rounds]]
block_size = 4
noise_window = 2
schedule = "random"
steps = 3
[[rounds]]
block_size = 8
noise_window = 2
steps = 2
""" + TRAIN.replace("256", "128") + CHECKPOINT + """[evaluate]
tasks = ["gsm8k"]
data = "{prompts}"
prompt_style = "plain"
block_size = 4
max_new_tokens = 8
limit = 2
speed_problems = 0
"""


class DevicePipeline(KilledRun):
    def config(self, name, text=None, extra=""):
        return super().config(name, text or CONFIG, extra)

    @staticmethod
    def stage(number):
        return "--set", f"train.zero_stage={number}"

    def expect_finished(self, run):
        self.assertEqual("finished", self.status(run))
        self.assertIn("intact", self.jforge("verify", run).out)
        summary = json.loads((run / "evaluation" / "summary.json").read_text(encoding="utf-8"))
        for model in ("base", "final"):
            for method in ("ar", "jacobi"):
                self.assertEqual(2, summary["models"][model]["gsm8k"][method]["n"])
        self.assertEqual({(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)}, set(self.losses(run)))
        self.assert_close_models(self.uninterrupted(1, *self.stage(1)), run)

    def test_killed_resumed_and_finished_at_every_rank_count(self):
        for ranks in (1, 2, 4):
            for stage, fault in ((1, "train:{last}:3"), (3, "train.accumulate:0:4")):
                place, rank, visit = fault.format(last=ranks - 1).split(":")
                with self.subTest(ranks=ranks, stage=stage), self.devices(ranks if stage == 3 else 1) as words:
                    name = f"killed-{ranks}-{stage}"
                    self.kill_and_resume(name, (place, int(rank), int(visit)), (*self.stage(stage), *words), ranks)
                    self.expect_finished(self.root / name)

    @staticmethod
    @contextlib.contextmanager
    def devices(count):
        """Emulated ones must use NCCL; real ranks share one."""
        if count == 1 or "JFORGE_EMULATED_DEVICES" not in os.environ:
            with unittest.mock.patch.dict(os.environ):
                os.environ.pop("JFORGE_EMULATED_DEVICES", None)
                yield ()
        else:
            with unittest.mock.patch.dict(os.environ, {"JFORGE_EMULATED_DEVICES": str(count)}):
                yield "--set", "train.collectives=nccl"

    def test_a_checkpoint_goes_to_the_host_and_back(self):
        config, run = self.config("wandering")
        for number, (device, name) in enumerate([("cuda", "CUDA device 0"), ("cpu", "the CPU"), ("cuda", "CUDA device 0")]):
            words = (*self.stage(1), "--set", f"model.device={device}", "--set", "checkpoint.every_steps=1", "--set",
                     "checkpoint.keep_last=1")
            # A checkpoint is complete, its predecessor about to go.
            result = (self.jforge_with_fault(config, run, "kill@checkpoint.prune:0:1", *words, ranks=1) if number < 2 else
                      self.jforge("run", config, *words))
            self.assertIn(f"computing on {name}", result.err)
            if number > 0:
                self.assertIn(f"continuing from round-1-step-0000000{number + 1}", result.err)
        self.assert_close_models(self.uninterrupted(1, *self.stage(1)), run)

    def test_every_method_gives_greedy_decodings_tokens_over_a_rounded_cache(self):
        # Heads that use tensor cores.
        with unittest.mock.patch.multiple(tiny_model, HIDDEN=128, HEADS=2, KV_HEADS=1, HEAD_DIM=64):
            model = tiny_model.write_model(self.root / "model-64")
        methods = ("ar", "jacobi", "mr_lookup", "prompt_lookup")
        config, _ = self.config("rounded")
        for storage in ("bfloat16", "bfloat16_arithmetic"):
            alone = None
            for ranks, batch in ((1, 1), (2, 3)):
                with self.subTest(storage=storage, ranks=ranks, batch=batch):
                    out = self.root / f"{storage}-{ranks}"
                    result = self.jforge(
                        "evaluate", config, "--model", model, "--methods", ",".join(methods), "--limit", "4", "--out", out,
                        "--set", f"model.decode_weights={storage}", "--set", f"evaluate.batch_prompts={batch}",
                        "--set", "evaluate.max_new_tokens=24", ranks=ranks)
                    self.assertIn("computing on CUDA device 0", result.err)
                    summary = json.loads((out / "evaluation" / "summary.json").read_text(encoding="utf-8"))
                    figures = summary["models"]["model-64"]["gsm8k"]
                    self.assertEqual(set(methods), set(figures))
                    self.assertEqual([0] * 3, [figures[method]["disagreements_with_ar"] for method in methods[1:]])
                    self.assertLess(50, figures["ar"]["tokens"])
                    tokens = {path.name: path.read_bytes() for path in (out / "evaluation").rglob("*.jsonl")}
                    alone = alone or tokens
                    self.assertEqual(alone, tokens)

    def test_a_device_computes_in_bfloat16_unless_told_otherwise(self):
        config, _ = self.config("default")
        for words, storage in ((("--set", "model.compute=auto"), "bfloat16_arithmetic"), ((), None)):
            out = self.root / f"default-{storage}"
            self.jforge("evaluate", config, "--model", self.model, "--methods", "ar", "--limit", "1", "--out", out,
                        *words)
            summary = json.loads((out / "evaluation/summary.json").read_text(encoding="utf-8"))
            self.assertEqual(storage, summary["models"][self.model.name]["gsm8k"]["ar"].get("decode_weights"))

    @unittest.skipUnless("JFORGE_EMULATED_ORDER" in os.environ, "only the emulated device's memory can be chosen")
    def test_what_the_device_has_no_memory_for_is_refused(self):
        config, run = self.config("too-large")
        model = shutil.copytree(self.model, self.root / "long-model")
        settings = json.loads((model / "config.json").read_text(encoding="utf-8"))
        (model / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": 8192}), encoding="utf-8")
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.root / "cache"), "JFORGE_EMULATED_MIB": "33"}
        result = self.jforge("run", config, "--set", "generate.batch_prompts=12", "--set", "generate.max_new_tokens=4000",
                             "--set", "rounds.1.block_size=1000", "--set", f'model.source="{model}"', "--set",
                             "train.tokens_per_rank=16384", expect=4, env=environment)
        self.assertRegex(result.err, r"generation needs about [0-9.]+ MB on the device of each rank \(.*cache.*\), and [0-9.]+ MB "
                         r"are free there; lower generate.max_new_tokens \(now 4000\)")
        self.assertFalse((run / "round-1" / "trajectories").exists())
        config, run = self.config("too-large-tuning", TUNING)
        result = self.jforge("finetune", config, expect=4, env={**environment, "JFORGE_EMULATED_MIB": "33"})
        self.assertRegex(result.err, r"training needs about [0-9.]+ MB on the device of each rank \(.*\), and [0-9.]+ MB are free")
        self.assertFalse((run / "model").exists())

    @unittest.skipUnless("JFORGE_EMULATED_ORDER" in os.environ, "there may be a device for each rank")
    def test_nccl_that_cannot_be_used_is_refused_before_there_is_work_to_lose(self):
        config, run = self.config("shared-device")
        with self.devices(1):
            result = self.jforge("run", config, "--set", "train.collectives=nccl", ranks=2, expect=4)
        self.assertRegex("".join(result.lines()), r'train.collectives = "nccl": .*; set "auto"')
        self.assertFalse((run / "round-1" / "trajectories").exists())


del KilledRun  # It must not run here again.

if __name__ == "__main__":
    unittest.main(verbosity=2)
