"""K-SEQ and transport against their slow references, near the bound, and in single cycles."""

import pytest
import torch
from spectr_reference import kseq_reference, pair_law, transport_reference

from specframe.components.trees.fixed import Fixed
from specframe.components.verifiers.bound import optimal_acceptance
from specframe.components.verifiers.descent import SURE
from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw
from specframe.testing import compare_cycle
from specframe.testing.verifiers import MixedTree, law_pairs
from specframe_trees.spectr.kseq import KSeq
from specframe_trees.spectr.transport import Transport
from tests.components.verifiers.test_frontier_verifiers import far_apart, reference_law, trees, verdict_law
from tests.components.verifiers.test_without_replacement import OTHER, P, Q

TOP, IID, WOR = Draw.TOP, Draw.IID, Draw.WITHOUT_REPLACEMENT


@pytest.mark.parametrize(("verifier", "reference"), [(KSeq(), kseq_reference), (Transport(), transport_reference)])
def test_runs_of_siblings_are_judged_as_by_the_reference(verifier, reference):
    for draws in ([TOP, IID, IID, IID], [TOP, WOR, WOR, WOR], [IID, WOR, WOR]):
        for tree, p in trees(20, draws):
            assert far_apart(verdict_law(verifier, tree, p), reference_law(reference, tree, p)) < 1e-9


@pytest.mark.parametrize("verifier", [KSeq(), KSeq(steps=0), KSeq(steps=3), Transport(), Transport(classes=2)])
def test_many_independent_siblings(verifier):
    for p, q in law_pairs():
        assert compare_cycle(Fixed(widths=[3], draw=IID), verifier, p, q).tv < 1e-9
    assert compare_cycle(MixedTree(IID), verifier, p, q).tv < 1e-9


@pytest.mark.sampled
@pytest.mark.parametrize("verifier", [Transport(), Transport(rounds=0), Transport(classes=2), Transport(classes=4)])
@pytest.mark.parametrize("widths", [[2], [3], [2, 2]])
def test_transport_of_siblings_without_replacement(verifier, widths):
    pairs = list(law_pairs()) if len(widths) < 2 else list(law_pairs())[:2]
    for p, q in pairs:
        assert compare_cycle(Fixed(widths=widths, draw=WOR), verifier, p, q).tv < 1e-9


def peaked(vocab, rows, spread, noise, seed=0):
    scores = torch.randn(2, rows, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    p = spread * scores[0]
    return p.softmax(1), (p + noise * scores[1]).softmax(1)


@pytest.mark.parametrize("draw", [IID, WOR])
@pytest.mark.parametrize("classes", [4, 64])
def test_the_chosen_tokens_law_is_the_sum_over_all_pairs(classes, draw):
    p, q = peaked(9, 4, 2, 1)
    kind, beats, law = Transport(classes=classes).tournament(p, q, torch.full((4, 1), draw is WOR))
    beats = beats[torch.arange(4)[:, None, None], kind[:, :, None], kind[:, None]]  # [B, x, y]
    meet = torch.tensor([pair_law(row, draw) for row in q.tolist()], dtype=torch.float64)
    assert torch.allclose(law, (meet * beats).sum(2), rtol=0, atol=1e-14)
    assert torch.allclose(law.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("draw", [IID, WOR])
@pytest.mark.parametrize(("vocab", "rows"), [(2, 50), (3, 50), (8, 50), (100, 20), (32_000, 3)])
@pytest.mark.parametrize(("spread", "noise"), [(0.3, 0.4), (3.0, 0.2), (3.0, 1.0), (2.0, 3.0)])
def test_transport_is_within_one_percent_of_the_bound(vocab, rows, spread, noise, draw):
    p, q = peaked(vocab, rows, spread, noise)
    few = (q.amax(1) > SURE) & (draw is WOR)  # judged one by one
    p, q = p[~few], q[~few]
    bound = optimal_acceptance(p, q, draw, 2)
    for dtype in (torch.float64, torch.float32):
        *_, law = Transport().tournament(p.to(dtype), q.to(dtype), torch.full((len(q), 1), draw is WOR))
        gap = 1 - torch.minimum(p, law).sum(1) / bound
        assert float(gap.mean()) < 0.006 and float(gap.amax()) < (0.01 if draw is IID else 0.03)
        assert float(gap.amin()) > -2e-5


def test_a_pairs_transport_does_not_depend_on_how_another_rows_pair_was_drawn():
    left, q = P[:2], torch.stack([Q[0], OTHER])
    mixed = torch.tensor([[False], [True]])
    together = Transport().tournament(left, q, mixed)
    for row in (0, 1):
        alone = Transport().tournament(left[row, None], q[row, None], mixed[row, None])
        for one, other in zip(together, alone, strict=True):
            assert torch.allclose(one[row].double(), other[0].double(), atol=1e-12)
        assert float(together[2][row].sum()) == pytest.approx(1.0)  # the law of the chosen one


def test_options_out_of_range_are_refused():
    with pytest.raises(InputError, match="steps"):
        KSeq(steps=-1)
    with pytest.raises(InputError, match="classes"):
        Transport(classes=0)
    with pytest.raises(InputError, match="rounds"):
        Transport(rounds=-1)
    assert Transport(classes=1, rounds=0).classes == 1 and KSeq(steps=0).steps == 0
