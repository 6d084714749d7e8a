#!/usr/bin/env python3
"""jforge finetune: the same at any rank count and after any stop."""

import json
import shutil
import unittest

import tiny_model
from harness import BINARY, FINETUNE, EndToEndTest

USAGE, INPUT = 2, 3
STEPS = 6


class Finetune(EndToEndTest):
    def config(self, name, text=FINETUNE, extra=""):
        return super().config(name, text, extra)

    def trained(self, name, *words, ranks=1):
        config, run = self.config(name)
        self.jforge("finetune", config, *words, ranks=ranks)
        return run

    def metrics(self, run):
        return [json.loads(line) for path in sorted(run.glob("metrics.*.jsonl"))
                for line in path.read_text(encoding="utf-8").splitlines()]

    def pairs(self, name, change):
        """Returns the path and the setting."""
        records = [json.loads(line) for line in self.prompts.read_text(encoding="utf-8").splitlines()]
        path = self.root / f"{name}.jsonl"
        path.write_text("".join(json.dumps(change(record)) + "\n" for record in records), encoding="utf-8")
        return path, ("--set", f'finetune.files=["{path}"]')

    def test_ranks_that_read_other_pairs_are_refused(self):
        lines = self.prompts.read_text(encoding="utf-8").splitlines(keepends=True)
        for rank, left in ((0, lines), (1, lines[:-1])):
            (self.root / f"rank-{rank}").mkdir()
            (self.root / f"rank-{rank}" / "pairs.jsonl").write_text("".join(left), encoding="utf-8")
        apart = self.root / "apart"
        apart.write_text(f'#!/bin/sh\ncd {self.root}/rank-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} && exec {BINARY} "$@"\n',
                         encoding="utf-8")
        apart.chmod(0o755)
        config, _ = self.config("other-pairs")
        command = self.command("finetune", config, "--set", 'finetune.files=["pairs.jsonl"]', ranks=2, program=apart)
        result = self.finish(self.start(command), 60)
        self.assertEqual(INPUT, result.code, str(result))
        self.assertRegex(result.lines()[0], "rank 1 .*other pairs.*23 samples of pairs.jsonl")

    def test_an_ar_weight_of_0_has_nothing_to_train(self):
        config, run = self.config("no-loss")
        result = self.jforge("finetune", config, "--set", "train.ar_weight=0", expect=USAGE)
        self.assertIn("train.ar_weight = 0", result.lines()[0])
        self.assertFalse(run.exists())

    def assert_same_losses(self, expected, actual, limit):
        expected, actual = self.losses(expected), self.losses(actual)
        self.assertEqual(set(expected), set(actual))
        for step, loss in expected.items():
            self.assertAlmostEqual(1, actual[step] / loss, delta=limit, msg=f"step {step}")

    def test_the_same_model_at_any_rank_count_and_after_a_stop(self):
        whole = self.trained("whole", ranks=2)
        losses = self.losses(whole)
        self.assertEqual([(0, step) for step in range(1, STEPS + 1)], sorted(losses))
        self.assertLess(losses[0, STEPS], losses[0, 1])
        for ranks in (1, 4):
            run = self.trained(f"whole-{ranks}", ranks=ranks)
            self.assert_same_losses(whole, run, 1e-5)
            self.assert_close_models(whole, run)
        self.assertEqual({path.name for path in self.model.iterdir()} | {"checksums.json"},
                         {path.name for path in (whole / "model").iterdir()})
        weights = whole / "model" / "model.safetensors"
        kept = weights.read_bytes()
        weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        self.assertIn("model.safetensors", self.jforge("verify", whole, expect=3).lines()[0])
        weights.write_bytes(kept)
        self.jforge("verify", whole)
        self.assertIn("autoregressive", (whole / "report.md").read_text(encoding="utf-8").lower())
        config, run = self.config("stopped")
        self.jforge("finetune", config, "--inject", "interrupt@train:1:3", ranks=2, expect=75)
        self.assertEqual("interrupted", self.status(run))
        for ranks in (1, 2):
            _, copy = self.config(f"stopped-{ranks}")
            shutil.copytree(run, copy)
            self.jforge("finetune", self.root / f"{copy.name}.toml", ranks=ranks)
            self.assert_close_models(whole, copy)
            if ranks == 2:
                self.assertEqual(self.bytes_of(whole), self.bytes_of(copy))
        sharded = self.trained("sharded", "--set", "train.zero_stage=3", "--set", "model.compute=bfloat16", ranks=2)
        self.assert_same_losses(whole, sharded, 0.02)
        self.assertNotEqual(self.losses(whole), self.losses(sharded))
        # Another run can take over a copied checkpoint.
        newest = sorted((sharded / "checkpoints").iterdir())[-1]
        stage_3 = ("--set", "train.zero_stage=3", "--set", "model.compute=bfloat16")
        config, run = self.config("taken")
        self.refused(USAGE, config, *stage_3, "--resume", newest, says=["cp -r"])
        shutil.copytree(newest, run / "checkpoints" / newest.name)
        taken = self.trained("taken", *stage_3, "--resume", run / "checkpoints" / newest.name, ranks=2)
        self.assertEqual(self.bytes_of(sharded), self.bytes_of(taken))

    def test_only_answers_and_their_end_are_learnt(self):
        """The tokenizer makes a token of each byte."""
        records = [json.loads(line) for line in self.prompts.read_text(encoding="utf-8").splitlines()]
        answers = [len(record["answer"].encode()) + 1 for record in records]
        run = self.trained("answers")  # Six batches of four: all 24 pairs.
        self.assertEqual(sum(answers), sum(line["ar_targets"] for line in self.metrics(run)))
        # Longer questions add no targets.
        _, longer = self.pairs("longer", lambda record: {**record, "question": "So: " + record["question"]})
        other = self.trained("longer-questions", *longer)
        self.assertEqual([line["ar_targets"] for line in self.metrics(run)],
                         [line["ar_targets"] for line in self.metrics(other)])
        self.assertNotEqual(self.losses(run), self.losses(other))
        prompts = self.trained("prompts-too", "--set", "train.train_prompt=true")
        template = len(tiny_model.SPECIALS[1:]) * 2 - 1 + len(b"user\n\nassistant\n")
        questions = [len(record["question"].encode()) + template - 1 for record in records]
        self.assertEqual(sum(answers) + sum(questions), sum(line["ar_targets"] for line in self.metrics(prompts)))

    def refused(self, code, config, *words, says):
        result = self.jforge("finetune", config, *words, expect=code)
        self.assertEqual(1, len(result.lines()), str(result))
        for text in says:
            self.assertIn(str(text), result.lines()[0])

    def test_bad_pairs_and_settings_are_refused_in_one_line(self):
        config, run = self.config("refused")
        lines = self.prompts.read_text(encoding="utf-8").splitlines()
        for name, line, says in (("json", '{"question": "a"', 'not valid JSON'),
                                 ("number", '{"question": "a", "answer": 7}', 'no text under "answer"'),
                                 ("empty", '{"question": "a", "answer": ""}', 'the text under "answer" is empty')):
            path = self.root / f"bad-{name}.jsonl"
            path.write_text("\n".join([*lines[:4], line, *lines[4:]]) + "\n", encoding="utf-8")
            self.refused(INPUT, config, "--set", f'finetune.files=["{path}"]', says=[f"{path}:5", says])
        self.refused(INPUT, config, "--set", "finetune.max_tokens=5",
                     says=["all 24 are longer than finetune.max_tokens = 5"])
        self.refused(USAGE, config, "--set", "train.tokens_per_rank=40",
                     says=["train.tokens_per_rank is 40", "finetune.max_tokens"])
        self.refused(USAGE, config, "--set", "finetune.epochs=1", says=["finetune.epochs or finetune.steps"])
        self.refused(USAGE, config, "--set", "finetune.stepps=1", says=["finetune.stepps"])
        self.refused(USAGE, config, "--set", f"finetune.output={self.model}/.", says=["finetune.output is model.source"])
        self.refused(USAGE, config, "--set", "run.hang_limit_seconds=0", says=["run.hang_limit_seconds"])
        for output in (run, run.parent):
            self.refused(USAGE, config, "--set", f"finetune.output={output}/", says=["finetune.output is run.directory"])
        self.assertFalse((run / "model").exists())
        plan = self.jforge("finetune", config, "--dry-run", "--ranks", "4").out
        self.assertIn("samples: 24", plan)
        self.assertIn("steps: 6 of 4 samples", plan)

    def test_a_directory_with_anything_else_in_it_is_not_replaced(self):
        run = self.trained("replaced")
        config, _ = self.config("replacing")
        output = run / "model"
        self.jforge("finetune", config, "--set", f"finetune.output={output}")
        notes = output / "mine" / "notes.txt"
        notes.parent.mkdir()
        notes.write_text("of no export", encoding="utf-8")
        for words in ((), ("--dry-run",)):
            config, again = self.config(f"not-replacing{len(words)}")
            self.refused(USAGE, config, "--set", f"finetune.output={output}", *words, says=["mine/notes.txt", output])
            self.assertFalse(again.exists(), "refused before all work")
        self.assertEqual("of no export", notes.read_text(encoding="utf-8"))

    def test_a_failing_step_leaves_the_checkpoint_before_it(self):
        config, run = self.config("nan")
        self.jforge("finetune", config, "--set", "checkpoint.every_steps=1", "--inject", "nan@train:1:3", ranks=2, expect=5)
        self.assertIn((0, 2), self.checkpoint_steps(run))

    def test_lost_checkpoints_are_missed_before_the_model_is_replaced(self):
        config, run = self.config("lost")
        self.jforge("finetune", config, ranks=2)
        made = (run / "model" / "model.safetensors").read_bytes()
        shutil.rmtree(run / "checkpoints")
        for ranks in (1, 2):
            result = self.jforge("finetune", config, ranks=ranks, expect=INPUT)
            for text in (str(run / "checkpoints"), str(run / "model"), "put them back"):
                self.assertIn(text, result.lines()[0])
            self.assertEqual(made, (run / "model" / "model.safetensors").read_bytes())
        (run / "model").rename(run / "away")
        self.jforge("finetune", config, ranks=2)
        self.assertEqual(made, (run / "model" / "model.safetensors").read_bytes())

    def test_a_lost_last_checkpoint_is_missed_too(self):
        config, run = self.config("lost-last")
        self.jforge("finetune", config)
        made = (run / "model" / "model.safetensors").read_bytes()
        last = sorted((run / "checkpoints").iterdir())[-1]
        last.rename(run / last.name)
        self.refused(INPUT, config, says=[str(run / "model"), "put them back"])
        (run / last.name).rename(last)
        longer = ("--set", "finetune.steps=12")  # Stopped and continued, it misses no step.
        self.jforge("finetune", config, *longer, "--accept-change", "finetune.steps", "--inject", "interrupt@train:0:9",
                    expect=75)
        self.jforge("finetune", config, *longer)
        self.assertNotEqual(made, (run / "model" / "model.safetensors").read_bytes())
        self.refused(USAGE, config, "--accept-change", "finetune.steps", says=["is to end after step 6"])

    def test_other_data_or_model_is_another_run(self):
        path, setting = self.pairs("data", dict)
        config, _ = self.config("identity")
        self.jforge("finetune", config, *setting, "--inject", "interrupt@train:0:2", expect=75)
        content = path.read_text(encoding="utf-8")
        path.write_text(content.replace("pens", "lids"), encoding="utf-8")
        self.refused(USAGE, config, *setting, says=["data.hash"])
        path.write_text(content, encoding="utf-8")
        other = tiny_model.write_model(self.root / "other-model", seed=2)
        self.refused(USAGE, config, *setting, "--set", f'model.source="{other}"', says=["model.hash"])
        self.jforge("finetune", config, *setting)


if __name__ == "__main__":
    unittest.main(verbosity=2)
