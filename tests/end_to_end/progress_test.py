#!/usr/bin/env python3
"""A job's display on a terminal, and in its files; it goes on when readers leave."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import unittest

from harness import MPIRUN, EndToEndTest

COLUMNS = 70


class OnATerminal(EndToEndTest):
    def on_terminal(self, command, columns=COLUMNS):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave,
                                   start_new_session=True)
        os.close(slave)
        shown = self.read(master)
        os.close(master)
        return process.wait(60), shown.decode("utf-8", errors="replace")

    @staticmethod
    def read(master):
        """Reads to the end."""
        shown = b""
        with contextlib.suppress(OSError):  # EIO: closed by all
            while chunk := os.read(master, 65536):
                shown += chunk
        return shown

    def check_bars(self, shown, columns=COLUMNS):
        bars = re.findall(r"\r\x1b\[K((?:import|generate|train)[^\r\n]*)", shown)
        self.assertTrue([bar for bar in bars if bar.startswith("train round 1")], shown[-3000:])
        for bar in bars:
            self.assertLess(len(bar), columns, bar)
        for line in re.findall(r"[^\r\n]*info(?:\x1b\[m)? rank[^\r\n]*", shown):
            self.assertRegex(line, r"^(\x1b\[K)?2\d\d\d-", "a log line behind a bar")

    def test_one_process(self):
        config, _ = self.config("terminal-1")
        code, shown = self.on_terminal(self.command("run", config))
        self.assertEqual(0, code, shown[-3000:])
        self.check_bars(shown)

    def test_under_mpirun(self):
        config, _ = self.config("terminal-2")
        code, shown = self.on_terminal(self.command("run", config, ranks=2))
        self.assertEqual(0, code, shown[-3000:])
        self.check_bars(shown)
        config, _ = self.config("terminal-narrow")
        code, shown = self.on_terminal(self.command("run", config, ranks=2), columns=30)
        self.assertEqual(0, code, shown[-3000:])
        self.check_bars(shown, columns=30)

    def test_a_redirected_rank_draws_no_bars(self):
        config, _ = self.config("terminal-file")
        log = self.root / "rank.log"
        code, shown = self.on_terminal([str(MPIRUN), "-n", "1", "bash", "-c",
                                        " ".join(self.command("run", config)) + f" 2>{log}"])
        self.assertEqual(0, code, shown)
        self.assertNotIn("\x1b[K", shown + log.read_text(encoding="utf-8"))


class InFiles(EndToEndTest):
    def test_run_json_and_metrics_say_how_far_the_phase_is(self):
        config, run = self.config("files")
        process = self.start(self.command("run", config, "--inject", "delay@train:0:3,stop@train:0:4"))
        end = time.monotonic() + 90
        status = {}
        while status.get("step") is None or status["unit"] != "steps":
            self.assertLess(time.monotonic(), end, status)
            self.assertIsNone(process.poll(), self.result(process))
            time.sleep(0.05)
            if (run / "run.json").exists():
                status = json.loads((run / "run.json").read_text(encoding="utf-8"))
        try:
            self.assertEqual(("running", "train round 1", 6), (status["status"], status["phase"], status["total"]))
            self.assertGreaterEqual(status["eta_seconds"], 0)
            self.assertIn("loss", status["detail"])
            metrics = (run / "metrics.prom").read_text(encoding="utf-8")
            self.assertIn(f'jforge_run_status{{run="{run}",status="running"}} 1', metrics)
            self.assertIn(f'jforge_run_phase_total{{run="{run}"}} 6', metrics)
        finally:
            self.kill_all(process)
        self.jforge("run", config)
        metrics = (run / "metrics.prom").read_text(encoding="utf-8")
        self.assertIn('status="finished"} 1', metrics)
        self.assertNotIn("jforge_run_phase_done", metrics)


class NobodyListens(EndToEndTest):
    def expect_same_end(self, name, redirections, ranks):
        for number, redirection in enumerate(redirections):
            with self.subTest(redirection=redirection):
                config, run = self.config(f"{name}-{number}")
                command = " ".join(self.command("run", config, ranks=ranks))
                result = self.finish(self.start(["bash", "-c", f"set -o pipefail; {command} {redirection}"]))
                self.assertEqual(0, result.code, str(result))
                self.assertEqual("finished", self.status(run))
                self.assertEqual(self.bytes_of(self.uninterrupted(ranks)), self.bytes_of(run))
                self.jforge("verify", run)
                self.assertIn("train round 2", (run / "logs" / "rank_0000.log").read_text(encoding="utf-8"))
                self.expect_no_processes()

    def test_streams_closed_from_the_start(self):
        """A file must not get the number of a closed stream."""
        self.expect_same_end("closed", ("2>&-", ">&-", "<&- >&- 2>&-"), ranks=1)

    def test_a_reader_that_leaves(self):
        self.expect_same_end("reader", ("2>&1 | head -n 1", "2> >(head -n 1) >&2", "2>&1 | true"), ranks=1)

    def test_a_reader_of_mpirun_that_leaves(self):
        self.expect_same_end("mpirun", ("2>&1 | head -n 1", "2>&1 | true", "2>&-", "<&- >&- 2>&-"), ranks=2)

    def test_mpirun_writes_much_to_nobody(self):
        """The scripts hide a closed pipe, which kills Open MPI's mpirun."""
        noise = "for i in $(seq 60); do echo line $i; echo line $i >&2; sleep 0.02; done; exit 7"
        for redirection in ("2>&1 | head -n 1", "2>&1 >/dev/null | head -n 1"):
            with self.subTest(redirection=redirection):
                command = f'set -o pipefail; "$0" -n 1 bash -c "$1" {redirection}'
                done = subprocess.run(["bash", "-c", command, str(MPIRUN), noise], capture_output=True, text=True,
                                      timeout=60, check=False)
                self.assertEqual(7, done.returncode, done)

    def test_what_mpirun_says_comes_whole_through_a_pipe(self):
        done = subprocess.run([str(MPIRUN), "-n", "2", "bash", "-c", "seq 2000; seq 2000 >&2; exit 3"],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(3, done.returncode, done.stderr[-2000:])
        said = "".join(f"{number}\n" for number in range(1, 2001))  # Lines may be mixed, but no byte lost.
        self.assertEqual(sorted(2 * said), sorted(done.stdout))


if __name__ == "__main__":
    unittest.main(verbosity=2)
