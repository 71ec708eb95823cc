"""Beam, DySpec and Greedy against slow restatements, audited, and certified in single cycles."""

from __future__ import annotations

import heapq
from itertools import count, permutations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specframe.certify.compositions.enumeration import enumerate_outcomes
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.kernel.errors import InputError
from specframe.kernel.types import Context, Draw, TokenTree
from specframe.plugin import AllLaws
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter, check_tree
from specframe.testing.verifiers import law_pairs
from specframe_trees.beam import Beam
from specframe_trees.dyspec import DySpec
from specframe_trees.greedy import Greedy
from tests.components.path_drafter import (
    Keyed,
    PathDrafter,
    Ranked,
    assert_lossless_cycles,
    assert_sound,
    draw,
    path,
    path_drafters,
)

WARM = Sampling(temperature=1.0)
ROOTS = torch.tensor([1, 0, 1])
SMALL = {
    "beam": lambda: Beam(width=2, depth=2),
    "dyspec": lambda: DySpec(nodes=3, depth=3, width=3),
    "dyspec, narrow": lambda: DySpec(nodes=4, depth=2, width=2, threshold=0.15),
    "greedy": lambda: Greedy(widths=[2, 2]),
    "greedy, wide": lambda: Greedy(widths=[4]),
}


def children(tree: TokenTree, row: int) -> dict[tuple[int, ...], list[int]]:
    """By path, the tokens of a node's valid children in sibling order."""
    found: dict[tuple[int, ...], list[int]] = {}
    for node in range(1, tree.tokens.shape[1]):
        if tree.valid[row, node]:
            line = path(tree, row, node)
            found.setdefault(line[:-1], []).append(line[-1])
    return found


def recorded(tree: TokenTree, drafter: PathDrafter, sampling: Sampling) -> None:
    """Every sampled node's recorded law is the drafter's at its parent."""
    for row in range(len(tree.tokens)):
        for node in range(1, tree.tokens.shape[1]):
            if tree.valid[row, node] and tree.draw[row, node] != Draw.TOP:
                logits = drafter.at(path(tree, row, int(tree.parent[row, node])))
                law = sampling.law(logits[None, None], TokenTree.root_only(torch.zeros(1, dtype=torch.int64)))[0, 0]
                assert torch.allclose(tree.q[row, tree.q_row[row, node]], law, atol=1e-12)


@pytest.mark.sampled
@pytest.mark.parametrize("name", SMALL)
def test_a_policy_keeps_its_contract_and_its_draws_stand_an_audit(name: str) -> None:
    check_tree(SMALL[name])


@pytest.mark.sampled
@pytest.mark.parametrize("verifier", [Recursive, Traversal, Match])
@pytest.mark.parametrize("name", SMALL)
def test_one_cycle_is_lossless(name: str, verifier: type) -> None:
    assert_lossless_cycles(SMALL[name], verifier)


# --- beam -----------------------------------------------------------------------------------------------


def literal_beam(drafter: PathDrafter, root: int, width: int, depth: int, random: object) -> dict:
    """A stochastic beam of one row, path by path in plain Python, with the same draws; children by path."""
    found: dict[tuple[int, ...], list[int]] = {}
    beam = [((root,), 1.0)]
    for _ in range(depth):
        laws = [drafter.at(line).softmax(-1).tolist() for line, _ in beam]
        left = [list(law) for law in laws]
        level: list[tuple[tuple[int, ...], float]] = []
        new = 0
        for _ in range(width):
            weights = [0.0] * len(beam)
            for i in range(new):
                weights[i] = beam[i][1] * sum(left[i])
            if new < len(beam):
                weights[new] = max(1 - sum(mass for _, mass in beam[:new]), beam[new][1])
            if sum(weights) <= 0:
                break
            parent = draw(random, weights)
            token = draw(random, left[parent])
            new += parent == new
            left[parent][token] = 0.0
            line, mass = beam[parent]
            level.append(((*line, token), mass * laws[parent][token]))
            found.setdefault(line, []).append(token)
        beam = level
    return found


@given(width=st.integers(1, 4), depth=st.integers(1, 4), drafter=path_drafters())
def test_beam_is_its_literal_restatement(width: int, depth: int, drafter: PathDrafter) -> None:
    policy = Beam(width=width, depth=depth)
    tree = policy.grow(drafter.expand, ROOTS, Context(WARM, Keyed(drafter.salt)))
    assert_sound(tree, depth)
    assert tree.tokens.shape[1] == policy.promise.nodes == width * depth + 1
    recorded(tree, drafter, WARM)
    for row, root in enumerate(ROOTS.tolist()):
        assert children(tree, row) == literal_beam(drafter, root, width, depth, Keyed(drafter.salt))


