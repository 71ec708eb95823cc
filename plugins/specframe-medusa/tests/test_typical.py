"""Typical acceptance against its rule written out, and certified as what it is: lossy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specframe.cli.main import main
from specframe.components.verifiers.match import Match
from specframe.plugin import AllLaws, Draw, SeededRandom, TokenTree
from specframe.testing import check_verifier
from specframe_medusa.typical import Typical

VOCAB = 5


def literal(tokens: list[int], parent: list[int], valid: list[bool], p: Sequence[list[float]], epsilon: float):
    """The accepted path and the token after it, of one row."""

    def accepted(node: int) -> bool:
        if node == 0:
            return True
        law = p[parent[node]]
        entropy = -sum(x * math.log(x + 1e-5) for x in law)
        plausible = law[tokens[node]] > min(epsilon, math.sqrt(epsilon) * math.exp(-entropy))
        return valid[node] and plausible and accepted(parent[node])

    def path(node: int) -> list[int]:
        return [] if node == 0 else [*path(parent[node]), node]

    def likelihood(node: int) -> float:
        return math.prod(p[parent[at]][tokens[at]] for at in path(node))

    ends = [node for node in range(len(tokens)) if accepted(node)]
    end = max(ends, key=lambda node: (len(path(node)), likelihood(node), -node))
    return path(end), max(range(VOCAB), key=lambda token: p[end][token])


def random_tree(batch: int, count: int) -> TokenTree:
    parent = torch.stack([torch.randint(0, node, (batch,)) for node in range(1, count)], 1)
    parent = torch.nn.functional.pad(parent, (1, 0), value=-1)
    valid = torch.rand(batch, count) < 0.9
    valid[:, 0] = True
    for node in range(1, count):
        valid[:, node] &= valid.gather(1, parent[:, node : node + 1])[:, 0]
    tokens = torch.randint(VOCAB, (batch, count))
    return TokenTree(tokens, parent, valid, torch.zeros_like(tokens), levels=count)


def laws(batch: int, count: int, sharpness: float) -> Tensor:
    return (sharpness * torch.randn(batch, count, VOCAB, dtype=torch.float64)).softmax(-1)


@pytest.mark.parametrize("epsilon", [0.09, 0.4])
def test_it_is_its_rule(epsilon):
    torch.manual_seed(0)
    lengths = set()
    for sharpness in (0.5, 2.0, 6.0):
        tree, p = random_tree(40, 9), laws(40, 9, sharpness)
        verdict = Typical(epsilon=epsilon).verify(tree, AllLaws(p), SeededRandom(0, 40).verify)
        for row in range(40):
            lists = (part[row].tolist() for part in (tree.tokens, tree.parent, tree.valid, p))
            path, bonus = literal(*lists, epsilon)
            assert verdict.path[row].tolist() == path + [-1] * (9 - len(path))
            assert (verdict.length[row], verdict.bonus[row]) == (len(path), bonus)
            lengths.add(len(path))
    assert {0, 1, 2, 3} <= lengths


def test_the_longest_path_wins_and_of_equals_the_likeliest_then_the_first():
    p = torch.full((1, 6, VOCAB), 0.2, dtype=torch.float64)  # flat: everything above exp(-H) sqrt(.09) = .06 passes
    p[0, 0] = torch.tensor([0.3, 0.4, 0.1, 0.1, 0.1])
    tokens = torch.tensor([[0, 1, 0, 0, 2, 3]])
    one = TokenTree(tokens, torch.tensor([[-1, 0, 0, 0, 2, 3]]), torch.ones(1, 6).bool(), tokens * 0, levels=2)
    assert Typical().verify(one, AllLaws(p), SeededRandom(0, 1).verify).path.tolist() == [[2, 4]]
    short = TokenTree(tokens[:, :4], one.parent[:, :4], one.valid[:, :4], tokens[:, :4] * 0, levels=1)
    assert Typical().verify(short, AllLaws(p[:, :4]), SeededRandom(0, 1).verify).path.tolist() == [[1]]


def test_at_temperature_0_it_is_greedy_decoding():
    torch.manual_seed(1)
    tree = replace(random_tree(50, 9), tokens=torch.rand(50, 9).argsort(1))  # no two nodes alike
    p = torch.nn.functional.one_hot(torch.randint(9, (50, 9)), 9).double()
    ours, theirs = (v.verify(tree, AllLaws(p), SeededRandom(0, 50).verify) for v in (Typical(), Match()))
    assert torch.equal(ours.path, theirs.path) and torch.equal(ours.bonus, theirs.bonus)
    assert ours.length.max() > 1


@pytest.mark.parametrize("options", [{}, {"bonus": "draw"}, {"delta": 0.9}])
def test_it_keeps_the_contract_of_a_verifier(options):
    assert Typical(**options).needs.draws == {Draw.TOP} and not Typical.lossless
    check_verifier(lambda: Typical(**options))


def test_delta_is_the_root_of_epsilon():
    assert Typical(epsilon=0.09).delta == pytest.approx(0.3)
    assert Typical(epsilon=0.09, delta=0.5).delta == 0.5


RECIPE = """
specframe: 1
target: {use: table}
drafter: {use: medusa, heads: 2}
tree: {use: chain, depth: 2}
verifier: {use: typical}
sampling: {temperature: 1.0}
"""


def test_the_certificate_shows_how_far_off_it_is(tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    assert main(["certify", str(path), "--json"]) == 0, "it promises nothing, so nothing is broken"
    certificate = json.loads(capsys.readouterr().out)
    assert not certificate["promised"] and not certificate["lossless"] and certificate["exhausted"]
    for case in (case for case in certificate["cases"] if not case["forced"]):
        # as published no coin is tossed: one sequence comes out, and all of the law's other ones never do
        assert case["got"] == 1 and case["tv"] == pytest.approx(1 - case["wanted"], abs=1e-9)
        assert case["tv"] > 0.3
    assert main(["certify", str(path), "verifier.bonus=draw", "--json", "--budget=3000"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert not drawn["lossless"] and 0.01 < drawn["tv"] < certificate["tv"]


def test_sampled_trees_are_refused(tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.replace("depth: 2", "depth: 2, draw: iid"))
    assert main(["validate", str(path)]) == 2
    assert "'typical'" in capsys.readouterr().err
