#!/usr/bin/env python3
"""Compares with Hugging Face's packages, if installed: tokenizers, models exchanged in both directions, and exported
models that stock `transformers` decodes by Jacobi iteration. By hand: JFORGE_BINARY=build/cpu-release/launch/jforge
PYTHON THIS_FILE"""

import gzip
import copy
import json
import os
import pathlib
import random
import unicodedata
import unittest

import tiny_model
from harness import EndToEndTest, SOURCE

try:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers
except ImportError:
    tokenizers = None
try:
    import tiktoken
    import tiktoken.load
except ImportError:
    tiktoken = None
try:
    import h5py
except ImportError:
    h5py = None
try:
    import safetensors.torch
    import torch
    import transformers
    from transformers.convert_slow_tokenizer import TikTokenConverter
except ImportError:
    transformers = None

DATA = pathlib.Path(os.environ.get("JFORGE_TEST_DATA", SOURCE / ".." / "shared" / "data")) / "text"
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                  r"\s*[\r\n]+|\s+(?!\S)|\s+")
# Mistral's tekken.
TEKKEN_PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
                  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
                  r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BOS, END = "<|begin_of_text|>", "<|eot_id|>"
# Published ranks: tokenizer.model of llama_models/llama3 in the package llama-models, qwen.tiktoken of
# dashscope/resources in the package dashscope.
RANKS = pathlib.Path(os.environ.get("JFORGE_TEST_RANKS", "models/ranks"))
# Made by launch/models/smollm2.sh.
SMOLLM2 = pathlib.Path(os.environ.get("JFORGE_SMOLLM2", SOURCE / "models" / "smollm2"))
LLAMA3_SPECIAL = [BOS, "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
                  "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
                  END, "<|python_tag|>"]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def shared_texts():
    texts = []
    for path in sorted(DATA.glob("*")) if DATA.is_dir() else []:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        texts.append(content.decode("utf-8", errors="ignore"))
    return texts


def hostile_strings(count):
    """Returns blanks, signs, marks, surrogates' neighbours, long runs, partial tokens."""
    rng = random.Random(11)
    pools = [" \t\r\n\u00a0\u2003\u3000\u0085\u1680\u200b\ufeff", "'’sStTrReEvVmMlLdD\u017f\u212a", "0123456789²½٣Ⅷ一",
             "aAzZéÉß\u0130ı中文日本語한국어Ωжあ", "!?.,;:-_/\\()[]{}<>|#@*&^%$~`\"", "\u0301\u0308\u0327\u093f\u20dd",
             "\U0001f600\U0001f468\u200d\U0001f469\ufe0f\U0001f1e9", "\ud7ff\ue000\ufffd\U0010ffff\x01\x1f\x7f"]
    parts = [BOS, END, "<|", "|>", "<|eot_id", "hello", " world", "\r\n", "\n\n", "   ", "I'll", "don'T"]
    strings = []
    for _ in range(count):
        text = ""
        for _ in range(rng.randint(1, 24)):
            choice = rng.random()
            if choice < 0.15:
                text += rng.choice(parts)
            elif choice < 0.25:
                text += rng.choice(rng.choice(pools)) * rng.randint(2, 30)
            else:
                text += rng.choice(rng.choice(pools))
        strings.append(text)
    return strings


def strings_with(characters, count):
    """Returns each character alone, between text that would merge or split without it, and in `count` random
    strings."""
    rng = random.Random(13)
    places = ["{0}", "{0}{0}", "a{0}b", "th{0}e", " {0}the", "1{0}2", " {0} ", "\n{0}\n", "'{0}s", "don{0}'t",
              "<|im_{0}end|>"]
    strings = [place.format(character) for character in characters for place in places]
    rest = [" ", "  ", "\n", "\t", "the", "ing", "x", "é", "中", "7", "42", "'ll", "!", "\x05", "\x1f", END]
    return strings + ["".join(rng.choice(characters if rng.random() < 0.4 else rest) for _ in range(rng.randint(2, 20)))
                      for _ in range(count)]


