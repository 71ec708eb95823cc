"""Lenience: its rule written out, how far off it is, and what bounds that."""

from __future__ import annotations

import json

import pytest
import torch

from specframe import InputError
from specframe.cli.main import main
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.lenient import Lenient
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.plugin import Draw
from specframe.sampling.lazy import AllLaws
from specframe.sampling.random import SeededRandom
from specframe.testing import check_verifier, compare_cycle
from specframe.testing.verifiers import draft, law_pairs, trees_of

P, Q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]


def one(p: list[float], q: list[float], lenience: float, draw: Draw = Draw.IID):
    laws = [torch.tensor([law] * 3, dtype=torch.float64) for law in (p, q)]
    return compare_cycle(Chain(depth=1, draw=draw), Lenient(lenience=lenience), *laws)


def literal(p: list[float], q: list[float], lenience: float) -> list[float]:
    """The first token's distribution."""
    taken = [b * min(1.0, a / (lenience * b)) for a, b in zip(p, q, strict=True)]
    left = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return [t + (1 - sum(taken)) * x / sum(left) for t, x in zip(taken, left, strict=True)]


@pytest.mark.parametrize(("lenience", "off"), [(0.9, 0.022), (0.5, 0.2), (0.1, 0.3), (1.0, 0.0)])
def test_how_far_off_it_is(lenience: float, off: float) -> None:
    found, wanted = one(P, Q, lenience), literal(P, Q, lenience)
    assert found.tv == pytest.approx(off, abs=5e-4)
    for first in range(3):
        mass = sum(share for tokens, share in found.enumeration.law.items() if tokens[0] == first)
        assert mass == pytest.approx(wanted[first])


def test_no_token_comes_up_more_often_than_the_bound() -> None:
    torch.manual_seed(0)
    for _ in range(300):
        p, q = torch.randn(2, 4, dtype=torch.float64).mul(2).softmax(-1).tolist()
        lenience = float(torch.rand(()).clamp(min=0.05))
        law = literal(p, q, lenience)
        assert sum(law) == pytest.approx(1)
        assert all(got <= wanted / lenience + 1e-9 for got, wanted in zip(law, p, strict=True))


def test_a_top_draft_is_accepted_by_its_probability() -> None:
    """q is one-hot then, whether it is recorded or not: accepted with min(1, p / l)."""
    q = [0.1, 0.8, 0.1]
    found = one(P, q, 0.5, Draw.TOP)
    taken = min(1.0, 0.3 / 0.5)
    wanted = [(1 - taken) * 0.5 / 0.7, taken, (1 - taken) * 0.2 / 0.7]
    for first in range(3):
        mass = sum(share for tokens, share in found.enumeration.law.items() if tokens[0] == first)
        assert mass == pytest.approx(wanted[first])


@pytest.mark.parametrize("draw", [Draw.TOP, Draw.IID, Draw.WITHOUT_REPLACEMENT])
def test_lenience_1_is_recursive(draw: Draw) -> None:
    for tree in trees_of(draw):
        for p, q in law_pairs():
            made = draft(tree, q, rows=5)
            if made.q is None:
                continue  # there `recursive` is `match`
            ours, theirs = (
                verifier.verify(made, AllLaws(p[made.tokens]), SeededRandom(0, 5).verify)
                for verifier in (Lenient(lenience=1.0), Recursive())
            )
            assert torch.equal(ours.path, theirs.path) and torch.equal(ours.bonus, theirs.bonus)
            assert compare_cycle(tree, Lenient(lenience=1.0), p, q).tv < 1e-9


def test_at_temperature_0_nothing_changes() -> None:
    one_hot = torch.eye(4, dtype=torch.float64)[[1, 2, 3, 0]]
    q = torch.eye(4, dtype=torch.float64)[[1, 3, 3, 0]]
    for tree in (Chain(depth=3), Fixed(widths=[1, 1])):
        made = draft(tree, q, rows=4)
        ours, theirs = (
            verifier.verify(made, AllLaws(one_hot[made.tokens]), SeededRandom(0, 4).verify)
            for verifier in (Lenient(lenience=0.1), Match())
        )
        assert torch.equal(ours.path, theirs.path) and torch.equal(ours.bonus, theirs.bonus)


@pytest.mark.sampled
@pytest.mark.parametrize("lenience", [0.1, 0.7, 1.0])
def test_it_keeps_the_contract_of_a_verifier(lenience: float) -> None:
    assert not Lenient.lossless
    check_verifier(lambda: Lenient(lenience=lenience))


RECIPE = """
specframe: 1
target: {use: table, vocab: 3}
drafter: {use: model, model: zoo://talk-7m}
tree: {use: chain, depth: 2, draw: iid}
verifier: {use: lenient, lenience: 0.3}
sampling: {temperature: 1.0}
"""


@pytest.mark.full
def test_the_certificate_shows_how_far_off_it_is(tmp_path, capsys) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    found = {}
    for lenience in (0.3, 0.7, 1.0):
        status = main(["certify", str(path), f"verifier.lenience={lenience}", "--json", "--budget=4000"])
        assert status == 0, "it promises nothing, so nothing is broken"
        found[lenience] = json.loads(capsys.readouterr().out)
        assert not found[lenience]["promised"]
    assert not found[0.3]["lossless"] and found[0.3]["tv"] > found[0.7]["tv"] > 0.005
    assert found[1.0]["lossless"] and found[1.0]["tv"] < 1e-9


def test_refusals() -> None:
    for lenience in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="lenience must be above 0 and at most 1"):
            Lenient(lenience=lenience)