@pytest.mark.parametrize(("vocab", "depth", "width"), [(2, 2, 2), (2, 2, 3), (3, 1, 2), (2, 3, 2)])
def test_beam_has_the_law_of_stochastic_beam_search(vocab: int, depth: int, width: int) -> None:
    """Whole paths drawn without replacement, the order of Gumbel scores: a level keeps its first prefixes."""
    q = torch.tensor([[0.7, 0.2, 0.1], [0.45, 0.35, 0.2], [0.3, 0.1, 0.6]], dtype=torch.float64)[:vocab, :vocab]
    q = q / q.sum(-1, keepdim=True)
    leaves = {}
    for leaf in product(range(vocab), repeat=depth):
        leaves[leaf] = 1.0
        for before, token in zip((0, *leaf), leaf, strict=False):
            leaves[leaf] *= float(q[before, token])
    wanted: dict[tuple, float] = {}
    for order in permutations(leaves):
        mass, rest = 1.0, 1.0
        for leaf in order[:-1]:
            mass *= leaves[leaf] / rest
            rest -= leaves[leaf]
        levels = []
        for level in range(1, depth + 1):
            levels += [tuple(dict.fromkeys(leaf[:level] for leaf in order))[:width]]
        key = tuple(levels)
        wanted[key] = wanted.get(key, 0.0) + mass
    drafter = GivenDrafter(q)

    def program(random: object, rows: int) -> Tensor:
        root = torch.zeros(rows, dtype=torch.int64)
        tree = Beam(width=width, depth=depth).grow(drafter.expand, root, Context(WARM, random))  # type: ignore[attr-defined]
        return torch.cat([tree.tokens, tree.parent, tree.valid.long()], 1)

    found: dict[tuple, float] = {}
    nodes = width * depth + 1
    for outcome, mass in enumerate_outcomes(program).law.items():
        tokens, parents, valid = (outcome[i * nodes : (i + 1) * nodes] for i in range(3))
        lines: list[tuple[int, ...]] = [()]
        for node in range(1, nodes):
            lines.append((*lines[parents[node]], tokens[node]))
        levels = [tuple(lines[n] for n in range(1 + d * width, 1 + (d + 1) * width) if valid[n]) for d in range(depth)]
        found[tuple(levels)] = found.get(tuple(levels), 0.0) + mass
    assert found.keys() == wanted.keys()
    for key, mass in wanted.items():
        assert found[key] == pytest.approx(mass, abs=1e-12)


# --- dyspec ---------------------------------------------------------------------------------------------


def literal_dyspec(drafter: PathDrafter, root: int, nodes: int, depth: int, threshold: float, random: object) -> dict:
    """DySpec slot by slot with a heap, as the paper has it; children by path."""
    found: dict[tuple[int, ...], list[int]] = {}
    order = count()

    def law(line: tuple[int, ...]) -> list[float]:
        return drafter.at(line).softmax(-1).tolist()

    heap = [(-1.0, 0, next(order), (root,), law((root,)))]
    while heap and sum(map(len, found.values())) < nodes:
        value, level, _, line, left = heapq.heappop(heap)
        if -value < max(threshold, 1e-300) or sum(left) <= 0:
            continue
        token = draw(random, left)
        share = left[token] / sum(left)
        found.setdefault(line, []).append(token)
        rest = [0.0 if t == token else mass for t, mass in enumerate(left)]
        heapq.heappush(heap, (value * (1 - share), level, next(order), line, rest))
        if level + 1 < depth:
            below = (*line, token)
            heapq.heappush(heap, (value * share, level + 1, next(order), below, law(below)))
    return found


