#!/usr/bin/env python3
"""`jforge completion` in the shells that are installed, as typed at a terminal, and `jforge man` in groff and man.

Environment: JFORGE_BINARY (the program); ctest sets it.
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
SHOW = "jforge() { printf '<%s>' \"$@\"; echo '<end>'; }\n"


def printed(*words):
    return subprocess.run([BINARY, *words], check=True, capture_output=True, text=True, timeout=60).stdout


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

    def run_script(self, text, *options):
        result = subprocess.run([self.shell, *options, "-c", text], check=False, capture_output=True, text=True,
                                timeout=60, cwd=self.folder)
        self.assertEqual((0, ""), (result.returncode, result.stderr), text)
        return result.stdout

    def typed(self, program, preparation, lines):
        """What the shell makes of typed lines, in which \\t completes: for each the arguments that jforge gets."""
        # A shell draws its line anew at will: it is told by a function what jforge was given.
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.environ.update(TERM="dumb", PS1="$ ", HISTFILE="/dev/null", ZDOTDIR=str(self.root))
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
            given.append([word.rstrip("/") for word in words])  # zsh takes a folder's away again
        return given

    # What is typed and what it becomes; the same in bash and zsh.
    TYPED = (
        ("jforge ver\t run", ["verify", "run"]),
        ("jforge probe log\t --mod\t x", ["probe", "logits", "--model", "x"]),
        ("jforge run min\t --dry\t", ["run", "mine.toml", "--dry-run"]),
        ("jforge run mine.toml --set train.learning_ra\t1e-5", ["run", "mine.toml", "--set", "train.learning_rate=1e-5"]),
        ("jforge run mine.toml --set train.reduction=pap\t", ["run", "mine.toml", "--set", "train.reduction=paper"]),
        ("jforge run mine.toml --set rounds.12.noise_w\t7", ["run", "mine.toml", "--set", "rounds.12.noise_window=7"]),
        ("jforge run mine.toml --set rounds.3.mask=cle\t", ["run", "mine.toml", "--set", "rounds.3.mask=clean"]),
        ("jforge pretrain mine.toml --set pretrain.tie\tfal\t",
         ["pretrain", "mine.toml", "--set", "pretrain.tie_word_embeddings=false"]),
        ("jforge run mine.toml --accept-change train.learning_r\t",
         ["run", "mine.toml", "--accept-change", "train.learning_rate"]),
        ("jforge run mine.toml --resume nev\t", ["run", "mine.toml", "--resume", "never"]),
        ("jforge evaluate --tasks gsm8k,mbpp_plus@\t --methods jacobi_\t",
         ["evaluate", "--tasks", "gsm8k,mbpp_plus@0.1.0", "--methods", "jacobi_shrinking"]),
        ("jforge decode --model mod\tsm\t", ["decode", "--model", "models/small one"]),
        ("jforge decode --setting verif\t3", ["decode", "--setting", "verification_size=3"]),
        ("jforge completion fi\t", ["completion", "fish"]),
    )


class Bash(ShellTest):
    shell = "bash"

    def candidates(self, *words, line=None):
        """COMPREPLY for COMP_WORDS, the last of which is completed."""
        line = " ".join(words) if line is None else line
        script = ('source "$0"; COMP_LINE=$1; COMP_POINT=${#1}; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  '_jforge; printf "%s\\n" "${COMPREPLY[@]}"')
        return subprocess.run(["bash", "--norc", "-c", script, self.script, line, *words], check=True,
                              capture_output=True, text=True, timeout=60, cwd=self.folder).stdout.split()

    def test_the_script_is_valid(self):
        self.run_script(f"source {self.script}; complete -p jforge >/dev/null")

    def test_commands_and_options_begin_with_what_is_typed(self):
        self.assertEqual(["run"], self.candidates("jforge", "ru"))
        self.assertEqual(["pretrain", "probe"], sorted(self.candidates("jforge", "pr")))
        commands = self.candidates("jforge", "", line="jforge ")
        shown = re.findall(r"^  ([a-z]+) ", printed("--help"), re.MULTILINE)
        self.assertEqual(sorted(shown), sorted(commands))
        self.assertEqual(["logits", "loss"], sorted(self.candidates("jforge", "probe", "lo")))
        self.assertEqual(["--max-new-tokens", "--methods", "--model"], sorted(self.candidates("jforge", "evaluate", "--m")))
        self.assertEqual([], self.candidates("jforge", "top", "--set"))

    def test_keys_follow_set(self):
        self.assertEqual(["train.beta1=", "train.beta2="], self.candidates("jforge", "run", "c.toml", "--set", "train.beta"))
        self.assertIn("rounds.7.block_size=", self.candidates("jforge", "run", "--set", "rounds.7"))
        self.assertEqual([], self.candidates("jforge", "run", "--set", "pretrain."))
        self.assertIn("pretrain.steps=", self.candidates("jforge", "pretrain", "--set", "pretrain."))
        self.assertEqual(["auto", "cpu", "cuda"], self.candidates(
            "jforge", "run", "--set", "model.device", "=", line="jforge run --set model.device="))
        self.assertEqual(["run.seed="], self.candidates("jforge", "run", "--set", "=", "run.se",
                                                        line="jforge run --set=run.se"))

    def test_settings_are_of_decoding_methods(self):
        for command in (("decode",), ("probe", "decode")):
            self.assertEqual(["block_size=", "blocks="], self.candidates("jforge", *command, "--setting", "bloc"))
            self.assertEqual([], self.candidates("jforge", *command, "--setting", "run."))

    def test_changes_are_of_identity_keys(self):
        keys = self.candidates("jforge", "run", "--accept-change", "", line="jforge run --accept-change ")
        self.assertIn("train.learning_rate", keys)
        self.assertNotIn("run.directory", keys)
        self.assertEqual(["rounds.3"], [key for key in self.candidates("jforge", "run", "--accept-change", "rounds.3")
                                        if key.count(".") == 1])

    def test_files_are_of_the_kind_that_is_taken(self):
        self.assertEqual(["mine.toml", "models"], sorted(self.candidates("jforge", "run", "m")))
        self.assertEqual(["models"], self.candidates("jforge", "decode", "--model", "m"))
        self.assertEqual(["mine.jsonl", "mine.toml", "models"],
                         sorted(self.candidates("jforge", "grade", "--completions", "m")))
        self.assertEqual(["auto"], self.candidates("jforge", "run", "--resume", "a"))

    def test_typed_at_a_terminal(self):
        given = self.typed(["bash", "--norc", "--noprofile", "-i"], f"source {self.script}\n", [t for t, _ in self.TYPED])
        for (typed, expected), words in zip(self.TYPED, given):
            self.assertEqual(expected, words, typed)


class Zsh(ShellTest):
    shell = "zsh"

    def test_the_script_is_valid(self):
        self.run_script(f"zsh -n {self.script}", "-f")

    def test_typed_at_a_terminal(self):
        preparation = f"autoload -U compinit; compinit -D\nsource {self.script}\n"
        given = self.typed(["zsh", "-f", "-i"], preparation, [t for t, _ in self.TYPED])
        for (typed, expected), words in zip(self.TYPED, given):
            self.assertEqual(expected, words, typed)


class Fish(ShellTest):
    shell = "fish"

    def candidates(self, line):
        out = self.run_script(f"source {self.script}; complete -C '{line}'", "--no-config")
        return [candidate.split("\t")[0] for candidate in out.splitlines()]

    def test_the_script_is_valid(self):
        self.run_script(f"fish --no-execute {self.script}", "--no-config")

    def test_what_is_offered(self):
        self.assertEqual(["run"], self.candidates("jforge ru"))
        self.assertEqual(["logits", "loss"], self.candidates("jforge probe lo"))
        self.assertEqual(["--max-new-tokens", "--methods", "--model"], sorted(
            word.rstrip("=") for word in self.candidates("jforge evaluate --m")))
        self.assertEqual(["train.beta1=", "train.beta2="], self.candidates("jforge run c.toml --set train.beta"))
        self.assertEqual(["rounds.12.noise_window="], self.candidates("jforge run --set rounds.12.noise_w"))
        self.assertEqual(["rounds.3.mask=clean"], self.candidates("jforge run --set rounds.3.mask=cl"))
        # Where no key begins so, fish offers those that have its letters in this order, descriptions included.
        self.assertEqual([], [key for key in self.candidates("jforge run --set pretrain.") if key.startswith("pretrain.")])
        self.assertIn("pretrain.steps=", self.candidates("jforge pretrain --set pretrain."))
        self.assertEqual(["gsm8k,mbpp_plus@0.1.0"], self.candidates("jforge evaluate --tasks gsm8k,mbpp_plus@"))
        self.assertEqual(["never"], self.candidates("jforge run --resume ne"))
        self.assertEqual(["models/"], self.candidates("jforge decode --model m"))
        self.assertEqual(["shrinking"], self.candidates("jforge probe decode --window sh"))
        self.assertEqual(["block_size=", "blocks="], sorted(self.candidates("jforge probe decode --setting bloc")))
        self.assertEqual(["fish"], self.candidates("jforge completion f"))
        self.assertIn("mine.toml", self.candidates("jforge run m"))


class ManPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = printed("man")

    def render(self, *command):
        if not shutil.which(command[0]):
            self.skipTest(f"{command[0]} is not installed")
        result = subprocess.run(command, input=self.page, check=False, capture_output=True, text=True, timeout=60,
                                encoding="utf-8", env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANROFFOPT": ""})
        self.assertEqual((0, ""), (result.returncode, result.stderr))
        return re.sub("\x1b\\[[0-9;]*m|.\b", "", result.stdout)

    def test_groff_renders_it_without_a_warning(self):
        text = self.render("groff", "-ww", "-man", "-Tutf8")
        for part in ("jforge run [OPTIONS] CONFIG", "--accept-change KEY", "train.learning_rate", "EXIT STATUS",
                     "(prompt + 2 × answer)"):
            self.assertIn(part, text)
        self.assertNotIn("\\", text)

    def test_man_renders_it_without_a_warning(self):
        self.assertIn("--dry-run", self.render("man", "--warnings", "-l", "-"))

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for words in (["man"], ["completion", "bash"], ["schema"], ["--help"], ["run", "--help"], ["--version"]):
                result = subprocess.run([BINARY, *words], check=False, stdout=full, stderr=subprocess.PIPE, text=True,
                                        timeout=60)
                self.assertEqual((4, "jforge: standard output could not be written\n"), (result.returncode, result.stderr))

    def test_a_reader_who_leaves_is_no_error(self):
        for words in (["--help"], ["--version"], ["probe", "decode", "--help"]):
            reader, writer = os.pipe()
            os.close(reader)
            with contextlib.closing(os.fdopen(writer, "wb")) as closed:
                result = subprocess.run([BINARY, *words], check=False, stdout=closed, stderr=subprocess.PIPE, text=True,
                                        timeout=60)
            self.assertEqual((0, ""), (result.returncode, result.stderr), words)

    def test_a_reader_who_leaves_midway_ends_a_command_as_sigpipe_would(self):
        for words in (["schema"], ["schema", "--reference"], ["man"]):
            reader, writer = os.pipe()
            os.close(reader)
            with contextlib.closing(os.fdopen(writer, "wb")) as closed:
                result = subprocess.run([BINARY, *words], check=False, stdout=closed, stderr=subprocess.PIPE, text=True,
                                        timeout=60)
            self.assertEqual((128 + signal.SIGPIPE, ""), (result.returncode, result.stderr), words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
