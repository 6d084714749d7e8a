#!/usr/bin/env python3
"""run_slurm.sbatch under a real Slurm of two nodes."""

import os
import shutil
import tempfile
import unittest

import slurm_cluster
from harness import BINARY, SOURCE, EndToEndTest

SCRIPT = SOURCE / "launch" / "scripts" / "run_slurm.sbatch"
# Root may start MPI; traffic stays on this machine.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_MCA_btl_tcp_if_include": "lo"}
SLOW_STEPS = ",".join(f"delay@train:0:{step}" for step in range(3, 7))


@unittest.skipIf(slurm_cluster.missing_programs(),
                 "Slurm is not installed (launch/scripts/setup.sh --cluster-tests)")
class Slurm(EndToEndTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Unix sockets need short paths.
        folder = tempfile.mkdtemp(prefix="jforge-slurm-")
        cls.cluster = slurm_cluster.SlurmCluster(folder)
        cls.addClassCleanup(shutil.rmtree, folder, True)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.cluster.start()

    def submit(self, name, *options, fault="", config=None, words=()):
        """`fault` is injected into the first start; `words` are jforge's."""
        path, run = config or self.config(name)
        binary = BINARY
        if fault:
            binary = self.root / f"{name}-jforge"
            binary.write_text('#!/bin/sh\n[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || set -- "$@" --inject ' + fault +
                              f'\nexec "{BINARY}" "$@"\n', encoding="utf-8")
            binary.chmod(0o755)
        folder = self.root / f"{name}-elsewhere"
        folder.mkdir()
        number = self.cluster.run(
            "sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--hint=multithread",
            "--time=10", *options, SCRIPT, os.path.relpath(path, folder), os.path.relpath(run, folder), *words,
            cwd=folder, environment={**ENVIRONMENT, "JFORGE": str(binary)}).strip()
        self.assertRegex(number, r"^\d+$")
        return number, run, folder / f"jforge-{number}.log"

    def wait_for_log(self, log, text, seconds=60):
        def holds():
            return log.exists() and text in log.read_text(encoding="utf-8", errors="replace")
        try:
            self.cluster.wait_until(holds, f"\"{text}\" in {log.name}", seconds)
        except TimeoutError as error:
            self.fail(f"{error}: {log.read_text(encoding='utf-8', errors='replace') if log.exists() else ''}")

    def wait_for_end(self, number, log, state, code, restarts, seconds=120):
        def ended():
            return self.cluster.job(number).get("JobState") in slurm_cluster.ENDED
        text = ""
        try:
            self.cluster.wait_until(ended, f"end of job {number}", seconds)
        except TimeoutError as error:
            text = str(error)
        job = self.cluster.job(number)
        if log.exists():
            text += log.read_text(encoding="utf-8", errors="replace")
        self.assertEqual((state, code), (job["JobState"], job["ExitCode"]), text)
        if restarts == "some":
            self.assertGreaterEqual(int(job["Restarts"]), 1, text)
        else:
            self.assertEqual(restarts, int(job["Restarts"]), text)
        return text

    def expect_same_end(self, run):
        self.assertEqual("finished", self.status(run))
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))

    def test_finishes_from_another_directory(self):
        number, run, log = self.submit("plain")
        text = self.wait_for_end(number, log, "COMPLETED", "0:0", 0)
        self.assertIn("on n[1-2]:", text)
        self.expect_same_end(run)

    def test_wrong_configuration_is_not_queued_again(self):
        config, run = self.config("typo", extra="[trian]\nlearning_rate = 1e-3\n")
        number, run, log = self.submit("typo", config=(config, run))
        text = self.wait_for_end(number, log, "FAILED", "2:0", 0)
        self.assertIn("trian", text)

    def test_warned_before_the_time_limit_it_continues(self):
        # Less than the delayed steps take: Slurm looks every half minute.
        steps = [*range(1, 7), *range(1, 6)]
        number, run, log = self.submit("warned", "--time=1", "--signal=B:USR2@45",
                                       fault=",".join(f"delay@train:0:{step}" for step in steps))
        text = self.wait_for_end(number, log, "COMPLETED", "0:0", "some", 180)
        # No status if warned before it listens.
        listened = "[start]" in text.split("ended with exit code 75")[0]
        self.assertIn(f"ended with exit code 75, status {'interrupted' if listened else ''}\n", text)
        self.assertNotIn("slurm-", " ".join(os.listdir(run / "logs")))
        self.expect_same_end(run)

    def test_after_a_killed_rank_it_continues(self):
        number, run, log = self.submit("killed", fault="kill@train:1:4")
        text = self.wait_for_end(number, log, "COMPLETED", "0:0", 1)
        self.assertIn("ended with exit code 137", text)
        self.expect_same_end(run)

    def test_an_array_generates_the_parts_of_a_round(self):
        config = self.config("array")
        self.jforge("import", config[0])
        number, run, log = self.submit("array", "--array=1-2", "--nodes=1", config=config, words=("--round", "1"),
                                       fault="kill@generate:0:3")
        for task in (1, 2):
            self.wait_for_end(f"{number}_{task}", log, "COMPLETED", "0:0", 1)
        number, run, log = self.submit("array-whole", config=config)
        self.assertRegex(self.wait_for_end(number, log, "COMPLETED", "0:0", 0), r"takes \d+ shards of parts")
        self.expect_same_end(run)

    def test_after_a_lost_node_it_continues(self):
        number, run, log = self.submit("lost", fault=SLOW_STEPS)
        self.wait_for_log(log, "acts now")
        self.cluster.lose_node("n2")
        self.wait_for_log(log, "queued again")
        self.cluster.start_node("n2")
        self.wait_for_end(number, log, "COMPLETED", "0:0", "some")
        self.expect_same_end(run)

    def test_cancelled_it_stops_at_a_boundary(self):
        number, run, log = self.submit("cancelled", fault=SLOW_STEPS)
        self.wait_for_log(log, "acts now")
        self.cluster.run("scancel", number)
        text = self.wait_for_end(number, log, "CANCELLED", "75:0", 0)
        self.assertIn("stopped by SIGTERM", text)
        self.assertEqual("interrupted", self.status(run))
        self.jforge("verify", run)
        self.jforge("run", self.root / "cancelled.toml", ranks=2)
        self.expect_same_end(run)


if __name__ == "__main__":
    unittest.main(verbosity=2)
