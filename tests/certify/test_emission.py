"""The law of the real loop's output: ends, budgets, sessions, samplings."""

import math

import pytest
import torch
from transformers import LogitsProcessorList, NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from specframe.certify.compositions.emission import END, Emission
from specframe.components.targets.table import TableTarget
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.types import Draw
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter, GivenTarget
from tests.certify.traps.instances import P3, Q3, Rejection

HOT = Sampling(temperature=1.0)
TABLE = TableTarget(vocab=3, seed=5)
DRAFTER = GivenDrafter(torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.4, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64))


def sampled(draw=Draw.IID, depth=2, sampling=HOT, length=3, verifier=Recursive, **options) -> Emission:
    parts = Parts(TABLE, DRAFTER, Chain(depth=depth, draw=draw), verifier())
    return Emission("", lambda: parts, sampling, length, **options)


def test_the_targets_law_is_the_product_of_its_conditional_laws():
    law = sampled(prompt=(1, 2)).target_law()
    assert len(law) == 27 and math.isclose(sum(law.values()), 1.0)
    first = TABLE.logits_after(torch.tensor([[1, 2]]))[0].softmax(-1)
    then = TABLE.logits_after(torch.tensor([[1, 2, 0]]))[0].softmax(-1)
    last = TABLE.logits_after(torch.tensor([[1, 2, 0, 1]]))[0].softmax(-1)
    assert math.isclose(law[0, 1, 2], float(first[0] * then[1] * last[2]), rel_tol=1e-12)


def test_nothing_follows_an_end_of_sequence():
    emission = sampled(length=4, ends=frozenset({1}))
    law = emission.target_law()
    assert all(END not in outcome or outcome[outcome.index(END) - 1] == 1 for outcome in law)
    assert (1, END, END, END) in law and (0, 2, 0, 2) in law
    comparison = emission.compare()
    assert comparison.tv < 1e-12 and comparison.enumeration.exhausted


def test_an_end_that_is_looked_for_in_the_bonus_only_is_noticed():
    class Late(frozenset):
        def __contains__(self, token):
            return False

    emission = sampled(length=3, ends=frozenset({1}))
    deaf = sampled(length=3, ends=Late())
    assert deaf.compare().tv < 1e-12
    assert deaf.compare().enumeration.law.keys() != emission.compare().enumeration.law.keys()


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_budgets_cut_cycles_short(length):
    comparison = sampled(length=length, depth=3 if length < 4 else 1).compare()
    assert comparison.tv < 1e-12 and comparison.enumeration.exhausted
    assert {len(outcome) for outcome in comparison.enumeration.law} == {length}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=0.6),
        Sampling(temperature=1.0, top_k=2),
        Sampling(temperature=1.3, top_p=0.7),
        Sampling(temperature=1.0, min_p=0.3),
        Sampling(temperature=0.9, top_k=2, top_p=0.9, min_p=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("draw", Draw)
def test_processed_laws_are_certified(sampling, draw):
    comparison = sampled(draw, sampling=sampling).compare()
    assert comparison.tv < 1e-12 and comparison.enumeration.exhausted


@pytest.mark.parametrize("processor", [NoRepeatNGramLogitsProcessor(3), RepetitionPenaltyLogitsProcessor(1.7)])
def test_processors_that_look_at_history_are_certified(processor):
    sampling = Sampling(temperature=1.0, processors=tuple(LogitsProcessorList([processor])))
    emission = sampled(sampling=sampling, prompt=(0, 1, 2, 0, 1))
    comparison = emission.compare()
    assert comparison.tv < 1e-12 and comparison.enumeration.exhausted
    plain = sampled(prompt=(0, 1, 2, 0, 1)).target_law()
    assert max(abs(plain[outcome] - mass) for outcome, mass in emission.target_law().items()) > 0.01


def test_history_of_the_root_at_every_node_is_caught():
    class Forgetful(Sampling):
        def law_and_gaps(self, logits, tree, nodes=None):
            return super().law_and_gaps(logits, tree, torch.zeros(logits.shape[:2], dtype=torch.int64))

    sampling = Forgetful(temperature=1.0, processors=(NoRepeatNGramLogitsProcessor(2),))
    right = Sampling(temperature=1.0, processors=(NoRepeatNGramLogitsProcessor(2),))
    emission = sampled(sampling=sampling, prompt=(0, 1, 0))
    wanted = sampled(sampling=right, prompt=(0, 1, 0)).target_law()
    got = emission.compare().enumeration.law
    assert sum(abs(got.get(o, 0.0) - wanted.get(o, 0.0)) for o in {*got, *wanted}) / 2 > 0.1


def test_two_sessions_give_the_law_of_one():
    together = sampled(length=4).compare().enumeration.law
    first = sampled(length=2).compare().enumeration.law
    for prefix, mass in first.items():
        second = sampled(length=2, prompt=(0, *prefix)).compare().enumeration.law
        for rest, share in second.items():
            assert math.isclose(together[prefix + rest], mass * share, rel_tol=1e-9)


def test_two_implementations_of_the_rule_have_the_same_law():
    for draw in Draw:
        one, other = (sampled(draw, verifier=v).compare().enumeration for v in (Recursive, Rejection))
        assert one.law.keys() == other.law.keys()
        assert all(math.isclose(one.law[key], other.law[key], rel_tol=1e-9) for key in one.law)


def test_what_was_not_looked_at_is_not_called_exact():
    class Sloppy(Rejection):
        def rest(self, left, q, token, root):
            return left

    parts = Parts(GivenTarget(P3), GivenDrafter(Q3), Fixed(widths=[2], draw=Draw.IID), Sloppy())
    emission = Emission("", lambda: parts, HOT, 2)
    whole, some = emission.compare(), emission.compare(budget=40, rows=10)
    assert whole.enumeration.exhausted and not some.enumeration.exhausted
    assert some.tv <= whole.tv <= some.bound
    assert whole.prefix and whole.got != whole.wanted
