#!/usr/bin/env python3
"""The plug-ins for vLLM and SGLang (launch/serving/jacobi_forge_serving) in stand-ins of these engines, which have a rule
in the place of a model."""

import os
import pathlib
import sys
import tempfile
import types
import unittest
from types import SimpleNamespace

from harness import SOURCE

try:
    import numpy
except ImportError:  # Another python3 comes before the one for which setup.sh installs numpy.
    if sys.executable == "/usr/bin/python3":
        raise
    os.execv("/usr/bin/python3", ["/usr/bin/python3", "-B", *sys.argv])

sys.path.insert(0, str(SOURCE / "launch" / "serving"))
VOCABULARY, BLOCK, LONGEST = 48, 6, 64


def rule(text):
    return (text[-1] // 3 + 5 * (text[-2:][0] // 8)) % VOCABULARY


def module(name, **contents):
    """Makes `import name` find the contents."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    sys.modules[name].__dict__.update(contents)


class RejectionSampler:
    def forward(self, metadata, draft_probs, logits, sampling_metadata):
        del metadata, draft_probs, sampling_metadata
        logits[:] = 0  # The real one may change them in place.


module("vllm.v1.sample.rejection_sampler", RejectionSampler=RejectionSampler)
from jacobi_forge_serving import sglang_plugin, vllm_proposer  # pylint: disable=wrong-import-position


class Request:
    def __init__(self, name, prompt, count):
        self.rid, self.known, self.draft, self.count = name, list(prompt), [], count
        self.expected = list(prompt)
        while len(self.expected) < len(prompt) + count:
            self.expected.append(rule(self.expected))
        self.passes = self.saved = 0

    def predictions(self):
        return [rule(self.known + self.draft[:i]) for i in range(len(self.draft) + 1)]

    def accept(self, predictions):
        """Returns the tokens that a pass makes known, and keeps what must be in the next draft."""
        accepted = 1
        while accepted < len(predictions) and self.draft[accepted - 1] == predictions[accepted - 1]:
            accepted += 1
        self.known += predictions[:accepted]
        self.rejected = predictions[accepted:]
        self.passes, self.saved = self.passes + 1, self.saved + accepted - 1
        return predictions[:accepted]

    def check(self, test, size):
        """The draft is the rejected predictions, then tokens of the text."""
        wanted = self.rejected[:size]
        test.assertEqual(size, len(self.draft))
        test.assertEqual(wanted, self.draft[:len(wanted)])
        test.assertLessEqual(set(self.draft[len(wanted):]), set(self.known[:-1]))

    def finished(self):
        return len(self.known) >= len(self.expected)


def rows(predictions):
    return numpy.eye(VOCABULARY)[predictions]


def requests():
    """Some of different lengths; the prompts' tokens never follow by the rule, so that fillers can be told."""
    return [Request(f"r{i}", [i, 40 - i, 11 * i % 48, 7], 12 + 9 * i) for i in range(4)]


def check_texts(test, every):
    for request in every:
        test.assertEqual(request.expected, request.known[:len(request.expected)])
    test.assertGreater(sum(request.saved for request in every), 0, "no drafted token was ever right")


class Vllm(unittest.TestCase):
    def setUp(self):
        self.addCleanup(setattr, RejectionSampler, "forward", RejectionSampler.forward)
        self.config = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=BLOCK - 1),
                                      model_config=SimpleNamespace(max_model_len=LONGEST))

    def test_drafts_are_the_rejected_rows_predictions_and_the_text_stays(self):
        proposer, sampler = vllm_proposer.JacobiProposer(self.config), RejectionSampler()
        for _ in range(2):  # Nothing of the first ones is taken for the second ones.
            every = requests()
            waiting, running, passes = list(every), [], 0
            while waiting or running:
                running = [request for request in running if not request.finished()]
                running += [waiting.pop(0)] if waiting and passes % 3 == 0 else []
                if not running:
                    passes += 1
                    continue
                # The newest request's prompt is read in two passes: the first one gives no token.
                halves = [request.passes == 0 and passes % 3 == 0 for request in running]
                predictions = [request.predictions() for request in running]
                if any(request.draft for request in running):
                    metadata = SimpleNamespace(num_draft_tokens=[len(request.draft) for request in running])
                    sampler.forward(metadata, None, rows(sum(predictions, [])), None)
                sampled = [[] if half else request.accept(own)
                           for request, own, half in zip(running, predictions, halves)]
                texts = numpy.zeros((len(running), LONGEST), dtype=numpy.int32)
                for row, request in enumerate(running):
                    texts[row, :len(request.known)] = request.known[:LONGEST]
                lengths = numpy.array([len(request.known) for request in running])
                for request, half, draft in zip(running, halves, proposer.propose(sampled, lengths, texts)):
                    request.draft = draft
                    if half:
                        self.assertEqual([], draft)
                    else:
                        request.check(self, min(BLOCK - 1, LONGEST - len(request.known)))
                passes += 1
            check_texts(self, every)

    def test_another_rejection_sampler_is_refused(self):
        RejectionSampler.forward = lambda self, logits: logits
        with self.assertRaisesRegex(RuntimeError, "knows vLLM 0.33"):
            vllm_proposer.JacobiProposer(self.config)


