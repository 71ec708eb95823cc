"""transformers' own `generate`, as the baseline of speed and of the greedy output."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specframe.components.targets.architectures import context
from specframe.decoding.encoding import inputs_of
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.errors import InputError
from specframe.sampling.laws import Processor

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from specframe.sampling.grammar import TextGrammar

BEST = 16
"""Number of top tokens whose logits are compared to measure rounding noise."""


def generate_with_transformers(
    model: Any,
    rows: Sequence[Sequence[int]],
    settings: SamplingSettings,
    ends: frozenset[int],
    options: Mapping[str, Any] = MappingProxyType({}),
    grammar: TextGrammar | None = None,
) -> list[list[int]]:
    """The new tokens that `model.generate` gives each row, left-padded into one batch; ends of sequence are kept.

    A row ends at the end of the model's context, past which `generate` alone would decode. Only the settings count:
    a repetition penalty, for example, that only the model's generation config asks for is not part of the
    target's law. `options` are further arguments of `generate`;
    `grammar` is the settings' grammar, compiled.
    """
    ends = ends | frozenset(settings.stop_token_ids)
    width = max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
    # `generate` fills in missing values from the model's config: give it a copy that shares all but the config.
    twin = copy.copy(model)
    rooms = [context(model.config.get_text_config()) - len(row) for row in rows]
    limit = min(settings.max_new_tokens, max(rooms))
    twin.generation_config = describe_generation(replace(settings, max_new_tokens=limit), ends)
    # Not transformers' own, which would count the padding of short rows as tokens.
    processors = [settings.law(len(row), ends, grammar).processors for row in rows]
    own = {"logits_processor": [ByRow(processors, [width - len(row) for row in rows])]} if any(processors) else {}
    output = twin.generate(tokens, attention_mask=mask, **join_inputs(rows, width), **own, **options)
    return [_until(row[:room], ends) for row, room in zip(output[:, width:].tolist(), rooms, strict=True)]


def join_inputs(rows: Sequence[Sequence[int]], width: int) -> dict[str, Tensor]:
    """The image inputs of prompts that are left-padded to a width, as one batch; empty for texts.

    Raises InputError for rows whose images cannot be batched.
    """
    given = [inputs_of(row) for row in rows]
    if any(inputs.keys() != given[0].keys() for inputs in given):
        raise InputError("prompts with images and without do not make a batch for generate; set run.batch=1")
    try:
        return {
            name: torch.cat([_resized(name, inputs[name], width, left=True) for inputs in given]) for name in given[0]
        }
    except RuntimeError as error:
        raise InputError("images of different shapes do not make a batch for generate; set run.batch=1") from error


def _resized(name: str, values: Tensor, width: int, left: bool) -> Tensor:
    """An input with one number per token, padded with 0 or cut to a width of tokens; others unchanged."""
    if not name.endswith("type_ids"):
        return values
    missing = width - values.shape[1]
    return F.pad(values, (missing, 0) if left else (0, missing))


@dataclass(frozen=True)
class ByRow:
    """A logits processor that applies each row's own processors to its text without the padding."""

    processors: Sequence[Sequence[Processor]]
    padding: Sequence[int]

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """The processed logits [R, V] after texts [R, T]."""
        found = list(logits.split(1))
        for row, (processors, skipped) in enumerate(zip(self.processors, self.padding, strict=True)):
            for processor in processors:
                found[row] = processor(tokens[row : row + 1, skipped:], found[row])
        return torch.cat(found)


def describe_generation(settings: SamplingSettings, ends: frozenset[int]) -> GenerationConfig:
    """The settings and ends of sequence, and nothing else, as a generation config of transformers."""
    from transformers import GenerationConfig

    laws: dict[str, Any] = {}
    if settings.temperature > 0:
        laws = {
            "temperature": settings.temperature,
            "top_k": settings.top_k,
            "top_p": settings.top_p,
            "min_p": settings.min_p or None,
        }
    return GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        do_sample=settings.temperature > 0,
        eos_token_id=sorted(ends) or None,
        pad_token_id=0,
        **laws,
    )


def _until(tokens: list[int], ends: frozenset[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in ends:
            return tokens[: index + 1]
    return tokens


@dataclass(frozen=True)
class TextDivergence:
    """Position where two greedy continuations of one prompt diverge."""

    prompt: int
    position: int
    """Index of the first differing new token."""
    ours: int | None
    theirs: int | None
    gap: float
    """Difference of the target's logits for the two tokens there, in one plain forward pass."""
    noise: float
    """Difference of a logit there between two ways of computing the same text: see `measure_noise`."""

    @property
    def tie(self) -> bool:
        """True if the gap is within rounding noise, by which each of the two logits may be off."""
        return self.gap <= 2 * self.noise


@torch.inference_mode()
def find_divergences(
    model: Any,
    rows: Sequence[Sequence[int]],
    ours: Sequence[Sequence[int]],
    theirs: Sequence[Sequence[int]],
    settings: SamplingSettings,
    grammar: TextGrammar | None = None,
) -> list[TextDivergence]:
    """The first divergence of every prompt whose two continuations differ, with logits penalised by the settings."""
    found = []
    for prompt, (row, mine, other) in enumerate(zip(rows, ours, theirs, strict=True)):
        if list(mine) == list(other):
            continue
        paired = zip(mine, other, strict=False)
        position = next((i for i, (a, b) in enumerate(paired) if a != b), min(len(mine), len(other)))
        a = mine[position] if position < len(mine) else None
        b = other[position] if position < len(other) else None
        gap, noise = float("inf"), 0.0
        if a is not None and b is not None:
            logits, noise = measure_noise(model, [*row, *mine[:position]], inputs_of(row))
            logits = penalised(settings, row, mine[:position], logits, grammar)
            gap = float((logits[a] - logits[b]).abs())
        found.append(TextDivergence(prompt, position, a, b, gap, noise))
    return found


def penalised(
    settings: SamplingSettings,
    prompt: Sequence[int],
    tokens: Sequence[int],
    logits: Tensor,
    grammar: TextGrammar | None = None,
) -> Tensor:
    """The logits [V] after a prompt and new tokens, with the settings' grammar, biases and penalties applied."""
    text = torch.tensor([[*prompt, *tokens]], device=logits.device)
    for processor in settings.law(len(prompt), (), grammar).processors:
        logits = processor(text, logits[None])[0]
    return logits


@torch.inference_mode()
def measure_noise(
    model: Any, tokens: Sequence[int], inputs: Mapping[str, Tensor] = MappingProxyType({})
) -> tuple[Tensor, float]:
    """The logits [V] after a text, perhaps with the inputs of its images, and their rounding noise.

    The noise is the largest difference, among the top tokens, between one forward pass over the text and a pass over
    its last token alone with a KV cache of the others; at least the spacing of the dtype at the largest logit.
    """
    from specframe.neural.cache import cache_name

    text = torch.tensor([list(tokens)], device=model.device)
    logits = model(text, **_cut(inputs, len(tokens))).logits[0, -1]
    best = logits.topk(min(BEST, len(logits)))
    noise = float(best.values[0].abs()) * torch.finfo(logits.dtype).eps
    if len(tokens) > 1:
        name = cache_name(model)
        memory = getattr(model(text[:, :-1], use_cache=True, **_cut(inputs, len(tokens) - 1)), name)
        alone = model(text[:, -1:], use_cache=True, **{name: memory}).logits[0, -1]
        noise = max(noise, float((logits.float() - alone.float())[best.indices].abs().max()))
    return logits.float(), noise


def _cut(inputs: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    return {name: _resized(name, values, width, left=False) for name, values in inputs.items()}
