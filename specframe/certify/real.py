"""The certificate's second part: compares the recipe's own model with plain decoding, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specframe.certify.compositions.controls import Unprocessed, WrongBonus
from specframe.decoding.baseline import penalised
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.requests import as_prompts
from specframe.files.text import counted
from specframe.kernel.interfaces import Target, text_of
from specframe.kernel.layers import LayeredTarget
from specframe.kernel.types import Draw, TokenTree, Verdict
from specframe.sampling.grammar import grammar_of

ERROR_RATE = 0.001
"""False alarm rate of the test on sampled tokens."""
TOKENS = 3
"""Tokens of each sample: the prompt's own first one, and those of the first cycle."""
SHUFFLES = 1999
LIKELIEST = 20
"""Number of values per position that are counted separately; many rare values would mask a difference."""


@dataclass(frozen=True)
class GreedyDivergence:
    """First divergence of a prompt's greedy continuation from plain decoding's."""

    prompt: int
    position: int
    ours: int | None
    """The token that the recipe emits there, None after its end; `plain` likewise."""
    plain: int | None
    gap: float
    """Distance between the target's logits of the two tokens there."""
    tie: bool
    """True if the gap is within the effect of scoring many tokens at once: arithmetic, not algorithm."""


@dataclass(frozen=True)
class GreedyReport:
    """Greedy decoding against plain autoregressive decoding of the same target."""

    divergences: tuple[GreedyDivergence, ...]
    prompts: int
    tokens: int
    """Number of tokens compared."""
    noise: float
    """The largest difference that scoring a whole chain at once made to one of the two best logits."""
    smallest_margin: float
    """The smallest gap of the two best logits on the way: the nearest thing to a tie."""
    median_margin: float

    @property
    def identical(self) -> bool:
        """True if all output is the same, ties aside."""
        return all(divergence.tie for divergence in self.divergences)


@dataclass(frozen=True)
class SampledReport:
    """Sampled tokens against plain decoding's: a two-sample permutation test of the first tokens' law."""

    temperature: float
    samples: int
    """Continuations on each side, all of one prompt."""
    tokens: int
    p_value: float
    """Share of shuffled samples that differ as much as the two do."""
    error_rate: float
    control_p_value: float
    """The p-value of a verifier broken on purpose: above `error_rate`, the test was too small to see that."""

    @property
    def consistent(self) -> bool:
        """True if the test finds no difference."""
        return self.p_value > self.error_rate

    @property
    def conclusive(self) -> bool:
        """True if the test would have found one: it noticed the verifier broken on purpose."""
        return self.control_p_value <= self.error_rate


@dataclass(frozen=True)
class RealReport:
    """The report on the recipe's own model."""

    greedy: GreedyReport
    sampled: SampledReport

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        greedy = asdict(self.greedy) | {"identical": self.greedy.identical}
        sampled = asdict(self.sampled) | {"consistent": self.sampled.consistent, "conclusive": self.sampled.conclusive}
        return {"passed": self.passed, "greedy": greedy, "sampled": sampled}

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.greedy.identical and self.sampled.consistent


def certify_real(
    pipeline: Pipeline,
    prompts: Sequence[Any],
    *,
    max_new_tokens: int = 48,
    samples: int = 256,
    listener: Callable[[str], None] | None = None,
) -> RealReport:
    """Checks the pipeline's own model on its prompts: greedy identity, and the law of sampled tokens.

    `listener` is called with a description of the next decoding.
    """
    listen = listener or (lambda step: None)
    rows = [pipeline.encode(prompt) for prompt in prompts]
    listen(f"greedy, {counted(len(rows), 'prompt')}, {counted(max_new_tokens, 'token')} each")
    greedy = check_greedy(pipeline, rows, max_new_tokens)
    return RealReport(greedy=greedy, sampled=check_sampled(pipeline, rows[0], samples, listen))


def check_greedy(pipeline: Pipeline, rows: Sequence[Sequence[int]], max_new_tokens: int) -> GreedyReport:
    """Compares greedy output token by token; at a divergence, the gap of the two logits with rounding noise."""
    greedy = replace(
        pipeline, sampling=replace(pipeline.sampling, temperature=0.0, max_new_tokens=max_new_tokens, stop=[])
    )
    ours, theirs = greedy.generate(rows).tokens, greedy.plain().generate(rows).tokens
    target = pipeline.parts.target
    noise, margins = 0.0, []
    for row, tokens in zip(rows, theirs, strict=True):
        logits, disturbance = chain_logits(target, row, tokens)
        best = logits.topk(2).values
        margins += (best[:, 0] - best[:, 1]).tolist()
        noise = max(noise, disturbance)
    found = []
    for prompt, (row, mine, other) in enumerate(zip(rows, ours, theirs, strict=True)):
        if mine == other:
            continue
        pairs = zip(mine, other, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(other)))
        a, b = (tokens[place] if place < len(tokens) else None for tokens in (mine, other))
        gap = float("inf")
        if a is not None and b is not None:
            logits = logits_after(target, [*row, *mine[:place]])
            logits = penalised(greedy.sampling, row, mine[:place], logits, grammar_of(target, greedy.sampling.grammar))
            gap = float((logits[a] - logits[b]).abs())
        found.append(GreedyDivergence(prompt, place, a, b, gap, gap <= 2 * noise))
    return GreedyReport(
        prompts=len(rows),
        tokens=sum(map(len, theirs)),
        divergences=tuple(found),
        noise=noise,
        smallest_margin=min(margins),
        median_margin=median(margins),
    )


