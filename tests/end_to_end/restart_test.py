#!/usr/bin/env python3
"""Restarts with a change: accepted, redone or refused."""

import json
import os
import pathlib
import re
import shutil
import signal
import unittest

import tiny_model
from harness import CONFIG, EVALUATE, MPIRUN, EndToEndTest

USAGE, DATA = 2, 3


class RefusedTest(EndToEndTest):
    def refused(self, config, *words, says=()):
        result = self.jforge("run", config, *words, expect=USAGE)
        self.assertEqual(1, len(result.lines()), str(result))
        for text in says:
            self.assertIn(text, result.lines()[0])


class ChangedConfiguration(RefusedTest):
    SHORTER = ("--set", "generate.max_new_tokens=16")
    ACCEPT = ("--accept-change", "generate.max_new_tokens")

    def shards(self, run, pattern="lease-*.h5"):
        return sorted(path.name for path in (run / "round-1" / "trajectories").glob(pattern))

    def test_trajectories_of_two_configurations_never_mix(self):
        config, run = self.config("mixed")
        self.jforge("run", config, "--inject", "interrupt@train:0:3", expect=75)
        before = self.shards(run)
        killed = self.jforge("run", config, *self.SHORTER, *self.ACCEPT, "--inject", "kill@train:0:4", expect=None)
        self.assertIn("injected fault kill@train:0:4 acts now", killed.err, str(killed))
        self.assertEqual([f"{name}.stale" for name in before], self.shards(run, "*.stale"))
        fresh, alone = self.config("fresh")
        self.jforge("import", fresh, *self.SHORTER)
        self.jforge("generate", fresh, "--round", "1", *self.SHORTER)
        self.assertEqual(self.digest(alone, 1), self.digest(run, 1))
        # Undoing the change is another change.
        accepted = json.loads((run / "identity.json").read_text(encoding="utf-8"))["accepted"]
        self.assertEqual([{"key": "generate.max_new_tokens", "from": "24", "to": "16"}], accepted)
        self.refused(config, says=["generate.max_new_tokens: 16 → 24"])
        self.jforge("run", config, *self.SHORTER)
        self.assertEqual("finished", self.status(run))
        self.assertEqual(before, [name.removesuffix(".stale") for name in self.shards(run, "*.stale")])

    def test_the_report_of_other_trajectories_goes_with_them(self):
        config, run = self.config("reported")
        self.jforge("run", config, "--inject", "interrupt@train:0:1", expect=75)
        report = run / "round-1" / "generation.json"
        before = report.read_bytes()
        self.jforge("run", config, *self.SHORTER, *self.ACCEPT, "--inject", "kill@generate:0:1", expect=None)
        self.assertFalse(report.exists())
        self.jforge("run", config, *self.SHORTER)
        self.assertNotEqual(before, report.read_bytes())

    def test_what_imported_prompts_depend_on_stays(self):
        config, run = self.config("imported")
        self.jforge("import", config)
        store = (run / "prompts.h5").read_bytes()
        for setting, key in (("prompts.limit=5", "prompts.limit"), ("run.seed=8", "run.seed")):
            self.refused(config, "--set", setting, "--accept-change", key, says=[key, "another run.directory"])
        other = shutil.copytree(self.model, self.root / "model-imported")
        tiny_model.write_safetensors(other / "model.safetensors", tiny_model.random_tensors(2))
        self.refused(config, "--set", f'model.source="{other}"', "--accept-change", "model.hash", says=["model.hash"])
        config, copy = self.config("copied", CONFIG.replace('field = "question"', 'field = "answer"'))
        copy.mkdir()
        shutil.copy(run / "prompts.h5", copy)
        self.refused(config, says=["prompts.h5", "import identity"])
        self.assertEqual(store, (run / "prompts.h5").read_bytes())

    def test_only_the_configuration_s_rounds_are_there(self):
        config, run = self.config("rounds")
        for command in ("generate", "train"):
            for number in ("3", "0", "-1"):
                with self.subTest(command=command, number=number):
                    result = self.jforge(command, config, f"--round={number}", expect=USAGE)
                    self.assertIn(f"--round {number}", result.lines()[0])
        self.assertFalse(run.exists())


