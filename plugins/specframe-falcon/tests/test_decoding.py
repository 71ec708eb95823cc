"""Decoding says what training said: every draft forward equals one forward over the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

import falcon_fakes as fakes
import falcon_reference as reference
import pytest
import torch
from torch import Tensor

from specframe import TokenTree
from specframe_falcon import session
from specframe_falcon.drafter import Falcon

BLOCKS = [1, 2, 3]
CLOSE = 1e-5
"""Weights are float64, but norms and rotary angles are float32 in transformers."""


def bound(block: int, dtype: torch.dtype = torch.float64) -> Falcon:
    """A drafter with random weights large enough for every part to matter."""
    drafter = Falcon(block=block)
    drafter.bind(fakes.FakeTarget(dtype))
    chance = torch.Generator().manual_seed(block)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(weight + torch.randn(weight.shape, generator=chance, dtype=torch.float64) / 3)
    return drafter


def expected(drafter: Falcon, text: fakes.Text, drafted: Tensor) -> Tensor:
    """The logits below a drafted path, [k, V]."""
    with torch.no_grad():
        return drafter.logits(reference.path(drafter, text.features, text.tokens, drafted))


def check(drafter: Falcon, rows: Sequence[fakes.Text], seed: int = 0) -> None:
    """Grows a ragged tree three expansions deep and compares all that is proposed with the reference."""
    tree = fakes.Growing(torch.stack([text.tokens[-1] for text in rows]), seed)

    def compare(nodes: list[int]) -> None:
        logits = drafter.expand(tree.frontier(nodes)).logits
        assert logits.shape == (len(rows), len(nodes), drafter.block, fakes.VOCAB)
        for row, text in enumerate(rows):
            for place, node in enumerate(nodes):
                want = expected(drafter, text, tree.tokens[row, tree.path(node)])
                torch.testing.assert_close(logits[row, place], want, rtol=CLOSE, atol=CLOSE)

    def descend(node: int) -> int:
        for _ in range(drafter.block):
            tree.add(node)  # a sibling that leads nowhere
            node = tree.add(node)
        return node

    compare([0])
    first = [descend(0), descend(0), descend(0)]
    compare(first)
    second = [descend(first[2]), descend(first[0]), descend(first[2])]
    compare(second)
    compare([descend(second[1]), descend(second[0])])
    compare([descend(first[1]), 0])  # a branch passed over before, and the root once more


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_predict_is_the_literal_forward(block: int, length: int) -> None:
    drafter = bound(block)
    text = fakes.texts(1)[0]
    features, tokens = text.more(length)
    with torch.no_grad():
        predicted = drafter.predict(features[None], tokens[None])[0]
        for end in range(length, 0, -block):
            width = min(block, end)
            literal = reference.block(drafter, features[:end], tokens[:end])[-width:]
            torch.testing.assert_close(predicted[end - width : end], literal, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("block", BLOCKS)
def test_one_row(block: int) -> None:
    drafter, rows = bound(block), fakes.texts(1)
    drafter.commit(fakes.news(rows, [5], first=True))
    check(drafter, rows)
    for cycle, count in enumerate([1, 3, 2, 1, 4]):
        drafter.commit(fakes.news(rows, [count], padding=cycle % 3))
        check(drafter, rows, cycle)


@pytest.mark.parametrize("block", BLOCKS)
def test_ragged_batch_and_finished_rows(block: int) -> None:
    drafter, rows = bound(block), fakes.texts(4)
    drafter.commit(fakes.news(rows, [5, 2, 9, 4], first=True))
    check(drafter, rows)
    drafter.commit(fakes.news(rows, [1, 3, 2, 2]))
    check(drafter, rows)
    drafter.keep(torch.tensor([3, 1, 0]))
    rows = [rows[3], rows[1], rows[0]]
    check(drafter, rows)
    drafter.commit(fakes.news(rows, [4, 1, 2], padding=1))
    check(drafter, rows)
    drafter.commit(fakes.news(rows, [2, 2, 2]))
    drafter.keep(torch.tensor([1]))  # before the pairs were ever used
    rows = [rows[1]]
    drafter.commit(fakes.news(rows, [3]))
    drafter.commit(fakes.news(rows, [1]))  # two commits without a draft between
    check(drafter, rows)


@pytest.mark.parametrize("block", BLOCKS)
def test_rows_with_fewer_pairs_than_a_block(block: int) -> None:
    drafter, rows = bound(block), fakes.texts(3)
    drafter.commit(fakes.news(rows, [1, 1, 2], first=True))
    check(drafter, rows)
    drafter.commit(fakes.news(rows, [1, 2, 1]))
    check(drafter, rows)
    drafter.commit(fakes.news(rows, [1, 1, 1]))
    check(drafter, rows)


def test_the_cache_grows_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SPARE", 1)
    drafter, rows = bound(2), fakes.texts(2)
    drafter.commit(fakes.news(rows, [2, 3], first=True))
    check(drafter, rows)
    for _ in range(2):
        drafter.commit(fakes.news(rows, [40, 25]))
        check(drafter, rows)


@pytest.mark.parametrize("block", BLOCKS)
def test_drafting_leaves_nothing_behind(block: int) -> None:
    drafting, fresh = bound(block), bound(block)
    ours, theirs = fakes.texts(2), fakes.texts(2)
    for cycle, counts in enumerate([[4, 3], [1, 3], [2, 1]]):
        drafting.commit(fakes.news(ours, counts, first=cycle == 0))
        fresh.commit(fakes.news(theirs, counts, first=cycle == 0))
        for seed in range(2):
            check(drafting, ours, seed)  # drafts, is rejected, drafts again
    stump = TokenTree.stump(torch.stack([text.tokens[-1] for text in ours]))
    root = fakes.Growing(stump.tokens[:, 0]).frontier([0])
    assert torch.equal(drafting.expand(root).logits, drafting.expand(root).logits)
    torch.testing.assert_close(drafting.expand(root).logits, fresh.expand(root).logits)


def test_a_prompt_starts_afresh() -> None:
    drafter = bound(2)
    for seed, lengths in enumerate([[9], [2, 5], [1]]):
        rows = fakes.texts(len(lengths), seed)
        drafter.commit(fakes.news(rows, lengths, first=True))
        check(drafter, rows)


def test_rows_do_not_see_each_other() -> None:
    together, alone = bound(2), bound(2)
    pair, single = fakes.texts(2), fakes.texts(2)[1:]
    for cycle, (other, own) in enumerate([(9, 2), (1, 3), (4, 1)]):
        together.commit(fakes.news(pair, [other, own], first=cycle == 0))
        alone.commit(fakes.news(single, [own], first=cycle == 0))
        roots = [torch.stack([text.tokens[-1] for text in rows]) for rows in (pair, single)]
        both = together.expand(fakes.Growing(roots[0]).frontier([0])).logits[1:]
        torch.testing.assert_close(both, alone.expand(fakes.Growing(roots[1]).frontier([0])).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    drafter, rows = bound(2, dtype), fakes.texts(2, dtype=dtype)
    exact, wanted = bound(2), fakes.texts(2)
    for cycle, counts in enumerate([[5, 3], [1, 2]]):
        drafter.commit(fakes.news(rows, counts, first=cycle == 0))
        exact.commit(fakes.news(wanted, counts, first=cycle == 0))
    tree = fakes.Growing(torch.stack([text.tokens[-1] for text in rows]))
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    for nodes in ([0], [tree.add(tree.add(0)), tree.add(tree.add(0))]):
        ours = drafter.expand(tree.frontier(nodes)).logits
        theirs = exact.expand(tree.frontier(nodes)).logits
        assert ours.dtype == dtype
        assert (ours.double() - theirs).norm() < tolerance * theirs.norm()
