"""SGLang's plug-in: --speculative-algorithm NGRAM --speculative-num-draft-tokens 16. With a model directory that has a
jacobi_decoding.json, the drafts of that algorithm are Jacobi iteration's."""

import pathlib
import random

import numpy
from jacobi_forge_serving import next_draft


class JacobiDrafts:
    """In the place of NGRAMWorker's corpus."""

    def __init__(self, size):
        self.size, self.random = size, random.Random(0)
        self.mask = numpy.tril(numpy.ones((size, size), dtype=bool)).ravel()  # A chain: a row sees those before it.
        self.reset()

    def reset(self):
        self.rows, self.predictions, self.accepted = {}, None, None

    def keep(self, requests, predictions, accepted):
        """Keeps a pass: `size` predictions for each request, of which the first `accepted` are its new tokens."""
        self.rows = {request: row for row, request in enumerate(requests)}
        self.predictions, self.accepted = predictions, accepted

    def batch_get(self, req_ids, batch_tokens, total_lens):
        """Returns the rows of all requests, each its newest token and the draft, and which of them each row sees."""
        del total_lens
        drafts = []
        for request, known in zip(req_ids, batch_tokens):
            row, rejected = self.rows.get(request), []
            if row is not None:
                rejected = self.predictions[row * self.size:(row + 1) * self.size].tolist()[int(self.accepted[row]):]
            drafts += [known[-1], *next_draft(rejected, known, self.size - 1, self.random)]
        return numpy.array(drafts, dtype=numpy.int64), numpy.tile(self.mask, len(req_ids))

    def erase_match_state(self, req_ids):
        for request in req_ids:
            self.rows.pop(request, None)

    def batch_put(self, batch_tokens):
        """The text holds nothing that the drafts need."""

    def synchronize(self):
        """Nothing is written in the background."""


def jacobi_worker(worker):
    """Returns a class like SGLang's NGRAMWorker `worker` with other drafts."""
    class JacobiWorker(worker):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            self.ngram_corpus = JacobiDrafts(self.draft_token_num)

        def forward_batch_generation(self, batch, *arguments, **named):
            requests, decodes = [request.rid for request in batch.reqs], batch.forward_mode.is_decode()
            result = super().forward_batch_generation(batch, *arguments, **named)
            if decodes:
                self.ngram_corpus.keep(requests, result.logits_output.next_token_logits.argmax(-1), result.accept_lens)
            return result
    return JacobiWorker


def create_worker(original, algorithm, server_args):
    worker = original(algorithm, server_args)
    forced = (pathlib.Path(server_args.model_path) / "jacobi_decoding.json").is_file()
    return jacobi_worker(worker) if algorithm.is_ngram() and forced else worker


def register():
    """SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # pylint: disable=import-outside-toplevel
    HookRegistry.register("sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker", create_worker,
                          HookType.AROUND)