class GoingBack(RefusedTest):
    """--resume PATH: later work is neither continued nor mistaken for new."""

    STEP_2 = "checkpoints/round-1-step-00000002"
    OTHER = ("--set", "train.ar_weight=2")
    BACK = (*OTHER, "--accept-change", "train.ar_weight", "--resume")

    def begun(self, name):
        """Stops after step 5, with a checkpoint at 2."""
        config, run = self.config(name, CONFIG.replace("keep_last = 2", "keep_last = 10"))
        self.jforge("run", config, "--inject", "interrupt@train:0:5", expect=75)
        self.assertIn((1, 2), self.checkpoint_steps(run))
        return config, run

    def test_the_next_start_goes_on_with_the_new_branch(self):
        config, run = self.begun("branch")
        left = self.checkpoint_steps(run)
        newer = [f"round-{a}-step-{b:08}" for a, b in left if (a, b) > (1, 2)]
        self.assertTrue(newer)
        whole = {name: (run / "checkpoints" / name / "manifest.json").read_bytes() for name in newer}
        back = self.jforge("run", config, *self.BACK, run / self.STEP_2, "--inject", "interrupt@train:0:3", expect=75)
        for name in newer:
            self.assertIn(f"{name}.abandoned", back.err)
            self.assertEqual(whole[name], (run / "checkpoints" / f"{name}.abandoned" / "manifest.json").read_bytes())
        self.assertEqual([(1, 2), (1, 3)], sorted(self.checkpoint_steps(run)))
        again = self.jforge("run", config, *self.OTHER)
        self.assertIn("continuing from round-1-step-00000003", again.err)
        # As without the other branch.
        plain, alone = self.config("alone", CONFIG.replace("keep_last = 2", "keep_last = 10"))
        self.jforge("run", plain, "--inject", "interrupt@train:0:2", expect=75)
        self.jforge("run", plain, *self.OTHER, "--accept-change", "train.ar_weight")
        self.assertEqual((alone / "model" / "model.safetensors").read_bytes(),
                         (run / "model" / "model.safetensors").read_bytes())
        self.jforge("verify", run)

    def test_steps_that_the_other_branch_has_saved_are_saved_again(self):
        config, run = self.begun("saved")
        self.jforge("run", config, *self.BACK, run / self.STEP_2, ranks=2)
        self.assertEqual("finished", self.status(run))
        self.jforge("run", config, *self.OTHER, "--resume", run / self.STEP_2)
        self.assertTrue((run / "checkpoints" / "round-1-step-00000004.abandoned-2").is_dir())

    def test_the_report_has_no_step_of_the_branch_that_was_left(self):
        config, run = self.begun("reported")
        self.jforge("run", config, "--set", "rounds.1.steps=4", "--accept-change", "rounds.1.steps", "--resume",
                    run / self.STEP_2)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        self.assertEqual([1, 2, 3, 4], [line["step"] for line in lines if line["round"] == 1])

    def test_a_refused_start_sets_nothing_aside(self):
        config, run = self.config("refused-back", CONFIG.replace("keep_last = 2", "keep_last = 10"))
        self.jforge("run", config)
        before = sorted(path.name for path in run.rglob("*"))
        back = ("--resume", run / self.STEP_2)
        self.jforge("run", config, *back, "--set", 'evaluate.tasks=["gsm8k"]', "--set", "evaluate.data=/nonexistent",
                    expect=3)
        self.jforge("train", config, "--round", "2", *back, expect=USAGE)
        self.assertEqual([], [name for name in (path.name for path in run.rglob("*")) if "abandoned" in name])
        self.assertNotIn("train round", self.jforge("run", config).err)
        self.assertEqual([], [name for name in before if name not in {path.name for path in run.rglob("*")}])
        # Dependent work is set aside.
        self.jforge("run", config, *back, "--inject", "interrupt@train:0:3", expect=75)
        for name in ("export.json.abandoned", "round-2.abandoned"):
            self.assertTrue((run / name).exists(), name)
        self.jforge("run", config)
        self.jforge("verify", run)

    def test_another_run_s_checkpoint_is_copied_first(self):
        _, run = self.begun("giver")
        config, taker = self.config("taker", CONFIG.replace("keep_last = 2", "keep_last = 10"))
        self.refused(config, "--resume", run / self.STEP_2, says=["cp -r", str(taker / "checkpoints")])
        self.assertFalse((taker / "prompts.h5").exists())
        shutil.copytree(run / self.STEP_2, taker / self.STEP_2)
        self.assertIn("continuing from round-1-step-00000002", self.jforge("run", config).err)

    def test_a_round_cannot_end_where_it_has_been(self):
        config, run = self.begun("shorter")
        newest = max(self.checkpoint_steps(run))[1]
        words = ("--set", f"rounds.1.steps={newest}", "--accept-change", "rounds.1.steps")
        self.refused(config, *words, says=["rounds.1.steps", f"round-1-step-{newest:08}"])
        self.jforge("run", config, "--set", f"rounds.1.steps={newest + 1}", "--accept-change", "rounds.1.steps")

    def test_a_change_of_a_trained_round_comes_too_late(self):
        config, run = self.config("late")
        self.jforge("run", config)
        made = (run / "model" / "model.safetensors").read_bytes()
        self.refused(config, "--set", "rounds.2.steps=9", "--accept-change", "rounds.2.steps",
                     says=["rounds.2.steps: 5 → 9", "too late"])
        self.refused(config, "--set", "train.ar_weight=3", "--accept-change", "train.ar_weight",
                     says=["train.ar_weight", "has all rounds trained"])
        self.jforge("run", config)
        more = '\n[[rounds]]\nblock_size = 8\nsteps = 2\n'
        longer, _ = self.config("late", CONFIG + more)
        self.jforge("run", longer, "--accept-change", "rounds.3", "--set", 'evaluate.tasks=["gsm8k"]', "--set",
                    "evaluate.data=/nonexistent", expect=3)
        config, _ = self.config("late")
        self.jforge("run", config)
        self.assertEqual(made, (run / "model" / "model.safetensors").read_bytes())


