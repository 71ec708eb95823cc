"""Arguments of transformers' `generate`: which ones a custom loop supports or refuses, and when rows end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import stopping_criteria as theirs

from specframe import Entry


@dataclass(frozen=True)
class Support:
    """Support of an argument: exact, or refused for some of its values."""

    note: str
    """Effect of an exact argument; for a refused value, the reason."""
    refuses: Callable[[Any], bool] | None = None
    """Test whether a value is refused; None if no value is refused by itself."""
    partly: bool = False
    """True if the argument is exact for some of its values and refused for others."""

    @property
    def kind(self) -> str:
        """Kind of support in words: `exact`, `refused` or `exact or refused`."""
        return "exact or refused" if self.partly else "exact" if self.refuses is None else "refused"


def _is_set(value: Any) -> bool:
    return value is not None and value is not False


def _above_one(value: Any) -> bool:
    return value is not None and value > 1


_LENGTH = "counted as `generate` counts it, left padding included"
_LAW = "part of the distribution that the verifier preserves"
_NODE = "applied at every node of the tree, to that node's own tokens"
_BEAMS = "has a meaning for beam search only, which is refused by `num_beams`"
_ASSISTED = "has a meaning for assisted generation only: the recipe's drafter takes its place"
_SPEED = "changes no token: the loop has a cache of its own and does not compile"
_PER_STEP = "the loop scores several tokens in one forward pass and keeps nothing of the single steps"
_MOVED = "asks for a decoding method that has no distribution of its own to preserve"

FIELDS: dict[str, Support] = {
    "max_length": Support(_LENGTH),
    "max_new_tokens": Support(_LENGTH),
    "min_length": Support(_LENGTH),
    "min_new_tokens": Support(_LENGTH),
    "early_stopping": Support(_BEAMS),
    "max_time": Support("ends a row at its first token after that time"),
    "stop_strings": Support(
        "read by the call's `tokenizer`; in a `generation_config`, transformers refuses it for any custom loop"
    ),
    "do_sample": Support("sampled texts have `generate`'s distribution, not its very tokens"),
    "num_beams": Support("beam search has no distribution of single tokens to verify a draft against", _above_one),
    "use_mtp": Support("the recipe's drafter drafts; leave one of the two out", _is_set),
    "use_cache": Support(_SPEED),
    "cache_implementation": Support(
        "a quantized cache changes the logits, and the loop keeps keys and values as they are; "
        "other caches change no token",
        lambda value: value == "quantized",
        partly=True,
    ),
    "cache_config": Support(_SPEED),
    "max_cache_len": Support(_SPEED),
    "temperature": Support(_LAW),
    "top_k": Support(_LAW),
    "top_p": Support(_LAW),
    "min_p": Support(_LAW),
    "top_h": Support(_LAW),
    "typical_p": Support(_LAW),
    "epsilon_cutoff": Support(_LAW),
    "eta_cutoff": Support(_LAW),
    "repetition_penalty": Support(_NODE),
    "encoder_repetition_penalty": Support("applied at every node of the tree, with the row's own prompt"),
    "length_penalty": Support(_BEAMS),
    "no_repeat_ngram_size": Support(_NODE),
    "bad_words_ids": Support(_NODE),
    "renormalize_logits": Support(_NODE),
    "forced_bos_token_id": Support(_NODE),
    "forced_eos_token_id": Support(_NODE),
    "remove_invalid_values": Support(_NODE),
    "exponential_decay_length_penalty": Support(_LENGTH),
    "suppress_tokens": Support(_NODE),
    "begin_suppress_tokens": Support(_LENGTH),
    "sequence_bias": Support(_NODE),
    "token_healing": Support("it changes the prompt: heal it first, by `model.heal_tokens`", _is_set),
    "guidance_scale": Support(
        "guidance runs the model a second time for every token, over a cache that cannot follow a tree",
        lambda value: value is not None and value != 1,
    ),
    "watermarking_config": Support(
        "its SynthID variant keeps a state from step to step, which cannot follow a tree; "
        "`WatermarkingConfig` is applied at every node",
        lambda value: value is not None and type(value).__name__ != "WatermarkingConfig",
        partly=True,
    ),
    "num_return_sequences": Support("every sequence is a row with random numbers of its own"),
    "output_attentions": Support("without `return_dict_in_generate` it has no effect, here and there"),
    "output_hidden_states": Support("without `return_dict_in_generate` it has no effect, here and there"),
    "output_scores": Support("without `return_dict_in_generate` it has no effect, here and there"),
    "output_logits": Support("without `return_dict_in_generate` it has no effect, here and there"),
    "return_dict_in_generate": Support(
        "a `GenerateDecoderOnlyOutput` with `sequences` alone; together with an `output_...` flag it is refused: "
        + _PER_STEP
    ),
    "pad_token_id": Support("fills the rows that have ended"),
    "bos_token_id": Support("the prompt where none is given"),
    "eos_token_id": Support("one or several tokens that end a row; without any, rows end together, as in `generate`"),
    "encoder_no_repeat_ngram_size": Support("applied at every node of the tree, with the row's own prompt"),
    "decoder_start_token_id": Support("has a meaning for encoder-decoder models only, which cannot be targets"),
    "is_assistant": Support("a model that drafts for another one is not decoded by a custom loop", _is_set),
    "num_assistant_tokens": Support(_ASSISTED),
    "num_assistant_tokens_schedule": Support(_ASSISTED),
    "assistant_confidence_threshold": Support(_ASSISTED),
    "prompt_lookup_num_tokens": Support("the recipe's drafter drafts; use the drafter `lookup` instead", _is_set),
    "max_matching_ngram_size": Support(_ASSISTED),
    "assistant_early_exit": Support("the recipe's drafter drafts; leave one of the two out", _is_set),
    "assistant_lookbehind": Support(_ASSISTED),
    "target_lookbehind": Support(_ASSISTED),
    "assistant_ensemble_weight": Support(_ASSISTED),
    "speculation_type": Support(_ASSISTED),
    "compile_config": Support(_SPEED),
    "disable_compile": Support(_SPEED),
    "continuous_batching_config": Support(_SPEED),
    "low_memory": Support(_SPEED),
    "penalty_alpha": Support(_MOVED, _is_set),
    "dola_layers": Support(_MOVED, _is_set),
    "diversity_penalty": Support(_BEAMS),
    "num_beam_groups": Support(_BEAMS, _above_one),
    "constraints": Support(_BEAMS, _is_set),
    "force_words_ids": Support(_BEAMS, _is_set),
    "prefill_chunk_size": Support(_SPEED),
    "transformers_version": Support("the release that wrote the config"),
}
"""The fields of `GenerationConfig`, of every release since transformers 5.0."""

_CACHE = "the loop has a cache of its own, and would leave this one as it is"
_FEATURES = "the loop gives the model tokens and nothing else"

ARGUMENTS: dict[str, Support] = {
    "inputs": Support("the prompts as token ids; also by the name `input_ids`"),
    "generation_config": Support("as in the first table"),
    "logits_processor": Support(
        "applied at every node; one that keeps a state is copied along each path, and refused where it has no copy; "
        "one that compares the rows of a batch is not supported"
    ),
    "stopping_criteria": Support("asked after every token, for each row by itself"),
    "prefix_allowed_tokens_fn": Support("asked at every node that it allows, with the row's number"),
    "synced_gpus": Support("the loop does not wait for other processes", _is_set),
    "assistant_model": Support("the recipe's drafter drafts; leave one of the two out", _is_set),
    "streamer": Support("gets what `generate` gives it, in the same pieces; the tokens of a cycle come at once"),
    "negative_prompt_ids": Support("has a meaning for `guidance_scale` only, which is refused"),
    "negative_prompt_attention_mask": Support("has a meaning for `guidance_scale` only, which is refused"),
    "custom_generate": Support("this loop"),
    "tokenizer": Support("reads `stop_strings`"),
    "assistant_tokenizer": Support("has a meaning for an `assistant_model` only, which is refused"),
    "attention_mask": Support("left padding is taken off; a row that is masked anywhere else is refused", partly=True),
    "position_ids": Support("positions that are not counted from the first token of each row are refused", partly=True),
    "inputs_embeds": Support(_FEATURES, _is_set),
    "past_key_values": Support(_CACHE, _is_set),
    "cache": Support(_CACHE, _is_set),
    "trust_remote_code": Support("no remote code runs"),
}
"""The arguments of `generate` itself. All others go to the model's forward pass and are refused."""

