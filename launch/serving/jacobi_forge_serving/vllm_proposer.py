"""vLLM's custom proposer: --speculative-config '{"method": "custom_class", "num_speculative_tokens": 15,
"model": "jacobi_forge_serving.vllm_proposer.JacobiProposer"}'."""

import inspect
import random

from jacobi_forge_serving import next_draft
from vllm.v1.sample.rejection_sampler import RejectionSampler

ARGUMENTS = ["self", "metadata", "draft_probs", "logits", "sampling_metadata"]


class JacobiProposer:
    """Drafts the predictions of the rows that the last pass rejected. vLLM gives a proposer the accepted tokens alone,
    so this one reads the logits on their way into the rejection sampler."""

    def __init__(self, vllm_config):
        self.size = vllm_config.speculative_config.num_speculative_tokens
        self.longest = vllm_config.model_config.max_model_len
        self.random = random.Random(0)
        self.passed = None  # Each row's prediction and each request's number of drafted tokens, in the last pass.
        forward = RejectionSampler.forward
        if list(inspect.signature(forward).parameters) != ARGUMENTS:
            raise RuntimeError(f"jacobi_forge_serving knows vLLM 0.33: RejectionSampler.forward has not {ARGUMENTS}")

        def watched(sampler, metadata, draft_probs, logits, sampling_metadata):
            self.passed = logits.argmax(-1), metadata.num_draft_tokens
            return forward(sampler, metadata, draft_probs, logits, sampling_metadata)

        RejectionSampler.forward = watched

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        """Returns a draft for each request; empty for one that got no token or has no room."""
        del slot_mappings
        # Without a draft in the whole batch vLLM does not call the rejection sampler.
        predictions, drafted = self.passed or ([], [0] * len(sampled_token_ids))
        predictions, first, drafts = list(map(int, predictions)), 0, []
        for request, sampled in enumerate(sampled_token_ids):
            end = first + drafted[request] + 1  # A row for the newest token and one for each drafted one.
            length = int(num_tokens_no_spec[request])
            size = min(self.size, self.longest - length) if sampled else 0
            known = token_ids_cpu[request, :length].tolist()
            drafts.append(next_draft(predictions[first + len(sampled):end], known, max(size, 0), self.random))
            first = end
        self.passed = None
        return drafts
