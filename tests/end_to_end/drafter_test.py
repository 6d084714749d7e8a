#!/usr/bin/env python3
"""A drafter from training to decoding: the model's files and its text stay as they are."""

import json
import shutil
import subprocess
import unittest

import harness
import tiny_model
from harness import EndToEndTest

try:
    import peft
    import safetensors.torch
    import torch
    import transformers
except ImportError:
    peft = None

CONFIG = harness.START + """[prompts]
files = ["{prompts}"]
field = "question"
[generate]
max_new_tokens = 24
[[rounds]]
block_size = 4
steps = 6
""" + harness.TRAIN + """drafter = "adapter"
drafter_rank = 4
drafter_alpha = 8
drafter_targets = ["q_proj", "v_proj", "down_proj"]
""" + harness.CHECKPOINT


class Drafter(EndToEndTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        case = cls()
        path, run = case.config("drafted", CONFIG)
        case.jforge("run", path, ranks=2)
        cls.run_directory, cls.drafted = run, run / "model"

    def runTest(self):
        """For setUpClass()."""

    def test_the_model_s_files_stay_and_a_checkpoint_gives_the_same_export(self):
        for path in self.model.iterdir():
            self.assertEqual(path.read_bytes(), (self.drafted / path.name).read_bytes(), path.name)
        self.assertIn("drafter: 1664 parameters, rank 4, alpha 8, targets q_proj v_proj down_proj\n",
                      self.jforge("inspect", self.drafted).out)
        self.assertNotIn("drafter", self.jforge("inspect", self.model).out)
        self.jforge("verify", self.run_directory)
        checkpoint = max((self.run_directory / "checkpoints").iterdir())
        self.jforge("export", checkpoint, self.root / "exported")
        for name in ("drafter/adapter_config.json", "drafter/adapter_model.safetensors", "jacobi_decoding.json",
                     "custom_generate/generate.py"):
            self.assertEqual((self.drafted / name).read_bytes(), (self.root / "exported" / name).read_bytes())
        refused = self.jforge("export", checkpoint, self.root / "half", "--interpolate", 0.5, expect=2)
        self.assertIn("holds a drafter", "".join(refused.lines()))
        other = tiny_model.write_model(self.root / "other", seed=2)
        self.jforge("export", checkpoint, self.root / "half", "--source", other, expect=3)
        self.assertFalse((self.root / "half").exists())

    def evaluate(self, out, model, *words, ranks=1, **options):
        return self.jforge("evaluate", "--model", model, "--tasks", "gsm8k", "--data", self.prompts, "--limit", 12,
                           "--max-new-tokens", 16, "--block-size", 4, "--out", out, "--methods",
                           "ar,draft,draft_lookup", *words, ranks=ranks, **options)

    @staticmethod
    def records(out):
        return {path.stem.removeprefix("gsm8k."): (path.read_bytes(), path.stat().st_mtime_ns)
                for path in sorted((out / "evaluation").rglob("*.jsonl"))}

    @staticmethod
    def figures(out):
        return json.loads((out / "evaluation" / "summary.json").read_text(encoding="utf-8"))["models"]["model"]["gsm8k"]

    def test_its_methods_give_the_model_s_text_at_any_rank_count(self):
        samples = {}
        for ranks, batch, storage in ((1, 1, "auto"), (2, 8, "auto"), (2, 8, "int8")):
            out = self.root / f"evaluated-{ranks}-{storage}"
            self.evaluate(out, self.drafted, "--batch-prompts", batch, "--set", f"model.decode_weights={storage}",
                          ranks=ranks)
            for method in ("draft", "draft_lookup"):
                self.assertEqual(0, self.figures(out)[method]["disagreements_with_ar"])
            samples[ranks, storage] = {name: content for name, (content, _) in self.records(out).items()}
        self.assertEqual(samples[1, "auto"], samples[2, "auto"])

    def test_another_drafter_makes_its_records_stale_and_no_other(self):
        copy, out = self.root / "changed" / "model", self.root / "changed" / "out"
        shutil.copytree(self.drafted, copy)
        (copy / "checksums.json").unlink()
        self.evaluate(out, copy)
        before = self.records(out)
        self.evaluate(out, copy)
        self.assertEqual(before, self.records(out))
        settings = {method: figures["settings"] for method, figures in self.figures(out).items()}
        config = copy / "drafter" / "adapter_config.json"
        config.write_text(config.read_text(encoding="utf-8").replace("8.0", "80.0"), encoding="utf-8")
        self.evaluate(out, copy)
        after = self.records(out)
        self.assertEqual({"ar", "draft", "draft_lookup"}, set(after))
        for method, records in after.items():
            self.assertEqual(method == "ar", before[method] == records)
            self.assertEqual(method == "ar", settings[method] == self.figures(out)[method]["settings"])

    def test_decode_and_tune_take_it_unless_told_otherwise(self):
        for model, methods in ((self.drafted, {"draft", "jacobi"}), (self.model, {"jacobi"})):
            reports = {method: self.jforge("decode", "--model", model, "--prompt", "One?", "--max-new-tokens", 100,
                                           *(["--method", method] if method else [])).err.split(" tokens per")[0]
                       for method in [None, *sorted(methods)]}
            self.assertEqual(reports["draft" if model == self.drafted else "jacobi"], reports[None])
            self.assertEqual(len(methods), len(set(reports.values())), "the methods' forwards should differ")
        copy = self.root / "tuned"  # tune writes into it
        shutil.copytree(self.drafted, copy)
        tuned = self.jforge("tune", "--model", copy, "--max-new-tokens", 16, "--prompts", self.prompts, "--set",
                            "prompts.field=question", "--set", "evaluate.speed_problems=2", "--set",
                            "evaluate.speed_repeats=2").out
        for method, takes in (("draft.", True), ("draft_lookup.", True), ("prompt_lookup.", True), ("jacobi.", False)):
            self.assertEqual(takes, method in tuned, tuned)

    def test_a_model_without_one_is_refused_in_a_line(self):
        ids = self.root / "ids.json"
        ids.write_text("[10, 20, 30]", encoding="utf-8")
        model = ("--model", self.model, "--max-new-tokens", 8)
        for words in (("decode", *model, "--prompt", "One?", "--method", "draft"),
                      ("probe", "decode", *model, "--tokens", ids, "--out", self.root / "o", "--method",
                       "draft_lookup"),
                      ("tune", *model, "--prompts", self.prompts, "--set", "prompts.field=question", "--methods",
                       "draft"),
                      ("evaluate", *model, "--tasks", "gsm8k", "--data", self.prompts, "--out", self.root / "none",
                       "--methods", "ar,draft")):
            refused = self.jforge(*words, expect=2)
            self.assertEqual(1, len(refused.lines()), str(refused))
            self.assertRegex(refused.lines()[0], r'needs a drafter, and .*source-model has none in its folder drafter')
        self.assertEqual([], list(self.root.glob("none/**/*.jsonl")))

    def decoded(self, *words):
        ids, out = self.root / "ids.json", self.root / "decoded.json"
        ids.write_text(json.dumps(self.PROMPTS), encoding="utf-8")
        self.jforge("probe", "decode", "--model", self.drafted, "--tokens", ids, "--out", out, "--max-new-tokens", 40,
                    "--method", "draft", *words)
        return [tuple(record[key] for key in ("tokens", "forwards", "accepted"))
                for record in json.loads(out.read_text(encoding="utf-8"))]

    def generated(self, model, prompts, **options):
        """Returns [(tokens, forwards, accepted)]; pads on the left."""
        width = max(map(len, prompts))
        ids = torch.tensor([[256] * (width - len(prompt)) + prompt for prompt in prompts])
        output = model.generate(input_ids=ids, attention_mask=(ids != 256).long(), max_new_tokens=40,
                                return_dict_in_generate=True, **options)
        rows = output.sequences[:, width:].tolist()
        texts = [row[:next((i + 1 for i, token in enumerate(row) if token in (256, 258)), None)] for row in rows]
        counts = getattr(output, "accepted", None) or [[]] * len(texts)
        return [(text, len(accepted), accepted) for text, accepted in zip(texts, counts)]

    PROMPTS = [list(b"3 pens and 7 more?"), list(b"How many?"), list(b"12 eggs and 4 more, or is it 5?")]

    @unittest.skipIf(peft is None, "the Python packages peft and transformers are not installed")
    def test_transformers_decodes_with_it(self):
        torch.set_num_threads(1)
        model = transformers.AutoModelForCausalLM.from_pretrained(self.drafted, dtype=torch.float32).eval()
        drafted = {"custom_generate": str(self.drafted), "trust_remote_code": True}
        greedy = {"do_sample": False, "pad_token_id": 256}
        stock = self.generated(model, self.PROMPTS, **greedy)
        for size, seed, penalty in ((None, 0, 1.0), (1, 0, 1.0), (7, 3, 1.0), (64, 5, 1.0), (4, 1, 1.3)):
            options = {"block_size": size, "seed": seed, "repetition_penalty": penalty, **greedy, **drafted}
            expected = self.decoded("--block-size", size or 4, "--seed", seed, "--repetition-penalty", penalty)
            self.assertEqual(expected, self.generated(model, self.PROMPTS, **options), f"{size} {seed} {penalty}")
            self.assertEqual(expected[:1], self.generated(model, self.PROMPTS[:1], **options))
            if penalty == 1.0:
                self.assertEqual([text for text, _, _ in stock], [text for text, _, _ in expected])
            self.assertEqual(size != 1, any(max(accepted) > 1 for _, _, accepted in expected))
        samples = []  # Drafts decide none.
        sampling = {"do_sample": True, "temperature": 0.8, "top_k": 2, "top_p": 0.95, "repetition_penalty": 1.1}
        for size in (1, 4, 16):
            torch.manual_seed(5)
            samples.append(self.generated(model, self.PROMPTS, block_size=size, seed=size, **sampling, **drafted))
            self.assertEqual([text for text, _, _ in samples[0]], [text for text, _, _ in samples[-1]], size)
            self.assertEqual(size > 1, any(max(accepted) > 1 for _, _, accepted in samples[-1]))
        folder = shutil.copytree(self.drafted / "drafter", self.root / "odd-drafter")
        config = folder / "adapter_config.json"
        config.write_text(config.read_text(encoding="utf-8").replace("{", '{"use_dora": true,', 1), encoding="utf-8")
        with self.assertRaisesRegex(ValueError, "adapter_config.json: .*plain LoRA.*use_dora"):
            self.generated(model, self.PROMPTS[:1], drafter=str(folder), **greedy, **drafted)

    @unittest.skipIf(peft is None, "the Python packages peft and transformers are not installed")
    def test_peft_reads_it(self):
        base = transformers.AutoModelForCausalLM.from_pretrained(self.drafted)
        model = peft.PeftModel.from_pretrained(base, self.drafted / "drafter")
        written = safetensors.torch.load_file(self.drafted / "drafter" / "adapter_model.safetensors")
        read = peft.get_peft_model_state_dict(model)
        self.assertEqual(set(written), set(read))
        self.assertTrue(all((read[name] == written[name]).all() for name in written))
        self.assertTrue(all(bool(written[name].any()) for name in written), "B was trained")
        self.assertEqual({2.0}, {module.scaling["default"] for module in model.modules() if hasattr(module, "lora_A")})


DRAFTER = ("--set", "train.drafter=adapter", "--set", "train.drafter_rank=4", "--set", "train.drafter_proposals=0.5",
           "--set", "train.learning_rate=2e-3")
HEAD = ("--set", "train.drafter=head", "--set", "train.drafter_layers=2", "--set", "train.learning_rate=4e-3")


class DrafterTraining(EndToEndTest):
    evaluate = True
    drafter = DRAFTER
    weights = "drafter/adapter_model.safetensors"
    others = (2, 4)
    faults = ("kill@train:0:5", "kill@train.accumulate:1:11")  # Rank 1's 11th micro-batch is in round 2.

    def assert_untouched(self, run):
        for file in self.model.iterdir():
            self.assertEqual(file.read_bytes(), (run / "model" / file.name).read_bytes(), file.name)
        self.jforge("verify", run)

    def test_every_rank_count_leaves_the_model_and_trains_the_same(self):
        alone = self.uninterrupted(1, *self.drafter)
        for ranks in self.others:
            run = self.uninterrupted(ranks, *self.drafter)
            self.assert_untouched(run)
            self.assert_close_models(alone, run, limit=1e-3, file=self.weights)
            for number in (1, 2):
                self.assertEqual(self.digest(alone, number), self.digest(run, number))
        losses = self.losses(alone)
        self.assertLess(losses[2, 5], losses[1, 1])
        methods = {row["method"]: row for row in json.loads(
            (alone / "evaluation" / "summary.json").read_text(encoding="utf-8"))["models"]["final"]["gsm8k"].values()}
        self.assertEqual({"ar", "draft"}, set(methods))

    def test_killed_and_resumed(self):
        whole = self.uninterrupted(2, *self.drafter)
        for number, fault in enumerate(self.faults):
            config, run = self.config(f"killed-{number}")
            self.jforge_with_fault(config, run, fault, *self.drafter)
            _, copy = self.config(f"killed-{number}-4")
            shutil.copytree(run, copy)
            self.jforge("run", config, *self.drafter, ranks=2)
            self.assertEqual((whole / "model" / self.weights).read_bytes(), (run / "model" / self.weights).read_bytes(),
                             fault)
            self.jforge("run", self.root / f"{copy.name}.toml", *self.drafter, ranks=4)
            self.assert_close_models(whole, copy, limit=1e-3, file=self.weights)
            self.assert_untouched(copy)


class DrafterSettings(EndToEndTest):
    evaluate = True

    def test_what_a_frozen_model_has_no_use_for_is_refused(self):
        config, _ = self.config("refused")
        result = self.jforge("run", config, "--set", "evaluate.methods=['ar', 'draft']", expect=2)
        self.assertIn('evaluate.methods: "draft" needs a drafter, and this run trains none', result.err)
        result = self.jforge("run", config, *DRAFTER, "--set", "evaluate.methods=['ar', 'draft_tree']", expect=2)
        self.assertIn('evaluate.methods: "draft_tree" needs a head, and this run trains none', result.err)
        for number, (drafter, setting, advice) in enumerate((
                (DRAFTER, "train.zero_stage=3", "set train.zero_stage = 0 or 1"),
                (DRAFTER, "train.ar_weight=1", "set train.ar_weight = 0"),
                (DRAFTER, "train.early_stop_every=2", "set train.early_stop_every = 0"),
                (DRAFTER, "train.drafter_rank=0", "must be positive"),
                (DRAFTER, "train.drafter_targets=['qkv']", "such as \"q_proj\""),
                (DRAFTER, "rounds.2.mask=noise", "mask must be \"clean\""),
                (DRAFTER, "train.recipe=jacobi-forcing", "contradicts train.recipe"),
                (HEAD, "train.drafter_proposals=0.5", "leave it out"),
                (HEAD, "train.drafter_layers=0", "not at least 1"),
                (HEAD, "train.drafter_features=[1, 0]", "must be ascending"),
                (HEAD, "train.drafter_features=7", "an array of whole numbers"),
                (HEAD, "train.drafter_mask_token=9999", "outside the vocabulary"))):
            config, _ = self.config(f"refused-{number}")
            result = self.jforge("run", config, *drafter, "--set", setting, expect=2)
            self.assertIn(advice, result.err)
            self.assertEqual(1, len([line for line in result.lines() if line.startswith("jforge:")]), str(result))


class HeadTraining(DrafterTraining):
    drafter = HEAD
    weights = "drafter/model.safetensors"
    others = (4,)
    faults = ("kill@train.accumulate:1:11",)

    def test_a_checkpoint_gives_the_same_export_and_proposals_are_what_dflash_defines(self):
        run = self.uninterrupted(1, *HEAD, "--set", "rounds.1.steps=60", "--set", "train.learning_rate=1e-2")
        checkpoint = max((run / "checkpoints").iterdir())
        self.jforge("export", checkpoint, self.root / "exported")
        for name in ("drafter/config.json", "drafter/model.safetensors"):
            self.assertEqual((run / "model" / name).read_bytes(), (self.root / "exported" / name).read_bytes())
        self.assertRegex(self.jforge("inspect", run / "model").out,
                         r"drafter: \d+ parameters, 2 layers that read layers 0 of the model, mask token \d+\n")
        ids, out = self.root / "ids.json", self.root / "decoded.json"
        prompts = [list(b"3 pens and 7 more?"), list(b"How many?")]
        ids.write_text(json.dumps(prompts), encoding="utf-8")
        forwards = {}
        for size, *rows in ((2,), (4,), (7,), (4, 4), (4, 9), (7, 20)):
            method = ["--method", "draft_tree", "--setting", f"tree_rows={rows[0]}"] if rows else ["--method", "draft"]
            self.jforge("probe", "decode", "--model", run / "model", "--tokens", ids, "--out", out, "--max-new-tokens", 40,
                        *method, "--block-size", size, "--ignore-eos")
            # Debian's Python has numpy.
            reference = subprocess.run(["/usr/bin/python3", "-B", harness.SOURCE / "tests/end_to_end/dflash_reference.py",
                                        run / "model", ids, "40", *map(str, [size, *rows])], check=True,
                                       capture_output=True, text=True)
            expected = json.loads(reference.stdout)
            found = [[record["tokens"], record["accepted"]] for record in json.loads(out.read_text(encoding="utf-8"))]
            self.assertEqual(expected, found, (size, rows))
            self.assertTrue(any(max(accepted) > 1 for _, accepted in found), "no proposal was right")
            forwards[size, *rows] = sum(len(accepted) for _, accepted in found)
        self.assertLess(forwards[7, 20], forwards[7,], "the tree should save passes")


if __name__ == "__main__":
    unittest.main()