class NgramWorker:
    """SGLang's NGRAMWorker as far as the plug-in sees it."""

    def __init__(self, test):
        self.test, self.draft_token_num, self.ngram_corpus = test, BLOCK, None

    def forward_batch_generation(self, batch, on_publish=None):
        del on_publish
        if not batch.forward_mode.is_decode():
            for request in batch.reqs:
                request.accept(request.predictions())
            return SimpleNamespace(logits_output=None, accept_lens=None)
        corpus = self.ngram_corpus
        corpus.synchronize()
        tokens, mask = corpus.batch_get([request.rid for request in batch.reqs],
                                        [request.known[-18:] for request in batch.reqs],
                                        [len(request.known) for request in batch.reqs])
        chain = numpy.tile(numpy.tril(numpy.ones((BLOCK, BLOCK), dtype=bool)), (len(batch.reqs), 1, 1))
        self.test.assertTrue(numpy.array_equal(chain, mask.reshape(len(batch.reqs), BLOCK, BLOCK)))
        predictions, lengths = [], []
        for request, own in zip(batch.reqs, tokens.reshape(len(batch.reqs), BLOCK).tolist()):
            self.test.assertEqual(request.known[-1], own[0])
            request.draft = own[1:]
            request.check(self.test, BLOCK - 1)
            predictions.append(request.predictions())
            lengths.append(len(request.accept(predictions[-1])))
        corpus.batch_put([request.known for request in batch.reqs])
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=rows(sum(predictions, []))),
                               accept_lens=numpy.array(lengths))


class Sglang(unittest.TestCase):
    def test_drafts_are_the_rejected_rows_predictions_and_the_text_stays(self):
        worker = sglang_plugin.jacobi_worker(NgramWorker)(self)
        every = requests()
        waiting, running = list(every), []
        mode = SimpleNamespace(is_decode=lambda: bool(running))
        while waiting or running:
            if waiting:
                prompt = waiting.pop(0)
                worker.forward_batch_generation(SimpleNamespace(
                    reqs=[prompt], forward_mode=SimpleNamespace(is_decode=lambda: False)))
                running.insert(0, prompt)  # Rows of a batch move.
            worker.forward_batch_generation(SimpleNamespace(reqs=running, forward_mode=mode))
            gone = [request.rid for request in running if request.finished()]
            running = [request for request in running if not request.finished()]
            worker.ngram_corpus.erase_match_state(gone)
        check_texts(self, every)

    def test_only_ngram_and_forced_models_get_it(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = SimpleNamespace(model_path=folder)
            for forced in (False, True):
                if forced:
                    pathlib.Path(folder, "jacobi_decoding.json").write_text("{}", encoding="utf-8")
                for ngram in (False, True):
                    found = sglang_plugin.create_worker(lambda algorithm, given: NgramWorker,
                                                        SimpleNamespace(is_ngram=lambda ngram=ngram: ngram), arguments)
                    self.assertEqual(forced and ngram, found is not NgramWorker)
                    self.assertTrue(issubclass(found, NgramWorker))

    def test_sglang_is_told_what_to_wrap(self):
        hooks = []
        module("sglang.srt.plugins.hook_registry", HookType=SimpleNamespace(AROUND="around"),
               HookRegistry=SimpleNamespace(register=lambda *hook: hooks.append(hook)))
        sglang_plugin.register()
        self.assertEqual([("sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
                           sglang_plugin.create_worker, "around")], hooks)


if __name__ == "__main__":
    unittest.main()
