"""The verifiers that emit more: against their slow references, exactly, and against one another."""

import random as pyrandom
from dataclasses import replace

import pytest
import torch

from specframe.components.drafters.model import ModelDrafter
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.bound import optimal_acceptance
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal, post_order
from specframe.kernel.capabilities import Promise
from specframe.kernel.composition import misfits
from specframe.kernel.types import Context, Draw, TokenTree
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.sampling.random import SeededRandom
from specframe.testing import GivenDrafter, check_verifier, compare_cycle, enumerate_outcomes
from specframe.testing.verifiers import law_pairs
from specframe_trees.beam import Beam
from specframe_trees.dyspec import DySpec
from specframe_trees.sequoia import Sequoia
from specframe_trees.spectr.kseq import KSeq
from specframe_trees.spectr.transport import Transport
from tests.components.verifiers.references import Row, block_reference, match_reference, traversal_reference
from tests.components.verifiers.test_verifiers import (
    DEEP,
    FLAT,
    distance,
    emitted_law,
    enumerate_law,
    law_after,
    one_row,
    random_batch,
)

TOP, IID, WOR = Draw.TOP, Draw.IID, Draw.WITHOUT_REPLACEMENT


def verdict_law(verifier, tree, p):
    """{(*path, bonus): probability} of the verdict on one given draft."""

    def program(random, rows):
        def more(field):
            return None if field is None else field.expand(rows, *field.shape[1:])

        fields = (tree.tokens, tree.parent, tree.valid, tree.draw)
        wide = TokenTree(*map(more, fields), tree.levels, more(tree.q), more(tree.q_row))
        verdict = verifier.verify(wide, AllLaws(more(p)), random)
        return torch.cat([verdict.path, verdict.bonus[:, None]], 1)

    return enumerate_outcomes(program).law


def reference_law(reference, tree, p):
    def program(source):
        path, bonus = reference(Row.of(tree, 0), p[0].tolist(), source)
        return (*path, *[-1] * (tree.levels - len(path)), bonus)

    return enumerate_law(program)


def far_apart(one, other):
    return max(abs(one.get(key, 0) - other.get(key, 0)) for key in one.keys() | other.keys())


def chains(count):
    """Chains of every length up to 4, some of which end early, with any record at all."""
    dice = pyrandom.Random(3)
    for _ in range(count):
        depth = dice.randint(1, 4)
        valid = [True] * (1 + dice.randint(0, depth))
        tree = TokenTree(
            tokens=torch.tensor([[dice.randrange(3) for _ in range(depth + 1)]]),
            parent=torch.arange(-1, depth)[None],
            valid=torch.tensor([valid + [False] * (depth + 1 - len(valid))]),
            draw=torch.tensor([[int(dice.choice([TOP, IID, IID, WOR])) for _ in range(depth + 1)]]),
            levels=depth,
            q=torch.tensor([[list(map(float, law_after((i, _), 3, "q"))) for i in range(depth)]], dtype=torch.float64),
            q_row=torch.tensor([[0, *range(depth)]]),
        )
        p = [list(map(float, law_after((i, _), 3, dice.choice(["p", "q"])))) for i in range(depth + 1)]
        yield tree, torch.tensor([p], dtype=torch.float64)


def trees(count, draws=None):
    dice = pyrandom.Random(5)
    while count:
        tree, p = random_batch(dice, 1, vocab=3)
        if tree.q is None or tree.tokens.shape[1] > 9:
            continue
        if draws is not None:
            kinds = torch.tensor([dice.choice(draws) for _ in range(tree.draw.numel())]).view_as(tree.draw)
            tree = TokenTree(tree.tokens, tree.parent, tree.valid, kinds, tree.levels, tree.q, tree.q_row * 0)
        count -= 1
        yield replace(tree, q=tree.q / tree.q.sum(-1, keepdim=True)), p / p.sum(-1, keepdim=True)


# Fast and slow: the same law of verdicts for the same draft, sound or not.


def test_traversal_judges_as_its_reference():
    for tree, p in trees(60):
        assert far_apart(verdict_law(Traversal(), tree, p), reference_law(traversal_reference, tree, p)) < 1e-12


@pytest.mark.parametrize("row", [0, 1])
def test_a_sibling_without_replacement_has_what_the_earlier_ones_left_of_its_row(row):
    tree = TokenTree(
        tokens=torch.tensor([[0, 0, 1, 2]]),
        parent=torch.tensor([[-1, 0, 0, 0]]),
        valid=torch.ones(1, 4, dtype=torch.bool),
        draw=torch.full((1, 4), int(WOR)),
        levels=1,
        q=torch.tensor([[[0.5, 0.2, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]]], dtype=torch.float64),
        q_row=torch.full((1, 4), row),
    )
    p = torch.tensor([[[0.2, 0.25, 0.15, 0.4]] * 4], dtype=torch.float64)
    assert far_apart(verdict_law(Traversal(), tree, p), reference_law(traversal_reference, tree, p)) < 1e-12


