"""The selection `specpc`: the tokens that a small model attends to at a prompt's end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, pad

from specframe import CompositionError, InputError
from specframe.plugin import (
    NEWEST_QUERIES,
    CommittedMemory,
    Drafter,
    LayeredTarget,
    Prompts,
    Target,
    Verdict,
    reader_of,
    untrained_form,
)
from specframe_self.excerpt.selection import Marked

log = logging.getLogger("specframe.excerpt")

SKIPPED = 1 / 3
"""Share of the model's first layers whose attention is not used."""


class AttendedTokens(Marked):
    """The tokens of a prompt that a small model attends to at its end, with their neighbours.

    The small model reads the whole prompt. A token's score is the largest attention that it gets from the last `window`
    tokens, with weights that increase from the first to the last, over the heads of all layers after the first third;
    the score is then the maximum over `pool` tokens around it. The tokens with the highest scores are read, each with
    its `neighbours`. The window and special tokens are always read.

    Source: SpecPC (Draft-based Approximate Inference for LLMs, Galim et al. 2025, arXiv 2506.08373).

    Options:
        tokens: maximum number of prompt tokens that are read
        window: number of the prompt's last tokens whose attention counts, at most 64
        pool: number of tokens that share a score
        neighbours: number of tokens around a chosen one that are read with it, nearest first
        drafter: the small model, a drafter `model`; none: the drafter that reads the excerpt
    """

    def __init__(
        self,
        *,
        tokens: int = 1024,
        window: int = 64,
        pool: int = 32,
        neighbours: int = 32,
        drafter: Drafter | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.window, self.pool, self.neighbours = tokens, window, pool, neighbours
        self.drafter = drafter
        self._reader: LayeredTarget | None = None
        self._warned = False
        self.require_sizes()
        if drafter is not None:
            _reader(drafter)

    def require_sizes(self) -> None:
        """Raises InputError for an impossible window, or one that uses up the budget."""
        if not 1 <= self.window <= NEWEST_QUERIES:
            raise InputError(f"specpc: the window has 1 to {NEWEST_QUERIES} tokens, not {self.window}")
        if self.tokens <= self.window:
            raise InputError(
                f"specpc: a budget of {self.tokens} tokens does not exceed the window of {self.window}, which it holds"
            )
        if self.pool < 1 or self.neighbours < 0:
            raise InputError(
                f"specpc: pool is at least 1 and neighbours at least 0, not {self.pool} and {self.neighbours}"
            )

    def smaller(self) -> AttendedTokens:
        """Returns a copy of three tokens, one of them the prompt's last."""
        return AttendedTokens(tokens=3, window=1, pool=1, neighbours=0, drafter=self.drafter)

    def untrained(self, vocab: int) -> AttendedTokens:
        """Returns a copy of three tokens, with a model for a target of `vocab` tokens."""
        small = self.smaller()
        small.drafter = untrained_form(small.drafter, vocab)
        return small

    def bind(self, target: Target, drafter: Drafter | None = None) -> None:
        """Loads the small model. Raises InputError without one, CompositionError if its attention is not available."""
        super().bind(target, drafter)
        reader = self.drafter or drafter
        if reader is None:
            raise InputError(
                "specpc needs a small model to read the prompt: give its `drafter`, such as {use: model, weights: ...}"
            )
        as_target = _reader(reader)
        if self.drafter is not None:
            self.drafter.bind(target)
        self._reader = as_target()
        try:
            self._read([0, 0])
        except CompositionError:
            raise CompositionError(
                "specpc reads the attention of a small model, and this model's shows no queries: take another `drafter`"
            ) from None

    def choose(self, prompt: Sequence[int]) -> list[int]:
        """Returns the positions of a prompt that are read, ascending."""
        begin = len(prompt) - self.window
        scores = pooled(self._scores(prompt)[:begin], self.pool)
        taken = {*range(begin, len(prompt))}
        always = [place for place in range(begin) if prompt[place] in self._special]
        taken.update(always[: self.tokens - len(taken)])
        for place in scores.argsort(descending=True, stable=True).tolist():
            for near in self._around(place, begin):
                if len(taken) == self.tokens:
                    return sorted(taken)
                taken.add(near)
        return sorted(taken)

    def _around(self, place: int, end: int) -> list[int]:
        """Returns a token before `end` and its neighbours, nearest first."""
        steps = (0, *(sign * step for step in range(1, self.neighbours + 1) for sign in (-1, 1)))
        return [place + step for step in steps[: self.neighbours + 1] if 0 <= place + step < end]

    def _scores(self, prompt: Sequence[int]) -> Tensor:
        """Returns the score of every token of a prompt; 0 for tokens before the small model's context."""
        assert self._reader is not None, "bind came first"
        cut = max(0, len(prompt) - self._reader.context)
        if cut and not self._warned:
            self._warned = True
            log.warning(
                "a prompt of %d tokens is longer than the context of specpc's model: its first %d are not ranked",
                len(prompt),
                cut,
            )
        known = self._reader.vocab_size - 1  # a smaller vocabulary's last token replaces unknown ones
        return pad(self._read([min(token, known) for token in prompt[cut:]]), (cut, 0))

    @torch.inference_mode()
    def _read(self, tokens: Sequence[int]) -> Tensor:
        """Returns the attention to each of the tokens, which are read in a separate session."""
        reader = self._reader
        assert reader is not None, "bind came first"
        rows = torch.tensor([[*tokens]], device=reader.device)
        reader.open(1, len(tokens) + 1)
        tree, _ = reader.admit(Prompts(rows, torch.full_like(rows[:, 0], len(tokens))))
        reader.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros_like(rows[:, 0]), rows[:, -1]))
        scores = attention(reader.memory(), self.window)
        reader.open(1, 1)  # drops the prompt
        return scores.cpu()


def _reader(drafter: Drafter) -> Callable[[], LayeredTarget]:
    """Returns a function that creates a target of the drafter's model. Raises CompositionError without a model."""
    as_target = reader_of(drafter)
    if as_target is None:
        raise CompositionError(
            f"specpc reads the attention of a small model, and {type(drafter).__name__} is none: "
            "give its `drafter`, such as {use: model, weights: ...}"
        )
    return as_target


def attention(memory: CommittedMemory, window: int) -> Tensor:
    """Returns the largest weighted attention to each of a row's tokens from its last, over layers and heads: [S]."""
    count = memory.counts[0]
    queries = memory.queries[:, 0, :, -min(window, count) :]  # [layers, heads, T, D]
    layers, _, voters, _ = queries.shape
    places = torch.arange(count, device=queries.device)
    hidden = places > places[-voters:, None]  # [T, S]
    weight = torch.arange(1, voters + 1, device=queries.device) / voters
    best = torch.zeros(count, device=queries.device)
    for layer in range(int(layers * SKIPPED), layers):
        keys = memory.keys[layer, 0, :, :count].to(torch.float32)  # [key heads, S, D]
        asking = queries[layer].to(torch.float32).unflatten(0, (len(keys), -1))  # [key heads, shared, T, D]
        logits = asking @ keys[:, None].transpose(-1, -2)
        shares = logits.masked_fill(hidden, -torch.inf).softmax(-1) * weight[:, None]
        best = torch.maximum(best, shares.flatten(0, 2).amax(0))
    return best


def pooled(scores: Tensor, pool: int) -> Tensor:
    """Returns the maximum of the `pool` scores around each of [S]; scores beyond the ends are 0."""
    before = pool // 2
    return max_pool1d(pad(scores, (before, pool - 1 - before))[None], pool, 1)[0]
