"""Copies next to sampled nodes: what `fused` does is exact, and each way to do it wrong is caught (trap 40)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.certify.compositions.emission import Comparison, Emission
from specframe.components.drafters.budget import Paying
from specframe.components.drafters.fused import Fused
from specframe.components.drafters.trie import Trie, as_tree
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.capabilities import Promise
from specframe.kernel.costs import Costs
from specframe.kernel.interfaces import TreePolicy, Verifier
from specframe.kernel.types import Context, Draw, TokenTree
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter, GivenTarget
from tests.certify.traps.instances import IID, TOP, WOR, Drafts, P, Q, star

Spoil = Callable[[TokenTree], TokenTree]


class Copies(Drafts):
    """A retrieval drafter that finds the same texts at every place, and one token after any draft."""

    promise = Promise(frozenset({Draw.TOP}), nodes=5)

    def __init__(self) -> None:
        super().__init__(star)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The texts 3 0 and 1 below every root."""
        tries = [Trie(token) for token in root.tolist()]
        for trie in tries:
            trie.add_path([3, 0])
            trie.add_path([1])
        return as_tree(root, tries)

    def continued(self, paths: list[list[int]]) -> list[list[int]]:
        """Token 2 after every path."""
        return [[2] for _ in paths]


class Spoiled(Fused):
    """A fused draft, changed after it was drawn."""

    def __init__(self, spoil: Spoil, **options: Any) -> None:
        super().__init__(**options)
        self.spoil = spoil

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The spoiled draft."""
        return self.spoil(super().propose(root, tree, context))


def same(tree: TokenTree) -> TokenTree:
    """The draft as it is."""
    return tree


def sampled(tree: TokenTree) -> Tensor:
    """Which nodes were sampled, [B, N]."""
    real = tree.valid & (tree.draw != TOP)
    real[:, 0] = False
    return real


def copied_too(tree: TokenTree) -> Tensor:
    """Which sampled nodes have a copied sibling of the same token, [B, N]."""
    copied = tree.valid & ~sampled(tree)
    twins = (tree.tokens[:, :, None] == tree.tokens[:, None]) & (tree.parent[:, :, None] == tree.parent[:, None])
    return sampled(tree) & (twins & copied[:, None]).any(-1)


def own_law(tree: TokenTree) -> Tensor:
    """The drafter's probability of each node's token, [B, N]."""
    return Q[tree.tokens]


SPOILED: dict[str, Spoil] = {
    "a sampled node gives way to an equal copy": lambda tree: replace(tree, valid=tree.valid & ~copied_too(tree)),
    "a sampled node that was copied, too, counts as copied": lambda tree: replace(
        tree, draw=tree.draw.masked_fill(copied_too(tree), TOP)
    ),
    "copies are recorded as draws from q": lambda tree: replace(tree, draw=torch.full_like(tree.draw, IID)),
    "sampled nodes are pruned by their own probability": lambda tree: replace(
        tree, valid=tree.valid & ~(sampled(tree) & (own_law(tree) < 0.25))
    ),
    "sampled nodes that no text has are left out": lambda tree: replace(
        tree, valid=tree.valid & (~sampled(tree) | copied_too(tree))
    ),
}


def compare(
    spoil: Spoil,
    verifier: Callable[[], Verifier],
    tree: Callable[[], TreePolicy],
    costs: Costs | None = None,
    length: int = 3,
    **options: Any,
) -> Comparison:
    def parts() -> Parts:
        drafter = Spoiled(spoil, first=GivenDrafter(Q), second=Copies(), tree=tree(), **options)
        return Parts(GivenTarget(P), drafter, None, verifier(), costs)

    return Emission("40", parts, Sampling(temperature=1.0), length=length).compare(budget=60_000)


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_copies_that_change_what_was_sampled_are_caught(spoil: Spoil) -> None:
    found = compare(spoil, Recursive, lambda: Chain(depth=1, draw=IID))
    assert found.enumeration.exhausted
    assert found.tv > 0.01


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_under_match_all_of_it_is_free(spoil: Spoil) -> None:
    found = compare(spoil, Match, lambda: Chain(depth=1, draw=IID))
    assert found.enumeration.exhausted
    assert found.tv < 1e-12


@pytest.mark.parametrize("options", [{}, {"tail": 1}, {"plausible": 0.25}, {"nodes": 4}], ids=str)
@pytest.mark.parametrize(
    "tree",
    [lambda: Chain(depth=1, draw=IID), lambda: Fixed(widths=[2], draw=WOR), lambda: Chain(depth=2, draw=IID)],
    ids=["chain", "siblings", "two levels"],
)
def test_copies_next_to_sampled_nodes_are_exact(tree: Callable[[], TreePolicy], options: dict[str, Any]) -> None:
    """Copies that the drafter finds improbable may be pruned, and a copy may go on after a sampled path."""
    found = compare(same, Recursive, tree, **options)
    assert found.tv < 1e-12


@pytest.mark.parametrize(
    "tree", [lambda: Chain(depth=1, draw=IID), lambda: Fixed(widths=[2], draw=WOR)], ids=["chain", "siblings"]
)
def test_copies_that_are_left_out_for_what_they_cost_are_exact(
    tree: Callable[[], TreePolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier cycles decide, those of the same branch alone."""
    left, paying = [], Paying.paying

    def watched(self: Paying, draft: TokenTree, both: TokenTree, costs: Costs) -> TokenTree:
        kept = paying(self, draft, both, costs)
        left.append(int(both.valid.sum() - kept.valid.sum()))
        return kept

    monkeypatch.setattr(Paying, "paying", watched)
    found = compare(same, Recursive, tree, costs=Costs(((1, 1.0), (11, 3.0)), rows=1), length=4)
    assert found.enumeration.exhausted
    assert found.tv < 1e-12
    assert 0 < sum(map(bool, left)) < len(left)
