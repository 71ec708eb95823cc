"""The bound on KL(q || p): by hand, at its limits, and refused where no q is known."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from judge_fakes import VOCAB, PlantedTarget

import specframe
from specframe import InputError, RecipeError, Sampling
from specframe.certify.compositions.emission import Emission
from specframe.certify.guarantees import guarantees
from specframe.components.targets.table import TableTarget
from specframe.components.trees.fixed import Chain
from specframe.decoding.session import Parts
from specframe.plugin import AllLaws, Draw, SeededRandom, TokenTree
from specframe.testing import GivenDrafter
from specframe_judge.divergence import BoundedDivergence

P = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)


def verdict(limit, q, token):
    """The verdict on a draft of one token, drawn from q, where the target's own token is 0."""
    tree = TokenTree(
        tokens=torch.tensor([[3, token]]),
        parent=torch.tensor([[-1, 0]]),
        valid=torch.ones(1, 2).bool(),
        draw=torch.full((1, 2), Draw.IID),
        levels=1,
        q=torch.tensor([[q]], dtype=torch.float64),
        q_row=torch.zeros(1, 2).long(),
    )
    return BoundedDivergence(limit=limit).verify(tree, Law(P[None, None].expand(1, 2, 4)), SeededRandom(0, 1).verify)


class Law(AllLaws):
    """Laws whose draws are certain: the most probable token."""


def test_tokens_are_accepted_below_the_limit_and_never_where_p_is_0():
    q = [0.2, 0.5, 0.3, 0.0]
    gap = sum(a * math.log(a / b) for a, b in zip(q, P.tolist(), strict=True) if a)
    assert verdict(gap + 1e-6, q, 1).path.tolist() == [[1]]
    drawn = int(verdict(gap - 1e-6, q, 1).bonus)
    assert verdict(gap - 1e-6, q, 2 if drawn == 1 else 1).path.tolist() == [[-1]]
    assert verdict(9.0, [0.2, 0.5, 0.2, 0.1], 3).path.tolist() == [[-1]]  # KL is infinite


def composed(verifier, tree):
    law = torch.rand(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return specframe.compose(
        target=PlantedTarget(),
        drafter=GivenDrafter(law / law.sum(-1, keepdim=True)),
        tree=tree,
        verifier=verifier,
        sampling={"temperature": 1.0, "max_new_tokens": 12},
        run={"batch": 2, "seed": 3},
    )


@pytest.mark.parametrize("draw", ["iid", "without_replacement"])
def test_limit_0_is_match_and_a_wide_one_is_not(draw):
    tree = (
        {"use": "chain", "depth": 3, "draw": draw}
        if draw == "iid"
        else {"use": "fixed", "widths": [2, 2], "draw": draw}
    )
    texts = partial(lambda rule: composed(rule, tree).generate([[1, 2], [3], [5]]).tokens)
    assert texts("match") == texts({"use": "divergence", "limit": 0.0}) == texts(BoundedDivergence(limit=0.5).strict())
    assert texts({"use": "divergence", "limit": 5.0}) != texts("match")


def test_its_guarantees_are_enumerated():
    def make(name, broken=lambda rule: rule):
        law = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.3, 0.6, 0.1]], dtype=torch.float64)
        target, drafter = TableTarget(vocab=3, order=2, seed=1), GivenDrafter(law)

        def parts():
            return Parts(target, drafter, Chain(depth=2, draw=Draw.IID), broken(BoundedDivergence(limit=1.0)))

        return Emission(name, parts, Sampling(temperature=1.0), 2, (0, 1, 2))

    def compare(emission):
        return emission.compare(budget=5_000, alone=250)

    found = list(guarantees(make, compare))
    assert len(found) == 3 and all(each.held and each.complete for each in found), found
    assert compare(make("lossy")).tv > 0.01, "the rule accepts nothing, so the rest shows nothing"


def test_drafts_without_q_and_bad_limits_are_refused_in_a_line():
    with pytest.raises(RecipeError, match="nodes drawn top") as caught:
        composed({"use": "divergence"}, {"use": "chain", "depth": 3})
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(InputError, match="at least 0"):
        BoundedDivergence(limit=-0.1)
