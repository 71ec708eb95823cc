"""Search for the layers that a target can skip while drafting, as in Draft & Verify, done before decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from specframe.components.drafters.none import NoDrafter
from specframe.decoding.costs import time_forwards
from specframe.decoding.pipeline import Pipeline, Prompt
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import TreePolicy
from specframe.kernel.layers import LayerChoice, LayeredTarget
from specframe.kernel.types import Context, Cycle, TokenTree

POSITIONS = 120
"""Approximate number of text positions at which every choice of layers drafts."""
DEPTH = 8
"""Maximum depth of the chains that are forecast."""
TRIED = 6
"""Number of parts tried in every round: those whose removal alone lowers agreement least."""
PATIENCE = 6
"""Number of rounds without a better forecast after which the search ends."""
EXITS = 8
"""Exits are tried after every eighth of the layers."""


@dataclass(frozen=True)
class OwnDraft:
    """Measured drafts by some of a target's layers, and the forecast gain."""

    chosen: LayerChoice
    agreement: float
    """Share of positions at which the most likely token is the target's."""
    seconds: float
    """Seconds to draft one token."""
    depth: int
    """Chain length with the largest gain."""
    gain: float
    """Speed of such a chain relative to plain decoding, forecast from forward passes alone."""

    @property
    def option(self) -> str:
        """The drafter `self`'s option: `exit: 12`, `skip: [3]` or `skip: {attention: [7], mlp: [3]}`."""
        chosen = self.chosen
        if chosen == LayerChoice.first(chosen.whole, chosen.layers):
            return f"exit: {chosen.whole}"
        attention, mlp = (
            [layer for layer, runs in enumerate(part) if not runs] for part in (chosen.attention, chosen.mlp)
        )
        return f"skip: {attention}" if attention == mlp else f"skip: {{attention: {attention}, mlp: {mlp}}}"


def search(
    pipeline: Pipeline, prompts: Sequence[Prompt], watch: Callable[[OwnDraft], None] = lambda found: None
) -> list[OwnDraft]:
    """Measures exits, and growing sets of skipped parts while the forecast improves; `watch` gets each result.

    First, each attention and each MLP is skipped alone. Then, in each round, the part whose removal keeps agreement
    highest, among those that cost least alone, is added to the skipped ones. Draft & Verify (Zhang et al. 2024)
    searches the same sets by Bayesian optimisation. All measurements are at temperature 0.

    Raises CompositionError for a target whose layers cannot be skipped, and InputError for texts that are too short.
    """
    target = pipeline.parts.target
    if not isinstance(target, LayeredTarget):
        raise CompositionError("--skip takes layers from a target that is a transformers model, such as `hf`")
    layers: int = target.config.num_hidden_layers
    trial = LayerChoice.first(layers - 1, layers) if layers > 1 else LayerChoice.without(1, [0], [])
    target.check_layers(trial)
    forwards = time_forwards(target, range(1, DEPTH + 2))
    found: list[OwnDraft] = []

    def measure(choices: Sequence[LayerChoice]) -> list[OwnDraft]:
        return [
            forecast(chosen, *figures, forwards) for chosen, figures in agreements(pipeline, target, prompts, choices)
        ]

    def report(draft: OwnDraft) -> None:
        found.append(draft)
        watch(draft)

    exits = sorted({ceil(layers * part / EXITS) for part in range(1, EXITS)} - {layers})
    for draft in measure([LayerChoice.first(exit, layers) for exit in exits]):
        report(draft)
    alone = dict(zip(parts(layers), measure([without(layers, {part}) for part in parts(layers)]), strict=True))
    ranked = sorted(alone, key=lambda part: -alone[part].agreement)
    left_out, since = {ranked[0]}, 0
    report(alone[ranked[0]])
    best = alone[ranked[0]].gain
    while since < PATIENCE and len(left_out) < 2 * layers - 1:  # at least one part must run
        waiting = [part for part in ranked if part not in left_out][:TRIED]
        tried = measure([without(layers, left_out | {part}) for part in waiting])
        draft, part = max(zip(tried, waiting, strict=True), key=lambda pair: pair[0].agreement)
        left_out.add(part)
        report(draft)
        best, since = (draft.gain, 0) if draft.gain > best else (best, since + 1)
    return found


