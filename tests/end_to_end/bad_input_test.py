#!/usr/bin/env python3
"""Bad input gives one clear line, the documented exit code, and no damage."""

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import unittest

import tiny_model
from harness import BINARY, CONFIG, EndToEndTest

USAGE, INPUT, ENVIRONMENT = 2, 3, 4


class BadInput(EndToEndTest):
    def refused(self, code, *words, says=(), ranks=1, **options):
        """Returns the error line, which has every text of `says`."""
        result = self.jforge(*words, ranks=ranks, expect=code, timeout=60, **options)
        lines = result.lines()
        self.assertTrue(lines, f"no error line: {result}")
        if ranks == 1:
            self.assertEqual(1, len(lines), str(result))
        for text in says:
            self.assertIn(str(text), lines[0], str(result))
        self.assertNotIn("terminate called", result.err)
        return lines[0]

    def model_copy(self, name):
        return shutil.copytree(self.model, self.root / f"model-{name}")

    def run_refused(self, name, code, *settings, says=(), ranks=1, text=None):
        config, run = self.config(f"{name}-{ranks}", text)
        line = self.refused(code, "run", config, *settings, says=says, ranks=ranks)
        self.assertFalse((run / "model").exists())
        return line


class BadModels(BadInput):
    def check(self, name, damage, *says):
        model = self.model_copy(name)
        damage(model)
        setting = ("--set", f'model.source="{model}"')
        self.run_refused(name, INPUT, *setting, says=says)
        self.refused(INPUT, "verify", model, says=says)

    def rewrite(self, change):
        """`change`: changes the tensors, {name: (shape, bytes)}."""
        def damage(model):
            tensors = tiny_model.random_tensors(1)
            change(tensors)
            tiny_model.write_safetensors(model / "model.safetensors", tensors)
        return damage

    @staticmethod
    def config_damage(**changes):
        def damage(model):
            path = model / "config.json"
            config = json.loads(path.read_text(encoding="utf-8"))
            config.update(changes)
            path.write_text(json.dumps(config), encoding="utf-8")
        return damage

    def test_truncated_weights(self):
        size = (self.model / "model.safetensors").stat().st_size
        for keep in (0, 5, size // 2, size - 1):
            with self.subTest(keep=keep):
                self.check(f"truncated-{keep}", lambda model, keep=keep: os.truncate(model / "model.safetensors", keep),
                           "model.safetensors")

    def test_damaged_or_foreign_models(self):
        def header(model):
            path = model / "model.safetensors"
            path.write_bytes(struct.pack("<Q", 1 << 40) + path.read_bytes()[8:])

        def reshape(tensors):
            tensors["model.layers.1.mlp.up_proj.weight"] = ([32, 64], tensors["model.layers.1.mlp.up_proj.weight"][1])

        bias = "model.layers.0.self_attn.k_proj.bias"
        for name, damage, *says in (
                ("header", header, "model.safetensors", "header", str(1 << 40)),
                ("shape", self.rewrite(reshape), "model.layers.1.mlp.up_proj.weight", "[32, 64]", "[64, 32]"),
                ("missing", self.rewrite(lambda tensors: tensors.pop(bias)), bias, "missing"),
                ("none", lambda model: (model / "model.safetensors").unlink(), "model.safetensors"),
                ("gpt2", self.config_damage(architectures=["GPT2LMHeadModel"], model_type="gpt2"), "GPT2LMHeadModel",
                 "Qwen2ForCausalLM"),
                ("type", self.config_damage(hidden_size="32"), "config.json", "hidden_size")):
            with self.subTest(name=name):
                self.check(name, damage, *says)

    def test_two_ranks_name_the_tensor_too(self):
        model = self.model_copy("ranks")
        self.rewrite(lambda tensors: tensors.pop("model.norm.weight"))(model)
        self.run_refused("ranks", INPUT, "--set", f'model.source="{model}"', says=["model.norm.weight"], ranks=2)

    def test_no_model_there(self):
        self.run_refused("absent", INPUT, "--set", 'model.source="/nonexistent/model"', says=["/nonexistent/model"])

    def test_broken_tokenizer(self):
        model = self.model_copy("tokenizer")
        (model / "tokenizer.json").write_text('{"model": {"type": "BPE"', encoding="utf-8")
        self.run_refused("tokenizer", INPUT, "--set", f'model.source="{model}"', says=["tokenizer.json"])

    def test_tokenizer_of_another_model(self):
        """It is refused even if no prompt uses the token."""
        def damage(model):
            path = model / "tokenizer.json"
            tokenizer = json.loads(path.read_text(encoding="utf-8"))
            tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": 300, "content": "<|extra|>"})
            path.write_text(json.dumps(tokenizer), encoding="utf-8")
        says = ["tokenizer", "300", "258", "do not belong together"]
        self.check("larger", damage, *says)
        model = self.root / "model-larger"
        prompts = self.root / "extra.jsonl"
        prompts.write_bytes(b'{"question": "one <|extra|> two"}\n' + self.prompts.read_bytes())
        settings = ("--set", f'model.source="{model}"', "--set", f'prompts.files=["{prompts}"]')
        self.run_refused("extra", INPUT, *settings, says=says, ranks=2)
        self.refused(INPUT, "decode", "--model", model, "--prompt", "<|extra|>", says=says)
        self.refused(INPUT, "evaluate", "--model", model, "--tasks", "gsm8k", "--data", self.prompts, "--out",
                     self.root / "extra-evaluation", says=says)

    def test_a_template_whose_turns_do_not_stop_the_model(self):
        """Only <|endoftext|> ends a sequence, as in Qwen2.5 Base."""
        model = self.model_copy("base")
        path = model / "generation_config.json"
        path.write_text('{"eos_token_id": 256}', encoding="utf-8")
        says = [model, "ends a turn with <|im_end|> (token 258)", 'set "eos_token_id": [258, 256]']
        source = ("--set", f'model.source="{model}"')
        self.run_refused("base", INPUT, *source, says=says)
        for words in (("import",), ("import", "--dry-run"), ("run", "--dry-run")):
            self.refused(INPUT, words[0], self.config("base-" + "".join(words))[0], *words[1:], *source, says=says)
        decode = ("decode", "--model", model, "--prompt", "a", "--max-new-tokens", "4")
        evaluate = ("evaluate", "--model", model, "--tasks", "gsm8k", "--data", self.prompts, "--methods", "ar",
                    "--set", "evaluate.limit=2", "--set", "evaluate.max_new_tokens=4",
                    "--set", "evaluate.speed_problems=0")
        for index, words in enumerate((decode, (*evaluate, "--out", self.root / "base-evaluation"))):
            told = self.jforge(*words).err
            self.assertEqual(1, told.count("ends a turn with <|im_end|> (token 258)"), told)
            self.assertEqual(index, told.count("2 of 2 answers were cut at evaluate.max_new_tokens = 4"), told)
        path.write_text('{"eos_token_id": [258, 256]}', encoding="utf-8")
        self.jforge("import", self.config("base-mended")[0], *source)
        self.assertNotIn("ends a turn", self.jforge(*decode).err)

    def test_template_arguments(self):
        model = self.model_copy("arguments")
        path = model / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["chat_template"] = "{{ strftime_now('%d %B') }}" + config["chat_template"]
        path.write_text(json.dumps(config), encoding="utf-8")
        decode = ("decode", "--model", model, "--prompt", "a", "--max-new-tokens", "4")
        self.refused(USAGE, *decode, says=["the present day (strftime_now)", 'strftime_now = "2026-01-31"'])
        self.jforge(*decode, "--template-argument", "strftime_now=2026-01-31")
        self.refused(USAGE, *decode, "--template-argument", "enable_thinking=true",
                     says=["does not name enable_thinking"])
        source = ("--set", f'model.source="{model}"')
        day = ("--set", 'prompts.template_arguments={strftime_now="2026-01-31"}')
        imported = self.config("arguments")[0]
        self.refused(USAGE, "import", imported, *source, says=["the present day (strftime_now)"])
        self.jforge("import", imported, *source, *day)
        self.refused(USAGE, "import", imported, *source, "--set",
                     'prompts.template_arguments={strftime_now="2026-02-01"}', says=["prompts.template_arguments"])

    def test_unknown_template(self):
        model = self.model_copy("template")
        path = model / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["chat_template"] = "{% include 'prompt' %}{{ messages[0]['content'] }}"
        path.write_text(json.dumps(config), encoding="utf-8")
        self.run_refused("template", USAGE, "--set", f'model.source="{model}"', says=["chat template", model])
        for words in (("import", "--dry-run"), ("run", "--dry-run")):
            planned = self.config(f"template-{words[0]}")[0]
            self.refused(USAGE, words[0], planned, *words[1:], "--set", f'model.source="{model}"',
                         says=["line 1: no loader", model])
            self.jforge(*words, planned, "--set", f'model.source="{model}"', "--set", "prompts.template=chatml")
        pairs = self.root / "template-pairs.jsonl"
        pairs.write_text('{"question": "two plus two?", "answer": "four"}\n', encoding="utf-8")
        probe = ("probe", "likelihood", "--model", model, "--pairs", pairs, "--out", self.root / "template-likelihood.jsonl")
        for words in (("decode", "--model", model, "--prompt", "a", "--max-new-tokens", "4"), probe):
            self.refused(USAGE, *words, says=["chat template", "--template chatml"])
            self.jforge(*words, "--template", "chatml")
        output = self.root / "template-finetuned"
        tune = self.root / "template-finetune.toml"
        tune.write_text(f'[run]\ndirectory = "{self.root}/template-tune"\n[model]\nsource = "{model}"\n[finetune]\n'
                        f'output = "{output}"\nfiles = ["{pairs}"]\nsteps = 1\n[train]\nbatch_samples = 1\n'
                        'tokens_per_rank = 256\n', encoding="utf-8")
        self.refused(USAGE, "finetune", tune, says=["chat template", "[finetune]"])
        self.refused(USAGE, "finetune", tune, "--set", "finetune.template=llama", says=["finetune.template", "chatml"])
        self.jforge("finetune", tune, "--set", "finetune.template=chatml")
        self.jforge("decode", "--model", output, "--prompt", "a", "--max-new-tokens", "4", "--template", "chatml")

    def test_no_renderer_of_templates(self):
        folder = self.root / "programs"
        folder.mkdir()
        environment = {**os.environ, "PATH": str(folder)}
        decode = ("decode", "--model", self.model, "--prompt", "a", "--max-new-tokens", "4")
        self.refused(ENVIRONMENT, *decode, env=environment, says=[self.model, "apt-get install python3-jinja2"])
        python = folder / "python3"
        for text, says in (("exec /usr/bin/python3 -S \"$@\"", "has; install it with: apt-get install python3-jinja2"),
                           ("kill -9 $$", "killed by signal 9")):
            python.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            python.chmod(0o755)
            self.refused(ENVIRONMENT, *decode, env=environment, says=[self.model, "Python's jinja2", says])

    def test_a_model_of_others_in_the_run_directory_is_not_replaced(self):
        config, run = self.config("others-model")
        other = shutil.copytree(self.model, run / "model")
        (other / "notes.txt").write_text("mine", encoding="utf-8")
        self.refused(USAGE, "run", config, says=["config.json, ", other])
        self.assertEqual("mine", (other / "notes.txt").read_text(encoding="utf-8"))
        self.assertFalse((run / "prompts.h5").exists())

    def test_an_evaluation_that_cannot_be_done_is_refused_before_all_work(self):
        task = ("--set", 'evaluate.tasks=["gsm8k"]', "--set")
        for name, setting, says in (("data", "evaluate.data=/nonexistent", "/nonexistent"),
                                    ("positions", f"evaluate.data={self.prompts}", "evaluate.max_new_tokens")):
            for words in ((), ("--dry-run",)):
                config, run = self.config(f"evaluation-{name}")
                self.refused(INPUT, "run", config, *task, setting, "--set", "evaluate.max_new_tokens=100000", *words,
                             says=[says])
                self.assertFalse((run / "prompts.h5").exists())


class BadConfigurations(BadInput):
    def test_unknown_key(self):
        self.run_refused("unknown", USAGE, text=CONFIG.replace("seed = 7", "sede = 7"), says=["sede"])
        self.run_refused("unknown", USAGE, text=CONFIG.replace("seed = 7", "sede = 7"), says=["sede"], ranks=2)
        self.run_refused("section", USAGE, text=CONFIG + "[trian]\nx = 1\n", says=["trian"])

    def test_wrong_type(self):
        self.run_refused("type", USAGE, text=CONFIG.replace("steps = 6", 'steps = "six"'), says=["steps"])
        self.run_refused("enum", USAGE, text=CONFIG.replace('"random"', '"chance"'), says=["schedule", "random"])

    def test_out_of_range(self):
        self.run_refused("range", USAGE, "--set", "train.batch_samples=0", says=["batch_samples"])
        self.run_refused("both", USAGE, text=CONFIG.replace("steps = 6", "steps = 6\nepochs = 1.0"), says=["epochs"])
        for value in ("nan", "0", "-5", "9"):
            self.run_refused("hang", USAGE, "--set", f"run.hang_limit_seconds={value}", says=["run.hang_limit_seconds"])
        self.run_refused("task", USAGE, "--set", "train.filter_task=foo", "--set", "prompts.answer_field=answer",
                         says=["train.filter_task", "foo"])
        self.run_refused("idle", USAGE, "--set", "train.batch_samples=1", says=["batch_samples"], ranks=2)
        self.run_refused("planned", USAGE, "--set", "train.batch_samples=4", "--dry-run", "--ranks", "64",
                         says=["train.batch_samples = 4 is fewer than the 64 ranks"])

    def test_another_language(self):
        for name, language in (("my.yaml", "YAML"), ("my.json", "JSON")):
            for words in (("run", self.root / name), ("init", self.root / name)):
                self.refused(USAGE, *words, says=[name, f"is TOML, not {language}", f"jforge init {self.root / 'my.toml'}"])

    def test_not_toml(self):
        self.run_refused("toml", USAGE, text=CONFIG + "= 3\n", says=["toml-1.toml"])

    def test_no_configuration_there(self):
        self.refused(USAGE, "run", self.root / "absent.toml", says=["absent.toml"])

    def test_answers_without_room_are_refused_before_the_import(self):
        for words in ((), ("--dry-run",)):
            for setting, says in (("generate.max_new_tokens=512", ["max_position_embeddings = 256"]),
                                  ("train.tokens_per_rank=16", ["train.tokens_per_rank = 16"])):
                with self.subTest(words=words, setting=setting):
                    config, run = self.config("room")
                    self.refused(USAGE, "run", config, "--set", setting, *words, says=says)
                    self.assertFalse((run / "prompts.h5").exists())

    def test_longest_prompt_and_answer_beyond_the_model_s_positions(self):
        self.run_refused("positions", USAGE, "--set", "generate.max_new_tokens=240", "--set",
                         "train.tokens_per_rank=1024",
                         says=["the longest prompt has", "prompts.max_prompt_tokens to 16 or less"])

    def test_a_later_round_s_lengths_are_looked_at_before_the_first(self):
        config, run = self.config("later-blocks", CONFIG.replace("block_size = 8", "block_size = 82"))
        self.refused(USAGE, "run", config, "--set", "train.tokens_per_rank=4096", "--set", "generate.max_new_tokens=190",
                     says=["the longest prompt has"])
        self.assertFalse((run / "round-1").exists())

    def test_filters_that_keep_nothing_are_refused_before_answers_are_made(self):
        config, run = self.config("unanswered")
        self.refused(USAGE, "run", config, "--set", "prompts.answer_field=solution", "--set", "train.filter_task=gsm8k",
                     says=['prompts.answer_field = "solution"'])
        self.assertFalse((run / "round-1").exists())

    def test_without_rounds(self):
        text = CONFIG[:CONFIG.index("[[rounds]]")] + CONFIG[CONFIG.index("[train]"):]
        for words in (("run",), ("run", "--dry-run"), ("generate", "--round", "1"), ("train", "--round", "1")):
            self.refused(USAGE, words[0], self.config("no-rounds", text)[0], *words[1:], says=["[[rounds]]"])
        self.jforge("import", self.config("no-rounds-import", text)[0])

    def test_a_plan_misses_the_prompts(self):
        config, run = self.config("planned-prompts")
        self.refused(INPUT, "run", config, "--dry-run", "--set", 'prompts.files=["/nonexistent/*.jsonl"]',
                     says=["'/nonexistent/*.jsonl' matches no file"])

    def test_bad_command_line(self):
        config, _ = self.config("line")
        for words in ((), ("rnu", config), ("run",), ("run", config, "--no-such"), ("run", config, "--set", "run.seed"),
                      ("run", config, "--inject", "nonsense"), ("train", config), ("probe", "decode"),
                      ("decode", "--model", self.model, "--prompt", "a", "--trace", "--compare"),
                      ("run", config, "--resume", "/nonexistent/checkpoint")):
            with self.subTest(words=words):
                code = INPUT if "--resume" in words else USAGE
                self.refused(code, *words)
        for words in (("run", config, "--no-such"), ("run",)):
            self.assertEqual(1, len(self.jforge(*words, ranks=2, expect=USAGE).lines()), "of all ranks one says it")
        self.assertEqual(1, self.jforge("--version", ranks=2).out.count("jforge "))
        for seed in ("-1", "99999999999999999999", "x"):
            self.refused(USAGE, "decode", "--model", self.model, "--prompt", "a", "--seed", seed, says=["--seed"])
        self.refused(USAGE, "decode", "--model", self.model, "--prompt", "a", "--temperature", "0.5", "--setting",
                     "temperature=1", says=["temperature is given twice"])
        self.refused(USAGE, "decode", "--model", self.model, "--prompt", "a", "--block-size", "8", "--setting",
                     "block_size=4", says=["block_size is given twice"])

    def test_changed_configuration_on_resume(self):
        config, run = self.config("changed")
        self.jforge("run", config, "--inject", "interrupt@train:0:3", expect=75)
        before = sorted(path.stat().st_mtime_ns for path in run.rglob("*.h5"))
        self.refused(USAGE, "run", config, "--set", "train.ar_weight=3.5", says=["train.ar_weight", "1", "3.5"])
        self.refused(USAGE, "run", config, "--set", "train.ar_weight=3.5", says=["train.ar_weight", "1", "3.5"],
                     ranks=2)
        other = self.model_copy("changed")
        tiny_model.write_safetensors(other / "model.safetensors", tiny_model.random_tensors(2))
        self.refused(USAGE, "run", config, "--set", f'model.source="{other}"', says=["model.hash"])
        self.refused(USAGE, "run", config, "--resume", "never", says=["run.directory"])
        result = self.jforge("run", config, "--set", "train.batch_samples=5", "--accept-change", "train.batch_samples",
                             ranks=4, expect=USAGE)
        self.assertEqual(1, len(result.lines()), f"of all ranks one says it: {result}")
        self.assertEqual(before, sorted(path.stat().st_mtime_ns for path in run.rglob("*.h5")))
        self.jforge("run", config, "--set", "rounds.2.noise_window=4", "--accept-change", "rounds.2.noise_window")


class BadPretraining(BadInput):
    TEXT = """
[run]
directory = "{run}"
[pretrain]
tokenizer = "{model}"
output = "{run}/made"
files = ["{prompts}"]
hidden_size = 16
intermediate_size = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
max_position_embeddings = 256
steps = 4
[train]
batch_samples = 2
tokens_per_rank = 256
[checkpoint]
every_steps = 1
"""

    def test_dimensions_of_no_model(self):
        config, run = self.config("dimensions", self.TEXT)
        self.refused(USAGE, "pretrain", config, "--set", "pretrain.num_heads=3",
                     says=["pretrain.num_heads = 3", "pretrain.hidden_size = 16"])
        self.assertFalse(run.exists())

    def test_nothing_to_train_on(self):
        config, run = self.config("no-samples", self.TEXT)
        self.refused(INPUT, "pretrain", config, "--set", "pretrain.max_position_embeddings=8",
                     says=["all 24 are longer than pretrain.max_position_embeddings = 8"])
        self.assertEqual("failed", self.status(run))
        empty = self.root / "no-records.jsonl"
        empty.write_text("\n", encoding="utf-8")
        config, run = self.config("no-records", self.TEXT)
        self.refused(INPUT, "pretrain", config, "--set", f'pretrain.files=["{empty}"]', says=["holds no record", empty])

    def test_answers_without_the_new_model_s_end(self):
        tokenizer = self.model_copy("other-end")
        path = tokenizer / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**settings, "eos_token": "<|endoftext|>"}), encoding="utf-8")
        config, _ = self.config("other-end-run", self.TEXT)
        self.refused(INPUT, "pretrain", config, "--set", f'pretrain.tokenizer="{tokenizer}"',
                     says=["end-of-sequence token", "eos_token"])

    def test_a_frozen_rank_ends_the_job(self):
        config, _ = self.config("frozen", self.TEXT)
        result = self.jforge("pretrain", config, "--set", "run.heartbeat_limit_seconds=10", "--inject",
                             "stop@train:1:2", ranks=2, expect=70)
        self.assertIn("rank 1 is silent", result.err)
        self.expect_no_processes()

    def test_several_ranks_say_it_once(self):
        for command, text, setting in (("pretrain", self.TEXT, "pretrain.num_heads=3"),
                                       ("pretrain", self.TEXT, "run.heartbeat_limit_seconds=1"),
                                       ("run", None, "train.zero_stage=4"), ("run", None, "no.such_key=1")):
            with self.subTest(command=command, setting=setting):
                config, _ = self.config("once", text)
                result = self.jforge(command, config, "--set", setting, ranks=2, expect=USAGE)
                self.assertEqual(1, len(result.lines()), str(result))
                self.assertTrue(result.lines()[0].startswith("jforge: rank 0 ("), str(result))

    def test_other_data_on_resume(self):
        data = self.root / "pretrain-data.jsonl"
        shutil.copy(self.prompts, data)
        tokenizer = self.model_copy("pretrain-tokenizer")
        setting = ("--set", f'pretrain.files=["{data}"]', "--set", f'pretrain.tokenizer="{tokenizer}"')
        config, run = self.config("other-data", self.TEXT)
        self.jforge("pretrain", config, *setting, "--inject", "interrupt@train:0:2", expect=75)
        whole = data.read_bytes()
        data.write_bytes(whole.replace(b"pens", b"pins"))
        self.refused(USAGE, "pretrain", config, *setting, says=["data.hash"])
        data.write_bytes(whole)
        path = tokenizer / "tokenizer_config.json"
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        self.refused(USAGE, "pretrain", config, *setting, says=["tokenizer.hash"])
        path.write_bytes(before)
        newest = max((run / "checkpoints").iterdir())
        shard = next(newest.glob("*.h5"))
        os.truncate(shard, shard.stat().st_size - 1)
        result = self.jforge("pretrain", config, *setting)
        self.assertIn("checkpoint skipped", result.err)
        self.assertIn("continuing after step 1", result.err)
        self.assertEqual("finished", self.status(run))


