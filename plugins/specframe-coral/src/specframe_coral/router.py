"""The LM head router: only the rows of the most likely token groups of the target's LM head are read."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import silu

from specframe import CompositionError, InputError
from specframe.neural import Quantization, checkpoint, divisible, seeded
from specframe_coral.groups import edges

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from specframe.plugin import NeuralTarget


class Law(StrEnum):
    """Definition of the active tokens' logits."""

    FACTORED = "factored"
    RESTRICTED = "restricted"


class RouterNetwork(nn.Module):
    """The router: W2 (act(W1 h) + h), the logits of the groups (CORAL, Eq. 7); act is SiLU."""

    def __init__(self, hidden: int, groups: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden, bias=False)
        self.outer = nn.Linear(hidden, groups, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Returns the groups' logits, [.., D] -> [.., N]."""
        logits: Tensor = self.outer(silu(self.inner(features)) + features)
        return logits


class Router:
    """Logits over the tokens of the most likely groups alone (Weng et al. 2025, CORAL, Section 3.3).

    The vocabulary is divided into `groups` of consecutive tokens. A router gives a law over groups. The rows of the
    `active` most likely groups are read from the target's LM head, and a token's logit is log p_router(n) + log
    p_group(x | n) (Eq. 8); all other tokens get -inf, because their probabilities are unknown. A law made of these
    logits is Eq. 8 renormalised over the active tokens.

    With `law: restricted`, a token's logit is the LM head's instead: the router selects tokens, and the LM head
    compares them, also across groups. The law is the LM head's, renormalised over the active tokens, and equal to it
    with all groups active.

    Every node of a draft has its own groups. A forward pass over several nodes reads all groups that any of them has,
    each for the nodes that have it (Appendix F), so the draft below a node depends on that node alone. The host needs
    these groups: one host sync per forward pass.

    The router is trained alone, with rollout and loss `routing`, while the drafter is frozen. It is the drafter's
    `module` and the only part saved; the drafter's checkpoint is not changed.

    Args:
        groups: number of groups, N; a smaller vocabulary has a group for every token.
        active: number of groups per node (CORAL, Table 4: 2 of 16).
        law: `factored` (Eq. 8), or `restricted`.
        weights: a trained router's folder, `zoo://name` or Hub name; none: untrained.
        quantize: the groups' rows in 4 or 8 bits: faster on a CPU, with almost the same drafts.
    """

    def __init__(
        self,
        *,
        groups: int = 16,
        active: int = 2,
        law: Law = Law.FACTORED,
        weights: str | None = None,
        quantize: Quantization | None = None,
    ) -> None:
        if not 1 <= active <= groups:
            raise InputError(f"router: active must be between 1 and groups, {groups}, not {active}")
        self.groups = groups
        self.active = active
        self.law = law
        self.weights = weights
        self._network: RouterNetwork | None = None
        self._shape: dict[str, Any] = {}
        self._edges: list[int] = []
        self._parts: list[Callable[[Tensor], Tensor]] = []
        self.quantize = quantize

    def untrained(self, vocab: int) -> Router:
        """Returns a copy of this head without weights, for a target of `vocab` tokens."""
        return Router(groups=self.groups, active=self.active, law=self.law)

    def bind(self, target: NeuralTarget) -> None:
        """Divides the target's LM head, and builds or loads the router.

        Raises CompositionError for a target whose LM head cannot be divided, and WeightsError for weights that do not
        fit, with all mismatches.
        """
        whole = divisible(target, "router")
        vocab, hidden = target.vocab_size, target.config.hidden_size
        groups = min(self.groups, vocab)
        network = seeded(lambda: RouterNetwork(hidden, groups), target)
        shape = {"format": "router", "groups": groups, "hidden_size": hidden, "vocab_size": vocab}
        if self.weights is not None:
            checkpoint.check(self.weights, shape, "router")
            checkpoint.load(network, self.weights)
        self._shape = shape
        self._edges = edges(vocab, groups)
        self._parts = [whole.head_for(slice(start, end), self.quantize) for start, end in pairwise(self._edges)]
        self._network = network

    @property
    def module(self) -> nn.Module:
        """The router, which is the part that is trained and saved; empty before bind."""
        return nn.Module() if self._network is None else self._network

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, in bfloat16, which `weights` can load."""
        checkpoint.save(self._bound(), self._shape, folder, torch.bfloat16)

    def __call__(self, features: Tensor) -> Tensor:
        """Returns the active tokens' logits, -inf for others, [.., D] -> [.., V], in float32 or wider."""
        network = self._bound()
        if network.training:
            raise CompositionError(
                "the head 'router' is trained on its choice of groups, not on tokens: use the rollout "
                "{use: routing, rollout: ...} and the loss 'routing'; or train the drafter first, with the head full"
            )
        nodes = features.reshape(-1, features.shape[-1])  # [R, D]
        choice = _log_law(network(nodes))  # [R, N]
        best = choice.topk(min(self.active, len(self._parts))).indices.flatten()  # [R active]
        askers = best.argsort(stable=True) // (len(best) // len(nodes))  # nodes sorted by group
        counts = best.bincount(minlength=len(self._parts)).tolist()  # the host needs these counts
        logits = choice.new_full((len(nodes), self._edges[-1]), -torch.inf)  # [R, V]
        for group, asking in enumerate(askers.split(counts)):
            if len(asking):
                inside = self._parts[group](nodes[asking])  # [r, v]
                if self.law is Law.FACTORED:
                    inside = choice[asking, group, None] + _log_law(inside)
                span = slice(self._edges[group], self._edges[group + 1])
                logits[asking, span] = inside.to(logits.dtype)
        return logits.view(*features.shape[:-1], -1)

    def _bound(self) -> RouterNetwork:
        if self._network is None:
            raise CompositionError("the head 'router' was used before bind(target)")
        return self._network


def _log_law(logits: Tensor) -> Tensor:
    """Returns the log-probabilities, in float32 or wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
