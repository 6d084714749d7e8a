#!/usr/bin/env python3
"""`jforge generate --part`: independent jobs that come, die and go make the trajectories of one job."""

import random
import shutil
import signal
import unittest

from harness import EndToEndTest

PARTS = 4


class Parts(EndToEndTest):
    def generate(self, config, part=None, ranks=1, number=1, inject=None):
        words = ["--part", f"{part}/{PARTS}"] if part else []
        words += ["--inject", inject] if inject else []
        return self.start(self.command("generate", config, "--round", number, *words, ranks=ranks))

    @staticmethod
    def shards(run, number):
        return {path.name for path in (run / f"round-{number}" / "trajectories").glob("lease-*.h5")}

    def shards_of_parts(self, run, number):
        return set.union(*(self.shards(part, number) for part in (run / "parts").iterdir()))

    def test_killed_parts_make_the_trajectories_of_one_job(self):
        expected = self.uninterrupted()
        config, run = self.config("parts")
        self.jforge("import", config)
        draw = random.Random(20261130)
        kills = 0
        for _ in range(7):
            jobs = []
            for part in range(1, PARTS + 1):
                ranks, place = draw.choice((1, 1, 2)), draw.choice(("generate", "generate.commit"))
                fault = f"kill@{place}:{draw.randrange(ranks)}:{1 if kills % 3 else draw.randint(1, 4)}"
                jobs.append(self.generate(config, part, ranks, inject=self.alone(fault, ranks)))
            for result in map(self.finish, jobs):
                killed = "injected fault kill@" in result.err
                self.assertEqual(killed, result.code != 0, str(result))
                kills += killed
        self.assertGreaterEqual(kills, 20)
        # The last part never comes, and the job that takes the others does its work.
        shutil.rmtree(run / "parts" / f"{PARTS}-of-{PARTS}")
        for part in range(1, PARTS):
            self.assertEqual(0, self.finish(self.generate(config, part)).code)
        self.jforge("generate", config, "--round", 1, ranks=2)
        self.assertEqual(self.digest(expected, 1), self.digest(run, 1))
        self.assertLess(self.shards_of_parts(run, 1), self.shards(run, 1))
        # A part that comes late changes nothing.
        self.assertEqual(0, self.finish(self.generate(config, PARTS)).code)
        self.jforge("train", config, "--round", 1, ranks=2)
        self.assertEqual(self.digest(expected, 1), self.digest(run, 1))
        # The next round's parts begin with the trained model.
        for part in range(1, PARTS + 1):
            self.assertEqual(0, self.finish(self.generate(config, part, number=2)).code)
        self.jforge("generate", config, "--round", 2)
        self.assertEqual(self.digest(expected, 2), self.digest(run, 2))
        self.assertEqual(self.shards_of_parts(run, 2), self.shards(run, 2))
        self.jforge("run", config, ranks=2)
        self.assertEqual(self.bytes_of(expected), self.bytes_of(run))
        self.jforge("verify", run)

    def test_what_cannot_be_a_part_is_refused(self):
        config, run = self.config("refused")
        words = ("generate", config, "--round", 1)
        self.assertIn("--part 3/2: give K/N with K from 1 to N", self.jforge(*words, "--part", "3/2", expect=2).lines()[0])
        self.assertIn("run jforge import first", self.jforge(*words, "--part", "1/2", expect=2).lines()[0])
        self.jforge("import", config)
        self.assertIn("run.seed", self.jforge(*words, "--part", "1/2", "--set", "run.seed=8", expect=2).lines()[0])
        delays = ",".join(f"delay@generate:0:{visit}" for visit in range(1, 1000))  # until the others have been tried
        first = self.generate(config, 1, inject=delays)
        self.wait_for_text(first, "delay@generate:0:1")
        for part, says in ((["--part", "1/4"], ""), (["--part", "2/3"], "part 1-of-4"), ([], "part 1-of-4")):
            self.assertIn("is in use by " + says, self.jforge(*words, *part, expect=4).lines()[0])
        first.send_signal(signal.SIGUSR2)
        self.assertEqual(75, self.finish(first).code)
        whole = self.generate(config, inject=delays)
        self.wait_for_text(whole, "delay@generate:0:1")
        self.assertIn("is in use by a job without --part", self.jforge(*words, "--part", "2/4", expect=4).lines()[0])
        whole.send_signal(signal.SIGUSR2)
        self.assertEqual(75, self.finish(whole).code)


if __name__ == "__main__":
    unittest.main()
