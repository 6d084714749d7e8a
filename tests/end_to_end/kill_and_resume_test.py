#!/usr/bin/env python3
"""SIGKILL of any rank, anywhere: the next start ends with the bytes of an uninterrupted run.
kill_and_resume_test.py [--points N]    N seeded points for each of the three places, and for each of the stages
                                        that shard gradients (default 2)
"""

import json
import random
import shutil
import sys
import unittest

from harness import EndToEndTest

RANKS = 2
POINTS = 2
SEED = 20240607


def generation_points(count):
    rng = random.Random(SEED)
    choices = [("generate", rank, visit) for rank in range(RANKS) for visit in range(1, 7)]
    choices += [("generate.commit", rank, visit) for rank in range(RANKS) for visit in (1, 2)]
    return rng.sample(choices, count)


def training_points(count):
    rng = random.Random(SEED + 1)
    choices = [("train", rank, step) for rank in range(RANKS) for step in range(1, 7)]
    choices += [("train.accumulate", rank, visit) for rank in range(RANKS) for visit in range(1, 12)]
    return rng.sample(choices, count)


def reduction_points(count, stage):
    rng = random.Random(SEED + 10 + stage)
    # 11 steps of two micro-batches with four groups.
    choices = [("train.reduce", rank, visit) for rank in range(RANKS) for visit in range(1, 11 * 2 * 4 + 1)]
    choices += [("train.accumulate", rank, visit) for rank in range(RANKS) for visit in range(1, 11 * 2 + 1)]
    return rng.sample(choices, count)


def checkpoint_points(count):
    rng = random.Random(SEED + 2)
    # Six checkpoints; only rank 0 writes manifests and prunes.
    stages = [("checkpoint.data", 2), ("checkpoint.fsync", 2), ("checkpoint.rename", 2), ("checkpoint.manifest", 1),
              ("checkpoint.prune", 1), ("publish.data", 1), ("publish.fsync", 1), ("publish.rename", 1),
              ("publish.directory", 1)]
    rng.shuffle(stages)
    points = []
    while len(points) < count:
        place, ranks = stages[len(points) % len(stages)]
        point = (place, rng.randrange(ranks), rng.randint(1, 4))
        if point not in points:
            points.append(point)
    return points


class KilledRun(EndToEndTest):
    def kill_and_resume(self, name, point, words, ranks=RANKS):
        place, rank, visit = point
        fault = f"kill@{place}:{rank}:{visit}"
        config, run = self.config(name)
        self.jforge_with_fault(config, run, fault, *words, ranks=ranks)
        self.expect_no_processes()
        if (run / "run.json").exists():
            self.jforge("verify", run)
        self.jforge("run", config, *words, ranks=ranks)
        whole = self.uninterrupted(ranks, *words)
        self.assertEqual(self.bytes_of(whole), self.bytes_of(run), f"final weights after {fault}")
        self.assertEqual([self.digest(whole, number) for number in (1, 2)],
                         [self.digest(run, number) for number in (1, 2)], f"trajectories after {fault}")
        self.assertEqual(self.losses(whole), self.losses(run), f"losses after {fault}")
        self.assertEqual([], sorted(run.rglob(".tmp-*")), f"temporary files after {fault}")
        self.assertEqual("finished", self.status(run))
        self.jforge("verify", run)

    def each(self, points, *words):
        for point in points:
            with self.subTest(point=point, words=words):
                type(self).runs = getattr(self, "runs", 0) + 1
                self.kill_and_resume(f"{point[0]}-{self.runs}", point, words)


class KillAndResume(KilledRun):
    def test_during_generation(self):
        self.each(generation_points(POINTS))

    def test_in_a_long_lease(self):
        config, run = self.config("long-lease")
        faults = ",".join([*(f"delay@generate:0:{visit}" for visit in (1, 2, 3)), "kill@generate:0:5"])
        self.jforge_with_fault(config, run, faults, "--set", "generate.batch_prompts=1", "--set",
                               "generate.prompts_per_lease=24", ranks=1)
        inspected = self.jforge("inspect", run / "round-1" / "trajectories").out
        self.assertRegex(inspected, r"records [23] in [12] shards?, 0 damaged")
        self.jforge("run", config)
        self.assertEqual(self.digest(self.uninterrupted(RANKS), 1), self.digest(run, 1))

    def test_during_a_training_step(self):
        self.each(training_points(POINTS))

    def test_during_a_checkpoint_write(self):
        self.each(checkpoint_points(POINTS))


