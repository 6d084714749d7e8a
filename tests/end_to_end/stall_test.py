#!/usr/bin/env python3
"""A main thread stalls in any phase: the job ends with 70 and names that rank, although heartbeats go on."""

import concurrent.futures
import os
import re
import shutil
import unittest

from harness import EndToEndTest

LIMIT_SECONDS = 10
MPI_LIMIT = {"JFORGE_MPI_LIMIT_SECONDS": "20"}  # MPI's own start must keep it, too
MPI_PHASES = ("phase start", "phase read the configuration", "phase end MPI", "phase ended")
AT_ONCE = 4  # Stalled jobs only sleep.


class Stall(EndToEndTest):
    evaluate = True

    def phases_of_a_job(self):
        """Returns every phase of a job, in order of first visits."""
        config, run = self.config("phases")
        self.jforge("run", config, "--inject", "kill@nowhere:0:1,kill@nowhere:1:1", ranks=2)
        found = {}
        for log in sorted((run / "logs").iterdir()):
            text = log.read_text(encoding="utf-8")
            found.update(dict.fromkeys(re.findall(r'fault place "phase ([^"]+)", visit', text)))
        # The first ones precede the log file.
        return ["start", "read the configuration", "open the run directory", *found]

    def stall(self, place, rank, phase=None):
        """Returns an error text or None. The other rank is delayed, so that both get work."""
        name = re.sub(r"\W", "-", place) + f"-{rank}"
        config, run = self.config(name)
        fault = f"stall@{place}:{rank}:1"
        faults = self.alone(fault, visit=2 if "evaluate final" in place else 1)
        if faults == fault:
            faults += f",delay@{place}:{1 - rank}:1"
        command = self.command("run", config, "--set", f"run.hang_limit_seconds={LIMIT_SECONDS}", "--set",
                               f"run.heartbeat_limit_seconds={LIMIT_SECONDS}", "--inject", faults, ranks=2)
        result = self.finish(self.start(command, env={**os.environ, **(MPI_LIMIT if place in MPI_PHASES else {})}))
        shutil.rmtree(run, ignore_errors=True)
        phase = re.escape(phase or place.removeprefix("phase "))
        hangs = re.findall(r"hang: rank (\d) \(", result.err)
        if result.code != 70 or hangs != [str(rank)] or not re.search(
                rf"hang: rank {rank} \(\S+, pid \d+\) stands still in phase \"{phase}\"", result.err):
            return f"{place}, rank {rank}: {result}"
        return None

    def stall_everywhere(self, cases):
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            wrong = [text for text in pool.map(lambda case: self.stall(*case), cases) if text]
        self.assertFalse(wrong, "\n".join(wrong))
        self.expect_no_processes()

    def test_a_writer_with_nothing_left_to_decode(self):
        """rank 0's display of waiting is not progress."""
        few = [word for key, value in (("rounds.1.steps", 1), ("train.batch_samples", 3), ("generate.prompts_per_lease", 1),
                                       ("run.hang_limit_seconds", LIMIT_SECONDS))
               for word in ("--set", f"{key}={value}")]
        for ranks, faults, hangs in ((1, "stall@generate.commit:0:1", 0),
                                     (2, "stall@publish.rename:1:1,delay@generate.lease:0:1,delay@generate.lease:0:2", 1)):
            with self.subTest(ranks=ranks):
                config, _ = self.config(f"writer-{ranks}")
                result = self.jforge("run", config, *few, "--inject", faults, ranks=ranks, expect=70, timeout=90)
                self.assertRegex(result.err, rf"hang: rank {hangs} \(\S+, pid \d+\) stands still in phase \"generate round 1")
        self.expect_no_processes()

    def test_in_every_phase(self):
        phases = self.phases_of_a_job()
        for name in ("import", "generate round 1", "generation report", "load the weights", "train round 1",
                     "checkpoint", "export", "evaluate base", "report", "close", "end MPI"):
            self.assertIn(name, phases)
        # In some phases rank 0 works alone.
        self.stall_everywhere([(f"phase {phase}", number % 2) for number, phase in enumerate(phases)])

    def test_within_a_phase(self):
        self.stall_everywhere([
            ("identity", 0, "open the run directory"),
            ("identity", 1, "open the run directory"),
            ("generate.commit", 1, "generate round 1"),
            ("train.accumulate", 1, "train round 1"),
            ("checkpoint.data", 1, "checkpoint"),  # the writing thread, for which the main thread waits
            ("checkpoint.manifest", 0, "checkpoint"),
            ("evaluate", 1, "evaluate base gsm8k ar"),
            ("end", 1, "close"),
        ])


if __name__ == "__main__":
    unittest.main(verbosity=2)
