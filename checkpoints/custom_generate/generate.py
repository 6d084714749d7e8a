"""Jacobi decoding for stock `transformers`: exact decoding with several tokens per forward.

    model.generate(input_ids, custom_generate=DIRECTORY, trust_remote_code=True, max_new_tokens=256)

DIRECTORY is this model's. Each forward runs a draft of `block_size` tokens and keeps those that the predictions
confirm. The later predictions are the next draft, filled up with tokens drawn from the text so far. If the model has a
folder `drafter`, each forward runs the draft twice, and the predictions of its second copy, to whose rows alone the
adapter in that folder adds, are the next draft instead. The result is always the greedy text. It equals that of
`jforge decode --method jacobi` (`draft` with a drafter); with the same block size and seed, so do drafts and forwards.

With do_sample=True every token has transformers' own law (temperature, top_k, top_p, min_p), given those before it.
A batch is padded on the left. repetition_penalty counts a sequence's own tokens, not its padding.

Without custom_generate=DIRECTORY a call behaves like stock generate(), even if from_pretrained() has replaced the
model's generate() by this file's (it does so with trust_remote_code=True, and in transformers 4 from any local
directory). In transformers 4.53 to 5.24, GenerationMixin.generate() passes all of its own parameters by name to the
custom_generate function; a plain call passes only the caller's arguments.

Extra arguments: `block_size` (default: from the model's jacobi_decoding.json), `seed` of the drafts, and `drafter`, a
folder (default: the model's own, if any). Raises ValueError for arguments that it does not know."""

import contextlib
import copy
import dataclasses
import inspect
import json
import pathlib
import threading

import safetensors.torch
import torch
import transformers
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.utils import cached_file

SETTINGS_FILE = "jacobi_decoding.json"
MASK_32, MASK_64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


@dataclasses.dataclass
class JacobiOutput(GenerateDecoderOnlyOutput):
    """With return_dict_in_generate: adds the forwards after the prompt's, and what each accepted of each sequence."""

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
    """jforge's random stream for drafts (block 0)."""

    def __init__(self, seed, request):
        purpose = 1
        first = philox((purpose, 0, request, 0), (seed & MASK_32, seed >> 32 & MASK_32))
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


class Drafter:
    """A LoRA in PEFT's form whose additions only drafting rows get."""

    def __init__(self, model, config_path, weights_path):
        config = json.loads(pathlib.Path(config_path).read_text(encoding="utf-8"))
        odd = [key for key in ("use_rslora", "use_dora", "fan_in_fan_out", "lora_bias", "rank_pattern", "alpha_pattern",
                               "modules_to_save") if config.get(key)]
        if config["peft_type"] != "LORA" or config.get("bias", "none") != "none" or odd:
            raise ValueError(f"{config_path}: Jacobi decoding takes a plain LoRA {odd}")
        scale = config["lora_alpha"] / config["r"]
        weights = safetensors.torch.load_file(weights_path)
        self.additions = {}
        for name in [name for name in weights if name.endswith(".lora_A.weight")]:
            name = name.removesuffix("lora_A.weight")
            module = model.get_submodule(name.removeprefix("base_model.model.").removesuffix("."))
            self.additions[module] = [(weights.pop(f"{name}lora_{part}.weight") * factor).to(
                module.weight.device, model.dtype) for part, factor in (("A", 1), ("B", scale))]
        if weights:
            raise ValueError(f"{weights_path}: {next(iter(weights))} is no LoRA of a projection")

    @contextlib.contextmanager
    def on_rows_from(self, first):
        thread = threading.get_ident()

        def add(module, inputs, output):
            if threading.get_ident() == thread:
                down, up = self.additions[module]
                output[:, first:] += inputs[0][:, first:] @ down.T @ up.T
            return output

        hooks = [module.register_forward_hook(add) for module in self.additions]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class Chooser:
    """Chooses the token after each row of a sequence: the most probable one, or, to sample, the one with the largest
    sum of logit and Gumbel noise. The noise belongs to a token's position, so that the choice has the law of ordinary
    sampling and drafts decide nothing (METHOD.md, section 6.6)."""

    def __init__(self, config, device):
        self.generator, self.noise, self.warpers = None, [], transformers.LogitsProcessorList()
        penalty = config.repetition_penalty
        self.penalty = None if penalty in (None, 1.0) else transformers.RepetitionPenaltyLogitsProcessor(penalty)
        if config.do_sample:
            self.generator = torch.Generator(device).manual_seed(int(torch.randint(2**63 - 1, ())))
            defaults = getattr(config, "_get_default_generation_params", dict)()  # In transformers 5.
            top_k = defaults.get("top_k") if config.top_k is None else config.top_k
            self.warpers += [warper(value) for warper, value, neutral in (
                (transformers.TemperatureLogitsWarper, config.temperature, 1.0),
                (transformers.TopKLogitsWarper, top_k, 0), (transformers.TopPLogitsWarper, config.top_p, 1.0),
                (transformers.MinPLogitsWarper, config.min_p, None)) if value is not None and value != neutral]

    def after(self, known, row, logits):
        """Returns the token after each of `row`, which follows the `known` ones."""
        if self.penalty is not None:
            logits = torch.cat([self.penalty(torch.tensor([[*known, *row[:i + 1]]], device=logits.device),
                                             logits[i:i + 1]) for i in range(len(row))])
        if self.generator is not None:
            while len(self.noise) < len(row):
                exponential = torch.empty_like(logits[0], dtype=torch.float64).exponential_(generator=self.generator)
                self.noise.append(-exponential.log())
            logits = self.warpers(None, logits) + torch.stack(self.noise[:len(row)])
        return logits.argmax(dim=-1).tolist()


