"""Chain, Fixed and Dynamic against slow restatements, on drafters of one, two and three levels a forward."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.kernel.errors import InputError
from specframe.kernel.types import Context, Draw, Frontier, Proposal, TokenTree
from specframe.sampling.laws import History, Sampling
from specframe.sampling.random import SeededRandom
from tests.components.path_drafter import PathDrafter, Ranked, assert_sound, literal_dynamic, path, path_drafters

EAGLE = (
    "0 1 2 3 0.0 0.1 0.2 1.0 1.1 2.0 2.1 3.0 0.0.0 0.0.1 0.0.2 0.1.0 0.1.1 0.2.0 0.2.1 1.0.0 "
    "0.0.0.0 0.0.0.1 0.0.0.2 0.0.0.0.0 0.0.0.0.1"
)
WARM = Sampling(temperature=1.0)
ROOTS = torch.tensor([3, 0])
TIES = (0.0, 1.5, 50.0)
"""Logits as they are, some of them equal, and most of them equal."""


def shapes(gaps: bool) -> st.SearchStrategy[list[str]]:
    """Random shapes of up to 9 nodes; with `gaps` ranks may be left out."""

    def build(steps: list[tuple[int, int]]) -> list[str]:
        paths: list[tuple[int, ...]] = [()]
        for where, rank in steps:
            parent = paths[where % len(paths)]
            taken = {p[-1] for p in paths if p[:-1] == parent and p}
            free = rank if gaps else len(taken)
            if len(parent) < 4 and free not in taken:
                paths.append((*parent, free))
        return [".".join(map(str, p)) for p in reversed(paths) if p] or ["0"]

    return st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=9).map(build)


def laws_of_siblings(drafter: PathDrafter, tree: TokenTree, sampling: Sampling) -> Tensor:
    """The law that each node's siblings should have been drawn from: [B, N - 1, V]."""
    batch, count = tree.tokens.shape
    raw = [[drafter.at(path(tree, b, int(tree.parent[b, n]))) for n in range(1, count)] for b in range(batch)]
    return sampling.law(torch.stack([torch.stack(row) for row in raw]), tree, tree.parent[:, 1:])


