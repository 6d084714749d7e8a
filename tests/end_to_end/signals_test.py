#!/usr/bin/env python3
"""SIGUSR2 to mpirun ends with exit 75 after a commit; after SIGTERM the last commit is intact."""

import os
import random
import re
import shutil
import signal
import time
import unittest

from harness import EndToEndTest


class SignalTest(EndToEndTest):
    def expect_same_end(self, config, run):
        self.jforge("run", config, ranks=2)
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))
        self.assertEqual(self.losses(self.uninterrupted(2)), self.losses(run))
        self.assertEqual("finished", self.status(run))

    def signalled(self, config, places, number):
        """Sends the signal while a rank sleeps at one of `places`."""
        faults = ",".join(f"delay@{place}" for place in places.split())
        process = self.start(self.command("run", config, "--inject", faults, ranks=2))
        self.wait_for_text(process, "acts now")
        process.send_signal(number)
        return self.finish(process)

    def expect_finished_are_kept(self, run):
        """Compares the shards with what the ranks say; returns the number of prompts."""
        logs = "".join(path.read_text(encoding="utf-8") for path in (run / "logs").glob("rank_*.log"))
        finished = sum(map(int, re.findall(r"rank \d+: (\d+) prompts, ", logs)))
        self.jforge("verify", run)
        self.assertIn(f" records {finished} in ", self.jforge("inspect", run / "round-1" / "trajectories").out)
        return finished


class SignalToMpirun(SignalTest):
    STEPS = " ".join(f"train:0:{step}" for step in range(3, 7))
    PLACES = {"generation": f"generate:0:1 generate:1:1 {STEPS}", "training": STEPS}

    def test_usr2_commits_and_says_so(self):
        checkpoints = " ".join(f"checkpoint.data:1:{visit}" for visit in range(3, 6))
        for name, places in {**self.PLACES, "checkpoint": checkpoints}.items():
            with self.subTest(name):
                config, run = self.config(f"usr2-{name}")
                result = self.signalled(config, places, signal.SIGUSR2)
                self.assertEqual(75, result.code, str(result))
                self.assertEqual("interrupted", self.status(run))
                self.expect_no_processes()
                self.jforge("verify", run)
                self.expect_same_end(config, run)

    def test_usr2_in_training_saves_the_step_it_stopped_after(self):
        config, run = self.config("usr2-step")
        self.jforge("run", config, "--inject", "interrupt@train:1:3", ranks=2, expect=75)
        self.assertIn((1, 3), self.checkpoint_steps(run))
        self.assertEqual(3, len(self.losses(run)), "no step after the one that saw the signal")
        self.expect_same_end(config, run)

    def test_term_leaves_the_last_commit_intact(self):
        for name, places in self.PLACES.items():
            with self.subTest(name):
                config, run = self.config(f"term-{name}")
                result = self.signalled(config, places, signal.SIGTERM)
                self.assertNotEqual(0, result.code, str(result))
                self.expect_no_processes()
                self.jforge("verify", run)
                self.expect_same_end(config, run)


class SignalInGeneration(SignalTest):
    def test_a_stop_keeps_every_finished_prompt(self):
        for ranks, place in ((1, "0:2"), (2, "1:1"), (4, "2:1")):
            for seconds in (0, 20):
                with self.subTest(ranks=ranks, seconds=seconds):
                    config, run = self.config(f"kept-{ranks}-{seconds}")
                    words = ("--set", f"run.stop_seconds={seconds}", "--set", "generate.prompts_per_lease=8")
                    self.jforge_with_fault(config, run, f"interrupt@generate:{place}", *words, ranks=ranks, expect=75)
                    self.assertIn(self.expect_finished_are_kept(run), range(1, 24))
                    self.jforge("run", config, "--set", "run.stop_seconds=3", ranks=ranks)
                    self.assertEqual(self.digest(self.uninterrupted(2), 1), self.digest(run, 1))

    def test_a_stop_ends_in_time_though_answers_do_not(self):
        config, run = self.config("endless")
        model = shutil.copytree(self.model, self.root / "endless-model")
        path = model / "config.json"
        text = path.read_text(encoding="utf-8").replace('"max_position_embeddings": 256',
                                                        '"max_position_embeddings": 90000')
        path.write_text(text, encoding="utf-8")
        words = [config, "--set", f'model.source="{model}"', "--set", "run.stop_seconds=2", "--set",
                 "generate.max_new_tokens=60000", "--set", "train.tokens_per_rank=200000"]
        self.jforge("import", *words)
        process = self.start(self.command("generate", *words, "--round", "1", ranks=2))
        self.wait_for_text(process, "[generate round 1] begins")
        time.sleep(2)
        process.send_signal(signal.SIGUSR2)
        begin = time.monotonic()
        result = self.finish(process)
        self.assertEqual(75, result.code, str(result))
        self.assertGreater(time.monotonic() - begin, 1.9, "the running answers had their time")
        self.assertLess(time.monotonic() - begin, 12, str(result))
        self.assertIn("stopping: 3 running answers have 2 s to finish", result.err)
        self.assertIn("stopped: 3 answers were not finished and are dropped", result.err)


