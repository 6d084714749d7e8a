#!/usr/bin/env python3
"""Every file of a finished run has a checksum; damaged files are regenerated or refused by name."""

import json
import pathlib
import re
import shutil
import unittest

from harness import CONFIG, EndToEndTest

USAGE, DATA = 2, 3

# For people, or rewritten by every report.
UNCHECKED = ("logs", "figures", "report.md", "metrics.jsonl", "metrics.prom", "tensorboard", "results.csv")

SWEEP = """
[sweep]
method = "jacobi"
block_size = [4]
"""


def flip(path, part=0.5, bit=4):
    content = bytearray(path.read_bytes())
    content[min(int(len(content) * part), len(content) - 1)] ^= 1 << bit
    path.write_bytes(content)


DAMAGES = {
    "flipped": lambda text: text[:20] + bytes([text[20] ^ 1]) + text[21:],
    "truncated": lambda text: text[:len(text) // 2],
    "empty": lambda text: b"",
    "foreign": lambda text: b'{"a": 1}\n',
    "null": lambda text: b"null\n",
    "a list": lambda text: b"[1, 2]\n",
    "no text": lambda text: b"\xff\xfe\x00",
    "wrong types": lambda text: b'{"attempt": "x", "status": 3, "phase": [], "accepted": 5, "dropped": 1, "kept": {}}',
}


class IntegrityTest(EndToEndTest):
    def tree(self, directory):
        return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*"))
                if path.is_file()}

    def refused(self, code, *words, says=(), **options):
        result = self.jforge(*words, expect=code, **options)
        self.assertEqual(1, len(result.lines()), str(result))
        for text in says:
            self.assertIn(text, result.lines()[0], str(result))
        return result