class LostCheckpoints(EndToEndTest):
    def refused(self, config, run, *names, ranks=1):
        """Expects no training and no change; `verify` says the same."""
        before = {path: path.read_bytes() for path in run.rglob("*.safetensors")}
        result = self.jforge("run", config, ranks=ranks, expect=DATA)
        self.assertEqual(1, len(result.lines()), str(result))
        found = self.jforge("verify", run, expect=DATA)
        for name in (str(run / "checkpoints"), *(str(run / each) for each in names), "put them back"):
            self.assertIn(name, result.lines()[0])
            self.assertIn(name, found.lines()[0])
        self.assertNotIn("train round", result.err)
        self.assertEqual(before, {path: path.read_bytes() for path in run.rglob("*.safetensors")})

    def test_a_finished_run_is_not_trained_again(self):
        config, run = self.config("lost")
        self.jforge("run", config, ranks=2)
        made = (run / "model" / "model.safetensors").read_bytes()
        (run / "checkpoints").rename(run / "away")
        self.refused(config, run, "export.json", "round-2")
        self.refused(config, run, "export.json", "round-2", ranks=2)
        (run / "away").rename(run / "checkpoints")
        self.assertNotIn("train round", self.jforge("run", config, ranks=2).err)
        self.jforge("verify", run)
        (run / "checkpoints").rename(run / "away")
        (run / "export.json").unlink()
        (run / "round-2").rename(run / "round-2-away")
        self.assertIn("train round 1", self.jforge("run", config, ranks=2).err)
        self.assertEqual(made, (run / "model" / "model.safetensors").read_bytes())

    def test_nor_is_what_the_last_checkpoints_held(self):
        config, run = self.config("last")
        self.jforge("run", config, ranks=2)
        for gone in sorted((run / "checkpoints").glob("round-2-*")):
            gone.rename(run / gone.name)
        self.assertTrue(self.checkpoint_steps(run))
        self.refused(config, run, "export.json", ranks=2)
        for back in run.glob("round-2-step-*"):
            back.rename(run / "checkpoints" / back.name)
        self.jforge("verify", run)
        newest = sorted((run / "checkpoints").iterdir())[-1]  # A damaged one is skipped, with a message.
        (newest / "manifest.json").write_text("{}", encoding="utf-8")
        again = self.jforge("run", config, ranks=2)
        self.assertIn("checkpoint skipped", again.err)
        self.assertIn("train round", again.err)

    def test_what_is_made_of_other_weights_does_not_mix(self):
        """Another run's model replaced the round's generator."""
        config, run = self.config("mixed-weights")
        other, other_run = self.config("other-weights")
        rate = ("--set", "train.learning_rate=3e-3")
        for each, words in ((config, ()), (other, rate)):
            self.jforge("import", each, *words)
            for phase, number in (("generate", 1), ("train", 1), ("generate", 2)):
                self.jforge(phase, each, "--round", number, *words)
        self.jforge("train", config, "--round", "2", "--inject", "interrupt@train:0:3", expect=75)
        end = sorted((run / "checkpoints").glob("round-1-*"))[-1].name
        shutil.rmtree(run / "checkpoints" / end)
        shutil.copytree(other_run / "checkpoints" / end, run / "checkpoints" / end)
        sorted((run / "round-2" / "trajectories").glob("lease-*.h5"))[0].unlink()
        result = self.jforge("run", config, expect=DATA)
        self.assertIn("other weights than those that are there now", result.lines()[0])

    def test_nor_is_one_in_its_second_round(self):
        config, run = self.config("second")
        self.jforge("run", config, "--inject", "interrupt@generate:0:30", expect=75)
        self.assertTrue(any((run / "round-2" / "trajectories").glob("lease-*.h5")))
        for damaged in (run / "checkpoints").glob("*/manifest.json"):
            damaged.write_text("{}", encoding="utf-8")
        result = self.jforge("run", config, expect=DATA)
        self.assertIn("checkpoint skipped", result.err)
        self.assertIn(str(run / "round-2"), result.lines()[0])
        shutil.rmtree(run / "checkpoints")
        self.refused(config, run, "round-2")

    def test_before_a_round_s_end_there_is_nothing_to_miss(self):
        config, run = self.config("first")
        self.jforge("run", config, "--inject", "interrupt@train:0:3", expect=75)
        shutil.rmtree(run / "checkpoints")
        self.jforge("verify", run)
        self.assertIn("train round 1", self.jforge("run", config).err)