class StopByTheClock(SignalTest):
    def delayed(self, place, number):
        return "--inject", ",".join(f"delay@{place}:0:{visit}" for visit in range(1, number + 1))

    def test_generation_stops_before_the_slurm_job_ends(self):
        config, run = self.config("slurm-end")
        for end, code in ((10, 75), (-8, 0)):
            environment = {**os.environ, "SLURM_JOB_END_TIME": str(int(time.time()) + end)}
            slow = (*self.delayed("generate", 24), "--set", "generate.batch_prompts=1") if end > 0 else ()
            result = self.jforge("run", config, *slow, env=environment, expect=code)
            self.assertIn("stops by itself at 20" if end > 0 else "is ignored: it is not a future time", result.err)
            if end > 0:
                self.assertLess(result.seconds, end)
                self.assertIn(self.expect_finished_are_kept(run), range(1, 24))
        self.assertEqual(self.digest(self.uninterrupted(2), 1), self.digest(run, 1))

    def test_training_has_the_time_of_its_last_step_and_checkpoint(self):
        config, run = self.config("stop-at")
        words = [*self.delayed("train", 14), "--set", "rounds.1.steps=14", "--stop-at"]
        result = self.jforge("run", config, *words, "+64", expect=75)
        self.assertGreater(result.seconds, 30, "the first half is the job's")
        self.assertLess(result.seconds, 50, "most of half a minute is left")
        self.assertEqual((1, len(self.losses(run))), self.checkpoint_steps(run)[-1])
        for wrong in ("+0", "12:00", "2020-01-01T00:00:00Z", "2040-02-30T00:00:00Z"):
            self.assertIn("--stop-at: must be a future time", "".join(self.jforge("run", config, "--stop-at", wrong,
                                                                                    expect=2).lines()))


class SignalAnywhere(SignalTest):
    def test_usr2_to_one_rank_of_any_phase_stops_all(self):
        for place in ("generate:0:1", "generate.commit:1:1", "train.accumulate:0:4", "checkpoint.manifest:0:2",
                      "publish.rename:0:1"):
            with self.subTest(place=place):
                config, run = self.config("one-" + place.replace(":", "-").replace(" ", "-"))
                self.jforge_with_fault(config, run, f"interrupt@{place}", expect=75)
                self.assertEqual("interrupted", self.status(run))
                self.expect_same_end(config, run)

    def test_usr2_again_and_again(self):
        config, run = self.config("again")
        for step in (1, 2, 4, 5):
            self.jforge("run", config, "--inject", f"interrupt@train:0:{step}", ranks=2, expect=75)
        self.expect_same_end(config, run)

    def test_term_at_any_time(self):
        config, run = self.config("any-time")
        rng = random.Random(5)
        for _ in range(4):
            process = self.start(self.command("run", config, ranks=2))
            # Open MPI 4.1's mpirun can hang if signalled earlier.
            while len(self.ranks_of(process)) < 2 and process.poll() is None:
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 1.0))
            process.send_signal(signal.SIGTERM)
            self.finish(process)
            self.expect_no_processes()
        self.expect_same_end(config, run)


class SignalInEvaluation(SignalTest):
    evaluate = True

    def test_samples_are_the_same_after_an_interruption(self):
        whole = self.uninterrupted(2)
        config, run = self.config("evaluate")
        self.jforge_with_fault(config, run, "interrupt@evaluate:1:1", expect=75)
        self.assertEqual("interrupted", self.status(run))
        self.jforge_with_fault(config, run, "kill@evaluate:0:1")
        self.jforge("run", config, ranks=2)
        for name in ("base/gsm8k.ar.jsonl", "base/gsm8k.jacobi.jsonl", "final/gsm8k.ar.jsonl",
                     "final/gsm8k.jacobi.jsonl"):
            self.assertEqual((whole / "evaluation" / name).read_bytes(), (run / "evaluation" / name).read_bytes(), name)
        self.assertTrue((run / "report.md").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
