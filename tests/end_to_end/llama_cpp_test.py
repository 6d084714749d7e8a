#!/usr/bin/env python3
"""GGUF files (launch/models/hf_to_gguf.py) and Jacobi decoding (launch/serving/llama_cpp_jacobi.py) in llama.cpp, if
the Python packages llama-cpp-python, gguf, torch and transformers are installed; the draft model alone always."""

import itertools
import json
import subprocess
import sys
import unittest

import tiny_model
from harness import EndToEndTest, SOURCE

sys.path.insert(0, str(SOURCE / "launch" / "serving"))
import llama_cpp_jacobi  # pylint: disable=wrong-import-position

try:
    import gguf
    import llama_cpp
    import numpy
    import torch
    import transformers
    from tokenizers import Tokenizer
except ImportError:
    llama_cpp = None


class StubLlama:
    """Llama.generate() of llama-cpp-python, with a rule in the place of a model."""

    def __init__(self, draft_model):
        draft_model.llama, self.draft_model, self.predictions = self, draft_model, []
        draft_model.predictions = lambda first, end: self.predictions[first:end]
        self.passes = []  # (known tokens, text that the pass before ran, draft)

    def n_ctx(self):
        return 100

    @staticmethod
    def rule(text):
        return (text[-1] // 3 + 5 * (text[-2:][0] // 8)) % 48

    def generate(self, prompt, count):
        known, text, first = list(prompt), list(prompt), 0
        while True:
            # As in llama-cpp-python, rows of an earlier pass or request stay until they are run again.
            self.predictions[first:len(text)] = [self.rule(text[:row + 1]) for row in range(first, len(text))]
            while len(known) < len(prompt) + count:
                known.append(self.predictions[len(known) - 1])
                if len(known) > len(text) or text[len(known) - 1] != known[-1]:
                    break
            if len(known) == len(prompt) + count:
                return known[len(prompt):]
            draft = self.draft_model.after(known)
            self.passes.append((list(known), text, draft))
            first, text = len(known) - 1, (known + draft)[:self.n_ctx()]


class Draft(unittest.TestCase):
    def test_draft_is_the_rejected_rows_predictions_then_drawn_tokens(self):
        llama = StubLlama(llama_cpp_jacobi.JacobiDraft(block_size=6, seed=1))
        for prompt in (list(range(48, 64)), list(range(63, 50, -1))):
            llama.passes.clear()
            llama.draft_model.forwards = 0
            llama.generate(prompt, 80)
            self.assertEqual(len(llama.passes), llama.draft_model.forwards)
            for known, text, draft in llama.passes:
                predictions = [llama.rule(text[:row + 1]) for row in range(len(known) - 1, len(text))][:5]
                self.assertEqual(5, len(draft))
                self.assertEqual(predictions, draft[:len(predictions)])
                self.assertLessEqual(set(draft[len(predictions):]), set(known[:-1]))
            # The rows of the request before are not taken for this one's.
            self.assertLessEqual(set(llama.passes[0][2]), set(prompt))

    def test_block_size_1_drafts_nothing_and_0_is_refused(self):
        llama = StubLlama(llama_cpp_jacobi.JacobiDraft(block_size=1))
        llama.generate([50, 60], 20)
        self.assertEqual([[]] * 19, [draft for _, _, draft in llama.passes])
        self.assertRaises(ValueError, llama_cpp_jacobi.JacobiDraft, block_size=0)


@unittest.skipIf(llama_cpp is None, "the packages llama-cpp-python, gguf, torch and transformers are not installed")
class LlamaCpp(EndToEndTest):
    TOKENS, BLOCK = 48, 8
    TEXTS = ["How many pens, cups and 1234 maps?\n\n  It's 3.14  éß 中文 <|im_end|>x", "3 pens", "How many maps, then?"]

    def source(self, family, **options):
        """Writes a random model with a tokenizer that has merges."""
        folder = self.root / family
        torch.manual_seed(3)
        config = transformers.AutoConfig.for_model(
            family, vocab_size=265, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, eos_token_id=258, **options)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tiny_model.write_tokenizer(folder)
        pattern = tiny_model.QWEN2_PATTERN.replace(r"\p{N}|", r"\p{N}{1,3}|" if family == "llama" else r"\p{N}|")
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
        new = [*tiny_model.SPECIALS, "12", "123", "en", "Ġt"]
        tokenizer["model"]["vocab"] |= {token: 256 + i for i, token in enumerate(new)}
        tokenizer["model"]["merges"] = ["1 2", "12 3", "e n", "Ġ t"]
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        return folder

    def convert(self, source, *words, expect=0):
        """Returns the file, or its refusal."""
        file = self.root / f"{source.name}.gguf"
        file.unlink(missing_ok=True)
        script = SOURCE / "launch" / "models" / "hf_to_gguf.py"
        result = subprocess.run([sys.executable, "-B", script, source, file, *words], capture_output=True, text=True,
                                check=False, timeout=300)
        self.assertEqual((expect, expect == 0), (result.returncode, file.exists()), result.stderr)
        return file if expect == 0 else result.stderr

    def check(self, source):
        """llama.cpp has the source's ids, logits and answers, by Jacobi iteration too. Returns [tokens, forwards]."""
        file = self.convert(source)
        options = {"n_ctx": 0, "verbose": False, "n_threads": 1, "type_k": 0, "type_v": 0}  # The cache in float32.
        plain = llama_cpp.Llama(str(file), logits_all=True, **options)
        jacobi = llama_cpp_jacobi.open_llama(file, self.BLOCK, **options)
        self.assertIn("<|im_start|>", plain.metadata["tokenizer.chat_template"])
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        prompts = [tokenizer.encode(text).ids for text in self.TEXTS]
        self.assertEqual(prompts, [plain.tokenize(text.encode("utf-8"), special=True) for text in self.TEXTS])
        with torch.no_grad():
            model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
            expected = model(torch.tensor(prompts[:1])).logits[0].numpy()
        plain.eval(prompts[0])
        found = plain.scores[:len(expected)]
        self.assertLess(float(numpy.linalg.norm(found - expected) / numpy.linalg.norm(expected)), 1e-4)
        ids, out = self.root / "ids.json", self.root / "decoded.json"
        ids.write_text(json.dumps(prompts), encoding="utf-8")
        self.jforge("probe", "decode", "--model", source, "--tokens", ids, "--out", out, "--method", "jacobi",
                    "--block-size", self.BLOCK, "--max-new-tokens", self.TOKENS, "--ignore-eos")
        records = json.loads(out.read_text(encoding="utf-8"))
        for prompt, record in zip(prompts, records):
            for llama in (plain, jacobi):
                answer = itertools.islice(llama.generate(prompt, temp=0.0), self.TOKENS)
                self.assertEqual(record["tokens"], list(answer))
        forwards, own = jacobi.draft_model.forwards, sum(record["forwards"] for record in records)
        self.assertLess(abs(forwards - own), 0.1 * own)
        return sum(len(record["tokens"]) - 1 for record in records), forwards

    def test_llama(self):
        self.check(self.source("llama", rope_parameters={
            "rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}))

    def test_qwen3(self):
        tokens, forwards = self.check(self.source("qwen3", head_dim=32))
        self.assertLess(forwards, tokens)

    def test_qwen2_its_types_and_what_is_refused(self):
        source = self.source("qwen2", tie_word_embeddings=True)
        self.check(source)
        weights = []
        for kind in ("F32", "BF16", "Q8_0"):  # Not run: gcc 12's llama.cpp fails in Q8_0 on a processor with AMX.
            tensors = {one.name: one for one in gguf.GGUFReader(self.convert(source, "--type", kind)).tensors}
            tensor = tensors["blk.1.ffn_up.weight"]
            weights.append(gguf.dequantize(tensor.data, tensor.tensor_type))
            distance = numpy.linalg.norm(weights[-1] - weights[0]) / numpy.linalg.norm(weights[0])
            self.assertTrue(1e-4 < distance < 0.01 or kind == "F32", f"{kind}: {distance}")
        for file, old, new, told in (("tokenizer.json", "(?i:'s|'t", "(?i:'t|'s", "name llama.cpp's with --pre"),
                                     ("config.json", '"qwen2"', '"mistral"', "mistral with default rope is not known"),
                                     ("config.json", '"default"', '"yarn"', "qwen2 with yarn rope is not known")):
            text = (source / file).read_text(encoding="utf-8")
            (source / file).write_text(text.replace(old, new), encoding="utf-8")
            refusal = self.convert(source, expect=1)
            self.assertRegex(refusal, rf"^hf_to_gguf.py: .*{told}\n$")
            if "--pre" in told:
                self.convert(source, "--pre", "qwen2")
            (source / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    unittest.main()