class BadPrompts(BadInput):
    def prompts_file(self, name, content):
        path = self.root / f"{name}.jsonl"
        path.write_bytes(content)
        return ("--set", f'prompts.files=["{path}"]')

    def test_empty_file(self):
        self.run_refused("empty", INPUT, *self.prompts_file("empty", b""))
        self.run_refused("empty", INPUT, *self.prompts_file("empty", b""), ranks=2)

    def test_nothing_to_import(self):
        for name, setting, *says in (("absent", 'prompts.files=["/nonexistent/*.jsonl"]', "/nonexistent/"),
                                     ("field", 'prompts.field="quesiton"', "quesiton"),
                                     ("long", "prompts.max_prompt_tokens=5", "max_prompt_tokens", "24"),
                                     ("filter", 'prompts.keep_if=["question = zebra"]', "zebra")):
            with self.subTest(name=name):
                self.run_refused(name, INPUT, "--set", setting, says=says)

    def test_invalid_utf8_is_set_aside_and_counted(self):
        bad = b'{"question": "\xff\xfe broken"}\n'
        content = self.prompts.read_bytes()
        config, run = self.config("some-bad")
        result = self.jforge("import", config, *self.prompts_file("some-bad", content + bad + b'{"question": \n'))
        said = result.err + result.out
        for text in ("26 prompts read from 1 file, 24 kept", "2 unreadable; first unreadable: ", "some-bad.jsonl:25: "):
            self.assertIn(text, said)
        report = json.loads((run / "prompts_import.json").read_text(encoding="utf-8"))
        self.assertEqual(24, report["kept"])
        quarantine = (run / "prompts.h5.quarantine").read_text(encoding="utf-8", errors="replace")
        self.assertIn("25", quarantine)
        self.assertIn("26", quarantine)

    def test_too_much_invalid_utf8_stops_the_import(self):
        bad = b'{"question": "\xff\xfe broken"}\n'
        setting = self.prompts_file("bad", self.prompts.read_bytes() + bad * 5)
        self.run_refused("threshold", INPUT, *setting, "--set", "prompts.max_bad_fraction=0", says=["bad.jsonl"])
        self.run_refused("only", INPUT, *self.prompts_file("only", bad * 3))


