"""Jacobi decoding for stock `transformers`: greedy decoding with several tokens per forward.

    model.generate(input_ids, custom_generate=DIRECTORY, trust_remote_code=True, max_new_tokens=256)

DIRECTORY is this model's. Each forward runs a draft of `block_size` tokens and keeps those that the predictions
confirm. The later predictions are the next draft, filled up with tokens drawn from the text so far. The result is always
the greedy text. It equals that of `jforge decode --method jacobi`; with the same block size and seed, so do drafts and
forwards.

Without custom_generate=DIRECTORY a call behaves like stock generate(), even if from_pretrained() has replaced the
model's generate() by this file's (it does so with trust_remote_code=True, and in transformers 4 from any local
directory). In transformers 4.53 to 5.24, GenerationMixin.generate() passes all of its own parameters by name to the
custom_generate function; a plain call passes only the caller's arguments.

Extra arguments: `block_size` (default: from the model's jacobi_decoding.json) and `seed` of the drafts. Takes one
sequence, greedy only; raises ValueError for anything else."""

import copy
import dataclasses
import inspect
import json
import pathlib

import torch
import transformers
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.utils import cached_file

SETTINGS_FILE = "jacobi_decoding.json"
MASK_32, MASK_64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


@dataclasses.dataclass
class JacobiOutput(GenerateDecoderOnlyOutput):
    """With return_dict_in_generate: adds the forwards after the prompt's and the tokens that each accepted."""

    forwards: int | None = None
    accepted: list | None = None


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al. 2011)."""
    counter, key = list(counter), list(key)
    for _ in range(10):
        product_0, product_1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(product_1 >> 32) ^ counter[1] ^ key[0], product_1 & MASK_32,
                   (product_0 >> 32) ^ counter[3] ^ key[1], product_0 & MASK_32]
        key = [(key[0] + 0x9E3779B9) & MASK_32, (key[1] + 0xBB67AE85) & MASK_32]
    return counter


class DraftStream:
    """jforge's random stream for drafts (request 0, block 0)."""

    def __init__(self, seed):
        purpose = 1
        first = philox((purpose, 0, 0, 0), (seed & MASK_32, seed >> 32 & MASK_32))
        second = philox((0, first[2], first[3], 0), first[:2])
        self.key, self.tail = second[:2], second[2:]
        self.block, self.left = 0, []

    def bits(self):
        if not self.left:
            self.left = philox((self.block & MASK_32, self.block >> 32, *self.tail), self.key)
            self.block += 1
        return self.left.pop(0)

    def below(self, bound):
        threshold = (MASK_64 + 1 - bound) % bound
        while True:
            upper = self.bits()
            draw = upper << 32 | self.bits()
            if draw >= threshold:
                return draw % bound


def refuse_unsupported(config, input_ids, attention_mask, arguments):
    if input_ids is None or input_ids.dim() != 2 or input_ids.shape[0] != 1 or input_ids.shape[1] == 0:
        raise ValueError("Jacobi decoding takes input_ids of one sequence, [1, length]")
    if attention_mask is not None and not bool((attention_mask == 1).all()):
        raise ValueError("Jacobi decoding takes one sequence without padding")
    if config.do_sample:
        raise ValueError("Jacobi decoding is greedy: pass do_sample=False")
    neutral = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
               "encoder_no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0, "guidance_scale": 1.0,
               "bad_words_ids": None, "force_words_ids": None, "forced_bos_token_id": None,
               "forced_eos_token_id": None, "suppress_tokens": None, "begin_suppress_tokens": None,
               "sequence_bias": None, "stop_strings": None, "max_time": None, "watermarking_config": None,
               "prompt_lookup_num_tokens": None, "encoder_repetition_penalty": 1.0, "penalty_alpha": None,
               "exponential_decay_length_penalty": None, "dola_layers": None, "output_scores": False, "output_logits": False,
               "output_attentions": False, "output_hidden_states": False}
    for name, value in neutral.items():
        given = getattr(config, name, None)
        if given is not None and given != value:
            raise ValueError(f"Jacobi decoding does not know {name} = {given!r}: pass {name}={value!r}")
    for name, value in arguments.items():
        if value is not None and value is not False and not (hasattr(value, "__len__") and len(value) == 0):
            raise ValueError(f"Jacobi decoding does not know the argument {name}")


def stop_tokens(config):
    ids = config.eos_token_id
    return set() if ids is None else set(ids) if isinstance(ids, (list, tuple)) else {int(ids)}