def prompts_of(input_ids, attention_mask):
    """Returns the ids of each sequence without padding."""
    if input_ids is None or input_ids.dim() != 2 or 0 in input_ids.shape:
        raise ValueError("Jacobi decoding takes input_ids [sequences, length]")
    if attention_mask is None:
        if len(input_ids) > 1:
            raise ValueError("Jacobi decoding of a batch needs its attention_mask")
        return input_ids.tolist()
    if attention_mask.shape != input_ids.shape or bool((attention_mask.long().diff(dim=1) < 0).any()) or \
            not bool(attention_mask[:, -1].all()):
        raise ValueError("Jacobi decoding takes sequences that are padded on the left")
    return [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask)]


def refuse_unsupported(config, arguments):
    neutral = {"num_beams": 1, "num_return_sequences": 1, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
               "min_length": 0, "min_new_tokens": 0, "guidance_scale": 1.0, "bad_words_ids": None,
               "force_words_ids": None, "forced_bos_token_id": None, "forced_eos_token_id": None,
               "suppress_tokens": None, "begin_suppress_tokens": None, "sequence_bias": None, "stop_strings": None,
               "max_time": None, "watermarking_config": None, "prompt_lookup_num_tokens": None,
               "encoder_repetition_penalty": 1.0, "penalty_alpha": None, "exponential_decay_length_penalty": None,
               "dola_layers": None, "output_scores": False, "output_logits": False, "output_attentions": False,
               "output_hidden_states": False}
    if config.do_sample:
        neutral |= {"typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None}
    for name, value in neutral.items():
        given = getattr(config, name, None)
        if given is not None and given != value:
            raise ValueError(f"Jacobi decoding does not know {name} = {given!r}: pass {name}={value!r}")
    for name, value in arguments.items():
        if value is not None and value is not False and not (hasattr(value, "__len__") and len(value) == 0):
            raise ValueError(f"Jacobi decoding does not know the argument {name}")


def stop_tokens(config):
    ids = config.eos_token_id
    return [] if ids is None else list(ids) if isinstance(ids, (list, tuple)) else [int(ids)]


def length_limit(config, prompt_length):
    limit = config.max_new_tokens
    if limit is None and config.max_length is not None:
        limit = config.max_length - prompt_length
    if limit is None or limit < 1:
        raise ValueError("Jacobi decoding needs max_new_tokens, at least 1")
    return limit


def own_file(model, name, argument):
    directory = model.config._name_or_path
    try:
        return cached_file(directory, name)
    except OSError as error:
        raise ValueError(f"the model's directory {directory!r} holds no {name}: pass {argument}") from error


def own_block_size(model):
    path = pathlib.Path(own_file(model, SETTINGS_FILE, "block_size"))
    return json.loads(path.read_text(encoding="utf-8"))["block_size"]


def find_drafter(model, folder):
    """Returns the drafter in `folder` or, if that is None, the model's own, if any."""
    files = ("adapter_config.json", "adapter_model.safetensors")
    if folder is not None:
        return Drafter(model, *(pathlib.Path(folder, name) for name in files))
    try:
        cached_file(model.config._name_or_path, f"drafter/{files[0]}")
    except OSError:
        return None
    return Drafter(model, *(own_file(model, f"drafter/{name}", "drafter") for name in files))


class Sequence:
    """A sequence of the batch while it is decoded."""

    def __init__(self, prompt, limit, stops, stream, chooser, emit):
        self.prompt_length, self.limit, self.stops = len(prompt), limit, stops
        self.stream, self.chooser, self.emit = stream, chooser, emit  # emit() gets tokens once they are known.
        self.known = list(prompt)  # Committed and cached. The newest known token begins the draft instead.
        self.draft = []
        self.accepted = []

    def begin(self, logits):
        """Takes the logits after the prompt."""
        self.draft = self.chooser.after(self.known[:-1], self.known[-1:], logits)
        del self.chooser.noise[:1]
        self.emit(self.draft)

    def finished(self):
        return self.draft[0] in self.stops or len(self.known) + 1 - self.prompt_length >= self.limit

    def fill(self, block_size):
        length = min(block_size, self.limit - 1 - (len(self.known) - self.prompt_length))
        del self.draft[length:]
        while len(self.draft) < length:
            self.draft.append(self.known[self.stream.below(len(self.known))])

    def verify(self, logits, drafting_logits):
        """Takes the logits of the draft's rows, and those of the drafting rows or None."""
        draft = self.draft
        predictions = self.chooser.after(self.known, draft, logits[:len(draft)])
        proposals = predictions
        if drafting_logits is not None:
            proposals = self.chooser.after(self.known, draft, drafting_logits[:len(draft)])
        count = 1
        while count < len(draft) and draft[count] == predictions[count - 1]:
            count += 1
        stop = next((i for i in range(1, count) if draft[i] in self.stops), None)
        newest = predictions[count - 1] if stop is None else draft[stop]
        count = count if stop is None else stop
        self.known += draft[:count]
        self.accepted.append(count)
        del self.chooser.noise[:count]
        # The predictions after the newest token are the guess for its successors.
        self.draft = [newest, *proposals[count:]]
        self.emit([*draft[1:count], newest])


def forward(model, cache, lengths, rows, wanted, drafter=None):
    """Runs the tokens rows[i] after the first lengths[i] of sequence i's cached ones; appends all rows to the cache.
    Returns the logits of the `wanted` rows. With a drafter the rows are run twice, first as the model's own, then as
    drafting ones; neither see the other."""
    width, cached, copies = max(map(len, rows)), cache.get_seq_length(), 1 if drafter is None else 2
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.device).repeat(1, copies)
    options = {}
    if copies > 1 or min(lengths) < cached:
        lengths = torch.tensor(lengths, device=model.device)[:, None]
        causal = torch.ones(width, width, device=model.device).tril()
        own = torch.block_diag(*[causal] * copies).bool()
        past = torch.arange(cached, device=model.device) < lengths
        visible = torch.cat([past[:, None].expand(-1, len(own), -1), own.expand(len(rows), -1, -1)], dim=-1)[:, None]
        options["attention_mask"] = torch.zeros(visible.shape, dtype=model.dtype, device=model.device).masked_fill(
            ~visible, torch.finfo(model.dtype).min)
        options["position_ids"] = (lengths + torch.arange(width, device=model.device)).repeat(1, copies)
    # transformers 5.40 accepts only the newer name.
    options["cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"] = cache
    with drafter.on_rows_from(width) if drafter else contextlib.nullcontext():
        wanted = torch.tensor(wanted, device=model.device)
        return model(input_ids=tokens, use_cache=True, logits_to_keep=wanted, **options).logits.float()


