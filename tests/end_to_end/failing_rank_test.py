#!/usr/bin/env python3
"""NaN, a frozen rank, an exception, a silent exit: the job ends, names the rank and can be resumed."""

import os
import socket
import unittest

from harness import BINARY, CONFIG, EVALUATE, EndToEndTest

MPI_LIMIT = {"JFORGE_MPI_LIMIT_SECONDS": "15"}


class FailingRank(EndToEndTest):
    def fail_and_resume(self, name, fault, *settings, **options):
        """Fails long before the hang limit; returns (checkpoints after the failure, its result)."""
        config, run = self.config(name)
        result = self.jforge_with_fault(config, run, fault, *settings, **options)
        self.expect_no_processes()
        before = self.checkpoint_steps(run)
        self.jforge("run", config, ranks=2)
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))
        return before, result

    def test_nan_stops_all_and_is_never_saved(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                saved, result = self.fail_and_resume(f"nan-{rank}", f"nan@train:{rank}:3", "--set",
                                                     "checkpoint.every_steps=1")
                self.assertEqual(5, result.code, str(result))
                self.assertIn((1, 2), saved, "the step before was still being written")
                self.assertFalse([step for step in saved if step >= (1, 3)], saved)
                self.assertTrue(result.lines(), str(result))
                for line in result.lines():
                    self.assertRegex(line, rf"rank {rank}\b.*finite")

    def test_exception_names_its_rank(self):
        for place in ("generate:1:2", "train:1:3", "train.accumulate:0:5", "checkpoint.data:1:2",
                      "checkpoint.manifest:0:2"):
            with self.subTest(place=place):
                _, result = self.fail_and_resume("throw-" + place.replace(":", "-"), f"throw@{place}")
                self.assertEqual(70, result.code, str(result))
                rank = place.split(":")[1]
                self.assertRegex(result.lines()[0], rf"rank {rank} \(.*injected fault throw@{place}")

    def test_rank_that_cannot_give_up_its_step(self):
        """The others would wait for twice the hang limit."""
        for rank in (0, 1):
            with self.subTest(rank=rank):
                _, result = self.fail_and_resume(
                    f"cut-off-{rank}", f"throw@train.reduce:{rank}:9,throw@train.abandon:{rank}:1")
                self.assertEqual(70, result.code, str(result))
                self.assertRegex(result.lines()[0], rf"rank {rank} \(.*injected fault throw@train.reduce:{rank}:9")
                self.assertIn("failed, ends the job: ", result.err)

    def test_rank_whose_communication_fails(self):
        """The others would wait for twice the hang limit."""
        for rank in (0, 1):
            with self.subTest(rank=rank):
                _, result = self.fail_and_resume(f"communication-{rank}", f"throw@comm.operation:{rank}:9")
                self.assertEqual(70, result.code, str(result))
                self.assertRegex(result.lines()[0], rf"rank {rank} \(.*injected fault throw@comm.operation:{rank}:9")
                self.assertIn("failed, ends the job: ", result.err)

    def test_rank_that_is_wrong_from_the_start(self):
        _, result = self.fail_and_resume("wrong", "nan@check.ring:1:1")
        self.assertEqual(4, result.code, str(result))
        self.assertRegex(result.lines()[0], r"rank 0 \(.*receives other bytes")

    def test_frozen_rank_is_found(self):
        for place in ("train:1:3", "generate:1:2"):
            with self.subTest(place=place):
                _, result = self.fail_and_resume("stop-" + place.replace(":", "-"), f"stop@{place}", "--set",
                                                 "run.heartbeat_limit_seconds=8")
                self.assertEqual(70, result.code, str(result))
                self.assertIn(f"rank 1 is silent ({socket.gethostname()}); ", result.err)

    def test_frozen_coordinator_is_found(self):
        """It is found long before the hang limit."""
        for place in ("train:0:3", "generate:0:2"):
            with self.subTest(place=place):
                _, result = self.fail_and_resume("stop-" + place.replace(":", "-"), f"stop@{place}", "--set",
                                                 "run.heartbeat_limit_seconds=8")
                self.assertEqual(70, result.code, str(result))
                self.assertRegex(result.err, r"rank 0 \(host \S+, pid \d+\) is silent")

    def test_rank_frozen_before_or_after_the_phases_is_found(self):
        for place in ("identity", "close", "end"):
            for rank in (0, 1):
                with self.subTest(place=place, rank=rank):
                    _, result = self.fail_and_resume(f"stop-{place}-{rank}", f"stop@{place}:{rank}:1", "--set",
                                                     "run.heartbeat_limit_seconds=8", env={**os.environ, **MPI_LIMIT})
                    self.assertEqual(70, result.code, str(result))

    def test_rank_frozen_before_mpi_has_started_is_found(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                config, run = self.config(f"stop-first-{rank}")
                frozen = self.root / f"frozen-{rank}"
                frozen.write_text(f'#!/bin/sh\n[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" != {rank} ] || kill -STOP $$\n'
                                  f'exec {BINARY} "$@"\n', encoding="utf-8")
                frozen.chmod(0o755)
                result = self.finish(self.start(self.command("run", config, ranks=2, program=frozen),
                                                env={**os.environ, **MPI_LIMIT}))
                self.assertEqual(70, result.code, str(result))
                self.assertIn("in phase \"start MPI\"", result.out + result.err)
                self.expect_no_processes()
                self.assertFalse((run / "run.json").exists())

    def test_failed_rank_waits_for_the_others_without_a_deadline(self):
        """Its failure is known, so waiting is not a hang."""
        config, _ = self.config("failed-and-waiting")
        # Rank 1 freezes before rank 0 fails.
        faults = "stop@generate:1:1,throw@generate:0:1,delay@generate.lease:0:1,delay@generate.lease:0:2"
        result = self.jforge("run", config, "--inject", faults, "--set", "run.heartbeat_limit_seconds=15", ranks=2,
                             expect=70)
        self.assertRegex(result.err, r"failed, telling the other ranks: .*injected fault throw@generate:0:1")
        self.assertIn("rank 1 is silent", result.err)
        self.assertRegex(result.err, r"(?m)^ *0 .*wait for the other ranks")
        self.expect_no_processes()

    def test_a_failure_while_the_others_are_waited_for(self):
        """They wait in the evaluation's queue."""
        config, _ = self.config("waiting", CONFIG + EVALUATE)
        faults = "throw@phase evaluate base (waiting for other ranks):1:1"
        result = self.jforge("run", config, "--inject", faults, ranks=2, expect=70)
        self.assertRegex(result.lines()[0], r"rank 1 \(.*injected fault throw@phase evaluate base")

    def test_rank_that_leaves_without_a_word(self):
        self.fail_and_resume("exit0", "exit0@train:1:3")


if __name__ == "__main__":
    unittest.main(verbosity=2)