class BadEnvironment(BadInput):
    def test_unwritable_directory(self):
        blocker = self.root / "a-file"
        blocker.write_text("", encoding="utf-8")
        for parent in (blocker, "/proc"):
            for ranks in (1, 2):
                with self.subTest(parent=parent, ranks=ranks):
                    config, _ = self.config("unwritable")
                    self.refused(ENVIRONMENT, "run", config, "--set", f'run.directory="{parent}/run"',
                                 says=["cannot create", parent], ranks=ranks)
                    self.expect_no_processes()

    def test_path_that_the_system_refuses(self):
        """It is not an internal error."""
        loop = self.root / "loop"
        loop.symlink_to(loop)
        for path in (loop, self.root / ("x" * 300)):
            self.refused(ENVIRONMENT, "verify", path, says=[path])

    def test_full_disk(self):
        """Each limit on file sizes makes another write fail."""
        for kibibytes in (1, 8, 40, 90, 200):
            with self.subTest(kibibytes=kibibytes):
                config, run = self.config(f"full-{kibibytes}")
                # MPI's own files are larger.
                process = self.start(self.command("run", config, "--inject", "stop@publish.data:0:1"))
                self.wait_until_stopped(process)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (kibibytes * 1024, kibibytes * 1024))
                process.send_signal(signal.SIGCONT)
                result = self.finish(process)
                self.assertEqual(ENVIRONMENT, result.code, str(result))
                self.assertEqual(1, len(result.lines()), str(result))
                self.assertIn("File too large", result.lines()[0])
                self.assertIn(str(run), result.lines()[0])
                self.jforge("run", config)
                self.assertEqual(self.bytes_of(self.uninterrupted(1)), self.bytes_of(run))

    @unittest.skipUnless(os.geteuid() == 0, "mounting a small file system needs root")
    def test_full_disk_of_two_ranks(self):
        config, run = self.config("tmpfs")
        run.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", run], check=False,
                                 stderr=subprocess.DEVNULL)
        if mounted.returncode != 0:
            self.skipTest("tmpfs may not be mounted here")
        self.addCleanup(subprocess.run, ["umount", run], check=False)
        self.refused(ENVIRONMENT, "run", config, ranks=2, says=["space"])
        subprocess.run(["mount", "-o", "remount,size=64m", run], check=True)
        self.jforge("run", config, ranks=2)
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))

    @unittest.skipUnless(os.geteuid() == 0, "mounting over a rank's directory needs root")
    def test_a_directory_of_each_rank_s_own(self):
        """Simulates a directory on each host's own disk."""
        config, run = self.config("own")
        run.mkdir()
        mounts = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(run)]
        if subprocess.run(mounts, check=False, stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("a process may not mount anything of its own here")
        apart = self.root / "rank-1-apart"
        apart.write_text(f"""#!/bin/sh
[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = 1 ] || exec {BINARY} "$@"
exec unshare -m sh -c 'mount -t tmpfs tmpfs {run} && exec {BINARY} "$@"' sh "$@"
""", encoding="utf-8")
        apart.chmod(0o755)
        result = self.finish(self.start(self.command("run", config, ranks=2, program=apart)), 60)
        self.assertEqual(ENVIRONMENT, result.code, str(result))
        self.assertIn(f"{run} is not the same directory on every rank", result.lines()[0])
        self.jforge("run", config, ranks=2)
        self.assertEqual(self.bytes_of(self.uninterrupted(2)), self.bytes_of(run))

    def test_a_program_alone_needs_no_folder_of_mpi_s(self):
        """Open MPI's would be one for all: a few of those that begin while others end would fail."""
        config, _ = self.config("alone")
        self.jforge("run", config, env={**os.environ, "TMPDIR": str(config), "XDG_CACHE_HOME": str(self.root / "cache")})

    def test_two_jobs_on_one_run_directory(self):
        config, run = self.config("shared")
        delays = ",".join(f"delay@generate:0:{visit}" for visit in range(1, 1000))
        first = self.start(self.command("run", config, "--inject", delays))
        try:
            self.wait_for_text(first, "acts now")
            line = self.refused(ENVIRONMENT, "run", config, says=["in use", str(run), f"pid {first.pid}"])
            self.assertIn(os.uname().nodename, line)
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
        self.jforge("run", config)
        self.assertEqual(self.bytes_of(self.uninterrupted(1)), self.bytes_of(run))


if __name__ == "__main__":
    unittest.main(verbosity=2)
