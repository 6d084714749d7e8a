#!/usr/bin/env python3
"""The single commands on a finished run's artefacts, also damaged ones."""

import json
import math
import os
import shutil
import subprocess
import unittest
import xml.etree.ElementTree

import tiny_model
from harness import EndToEndTest


class Artefacts(EndToEndTest):
    def ids_file(self, name, ids):
        path = self.root / f"{name}.json"
        path.write_text(json.dumps(ids), encoding="utf-8")
        return path

    def test_tokenize_is_exact_both_ways(self):
        text = "7 eggs,\n a cup\u00e9 \u4e2d <|im_end|>\n"
        ids = self.jforge("tokenize", "--model", self.model, stdin=text.encode()).out
        words = ids.split()
        self.assertEqual(len(text.encode()) - len("<|im_end|>") + 1, len(words))
        self.assertIn("258", words)
        self.assertEqual(" ".join(words) + "\n", ids)
        self.assertEqual(text, self.jforge("tokenize", "--model", self.model, "--decode", stdin=ids.encode()).out)
        self.jforge("tokenize", "--model", self.model, "--decode", stdin=b"12 x", expect=3)

    def test_decode_prints_an_answer_and_a_trace(self):
        words = ("decode", "--model", self.model, "--prompt", "3 pens?", "--max-new-tokens", "16", "--block-size", "4")
        plain = self.jforge(*words)
        self.assertIn("tokens per forward", plain.err)
        greedy = self.jforge(*words, "--method", "ar")
        self.assertEqual(plain.out, greedy.out)
        for method in ("jacobi", "mr"):
            traced = self.jforge(*words, "--method", method, "--trace")
            self.assertTrue(traced.out.endswith("\n" + greedy.out))
            shown = traced.out[: -len(greedy.out)]
            self.assertTrue(shown.startswith("pass known  [accepted]"))
            passes = len(shown.splitlines()) - 2
            self.assertIn(f" {passes} forwards", traced.err)
            fifo = self.root / f"{method}.fifo"
            os.mkfifo(fifo)
            reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE)
            self.jforge(*words, "--method", method, "--compare-svg", fifo)
            xml.etree.ElementTree.fromstring(reader.communicate(timeout=60)[0])
            self.assertTrue(fifo.is_fifo())
            picture = self.root / f"{method}.compare.svg"
            compared = self.jforge(*words, "--method", method, "--compare", "--compare-svg", picture).out
            self.assertRegex(compared, rf"^ar: \d+ passes, 1\.00 tokens each, .* {method}: {passes} passes")
            drawn = "".join(xml.etree.ElementTree.parse(picture).getroot().itertext())
            self.assertRegex(drawn, rf"ar: \d+ passes(.|\n)*{method}: {passes} passes")

    def decode(self, name, ids, *options):
        out = self.root / f"{name}.out.json"
        self.jforge("probe", "decode", "--model", self.model, "--tokens", self.ids_file(name, ids), "--max-new-tokens",
                    "23", "--out", out, *options)
        return json.loads(out.read_text(encoding="utf-8"))

    def test_probe_decode_jacobi_equals_ar(self):
        sequences = [[10, 20, 30], [257, 84, 83], list(range(40, 60))]
        greedy = self.decode("ar", sequences, "--method", "ar")
        self.assertEqual(3, len(greedy))
        for size in (1, 4, 16):
            for window in ("shrinking", "running"):
                with self.subTest(size=size, window=window):
                    jacobi = self.decode("jacobi", sequences, "--method", "jacobi", "--window", window, "--block-size",
                                         str(size), "--seed", "3")
                    for expected, actual in zip(greedy, jacobi, strict=True):
                        self.assertEqual(expected["tokens"], actual["tokens"])
                        self.assertEqual(expected["stop"], actual["stop"])
                        self.assertEqual(1, actual["prefill_forwards"])
                        self.assertEqual(actual["forwards"], len(actual["accepted"]))
                        self.assertLessEqual(len(actual["tokens"]), 23)
                        self.check_states(actual, size, window)

    def check_states(self, answer, size, window):
        if window == "running":
            return
        fixed = []
        for block in answer["blocks"]:
            states = block["states"]
            self.assertTrue(all(len(state) == size for state in states))
            self.assertTrue(all(a != b for a, b in zip(states, states[1:])), "each change once")
            fixed += states[-1]
        self.assertEqual(answer["tokens"], fixed[:len(answer["tokens"])])

    def test_probe_logits_forms(self):
        for name, ids, tensors in (("one", [1, 2, 3], {"logits": 3}),
                                   ("many", [[1, 2], [3, 4, 5]], {"logits.0": 2, "logits.1": 3})):
            out = self.root / f"{name}.safetensors"
            self.jforge("probe", "logits", "--model", self.model, "--tokens", self.ids_file(name, ids), "--out", out)
            found = tiny_model.read_safetensors(out)
            self.assertEqual({key: ("F32", [rows, tiny_model.VOCABULARY]) for key, rows in tensors.items()},
                             {key: (dtype, shape) for key, (dtype, shape, _) in found.items()})
        outside = self.ids_file("outside", [1, 100000])
        self.jforge("probe", "logits", "--model", self.model, "--tokens", outside, "--out", self.root / "no",
                    expect=3)

    def test_probe_likelihood_is_that_of_the_logits(self):
        pairs = [("2 and 3?", "5"), ("Zwölf?", "12, I think.\n#### 12")]
        path, out = self.root / "pairs.jsonl", self.root / "likelihood.jsonl"
        path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in pairs), encoding="utf-8")
        self.jforge("probe", "likelihood", "--model", self.model, "--pairs", path, "--out", out)
        found = [json.loads(line)["log_probabilities"] for line in out.read_text(encoding="utf-8").splitlines()]
        self.assertEqual(2, len(found))
        for (question, answer), values in zip(pairs, found):
            text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>"
            ids = [int(word) for word in self.jforge("tokenize", "--model", self.model,
                                                     stdin=text.encode()).out.split()]
            logits = self.root / "likelihood.safetensors"
            self.jforge("probe", "logits", "--model", self.model, "--tokens", self.ids_file("likelihood", ids),
                        "--out", logits)
            rows = tiny_model.read_floats(logits)["logits"]
            count = len(answer.encode()) + 1  # a token for each byte, and the end
            self.assertEqual(count, len(values))
            for place, value in zip(range(len(ids) - count, len(ids)), values):
                row = rows[(place - 1) * tiny_model.VOCABULARY:place * tiny_model.VOCABULARY]
                expected = row[ids[place]] - math.log(sum(map(math.exp, row)))
                self.assertAlmostEqual(expected, value, 5)
        path.write_text('{"question": "a"}\n', encoding="utf-8")
        self.assertIn(f"{path}:1", self.jforge("probe", "likelihood", "--model", self.model, "--pairs", path, "--out",
                                               out, expect=3).lines()[0])

    def test_probe_loss_has_every_gradient(self):
        packed = {"prompt": [1, 2, 3], "block_size": 2, "window": 2, "noisy": [[4, 5], [6, 7]],
                  "clean": [[8, 5], [9, 10]], "eos": [258, 256], "prompt_id": 1}

        def loss(*settings):
            out = self.root / "loss.safetensors"
            self.jforge("probe", "loss", "--model", self.model, "--packed", self.ids_file("packed", packed), "--out", out,
                        *(word for setting in settings for word in ("--set", setting)))
            return out

        values = tiny_model.read_floats(loss("train.ar_weight=2", "train.consistency_weight=0.5"))
        self.assertEqual({"loss", "consistency_loss", "ar_loss", *tiny_model.tensor_shapes()}, set(values))
        self.assertAlmostEqual(values["loss"][0], values["consistency_loss"][0] / 2 + 2 * values["ar_loss"][0], 4)
        shapes = {name: shape for name, (_, shape, _) in tiny_model.read_safetensors(loss()).items()}
        for name, shape in tiny_model.tensor_shapes().items():
            self.assertEqual(shape, shapes[name])
        # Mixed masks train odd prompts on clean context.
        clean = tiny_model.read_floats(loss("rounds.1.mask=clean"))
        self.assertEqual(clean, tiny_model.read_floats(loss("rounds.1.mask=mixed")))
        self.assertNotEqual(clean, tiny_model.read_floats(loss()))
        # A model that is its own frozen teacher equals a detached one.
        frozen = tiny_model.read_floats(loss("rounds.1.mask=clean", "train.teacher=frozen"))
        self.assertAlmostEqual(clean["loss"][0], frozen["loss"][0], 5)
        decayed = loss("rounds.1.mask=clean", "train.consistency_decay=0.8").read_bytes()
        self.assertEqual(decayed, loss("train.recipe=clean-context").read_bytes())
        self.assertNotEqual(decayed, loss("rounds.1.mask=clean").read_bytes())

    def test_export_gives_the_run_s_model(self):
        run = self.uninterrupted(2)
        newest = sorted((run / "checkpoints").iterdir())[-1]
        out = self.root / "exported"
        self.jforge("export", newest, out, "--dtype", "float32")
        self.assertEqual((run / "model" / "model.safetensors").read_bytes(), (out / "model.safetensors").read_bytes())
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            self.assertTrue((out / name).exists(), name)
        self.assertEqual((self.model / "tokenizer.json").read_bytes(), (out / "tokenizer.json").read_bytes())
        for name in ("jacobi_decoding.json", "custom_generate/generate.py"):
            self.assertEqual((run / "model" / name).read_bytes(), (out / name).read_bytes(), name)
        self.jforge("export", newest, self.root / "half")
        halves = tiny_model.read_safetensors(self.root / "half" / "model.safetensors")
        self.assertEqual({"BF16"}, {dtype for dtype, _, _ in halves.values()})
        self.jforge("verify", self.root / "half")

    def test_export_interpolates_weights(self):
        newest = sorted((self.uninterrupted(2) / "checkpoints").iterdir())[-1]

        def exported(*options):
            out = self.root / "-".join(["interpolated", *options])
            self.jforge("export", newest, out, "--dtype", "float32", *options)
            return tiny_model.read_floats(out / "model.safetensors")

        end, begin = exported(), tiny_model.read_floats(self.model / "model.safetensors")
        self.assertEqual(end, exported("--interpolate", "1"))
        self.assertEqual(begin, exported("--interpolate", "0"))
        for name, values in exported("--interpolate", "0.25").items():
            for value, first, last in zip(values, begin[name], end[name], strict=True):
                self.assertAlmostEqual(first + 0.25 * (last - first), value, 6)
        self.assertNotEqual(begin, end)
        for share in ("1.5", "-0.1", "half", "nan"):
            refused = self.jforge("export", newest, self.root / "refused", "--interpolate", share, expect=2)
            self.assertIn("--interpolate", refused.err)
        self.assertFalse((self.root / "refused").exists())

    def test_export_interpolates_towards_the_model_of_the_run_only(self):
        source = shutil.copytree(self.model, self.root / "replaced")
        config, run = self.config("from-another")
        self.jforge("run", config, "--set", f'model.source="{source}"', "--inject", "interrupt@train:0:2", expect=75)
        checkpoint = run / "checkpoints" / "round-1-step-00000002"
        tiny_model.write_safetensors(source / "model.safetensors", tiny_model.random_tensors(2))
        refused = self.jforge("export", checkpoint, self.root / "mixed", "--interpolate", "0.5", expect=3)
        self.assertIn(f"{source}: not the model any more", refused.err)
        self.jforge("export", checkpoint, self.root / "mixed", "--interpolate", "0.5", "--source", self.model)

    def test_export_does_not_write_over_what_is_there(self):
        newest = sorted((self.uninterrupted(2) / "checkpoints").iterdir())[-1]
        before = (self.model / "model.safetensors").read_bytes()
        refused = self.jforge("export", newest, self.model, expect=2)
        self.assertIn(f"{self.model}: exists already", refused.err)
        self.assertEqual(before, (self.model / "model.safetensors").read_bytes())
        empty = self.root / "empty"
        empty.mkdir()
        self.jforge("export", newest, empty)
        self.assertIn("exists already", self.jforge("export", newest, empty, expect=2).err)

    def artefact_paths(self, run):
        return [run, run / "prompts.h5", run / "round-1" / "trajectories", run / "model",
                sorted((run / "checkpoints").iterdir())[-1]]

    def test_verify_and_inspect_know_every_artefact(self):
        run = self.uninterrupted(2)
        for path in self.artefact_paths(run):
            with self.subTest(path=path.name):
                self.assertIn(path.name, self.jforge("verify", path).out)
                self.assertIn(path.name, self.jforge("inspect", path).out)
        self.jforge("verify", self.root / "nothing-here", expect=3)
        self.jforge("inspect", self.root, expect=3)

    def test_inspect_reports_the_digest_of_generation(self):
        run = self.uninterrupted(2)
        self.assertIn(self.digest(run, 1), self.jforge("inspect", run / "round-1" / "trajectories").out)

    def test_verify_calls_no_other_file_damaged(self):
        for name in ("prompts.jsonl", "notes.md"):
            path = self.root / name
            if not path.exists():
                path.write_text("# notes\n", encoding="utf-8")
            for command in ("verify", "inspect"):
                result = self.jforge(command, path, expect=3)
                self.assertIn("is not a prompt store", result.err)
                self.assertNotIn("delete", result.err)

    def test_a_damaged_newest_checkpoint_is_skipped(self):
        config, run = self.config("fallback")
        self.jforge("run", config, "--inject", "interrupt@train:0:5", ranks=2, expect=75)
        newest = sorted((run / "checkpoints").iterdir())[-1]
        victim = newest / "shard-00001-of-00002.h5"
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
        result = self.jforge("run", config, ranks=2)
        self.assertRegex(result.err, rf"checkpoint skipped: .*{newest.name}")
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))

    def test_a_damaged_trajectory_shard_is_generated_again(self):
        config, run = self.config("again")
        self.jforge("run", config, "--inject", "interrupt@train:0:1", ranks=2, expect=75)
        victim = sorted((run / "round-1" / "trajectories").glob("lease-*"))[0]
        victim.write_bytes(victim.read_bytes()[:-100])
        self.jforge("run", config, ranks=2)
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))

    def test_a_damaged_shard_of_a_later_round_is_generated_again(self):
        """The checkpoint that ended round 1 generates it."""
        config, run = self.config("later")
        # Rank 0's 9th micro-batch is in round 2's third step.
        self.jforge("run", config, "--inject", "interrupt@train.accumulate:0:9", ranks=2, expect=75)
        self.assertEqual((2, 3), self.checkpoint_steps(run)[-1])
        victim = sorted((run / "round-2" / "trajectories").glob("lease-*.h5"))[0]
        victim.write_bytes(victim.read_bytes()[:-100])
        again = self.jforge("run", config, ranks=2)
        self.assertIn("set aside", again.err)
        self.assertEqual(self.digest(self.uninterrupted(2), 2), self.digest(run, 2))
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))

    def test_phases_alone_make_the_same_run(self):
        config, run = self.config("phases")
        self.jforge("train", config, "--round", "1", ranks=2, expect=2)
        self.jforge("import", config, ranks=2)
        report = (run / "prompts_import.json").read_bytes()
        (run / "prompts_import.json").unlink()
        for number in ("1", "2"):
            self.jforge("generate", config, "--round", number, ranks=2)
            self.assertEqual(report, (run / "prompts_import.json").read_bytes())
            figures = run / f"round-{number}" / "generation.json"
            content = figures.read_bytes()
            figures.unlink()
            self.jforge("train", config, "--round", number, ranks=2)
            self.assertEqual(content, figures.read_bytes())
        self.jforge("run", config, ranks=2)
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))

    def test_dry_run_writes_nothing(self):
        config, run = self.config("dry")
        plan = self.jforge("run", config, "--dry-run", "--set", "prompts.limit=24").out
        self.assertIn("lease", plan)
        self.assertRegex(plan, r"measured here, each rank: \d+\.\d GFLOP/s in decoding, \d+\.\d in training, \d+\.\d GB/s")
        self.assertRegex(plan, r"(?m)^time, estimated, all rounds: at most \d")
        self.assertFalse(run.exists())

    def test_probe_serves_a_model_without_tokenizer(self):
        bare = self.root / "bare"
        shutil.copytree(self.model, bare, ignore=shutil.ignore_patterns("tokenizer*"))
        files = []
        for model in (self.model, bare):
            out = self.root / f"{model.name}.safetensors"
            self.jforge("probe", "logits", "--model", model, "--tokens", self.ids_file("bare", [1, 2]), "--out", out)
            files.append(out.read_bytes())
        self.assertEqual(*files)


if __name__ == "__main__":
    unittest.main(verbosity=2)
