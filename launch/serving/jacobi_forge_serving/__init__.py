"""Jacobi decoding of Jacobi-forced models in vLLM and SGLang, which verify the drafts that these plug-ins make.

Tested against stand-ins of the two interfaces, written after vLLM 0.33.0 and SGLang 0.5.23. Not run on a GPU.
launch/models/SERVING.md says how to start them; model/decoding/METHOD.md, section 6.2, has the rule."""


def next_draft(rejected, known, size, random):
    """Returns `size` tokens: the `rejected` rows' predictions, which follow the newest token, then some drawn from the
    `known` tokens, of which the newest is the last."""
    draft = list(rejected[:size])
    while len(draft) < size:
        draft.append(random.choice(known[:-1] or known))
    return draft
