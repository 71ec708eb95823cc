"""Commits made up for tests: what a loop would give a drafter."""

from __future__ import annotations

import torch

from specframe.kernel.types import Committed, Context, Prompts
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom

CONTEXT = Context(Sampling(), SeededRandom(0, 1).draft)
"""Of drafters that neither sample nor ask what forward passes cost."""


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows right-padded with 0, and their lengths."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return tokens, torch.tensor([len(row) for row in rows])


def first(texts: list[list[int]]) -> Committed:
    """The first commit of a session, for texts of at least 2 tokens whose last one was generated."""
    prompts = Prompts(*padded([text[:-1] for text in texts]))
    tokens, count = padded([text[1:] for text in texts])
    return Committed(tokens, count, {}, root=torch.tensor([text[-1] for text in texts]), prompt=prompts)


def later(rows: list[list[int]]) -> Committed:
    """A commit of the rows' next tokens, at least one each."""
    tokens, count = padded(rows)
    return Committed(tokens, count, {}, root=torch.tensor([row[-1] for row in rows]))
