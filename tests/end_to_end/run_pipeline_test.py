#!/usr/bin/env python3
"""The whole pipeline at 1, 2 and 4 ranks: rank counts agree."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import unittest
import unittest.mock

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
                self.assertIn("intact", self.jforge("verify", run).out)
                summary = json.loads((run / "evaluation" / "summary.json").read_text(encoding="utf-8"))
                for model in ("base", "final"):
                    for method in ("ar", "jacobi"):
                        self.assertEqual(4, summary["models"][model]["gsm8k"][method]["n"])
                self.assertEqual({(1, step) for step in range(1, 7)} | {(2, step) for step in range(1, 6)},
                                 set(self.losses(run)))

    def test_needs_no_ssh_on_one_machine(self):
        """Open MPI looks for it even for local ranks."""
        programs = self.root / "programs"
        programs.mkdir()
        for folder in map(pathlib.Path, os.environ["PATH"].split(os.pathsep)):
            for program in folder.iterdir() if folder.is_dir() else ():
                with contextlib.suppress(FileExistsError):
                    if program.name not in ("ssh", "rsh"):
                        (programs / program.name).symlink_to(program)
        environment = {**os.environ, "PATH": str(programs), "XDG_CACHE_HOME": str(self.root / "cache")}
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                config, _ = self.config(f"no-ssh-{ranks}")
                self.jforge("run", config, "--dry-run", ranks=ranks, env=environment)

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


class Plan(EndToEndTest):
    def test_a_run_does_what_was_planned(self):
        with unittest.mock.patch.multiple(tiny_model, HIDDEN=512, HEAD_DIM=128, INTERMEDIATE=512):
            tiny_model.write_model(self.root / "wide-model")
        for stage, tokens, passes in ((1, 256, "1 micro-batch"), (3, 90, "2 micro-batches")):
            with self.subTest(stage=stage):
                config, run = self.config(f"planned-{stage}")
                words = ("--set", f"model.source={self.root / 'wide-model'}", "--set", f"train.zero_stage={stage}",
                         "--set", f"train.tokens_per_rank={tokens}")
                self.jforge("import", config, *words)
                for word in ((), ("--dry-run",)):
                    refused = self.jforge("run", config, *words, "--set", "train.tokens_per_rank=80", *word, expect=2)
                    self.assertIn("train.tokens_per_rank = 80", refused.lines()[0])
                plan = self.jforge("run", config, "--dry-run", *words, ranks=2).out
                self.jforge("run", config, *words, ranks=2)
                sent = float(re.search(rf"a step of {passes} sends from each rank ([\d.]+) MB", plan)[1])
                steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
                for step in steps:  # equal but for the plan's decimals
                    self.assertAlmostEqual(2 * sent, step["payload_bytes"] / 1e6, delta=0.1)
                checkpoint, most, files = re.search(
                    r"checkpoint: ([\d.]+) MB in 2 shards, .* at most ([\d.]+) MB in (\d+) files", plan).groups()
                written = [path.stat().st_size for path in (run / "checkpoints").glob("*/*")]
                for folder in (run / "checkpoints").iterdir():
                    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
                    self.assertTrue(float(checkpoint) - 0.1 < size < float(checkpoint) + 0.2, f"{size} MB, {plan}")
                    self.assertEqual(2 + 1, len(list(folder.iterdir())))
                self.assertLessEqual(len(written), int(files))
                self.assertLessEqual(sum(written) / 1e6, float(most))
                rounds = re.findall(r"at least (\d+) leases.*\n  (\d+) prompts generated, (\d+) samples consumed in (\d+) steps",
                                    plan)
                self.assertEqual(2, len(rounds))
                for number, (leases, prompts, samples, count) in enumerate(rounds, 1):
                    ours = [step for step in steps if step["round"] == number]
                    self.assertEqual((int(count), int(samples)), (len(ours), sum(step["samples"] for step in ours)))
                    generated = run / f"round-{number}"
                    self.assertEqual(int(prompts), json.loads((generated / "generation.json").read_text())["prompts"])
                    self.assertLessEqual(int(leases), len(list((generated / "trajectories").glob("lease-*.h5"))))


class Output(EndToEndTest):
    def test_what_a_full_disk_takes_is_an_error(self):
        run = self.uninterrupted(1)
        checkpoint = sorted((run / "checkpoints").iterdir())[-1]
        for words in (("inspect", run), ("inspect", run, run), ("verify", run),
                      ("run", self.root / "uninterrupted-1.toml", "--dry-run"),
                      ("export", checkpoint, self.root / "exported"),
                      ("decode", "--model", self.model, "--prompt", "a", "--max-new-tokens", "4", "--compare")):
            with self.subTest(words=words), open("/dev/full", "wb") as full:
                result = subprocess.run(self.command(*words), check=False, stdout=full, stderr=subprocess.PIPE, text=True,
                                        timeout=60)
                lines = [line for line in result.stderr.splitlines() if line.startswith("jforge: ")]
                self.assertEqual((4, 1), (result.returncode, len(lines)), result.stderr)


class Refused(EndToEndTest):
    def refused(self, code, *words, says):
        result = self.jforge(*words, expect=code)
        self.assertEqual(1, len(result.lines()), str(result))
        self.assertIn(says, result.lines()[0], str(result))

    def write_lines(self, name, *records):
        path = self.root / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return path

    def test_verdicts_do_not_replace_what_is_graded(self):
        problems = self.write_lines("HumanEval.jsonl", {
            "task_id": "HumanEval/0", "prompt": "def one():\n", "entry_point": "one", "canonical_solution": "    return 1\n",
            "test": "def check(candidate):\n    assert candidate() == 1\n"})
        completions = self.write_lines("completions.jsonl", {"task_id": "HumanEval/0", "completion": "    return 1\n"})
        link = self.root / "link.jsonl"
        link.symlink_to(completions)
        before = completions.read_bytes(), problems.read_bytes()
        for out, option in ((completions, "--completions"), (link, "--completions"), (problems, "--data")):
            self.refused(2, "grade", "--task", "humaneval", "--completions", completions, "--data", problems, "--out", out,
                         says=f"--out {out} is the file of {option}")
        self.refused(2, "grade", "--task", "humaneval", "--completions", completions, "--data", self.root, "--out", problems,
                     says=f"--out {problems} is there and holds no verdicts")
        self.assertEqual(before, (completions.read_bytes(), problems.read_bytes()))

    def test_a_plan_refuses_what_the_run_would(self):
        config, _ = self.config("limits")
        for key, value in (("run.heartbeat_limit_seconds", 1), ("run.heartbeat_limit_seconds", "nan"),
                           ("run.hang_limit_seconds", "nan")):
            for words in (("--dry-run",), ()):
                self.refused(2, "run", config, "--set", f"{key}={value}", *words, says=key)

    def test_plans_for_devices_that_are_not_here(self):
        config, directory = self.config("device-plan")
        for word, says in (("h100", "H100, calculated from its data sheet, nothing was measured: 80 GB"),
                           ("h200", "H200, calculated from its data sheet, nothing was measured: 141 GB"),
                           ("a100", "A100, calculated from its data sheet, nothing was measured: 80 GB")):
            plan = self.jforge("run", config, "--dry-run", "--device-plan", word).out
            self.assertIn(says, plan)
            self.assertRegex(plan, r"generation on the device: .* MB in all, \d\.\d % of its memory")
            self.assertRegex(plan, r"training on the device: .* MB in all, \d\.\d % of its memory")
        self.refused(2, "run", config, "--dry-run", "--device-plan", "h1000", says="--device-plan")
        self.refused(2, "run", config, "--dry-run", "--device-plan", "h100", "--set", "model.decode_weights=int8",
                     says="bfloat16_arithmetic")
        self.refused(2, "run", config, "--device-plan", "h100", says="--dry-run")
        self.assertFalse(directory.exists())

    def test_weights_are_interpolated_towards_the_model_of_the_run_only(self):
        checkpoint = sorted((self.uninterrupted(1) / "checkpoints").iterdir())[-1]
        other = tiny_model.write_model(self.root / "other-model", seed=2)
        out = self.root / "mixed"
        self.refused(3, "export", checkpoint, out, "--interpolate", "0.5", "--source", other,
                     says=f"{other}: not the model that")
        self.assertFalse(out.exists())

    def test_numbers_of_a_packed_sample_are_in_range(self):
        sample = {"prompt": [1], "block_size": 2, "window": 1, "noisy": [[1, 2]], "clean": [[1, 2]], "eos": -1}
        for key in ("block_size", "window"):
            for value in (4294967298, 0, 1.5, "2"):
                packed = self.write_lines("packed.json", {**sample, key: value})
                self.refused(3, "probe", "loss", "--model", self.model, "--packed", packed, "--out", self.root / "loss",
                             says=f"{packed}: {key} is {json.dumps(value)}; it must be a whole number from 1 to 2147483647")

    def test_an_evaluation_without_its_benchmark_leaves_nothing(self):
        out = self.root / "evaluated"
        self.refused(3, "evaluate", "--model", self.model, "--tasks", "gsm8k", "--data", self.root / "nowhere", "--out", out,
                     says=str(self.root / "nowhere"))
        self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
