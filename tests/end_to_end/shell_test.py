#!/usr/bin/env python3
"""`jforge completion` in the installed shells, as typed at a terminal. Environment:
JFORGE_BINARY (the program); ctest sets it.
"""

import contextlib
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
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

    def test_words_continue_what_is_typed(self):
        self.assertEqual("run\tThe whole pipeline: import, generate, train, export, evaluate, report\n",
                         printed("__complete", "--", "ru"))
        for words, expected in (
                ("run --dry-run c.toml --ra", "--ranks"),
                ("run --resume ne", "never"),
                ("run --resume=ne", "--resume=never"),
                ("evaluate --tasks gsm8k,mbpp_plus@", "gsm8k,mbpp_plus@0.1.0"),
                ("completion fi", "fish"),
                ("run c.toml --set train.beta", "train.beta1= train.beta2="),
                ("run --set rounds.12.noise_w", "rounds.12.noise_window="),
                ("run --set rounds.3.mask=cle", "rounds.3.mask=clean"),
                ("run --set=run.se", "--set=run.seed="),
                ("pretrain --set pretrain.tie_word_embeddings=f", "pretrain.tie_word_embeddings=false"),
                ("decode --setting bloc", "block_size= blocks="),
                ("run --accept-change train.learning_r", "train.learning_rate"),
                ("run --accept-change run.dir", ""),
                ("run --accept-change rounds.3.st", "rounds.3.steps")):
            self.assertEqual(expected.split(), self.candidates(*words.split()), words)

    def test_every_command_and_option_of_the_help_is_offered(self):
        commands = [[]]
        for words in commands:
            names = re.findall(r"^  (?:(-[a-z]),)?(--?[a-z-]+)|^  ([a-z]+)  ", printed(*words, "--help"), re.MULTILINE)
            options = [name for *both, _ in names for name in both if name]
            self.assertEqual(sorted(options), sorted(self.candidates(*words, "-")), words)
            if words in ([], ["probe"]):
                below = [command for *_, command in names if command]
                self.assertEqual(below, self.candidates(*words, ""), words)
                commands += [[*words, command] for command in below]
        self.assertGreaterEqual(len(commands), 20)

    def test_the_page_of_commands_has_each(self):
        page = (pathlib.Path(__file__).parents[2] / "docs/commands.md").read_text(encoding="utf-8")
        cells = re.findall(r"^\| (`[a-z].*?) \| ", page, re.MULTILINE)
        self.assertEqual(set(self.candidates("")), {name for cell in cells for name in re.findall("`([a-z]+)", cell)})

    def test_every_key_is_offered(self):
        sections = json.loads(printed("schema"))["properties"]
        sections["rounds.1"] = sections.pop("rounds")["items"]
        known = {f"{name}.{key}=" for name, section in sections.items() for key in section["properties"]}
        for command, has in (("run", lambda key: not key.startswith(("pretrain.", "finetune."))),
                             ("pretrain", lambda key: key.startswith("pretrain.")),
                             ("finetune", lambda key: key.startswith("finetune."))):
            offered = self.candidates(command, "c.toml", "--set", "")
            self.assertEqual(set(filter(has, known)), set(offered if command == "run" else filter(has, offered)))

    def test_for_anything_else_nothing_is_offered_and_the_shell_offers_files(self):
        for words in ([], ["--"], ["--", "no-command", ""], ["--", "run", "--no-option="], ["--", "run", "a", "b", ""],
                      ["--", "--", "--", "x"], ["--", "decode", "--prompt", ""], ["--", "run", "--set", "rounds.x"],
                      ["run", ""], ["--", "run", "m"], ["--", "decode", "--model=m"], ["--", "export", "a", "m"]):
            self.assertEqual("", printed("__complete", *words), words)

    def test_no_rank_starts(self):
        """A launcher's environment and a full output must not matter."""
        launched = {**os.environ, "PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
        self.assertEqual("run", subprocess.run([BINARY, "__complete", "--", "ru"], check=True, capture_output=True,
                                               text=True, timeout=60, env=launched).stdout.split("\t")[0])
        with open("/dev/full", "w", encoding="utf-8") as full:
            subprocess.run([BINARY, "__complete", "--", ""], check=True, stdout=full, timeout=60)


class Shells(unittest.TestCase):
    def setUp(self):
        shell = self.id().rpartition("_")[2]
        if not shutil.which(shell):
            self.skipTest(f"{shell} is not installed")
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="jforge-shell-")))
        self.script = self.root / "completion"
        self.script.write_text(printed("completion", shell), encoding="utf-8")
        self.folder = self.root / "folder"
        (self.folder / "models" / "small one").mkdir(parents=True)
        for name in ("mine.toml", "mine.jsonl", "other.md"):
            (self.folder / name).touch()

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

        def read_until(pattern):
            nonlocal seen
            while not (match := re.search(pattern, seen)):
                if not select.select([terminal], [], [], 30)[0]:
                    self.fail(f"no {pattern} in 30 s: {seen!r}")
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

    def expect_typed(self, program, preparation):
        expected = (("jforge probe log\t --mod\t x", "probe logits --model x"),
                    ("jforge run mine.t\t --set train.learning_ra\t1e-5", "run mine.toml --set train.learning_rate=1e-5"),
                    ("jforge run --set=rounds.3.mask=cle\t --dry\t", "run --set=rounds.3.mask=clean --dry-run"),
                    ("jforge evaluate --tasks gsm8k,mbpp_plus@\t", "evaluate --tasks gsm8k,mbpp_plus@0.1.0"),
                    ("jforge decode --model=mod\tsm\t", "decode --model=models/small one"))
        given = self.typed(program, preparation, [line for line, _ in expected])
        self.assertEqual([words for _, words in expected], [" ".join(words) for words in given])

    def test_bash(self):
        self.expect_typed(["bash", "--norc", "--noprofile", "-i"], f"source {self.script}\n")

    def test_zsh(self):
        self.expect_typed(["zsh", "-f", "-i"], f"autoload -U compinit; compinit -D\nsource {self.script}\n")

    def test_fish(self):
        for line, expected in (("jforge probe lo", ["logits", "loss"]),
                               ("jforge run --set rounds.3.mask=cl", ["rounds.3.mask=clean"]),
                               ("jforge decode --model mo", ["models/"])):
            result = subprocess.run(["fish", "--no-config", "-c", f"source {self.script}; complete -C '{line}'"],
                                    check=True, capture_output=True, text=True, timeout=60, cwd=self.folder,
                                    env={**os.environ, "PATH": SEARCHED})
            offered = [candidate.split("\t")[0] for candidate in result.stdout.splitlines()]
            self.assertEqual(("", expected), (result.stderr, offered[:len(expected)]), line)


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
