"""Laws that are right somewhere else: of another node's history, or of a context that was not committed."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.certify.compositions.emission import Comparison, Emission
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.capabilities import Promise
from specframe.kernel.types import Committed, Context, TokenTree
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter, GivenTarget
from tests.certify.traps.instances import IID, P, path

# --- 52: the state of a logits processor ----------------------------------------------------------------


def no_repeat(history: Tensor, logits: Tensor) -> Tensor:
    """A logits processor: no token follows itself."""
    return logits.scatter(1, history[:, -1:], -torch.inf)


class OfTheRoot(Sampling):
    """Applies processors to every node with the root's history."""

    def law_and_gaps(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The law after the root, as far as processors change it."""
        return super().law_and_gaps(logits, tree, torch.zeros(logits.shape[:2], dtype=torch.int64))


def after(token: int) -> list[float]:
    """P without the token, renormalised."""
    return [0.0 if other == token else float(P[other] / (1 - P[token])) for other in range(4)]


def known_error() -> float:
    """The error of `OfTheRoot` where all drafts are accepted: then three tokens in a row come from the root's law."""
    error = 0.0
    for root, a, b, c in product(range(4), repeat=4):
        right = after(root)[a] * after(a)[b] * after(b)[c]
        wrong = after(root)[a] * after(root)[b] * after(root)[c]
        error += after(0)[root] * abs(right - wrong) / 2
    return error


def emission_of(sampling: type[Sampling]) -> Emission:
    """A chain of two from the target's own law."""
    return Emission(
        "52",
        lambda: Parts(GivenTarget(P), GivenDrafter(P), Chain(depth=2, draw=IID), Recursive()),
        sampling(temperature=1.0, processors=(no_repeat,)),
        length=4,
    )


def test_52_a_processor_with_the_roots_history_is_caught_with_its_error() -> None:
    comparison = emission_of(OfTheRoot).compare()
    assert comparison.enumeration.exhausted
    assert comparison.first_tv < 1e-12
    assert comparison.tv == pytest.approx(known_error(), abs=1e-9)
    assert comparison.tv > 0.5


def test_52_a_processor_with_each_nodes_own_history_passes() -> None:
    comparison = emission_of(Sampling).compare()
    assert comparison.enumeration.exhausted
    assert comparison.tv < 1e-12


# --- 64: drafting ahead ---------------------------------------------------------------------------------

P2 = torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=torch.float64)
Q2 = torch.tensor([[0.8, 0.2], [0.25, 0.75]], dtype=torch.float64)
"""Laws by the last token."""


class Ahead:
    """Drafts one token, and while it is verified guesses the bonus and drafts the token after that.

    If the draft was accepted, the token drafted ahead is the next draft: only where the guess was right, or
    (`careless`) always; then recorded with the law of the committed context, or (`own_law`) with its own.
    """

    taps: frozenset[str] = frozenset()
    promise = Promise(frozenset({IID}), nodes=2)

    def __init__(self, *, careless: bool = False, own_law: bool = False) -> None:
        self.careless = careless
        self.own_law = own_law

    def bind(self, target: Any) -> None:
        """Needs nothing of the target."""

    def propose(self, root: Tensor, tree: Any, context: Context) -> TokenTree:
        """One token below the root, drawn now or ahead."""
        nothing = (torch.arange(2) == 0).double()
        fresh = context.random.categorical(torch.where((self.kept >= 0)[:, None], nothing, Q2[root]))
        token = self.kept.where(self.kept >= 0, fresh)
        drawn_after = self.guess.where(self.kept >= 0, root)
        self.guess = context.random.categorical(Q2[token])
        self.ahead = context.random.categorical(Q2[self.guess])
        return path(root, token[:, None], Q2[drawn_after if self.own_law else root])

    def open(self, slots: int, room: int) -> None:
        """Forgets earlier rows."""
        self.guess = self.ahead = self.kept = torch.zeros(0, dtype=torch.int64)

    def commit(self, committed: Committed) -> None:
        """Decides whether the token drafted ahead is kept."""
        if committed.prompt is not None:
            none = torch.full_like(committed.root, -1)
            self.guess, self.ahead, self.kept = (torch.cat([x, none]) for x in (self.guess, self.ahead, self.kept))
            return
        kept = (committed.count == 2) & (self.careless | (committed.root == self.guess))
        self.kept = self.ahead.where(kept, -1)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows."""
        self.guess, self.ahead, self.kept = self.guess[rows], self.ahead[rows], self.kept[rows]


def compare(**options: bool) -> Comparison:
    """Four tokens, the first of which no draft has a part in."""
    emission = Emission(
        "64", lambda: Parts(GivenTarget(P2), Ahead(**options), None, Recursive()), Sampling(temperature=1.0), length=4
    )
    return emission.compare()


def test_64_a_token_drafted_after_another_bonus_is_caught() -> None:
    comparison = compare(careless=True)
    assert comparison.enumeration.exhausted
    assert comparison.first_tv < 1e-12
    assert comparison.tv == pytest.approx(0.0883, abs=5.1e-5)  # found here, by enumeration


@pytest.mark.parametrize("options", [{}, {"careless": True, "own_law": True}], ids=["right guess", "own law"])
def test_64_a_token_drafted_ahead_may_be_kept(options: dict[str, bool]) -> None:
    comparison = compare(**options)
    assert comparison.enumeration.exhausted
    assert comparison.tv < 1e-12
