#!/usr/bin/env python3
"""Any system call on the run's files fails (EIO, ENOSPC, EINTR, ESTALE, a short write): publishing stays atomic, only
durable files are reported as saved, and the next start ends with the bytes of an undisturbed run.
io_fault_test.py [--points N] [TEST...]    N seeded calls for each kind of fault (default 3)
JFORGE_IO_SHIM names the preloaded library (tests/support/io_fault_shim.c); ctest sets it.
"""

import os
import random
import re
import sys
import unittest

from harness import EndToEndTest

SHIM = os.environ.get("JFORGE_IO_SHIM", "")
POINTS = 3
SEED = 20250311
ENVIRONMENT = 4


class PreloadedTest(EndToEndTest):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(SHIM):
            raise RuntimeError("JFORGE_IO_SHIM must name the preloaded library")
        super().setUpClass()

    def environment(self, run, **settings):
        return {**os.environ, "LD_PRELOAD": SHIM, "JFORGE_IO_ROOT": f"{run}/", **settings}

    @staticmethod
    def counted(path):
        """Returns {call: count} of a run."""
        return {name: int(count) for name, count in map(str.split, path.read_text(encoding="utf-8").splitlines())}


class IoFault(PreloadedTest):
    def counts(self):
        if not hasattr(type(self), "_counts"):
            config, run = self.config("counted")
            path = self.root / "counts"
            self.jforge("run", config, env=self.environment(run, JFORGE_IO_COUNT=str(path)))
            type(self)._counts = self.counted(path)
        return self._counts

    def points(self, call, salt):
        """Returns seeded call numbers, with the first and the last."""
        count = self.counts()[call]
        self.assertGreater(count, 20, f"the run makes hardly any {call}: is the library preloaded?")
        inner = random.Random(f"{SEED} {call} {salt}").sample(range(2, count), max(1, POINTS - 2))
        return [1, *sorted(inner), count][:max(POINTS, 2)]

    def with_fault(self, name, fault, expect):
        """A run may end before the fault, because progress and lock are timed; then another fails at its last call."""
        config, run = self.config(name)
        path = self.root / f"{name}.counts"
        result = self.jforge("run", config, expect=None,
                             env=self.environment(run, JFORGE_IO_FAULT=fault, JFORGE_IO_COUNT=str(path)))
        if "io fault: " not in result.err:
            self.assertEqual(0, result.code, str(result))
            call, number, *rest = fault.split(":")
            made, asked = self.counted(path)[call], int(number.removesuffix("+"))
            self.assertTrue(len(rest) == 1 and 0 < made < asked, f"the fault {fault} never acted in {made} calls: {result}")
            number = number.replace(str(asked), str(made))
            return self.with_fault(f"{name}-again", ":".join([call, number, *rest]), expect)
        if expect is not None:
            self.assertEqual(expect, result.code, str(result))
        return config, run, result

    def expect_quiet_end(self, config, run):
        """The next start repairs unpublished files."""
        if (run / "run.json").exists():
            self.jforge("verify", run)
        self.jforge("run", config)
        self.assertEqual(self.bytes_of(self.uninterrupted(1)), self.bytes_of(run))
        self.assertEqual(self.losses(self.uninterrupted(1)), self.losses(run))
        self.assertEqual([], sorted(run.rglob(".tmp-*")))
        self.assertEqual("finished", self.status(run))

    def failing(self, call, error, reason, repeats=""):
        for number in self.points(call, error):
            with self.subTest(call=call, error=error, number=number):
                name = f"{call}-{error}{'-on' if repeats else ''}-{number}"
                config, run, result = self.with_fault(name, f"{call}:{number}{repeats}:{error}", None)
                self.assertNotIn("terminate called", result.err)
                # Harmless: the lock's refresh, removing old checkpoints, showing progress, keeping the peak.
                failed = set(re.findall(r"^io fault: \S+ number \d+ on (.*) fails now$", result.err, re.MULTILINE))
                if result.code == 0 and failed != {f"{run}/lock"}:
                    allowed = (
                        "old checkpoints stay|cannot write the run's progress"
                        "|cannot save the measured peak"
                    )
                    self.assertRegex(result.err, f"warning .*({allowed}): .*{re.escape(str(run))}.*{reason}")
                elif result.code != 0:
                    self.assertEqual(ENVIRONMENT, result.code, str(result))
                    self.assertEqual(1, len(result.lines()), str(result))
                    self.assertIn(reason, result.lines()[0])
                    self.assertIn(str(run), result.lines()[0])
                self.expect_quiet_end(config, run)

    def healed(self, call, error):
        for number in self.points(call, error):
            with self.subTest(call=call, error=error, number=number):
                _, run, _ = self.with_fault(f"{call}-{error}-{number}", f"{call}:{number}:{error}", 0)
                self.assertEqual(self.bytes_of(self.uninterrupted(1)), self.bytes_of(run))
                self.assertEqual(self.losses(self.uninterrupted(1)), self.losses(run))

    def test_write_fails(self):
        self.failing("write", "EIO", "Input/output error")

    def test_disk_is_full_from_some_write_on(self):
        self.failing("write", "ENOSPC", "No space left", repeats="+")

    def test_fsync_fails(self):
        self.failing("fsync", "EIO", "Input/output error")

    def test_rename_fails(self):
        self.failing("rename", "EIO", "Input/output error")

    def test_what_cannot_be_read_now_is_not_damaged(self):
        """HDF5, a stream or hashing reads it."""
        for number in self.points("read", "EIO"):
            with self.subTest(number=number):
                config, run, result = self.with_fault(f"read-{number}", f"read:{number}:EIO", None)
                self.assertIn(result.code, (0, ENVIRONMENT), str(result))
                self.assertEqual([], sorted(run.rglob("*.damaged")), str(result))
                self.expect_quiet_end(config, run)

    def test_interrupted_calls_are_made_again(self):
        for call in ("write", "fsync", "open"):
            self.healed(call, "EINTR")

    def test_short_writes_are_completed(self):
        self.healed("write", "SHORT")

    def test_every_kind_of_file_says_that_its_write_failed(self):
        """HDF5 writes a dataset's last chunk at close."""
        for text in ("lock", "run.json", "journal", "metrics.1.jsonl", ".tmp-prompts.h5", "trajectories/.tmp-", ".tmp-shard-",
                     "manifest.json", "model.safetensors"):
            for number in (1, 2, 7) if "h5" in text or "tmp" in text else (1,):
                with self.subTest(text=text, number=number):
                    name = f"file-{number}-{text.strip('.').replace('/', '-')}"
                    config, run, result = self.with_fault(name, f"write:{number}:EIO:{text}", ENVIRONMENT)
                    self.assertIn("Input/output error", result.lines()[0])
                    self.expect_quiet_end(config, run)

    def test_stale_handles_are_opened_again(self):
        for text in ("lease-", "shard-00000-of-00001.h5"):
            with self.subTest(text=text):
                config, run = self.config("stale-" + text.strip("-."))
                self.jforge("run", config, "--inject", "interrupt@train:0:3", expect=75)
                result = self.jforge("run", config, env=self.environment(run, JFORGE_IO_FAULT=f"open:1:ESTALE:{text}"))
                self.assertIn("io fault: open number 1", result.err, str(result))
                self.assertEqual(self.bytes_of(self.uninterrupted(1)), self.bytes_of(run))

    def test_shards_of_parts_are_copied_where_links_fail(self):
        config, run = self.config("no-links")
        self.jforge("import", config)
        self.jforge("generate", config, "--round", "1", "--part", "1/2")
        shard = sorted(run.glob("parts/1-of-2/round-1/trajectories/lease-*.h5"))[0]
        result = self.jforge("generate", config, "--round", "1", env=self.environment(run, JFORGE_IO_FAULT="link:1:EPERM:lease-"))
        self.assertIn(f"link number 1 on {run}/round-1/trajectories/{shard.name} fails now", result.err)
        self.jforge("run", config)
        self.assertEqual(self.bytes_of(self.uninterrupted(1)), self.bytes_of(run))