def length_limit(config, prompt_length):
    limit = config.max_new_tokens
    if limit is None and config.max_length is not None:
        limit = config.max_length - prompt_length
    if limit is None or limit < 1:
        raise ValueError("Jacobi decoding needs max_new_tokens, at least 1")
    return limit


def own_block_size(model):
    name = model.config._name_or_path
    try:
        path = cached_file(name, SETTINGS_FILE)
    except OSError as error:
        raise ValueError(f"the model's directory {name!r} holds no {SETTINGS_FILE}: pass block_size") from error
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["block_size"]


def predict(model, tokens, cache, wanted):
    """Returns the argmax after each of the last `wanted` tokens; appends all tokens to the cache."""
    rows = torch.tensor([tokens], dtype=torch.long, device=model.device)
    # transformers 5.40 accepts only the newer name.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    logits = model(input_ids=rows, use_cache=True, logits_to_keep=wanted, **{name: cache}).logits
    return logits[0, -wanted:].float().argmax(dim=-1).tolist()


def jacobi(model, prompt, limit, stops, block_size, seed, emit):
    """Returns (answer, tokens accepted by each forward after the prompt's). Passes tokens to emit() once known."""
    cache = transformers.DynamicCache()
    stream = DraftStream(seed)
    known = list(prompt)  # Committed and cached. The newest known token begins the draft instead.
    draft = predict(model, prompt, cache, 1)
    accepted = []
    emit(draft)
    while draft[0] not in stops and len(known) + 1 - len(prompt) < limit:
        length = min(block_size, limit - 1 - (len(known) - len(prompt)))
        del draft[length:]
        while len(draft) < length:
            draft.append(known[stream.below(len(known))])
        predictions = predict(model, draft, cache, len(draft))
        count = 1
        while count < len(draft) and draft[count] == predictions[count - 1]:
            count += 1
        stop = next((i for i in range(1, count) if draft[i] in stops), None)
        newest = predictions[count - 1] if stop is None else draft[stop]
        count = count if stop is None else stop
        known += draft[:count]
        if count < len(draft):
            cache.crop(count - len(draft))  # Drops rows of rejected tokens.
        accepted.append(count)
        emit([*draft[1:count], newest])
        # The predictions after the newest token are the guess for its successors.
        draft = [newest] if stop is not None else predictions[count - 1:]
    return [*known[len(prompt):], draft[0]], accepted


def with_defaults(config, defaults):
    """Replaces values of `config` that equal the library defaults by `defaults`, as stock generate() does."""
    neutral = transformers.GenerationConfig()
    for name, value in vars(defaults).items():
        if name != "transformers_version" and not name.startswith("_") and \
                getattr(config, name, None) in (None, getattr(neutral, name, None)):
            setattr(config, name, copy.deepcopy(value))
    return config


@torch.no_grad()
def jacobi_generate(model, inputs=None, generation_config=None, input_ids=None, attention_mask=None, streamer=None,
                    block_size=None, seed=0, **arguments):
    config = copy.deepcopy(model.generation_config)
    if generation_config is not None:
        config = with_defaults(copy.deepcopy(generation_config), config)
    arguments = config.update(**arguments)
    arguments.pop("use_cache", None)
    input_ids = inputs if input_ids is None else input_ids
    refuse_unsupported(config, input_ids, attention_mask, arguments)
    block_size = own_block_size(model) if block_size is None else block_size
    if block_size < 1:
        raise ValueError("block_size must be at least 1")
    prompt = input_ids[0].tolist()

    def emit(tokens):
        if streamer is not None:
            streamer.put(torch.tensor(tokens))

    if streamer is not None:
        streamer.put(input_ids.cpu())
    answer, accepted = jacobi(model, prompt, length_limit(config, len(prompt)), stop_tokens(config), block_size, seed,
                              emit)
    if streamer is not None:
        streamer.end()
    sequences = torch.cat([input_ids, torch.tensor([answer], dtype=input_ids.dtype, device=input_ids.device)], dim=1)
    if config.return_dict_in_generate:
        return JacobiOutput(sequences=sequences, forwards=len(accepted), accepted=accepted)
    return sequences


def come_from_stock_generate(arguments):
    stock = inspect.signature(transformers.GenerationMixin.generate).parameters.values()
    named = {parameter.name for parameter in stock if parameter.kind is not parameter.VAR_KEYWORD}
    return named - {"self", "custom_generate"} <= arguments.keys()


def generate(*inputs, model, **arguments):
    if not inputs and come_from_stock_generate(arguments):
        return jacobi_generate(model, **arguments)
    # The class's generate(), because the model's own may be this function.
    return type(model).generate(model, *inputs, **arguments)
