"""DSpark's heads: a bias for the successors of a token, and the probability that they are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe import InputError

if TYPE_CHECKING:
    from specframe.neural import State

KINDS = ("vanilla", "gated", "rnn")
DEVIATION = 0.01
"""Standard deviation of the initial token embeddings."""


class MarkovHead(nn.Module):
    """A low-rank bias on the logits that depends on the token before (DSpark), under the published names.

    Vanilla: the bias depends on the token before, not on the position. Gated: the block's state at the position scales
    it. With `rnn` a state is carried from token to token, so that the bias depends on all drafted tokens above.

    Args:
        vocab: number of tokens that may precede.
        rows: number of tokens that have a bias.
        rank: the bias's rank, r.
        hidden: width of the block's state at a position.
        kind: vanilla, gated or rnn.
    """

    def __init__(self, vocab: int, rows: int, rank: int, hidden: int, kind: str) -> None:
        super().__init__()
        if kind not in KINDS or rank < 1:
            raise InputError(f"a Markov head is {', '.join(KINDS)}, of a rank of at least 1, not {kind!r} of {rank}")
        self.kind = kind
        self.markov_w1 = nn.Embedding(vocab, rank)
        nn.init.normal_(self.markov_w1.weight, std=DEVIATION)
        self.markov_w2 = nn.Linear(rank, rows, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        elif kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)

    @property
    def rank(self) -> int:
        """The bias's rank, r."""
        return self.markov_w1.embedding_dim

    def first(self, like: Tensor) -> State:
        """Returns the state above a block's root, for all nodes of `like` [.., H]: [.., r], if the kind has one."""
        return (like.new_zeros(*like.shape[:-1], self.rank),) if self.kind == "rnn" else ()

    def forward(self, hidden: Tensor, token: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Returns `markov_w1` of tokens [..], the input of `markov_w2`, [.., r] each, and the state after tokens."""
        before = self.markov_w1(token)
        if self.kind == "vanilla":
            return before, before, state
        if self.kind == "gated":
            gate = torch.sigmoid(self.gate_proj(torch.cat([hidden, before], -1)))
            return before, gate * before, state
        (previous,) = state
        gate, candidate, out = self.joint_proj(torch.cat([previous, before, hidden], -1)).chunk(3, -1)
        gate = torch.sigmoid(gate)
        return before, torch.tanh(out), (gate * previous + (1 - gate) * torch.tanh(candidate),)


class ConfidenceHead(nn.Module):
    """The probability that a drafted token is accepted (DSpark), under the published names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, read: Tensor) -> Tensor:
        """Maps [.., D] to [..], in float32 or wider."""
        score: Tensor = self.proj(read).squeeze(-1)
        return score.to(torch.promote_types(score.dtype, torch.float32)).sigmoid()