class ShardIndex(PreloadedTest):
    def opened(self, config, run, *words):
        """Returns how often shards are opened, and the result."""
        path = self.root / "opened"
        path.unlink(missing_ok=True)
        result = self.jforge(*words, config, "--round", "1",
                             env={**self.environment(run), "JFORGE_IO_ROOT": f"{run}/round-1/trajectories/lease-",
                                  "JFORGE_IO_COUNT": str(path)})
        # Without calls there is no file.
        return self.counted(path)["open"] if path.exists() else 0, result

    def test_a_start_opens_the_shards_that_it_does_not_remember(self):
        config, run = self.config("remembered")
        self.jforge("import", config)
        # Both earlier shards are remembered.
        self.jforge("generate", config, "--round", "1", "--inject", "kill@generate.commit:0:3", expect=None)
        index = run / "round-1" / "trajectories" / "index-0.jsonl"
        self.assertEqual(2, len(index.read_text(encoding="utf-8").splitlines()))
        self.jforge("generate", config, "--round", "1")
        shards = len(list(index.parent.glob("lease-*.h5")))
        self.assertGreater(shards, 5)
        self.assertEqual(0, self.opened(config, run, "generate")[0])

        whole = index.read_bytes()
        index.unlink()
        opened, _ = self.opened(config, run, "generate")
        self.assertGreaterEqual(opened, shards)
        self.assertFalse(index.exists())  # the next phase writes it
        index.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
        self.jforge("verify", run, expect=3)
        trained = self.opened(config, run, "train")[1]
        self.assertRegex(trained.err, r"index-0\.jsonl:1: .*read again")
        self.jforge("verify", run)
        self.assertEqual(0, self.opened(config, run, "generate")[0])


if __name__ == "__main__":
    if len(sys.argv) >= 3 and sys.argv[1] == "--points":
        POINTS = int(sys.argv[2])
        del sys.argv[1:3]
    unittest.main(verbosity=2)