def test_block_judges_chains_as_its_reference_and_as_traversal_does():
    for tree, p in chains(60):
        law = verdict_law(Block(), tree, p)
        assert far_apart(law, reference_law(block_reference, tree, p)) < 1e-12
        assert far_apart(law, verdict_law(Traversal(), tree, p)) < 1e-12


def test_block_leaves_siblings_to_traversal():
    for tree, p in trees(10):
        assert verdict_law(Block(), tree, p) == verdict_law(Traversal(), tree, p)


@pytest.mark.parametrize("verifier", [Traversal(), Block(), KSeq(), Transport()])
def test_top_nodes_are_judged_as_match_judges_them(verifier):
    for tree, p in trees(10, [TOP]):
        assert far_apart(verdict_law(verifier, tree, p), reference_law(match_reference, tree, p)) < 1e-12


@pytest.mark.parametrize("verifier", [Recursive(), Traversal(), Block(), KSeq(), Transport()])
def test_a_top_node_may_name_a_row_that_q_does_not_have(verifier):
    drafts = list(chains(10)) if isinstance(verifier, Block) else list(trees(6, [TOP, TOP, IID]))
    for tree, p in drafts:
        for row in (-2, tree.q.shape[1] + 1):
            other = replace(tree, q_row=torch.where(tree.draw == TOP, row, tree.q_row))
            assert verdict_law(verifier, other, p) == verdict_law(verifier, tree, p)


def bottom_up(row, node):
    return [*(below for child in row.children(node) for below in bottom_up(row, child)), node]


def test_post_order_puts_children_first():
    for tree, _ in trees(20):
        slot = tree.valid & (tree.parent >= 0)
        family = (tree.parent[:, :, None] == tree.parent[:, None]) & slot[:, :, None] & slot[:, None]
        position = post_order(tree, family.tril(-1))
        order = [node for node in position[0].argsort().tolist() if tree.valid[0, node]]
        assert order == bottom_up(Row.of(tree, 0), 0)


# Lossless, by enumeration.


@pytest.mark.parametrize("kinds", (FLAT | DEEP).values(), ids=(FLAT | DEEP).keys())
def test_bottom_up_references_emit_exactly_the_targets_law(kinds):
    for salt in range(3):
        law, p_of = emitted_law(traversal_reference, kinds, 3, salt, exact=True)
        assert distance(law, p_of) == 0


def test_the_block_reference_emits_exactly_the_targets_law():
    for depth in (1, 2, 3):
        for salt in range(4):
            law, p_of = emitted_law(block_reference, [[IID]] * depth, 3, salt, exact=True)
            assert distance(law, p_of) == 0


@pytest.mark.sampled
@pytest.mark.parametrize("make", [Traversal, Block, KSeq, Transport])
def test_conformance(make):
    check_verifier(make)


def misfits_of(tree, verifier):
    return misfits(ModelDrafter(model="never loaded"), tree, verifier, names=("model", "rule"))


class SecondThoughts:
    """Two siblings, but the second is drawn only if the first has turned out to be token 0."""

    def __init__(self, draw, settled):
        self.draw = draw
        self.promise = Promise(frozenset({draw}), nodes=3, depth=1, fixed_sibling_count=settled)

    def grow(self, expand, root, context):
        tree = Fixed(widths=[2], draw=self.draw).grow(expand, root, context)
        second = tree.tokens[:, 1] == 0
        valid = tree.valid & torch.stack([torch.ones_like(second), torch.ones_like(second), second], 1)
        return replace(tree, valid=valid, tokens=tree.tokens.where(valid, 0))


@pytest.mark.parametrize("draw", [IID, WOR])
def test_a_number_of_siblings_that_leans_on_a_draw_is_caught_or_refused(draw):
    p, q = next(law_pairs())
    tree = SecondThoughts(draw, settled=True)
    assert compare_cycle(tree, Recursive(), p, q).tv < 1e-9
    assert compare_cycle(tree, Transport(), p, q).tv > 0.01
    for honest in (True, False):
        found = list(misfits_of(SecondThoughts(draw, settled=honest), Transport()))
        assert [section for section, _ in found] == ([] if honest else ["verifier"])
    assert "use: recursive" in found[0][1]


