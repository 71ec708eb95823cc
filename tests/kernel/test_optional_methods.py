"""Optional methods of parts are found by their names, in objects of any class; parts without them have defaults."""

from types import SimpleNamespace

import pytest
import torch

from specframe.components.trees.recording import watched
from specframe.kernel.capabilities import is_approximate, small_form, untrained_form
from specframe.kernel.composition import attach, devices_of, report_of, strict_form, taps_of, timed_in
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import drafting_ahead
from specframe.kernel.layers import reader_of, reads_upper
from specframe.kernel.store import continuation_of
from specframe.kernel.training import RolloutMethods, learning_in, translation_of
from specframe.neural.weights.origin import identity_of

PLAIN = SimpleNamespace(promise=SimpleNamespace(overlaps_scoring=True))


def of(**members):
    return SimpleNamespace(**members)


def test_a_part_without_any_has_defaults():
    assert small_form(PLAIN) is untrained_form(PLAIN, 3) is watched(PLAIN, None) is learning_in(PLAIN) is PLAIN
    assert timed_in(PLAIN, None) == (PLAIN, None) and report_of(PLAIN) == {} and taps_of(PLAIN) == frozenset()
    assert not is_approximate(PLAIN) and not reads_upper(PLAIN) and not reads_upper(None)
    found = devices_of, strict_form, drafting_ahead, reader_of, continuation_of, translation_of, identity_of
    assert [find(PLAIN) for find in found] == [None] * len(found)
    assert RolloutMethods.of(PLAIN) == RolloutMethods(None, None, None) and not RolloutMethods.of(PLAIN).teaches


def test_a_part_with_them_is_asked():
    small, tree = of(), of()
    around = of(timed=lambda: (of(timed=lambda: (small, tree)), None), watched=lambda wrap, search: (wrap, search))
    assert small_form(of(smaller=lambda: small)) is small and untrained_form(of(untrained=lambda v: [v]), 3) == [3]
    assert timed_in(around, None) == (small, tree) and watched(around, "wrap") == ("wrap", None)
    assert report_of(of(report=lambda: {"reads": {"share": 0.5}})) == {"reads": {"share": 0.5}}
    assert devices_of(of(places=("cpu", "cuda"))) == ("cpu", "cuda")
    assert strict_form(of(strict=lambda: small)) is small and identity_of(of(identify=lambda: small)) is small
    assert reader_of(of(as_target=small)) is small and continuation_of(of(continued=small)) is small
    assert is_approximate(of(approximate=True)) and reads_upper(of(upper=True))
    assert drafting_ahead(of(run_ahead=small, promise=of(overlaps_scoring=True))) is small
    assert drafting_ahead(of(run_ahead=small, promise=of(overlaps_scoring=False))) is None  # a wrapper around another


def test_a_drafter_translates_for_the_one_in_it():
    inner = of()
    assert learning_in(of(drafter=inner, translate=len)) is inner
    for other in (of(drafter=inner), of(translate=len)):
        assert learning_in(other) is other and translation_of(other) is None


@pytest.mark.parametrize(("name", "teaches"), [("begin", False), ("rewrite", True), ("ask", True)])
def test_each_method_of_a_rollout_may_stand_alone(name, teaches):
    found = RolloutMethods.of(of(**{name: len}))
    assert [method for method in vars(found) if vars(found)[method] is len] == [name] and found.teaches is teaches


def test_a_verifier_with_taps_is_bound_to_its_target():
    bound, asked = [], []
    verifier, target = of(taps=frozenset({"last"}), bind=bound.append), of(request=asked.append)
    attach(verifier, target)
    assert bound == [target] and asked == [{"last"}]
    for other in (of(bind=bound.append), of(taps=frozenset({"last"})), of()):
        attach(other, target)
    assert len(bound) == len(asked) == 1

    def refuse(taps):
        raise InputError("there is no such tap")

    with pytest.raises(CompositionError, match="reads features of the target: there is no such tap"):
        attach(verifier, of(request=refuse))


def test_control_a_value_that_only_looks_true_is_no_flag():
    assert not is_approximate(of(approximate=torch.ones(1))) and not reads_upper(of(upper="yes"))