@given(
    nodes=st.integers(1, 9),
    depth=st.integers(1, 5),
    drafter=path_drafters(),
    threshold=st.sampled_from([0.0, 0.1, 0.4]),
)
def test_dyspec_is_the_papers_heap(nodes: int, depth: int, drafter: PathDrafter, threshold: float) -> None:
    policy = DySpec(nodes=nodes, depth=depth, width=nodes, threshold=threshold)
    tree = policy.grow(drafter.expand, ROOTS, Context(WARM, Keyed(drafter.salt)))
    assert_sound(tree, min(depth, policy.budget))
    assert tree.tokens.shape[1] <= policy.promise.nodes
    recorded(tree, drafter, WARM)
    for row, root in enumerate(ROOTS.tolist()):
        assert children(tree, row) == literal_dyspec(drafter, root, nodes, depth, threshold, Keyed(drafter.salt))
    if threshold:
        assert tree.tokens.shape[1] == 1 + int(tree.valid[:, 1:].sum(1).max()), "no wider than the fullest row"


def test_dyspec_width_limits_parents_and_children() -> None:
    drafter = PathDrafter(9, 2, 3)
    tree = DySpec(nodes=30, depth=3, width=2).grow(drafter.expand, ROOTS, Context(WARM, Keyed(1)))
    assert tree.tokens.shape[1] == 11, "2 below the root, then 2 parents with 2 children, twice"
    for row in range(3):
        families = children(tree, row)
        assert all(len(tokens) <= 2 for tokens in families.values())
        for level in (1, 2, 3):
            assert sum(len(line) == level for line in families) <= 2
    assert drafter.calls == 2


def test_dyspec_at_temperature_0_is_a_chain() -> None:
    tree = DySpec(nodes=6, depth=3).grow(PathDrafter(5).expand, ROOTS, Context(Sampling(), Ranked()))
    assert tree.valid.sum(1).tolist() == [4, 4, 4]
    assert int(tree.depth[tree.valid].max()) == 3


# --- greedy ---------------------------------------------------------------------------------------------


@given(
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    drafter=path_drafters(),
    top_k=st.integers(0, 3),
)
def test_greedy_is_its_literal_restatement(widths: list[int], drafter: PathDrafter, top_k: int) -> None:
    sampling = Sampling(temperature=0.8, top_k=top_k)
    policy = Greedy(widths=widths)
    tree = policy.grow(drafter.expand, ROOTS, Context(sampling, Keyed(drafter.salt)))
    assert_sound(tree, len(widths))
    assert tree.tokens.shape[1] == policy.promise.nodes
    root_only = TokenTree.root_only(torch.zeros(1, dtype=torch.int64))
    for row, root in enumerate(ROOTS.tolist()):
        wanted: dict[tuple[int, ...], list[int]] = {}
        level = [(root,)]
        for width in widths:
            for line in level:
                logits = drafter.at(line)
                top = logits.argsort(descending=True).tolist()[: width - 1]
                law = sampling.law(logits[None, None], root_only)[0, 0].tolist()
                rest = [0.0 if token in top else mass for token, mass in enumerate(law)]
                wanted[line] = [draw(Keyed(drafter.salt), rest)] * (sum(rest) > 0) + top if sum(rest) > 0 else top
            level = [(*line, token) for line in level for token in wanted[line]]
        assert children(tree, row) == {line: tokens for line, tokens in wanted.items() if tokens}
    first = tree.draw[:, 1]
    assert (first == Draw.IID).all(), "the draw is tried first"


def test_recursive_verification_of_a_greedy_draft_is_optimal() -> None:
    """Hu et al.: no verification of these siblings accepts more than p(top) + sum min(p, q')."""
    for p, q in law_pairs():
        drafter = GivenDrafter(q)

        def program(random: object, rows: int, drafter: object = drafter, p: Tensor = p) -> Tensor:
            root = torch.zeros(rows, dtype=torch.int64)
            tree = Greedy(widths=[2]).grow(drafter.expand, root, Context(WARM, random))  # type: ignore[attr-defined]
            return Recursive().verify(tree, AllLaws(p[tree.tokens]), random).length[:, None]  # type: ignore[attr-defined]

        law = enumerate_outcomes(program).law
        top = int(q[0].argmax())
        rest = q[0].clone()
        rest[top] = 0
        best = float(p[0, top])
        if float(rest.sum()) > 0:
            others = torch.minimum(p[0], rest / rest.sum())
            best += float(others.sum() - others[top])
        assert law.get((1,), 0.0) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Beam(width=0), "at least 1"),
        (lambda: DySpec(nodes=0), "at least 1"),
        (lambda: DySpec(threshold=1.0), "below 1"),
        (lambda: Greedy(widths=[]), "at least 1"),
    ],
)
def test_broken_options_are_refused(build: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()  # type: ignore[operator]
