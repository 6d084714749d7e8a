#!/usr/bin/env python3
"""A run that is hit by faults at random moments until it finishes ends with the bytes of an undisturbed one.
chaos_test.py [--rounds N] [--seed S]    N faults for each test (default 5)
Faults: SIGTERM or SIGUSR2 to mpirun, SIGKILL to a rank or to mpirun, SIGSTOP to a rank.
"""

import os
import random
import signal
import sys
import time
import unittest

from harness import EndToEndTest

ROUNDS = 5
SEED = 20250607
RANKS = 2


class Chaos(EndToEndTest):
    def setUp(self):
        super().setUp()
        os.environ["JFORGE_MPI_LIMIT_SECONDS"] = "20"  # before MPI has started or while it ends
        self.addCleanup(os.environ.pop, "JFORGE_MPI_LIMIT_SECONDS")

    def quiet_seconds(self):
        if not hasattr(type(self), "_quiet_seconds"):
            config, _ = self.config("timed")
            type(self)._quiet_seconds = self.jforge("run", config, ranks=RANKS).seconds
        return self._quiet_seconds

    def strike(self, config, run, rng, kind):
        """Returns the result and whether the run was hit."""
        process = self.start(self.command("run", config, "--set", "run.heartbeat_limit_seconds=10", ranks=RANKS))
        while len(self.ranks_of(process)) < RANKS and process.poll() is None:
            time.sleep(0.01)
        # To cover the run's last moments, too.
        end = time.monotonic() + rng.uniform(0.0, self.quiet_seconds())
        while time.monotonic() < end and process.poll() is None:
            time.sleep(0.01)
        struck = process.poll() is None
        if struck:
            number, target = {"term": (signal.SIGTERM, process.pid), "usr2": (signal.SIGUSR2, process.pid),
                              "kill-job": (signal.SIGKILL, process.pid), "kill": (signal.SIGKILL, None),
                              "stop": (signal.SIGSTOP, None)}[kind]
            if target is None:
                ranks = self.ranks_of(process)
                if not ranks:  # they have just ended
                    return self.finish(process), False
                target = rng.choice(ranks)
            try:
                os.kill(target, number)
            except ProcessLookupError:
                struck = False
        result = self.finish_struck(process, run)
        self.expect_no_processes(30)
        return result, struck

    def finish_struck(self, process, run):
        """Accepts two ends: Open MPI 4.1's mpirun may hang if a rank dies at the start, and a rank may freeze after
        MPI's end."""
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        left = self.ranks_of(process)
        unseen = process.poll() is None and len(left) < RANKS
        if unseen:
            for pid in left:
                self.assertEqual("finished", self.status(run))
                os.kill(pid, signal.SIGKILL)
            process.kill()
        result = self.finish(process)
        if unseen:
            result.code = "frozen at its end" if left else "mpirun hung"
        return result

    def chaos(self, name, kinds):
        rng = random.Random(f"{SEED} {name}")
        done = 0
        runs = 0
        codes = {}
        while done < ROUNDS:
            runs += 1
            config, run = self.config(f"{name}-{runs}")
            for attempt in range(ROUNDS + 1):
                kind = rng.choice(kinds)
                result, struck = self.strike(config, run, rng, kind)
                done += struck
                codes[kind, result.code] = codes.get((kind, result.code), 0) + 1
                if struck and kind == "usr2":
                    # At its very start and end, the signal kills the program or has no effect.
                    self.assertIn(result.code, (75, 0, 128 + signal.SIGUSR2, -signal.SIGUSR2, "mpirun hung"),
                                  str(result))
                if (run / "run.json").exists():
                    self.jforge("verify", run)
                if result.code == 0 or done >= ROUNDS:
                    break
            self.jforge("run", config, ranks=RANKS)
            whole = self.uninterrupted(RANKS)
            self.assertEqual(self.bytes_of(whole), self.bytes_of(run), f"after {codes}")
            self.assertEqual(self.losses(whole), self.losses(run))
            self.assertEqual([], sorted(run.rglob(".tmp-*")))
            self.assertEqual("finished", self.status(run))
        print(f"{name}: {done} strikes in {runs} runs; (strike, exit code): times {codes}", flush=True)

    def test_signals_to_mpirun(self):
        self.chaos("signals", ("term", "usr2"))

    def test_killed_and_frozen(self):
        self.chaos("killed", ("kill", "kill-job", "stop", "term"))


if __name__ == "__main__":
    words = sys.argv[1:]
    while words and words[0] in ("--rounds", "--seed"):
        if words[0] == "--rounds":
            ROUNDS = int(words[1])
        else:
            SEED = int(words[1])
        words = words[2:]
    sys.argv[1:] = words
    unittest.main(verbosity=2)