@torch.inference_mode()
def logits_after(target: Target, row: Sequence[int]) -> Tensor:
    """The target's logits after a text, processed in one go: [V] float64."""
    device = text_of(target).device
    target.open(1, len(row))
    return target.admit(as_prompts([row], device))[1].logits[0, 0].double().cpu()


@torch.inference_mode()
def logits_along(target: Target, row: Sequence[int], text: Sequence[int]) -> tuple[Tensor, int]:
    """The target's logits before every token of a text after a prompt, [L, V] float64; and how much of it is kept."""
    device = text_of(target).device
    target.open(1, len(row) + len(text))
    tree, scores = target.admit(as_prompts([row], device))
    chain = torch.tensor([text], device=device)
    committed = target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros_like(chain[:, 0]), chain[:, 0]))
    parts = [scores.logits[0]]
    if len(text) > 1:
        parts.append(target.score(chain_tree(chain[:, :-1])).logits[0])
    read = int(committed.count[0])
    stored = target.memory().counts[0] if isinstance(target, LayeredTarget) else read
    return torch.cat(parts).double().cpu(), min(read, stored)


@torch.inference_mode()
def chain_logits(target: Target, row: Sequence[int], tokens: Sequence[int]) -> tuple[Tensor, float]:
    """Logits before every new token, scored as one long chain, [L, V]; and how much that disturbs them.

    The disturbance is the largest difference to a text processed in one go, among the two best tokens, at
    a few positions.
    """
    logits, _ = logits_along(target, row, tokens)
    disturbance = 0.0
    for position in sorted({0, len(tokens) // 3, 2 * len(tokens) // 3, len(tokens) - 1}):
        alone = logits_after(target, [*row, *tokens[:position]])
        best = alone.topk(2).indices
        disturbance = max(disturbance, float((alone[best] - logits[position, best]).abs().max()))
    return logits, disturbance


def chain_tree(tokens: Tensor) -> TokenTree:
    """A chain of the given tokens [B, N], the first one its root."""
    count = tokens.shape[1]
    return TokenTree(
        tokens=tokens,
        parent=torch.arange(-1, count - 1, device=tokens.device).expand_as(tokens),
        valid=torch.ones_like(tokens, dtype=torch.bool),
        draw=torch.full_like(tokens, int(Draw.TOP)),
        levels=count - 1,
    )


def check_sampled(
    pipeline: Pipeline, row: Sequence[int], samples: int, listen: Callable[[str], None] = lambda step: None
) -> SampledReport:
    """Compares many continuations of one prompt by the composition and by plain decoding, with a permutation test."""
    temperature = pipeline.sampling.temperature or 1.0
    endless = pipeline.sampling.grammar is None  # a text of a grammar may end earlier
    sampling = replace(pipeline.sampling, temperature=temperature, max_new_tokens=TOKENS, stop=[], stop_token_ids=[])
    sampling = replace(sampling, ignore_eos=endless)
    hot = replace(pipeline, sampling=sampling, run=replace(pipeline.run, batch=min(samples, 64)))
    broken = hot.with_parts(verifier=WrongBonus(hot.parts.verifier, Unprocessed()))
    rows = [list(row)] * samples
    base = pipeline.run.seed
    listen(f"sampled, {samples} continuations by plain decoding")
    theirs = _padded(hot.plain().generate(rows, seed=base + 1).tokens)
    listen(f"sampled, {samples} continuations by the recipe")
    ours = _padded(hot.generate(rows, seed=base + 2).tokens)
    listen(f"sampled, {samples} continuations by a verifier broken on purpose")
    control = _padded(broken.generate(rows, seed=base + 3).tokens)
    return SampledReport(
        temperature=temperature,
        samples=samples,
        tokens=TOKENS,
        p_value=permutation_test(ours, theirs),
        error_rate=ERROR_RATE,
        control_p_value=permutation_test(control, theirs),
    )


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """The tokens of each row, -1 after its end: [N, TOKENS]."""
    return torch.tensor([[*row, *[-1] * (TOKENS - len(row))] for row in rows])


def permutation_test(a: Tensor, b: Tensor, shuffles: int = SHUFFLES) -> float:
    """The p-value for two samples of sequences [N, L] from one law, exact for any sample size.

    The statistic is the sum of (n_a - n_b)^2 / (n_a + n_b) over the likeliest values of each position and of the whole
    sequences, with all other values pooled.
    """
    both = torch.cat([a, b])
    columns = [both[:, i : i + 1] for i in range(both.shape[1])] + [both]
    cells = [_cells(column) for column in columns]
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(shuffles, len(both), generator=generator).argsort(1)
    sides = torch.cat([torch.arange(len(both))[None], order]) < len(a)  # [1 + shuffles, 2N]; the first is real
    signs = sides.double() * 2 - 1
    statistic = torch.zeros(len(signs), dtype=torch.float64)
    for cell in cells:
        difference = torch.zeros(len(signs), int(cell.max()) + 1, dtype=torch.float64)
        difference.index_add_(1, cell, signs)
        statistic += (difference**2 / cell.bincount()).sum(1)
    return float((statistic >= statistic[0] - 1e-9).double().mean())


def _cells(column: Tensor) -> Tensor:
    """The cell that each value [N, L] belongs to: one for each of the most frequent, the last for all others."""
    _, which, counts = column.unique(dim=0, return_inverse=True, return_counts=True)
    place = counts.argsort(descending=True, stable=True).argsort()
    return place.clamp(max=LIKELIEST)[which]