@unittest.skipUnless(tokenizers, "the Python package tokenizers is not installed")
class Tokenizers(EndToEndTest):
    def train(self, pattern, ignore_merges):
        tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=[BOS, END], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        corpus = [path.read_text(encoding="utf-8") for path in sorted(pathlib.Path(SOURCE).glob("*.md"))]
        tokenizer.train_from_iterator(corpus, trainer)
        if ignore_merges:  # the flag is for tokens that no merge makes
            definition = json.loads(tokenizer.to_str())
            dropped = definition["model"]["merges"][200::3]
            definition["model"]["merges"] = [merge for merge in definition["model"]["merges"] if merge not in dropped]
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))  # A merge needs its parts only as tokens.
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])])
        return tokenizer

    def compare(self, name, tokenizer, bos=BOS, end=END, encode=None, normalize=str, directory=None, further=()):
        """`encode`: another encoder of a normalized text, without bos. `directory`: has the tokenizer already."""
        if directory is None:
            directory = self.root / name
            directory.mkdir()
            tokenizer.save(str(directory / "tokenizer.json"))
            (directory / "tokenizer_config.json").write_text(
                json.dumps({"bos_token": bos, "eos_token": end, "tokenizer_class": "PreTrainedTokenizerFast"}),
                encoding="utf-8")
        count = 0
        # An added token splits a text as if it were two.
        for texts in (hostile_strings(5000), shared_texts(), *([further] if further else [])):
            text = end.join(texts)
            result = self.jforge("tokenize", "--model", directory, stdin=text.encode("utf-8"))
            ids = [int(token) for token in result.out.split()]
            text = normalize(text)
            expected = tokenizer.encode(text).ids
            start = [] if bos is None else [tokenizer.token_to_id(bos)]
            self.assertEqual(start, ids[:len(start)])
            self.expect_same(name, expected, ids)
            if encode:
                self.expect_same(f"{name}, from its ranks", encode(text), ids[len(start):])
            count += len(ids)
        return count

    def expect_same(self, name, expected, ids):
        first = next((i for i, pair in enumerate(zip(ids, expected)) if pair[0] != pair[1]), None)
        self.assertIsNone(first, f"{name}: {ids[first - 2:first + 6] if first else ids[:6]} at {first}")
        self.assertEqual(len(expected), len(ids))

    def test_llama3_split_with_and_without_merges(self):
        for ignore_merges in (True, False):
            self.compare(f"llama3-{ignore_merges}", self.train(LLAMA3_PATTERN, ignore_merges))

    def test_other_splits(self):
        self.compare("tekken", self.train(TEKKEN_PATTERN, True))
        self.compare("qwen", self.train(tiny_model.QWEN2_PATTERN, False))

    def published(self, file, special, pattern):
        """Returns (transformers' tokenizer, tiktoken's encoder) of a published file."""
        path = RANKS / file
        if not (tiktoken and transformers and path.is_file()):
            self.skipTest(f"needs tiktoken, transformers and {path}: JFORGE_TEST_RANKS names the directory")
        ranks = tiktoken.load.load_tiktoken_bpe(str(path))
        encoding = tiktoken.Encoding(file, pat_str=pattern, mergeable_ranks=ranks,
                                     special_tokens={token: len(ranks) + i for i, token in enumerate(special)})
        tokenizer = TikTokenConverter(
            str(path), pattern=pattern, extra_special_tokens=special).converted()
        return tokenizer, lambda text: encoding.encode(text, allowed_special="all")

    def test_published_llama3(self):
        tokenizer, encode = self.published("tokenizer.model", LLAMA3_SPECIAL, LLAMA3_PATTERN)
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])])
        print(f"Llama 3: {self.compare('llama3', tokenizer, encode=encode)} ids equal")

    def test_published_qwen(self):
        tokenizer, encode = self.published("qwen.tiktoken", QWEN_SPECIAL, tiny_model.QWEN2_PATTERN)
        definition = json.loads(tokenizer.to_str())
        definition["model"]["ignore_merges"] = False
        definition["normalizer"] = {"type": "NFC"}
        # Its older Unicode leaves U+11935 U+11930 as they are.
        count = self.compare("published-qwen", tokenizers.Tokenizer.from_str(json.dumps(definition)), bos=None,
                             end="<|im_end|>", encode=encode,
                             normalize=lambda text: unicodedata.normalize("NFC", text))
        print(f"Qwen: {count} ids equal")

    @unittest.skipUnless(transformers and SMOLLM2.is_dir(), f"needs torch, transformers and {SMOLLM2}")
    def test_smollm2(self):
        """Drops bytes that the vocabulary lacks: control characters, and the first byte of characters beyond
        U+40000."""
        tokenizer = tokenizers.Tokenizer.from_file(str(SMOLLM2 / "tokenizer.json"))
        whole = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
        signs = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        lossy = [character for character in map(chr, [*range(0x80), *range(0x10000, 0x110000, 0x10000)])
                 if any(sign not in vocabulary for sign in signs.pre_tokenize_str(character)[0][0])]
        self.assertEqual([4, 6, 0x13, 0x14, 0x16, 0x1d, *range(0x40000, 0xc0000, 0x10000)], list(map(ord, lossy)))
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        count = self.compare("SmolLM2", tokenizer, bos=None, end="<|im_end|>", directory=SMOLLM2,
                             further=strings_with(lossy, 2000) + added, encode=lambda text: whole(text)["input_ids"])
        print(f"SmolLM2: {count} ids equal")


