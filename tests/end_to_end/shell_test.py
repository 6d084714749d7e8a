#!/usr/bin/env python3
"""`jforge completion` in the installed shells, as typed at a terminal. Environment:
JFORGE_BINARY (the program); ctest sets it.
"""

import contextlib
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BINARY = os.environ.get("JFORGE_BINARY", "")
SEARCHED = os.path.dirname(BINARY) + os.pathsep + os.environ.get("PATH", "")
SHOW = "jforge() { printf '<%s>' \"$@\"; echo '<end>'; }\n"


def printed(*words):
    return subprocess.run([BINARY, *words], check=True, capture_output=True, text=True, timeout=60).stdout


class Candidates(unittest.TestCase):
    def candidates(self, *words):
        lines = printed("__complete", "--", *words).splitlines()
        return [line.split("\t")[0] for line in lines]

    def test_commands_and_options_begin_with_what_is_typed(self):
        self.assertEqual("run\tThe whole pipeline: import, generate, train, export, evaluate, report\n",
                         printed("__complete", "--", "ru"))
        shown = re.findall(r"^  ([a-z]+) ", printed("--help"), re.MULTILINE)
        for words, expected in (
                ([""], shown),
                (["pr"], ["pretrain", "probe"]),
                (["probe", "lo"], ["logits", "loss"]),
                (["evaluate", "--m"], ["--model", "--methods", "--max-new-tokens"]),
                (["run", "--dry-run", "c.toml", "--ra"], ["--ranks"]),
                (["top", "--set"], []),
                (["run", "--resume", "ne"], ["never", ":dir"]),
                (["run", "--resume=ne"], ["--resume=never", ":dir"]),
                (["evaluate", "--tasks", "gsm8k,mbpp_plus@"], ["gsm8k,mbpp_plus@0.1.0"]),
                (["evaluate", "--methods", "jacobi_"], ["jacobi_shrinking"]),
                (["probe", "decode", "--window", "sh"], ["shrinking"]),
                (["completion", "fi"], ["fish"])):
            self.assertEqual(expected, self.candidates(*words), words)

    def test_keys_follow_set(self):
        for words, expected in (
                (["run", "c.toml", "--set", "train.beta"], ["train.beta1=", "train.beta2="]),
                (["run", "--set", "rounds.12.noise_w"], ["rounds.12.noise_window="]),
                (["run", "--set", "rounds.3.mask=cle"], ["rounds.3.mask=clean"]),
                (["run", "--set", "model.device="], [f"model.device={word}" for word in ("auto", "cpu", "cuda")]),
                (["run", "--set=run.se"], ["--set=run.seed="]),
                (["run", "--set", "pretrain."], []),
                (["pretrain", "--set", "pretrain.tie_word_embeddings=f"], ["pretrain.tie_word_embeddings=false"]),
                (["decode", "--setting", "bloc"], ["block_size=", "blocks="]),
                (["probe", "decode", "--setting", "bloc"], ["block_size=", "blocks="]),
                (["decode", "--setting", "run."], []),
                (["run", "--accept-change", "train.learning_r"], ["train.learning_rate"]),
                (["run", "--accept-change", "run.dir"], []),
                (["run", "--accept-change", "rounds.3.st"], ["rounds.3.steps"])):
            self.assertEqual(expected, self.candidates(*words), words)
        self.assertIn("rounds.3", self.candidates("run", "--accept-change", "rounds.3"))
        self.assertNotIn("rounds.1=", self.candidates("run", "--set", "rounds.1"))

    def test_files_are_left_to_the_shell(self):
        for words, expected in ((["run", "m"], ":toml"), (["decode", "--model", "m"], ":dir"),
                                (["decode", "--model=m"], ":dir"), (["export", "a", "m"], ":dir"),
                                (["grade", "--completions", "m"], ":file"), (["verify", ""], ":file")):
            self.assertEqual([expected], self.candidates(*words), words)

    def test_nonsense_has_no_answer(self):
        for words in ([], ["--"], ["--", "no-command", ""], ["--", "run", "--no-option="], ["--", "run", "a", "b", ""],
                      ["--", "--", "--", "x"], ["--", "decode", "--prompt", ""], ["--", "run", "--set", "rounds.x"],
                      ["run", ""]):
            self.assertEqual("", printed("__complete", *words), words)

    def test_no_rank_starts(self):
        """A launcher's environment and a full output must not matter."""
        launched = {**os.environ, "PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
        self.assertEqual("run", subprocess.run([BINARY, "__complete", "--", "ru"], check=True, capture_output=True,
                                               text=True, timeout=60, env=launched).stdout.split("\t")[0])
        with open("/dev/full", "w", encoding="utf-8") as full:
            subprocess.run([BINARY, "__complete", "--", ""], check=True, stdout=full, timeout=60)


class ShellTest(unittest.TestCase):
    shell = ""

    @classmethod
    def setUpClass(cls):
        if not shutil.which(cls.shell):
            raise unittest.SkipTest(f"{cls.shell} is not installed")
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="jforge-shell-"))
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.script = cls.root / "completion"
        cls.script.write_text(printed("completion", cls.shell), encoding="utf-8")
        cls.folder = cls.root / "folder"
        (cls.folder / "models" / "small one").mkdir(parents=True)
        for name in ("mine.toml", "mine.jsonl", "other.md"):
            (cls.folder / name).touch()

    def typed(self, program, preparation, lines):
        """Types lines, in which \\t completes; returns jforge's arguments."""
        # A shell redraws its line at will.
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.environ.update(PATH=SEARCHED, TERM="dumb", PS1="$ ", HISTFILE="/dev/null", ZDOTDIR=str(self.root))
            os.execvp(program[0], program)
        self.addCleanup(os.close, terminal)
        self.addCleanup(os.waitpid, child, 0)
        self.addCleanup(os.kill, child, 9)
        seen = ""

        def read_until(pattern, seconds=30):
            nonlocal seen
            limit = time.monotonic() + seconds
            while not (match := re.search(pattern, seen)):
                if time.monotonic() > limit or not select.select([terminal], [], [], limit - time.monotonic())[0]:
                    self.fail(f"no {pattern} in {seconds} s: {seen!r}")
                seen += os.read(terminal, 65536).decode(errors="replace")
            seen = seen[match.end():]
            return match

        os.write(terminal, (preparation + SHOW + "echo rea''dy\n").encode())
        read_until(r"\nready\r?\n")
        given = []
        for line in lines:
            os.write(terminal, (line + "\n").encode())
            words = re.findall(r"<([^<>]*)>", read_until(r"\n((?:<[^<>]*>)*<end>)").group(1))[:-1]
            given.append([word.rstrip("/") for word in words])  # zsh removes a folder's slash
        return given

    TYPED = (
        ("jforge probe log\t --mod\t x", ["probe", "logits", "--model", "x"]),
        ("jforge run min\t --set train.learning_ra\t1e-5", ["run", "mine.toml", "--set", "train.learning_rate=1e-5"]),
        ("jforge run --set=rounds.3.mask=cle\t --dry\t", ["run", "--set=rounds.3.mask=clean", "--dry-run"]),
        ("jforge evaluate --tasks gsm8k,mbpp_plus@\t", ["evaluate", "--tasks", "gsm8k,mbpp_plus@0.1.0"]),
        ("jforge decode --model=mod\tsm\t", ["decode", "--model=models/small one"]),
        ("jforge grade --completions mine.j\t", ["grade", "--completions", "mine.jsonl"]),
    )

    def expect_typed(self, program, preparation):
        given = self.typed(program, preparation, [typed for typed, _ in self.TYPED])
        for (typed, expected), words in zip(self.TYPED, given):
            self.assertEqual(expected, words, typed)


