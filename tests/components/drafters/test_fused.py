"""Two drafters in one tree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specframe.components.drafters.fused import Fused
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.suffix import Suffix
from specframe.components.drafters.trie import Trie, as_tree
from specframe.components.targets.tiny import tiny_model
from specframe.components.trees.fixed import Chain, Fixed
from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Drafter, TreePolicy
from specframe.kernel.types import Committed, Context, Draw, Frontier, Proposal, TokenTree
from specframe.testing import check_drafter
from specframe_text.lookahead.lookahead import Lookahead
from specframe_trees.adaptive import Adaptive
from tests.components.path_drafter import assert_sound, path
from tests.components.sessions import CONTEXT, first


def model() -> Drafter:
    return ModelDrafter(model=str(tiny_model(3)), dtype="float64")


def test_what_fits_and_what_does_not() -> None:
    both = Fused(first=Suffix(cap=3), second=Lookup(length=2))
    assert both.promise.draws == {Draw.TOP} and both.promise.nodes == 4 + 3 - 1
    three = Fused(first=Lookahead(), second=both)
    assert three.promise.nodes == 16 + 6 - 1
    sampled = Fused(first=model(), second=Suffix(), tree=Chain(depth=2, draw=Draw.IID), nodes=8)
    assert Fused(first=Suffix(cap=3), second=Suffix(cap=2), tail=4).promise.nodes == 4 + 3 - 1 + 4
    assert sampled.promise.draws == {Draw.IID, Draw.TOP} and sampled.promise.nodes == 8
    with pytest.raises(CompositionError, match="grows a tree policy: give fused a `tree`"):
        Fused(first=model(), second=Suffix())
    with pytest.raises(CompositionError, match="builds its own tree: remove fused's `tree`"):
        Fused(first=Suffix(), second=Suffix(), tree=Chain())
    with pytest.raises(CompositionError, match="second drafter of fused must build its own tree, and must not sample"):
        Fused(first=Suffix(), second=model())
    with pytest.raises(CompositionError, match="must not sample"):
        Fused(first=Suffix(), second=sampled)
    with pytest.raises(CompositionError, match="does not learn from earlier drafts"):
        Fused(first=model(), second=Suffix(), tree=Adaptive(depth=1, costs=[1.0, 1.1]))
    with pytest.raises(CompositionError, match="copies after no draft: leave out fused's `tail`"):
        Fused(first=Suffix(), second=Lookup(), tail=2)
    with pytest.raises(CompositionError, match="gives no probabilities: leave out fused's `plausible`"):
        Fused(first=Suffix(), second=Lookup(), plausible=0.1)
    with pytest.raises(InputError, match="tail of at least 0 and plausible from 0 to below 1, got -1 and 1"):
        Fused(first=Suffix(), second=Suffix(), tail=-1, plausible=1.0)
    with pytest.raises(InputError, match="room for the first drafter's 16 nodes, got 15"):
        Fused(first=Suffix(), second=Lookup(), nodes=15)


def test_conformance_of_copies() -> None:
    check_drafter(lambda: Fused(first=Suffix(cap=2), second=Lookahead(ngram=3, window=2, guesses=1), nodes=6))
    check_drafter(lambda: Fused(first=Suffix(cap=2), second=Suffix(cap=1), tail=1))


@pytest.mark.sampled
@pytest.mark.parametrize("draw", list(Draw))
@pytest.mark.parametrize("widths", [[2], [1, 1], pytest.param([2, 1], marks=pytest.mark.full)], ids=str)
def test_conformance_after_a_model(widths: list[int], draw: Draw) -> None:
    """With recorded distributions it is certified under `recursive`, too; siblings on two levels have most branches."""
    tree = Fixed(widths=widths, draw=draw)
    check_drafter(lambda: Fused(first=model(), second=Suffix(cap=2), tree=tree))


class Chained:
    """A drafter whose drafts are given: a `top` tree of these paths."""

    taps: frozenset[str] = frozenset()
    promise = Promise(frozenset({Draw.TOP}), nodes=9)

    def __init__(self, *paths: list[int]) -> None:
        self.paths = paths

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        tries = [Trie(token) for token in root.tolist()]
        for trie in tries:
            for tokens in self.paths:
                trie.add_path(tokens)
        return as_tree(root, tries)

    def open(self, slots: int, room: int) -> None: ...

    def commit(self, committed: Committed) -> None: ...


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    return [path(tree, 0, node)[1:] for node in range(1, tree.tokens.shape[1]) if tree.valid[0, node]]


def test_the_copy_goes_on_after_the_best_path() -> None:
    """The text repeats 5 6 7 8 9, and the root is new: nothing is copied after it, all after the first one's 5."""
    drafter = Fused(first=Chained([5], [4, 4]), second=Suffix(), tail=3)  # type: ignore[arg-type]
    drafter.open(1, 99)
    drafter.commit(first([[5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 1]]))
    tree = drafter.propose(torch.tensor([1]), None, CONTEXT)
    assert_sound(tree, 4)
    assert paths(tree) == [(5,), (4,), (4, 4), (5, 6), (5, 6, 7), (5, 6, 7, 8)]


class OneLevel:
    """Expands any node into the same logits, over part of a vocabulary of 9."""

    taps: frozenset[str] = frozenset()
    promise = Promise()

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        assert tree is not None
        logits = torch.tensor([0.6, 0.3, 0.1]).log()

        def expand(frontier: Frontier) -> Proposal:
            shape = (*frontier.nodes.shape, 1, 3)
            return Proposal(logits.expand(shape), support=torch.tensor([2, 4, 6]), vocab=9)

        return tree.grow(expand, root, context)


def test_what_the_first_drafter_finds_improbable_is_left_out() -> None:
    copies = Chained([2, 4, 6], [4, 6, 2], [6, 2], [8, 6])  # 6 is improbable where the first one looked
    for plausible, left in (
        (0.0, [(2, 4), (2, 4, 6), (4,), (4, 6), (4, 6, 2), (6,), (6, 2), (8,), (8, 6)]),
        (0.2, [(2, 4), (2, 4, 6), (4,), (4, 6), (4, 6, 2), (8,), (8, 6)]),
        (0.4, [(8,), (8, 6)]),
    ):
        drafter = Fused(first=OneLevel(), second=copies, tree=Chain(depth=2), plausible=plausible, nodes=20)  # type: ignore[arg-type]
        tree = drafter.propose(torch.tensor([1]), None, CONTEXT)
        assert paths(tree) == [(2,), (2, 2), *left]
