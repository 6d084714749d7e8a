#!/usr/bin/env python3
"""`jforge evaluate`: the same samples at any rank count and batch size, and after SIGKILL."""

import json
import os
import pathlib
import random
import shutil
import unittest

import tiny_model
from harness import EndToEndTest

RANKS = 2
PROBLEMS = 24
SEED = 20250311
POINTS = 3
# A random model solves none, but every completion is run.
HUMANEVAL = [{"task_id": f"HumanEval/{index}", "entry_point": "f", "canonical_solution": f"    return x + {index}\n",
              "prompt": f"def f(x):\n    # x + {index}\n",
              "test": f"def check(candidate):\n    assert candidate(1) == {index + 1}\n"} for index in range(6)]


class EvaluationTest(EndToEndTest):
    def evaluate(self, out, *words, ranks=RANKS, expect=0, tasks="gsm8k", data=None, model=None,
                 block_size=4):
        return self.jforge("evaluate", "--model", model or self.model, "--tasks", tasks, "--data",
                           data or self.prompts, "--limit", PROBLEMS, "--max-new-tokens", 16, "--block-size",
                           block_size, "--out", out, *words, ranks=ranks, expect=expect)

    @staticmethod
    def samples(out):
        return {str(path.relative_to(out)): path.read_bytes() for path in (out / "evaluation").rglob("*.jsonl")}

    def committed(self, out):
        """Returns (task and method, problem, sample) of the ranks' complete lines."""
        found = []
        for path in (out / "evaluation").rglob("*.part"):
            complete, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
            for line in complete.splitlines():
                record = json.loads(line)
                found.append((path.name.split(".attempt-")[0], record["index"], record["sample"]))
        self.assertEqual(len(found), len(set(found)), f"run twice after commit: {sorted(found)}")
        return set(found)


class Tune(EvaluationTest):
    """`--block-size auto` and `jforge tune`."""

    def tuned(self, out):
        return json.loads((out / "evaluation" / "source-model" / "tuning.json").read_text(encoding="utf-8"))

    def test_a_block_size_is_chosen_once(self):
        out = self.root / "auto"
        words = ("--methods", "ar,jacobi,mr")
        stopped = self.evaluate(out, *words, "--inject", "interrupt@phase tune source-model jacobi.block_size=8 at batch 1:1:1",
                                expect=75, block_size="auto")
        self.assertIn("acts now", stopped.err)
        self.assertFalse((out / "evaluation" / "source-model").exists())
        self.evaluate(out, *words, block_size="auto")
        tuned, expected = self.tuned(out), self.samples(out)
        self.assertEqual({"jacobi", "mr"}, set(tuned["block_sizes"]))
        summary = json.loads((out / "evaluation" / "summary.json").read_text(encoding="utf-8"))
        for method, block_size in tuned["block_sizes"].items():
            mine = [one for one in tuned["candidates"] if one["method"] == method]
            self.assertEqual([2, 4, 8, 16, 32, 64], [one["settings"]["block_size"] for one in mine])
            fastest = max((one for one in mine if "speed_up_low" in one), key=lambda one: one["speed_up"])
            self.assertEqual(fastest["settings"]["block_size"], block_size)
            self.assertEqual(block_size, summary["models"]["source-model"]["gsm8k"][method]["block_size"])
        for ranks in (1, 4):
            self.evaluate(out, *words, ranks=ranks, block_size="auto")
            self.assertEqual((tuned, expected), (self.tuned(out), self.samples(out)))
        self.evaluate(out, *words, "--set", "evaluate.speed_problems=7", block_size="auto")
        self.assertNotEqual(tuned["key"], self.tuned(out)["key"], "another sample")

    def tune(self, *words, model=None, **options):
        return self.jforge("tune", "--model", model or self.model, "--max-new-tokens", 16, "--set",
                           "evaluate.speed_repeats=2", *words, **options)

    def test_writes_the_fastest_settings_into_an_export(self):
        export = self.root / "export"
        shutil.copytree(self.model, export)
        (export / "jacobi_decoding.json").write_text('{"method": "jacobi", "block_size": 128}', encoding="utf-8")
        for ranks, batch in ((1, 1), (2, 1), (4, 3)):
            result = self.tune("--tasks", "gsm8k", "--data", self.prompts, "--batch-prompts", batch, model=export,
                               ranks=ranks)
            self.assertIn("Written into", result.out)
            settings = json.loads((export / "jacobi_decoding.json").read_text(encoding="utf-8"))
            self.assertEqual(batch, settings["measured"][0]["batch_prompts"])
        self.assertEqual(3, len(settings["measured"]))
        self.assertIn(settings["block_size"], (2, 4, 8, 16, 32, 64))
        decoded = self.jforge("decode", "--model", export, "--prompt", "One?", "--max-new-tokens", 16)
        asked = self.jforge("decode", "--model", export, "--prompt", "One?", "--max-new-tokens", 16, "--block-size",
                            settings["block_size"])
        self.assertEqual(asked.err.rpartition(",")[0], decoded.err.rpartition(",")[0])

    def test_takes_prompts_and_refuses_what_cannot_be_tuned(self):
        result = self.tune("--prompts", self.prompts, "--set", "prompts.field=question")
        self.assertIn("Not written", result.out)
        for words, part, code in (((), "--prompts", 2), (("--prompts", self.prompts, "--methods", "ar"), "--methods", 2),
                                  (("--prompts", self.root / "none.jsonl"), "none.jsonl", 3)):
            refused = self.tune(*words, expect=code)
            self.assertEqual(1, len(refused.lines()), str(refused))
            self.assertIn(part, refused.lines()[0])
        self.assertIn("whole number or", self.evaluate(self.root / "bad", block_size="fast", expect=2).err)