class AnotherProcessor(EndToEndTest):
    """JFORGE_CPU stands for it."""

    def on(self, processor, *words, **options):
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.root / "cache"), "JFORGE_CPU": processor}
        return self.jforge("run", *words, "--set", "model.compute=bfloat16", "--set",
                           "model.decode_weights=bfloat16_arithmetic", env=environment, **options)

    def sums(self, run):
        return json.loads((run / "identity.json").read_text(encoding="utf-8")).get("cpu.bfloat16_sums")

    def test_a_run_goes_on_with_the_order_of_sums_that_it_began_with(self):
        amx = "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
        for first, second in (("amx_bf16", "avx2"), ("avx512", "amx_bf16")):
            expected = "groups" if amx and first == "amx_bf16" else None
            whole, whole_run = self.config(f"whole-{first}")
            self.on(first, whole)
            config, run = self.config(f"moved-{first}")
            self.on(first, config, "--inject", "interrupt@train:0:3", expect=75)
            moved = self.on(second, config)
            self.assertEqual(expected, self.sums(whole_run))
            self.assertEqual(expected, self.sums(run))
            self.assertEqual(self.bytes_of(whole_run), self.bytes_of(run))
            self.assertEqual([self.digest(whole_run, number) for number in (1, 2)],
                             [self.digest(run, number) for number in (1, 2)])
            self.assertEqual(expected is not None, "lacks AMX" in moved.err, str(moved))

    def test_ranks_of_several_processors_agree(self):
        config, run = self.config("several")
        words = self.command("run", config, "--set", "model.compute=bfloat16")
        for processor, code in (("sse", 4), ("avx2", 0)):
            ranks = [["-n", "1", "-x", f"JFORGE_CPU={name}", *words] for name in ("amx_bf16", processor)]
            result = self.finish(self.start([MPIRUN, *ranks[0], ":", *ranks[1]]))
            self.assertEqual(code, result.code, str(result))
            if code:
                self.assertIn("JFORGE_CPU = sse", result.lines()[0])
        self.assertIsNone(self.sums(run))


