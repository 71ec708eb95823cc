"""Properties that a lossy verifier keeps, and verifiers that do not keep them."""

from dataclasses import replace

import pytest
import torch

from specframe.certify.compositions.emission import Emission
from specframe.certify.guarantees import APART, ORIGIN, STRICT, guarantees
from specframe.components.targets.table import TableTarget
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.lenient import Lenient
from specframe.decoding.session import Parts
from specframe.plugin import Draw, Verdict
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter

Q = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.3, 0.6, 0.1]], dtype=torch.float64)


class Follower(Lenient):
    """The bonus of every row is the first row's."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        return replace(found, bonus=found.bonus[:1].expand_as(found.bonus).clone())


class Inventor(Lenient):
    """The bonus is one token further than the target's own, which the law after it leaves out."""

    def verify(self, tree, laws, random):
        p = laws.all
        found = super().verify(tree, laws, random)
        return replace(found, bonus=(found.bonus + 1) % p.shape[-1])


class Jumper(Lenient):
    """Refused drafts are skipped: the path goes on at the last node, wherever that hangs."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        if not tree.levels:
            return found
        end = torch.full_like(found.bonus, tree.tokens.shape[1] - 1)
        return Verdict(torch.cat([end[:, None], found.path[:, 1:] * 0 - 1], 1), found.length * 0 + 1, found.bonus)


class Loose(Lenient):
    """Its strict form is as lenient."""

    def strict(self):
        return Lenient(lenience=self.lenience)


def held(verifier, sampling):
    def make(name, broken=lambda rule: rule):
        target, drafter = TableTarget(vocab=3, order=2, seed=1), GivenDrafter(Q)

        def parts():
            return Parts(target, drafter, Chain(depth=2, draw=Draw.IID), broken(verifier))

        return Emission(name, parts, sampling, 2, (0, 1, 2))

    found = list(guarantees(make, lambda emission: emission.compare(budget=20_000, alone=250)))
    assert all(guarantee.branches > 0 for guarantee in found)
    return {guarantee.name: guarantee.held for guarantee in found}


def test_a_lenient_rule_keeps_its_origin_its_rows_and_its_strict_form():
    assert held(Lenient(lenience=0.5), Sampling(temperature=1.0)) == {ORIGIN: True, APART: True, STRICT: True}


@pytest.mark.parametrize(
    ("verifier", "missing"),
    [(Follower(), APART), (Inventor(), ORIGIN), (Jumper(), ORIGIN), (Loose(), STRICT)],
    ids=lambda given: type(given).__name__ if isinstance(given, Lenient) else "",
)
def test_what_does_not_hold_is_seen(verifier, missing):
    # Under a law that leaves a token out, so that not every token is one that the target could emit.
    assert not held(verifier, Sampling(temperature=1.0, top_k=2))[missing]
