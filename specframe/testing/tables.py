"""Laws given outright: a target and a drafter with exactly the laws that a test wants."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.targets.table import TableTarget
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.promises import Promise
from specframe.kernel.types import Committed, Context, Frontier, Proposal, TokenTree

NEVER = -1e4
"""A logit whose probability is 0, exactly, also after any matrix product."""


def logits_of(law: Tensor) -> Tensor:
    """Logits whose softmax is the law, zeros included: [...] -> [...] float64."""
    return law.double().log().clamp(min=NEVER)


class GivenTarget(TableTarget):
    """A target whose law is given: p [V] for every context, or p [V, V] by the last token."""

    def __init__(self, p: Tensor, eos: int | None = None) -> None:
        vocab = p.shape[-1]
        super().__init__(vocab=vocab, order=1, hidden=vocab + vocab % 2, eos=eos)
        self._head = torch.eye(vocab, self.hidden, dtype=torch.float64)
        rows = logits_of(p).expand(vocab, vocab)
        self._features = torch.zeros(vocab + 1, self.hidden, dtype=torch.float64)
        self._features[:vocab, :vocab] = rows


class GivenDrafter:
    """A drafter whose raw law is given: q [V], q [V, V] by the node's token, or q [K, V, V] for K levels.

    Level j of a block depends on the frontier node's token alone, as in parallel drafters.
    """

    taps: frozenset[str] = frozenset()
    promise = Promise()

    def __init__(self, q: Tensor) -> None:
        vocab = q.shape[-1]
        block = len(q) if q.dim() == 3 else 1
        self.vocab: int = vocab
        self._logits = logits_of(q).expand(block, vocab, vocab)

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def expand(self, frontier: Frontier) -> Proposal:
        """Logits [B, F, K, V] by the tokens of the frontier's nodes."""
        tokens = frontier.tree.tokens.gather(1, frontier.nodes)  # [B, F]
        return Proposal(self._logits[:, tokens].movedim(0, 2))

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The recipe's tree over the given laws."""
        if tree is None:
            raise TypeError("a given drafter grows a tree policy")
        return tree.grow(self.expand, root, context)

    def open(self, slots: int, room: int) -> None:
        """Carries nothing from cycle to cycle."""

    def commit(self, committed: Committed) -> None:
        """Carries nothing from cycle to cycle."""

    def keep(self, rows: Tensor) -> None:
        """Carries nothing from cycle to cycle."""
