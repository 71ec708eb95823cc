"""Whether a drafter reads its target as it was trained to: its own reading, and the usual mistakes, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specframe.components.rollouts.shifted import shift
from specframe.decoding.pipeline import Pipeline, Prompt
from specframe.kernel.errors import CompositionError, SpecframeError
from specframe.kernel.interfaces import FeatureDrafter, NeuralTarget
from specframe.kernel.types import PairSpec, Teacher
from specframe.neural.drafter import NeuralDrafter
from specframe.neural.heads import support_of
from specframe.neural.network import FeatureNetwork
from specframe.neural.weights.checkpoint import locate

TOKENS = 96
"""New tokens of every prompt."""
BETTER = 0.05
"""Another reading is the right one if it agrees by so much more often, and by three standard errors."""
SHORT = 0.5
"""Agreement below this share of what training recorded is too little for a change of texts."""


@dataclass(frozen=True)
class Reading:
    """A way to read the target, and how often the drafter's first choice is the target's with it."""

    name: str
    taps: tuple[str, ...]
    swapped: bool = False
    """Whether embedding and feature change places."""
    late: bool = False
    """Whether a feature is paired with its own token instead of the next."""
    agreement: float = 0.0
    error: float = 0.0
    """The standard error of how much it agrees more often than the drafter's own reading, at the same positions."""

    @property
    def remedy(self) -> str:
        """What to change where this is the right one."""
        if self.swapped:
            return "swap the two halves of its first map's input in the checkpoint"
        if self.late:
            return "train it on pairs of a feature and the token after it, or shift its inputs where it was exported"
        return f"its features are {', '.join(self.taps)}: correct the layer numbers in the checkpoint or the recipe"


@dataclass(frozen=True)
class Diagnosis:
    """What a few cycles showed."""

    alpha: list[float]
    """The share of cycles accepted to each depth, decoded with the recipe's own tree."""
    tau: float
    chance: float
    """How often the most frequent token is right."""
    positions: int
    """How many predictions each agreement is of."""
    readings: list[Reading]
    """The drafter's own first; empty for a drafter that reads no features."""
    recorded: float | None
    """The agreement that its training recorded on held-out texts."""

    @property
    def better(self) -> Reading | None:
        """The reading that fits these weights, where it is not their own."""
        if not self.readings:
            return None
        own, best = self.readings[0], max(self.readings, key=lambda reading: reading.agreement)
        return best if best.agreement > own.agreement + max(BETTER, 3 * best.error) else None

    @property
    def finding(self) -> str | None:
        """What is wrong, in one sentence with its remedy; None if nothing was found."""
        if self.better is not None:
            return f"this drafter was made for another reading, {self.better.name}: {self.better.remedy}"
        if not self.readings:
            first = self.alpha[0] if self.alpha else 0.0
            return "no more is accepted than by chance" if first <= self.chance else None
        own = self.readings[0].agreement
        if own <= self.chance + BETTER:
            return (
                "it agrees with the target hardly more than by chance, whatever it reads: it is untrained, or another's"
            )
        if self.recorded is not None and own < SHORT * self.recorded:
            return (
                f"its training recorded an agreement of {self.recorded:.2f}: take prompts as it was trained on, "
                "or train it on such as these"
            )
        return None


def examine(pipeline: Pipeline, prompts: Sequence[Prompt]) -> Diagnosis:
    """The diagnosis of a pipeline's drafter, from its drafts for these prompts and from what the target wrote."""
    result = pipeline.generate(prompts, max_new_tokens=TOKENS)
    rows = [pipeline.encode(prompt) for prompt in prompts]
    written = torch.tensor([token for row in result.tokens for token in row])
    chance = float(written.bincount().max()) / len(written) if len(written) else 0.0
    target, drafter = pipeline.parts.target, pipeline.parts.drafter
    readings: list[Reading] = []
    positions = 0
    if isinstance(drafter, FeatureDrafter) and isinstance(target, NeuralTarget):
        network = drafter.network if isinstance(drafter, NeuralDrafter) else None
        pairs = isinstance(network, FeatureNetwork) and type(network).unroll is FeatureNetwork.unroll
        tried = list(_readings(drafter.spec, _depth(target), pairs))
        target.request(frozenset(tap for reading in tried for tap in reading.taps))
        teachers = [
            _teach(target, row, list(new)) for row, new in zip(rows, result.tokens, strict=True) if len(new) > 1
        ]
        hits = [_hits(drafter, reading, teachers) for reading in tried]  # the drafter's own reading first
        positions = len(hits[0])
        for reading, found in zip(tried, hits, strict=True) if positions else ():
            error = float((found - hits[0]).var(correction=0) / positions) ** 0.5
            readings.append(replace(reading, agreement=float(found.mean()), error=error))
    acceptance = result.acceptance
    return Diagnosis(acceptance.alpha, acceptance.tau, chance, positions, readings, _recorded(drafter))


