"""Cascades that draw emit the target's distribution and record their own; TriForce's own loop fails."""

from __future__ import annotations

from functools import partial

import pytest
from cascades import GIVEN, Chains, cascade, model

from specframe import Sampling
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.drafters.suffix import Suffix
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.decoding.session import Parts
from specframe.plugin import Draw, Verdict
from specframe.testing import GivenTarget, audit
from specframe_models.nested.cascade import Cascade
from specframe_self.selections.chunks import KeyChunks

WARM = Sampling(temperature=1.0)


def tiny(vocab: int) -> HFTarget:
    return HFTarget.from_model(tiny_llama(vocab, 0))


def emission(drafter, verifier, target, length=4) -> Emission:
    drafter.bind(target)
    return Emission("", lambda: Parts(target, drafter, None, verifier), WARM, length, (0, 1, 0, 0, 1))


def drawn(draft, rule="recursive", **options) -> Cascade:
    """A cascade that draws, over two tokens."""
    return cascade(draft, model(7, vocab=2), draw=Draw.IID, rule=rule, **options)


DRAWN = {
    "match": lambda: drawn(model(8, vocab=2), "match"),
    "recursive": lambda: drawn(model(8, vocab=2)),
    "copies": lambda: drawn(Suffix()),
    "chosen chunks": lambda: cascade(
        model(8, vocab=2),
        OwnLayers(kv_selection=KeyChunks(budget=4, chunk=1, recent=1, every=1)),
        draw=Draw.IID,
        rule="recursive",
    ),
    "three levels": lambda: drawn(
        cascade(model(9, vocab=2), model(8, vocab=2), tokens=2, draw=Draw.IID, rule="recursive"), tokens=4, ask=2
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("verifier", [Match, Recursive, Traversal])
@pytest.mark.parametrize(
    "make",
    [DRAWN[name] for name in ("match", "recursive", "copies", "chosen chunks")],
    ids=["match", "recursive", "copies", "chosen chunks"],
)
def test_every_text_has_the_probability_that_the_target_gives_it(make, verifier):
    found = emission(make(), verifier(), tiny(2)).compare(budget=400_000)
    assert found.enumeration.exhausted and found.tv < 1e-9


@pytest.mark.sampled
@pytest.mark.parametrize("make", DRAWN.values(), ids=DRAWN)
def test_the_distributions_of_the_review_are_recorded(make):
    found = audit(make, target=partial(tiny, 2), prompt=(0, 1, 0, 0, 1), budget=400_000)
    assert found.enumeration.exhausted and found.passed and found.slots >= 7


class TriForceRule(Recursive):
    """TriForce's own inner loop: a refused token's replacement is drawn from the whole reviewing distribution."""

    def verify(self, tree, laws, random):
        p = laws.all
        found = super().verify(tree, laws, random)
        end = p.gather(1, found.length[:, None, None].expand(-1, 1, p.shape[-1]))[:, 0]
        return Verdict(found.path, found.length, random.categorical(end))


class TriForceCode(Cascade):
    """A cascade by that rule."""

    @property
    def verifier(self):
        return TriForceRule()


def given(kind=Cascade) -> Cascade:
    rows = GIVEN.expand(2, 2)
    return cascade(Chains(rows.flip(1)), Chains(rows), kind, draw=Draw.IID, rule="recursive", tokens=3, ask=1)


@pytest.mark.sampled
def test_control_a_refused_token_replaced_from_the_whole_distribution():
    """min(r, q) + r / 2 in place of r: .125 in a token of the chain, 9/64 in three of the output."""
    target, options = partial(GivenTarget, GIVEN), {"prompt": (0,)}
    inner = audit(partial(given, TriForceCode), target=target, **options)
    assert inner.findings[0].tv == pytest.approx(0.125, abs=1e-6)
    outer = emission(given(TriForceCode), Recursive(), target(), 3).compare()
    assert outer.tv == pytest.approx(9 / 64, abs=1e-6)
    assert audit(given, target=target, **options).passed
    assert emission(given(), Recursive(), target(), 3).compare().tv < 1e-9