class FinishedRun(EndToEndTest):
    evaluate = True

    def summary(self, run):
        return json.loads((run / "evaluation" / "summary.json").read_text(encoding="utf-8"))["models"]

    def test_other_settings_are_evaluated_and_another_type_is_exported(self):
        config, run = self.config("finished")
        self.jforge("run", config, ranks=2)
        self.assertEqual(4, self.summary(run)["base"]["gsm8k"]["jacobi"]["n"])
        again = self.jforge("run", config, "--set", "evaluate.limit=3", ranks=2)
        self.assertNotIn("train round", again.err)
        for model in ("base", "final"):
            self.assertEqual(3, self.summary(run)[model]["gsm8k"]["jacobi"]["n"])
        samples = run / "evaluation" / "base" / "gsm8k.jacobi.jsonl"
        written = samples.stat().st_mtime_ns
        self.jforge("run", config, "--set", "evaluate.limit=3", "--set", "model.export_as=bfloat16", ranks=2)
        tensors = tiny_model.read_safetensors(run / "model" / "model.safetensors")
        self.assertEqual({"BF16"}, {dtype for dtype, _, _ in tensors.values()})
        self.assertEqual(written, samples.stat().st_mtime_ns, "the base model's samples are current")

    def test_what_is_not_the_export_s_stays_in_the_model_s_folder(self):
        config, run = self.config("readme")
        self.jforge("run", config, ranks=2)
        (run / "model" / "README.md").write_text("mine", encoding="utf-8")
        for words in (("--set", "model.export_as=bfloat16"),):
            result = self.jforge("run", config, *words, ranks=2, expect=USAGE)
            self.assertIn("README.md", result.lines()[0])
        longer = config.read_text(encoding="utf-8").replace(
            "[train]", "[[rounds]]\nblock_size = 4\nnoise_window = 2\nsteps = 2\n[train]")
        config.write_text(longer, encoding="utf-8")
        result = self.jforge("run", config, "--accept-change", "rounds.3", ranks=2, expect=USAGE)
        self.assertNotIn("train round", result.err)
        self.assertEqual("mine", (run / "model" / "README.md").read_text(encoding="utf-8"))

    def test_figures_of_another_model_are_not_the_final_one_s(self):
        config, run = self.config("stale")
        self.jforge("run", config, ranks=2)
        self.assertIn("final", self.summary(run))
        third = "[[rounds]]\nblock_size = 4\nnoise_window = 2\nsteps = 2\n[train]"
        config.write_text(config.read_text(encoding="utf-8").replace("[train]", third), encoding="utf-8")
        self.jforge("run", config, "--accept-change", "rounds.3", "--set", "evaluate.tasks=[]", ranks=2)
        self.assertEqual(["base"], list(self.summary(run)))
        report = (run / "report.md").read_text(encoding="utf-8")
        self.assertNotIn("| final", report.split("## ")[1])
        self.jforge("verify", run)

    def test_a_link_that_leads_nowhere_is_found_before_the_work(self):
        for name, target in (("checkpoints", "far"), ("model", "away")):
            config, run = self.config(f"link-{name}")
            run.mkdir()
            (run / name).symlink_to(self.root / target)
            result = self.jforge("run", config, expect=4)
            self.assertIn(str(run / name), result.lines()[0])
            self.assertFalse((run / "round-1").exists())

    def test_a_round_added_later_ends_with_the_bytes_of_one_planned_from_the_start(self):
        third = "[[rounds]]\nblock_size = 4\nnoise_window = 2\nsteps = 2\n[train]"
        planned, planned_run = self.config("planned", (CONFIG + EVALUATE).replace("[train]", third))
        config, run = self.config("added")
        self.jforge("run", planned, ranks=2)
        self.jforge("run", config, ranks=2)
        before = self.summary(run)
        config.write_text(config.read_text(encoding="utf-8").replace("[train]", third), encoding="utf-8")
        self.assertIn("rounds.3.steps", self.jforge("run", config, ranks=2, expect=USAGE).lines()[0])
        added = self.jforge("run", config, "--accept-change", "rounds.3", ranks=2)
        for number in (1, 2):
            self.assertNotIn(f"train round {number}:", added.err)
        self.assertEqual((planned_run / "model" / "model.safetensors").read_bytes(),
                         (run / "model" / "model.safetensors").read_bytes())
        self.assertEqual(before["base"], self.summary(run)["base"])
        self.assertEqual(self.summary(planned_run)["final"]["gsm8k"]["jacobi"]["tpf"],
                         self.summary(run)["final"]["gsm8k"]["jacobi"]["tpf"])
        self.jforge("run", config, ranks=2)