class FinishedRun(IntegrityTest):
    evaluate = True

    def finished(self):
        """Returns a finished run with a sweep; each call restores it."""
        config, run = self.config("finished", extra=SWEEP)
        kept = self.root / "kept"
        if not kept.exists():
            self.jforge("run", config, ranks=2)
            self.jforge("sweep", config, "--model", run / "model", "--out", run, ranks=2)
            self.jforge("verify", run)
            shutil.copytree(run, kept)
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        return config, run

    def test_verify_names_every_file_in_which_a_bit_is_flipped(self):
        _, run = self.finished()
        # A rank without leases leaves an empty index.
        victims = [path for path in sorted(run.rglob("*")) if path.is_file() and path.stat().st_size > 0 and
                   not any(part.startswith(UNCHECKED) for part in path.relative_to(run).parts)]
        names = {path.name for path in victims}
        for name in ("run.json", "identity.json", "prompts_import.json", "prompts.h5", "export.json", "journal.jsonl",
                     "resolved_config.toml", "metrics.1.jsonl", "model.safetensors", "config.json", "tokenizer.json",
                     "generation_config.json", "checksums.json", "manifest.json", "generation.json", "summary.json",
                     "sweep.json", "model.json"):
            self.assertIn(name, names)
        self.assertTrue(any(name.endswith(".ar.jsonl") for name in names), names)
        for path in victims:
            whole = path.read_bytes()
            for number, part in enumerate((0, 0.4, 0.77, 1)):
                with self.subTest(path=path.relative_to(run), part=part):
                    flip(path, part, (3 * number + len(whole)) % 8)
                    self.refused(DATA, "verify", run, says=[path.name])
                    path.write_bytes(whole)
        self.jforge("verify", run)

    def test_verify_names_what_is_cut_off_or_gone(self):
        _, run = self.finished()
        for name in ("run.json", "identity.json", "model/config.json", "model/model.safetensors", "model/checksums.json",
                     "evaluation/summary.json", "sweep/sweep.json", "evaluation/base/gsm8k.ar.jsonl"):
            path = next(run.glob(name.replace("gsm8k", "*")))
            whole = path.read_bytes()
            for left in (whole[:len(whole) // 2], b""):
                with self.subTest(name=name, left=len(left)):
                    path.write_bytes(left)
                    self.refused(DATA, "verify", run, says=[path.name])
            if path.name != "sweep.json" and path.name != "summary.json":
                with self.subTest(name=name, left="nothing"):
                    path.unlink()
                    self.refused(DATA, "verify", run, says=[path.name])
            path.write_bytes(whole)
        lease = sorted((run / "round-1" / "trajectories").glob("lease-*.h5"))[-1]
        for path, says in ((run / "prompts.h5", "prompts.h5 is gone"), (lease, "generation.json records 24 with digest")):
            with self.subTest(name=path.name, left="nothing"):
                whole = path.read_bytes()
                path.unlink()
                self.refused(DATA, "verify", run, says=[says])
                path.write_bytes(whole)
        self.jforge("verify", run)

    def test_several_damages_are_named_at_once(self):
        _, run = self.finished()
        flip(run / "model" / "model.safetensors")
        flip(run / "model" / "tokenizer.json")
        flip(run / "journal.jsonl", 0.2)
        self.refused(DATA, "verify", run, says=["model.safetensors", "tokenizer.json", "journal.jsonl:"])

    def test_parts_of_the_run_are_verified_alone(self):
        _, run = self.finished()
        for name in ("model", "evaluation", "sweep"):
            self.jforge("verify", run / name)
            self.jforge("inspect", run / name)
        flip(run / "model" / "generation_config.json")
        self.refused(DATA, "verify", run / "model", says=["generation_config.json"])
        self.refused(DATA, "decode", "--model", run / "model", "--prompt", "2 pens?", says=["generation_config.json"])
        flip(run / "evaluation" / "summary.json")
        self.refused(DATA, "verify", run / "evaluation", says=["summary.json"])
        self.assertIn("nothing to compare", self.jforge("verify", self.model).out)

    def test_a_damaged_export_is_made_again_from_the_checkpoint(self):
        def lose(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

        for name, damage in (("model/model.safetensors", flip), ("model/model.safetensors", lose),
                             ("model/tokenizer.json", flip), ("model/config.json", lose), ("model", lose),
                             ("model/checksums.json", flip), ("model/checksums.json", lose), ("export.json", flip)):
            with self.subTest(name=name, damage=damage.__name__):
                config, run = self.finished()
                before = {folder: self.tree(run / folder) for folder in ("model", "evaluation")}
                damage(run / name)
                result = self.jforge("run", config, ranks=2)
                said = [line for line in result.err.splitlines() if "exported again" in line]
                self.assertEqual(1, len(said), str(result))
                self.assertIn(pathlib.Path(name).name, said[0])
                for folder, files in before.items():
                    self.assertEqual(files, self.tree(run / folder))
                self.jforge("verify", run)

    def test_damaged_evaluations_are_made_anew(self):
        config, run = self.finished()
        samples = {name: content for name, content in self.tree(run / "evaluation").items() if name.endswith(".jsonl")}
        jsonl = next((run / "evaluation" / "final").glob("*.jacobi*.jsonl"))
        for path, again in ((jsonl, True), (run / "evaluation" / "summary.json", True),
                            (run / "evaluation" / "final" / "model.json", False)):
            with self.subTest(path=path.name):
                flip(path)
                result = self.jforge("run", config, ranks=2)
                self.assertIn(path.name, result.err)
                self.assertEqual(again, "samples done before" in result.err, str(result))
                found = self.tree(run / "evaluation")
                self.assertEqual(samples, {name: found[name] for name in samples})
                self.jforge("verify", run)

    def test_a_finished_run_is_left_as_it_is(self):
        config, run = self.finished()
        before = {folder: self.tree(run / folder) for folder in ("model", "evaluation", "checkpoints", "round-1")}
        result = self.jforge("run", config, ranks=2)
        self.assertNotIn("again", result.err)
        for folder, files in before.items():
            self.assertEqual(files, self.tree(run / folder))


class DamagedRecords(IntegrityTest):
    RECORDS = ("run.json", "identity.json", "prompts_import.json", "round-1/generation.json", "export.json")

    def test_records_of_a_finished_run_are_mended(self):
        config, run = self.config("records")
        self.jforge("run", config)
        before = self.tree(run)
        for kind, damage in DAMAGES.items():
            with self.subTest(damage=kind):
                for name in self.RECORDS:
                    (run / name).write_bytes(damage((run / name).read_bytes()))
                self.refused(DATA, "verify", run, says=[pathlib.Path(name).name for name in self.RECORDS])
                self.assertIn(self.jforge("inspect", run, expect=None).code, (0, DATA))
                result = self.jforge("run", config)
                for name in self.RECORDS[:4]:
                    self.assertIn(pathlib.Path(name).name, result.err, f"{name}: {result}")
                self.jforge("verify", run)
                for name in self.RECORDS[1:]:
                    self.assertEqual(before[name], (run / name).read_bytes(), name)
        attempts = {path.name for path in run.glob("metrics.*.jsonl")}
        self.assertEqual({f"metrics.{number + 1}.jsonl" for number in range(len(DAMAGES) + 1)}, attempts)
        self.assertEqual(len(DAMAGES) + 1, json.loads((run / "run.json").read_bytes())["attempt"])

    def test_records_of_a_stopped_run_are_mended(self):
        expected = self.bytes_of(self.uninterrupted(1))
        for stop in ("generate:0:4", "train:0:3"):
            for number, (kind, damage) in enumerate(DAMAGES.items()):
                with self.subTest(stop=stop, damage=kind):
                    config, run = self.config(f"stopped-{stop.split(':')[0]}-{number}")
                    self.jforge("run", config, "--inject", f"interrupt@{stop}", expect=75)
                    for name in self.RECORDS[:3]:
                        (run / name).write_bytes(damage((run / name).read_bytes()))
                    self.jforge("run", config)
                    self.assertEqual(expected, self.bytes_of(run))
                    shutil.rmtree(run)

    def test_an_identity_is_missed_once_anything_is_made_under_it(self):
        config, run = self.config("barely")
        self.jforge("import", config, "--inject", "kill@publish.data:0:3", expect=None)
        self.assertTrue((run / "run.json").exists())
        self.assertFalse((run / "identity.json").exists())
        self.jforge("verify", run)
        self.jforge("import", config)
        (run / "identity.json").unlink()
        self.refused(DATA, "verify", run, says=["identity.json is gone"])

    def test_a_lost_identity_still_refuses_another_configuration(self):
        config, run = self.config("identity")
        self.jforge("run", config, "--inject", "interrupt@train:0:3", expect=75)
        for damage in (flip, lambda path: path.unlink()):
            damage(run / "identity.json")
            self.refused(USAGE, "run", config, "--set", "train.learning_rate=2e-3",
                         says=["train.learning_rate", "0.001 → 0.002"])
        self.jforge("run", config)
        self.assertEqual(self.bytes_of(self.uninterrupted(1)), self.bytes_of(run))

    def test_a_damaged_line_of_the_metrics_is_named(self):
        """It cannot be regenerated."""
        config, run = self.config("metrics")
        self.jforge("run", config)
        flip(run / "metrics.1.jsonl")
        line = int(re.search(r"metrics.1.jsonl:(\d+)", self.refused(DATA, "run", config, says=["remove the line"]).err)[1])
        lines = (run / "metrics.1.jsonl").read_bytes().splitlines(keepends=True)
        (run / "metrics.1.jsonl").write_bytes(b"".join(lines[:line - 1] + lines[line:]))
        self.jforge("run", config)
        self.jforge("verify", run)


class LostPrompts(IntegrityTest):
    def stopped(self, name, text=None, stop="train:0:3"):
        config, run = self.config(name, text)
        self.jforge("run", config, "--inject", f"interrupt@{stop}", expect=75)
        return config, run

    def test_prompts_are_imported_anew_when_they_come_out_the_same(self):
        damages = {"lost": lambda path: path.unlink(), "flipped": flip,
                   "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
                   "empty": lambda path: path.write_bytes(b""), "foreign": lambda path: path.write_bytes(b"{}" * 600)}
        for kind, damage in damages.items():
            with self.subTest(damage=kind):
                config, run = self.stopped(f"anew-{kind}")
                whole = (run / "prompts.h5").read_bytes()
                damage(run / "prompts.h5")
                result = self.jforge("run", config)
                self.assertIn("prompts.h5 is lost: the prompts are imported anew", result.err)
                self.assertEqual(whole, (run / "prompts.h5").read_bytes())
                self.assertEqual(self.bytes_of(self.uninterrupted(1)), self.bytes_of(run))

    def test_other_prompts_are_refused_until_the_files_are_back(self):
        prompts = self.root / "changing.jsonl"
        shutil.copy(self.prompts, prompts)
        text = CONFIG.replace("{prompts}", str(prompts))
        config, run = self.stopped("changed", text)
        whole = (run / "prompts.h5").read_bytes()
        lines = prompts.read_text(encoding="utf-8").splitlines(keepends=True)
        prompts.write_text("".join(lines[1:]), encoding="utf-8")
        (run / "prompts.h5").unlink()
        for _ in range(2):
            self.refused(DATA, "run", config, says=["prompts.h5", "prompts.files", "another run.directory"])
            self.assertFalse((run / "prompts.h5").exists())
        other, elsewhere = self.config("elsewhere", text)
        self.jforge("import", other)
        shutil.copy(elsewhere / "prompts.h5", run)
        self.refused(DATA, "run", config, says=["holds other prompts", "remove it"])
        prompts.write_text("".join(lines), encoding="utf-8")
        (run / "prompts.h5").unlink()
        self.jforge("run", config)
        self.assertEqual(whole, (run / "prompts.h5").read_bytes())
        self.assertEqual(self.bytes_of(self.uninterrupted(1)), self.bytes_of(run))

    def test_a_trained_run_needs_them_no_more(self):
        config, run = self.config("trained")
        self.jforge("run", config)
        before = self.bytes_of(run)
        (run / "prompts.h5").unlink()
        shutil.rmtree(run / "model")
        self.jforge("run", config)
        self.assertEqual(before, self.bytes_of(run))


class FailedImport(IntegrityTest):
    def test_it_leaves_nothing_that_refuses_the_corrected_configuration(self):
        for number, bad in enumerate(('prompts.field="no_such_field"', 'prompts.files=["/nowhere/*.jsonl"]',
                                      'prompts.keep_if=["question = 5"]')):
            for words in ((), ("--resume", "never")):
                with self.subTest(bad=bad, words=words):
                    config, run = self.config(f"failed-{number}-{len(words)}")
                    self.jforge("run", config, "--set", bad, expect=DATA)
                    self.jforge("import", config, "--set", "run.seed=8", "--set", bad, expect=DATA)
                    self.jforge("import", config, *words)
                    self.refused(USAGE, "import", config, "--set", "run.seed=8", says=["run.seed"])
                    self.refused(USAGE, "import", config, "--resume", "never", says=["holds a run already"])


class StopTokens(IntegrityTest):
    def test_other_stop_tokens_are_another_model(self):
        model = shutil.copytree(self.model, self.root / "stop-tokens")
        generation = model / "generation_config.json"
        before = generation.read_text(encoding="utf-8")
        config, run = self.config("stops", CONFIG.replace("{model}", str(model)))
        self.jforge("run", config, "--inject", "interrupt@generate:0:4", expect=75)
        generation.write_text('{"eos_token_id": [258, 10]}\n', encoding="utf-8")
        self.refused(USAGE, "run", config, says=["model.hash"])
        self.refused(USAGE, "run", config, "--accept-change", "model.hash", says=["model.hash"])
        generation.unlink()
        self.refused(USAGE, "run", config, says=["model.hash"])
        generation.write_text(before, encoding="utf-8")
        self.jforge("run", config)


if __name__ == "__main__":
    unittest.main(verbosity=2)
