"""What each row has been given so far, and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from specframe.kernel.errors import InputError
from specframe.kernel.types import Prompts, TokenTree, Verdict
from specframe.sampling.laws import History, Sampling

Listener = Callable[[int, list[int]], None]
"""Called with (row, new tokens) as soon as a cycle commits them."""


@dataclass
class Entry:
    """One row of the session: its prompt, what was generated, and why it ended."""

    row: int
    prompt: list[int]
    limit: int
    tokens: list[int] = field(default_factory=list)
    ended: str | None = None
    """None while it runs; then `length`, `end` (an end-of-sequence token) or `stop` (a stop text)."""


class Ledger:
    """Budgets, ends of sequence and stop texts of a batch, all on the host."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        context: int,
        nodes: int,
        ends: frozenset[int] = frozenset(),
        stop: Callable[[Entry], bool] | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Opens a row per prompt. `nodes` is the size of the largest tree, `stop` tells after each
        token whether a row is at a stop text. Raises InputError for a prompt that is empty or too long.
        """
        self.entries = []
        for row, prompt in enumerate(prompts):
            if not prompt:
                raise InputError(f"prompt {row + 1} is empty; give it at least one token")
            left = context - len(prompt)
            if left < 1:
                raise InputError(
                    f"prompt {row + 1} has {len(prompt)} tokens and leaves no room in the target's context of "
                    f"{context}; shorten it to {context - 1} tokens or fewer"
                )
            self.entries.append(Entry(row, list(prompt), min(max_new_tokens, left)))
        self.open = list(self.entries)
        self.room = max(entry.limit for entry in self.entries) + nodes
        self.ends = ends
        self.stop = stop
        self.listener = listener

    def enter(self, draft: TokenTree, verdict: Verdict) -> list[int]:
        """Books a cycle's tokens and returns the indices of the rows that go on.

        What follows an end of sequence, a stop text or the budget within an accepted path is cut off.
        """
        alive = []
        for index, (entry, tokens) in enumerate(zip(self.open, verdict.tell(draft).tokens, strict=True)):
            start = len(entry.tokens)
            for token in tokens:
                entry.tokens.append(token)
                if token in self.ends:
                    entry.ended = "end"
                elif self.stop is not None and self.stop(entry):
                    entry.ended = "stop"
                elif len(entry.tokens) >= entry.limit:
                    entry.ended = "length"
                if entry.ended:
                    break
            else:
                alive.append(index)
            if self.listener is not None:
                self.listener(entry.row, entry.tokens[start:])
        self.open = [self.open[index] for index in alive]
        return alive

    def follow(self, sampling: Sampling) -> Sampling:
        """The sampling, bound to the open rows' committed tokens when it looks at history."""
        if not sampling.processors:
            return sampling
        rows = [entry.prompt + entry.tokens for entry in self.open]
        return sampling.following(History(*pad(rows)))


def pad(rows: Sequence[Sequence[int]], device: torch.device | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows right-padded with 0, [B, L], and their lengths [B]."""
    count = torch.tensor([len(row) for row in rows], device=device)
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row)
    return tokens.to(device), count


def as_prompts(rows: Sequence[Sequence[int]], device: torch.device | None = None) -> Prompts:
    """The rows as a batch of prompts."""
    return Prompts(*pad(rows, device))