FORWARD = frozenset(
    {"attention_mask", "position_ids", "past_key_values", "cache", "use_cache", "logits_to_keep", "cache_position"}
)
"""Forward-pass inputs prepared by `generate` that a custom loop may ignore."""

KINDS = frozenset({"mm_token_type_ids", "token_type_ids"})
"""Marks of tokens that stand for an image: all 0 in a text."""

IMAGES = "mm_encoder_outputs"
"""Mapping that `generate` makes of a call's images; empty for a text."""


def refusal(config: Any, arguments: Mapping[str, Any], inputs: Mapping[str, Any]) -> str | None:
    """Returns why a call of `generate` is refused, or None, by its GenerationConfig, arguments and model inputs."""
    fields = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    for table, given in ((FIELDS, fields), (ARGUMENTS, arguments)):
        for name, value in given.items():
            support = table.get(name)
            if support is not None and support.refuses is not None and support.refuses(value):
                return f"{name} cannot be used with a custom_generate of specframe: {support.note}"
    for name in sorted(unknown_fields(type(config)) & fields.keys()):
        if _is_set(fields[name]):
            return f"{name} is a setting of this transformers release that specframe does not know; leave it out"
    if fields.get("return_dict_in_generate"):
        for name in ("output_attentions", "output_hidden_states", "output_scores", "output_logits"):
            if fields.get(name):
                return f"{name} cannot be used with a custom_generate of specframe: {_PER_STEP}"
    for name, value in inputs.items():
        if name not in FORWARD and _is_set(value) and not _is_of_a_text(name, value):
            shown = "pixel_values" if name == IMAGES else name
            return f"{shown} cannot be used with a custom_generate of specframe: {_FEATURES}"
    return None