class Evaluate(EvaluationTest):
    def uninterrupted_samples(self):
        cache = type(self).__dict__.get("_samples")
        if cache is None:
            self.evaluate(self.root / "whole")
            cache = type(self)._samples = self.samples(self.root / "whole")
            self.assertEqual(2, len(cache))
        return cache

    def test_rank_count_and_batch_size_change_nothing(self):
        expected = self.uninterrupted_samples()
        for ranks, batch in ((1, 1), (1, 32), (2, 8), (4, 1), (4, 8)):
            with self.subTest(ranks=ranks, batch=batch):
                out = self.root / f"same-{ranks}-{batch}"
                self.evaluate(out, "--batch-prompts", batch, ranks=ranks)
                self.assertEqual(expected, self.samples(out))

    def test_figures_and_report(self):
        self.uninterrupted_samples()
        out = self.root / "whole"
        summary = json.loads((out / "evaluation" / "summary.json").read_text(encoding="utf-8"))
        self.assertEqual(["source-model"], summary["complete"])
        figures = summary["models"]["source-model"]["gsm8k"]
        self.assertEqual(1.0, figures["ar"]["tpf"])
        jacobi = figures["jacobi"]
        self.assertEqual(0, jacobi["disagreements_with_ar"])
        self.assertEqual(PROBLEMS, jacobi["n"])
        self.assertNotIn("speed_up", jacobi)
        self.assertEqual(2, len(jacobi["speed"]))  # at batch 1 and at the evaluation's
        for speed in jacobi["speed"]:
            self.assertLess(0, speed["speed_up_low"])
            self.assertLess(speed["speed_up_low"], speed["speed_up_high"])
        self.assertLessEqual(jacobi["tpf_low"], jacobi["tpf"])
        self.assertGreaterEqual(jacobi["tpf_high"], jacobi["tpf"])
        self.assertIn("jacobi", (out / "report.md").read_text(encoding="utf-8"))

    def kill(self, out, fault, *words):
        result = self.evaluate(out, "--batch-prompts", 2, "--inject", self.alone(fault), *words, expect=None)
        self.assertIn(f"injected fault {fault} acts now", result.err, str(result))
        self.assertNotIn(result.code, (0, 75), str(result))
        self.expect_no_processes()

    def test_a_kill_loses_nothing_and_repeats_nothing(self):
        expected = self.uninterrupted_samples()
        rng = random.Random(SEED)
        for number in range(POINTS):
            points = [(rng.randrange(RANKS), rng.randint(2, 10)) for _ in range(2)]
            with self.subTest(points=points):
                out = self.root / f"killed-{number}"
                before = set()
                for rank, visit in points:
                    self.kill(out, f"kill@evaluate:{rank}:{visit}")
                    after = self.committed(out)
                    self.assertLessEqual(before, after, "a committed sample is gone")
                    self.assertGreaterEqual(len(after), len(before) + visit)
                    before = after
                self.kill(out, "kill@publish.data:0:1")  # Everything is decoded, but not merged.
                self.assertEqual(2 * PROBLEMS, len(self.committed(out)))
                self.evaluate(out, ranks=1 + number)
                self.assertEqual(expected, self.samples(out))
                self.assertEqual([], list(out.rglob("*.part")))

    def test_a_kill_while_merging_loses_nothing(self):
        expected = self.uninterrupted_samples()
        for place in ("publish.rename", "publish.directory"):
            for visit in (3, 4, 5):
                with self.subTest(place=place, visit=visit):
                    out = self.root / f"merging-{place}-{visit}"
                    self.kill(out, f"kill@{place}:0:{visit}")
                    self.evaluate(out)
                    self.assertEqual(expected, self.samples(out))
                    self.assertEqual([], list(out.rglob("*.part")))

    def test_a_frozen_rank_ends_the_job(self):
        out = self.root / "frozen"
        result = self.evaluate(out, "--set", "run.heartbeat_limit_seconds=10", "--batch-prompts", 2, "--inject",
                               self.alone("stop@evaluate:1:1"), expect=None)
        self.assertEqual(70, result.code, str(result))
        self.assertIn("rank 1", result.err)
        self.expect_no_processes()

    def test_other_models_do_not_share_a_name(self):
        out = self.root / "names"
        other = tiny_model.write_model(self.root / "elsewhere" / "source-model", seed=2)
        self.evaluate(out, "--methods", "ar", ranks=1)
        before = self.samples(out)
        refused = self.evaluate(out, "--methods", "ar", ranks=1, model=other, expect=2)
        self.assertIn("--name", "".join(refused.lines()))
        self.assertEqual(before, self.samples(out))
        # Then the figures tell the model.
        (out / "evaluation" / "source-model" / "model.json").unlink()
        refused = self.evaluate(out, "--methods", "jacobi", ranks=1, model=other, expect=2)
        self.assertIn("--name", "".join(refused.lines()))
        self.assertEqual(before, self.samples(out))
        self.evaluate(out, "--methods", "ar", "--name", "other", ranks=1, model=other)
        self.assertEqual({"evaluation/source-model/gsm8k.ar.jsonl", "evaluation/other/gsm8k.ar.jsonl"},
                         set(self.samples(out)))

    def test_a_model_s_directory_may_have_any_name(self):
        other = tiny_model.write_model(pathlib.Path(os.fsdecode(os.fsencode(self.root) + b"/m\xe9l")), seed=2)
        out = self.root / "any-name"
        refused = self.evaluate(out, "--methods", "ar", ranks=1, model=other, expect=2)
        self.assertIn("--name", refused.lines()[0])
        rounding = ("--set", "model.decode_weights=bfloat16")
        self.evaluate(out, "--methods", "ar", "--name", "mel", *rounding, ranks=2, model=other)
        self.jforge("verify", out)
        summary = json.loads((out / "evaluation" / "summary.json").read_text(encoding="utf-8"))
        self.assertEqual("bfloat16", summary["models"]["mel"]["gsm8k"]["ar"]["decode_weights"])

    def test_methods_agree_with_weights_of_int8(self):
        out = self.root / "int8"
        int8 = ("--set", "model.decode_weights=int8")
        self.evaluate(out, "--methods", "ar,jacobi", *int8, ranks=1)
        whole = self.samples(out)
        again = self.root / "int8-ranks"
        self.evaluate(again, "--methods", "ar,jacobi", "--batch-prompts", 1, *int8, ranks=2)
        self.assertEqual(whole, self.samples(again))
        self.assertNotEqual(self.uninterrupted_samples(), whole)
        figures = json.loads((out / "evaluation" / "summary.json").read_text(encoding="utf-8"))["models"]["source-model"]
        self.assertEqual(["int8"] * 2, [figures["gsm8k"][method]["decode_weights"] for method in ("ar", "jacobi")])
        self.assertEqual(0, figures["gsm8k"]["jacobi"]["disagreements_with_ar"])

    def test_two_evaluations_do_not_share_a_directory(self):
        out = self.root / "shared"
        self.expect_one_at_a_time("evaluate", "evaluate", "--model", self.model, "--tasks", "gsm8k", "--data", self.prompts,
                                  "--out", out, "--limit", 6, "--max-new-tokens", 4)
        self.assertEqual([], list(out.rglob("*.part")))
        self.assertEqual(12, sum(text.count(b"\n") for text in self.samples(out).values()))

    def test_bad_command_lines(self):
        out = self.root / "bad"
        for words, part in ((("--tasks", "chess"), "chess"), (("--methods", "magic"), "magic"),
                            (("--prompt-style", "sonnet"), "sonnet"), (("--batch-prompts", "0"), "batch_prompts"),
                            (("--set", "run.hang_limit_seconds=1"), "run.hang_limit_seconds"),
                            (("--set", "evaluate.block_size=0"), None), (("--name", "a/b"), "a/b"),
                            (("--name", "a\x1b[1m"), "control character"),
                            (("--name", os.fsdecode(b"b\xff")), "not UTF-8")):
            with self.subTest(words=words):
                base = ["evaluate", "--model", self.model, "--data", self.prompts, "--out", out]
                base += [] if "--tasks" in words else ["--tasks", "gsm8k"]
                result = self.jforge(*base, *words, expect=2)
                self.assertEqual(1, len(result.lines()), str(result))
                self.assertIn(part or "block_size", result.lines()[0])
                self.assertFalse(out.exists())