def model_options(family):
    llama3 = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    return {"qwen2": {"tie_word_embeddings": True}, "qwen3": {"head_dim": 16}, "llama": {"head_dim": 10, "rope_parameters": llama3},
            "mistral": {"sliding_window": None}, "smollm3": {"no_rope_layers": [0, 1]}, "olmo2": {},
            "granite": {"embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.8,
                        "logits_scaling": 1.5}}[family]


@unittest.skipUnless(transformers, "the Python packages torch and transformers are not installed")
class Models(EndToEndTest):
    """transformers saves a random model and reads the export."""

    PROMPT = list(b"How many pens and cups?")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        transformers.utils.logging.disable_progress_bar()

    def distilled(self, family):
        source = self.root / f"{family}-source"
        torch.manual_seed(3)
        config = transformers.AutoConfig.for_model(
            family, vocab_size=tiny_model.VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2,
            bos_token_id=None, eos_token_id=258, pad_token_id=256, **model_options(family))
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(source)
        tiny_model.write_tokenizer(source)
        path, run = self.config(family)
        self.jforge("run", path, "--set", f"model.source={source}")
        return source, run / "model"

    @staticmethod
    def load(directory, **options):
        return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **options).eval()

    def probe(self, directory, what, *words):
        ids, out = self.root / "ids.json", self.root / f"{what}.out"
        ids.write_text(json.dumps(self.PROMPT), encoding="utf-8")
        self.jforge("probe", what, "--model", directory, "--tokens", ids, "--out", out, *words)
        return out

    def decoded(self, directory, method, *words):
        out = self.probe(directory, "decode", "--method", method, "--max-new-tokens", 48, *words)
        (record,) = json.loads(out.read_text(encoding="utf-8"))
        return record["tokens"], record["forwards"]

    def generated(self, model, **options):
        ids = torch.tensor([self.PROMPT])
        output = model.generate(input_ids=ids, do_sample=False, max_new_tokens=48, return_dict_in_generate=True,
                                **options)
        return output.sequences[0, len(self.PROMPT):].tolist(), getattr(output, "forwards", None)

    def check(self, family):
        source, exported = self.distilled(family)
        self.assertNotEqual((source / "model.safetensors").read_bytes(), (exported / "model.safetensors").read_bytes())
        model, trusted = self.load(exported), self.load(exported, trust_remote_code=True)
        expected = model(torch.tensor([self.PROMPT])).logits[0]
        found = safetensors.torch.load_file(self.probe(exported, "logits"))["logits"]
        self.assertLess(float((found - expected).norm() / expected.norm()), 1e-4)
        # By generate() and by Jacobi iteration, in the same number of forwards.
        tokens, _ = self.decoded(exported, "ar")
        self.assertEqual(tokens, self.generated(model)[0])
        block_size = json.loads((exported / "jacobi_decoding.json").read_text(encoding="utf-8"))["block_size"]
        self.assertEqual(8, block_size)
        fewer = 0
        for size, seed in ((None, 0), (1, 0), (5, 3), (64, 2 ** 40 + 7)):
            options = {} if size is None else {"block_size": size, "seed": seed}
            expected = self.decoded(exported, "jacobi", "--window", "running", "--block-size", size or block_size,
                                    "--seed", seed)
            for loaded in (model, trusted):
                found = self.generated(loaded, custom_generate=str(exported), trust_remote_code=True, **options)
                self.assertEqual(expected, found, f"{family}, block {size}, seed {seed}")
            self.assertEqual(tokens, found[0])
            fewer += found[1] < len(tokens) - 1
        self.assertGreater(fewer, 0, "no forward made more than one token known")
        again = self.root / f"{family}-again"
        model.save_pretrained(again)
        tiny_model.write_tokenizer(again)
        self.assertEqual(tokens, self.decoded(again, "ar")[0])
        return model, trusted, exported

    def check_plain_calls(self, model, trusted):
        """trust_remote_code installs the exported generate(), but plain calls must not change."""
        ids = torch.tensor([self.PROMPT])
        batch = torch.tensor([self.PROMPT, [256] * 4 + self.PROMPT[4:]])
        tokenizer = transformers.AutoTokenizer.from_pretrained(model.config._name_or_path)
        greedy = {"do_sample": False, "max_new_tokens": 8}

        def generate(*inputs, **options):
            return lambda loaded: loaded.generate(*inputs, **options).tolist()

        def stop(ids, scores):
            return torch.full((len(ids),), ids.shape[1] > 26)

        for what, call in {
                "default length": generate(input_ids=ids),
                "by place": generate(ids, transformers.GenerationConfig(**greedy)),
                "greedy": generate(input_ids=ids, **greedy),
                "trust alone": generate(input_ids=ids, trust_remote_code=True, **greedy),
                "batch": generate(input_ids=batch, attention_mask=(batch != 256).long(), **greedy),
                "sampling": generate(input_ids=ids, do_sample=True, max_new_tokens=8),
                "beams": generate(input_ids=ids, num_beams=2, **greedy),
                "penalty": generate(input_ids=ids, repetition_penalty=1.3, **greedy),
                "stopping criteria": generate(input_ids=ids, stopping_criteria=[stop], **greedy),
                "embeddings": generate(inputs_embeds=model.get_input_embeddings()(ids), **greedy),
                "decoding loop": generate(input_ids=ids, custom_generate=transformers.GenerationMixin._sample, **greedy),
                "pipeline": lambda loaded: transformers.pipeline("text-generation", loaded, tokenizer=tokenizer)(
                    ["How many?", "And cups?"], max_new_tokens=8)}.items():
            with self.subTest(what):
                answers = []
                for loaded in (model, trusted):
                    torch.manual_seed(5)
                    answers.append(call(loaded))
                self.assertEqual(*answers)

    def check_given_configuration(self, model, exported):
        """Completed from the model's, as by stock generate()."""
        own = copy.deepcopy(model.generation_config)
        ids = torch.tensor([self.PROMPT])
        jacobi = {"custom_generate": str(exported), "trust_remote_code": True}

        def answer(given, **options):
            return model.generate(input_ids=ids, generation_config=given, **options)[0, len(self.PROMPT):].tolist()

        try:
            given = transformers.GenerationConfig(max_new_tokens=48, do_sample=False)
            whole = answer(given)
            model.generation_config.eos_token_id = whole[5]
            stopped = answer(given)
            self.assertLess(len(stopped), len(whole))
            self.assertEqual(stopped, answer(given, **jacobi))
            given.eos_token_id = 257
            self.assertEqual(answer(given), answer(given, **jacobi))
            model.generation_config.repetition_penalty = 1.2
            self.assertNotEqual(stopped, answer(given))
            self.assertEqual(answer(given), answer(given, **jacobi))
        finally:
            model.generation_config = own

    def check_batch_and_samples(self, model, exported):
        batch = torch.tensor([self.PROMPT, [256] * 4 + self.PROMPT[4:], self.PROMPT[::-1]])
        jacobi = {"custom_generate": str(exported), "trust_remote_code": True}
        greedy = {"input_ids": batch, "attention_mask": (batch != 256).long(), "do_sample": False, "max_new_tokens": 48}
        self.assertEqual(model.generate(**greedy).tolist(), model.generate(**greedy, **jacobi).tolist())
        # The law of three sampled tokens, of whose second and third a draft is a prediction.
        count, length, law = 1500, len(self.PROMPT), {(): 1.0}
        sampling = {"temperature": 1.5, "top_k": 3, "top_p": 0.9}
        for _ in range(3):
            following = {}
            for tokens, probability in law.items():
                ids = torch.tensor([[*self.PROMPT, *tokens]])
                scores = model.generate(input_ids=ids, do_sample=True, max_new_tokens=1, output_scores=True,
                                        return_dict_in_generate=True, **sampling).scores[0][0].softmax(dim=-1)
                following |= {(*tokens, int(token)): probability * float(scores[token]) for token in scores.nonzero()}
            law = following
        self.assertGreater(len(law), 8)
        ids = torch.tensor([self.PROMPT] * count)
        torch.manual_seed(5)
        samples = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=3,
                                 **sampling, **jacobi)[:, length:].tolist()
        self.assertLessEqual(set(map(tuple, samples)), set(law))
        for tokens, probability in law.items():
            expected, deviation = count * probability, (count * probability * (1 - probability)) ** 0.5
            self.assertLess(abs(samples.count(list(tokens)) - expected), 4 * deviation + 1, tokens)

    def test_qwen2_and_what_jacobi_decoding_refuses(self):
        model, trusted, exported = self.check("qwen2")
        self.check_plain_calls(model, trusted)
        for loaded in (model, trusted):
            self.check_given_configuration(loaded, exported)
        self.check_batch_and_samples(model, exported)
        for options in ({"num_beams": 2}, {"do_sample": True, "typical_p": 0.5}, {"block_size": 0},
                        {"do_sample": True, "num_return_sequences": 2}, {"guidance_scale": 2.0},
                        {"encoder_repetition_penalty": 1.5}, {"exponential_decay_length_penalty": (2, 1.5)},
                        {"penalty_alpha": 0.6, "top_k": 4},
                        {"logits_processor": [lambda ids, scores: scores]}, {"max_new_tokens": None},
                        {"attention_mask": torch.tensor([[1, 1, 0]])}, {"input_ids": torch.zeros((2, 3), dtype=int)}):
            arguments = {"input_ids": torch.tensor([self.PROMPT[:3]]), "do_sample": False, "max_new_tokens": 4,
                         "custom_generate": str(exported), "trust_remote_code": True, **options}
            for loaded in (model, trusted):
                with self.assertRaisesRegex(ValueError, "Jacobi|block_size", msg=str(options)):
                    loaded.generate(**arguments)

    def test_qwen3(self):
        self.check("qwen3")

    def test_llama3(self):
        self.check("llama")

    def test_mistral(self):
        self.check("mistral")

    def test_smollm3(self):
        self.check("smollm3")

    def test_olmo2(self):
        self.check("olmo2")

    def test_granite(self):
        self.check("granite")