class ShardedTraining(KilledRun):
    TOKENS = 128

    def words(self, stage):
        return "--set", f"train.zero_stage={stage}", "--set", f"train.tokens_per_rank={self.TOKENS}"

    def test_killed_between_reductions(self):
        for stage in (2, 3):
            self.each(reduction_points(POINTS, stage), *self.words(stage))
            whole = self.uninterrupted(RANKS, *self.words(stage))
            for line in (whole / "metrics.1.jsonl").read_text(encoding="utf-8").splitlines():
                self.assertGreater(json.loads(line)["tokens"], RANKS * self.TOKENS, "more than one micro-batch")

    def test_every_kill_at_another_stage_and_rank_count(self):
        config, run = self.config("wandering")
        for ranks, stage, place in ((2, 2, "train.reduce:1:21"), (4, 3, "train.reduce:2:9"),
                                    (3, 0, "train.accumulate:0:3"), (1, 2, "train.reduce:0:30")):
            self.jforge_with_fault(config, run, f"kill@{place}", *self.words(stage), ranks=ranks)
        self.jforge("run", config, *self.words(3), ranks=3)
        self.assertEqual("finished", self.status(run))
        self.assert_close_models(self.uninterrupted(RANKS, *self.words(2)), run)


class FrozenTeacher(KilledRun):
    """The teacher has its round's initial weights, also after a resume."""

    FROZEN = ("--set", "train.teacher=frozen")

    # Rank 1's 11th micro-batch is in round 2's last step, after a checkpoint.
    LATE = "kill@train.accumulate:1:11"

    def test_killed_in_either_round_and_resumed_at_another_stage(self):
        whole = self.uninterrupted(RANKS, *self.FROZEN)
        for number, (fault, stage) in enumerate([("kill@train:0:5", 3), (self.LATE, 0)]):
            config, run = self.config(f"frozen-{number}")
            self.jforge_with_fault(config, run, fault, *self.FROZEN, ranks=RANKS)
            result = self.jforge("run", config, *self.FROZEN, "--set", f"train.zero_stage={stage}", ranks=RANKS)
            self.assertRegex(result.err, f"continuing from round-{number + 1}-step-0000000[24]")
            self.assertEqual(self.bytes_of(whole), self.bytes_of(run), fault)
            self.assertEqual(self.losses(whole), self.losses(run), fault)

    def test_what_the_round_began_with_is_needed_and_nothing_else_is_taken(self):
        config, run = self.config("frozen-lost")
        self.jforge_with_fault(config, run, self.LATE, *self.FROZEN, ranks=RANKS)
        beginning = run / "checkpoints" / "round-1-step-00000006"
        manifest = (beginning / "manifest.json").read_bytes()
        shutil.move(beginning, run / "elsewhere")
        result = self.jforge("run", config, *self.FROZEN, expect=3)
        self.assertIn("the final checkpoint of round 1 is gone", result.lines()[0])
        other, _ = self.config("frozen-lost-other")
        self.jforge("run", other, *self.FROZEN, "--set", "run.seed=8", ranks=RANKS)
        shutil.copytree(self.root / "frozen-lost-other" / "checkpoints" / beginning.name, beginning)
        self.assertNotEqual(manifest, (beginning / "manifest.json").read_bytes())
        result = self.jforge("run", config, *self.FROZEN, expect=3)
        self.assertIn("round 2 began with other weights", result.lines()[0])

    def test_a_plan_counts_its_memory(self):
        config, _ = self.config("frozen-plan")
        plan = self.jforge("run", config, "--dry-run", *self.FROZEN).out
        self.assertRegex(plan, r"optimizer [0-9.]+ MB, teacher [0-9.]+ MB, communication")
        self.assertNotIn("teacher", self.jforge("run", config, "--dry-run").out)


class CarriedOptimizerState(EndToEndTest):
    CARRY = ("--set", "rounds.2.optimizer=carry")

    @staticmethod
    def updates(run):
        manifest = json.loads((run / "checkpoints" / "round-2-step-00000005" / "manifest.json").read_text("utf-8"))
        return manifest["optimizer_updates"]

    def test_it_reaches_the_next_round_and_survives_a_kill(self):
        fresh = self.uninterrupted(RANKS)
        config, whole = self.config("carry")
        self.jforge("run", config, *self.CARRY, ranks=RANKS)
        self.assertEqual((5, 6 + 5), (self.updates(fresh), self.updates(whole)))
        both = [{step: loss for (number, step), loss in self.losses(run).items() if number == 1}
                for run in (fresh, whole)]
        self.assertEqual(both[0], both[1], "losses of round 1")
        self.assertNotEqual(self.bytes_of(fresh), self.bytes_of(whole))
        # Rank 1's 7th micro-batch is round 2's first; the 9th follows a checkpoint of round 2.
        for visit in (7, 9):
            with self.subTest(visit=visit):
                config, run = self.config(f"carry-{visit}")
                self.jforge_with_fault(config, run, f"kill@train.accumulate:1:{visit}", *self.CARRY, ranks=RANKS)
                self.jforge("run", config, *self.CARRY, ranks=RANKS)
                self.assertEqual(self.bytes_of(whole), self.bytes_of(run))
                self.assertEqual(self.losses(whole), self.losses(run))

    def test_the_first_round_has_nothing_to_carry(self):
        config, _ = self.config("carry-first")
        result = self.jforge("run", config, "--set", "rounds.1.optimizer=carry", expect=2)
        self.assertIn("needs a round before it", result.err)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--points":
        POINTS = int(sys.argv[2])
        del sys.argv[1:]
    unittest.main(verbosity=2)