class Bash(ShellTest):
    shell = "bash"

    def test_typed_at_a_terminal(self):
        self.expect_typed(["bash", "--norc", "--noprofile", "-i"], f"source {self.script}\n")


class Zsh(ShellTest):
    shell = "zsh"

    def test_typed_at_a_terminal(self):
        self.expect_typed(["zsh", "-f", "-i"], f"autoload -U compinit; compinit -D\nsource {self.script}\n")


class Fish(ShellTest):
    shell = "fish"

    def test_what_is_offered(self):
        for line, expected in (("jforge probe lo", ["logits", "loss"]),
                               ("jforge run --set rounds.3.mask=cl", ["rounds.3.mask=clean"]),
                               ("jforge decode --model m", ["models/"]),
                               ("jforge run m", ["mine.toml", "models/"])):
            result = subprocess.run(["fish", "--no-config", "-c", f"source {self.script}; complete -C '{line}'"],
                                    check=True, capture_output=True, text=True, timeout=60, cwd=self.folder,
                                    env={**os.environ, "PATH": SEARCHED})
            self.assertEqual("", result.stderr)
            offered = [candidate.split("\t")[0] for candidate in result.stdout.splitlines()]
            self.assertEqual(expected, offered[:len(expected)], line)


class StandardOutput(unittest.TestCase):
    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for words in (["completion", "bash"], ["schema"], ["--help"], ["run", "--help"], ["--version"]):
                result = subprocess.run([BINARY, *words], check=False, stdout=full, stderr=subprocess.PIPE, text=True,
                                        timeout=60)
                self.assertEqual((4, "jforge: standard output could not be written\n"), (result.returncode, result.stderr))

    def expect_without_reader(self, code, *commands):
        for words in commands:
            reader, writer = os.pipe()
            os.close(reader)
            with contextlib.closing(os.fdopen(writer, "wb")) as closed:
                result = subprocess.run([BINARY, *words], check=False, stdout=closed, stderr=subprocess.PIPE, text=True,
                                        timeout=60)
            self.assertEqual((code, ""), (result.returncode, result.stderr), words)

    def test_a_reader_who_leaves_is_no_error(self):
        self.expect_without_reader(0, ["--help"], ["--version"], ["probe", "decode", "--help"])

    def test_a_reader_who_leaves_midway_ends_a_command_as_sigpipe_would(self):
        self.expect_without_reader(128 + signal.SIGPIPE, ["schema"], ["schema", "--reference"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