@pytest.mark.parametrize("block", [1, 2, 3, 7])
def test_chain_of_best_tokens(block: int) -> None:
    drafter = PathDrafter(11, block)
    tree = Chain(depth=5).grow(drafter.expand, ROOTS, Context(WARM, Ranked()))
    for b, root in enumerate(ROOTS.tolist()):
        tokens = [root]
        for _ in range(5):
            tokens.append(int(drafter.at(tuple(tokens)).argmax()))
        assert tree.tokens[b].tolist() == tokens
    assert tree.parent.tolist() == [[-1, 0, 1, 2, 3, 4]] * 2
    assert_sound(tree, 5)
    assert tree.q is None and tree.valid.all() and (tree.draw == Draw.TOP).all()
    assert drafter.calls == -(-5 // block), "one forward for every block levels"


@pytest.mark.parametrize("block", [1, 2, 3])
def test_sampled_chain_records_its_laws(block: int) -> None:
    drafter = PathDrafter(6, block)
    random = SeededRandom(1, 2)
    drafts = set()
    for _ in range(60):
        random.draft.advance()
        drafter.calls = 0
        tree = Chain(depth=3, draw=Draw.IID).grow(drafter.expand, ROOTS, Context(WARM, random.draft))
        assert_sound(tree, 3)
        assert tree.q.shape == (2, 3, 6)
        assert tree.q_row[:, 1:].tolist() == [[0, 1, 2]] * 2
        assert torch.equal(tree.q, laws_of_siblings(drafter, tree, WARM))
        drafts.add(tuple(tree.tokens.flatten().tolist()))
    assert len(drafts) > 10, "the draws are drawn"


def test_eagle_1_and_widths_are_expressible() -> None:
    eagle = Fixed(paths=EAGLE.split())
    assert eagle.promise.nodes == 26 and eagle.shape.depth == 5
    assert [sum(len(p) == d for p in eagle.shape.paths) for d in range(1, 6)] == [4, 8, 8, 3, 2]
    wide = Fixed(widths=[4, 2, 1])
    every = [".".join(map(str, p)) for d in (1, 2, 3) for p in product(*map(range, (4, 2, 1)[:d]))]
    assert wide.promise.nodes == 21 and wide.shape.paths == Fixed(paths=every).shape.paths


@given(paths=shapes(gaps=True), block=st.integers(1, 3), vocab=st.integers(2, 7), salt=st.integers(0, 99))
def test_fixed_top_tree_is_its_literal_restatement(paths: list[str], block: int, vocab: int, salt: int) -> None:
    drafter = PathDrafter(vocab, block, salt)
    policy = Fixed(paths=paths)
    roots = torch.tensor([0, 1, 1])
    tree = policy.grow(drafter.expand, roots, Context(WARM, Ranked()))
    order = sorted((tuple(map(int, p.split("."))) for p in paths), key=lambda p: (len(p), p))
    assert_sound(tree, max(map(len, order)))
    assert tree.tokens.shape[1] == policy.promise.nodes == len(paths) + 1
    for b, root in enumerate(roots.tolist()):
        tokens: dict[tuple[int, ...], tuple[int, ...] | None] = {(): (root,)}
        for node, ranks in enumerate(order, start=1):
            above = tokens[ranks[:-1]]
            exists = above is not None and ranks[-1] < vocab
            assert bool(tree.valid[b, node]) == exists
            assert int(tree.parent[b, node]) == list(tokens).index(ranks[:-1])
            if exists:
                ranked = drafter.at(above).argsort(descending=True).tolist()
                assert int(tree.tokens[b, node]) == ranked[ranks[-1]]
                tokens[ranks] = (*above, ranked[ranks[-1]])
            else:
                assert int(tree.tokens[b, node]) == 0
                tokens[ranks] = None


@given(
    paths=shapes(gaps=False),
    block=st.integers(1, 3),
    vocab=st.integers(2, 5),
    salt=st.integers(0, 99),
    draw=st.sampled_from([Draw.IID, Draw.WITHOUT_REPLACEMENT]),
    top_k=st.integers(0, 3),
)
def test_sampled_trees_record_laws_and_keep_their_shape(
    paths: list[str], block: int, vocab: int, salt: int, draw: Draw, top_k: int
) -> None:
    drafter = PathDrafter(vocab, block, salt)
    sampling = Sampling(temperature=0.7, top_k=top_k)
    policy = Fixed(paths=paths, draw=draw)
    random = SeededRandom(salt, 2)
    random.draft.advance()
    tree = policy.grow(drafter.expand, torch.tensor([1, 0]), Context(sampling, random.draft))
    assert_sound(tree, policy.shape.depth)
    assert tree.tokens.shape[1] == policy.promise.nodes
    assert (tree.draw[:, 1:] == draw).all()
    laws = laws_of_siblings(drafter, tree, sampling)
    recorded = tree.q.gather(1, tree.q_row[:, 1:, None].expand(-1, -1, vocab))
    real = tree.valid[:, 1:]
    assert torch.equal(recorded[real], laws[real])
    drawn = recorded.gather(2, tree.tokens[:, 1:, None])[..., 0]
    assert (drawn[real] > 0).all()
    if draw is Draw.IID:
        assert real.all()
        return
    support = (laws > 0).sum(-1)
    for b in range(2):
        for parent in range(policy.promise.nodes):
            mine = [n for n in range(1, policy.promise.nodes) if int(tree.parent[b, n]) == parent]
            alive = [bool(tree.valid[b, n]) for n in mine]
            assert alive == sorted(alive, reverse=True), "the exhausted come last"
            tokens = [int(tree.tokens[b, n]) for n in mine if tree.valid[b, n]]
            assert len(set(tokens)) == len(tokens)
            if mine and tree.valid[b, parent]:
                assert len(tokens) == min(len(mine), int(support[b, mine[0] - 1]))


def test_draw_order_is_sibling_order_for_ragged_children() -> None:
    drafter = PathDrafter(9, block=2)
    paths = ["0", "1", "2", "0.0", "0.1", "0.2", "1.0", "2.0", "2.1", "2.0.0", "0.1.0", "0.1.1"]
    top = Fixed(paths=paths).grow(drafter.expand, ROOTS, Context(WARM, Ranked()))
    drafter.calls = 0
    drawn = Fixed(paths=paths, draw=Draw.WITHOUT_REPLACEMENT).grow(drafter.expand, ROOTS, Context(WARM, Ranked()))
    assert torch.equal(top.tokens, drawn.tokens) and torch.equal(top.parent, drawn.parent)
    drafter.calls = 0
    same = Fixed(paths=paths, draw=Draw.IID).grow(drafter.expand, ROOTS, Context(WARM, Ranked()))
    assert same.valid.all() and len(set(same.tokens[0, 1:4].tolist())) == 1, "duplicates stay"


def test_laws_see_each_nodes_own_path() -> None:
    def no_repeats(tokens: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter(1, tokens, -torch.inf)

    drafter = PathDrafter(8, block=2)
    history = History(torch.tensor([[7, 5, 3], [6, 0, 0]]), torch.tensor([3, 2]))
    sampling = Sampling(temperature=1.0, processors=(no_repeats,), history=history)
    random = SeededRandom(3, 2)
    policy = Fixed(widths=[2, 2, 1, 1], draw=Draw.WITHOUT_REPLACEMENT)
    for _ in range(5):
        random.draft.advance()
        drafter.calls = 0
        tree = policy.grow(drafter.expand, ROOTS, Context(sampling, random.draft))
        assert tree.valid.all()
        for b, known in enumerate(([7, 5, 3], [6, 0])):
            for node in range(1, policy.promise.nodes):
                line = path(tree, b, node)
                assert len(set(line)) == len(line) and not set(line[1:]) & set(known)
        laws = laws_of_siblings(drafter, tree, sampling)
        assert torch.equal(tree.q.gather(1, tree.q_row[:, 1:, None].expand(-1, -1, 8)), laws)


@given(
    depth=st.integers(1, 5),
    width=st.integers(1, 5),
    nodes=st.integers(1, 30),
    drafter=path_drafters(vocab=9, block=4, steps=TIES),
)
def test_dynamic_tree_is_eagle_2(depth: int, width: int, nodes: int, drafter: PathDrafter) -> None:
    policy = Dynamic(depth=depth, width=width, nodes=nodes)
    roots = torch.tensor([0, 1, 1])
    tree = policy.grow(drafter.expand, roots, Context(Sampling(temperature=0.3, top_k=1), Ranked()))
    assert tree.tokens.shape[1] <= policy.promise.nodes <= nodes + 1
    for b, root in enumerate(roots.tolist()):
        tokens, parents = literal_dynamic(drafter, root, depth, width, nodes)
        assert tree.parent[b].tolist() == parents
        assert tree.tokens[b].tolist() == tokens
    assert tree.levels == min(depth, policy.budget) and tree.q is None and tree.valid.all()
    assert int(tree.depth.max()) <= tree.levels
    assert drafter.calls == -(-depth // drafter.block)


@given(
    depth=st.integers(1, 5),
    width=st.integers(1, 4),
    nodes=st.integers(1, 20),
    drafter=path_drafters(steps=TIES),
    gain=st.sampled_from([0.0, 0.1, 0.4]),
    impossible=st.booleans(),
    calibration=st.sampled_from([None, [1.7], [0.6, 2.3, 1.1]]),
)
def test_dynamic_trees_are_the_same_wherever_they_are_searched(
    depth: int,
    width: int,
    nodes: int,
    drafter: PathDrafter,
    gain: float,
    impossible: bool,
    calibration: list[float] | None,
) -> None:
    policy = Dynamic(depth=depth, width=width, nodes=nodes, gain=gain, calibration=calibration)
    captured: list[list[Frontier]] = []

    def overhear(frontier: Frontier) -> Proposal:
        captured[-1].append(frontier)
        logits = drafter.expand(frontier).logits.float()
        return Proposal(
            logits.masked_fill(logits < logits.amax(-1, keepdim=True) - 3, -torch.inf) if impossible else logits
        )

    trees = []
    for search in (policy.search, policy.search_on_host):
        drafter.calls = 0
        captured.append([])
        trees.append(search(overhear, torch.tensor([0, 1, 1])))
    frontiers = [[frontier.nodes for frontier in row] for row in captured]
    grown = [[frontier.tree for frontier in row] for row in captured]
    for one, other in zip(*frontiers, strict=True):
        assert torch.equal(one, other)
    for one, other in [trees, *zip(*grown, strict=True)]:
        for name in ("tokens", "parent", "valid", "draw"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert one.levels == other.levels


def test_dynamic_certain_child_never_comes_without_its_parent() -> None:
    def certain(frontier: object) -> Proposal:
        nodes = frontier.nodes  # type: ignore[attr-defined]
        logits = torch.full((*nodes.shape, 1, 5), -torch.inf)
        logits[..., 2] = 0.0
        return Proposal(logits)

    for nodes in range(1, 8):
        policy = Dynamic(depth=4, width=2, nodes=nodes)
        tree = policy.grow(certain, torch.tensor([4]), Context(WARM, Ranked()))
        spine = min(nodes, 4)
        chain = [n for n in range(nodes + 1) if path(tree, 0, n) == (4, 2, 2, 2, 2)[: int(tree.depth[0, n]) + 1]]
        assert len(chain) == spine + 1, "the certain chain comes first"


def test_dynamic_siblings_stand_most_probable_first_in_bfloat16_too() -> None:
    logits = torch.randn(1, 1, 3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    tree = Dynamic(depth=3, width=4, nodes=20).grow(
        lambda frontier: Proposal(logits), torch.tensor([4]), Context(WARM, Ranked())
    )
    gain = logits.double().log_softmax(-1)
    for parent in range(21):
        children = (tree.parent[0] == parent).nonzero()[:, 0].tolist()
        level = int(tree.depth[0, parent])
        values = [float(gain[0, 0, level, tree.tokens[0, c]]) for c in children]
        assert values == sorted(values, reverse=True)


def test_shapes_do_not_depend_on_the_batch() -> None:
    for policy in (Dynamic(), Fixed(widths=[3, 2], draw=Draw.WITHOUT_REPLACEMENT), Chain(draw=Draw.IID)):
        for salt in range(4):
            random = SeededRandom(salt, 2)
            random.draft.advance()
            tree = policy.grow(PathDrafter(7, 2, salt).expand, ROOTS, Context(Sampling(temperature=1.0), random.draft))
            assert tree.tokens.shape == (2, policy.promise.nodes)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    for policy in (Dynamic(), Fixed(widths=[3, 2], draw=Draw.WITHOUT_REPLACEMENT), Chain(draw=Draw.IID)):
        both, alone = SeededRandom(5, 2), SeededRandom(5, 1)
        tree = policy.grow(PathDrafter(7, 2).expand, ROOTS, Context(WARM, both.draft))
        single = policy.grow(PathDrafter(7, 2).expand, ROOTS[:1], Context(WARM, alone.draft))
        assert torch.equal(tree.tokens[:1], single.tokens)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Chain(depth=0), "at least 1"),
        (lambda: Dynamic(width=0), "at least 1"),
        (lambda: Dynamic(depth=0), "at least 1"),
        (lambda: Dynamic(nodes=-1), "at least 1"),
        (lambda: Fixed(), "exactly one"),
        (lambda: Fixed(paths=["0"], widths=[1]), "exactly one"),
        (lambda: Fixed(widths=[]), "at least 1"),
        (lambda: Fixed(widths=[2, 0]), "at least 1"),
        (lambda: Fixed(paths=[]), "at least one path"),
        (lambda: Fixed(paths=["0", "1", "0"]), "'0' is given more than once"),
        (lambda: Fixed(paths=["0", "1.0"]), "'1.0' has no parent: add '1'"),
        (lambda: Fixed(paths=["0", "a"]), "'a' is no path"),
        (lambda: Fixed(paths=["-1"]), "'-1' is no path"),
        (lambda: Fixed(paths=[""]), "'' is no path"),
        (lambda: Fixed(paths=["0", "0.1"], draw=Draw.WITHOUT_REPLACEMENT), "'0.1' comes without '0.0'"),
        (lambda: Fixed(paths=["1"], draw=Draw.IID), "'1' comes without '0'"),
    ],
)
def test_broken_options_are_refused(build: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()  # type: ignore[operator]


def test_the_smallest_options_are_options() -> None:
    assert Dynamic(depth=1, width=1, nodes=1, gain=0).promise.nodes == Fixed(widths=[1]).promise.nodes == 2
    assert Chain(depth=1).promise.nodes == 2


def test_policies_declare_what_they_draw() -> None:
    assert Dynamic().promise.draws == Chain().promise.draws == {Draw.TOP}
    assert Fixed(widths=[2], draw=Draw.IID).promise.draws == {Draw.IID}
    assert Dynamic().promise.exact and Chain().promise.exact and Fixed(widths=[2]).promise.exact
    assert Dynamic(width=10**6, nodes=8).width == 8, "after the best 8 of a level none is among the best 8 of all"
    assert Dynamic(depth=2, width=2, nodes=50).promise.nodes == 7, "no more candidates than depth and width give"
