"""`without_replacement` means one thing: without the earlier siblings drawn that way from the same row of q."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specframe.certify.compositions.audit import recorded_laws
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.record import Record
from specframe.components.verifiers.recursive import Recursive, SiblingSlots
from specframe.components.verifiers.traversal import Traversal
from specframe.kernel.capabilities import Promise
from specframe.kernel.types import Context
from specframe.plugin import Draw, Frontier, TokenTree
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.sampling.random import SeededRandom
from specframe.testing import GivenDrafter, compare_cycle
from specframe_trees.spectr.kseq import KSeq
from specframe_trees.spectr.transport import Transport
from tests.components.verifiers.references import Row, recorded_law

P = torch.tensor([[0.4, 0.3, 0.2, 0.1]] * 4, dtype=torch.float64)
Q = torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 4, dtype=torch.float64)
OTHER = torch.tensor([0.05, 0.6, 0.15, 0.2], dtype=torch.float64)

WOR, IID, TOP = Draw.WITHOUT_REPLACEMENT, Draw.IID, Draw.TOP
SIBLINGS = [[(WOR, 0), (WOR, 1), (WOR, 0)], [(TOP, 0), (WOR, 0), (WOR, 0)], [(IID, 0), (WOR, 0), (IID, 0)]]
"""Per case, how each sibling is drawn and from which row of q."""


class Mixed:
    """One level of siblings, drawn from two laws in several ways."""

    def __init__(self, siblings):
        self.siblings = siblings
        self.promise = Promise(draws=frozenset(Draw), nodes=1 + len(siblings), depth=1, fixed_sibling_count=True)

    def grow(self, expand, root, context):
        start = TokenTree.root_only(root)
        law = context.sampling.law(expand(Frontier(start, torch.zeros_like(start.tokens))).whole.logits[:, :, 0], start)
        q = torch.cat([law, OTHER.expand_as(law)], 1)  # [B, 2, V]
        left, tokens = q.clone(), [root]
        for draw, row in self.siblings:
            source = left[:, row] if draw == WOR else q[:, row]
            drawn = q[:, row].argmax(-1) if draw == TOP else context.random.categorical(source)
            if draw == WOR:
                rest = left[:, row].scatter(1, drawn[:, None], 0.0)
                left[:, row] = rest / rest.sum(-1, keepdim=True)
            tokens.append(drawn)
        batch = len(root)
        return TokenTree(
            tokens=torch.stack(tokens, 1),
            parent=torch.tensor([-1] + [0] * len(self.siblings)).expand(batch, -1),
            valid=torch.ones(batch, 1 + len(self.siblings), dtype=torch.bool),
            draw=torch.tensor([0, *(int(draw) for draw, _ in self.siblings)]).expand(batch, -1),
            levels=1,
            q=q,
            q_row=torch.tensor([0, *(row for _, row in self.siblings)]).expand(batch, -1),
        )


@pytest.mark.parametrize("siblings", SIBLINGS)
@pytest.mark.parametrize("verifier", [Match, Recursive, Traversal, Block, Transport])
def test_every_verifier_takes_it_so(verifier, siblings):
    found = compare_cycle(Mixed(siblings), verifier(), P, Q)
    assert found.enumeration.exhausted and found.tv < 1e-9


def test_every_record_of_a_law_takes_it_so():
    siblings = [(WOR, 0), (TOP, 0), (WOR, 1), (IID, 0), (WOR, 0)]
    tokens = [3, 2, 1, 1, 0]
    tree = TokenTree(
        tokens=torch.tensor([[0, *tokens]]),
        parent=torch.tensor([[-1, 0, 0, 0, 0, 0]]),
        valid=torch.ones(1, 6, dtype=torch.bool),
        draw=torch.tensor([[0, *(int(draw) for draw, _ in siblings)]]),
        levels=1,
        q=torch.stack([Q[0], OTHER])[None],
        q_row=torch.tensor([[0, *(row for _, row in siblings)]]),
    )
    last = torch.tensor([1 / 6, 2 / 6, 3 / 6, 0.0], dtype=torch.float64)  # of the siblings, the first alone is gone
    assert torch.allclose(recorded_laws(tree)[0, 5], last)
    row = Row(*(field[0].tolist() for field in (tree.tokens, tree.parent, tree.valid, tree.draw, tree.q, tree.q_row)))
    assert torch.allclose(torch.tensor(recorded_law(row, 5, 4), dtype=torch.float64), last)
    node = torch.tensor([0])
    slots = SiblingSlots(tree, Record(tree, tree.q.shape[-1], tree.q.dtype))
    assert torch.allclose(slots.law(*slots.after(node, torch.tensor([4])))[1][0], last)


@pytest.mark.parametrize(
    "file",
    [
        "specframe/kernel/tree.py",
        "specframe/components/verifiers/recursive.py",
        "docs/explanation/lossless.md",
        "docs/glossary.md",
        "docs/reference/components.md",
    ],
)
def test_every_page_states_it(file):
    text = " ".join((Path(__file__).parents[3] / file).read_text(encoding="utf-8").split())
    sentences = re.findall(r"q without the earlier siblings[^.;]*", text)
    assert sentences and all(re.search(r"drawn .*(this|that) way from the same row of q", each) for each in sentences)


def test_a_top_node_takes_no_law_wherever_its_row_points():
    siblings = [(TOP, 0), (WOR, 0), (IID, 1)]
    root = torch.arange(64) % 4
    context = Context(Sampling(temperature=1.0), SeededRandom(5, 64).draft)
    tree = Mixed(siblings).grow(GivenDrafter(Q).expand, root, context)
    for row in (-1, 2, 99):
        astray = replace(tree, q_row=tree.q_row.where(tree.draw != TOP, row))
        assert torch.equal(recorded_laws(astray)[:, 1:], recorded_laws(tree)[:, 1:])
        for verifier in (Recursive(), Traversal(), Block(), Transport(), KSeq()):
            one, other = (
                verifier.verify(each, AllLaws(P[tree.tokens]), SeededRandom(6, 64).verify) for each in (tree, astray)
            )
            assert torch.equal(one.path, other.path) and torch.equal(one.bonus, other.bonus)