class SlowCheckpoint(EndToEndTest):
    def first_step(self, name, faults, *settings):
        """Returns (run directory, result). Everything before training exists, so that each rank's publications are
        known."""
        config, run = self.config(name)
        self.jforge("import", config)
        self.jforge("generate", config, "--round", "1")
        return run, self.jforge("run", config, *settings, "--inject", f"interrupt@train:0:1,{faults}", ranks=2,
                                expect=75)

    def test_writing_a_checkpoint_for_longer_than_the_hang_limit_is_no_hang(self):
        """It takes 12 s, each step less than the limit."""
        run, _ = self.first_step("quick-checkpoint", "kill@nowhere:0:1")
        log = (run / "logs" / "rank_0000.log").read_text(encoding="utf-8")
        fsync = re.search(r'"checkpoint\.fsync", visit 1$.*?"publish\.fsync", visit (\d+)$', log,
                          re.DOTALL | re.MULTILINE)
        places = ["checkpoint.data:0:1", "checkpoint.fsync:0:1", f"publish.fsync:0:{fsync[1]}", "checkpoint.rename:0:1",
                  "checkpoint.manifest:0:1"]
        run, result = self.first_step("slow-checkpoint", ",".join(f"delay@{place}" for place in places),
                                      "--set", "run.hang_limit_seconds=10")
        self.assertEqual(len(places) + 1, result.err.count("acts now"), str(result))
        self.assertEqual([(1, 1)], self.checkpoint_steps(run))


class SlowAndFailingDisk(EndToEndTest):
    def test_a_slow_last_file_is_no_lost_rank(self):
        """The file takes longer than the other ranks may be silent."""
        config, run = self.config("slow")
        self.jforge("import", config, ranks=2)
        # The phase's last file; each delay is 3 s.
        delays = [f"delay@publish.{step}:0:4" for step in ("data", "fsync", "rename", "directory")]
        result = self.jforge("import", config, "--set", "run.heartbeat_limit_seconds=8", "--inject", ",".join(delays),
                             ranks=2)
        self.assertEqual(len(delays), result.err.count("acts now"), str(result))
        self.assertEqual("finished", self.status(run))

    def test_the_first_error_is_the_one_told(self):
        """The loss is NaN, and run.json cannot be written."""
        config, run = self.config("first")
        process = self.start(self.command("run", config, "--inject", "stop@train:0:1,nan@train:0:2"))
        self.wait_until_stopped(process)
        (run / "run.json").unlink()
        (run / "run.json").mkdir()
        process.send_signal(signal.SIGCONT)
        result = self.finish(process)
        self.assertEqual(5, result.code, str(result))
        self.assertIn("run.json does not say", result.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
