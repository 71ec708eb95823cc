"""RAPID's acceptance has the paper's error, and none at margin 0 and at temperature 0."""

import pytest
import torch

from specframe import InputError
from specframe.certify.compositions.enumeration import enumerate_outcomes
from specframe.components.trees.fixed import Chain
from specframe.plugin import AllLaws, Context, Draw, Match, Recursive
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter
from specframe_self.excerpt.margin import Rapid

P = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
Q = P.flip(0)


def law_of_first_token(verifier, p=P, draw=Draw.IID):
    """The enumerated law of the first token of a cycle over a chain of two, [V]."""
    drafter = GivenDrafter(Q)

    def program(random, rows):
        roots = torch.zeros(rows, dtype=torch.int64)
        draft = drafter.propose(roots, Chain(depth=2, draw=draw), Context(Sampling(temperature=1.0), random))
        verdict = verifier.verify(draft, AllLaws(p.expand(rows, draft.tokens.shape[1], 4).contiguous()), random)
        return draft.tokens[:, 1].where(verdict.length > 0, verdict.bonus)[:, None]

    law = enumerate_outcomes(program).law
    return torch.tensor([law.get((token,), 0.0) for token in range(4)], dtype=torch.float64)


def distance(law, other=P):
    return float((law - other).abs().sum() / 2)


@pytest.mark.parametrize(("margin", "error"), [(0.0, 0.0), (0.1, 0.008), (1.0, 0.085), (5.0, 0.40)])
def test_its_error_is_the_paper_s_toy_s(margin, error):
    assert distance(law_of_first_token(Rapid(margin=margin))) == pytest.approx(error, abs=6e-4 if margin < 5 else 6e-3)


def test_at_margin_0_it_is_recursive():
    assert distance(law_of_first_token(Rapid(margin=0.0)), law_of_first_token(Recursive())) < 1e-12


def test_a_certain_target_stays_certain():
    certain = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    assert distance(law_of_first_token(Rapid(margin=5.0), certain), certain) < 1e-12


def test_the_most_probable_tokens_are_judged_as_by_match():
    one, other = (law_of_first_token(rule, draw=Draw.TOP) for rule in (Rapid(margin=1.0), Match()))
    assert torch.equal(one, other)


def test_it_is_declared_lossy():
    assert not Rapid.lossless


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf")])
def test_a_margin_that_cannot_be_is_a_line(margin):
    with pytest.raises(InputError, match="margin must be at least 0"):
        Rapid(margin=margin)