class EvaluateCode(EvaluationTest):
    def setUp(self):
        self.problems = self.root / "HumanEval.jsonl"
        self.problems.write_text("".join(json.dumps(record) + "\n" for record in HUMANEVAL), encoding="utf-8")

    def code(self, out, *words, ranks=RANKS, expect=0):
        return self.evaluate(out, "--batch-prompts", 2, *words, ranks=ranks, expect=expect,
                             tasks="humaneval:lm-eval", data=self.problems)

    def test_an_answer_of_any_bytes_is_sanitized(self):
        model = self.root / "longer-model"  # the prompts need more than its 256 positions
        shutil.copytree(self.model, model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
        out = self.root / "evalplus"
        result = self.evaluate(out, tasks="humaneval:evalplus", data=self.problems, model=model, expect=None)
        if result.code == 4:
            self.skipTest(f"no sandbox here: {result.lines()}")
        self.assertEqual(0, result.code, str(result))
        lines = self.samples(out)["evaluation/longer-model/humaneval-evalplus.jacobi.jsonl"].decode().splitlines()
        self.assertEqual(len(HUMANEVAL), len(lines))
        for record in map(json.loads, lines):
            self.assertEqual("fail", record["verdict"])
            self.assertNotIn("sanitizing", record["reason"])

    def test_a_kill_while_programs_run(self):
        whole = self.root / "code"
        result = self.code(whole, ranks=1, expect=None)
        if result.code == 4:
            self.skipTest(f"no sandbox here: {result.lines()}")
        self.assertEqual(0, result.code, str(result))
        expected = self.samples(whole)
        records = [json.loads(line) for line in
                   expected["evaluation/source-model/humaneval-lm-eval.jacobi.jsonl"].decode().splitlines()]
        self.assertEqual([f"humaneval/{index}" for index in range(len(HUMANEVAL))],
                         [record["id"] for record in records])
        self.assertEqual({"fail"}, {record["verdict"] for record in records})
        out = self.root / "code-killed"
        killed = self.code(out, "--inject", self.alone("kill@evaluate:1:2"), expect=None)
        self.assertIn("acts now", killed.err, str(killed))
        self.expect_no_processes()
        self.assertGreaterEqual(len(self.committed(out)), 2)
        self.code(out, ranks=4)
        self.assertEqual(expected, self.samples(out))


if __name__ == "__main__":
    unittest.main(verbosity=2)
