"""Decoding says what training said: every draft forward equals one literal forward over the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

import eagle_reference as reference
import eagle_texts as texts
import pytest
import torch
from torch import Tensor

from specframe.testing import GivenSession, GrowingTree, check_drafter, check_plugin, random_teacher
from specframe_eagle.drafter import Eagle

CLOSE = 1e-5
"""Weights are float64, but norms and rotary angles are float32 in transformers."""


def expected(drafter: Eagle, rows: GivenSession, row: int, drafted: Tensor) -> Tensor:
    """The logits below a drafted path, [V]."""
    with torch.no_grad():
        chain = reference.chain(drafter, rows.features[row], rows.tokens[row], drafted)
        return drafter.logits(chain[: drafter.target.config.hidden_size])


def check(drafter: Eagle, rows: GivenSession, seed: int = 0) -> None:
    """Grows a ragged tree four levels deep and compares all that is proposed with the reference."""
    tree = GrowingTree(rows.root, texts.VOCAB, seed)

    def compare(nodes: Sequence[int]) -> None:
        logits = drafter.expand(tree.frontier(nodes)).logits
        assert logits.shape == (len(rows.tokens), len(nodes), 1, texts.VOCAB)
        for row in range(len(rows.tokens)):
            for place, node in enumerate(nodes):
                want = expected(drafter, rows, row, tree.tokens[row, tree.path(node)])
                torch.testing.assert_close(logits[row, place, 0], want, rtol=CLOSE, atol=CLOSE)

    compare([0])
    first = [tree.add(0), tree.add(0), tree.add(0)]
    compare(first)
    second = [tree.add(first[2]), tree.add(first[0]), tree.add(first[2])]
    compare(second)
    compare([tree.add(second[1]), tree.add(second[0])])
    compare([tree.add(first[1]), 0])  # a branch passed over before, and the root once more


@pytest.mark.parametrize(("kind", "options"), texts.NETWORKS)
def test_unroll_is_the_literal_forward(kind: str, options: dict[str, bool]) -> None:
    drafter = texts.bound(kind, **options)
    teacher = random_teacher(texts.target(kind), 2, 8)
    features, tokens = teacher.features["last"][:, :-1], teacher.tokens[:, 1:]
    with torch.no_grad():
        predicted = drafter.unroll(features, tokens)
        for row in range(2):
            for end in range(1, 8):
                literal = reference.prediction(drafter, features[row, :end], tokens[row, :end])
                size = features.shape[-1]
                for found, want in ((predicted.hidden, literal[:size]), (predicted.features, literal[-size:])):
                    torch.testing.assert_close(found[row, end - 1, 0], want, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize(("kind", "options"), texts.NETWORKS)
def test_one_row(kind: str, options: dict[str, bool]) -> None:
    drafter, rows = texts.bound(kind, **options), GivenSession.of(random_teacher(texts.target(kind), 1, 30))
    drafter.open(8, 64)
    drafter.commit(rows.admit([5]))
    check(drafter, rows)
    for cycle, count in enumerate([1, 3, 2, 4]):
        drafter.commit(rows.advance([count], padding=cycle % 3))
        check(drafter, rows, cycle)


@pytest.mark.parametrize("options", [{"bias": False}, texts.FSPAD])
def test_ragged_batch_and_finished_rows(options: dict[str, bool]) -> None:
    drafter, rows = texts.bound(**options), GivenSession.of(random_teacher(texts.target(), 4, 30))
    drafter.open(8, 64)
    drafter.commit(rows.admit([5, 1, 9, 4]))
    check(drafter, rows)
    drafter.commit(rows.advance([1, 3, 2, 2]))
    check(drafter, rows)
    drafter.keep(rows.keep([3, 1, 0]))
    check(drafter, rows)
    drafter.commit(rows.advance([4, 1, 2], padding=1))
    drafter.keep(rows.keep([1]))  # before the pairs were ever used
    drafter.commit(rows.advance([3]))
    drafter.commit(rows.advance([1]))  # two commits without a draft between
    check(drafter, rows)


def test_open_starts_afresh_and_drafting_leaves_nothing_behind() -> None:
    busy, fresh = texts.bound(), texts.bound()
    for seed, lengths in enumerate([[9], [2, 5], [1]]):
        rows = GivenSession.of(random_teacher(texts.target(), len(lengths), 20, seed=seed))
        committed = rows.admit(lengths)
        for drafter in (busy, fresh):
            drafter.open(2, 20)
        busy.commit(committed)
        check(busy, rows)  # drafts, and is rejected
        more = rows.advance([2] * len(lengths))
        busy.commit(more)
        fresh.commit(committed)
        fresh.commit(more)
        root = GrowingTree(rows.root, texts.VOCAB).frontier([0])
        assert torch.equal(busy.expand(root).logits, busy.expand(root).logits)
        torch.testing.assert_close(busy.expand(root).logits, fresh.expand(root).logits)


@pytest.mark.parametrize("options", [{}, texts.FSPAD])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_other_precisions(dtype: torch.dtype, close: float, options: dict[str, bool]) -> None:
    drafter, rows = (
        texts.bound(dtype=dtype, **options),
        GivenSession.of(random_teacher(texts.target(dtype=dtype), 2, 20)),
    )
    for cycle, counts in enumerate([[5, 3], [1, 2]]):
        if cycle == 0:
            drafter.open(8, 64)
        drafter.commit((rows.advance if cycle else rows.admit)(counts))
    tree = GrowingTree(rows.root, texts.VOCAB)
    drafter.expand(tree.frontier([0]))
    ours = drafter.expand(tree.frontier([tree.add(0)])).logits[:, 0, 0]
    assert ours.dtype == dtype
    for row in range(2):
        features, tokens = rows.features[row], rows.tokens[row]
        with torch.no_grad():
            predicted = drafter.unroll(features[None], tokens[None]).features[0, -1]
            features = torch.cat([features, predicted])
            whole = drafter.unroll(features[None], torch.cat([tokens, tree.tokens[row, 1:]])[None])
            wanted = drafter.read(whole)[0, -1, 0]
        assert (ours[row] - wanted).norm() < close * wanted.norm()


def test_it_keeps_the_contract_of_drafters_and_plugins() -> None:
    check_drafter(Eagle)
    check_plugin("specframe-eagle")