def _is_of_a_text(name: str, value: Any) -> bool:
    """Returns whether a model of images and texts receives this input for a text alone."""
    return (name in KINDS and not value.any()) or (name == IMAGES and not value)


def unknown_fields(config_class: type[Any]) -> frozenset[str]:
    """Returns the fields of the installed GenerationConfig that are not in the list."""
    return frozenset(name for name in vars(config_class()) if not name.startswith("_")) - FIELDS.keys()


class Ends:
    """Stopping rules of one call's rows, for each row by itself or for all together.

    With an end-of-sequence token, a row that has ended is filled with padding. Without one, `generate` continues it
    until the last row has ended, so all rows have equal lengths.
    """

    def __init__(self, criteria: Sequence[Any], prompts: Tensor) -> None:
        lengths = [criterion for criterion in criteria if type(criterion) is theirs.MaxLengthCriteria]
        tokens = [criterion for criterion in criteria if type(criterion) is theirs.EosTokenCriteria]
        self.new_tokens = max(1, min(int(criterion.max_length) for criterion in lengths) - prompts.shape[1])
        """Maximum number of tokens of a row."""
        self.tokens = frozenset(token for criterion in tokens for token in criterion.eos_token_id.tolist())
        """Tokens that end a row."""
        self._rest = [criterion for criterion in criteria if criterion not in lengths and criterion not in tokens]
        self._together = not any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._prompts = prompts
        self._ended: dict[int, int] = {}  # row -> its length when its criteria ended it

    @property
    def stops(self) -> bool:
        """True if `stop` must be called."""
        return bool(self._rest)

    def stop(self, entry: Entry) -> bool:
        """Returns whether a row ends after its latest token."""
        row = entry.request.number
        if row not in self._ended:
            new = torch.tensor([entry.tokens], dtype=torch.int64, device=self._prompts.device)
            text = torch.cat([self._prompts[row : row + 1], new], 1)
            if any(bool(criterion(text, None).all()) for criterion in self._rest):
                self._ended[row] = len(entry.tokens)
        if self._together:
            return len(self._ended) == len(self._prompts) and len(entry.tokens) >= max(self._ended.values())
        return row in self._ended

    def width(self, entries: Sequence[Entry]) -> int:
        """Returns the number of new tokens of every row that are final."""
        going = [len(entry.tokens) for entry in entries if entry.ended is None]
        ready = min(going) if going else max(len(entry.tokens) for entry in entries)
        if self._together and self._rest and len(self._ended) == len(entries):
            return min(ready, max(self._ended.values()))
        return ready
