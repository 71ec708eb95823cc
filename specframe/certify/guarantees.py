"""Lossy compositions: properties that a verifier keeps, enumerated, and an approximate target's distance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch

from specframe.certify.certificate import EXACT, Guarantee
from specframe.certify.compositions.batch import BATCHES, Accompanied
from specframe.certify.compositions.emission import Comparison, Emission, distance
from specframe.certify.real import logits_along
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.settings import SamplingSettings
from specframe.files.text import counted
from specframe.kernel.composition import strict_form
from specframe.kernel.interfaces import Target, Verifier, text_of
from specframe.kernel.types import Cycle
from specframe.sampling.laws import Sampling

Compare = Callable[[Emission], Comparison]

ORIGIN = "every token was drafted or is the target's own"
APART = "no row depends on another"
STRICT = "its strict form emits the target's distribution"


def guarantees(make: Callable[..., Emission], compare: Compare) -> Iterator[Guarantee]:
    """Yields what can be enumerated of a composition; its strict form, where the verifier has one.

    `make` builds its emission of a name, with `broken` around the verifier.
    """
    aliens: list[bool] = []
    emission = make(ORIGIN)
    watched = replace(emission, watch=lambda cycle: aliens.append(has_alien(cycle, emission.sampling)))
    alone = compare(watched)
    yield _guarantee(ORIGIN, not any(aliens), alone)
    parts = emission.parts()
    if parts.promise.row_independent:  # where drafts depend on other rows, what a lossy rule accepts of them does, too
        batch = _in_batches(emission, compare)
        same = [distance(alone.enumeration.law, each.enumeration.law) < EXACT for each in batch]
        yield _guarantee(APART, all(same), *batch)
    if strict_form(parts.verifier) is not None:
        strict = compare(make(STRICT, broken=_strict))
        yield _guarantee(STRICT, strict.tv < EXACT, strict)


def has_alien(cycle: Cycle, sampling: Sampling) -> bool:
    """Returns whether a token of the cycle is neither on a path of the draft nor one that the target could emit.

    With processors the second depends on the text, which a cycle does not have, and is not looked at.
    """
    tree, verdict = cycle.draft, cycle.verdict
    slots = verdict.slots  # [B, A + 1], the root first
    parents, nodes = slots[:, :-1], slots[:, 1:]
    safe_nodes = nodes.clamp(min=0)
    chained = (tree.parent.gather(1, safe_nodes) == parents) & tree.valid.gather(1, safe_nodes) | (nodes < 0)
    if sampling.processors:
        return not bool(chained.all())
    last = slots.gather(1, verdict.length[:, None])[:, 0]  # [B]
    law = sampling.law(cycle.scores.logits, tree)  # [B, N, V]
    own = law[torch.arange(len(last)), last].gather(1, verdict.bonus[:, None]) > 0
    return not bool(chained.all() and own.all())


def _in_batches(emission: Emission, compare: Compare) -> list[Comparison]:
    """The comparisons of the row among others of different kinds."""
    named = replace(emission, name=APART)
    return [compare(Accompanied.of(named, batch)) for batch in (BATCHES[0], BATCHES[-1])]


def _strict(verifier: Verifier) -> Verifier:
    return strict_form(verifier) or verifier


def _guarantee(name: str, holds: bool, *comparisons: Comparison) -> Guarantee:
    runs = [comparison.enumeration for comparison in comparisons]
    return Guarantee(name, holds, sum(run.branches for run in runs), all(run.exhausted for run in runs))


TOKENS = 48
"""Tokens of each text."""


@dataclass(frozen=True)
class Distance:
    """Distance of an approximate target's distributions from the full target's, token by token of greedy texts."""

    prompts: int
    shortened: int
    """Number of prompts of which it does not read or keep everything."""
    tokens: int
    """Number of tokens compared."""
    temperature: float
    mean_tv: float
    """Mean total variation of the two distributions of the next token at that temperature."""
    largest_tv: float
    agreement: float
    """Share of places where both have the same most probable token."""
    same_texts: int
    """Number of prompts that both continue alike in greedy decoding."""


def measure_distance(
    pipeline: Pipeline,
    target: Target,
    prompts: Sequence[Any],
    listener: Callable[[str], None] | None = None,
) -> Distance:
    """Measures on the recipe's own model and prompts; a temperature of 0 counts as 1 for the distributions."""
    rows = [pipeline.encode(prompt) for prompt in prompts]
    if listener is not None:
        listener(f"the full target, {counted(len(rows), 'prompt')}, {counted(TOKENS, 'token')} each")
    settings = SamplingSettings(temperature=0.0, max_new_tokens=TOKENS)
    full = text_of(target).full()
    greedy = replace(pipeline.plain(), sampling=settings)
    texts = greedy.with_parts(target=full).generate(rows).tokens
    if listener is not None:
        listener("the approximate target on the same texts")
    others = greedy.generate(rows).tokens
    heat = pipeline.sampling.temperature or 1.0
    away: list[float] = []
    same: list[bool] = []
    shortened = 0
    for row, text in zip(rows, texts, strict=True):
        (wanted, whole), (found, read) = (logits_along(each, row, text) for each in (full, pipeline.parts.target))
        shortened += read < whole
        laws = [torch.softmax(logits / heat, -1) for logits in (wanted, found)]
        away += (0.5 * (laws[0] - laws[1]).abs().sum(-1)).tolist()
        same += (wanted.argmax(-1) == found.argmax(-1)).tolist()
    alike = sum(mine == other for mine, other in zip(others, texts, strict=True))
    return Distance(len(rows), shortened, len(away), heat, mean(away), max(away), mean(same), alike)