def _readings(spec: PairSpec, layers: int | None, pairs: bool) -> Iterator[Reading]:
    """The drafter's own reading, and those that it may have been made for; `pairs`: its network is given pairs."""
    taps = spec.taps
    yield Reading("as it is", taps)
    if pairs:
        yield Reading("embedding and feature swapped", taps, swapped=True)
    yield Reading("each feature with its own token", taps, late=True)
    if len(taps) > 1:
        yield Reading("features in reverse order", taps[::-1])
    if layers is None:
        return
    final = f"layer.{layers - 1}"
    numbers = [int(tap.partition(".")[2]) if tap != "last" else layers - 1 for tap in taps]
    if "last" in taps:
        yield Reading("before the final norm", tuple(final if tap == "last" else tap for tap in taps))
    elif final in taps:
        yield Reading("after the final norm", tuple("last" if tap == final else tap for tap in taps))
    for step in (-2, -1, 1, 2):
        if min(numbers) + step >= 0 and max(numbers) + step < layers:
            moved = tuple(f"layer.{number + step}" for number in numbers)
            yield Reading(f"layers {'+' if step > 0 else '-'}{abs(step)}", moved)


def _depth(target: NeuralTarget) -> int | None:
    """The number of the target's layers."""
    found: int | None = getattr(target.config, "num_hidden_layers", None)
    return found


def _teach(target: NeuralTarget, prompt: list[int], new: list[int]) -> Teacher:
    """One text and what the target makes of it; what it wrote itself counts."""
    tokens = torch.tensor([prompt + new], device=getattr(target, "device", None))
    mask = torch.arange(tokens.shape[1], device=tokens.device)[None] >= len(prompt) - 1
    return target.teach(tokens, mask)


@torch.no_grad()
def _hits(drafter: FeatureDrafter, reading: Reading, teachers: Sequence[Teacher]) -> Tensor:
    """Where the drafter's first choice one level down is the target's: 1 or 0 of every position, [n]."""
    hits: list[Tensor] = []
    support = support_of(drafter)
    network = drafter.network if isinstance(drafter, NeuralDrafter) else None
    for teacher in teachers:
        with torch.random.fork_rng(devices=[]), _swapping(network) if reading.swapped else nullcontext():
            torch.manual_seed(0)  # where a text of blocks is cropped, the same for every reading
            pairs = shift(teacher, replace(drafter.spec, taps=reading.taps), drafter.block, drafter.levels)
            tokens = pairs.tokens
            if reading.late:
                tokens = torch.cat([teacher.tokens[:, :1], tokens[:, :-1]], 1)
            logits = drafter.read(drafter.unroll(drafter.fuse(pairs.features), tokens))  # [B, n, K, v]
        chosen = logits.flatten(1, 2).argmax(-1)  # [B, n K]
        chosen = chosen if support is None else support[chosen]
        right = teacher.logits.argmax(-1).gather(1, pairs.position) == chosen
        hits.append(right[pairs.mask & (pairs.level == 1)])
    return torch.cat(hits).double() if hits else torch.zeros(0)


@contextmanager
def _swapping(network: Any) -> Iterator[None]:
    """The network reads its pairs the other way round."""

    def swap(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        pairs, *rest = given
        return (torch.cat(pairs.chunk(2, -1)[::-1], -1), *rest)

    handle = network.register_forward_pre_hook(swap)
    try:
        yield
    finally:
        handle.remove()


def _recorded(drafter: object) -> float | None:
    """The agreement one level down that the checkpoint's train.json has of its last validation."""
    weights = getattr(drafter, "weights", None)
    if not isinstance(weights, str):
        return None
    try:
        report = json.loads((locate(weights) / "train.json").read_text(encoding="utf-8"))
        return float(report["validations"][-1]["accuracy.1"])
    except (OSError, ValueError, LookupError, TypeError, SpecframeError):
        return None


def require_draft(pipeline: Pipeline) -> None:
    """Raises CompositionError for a recipe that drafts nothing."""
    if pipeline.parts.nodes < 2:
        raise CompositionError("this recipe drafts nothing; give it a drafter and a tree")
