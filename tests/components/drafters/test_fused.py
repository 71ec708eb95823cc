"""Two drafters in one tree."""

from __future__ import annotations

import pytest

from specframe.components.drafters.fused import Fused
from specframe.components.drafters.lookahead import Lookahead
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.suffix import Suffix
from specframe.components.targets.tiny import tiny_model
from specframe.components.trees.policies.adaptive import Adaptive
from specframe.components.trees.policies.chain import Chain
from specframe.components.trees.policies.fixed import Fixed
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Drafter
from specframe.kernel.types import Draw
from specframe.testing import check_drafter


def model() -> Drafter:
    return ModelDrafter(model=str(tiny_model(3)), dtype="float64")


def test_what_fits_and_what_does_not() -> None:
    both = Fused(first=Suffix(cap=3), second=Lookup(length=2))
    assert both.promise.draws == {Draw.TOP} and both.promise.nodes == 4 + 3 - 1
    three = Fused(first=Lookahead(), second=both)
    assert three.promise.nodes == 16 + 6 - 1
    sampled = Fused(first=model(), second=Suffix(), tree=Chain(depth=2, draw=Draw.IID), nodes=8)
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
    with pytest.raises(InputError, match="room for the first drafter's 16 nodes, got 15"):
        Fused(first=Suffix(), second=Lookup(), nodes=15)


def test_conformance_of_copies() -> None:
    check_drafter(lambda: Fused(first=Suffix(cap=2), second=Lookahead(ngram=3, window=2, guesses=1), nodes=6))


@pytest.mark.parametrize("draw", list(Draw))
def test_conformance_behind_a_model(draw: Draw) -> None:
    """With recorded distributions it is certified under `recursive`, too."""
    tree = Fixed(widths=[2, 1], draw=draw)
    check_drafter(lambda: Fused(first=model(), second=Suffix(cap=2), tree=tree))