def test_trees_declare_whether_the_number_of_siblings_is_settled():
    assert not list(misfits_of(Sequoia(acceptance=[[0.5, 0.2]], draw=WOR), Transport()))
    for tree in (DySpec(), Beam()):
        assert list(misfits_of(tree, Transport()))
        assert not list(misfits_of(tree, Traversal()))


# More is emitted.


def emitted(tree, verifier, p, q):
    """The expected number of tokens of a cycle, the bonus included."""
    drafter, sampling = GivenDrafter(q), Sampling(temperature=1.0)

    def program(random, rows):
        draft = tree.grow(drafter.expand, torch.zeros(rows, dtype=torch.int64), Context(sampling, random))
        return verifier.verify(draft, AllLaws(p[draft.tokens]), random).count[:, None]

    return sum(count * mass for (count,), mass in enumerate_outcomes(program).law.items())


def contexts(*law):
    return torch.tensor([law] * len(law), dtype=torch.float64)


def test_block_on_the_papers_example():
    p, q = contexts(1 / 3, 2 / 3), contexts(2 / 3, 1 / 3)
    chain = Chain(depth=2, draw=IID)
    assert emitted(chain, Recursive(), p, q) - 1 == pytest.approx(10 / 9, abs=1e-12)
    assert emitted(chain, Block(), p, q) - 1 == pytest.approx(11 / 9, abs=1e-12)
    assert emitted(Chain(depth=1, draw=IID), Block(), p, q) == pytest.approx(
        emitted(Chain(depth=1, draw=IID), Recursive(), p, q), abs=1e-12
    )


def random_laws(seed, vocab=3):
    weights = torch.rand(2, vocab, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 2
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("depth", [2, 3])
def test_block_emits_more_than_the_token_rule(depth):
    gains = []
    for seed in range(6):
        p, q = random_laws(seed)
        chain = Chain(depth=depth, draw=IID)
        gains.append(emitted(chain, Block(), p, q) - emitted(chain, Recursive(), p, q))
    assert min(gains) > -1e-12
    assert sum(gains) / len(gains) > 0.01


@pytest.mark.parametrize("draw", [IID, WOR])
def test_traversal_emits_more_than_recursive_and_that_more_than_match(draw):
    gains, steps = [], []
    for seed in range(4):
        p, q = random_laws(seed)
        tree = Fixed(widths=[2, 2] if seed < 1 else [2, 1], draw=draw)
        match, recursive, traversal = (emitted(tree, rule, p, q) for rule in (Match(), Recursive(), Traversal()))
        gains.append(traversal - recursive)
        steps.append(recursive - match)
    assert min(gains) > -1e-12 < min(steps)
    assert max(gains) > 0.01 < max(steps)


@pytest.mark.parametrize(("draw", "siblings"), [(IID, 1), (IID, 2), (IID, 3), (WOR, 2), (TOP, 2)])
def test_no_rule_beats_the_bound(draw, siblings):
    tree = Fixed(widths=[siblings], draw=draw)
    rules = [Match(), Recursive(), Traversal(), Block(), Transport()] + ([KSeq()] if draw is not WOR else [])
    for seed in range(4):
        p, q = random_laws(seed)
        bound = float(optimal_acceptance(p[0], q[0], draw, siblings))
        rates = {type(rule).__name__: emitted(tree, rule, p, q) - 1 for rule in rules}
        assert all(rate < bound + 1e-9 for rate in rates.values()), (rates, bound)
        if draw is IID:
            assert rates["KSeq"] > (1 - (1 - 1 / siblings) ** siblings) * bound - 1e-9
        if draw is not TOP:
            assert rates["Transport"] > 0.99 * bound or siblings > 2
            assert rates["Transport"] > rates["Recursive"] - 0.01
        if draw is TOP or siblings == 1:
            assert min(rates.values()) > bound - 1e-9 or draw is IID


# Numbers.


@pytest.mark.parametrize("verifier", [Traversal(), Block(), KSeq(), Transport()])
def test_float32_gives_valid_verdicts(verifier):
    for seed, (tree, p) in enumerate(trees(60, None if WOR in verifier.needs.draws else [IID])):
        verdict = verifier.verify(one_row(tree, 0), AllLaws(p.float()), SeededRandom(seed, 1).verify)
        node = 0
        for child in verdict.path[0, : verdict.length[0]].tolist():
            assert tree.valid[0, child]
            assert tree.parent[0, child] == node
            node = child
        assert p[0, node, verdict.bonus[0]] > 0


def test_equal_laws_are_always_accepted():
    p = contexts(0.5, 0.3, 0.2).float()
    for verifier in (Traversal(), Block(), KSeq(), Transport()):
        assert emitted(Chain(depth=3, draw=IID), verifier, p, p.double()) == pytest.approx(4, abs=1e-5)