def commit(cache, cached, lengths, counts):
    """Keeps counts[i] of the rows after the `cached` ones, following sequence i's first lengths[i]; drops the rest."""
    for i, (length, count) in enumerate(zip(lengths, counts)):
        for layer in cache.layers if length < cached else ():
            for states in (layer.keys, layer.values):
                states[i, :, length:length + count] = states[i, :, cached:cached + count].clone()
    dropped = cache.get_seq_length() - max(length + count for length, count in zip(lengths, counts))
    if dropped > 0:
        cache.crop(-dropped)


def decode(model, sequences, block_size, drafter):
    """Decodes all sequences to their ends."""
    cache = transformers.DynamicCache()
    prompts = [sequence.known for sequence in sequences]
    ends = sorted({len(prompt) - 1 for prompt in prompts})
    logits = forward(model, cache, [0] * len(prompts), prompts, ends)
    for i, sequence in enumerate(sequences):
        sequence.begin(logits[i, [ends.index(len(prompts[i]) - 1)]])
    active = sequences
    while True:
        left = [i for i, sequence in enumerate(active) if not sequence.finished()]
        if not left:
            return
        if len(left) < len(active):
            active = [active[i] for i in left]
            cache.batch_select_indices(torch.tensor(left, device=model.device))
        for sequence in active:
            sequence.fill(block_size)
        rows, lengths = [sequence.draft for sequence in active], [len(sequence.known) for sequence in active]
        width, cached = max(map(len, rows)), cache.get_seq_length()
        drafts = drafter is not None and width > 1
        logits = forward(model, cache, lengths, rows, range((1 + drafts) * width), drafter if drafts else None)
        for i, sequence in enumerate(active):
            sequence.verify(logits[i], logits[i, width:] if drafts else None)
        commit(cache, cached, lengths, [sequence.accepted[-1] for sequence in active])


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
                    block_size=None, seed=0, drafter=None, **arguments):
    config = copy.deepcopy(model.generation_config)
    if generation_config is not None:
        config = with_defaults(copy.deepcopy(generation_config), config)
    arguments = config.update(**arguments)
    arguments.pop("use_cache", None)
    input_ids = inputs if input_ids is None else input_ids
    refuse_unsupported(config, arguments)
    prompts = prompts_of(input_ids, attention_mask)
    if streamer is not None and len(prompts) > 1:
        raise ValueError("Jacobi decoding streams one sequence at a time: pass no streamer")
    block_size = own_block_size(model) if block_size is None else block_size
    if block_size < 1:
        raise ValueError("block_size must be at least 1")
    drafter = find_drafter(model, drafter)
    if (drafter is not None or len(prompts) > 1) and model.config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError("Jacobi decoding of batches or with a drafter needs attn_implementation=\"sdpa\" or \"eager\"")

    def emit(tokens):
        if streamer is not None:
            streamer.put(torch.tensor(tokens))

    if streamer is not None:
        streamer.put(input_ids.cpu())
    limit, stops = length_limit(config, input_ids.shape[1]), stop_tokens(config)
    sequences = [Sequence(prompt, limit, stops, DraftStream(seed, i), Chooser(config, model.device), emit)
                 for i, prompt in enumerate(prompts)]
    decode(model, sequences, block_size, drafter)
    if streamer is not None:
        streamer.end()
    answers = [torch.tensor([*one.known[one.prompt_length:], one.draft[0]]) for one in sequences]
    pad = config.pad_token_id if config.pad_token_id is not None else (stops or [0])[0]
    answers = torch.nn.utils.rnn.pad_sequence(answers, batch_first=True, padding_value=pad).to(input_ids)
    ids = torch.cat([input_ids, answers], dim=1)
    if config.return_dict_in_generate:
        accepted = [sequence.accepted for sequence in sequences]
        return JacobiOutput(sequences=ids, forwards=max(map(len, accepted)), accepted=accepted)
    return ids


def come_from_stock_generate(arguments):
    stock = inspect.signature(transformers.GenerationMixin.generate).parameters.values()
    named = {parameter.name for parameter in stock if parameter.kind is not parameter.VAR_KEYWORD}
    return named - {"self", "custom_generate"} <= arguments.keys()


def generate(*inputs, model, **arguments):
    if not inputs and come_from_stock_generate(arguments):
        return jacobi_generate(model, **arguments)
    # The class's generate(), because the model's own may be this function.
    return type(model).generate(model, *inputs, **arguments)