Part = tuple[str, int]
"""An attention or MLP, as its kind and layer."""


def parts(layers: int) -> list[Part]:
    """Returns the attentions and MLPs of `layers` layers."""
    return [(name, layer) for layer in range(layers) for name in ("attention", "mlp")]


def without(layers: int, left_out: Iterable[Part]) -> LayerChoice:
    """Returns the choice of all parts of `layers` layers except these."""
    attention, mlp = ({layer for name, layer in left_out if name == wanted} for wanted in ("attention", "mlp"))
    return LayerChoice.without(layers, attention, mlp)


def forecast(chosen: LayerChoice, agreement: float, seconds: float, forwards: Mapping[int, float]) -> OwnDraft:
    """Forecasts the gain over plain decoding of chains drafted in this way, at the best depth.

    Acceptance is assumed to be equal at every depth. Verification resumes above the layers that the draft ran in full
    and runs those only for the last node. `forwards` has the seconds of a forward pass by number of nodes, from 1 on.
    """
    whole = chosen.whole / chosen.layers

    def gain(depth: int) -> float:
        tokens = sum(agreement**level for level in range(depth + 1))
        verification = (1 - whole) * forwards[depth + 1] + whole * forwards[1]
        return tokens * forwards[1] / (depth * seconds + verification)

    depth = max(range(1, max(forwards)), key=gain)
    return OwnDraft(chosen, agreement, seconds, depth, gain(depth))


def agreements(
    pipeline: Pipeline, target: LayeredTarget, prompts: Sequence[Prompt], choices: Sequence[LayerChoice]
) -> list[tuple[LayerChoice, tuple[float, float]]]:
    """Measures, for each choice, how often its most likely token is the target's next token, and the seconds per draft.

    All choices draft at the same positions of the same texts, which are decoded once.
    """
    greedy = replace(pipeline.sampling, temperature=0.0)
    every = max(1, len(prompts) * greedy.max_new_tokens // POSITIONS)
    probe = Probe(target, choices, every)
    alone = replace(pipeline.plain(), sampling=greedy, run=replace(pipeline.run, batch=1, costs=None))
    alone.with_parts(drafter=probe).generate(prompts)
    return list(zip(choices, probe.figures(), strict=True))


class Probe(NoDrafter):
    """A drafter that proposes nothing, but records what choices of the target's layers would draft."""

    def __init__(self, target: LayeredTarget, choices: Sequence[LayerChoice], every: int) -> None:
        self.target = target
        self.choices = choices
        self.every = every
        self._cycles = 0
        self._drafted: Tensor | None = None  # [choices], tokens drafted in this cycle
        self._right: list[list[bool]] = []
        self._seconds: list[list[float]] = []

    def figures(self) -> list[tuple[float, float]]:
        """Returns by choice the share of positions at which its token was right, and the median seconds of a draft."""
        if not self._right:
            raise InputError("the texts are too short to measure drafts on: give longer prompts, or more of them")
        shares = torch.tensor(self._right, dtype=torch.float64).mean(0).tolist()
        return list(zip(shares, [median(times) for times in zip(*self._seconds, strict=True)], strict=True))

    @torch.no_grad()
    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns the root alone, after every choice has drafted its successor."""
        draft = TokenTree.root_only(root)
        self._cycles += 1
        if self._cycles % self.every == 0:
            tokens, seconds = [], []
            for chosen in self.choices:
                start = perf_counter()
                last = self.target.run_layers(chosen, draft, torch.zeros_like(draft.tokens))["last"]
                tokens.append(int(self.target.head(last[:, 0]).argmax(-1)))
                seconds.append(perf_counter() - start)
            self._drafted = torch.tensor(tokens)
            self._seconds.append(seconds)
        return draft

    def observe(self, cycle: Cycle) -> None:
        """Compares the drafts with the target's token."""
        if self._drafted is not None:
            self._right.append((self._drafted == cycle.verdict.bonus.cpu()).tolist())
            self._drafted = None
