"""Training examples from verification, collected while a text is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specframe.kernel.types import Cycle, Teacher


@dataclass(frozen=True)
class Stretch:
    """The n tokens that a cycle committed in one row, and the target's outputs at the token before each."""

    tokens: Tensor  # [n] int64
    features: Mapping[str, Tensor]  # tap -> [n, D], of the tokens before them
    logits: Tensor  # [m, V], after the last m of the tokens before them
    counts: Tensor  # [m] bool, positions to train on


@dataclass
class Transcript:
    """A row's text with the target's outputs: a teacher without an extra forward pass of the target.

    If `held_back`, it has the target's distribution at all positions with a drafted token, otherwise only
    at those where all drafted tokens were rejected.
    """

    held_back: bool
    first: Tensor  # [1] int64, the prompt's first token
    stretches: list[Stretch] = field(default_factory=list)

    def answer(self, length: int) -> Tensor:
        """Returns the mask of the last `length` positions whose next token was generated: [1, L] bool."""
        prompt = len(self.stretches[0].tokens)  # the admission commits the prompt, shifted by one
        whole = sum(len(stretch.tokens) for stretch in self.stretches)
        return torch.arange(max(0, whole - length), whole, device=self.first.device)[None] >= prompt - 1

    def teacher(self, length: int) -> Teacher:
        """The teacher of the last `length` positions, as one row; `mask` marks the positions to train on."""
        tokens = torch.cat([self.first, *(stretch.tokens for stretch in self.stretches)])[:-1]  # [L]
        taps = self.stretches[0].features
        features = {tap: torch.cat([stretch.features[tap] for stretch in self.stretches]) for tap in taps}
        logits = torch.zeros(len(tokens), self.stretches[-1].logits.shape[-1], device=tokens.device)
        logits = logits.to(self.stretches[-1].logits.dtype)
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        end = 0
        for stretch in self.stretches:
            end += len(stretch.tokens)
            known = slice(end - len(stretch.logits), end)
            logits[known], mask[known] = stretch.logits, stretch.counts
        last = slice(max(0, len(tokens) - length), None)
        return Teacher(
            tokens[None, last],
            mask[None, last],
            {tap: values[None, last] for tap, values in features.items()},
            logits[None, last],
        )


def begin(cycle: Cycle, taps: frozenset[str], held_back: list[bool]) -> list[Transcript]:
    """The transcripts of the rows that an admission adds, with their prompts and first tokens."""
    prompt = cycle.committed.prompt
    assert prompt is not None
    transcripts = [Transcript(own, first) for own, first in zip(held_back, prompt.tokens[:, :1], strict=True)]
    none = cycle.scores.logits[0, :0]  # no token was drafted here
    for transcript, (tokens, features) in zip(transcripts, _committed(cycle, taps), strict=True):
        transcript.stretches.append(Stretch(tokens, features, none, tokens[:0].bool()))
    return transcripts


def extend(transcripts: list[Transcript], cycle: Cycle, taps: frozenset[str]) -> None:
    """Adds a cycle to the transcripts of its rows."""
    draft, verdict, logits = cycle.draft, cycle.verdict, cycle.scores.logits
    last = verdict.slots.gather(1, verdict.length[:, None])  # [B, 1], the last node accepted, or the root
    drafts = draft.valid & (draft.parent >= 0)  # [B, N]
    drafted = torch.zeros_like(draft.valid).scatter_add(1, draft.parent.clamp(min=0), drafts)  # nodes with children
    rejected = drafted.gather(1, last)  # [B, 1]
    answers = logits[torch.arange(len(last), device=last.device), last[:, 0]]  # [B, V]
    paths = verdict.to_host(draft).paths
    for row, (transcript, (tokens, features)) in enumerate(zip(transcripts, _committed(cycle, taps), strict=True)):
        if transcript.held_back:
            nodes = [0, *paths[row]]
            stretch = Stretch(tokens, features, logits[row, nodes], drafted[row, nodes])
        else:
            stretch = Stretch(tokens, features, answers[row : row + 1], rejected[row])
        transcript.stretches.append(stretch)


def _committed(cycle: Cycle, taps: frozenset[str]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yields copies of each row's tokens, [n], and of the features before them, [n, D] by tap."""
    committed = cycle.committed
    counts = committed.counts
    for row, count in enumerate(counts):
        features = {tap: committed.features[tap][row, :count].clone() for tap in sorted(taps)}
        yield committed.tokens[row, :count].clone(), features
