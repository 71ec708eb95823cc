"""The KV selection `verified` chooses the same tokens by native code as by PyTorch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specframe.neural import ChunkKeys
from specframe_self.selections.verified import Verified

LAYERS, HEADS, SHARING, SIZE, ROOM = 2, 2, 3, 32, 400
STEPS = [([300, 180, 9], True), ([4, 1, 3], False), ([8, 2, 1], False), (None, False), ([5, 5], False), ([230], True)]
"""Tokens that each row commits, and whether the rows are new; None: the second row leaves."""


def numbers(*shape, seed):
    """Numbers whose means of 4 bfloat16 has, too."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def choices(chunk: int, native: bool) -> list[torch.Tensor]:
    """The choices of the KV selection after every commit, as rows join and leave."""
    kv_selection = Verified(budget=96, chunk=chunk, recent=16)
    kv_selection.open(4, ROOM)
    kv_selection._native = native
    keys = numbers(LAYERS, 4, HEADS, ROOM, SIZE, seed=1)
    counts: list[int] = []
    found = []
    for step, (committed, new) in enumerate(STEPS):
        if committed is None:
            kv_selection.keep(torch.tensor([0, 2]))
            keys, counts = keys[:, [0, 2, 1, 3]], [counts[0], counts[2]]
            continue
        first = len(counts) if new else 0
        counts = counts + committed if new else [a + b for a, b in zip(counts, committed, strict=True)]
        count = torch.tensor(committed)
        queries = numbers(LAYERS, len(committed), HEADS * SHARING, min(max(committed), 64), SIZE, seed=step) / 16
        for row, asked in enumerate(committed):
            queries[:, row, :, : max(0, queries.shape[3] - asked)] = 0
        memory = SimpleNamespace(
            count=torch.tensor(counts), counts=counts, keys=keys[:, : len(counts)], queries=queries
        )
        prompt = SimpleNamespace() if new else None
        kv_selection.commit(SimpleNamespace(count=count, counts=committed, prompt=prompt), memory)
        assert first + len(committed) == len(counts)
        found.append(kv_selection.choose(memory).slots)
    return found


@pytest.mark.parametrize("chunk", [1, 4])
def test_native_code_chooses_the_same_tokens(chunk):
    for native, plain in zip(choices(chunk, native=True), choices(chunk, native=False), strict=True):
        assert torch.equal(native, plain)


def test_the_choice_follows_the_queries():
    wide = choices(4, native=True)[0]
    assert (
        wide.shape == (LAYERS, 3, HEADS, 96) and (wide[0] != wide[1]).any() and (wide[:, :, 0] != wide[:, :, 1]).any()
    )
    assert set(wide[0, 2, 0].tolist()) == {*range(9), -1}


def test_native_code_is_not_loaded_for_the_choice_alone(monkeypatch):
    monkeypatch.setattr("specframe.native.top_chunks.are_loaded", lambda: False)
    assert not ChunkKeys.fits(torch.zeros(1, 64))