class ImportTest(EndToEndTest):
    def imported(self, name, model, conversations, *settings):
        """Returns the ids of each conversation by `jforge import`."""
        prompts = self.root / f"{name}.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in conversations), encoding="utf-8")
        config, run = self.config(name, '[run]\ndirectory = "{run}"\n')
        words = [f"model.source={model}", f'prompts.files=["{prompts}"]', *settings]
        self.jforge("import", config, *(word for setting in words for word in ("--set", setting)))
        with h5py.File(run / "prompts.h5") as store:
            tokens, offsets = store["tokens"][:].tolist(), store["offsets"][:].tolist()
            self.assertEqual(list(range(1, len(conversations) + 1)), store["source_line"][:].tolist())
        return [tokens[begin:end] for begin, end in zip(offsets, offsets[1:])]


@unittest.skipUnless(transformers and h5py, "the Python packages torch, transformers and h5py are not installed")
class ChatTemplates(ImportTest):

    def conversations(self, count):
        rng = random.Random(17)
        parts = ["a", "b ", " ", "\n", "\n\n", "\t", "\u3000", "é", "<think>", "</think>", "<tool_response>",
                 "</tool_response>", "{{ x }}"]
        for number in range(count):  # numbered, because duplicates are dropped
            texts = ["".join(rng.choices(parts, k=rng.randint(0, 7))) for _ in range(rng.choice((1, 3, 5)))]
            system = [{"role": "system", "content": rng.choice(parts)}] if rng.random() < 0.5 else []
            texts[0] += str(number)
            texts[-1] += rng.choice("xyz")
            yield system + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]

    def check(self, name, template):
        model = tiny_model.write_model(self.root / f"model-{name}")
        (model / "chat_template.jinja").write_text(template, encoding="utf-8")
        config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
        config |= {"bos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
        (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        conversations = list(self.conversations(300))
        # No thinking, and the date of chat_template.h.
        expected = tokenizer.apply_chat_template(conversations, chat_template=template, add_generation_prompt=True,
                                                 enable_thinking=False, date_string="26 Jul 2024", return_dict=True)
        self.assertEqual(expected["input_ids"], self.imported(name, model, conversations))

    @unittest.skipUnless("JFORGE_TEST_TEMPLATES" in os.environ, "JFORGE_TEST_TEMPLATES names no folder of .jinja files")
    def test_published(self):
        for path in sorted(pathlib.Path(os.environ["JFORGE_TEST_TEMPLATES"]).glob("*.jinja")):
            with self.subTest(path.name):
                self.check(path.stem, path.read_text(encoding="utf-8"))

    def test_scopes_macros_and_loops(self):
        self.check("own", """{{- bos_token }}
{%- set ns = namespace(system='', last=-1) %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% set ns.system = ns.system + m['content'] | trim %}
    {%- elif m.role == 'user' and not m.content.startswith('<tool_response>') %}{% set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- macro thoughts(text, keep=false) %}
    {%- if '</think>' in text %}
        {%- set parts = text.split('</think>') %}
        {%- if keep %}<t>{{ parts[0].split('<think>')[-1].strip('\\n') }}</t>{% endif %}
        {{- parts[-1].lstrip('\\n') }}
    {%- else %}{{ text }}{% endif %}
{%- endmacro %}
{{ ns.system ~ '\\n' if ns.system }}
{% for m in messages if m.role != 'system' %}
  {% if loop.first %}first {% endif %}
[{{ loop.index }}/{{ loop.length }} {{ m.role | title }}{{ '!' if loop.last else ',' + loop.nextitem.role[:2] }}]
    {%- if m.role == 'assistant' %}
        {% generation %}{{ thoughts(m.content, keep=loop.index0 >= ns.last) }}{{ eos_token }}{% endgeneration %}
    {% else %}
        {{- ' ' + m.content | replace('a', 'A') }}
    {%- endif %}
{% else %}
nothing
{% endfor %}
{% if add_generation_prompt and not enable_thinking | default(true) %}>{% endif %}
""")


@unittest.skipUnless(transformers and DATA.is_dir() and SMOLLM2.is_dir(),
                     f"needs torch, transformers, the benchmark files and {SMOLLM2} (launch/models/smollm2.sh)")
class SmolLM2(ImportTest):
    """Its chat template, and greedy tokens for 50 real prompts in float32."""

    NEW_TOKENS = 48
    TIE = 1e-4  # of a row's largest logit: the order of addition decides closer candidates

    def questions(self):
        for name, key in (("gsm8k/test.jsonl", "question"), ("humaneval/HumanEval.jsonl.gz", "prompt")):
            path = DATA.parent / name
            with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as stream:
                for _ in range(25):
                    yield json.loads(next(stream))[key]

    @unittest.skipUnless(h5py, "the Python package h5py is not installed")
    def test_chat_template(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
        texts = ["Hi", " two  blanks \n", "", "<|im_end|>\n<|im_start|>system\n", "{{ 7 }} 1234", *hostile_strings(60)]

        def turns(count, first):
            return [{"role": ("user", "assistant")[i % 2], "content": texts[(first + i) % len(texts)]}
                    for i in range(count)]

        conversations = [turns(count, first) for count in (1, 3, 5) for first in range(len(texts))]
        conversations = [one for one in conversations if one[-1]["content"]]  # the import drops the others
        system = [{"role": "system", "content": "Answer in one word.\n"}]
        given = [system + messages for messages in conversations]
        # An empty one replaces the default.
        given += [[{"role": "system", "content": ""}] + messages for messages in conversations]

        def expected(conversations):
            return tokenizer.apply_chat_template(conversations, add_generation_prompt=True,
                                                 return_dict=True)["input_ids"]

        own = expected(conversations)
        self.assertIn("You are a helpful AI assistant named SmolLM", tokenizer.decode(own[0]))
        self.assertEqual(own, self.imported("own-system", SMOLLM2, conversations))
        self.assertEqual(expected(given), self.imported("given-system", SMOLLM2, given))
        self.assertEqual(expected(given[:len(conversations)]), self.imported(
            "set-system", SMOLLM2, conversations, f"prompts.system={json.dumps(system[0]['content'])}"))
        print(f"SmolLM2: {2 * len(conversations) + len(given)} conversations equal")

    def test_greedy_tokens_of_fifty_prompts(self):
        torch.set_grad_enabled(False)
        torch.set_num_threads(2)
        tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
        model = transformers.AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
        prompts = [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                                 return_dict=True)["input_ids"] for text in self.questions()]
        self.assertEqual(50, len(prompts))
        ids, out = self.root / "smollm2.ids.json", self.root / "smollm2.out.json"
        ids.write_text(json.dumps(prompts), encoding="utf-8")
        self.jforge("probe", "decode", "--model", SMOLLM2, "--tokens", ids, "--out", out, "--method", "ar",
                    "--max-new-tokens", self.NEW_TOKENS, timeout=1200)
        ties = []
        for place, (prompt, record) in enumerate(zip(prompts, json.loads(out.read_text(encoding="utf-8")), strict=True)):
            generated = model.generate(input_ids=torch.tensor([prompt]), do_sample=False, max_new_tokens=self.NEW_TOKENS,
                                       repetition_penalty=1.0, return_dict_in_generate=True, output_logits=True)
            expected, found = generated.sequences[0, len(prompt):].tolist(), record["tokens"]
            first = next((i for i, pair in enumerate(zip(expected, found)) if pair[0] != pair[1]), None)
            if first is None:
                self.assertEqual(len(expected), len(found), place)
                continue
            logits = generated.logits[first][0]
            gap = float((logits[expected[first]] - logits[found[first]]) / logits.abs().max())
            self.assertLess(gap, self.TIE, f"prompt {place}, token {first}: {expected[first]} and {found[first]}")
            ties.append((place, first, gap))
        print(f"SmolLM2: {50 - len(ties)} of 50 equal, ties (prompt, token, gap): {ties}")


if __name__ == "__main__":
    unittest.main()