@dataclass
class Departure:
    """Tokens of cycles at temperature 0, and how many are not the target's most probable ones."""

    cycles: int = 0
    tokens: int = 0
    others: int = 0
    """Number of tokens that are not the target's most probable ones."""
    nats: float = 0.0
    """Sum over these of log p of the most probable token less that of the emitted one."""

    def add(self, cycle: Cycle) -> None:
        """Adds a cycle, as the verifier judged it; an admission is not one."""
        if not cycle.draft.levels:
            return
        slots, logits = cycle.verdict.slots, cycle.scores.logits
        parents, nodes = slots[:, :-1].clamp(min=0), slots[:, 1:]  # [B, A]
        drafted = cycle.draft.tokens.gather(1, nodes.clamp(min=0))
        parent_logits = logits[torch.arange(len(parents), device=parents.device)[:, None], parents].float()  # [B, A, V]
        lost = (parent_logits.amax(-1) - parent_logits.gather(2, drafted[..., None])[..., 0]).where(nodes >= 0, 0)
        self.cycles += len(parents)
        self.tokens += int(cycle.verdict.count.sum())
        self.others += int((lost > 0).sum())
        self.nats += float(lost.sum())

    def as_dict(self) -> dict[str, Any]:
        """The figures per token."""
        tokens = max(self.tokens, 1)
        return {"tokens": self.tokens, "others": self.others / tokens, "nats": self.nats / tokens}


def measure_departure(
    pipeline: Pipeline, prompts: Sequence[Any], listener: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Decodes the prompts at temperature 0; `tokens`, the share `others`, and the mean `nats` that a token loses."""
    if listener is not None:
        listener(f"the lossy rule, {counted(len(prompts), 'prompt')}, {counted(TOKENS, 'token')} each")
    settings = replace(pipeline.sampling, temperature=0.0, max_new_tokens=TOKENS)
    greedy, found = replace(pipeline, sampling=settings), Departure()
    requests = greedy.requests([greedy.encode(prompt) for prompt in prompts])
    with greedy.open(requests) as session:
        session.run(requests, found.add)
    return found.as_dict()
