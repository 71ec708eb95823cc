"""Pieces of texts by the attention that they get: native code against PyTorch."""

from __future__ import annotations

import pytest
import torch

from specframe.native import top_chunks
from specframe.native.build import FLAGS, load_native
from specframe.native.top_chunks import ChunkKeys


def shares(queries, keys, asked, ends):
    """The attention that chunks [layers, R, heads, C, D] get in double precision, the first one any: [.., C]."""
    queries, keys = queries.double(), keys.double()
    logits = queries.unflatten(2, (keys.shape[2], -1)) @ keys[:, :, :, None].transpose(-1, -2)
    hidden = torch.arange(keys.shape[3]) >= torch.tensor(ends)[:, None]
    given = logits.masked_fill(hidden[:, None, None, None], -torch.inf).softmax(-1)
    last = torch.arange(queries.shape[3]) >= queries.shape[3] - torch.tensor(asked)[:, None]
    found = (given * last[:, None, None, :, None]).sum((3, 4)).masked_fill(hidden[:, None], -1)
    found[..., 0] = torch.inf
    return found


def numbers(*shape):
    """Numbers that bfloat16 has."""
    noise = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-16, 17, shape, generator=noise) / 8


@pytest.fixture(params=["this processor's", "portable"])
def native(request, monkeypatch):
    if request.param == "portable":
        library = load_native((*FLAGS, "-DPORTABLE"))
        monkeypatch.setattr(top_chunks, "load_native", lambda: library)


@pytest.mark.parametrize(
    ("size", "sharing", "asked", "ends"),
    [
        (64, 3, [5, 1], [930, 17]),
        (32, 1, [1, 1], [16, 1]),
        (96, 2, [40, 33], [33, 250]),
        (64, 4, [4, 0], [100, 100]),
    ],
)
def test_the_best_chunks_are_those_that_get_most_attention(native, size, sharing, asked, ends):
    layers, rows, heads, most, steps = 3, 2, 2, 64, max(asked)
    keys = numbers(layers, rows, heads, max(ends), size)
    queries = numbers(layers, rows, heads * sharing, steps, size) / 8
    chunks = ChunkKeys((layers, rows + 2, heads, max(ends), size))
    chunks.put(slice(1, 3), 0, keys)
    found = chunks.best(1, queries, asked, ends, most)
    wanted = shares(queries, keys, asked, ends)
    for row, end in enumerate(ends):
        count = min(end, most)
        best = found[:, row, :, :count]
        scores = wanted[:, row].gather(-1, best)
        assert all(len(set(head)) == count for head in best.flatten(0, 1).tolist())
        torch.testing.assert_close(scores, wanted[:, row].topk(count).values, rtol=1e-5, atol=1e-9)
        assert not found[:, row, :, count:].any()


def test_of_chunks_with_equal_votes_the_earlier_is_better():
    chunks = ChunkKeys((1, 1, 1, 40, 32))
    chunks.put(slice(0, 1), 0, torch.ones(1, 1, 1, 40, 32))
    assert chunks.best(0, torch.ones(1, 1, 2, 3, 32), [3], [37], 8).tolist() == [[[[*range(8)]]]]


def test_a_row_without_chunks_has_none():
    chunks = ChunkKeys((1, 1, 1, 40, 32))
    assert not chunks.best(0, torch.ones(1, 1, 2, 3, 32), [3], [0], 8).any()


def test_chunks_stay_with_their_rows_as_these_move_and_grow():
    keys, queries = numbers(2, 3, 2, 40, 32), numbers(2, 2, 2, 4, 32)
    moved = ChunkKeys((2, 3, 2, 20, 32))
    moved.put(slice(0, 3), 0, keys[:, :, :, :20])
    moved.keep(torch.tensor([2, 0]))
    moved.grow(40)
    moved.put(slice(0, 2), 20, keys[:, [2, 0], :, 20:])
    fresh = ChunkKeys((2, 2, 2, 40, 32))
    fresh.put(slice(0, 2), 0, keys[:, [2, 0]])
    assert moved.chunks == 48
    found, wanted = (chunks.best(0, queries, [4, 2], [40, 31], 12) for chunks in (moved, fresh))
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"queries": torch.zeros(1, 1, 2, 3, 64)}, r"queries \[1, R, heads, T, 32\]"),
        ({"queries": torch.zeros(1, 1, 3, 3, 32)}, "choose chunks"),
        ({"first": 2}, "the cache has 2 rows, not those from 2 to 2"),
        ({"asked": [4]}, "queries asked are from 0 to 3, not from 4 to 4"),
        ({"ends": [49]}, "chunks are from 0 to 48, not from 49 to 49"),
        ({"ends": [-1]}, "chunks are from 0 to 48"),
        ({"asked": [1, 1], "ends": [1, 1]}, r"queries asked are int64 \[1\]"),
    ],
)
def test_what_native_code_would_read_beyond_is_refused(changes, words):
    given = {"first": 0, "queries": torch.zeros(1, 1, 4, 3, 32), "asked": [3], "ends": [40], "count": 8}
    with pytest.raises(ValueError, match=words):
        ChunkKeys((1, 2, 2, 40, 32)).best(**(given | changes))


def test_keys_of_odd_sizes_are_refused():
    load_native()
    assert ChunkKeys.fits(torch.zeros(1, 64)) and ChunkKeys.fits(torch.zeros(1, 32, dtype=torch.bfloat16))
    assert not ChunkKeys.fits(torch.zeros(1, 48)) and not ChunkKeys.fits(torch.zeros(1, 64, dtype=torch.float64))
    with pytest.raises(ValueError, match="a multiple of 32 numbers, not 48"):
        ChunkKeys((1, 1, 1, 1, 48))


@pytest.mark.parametrize("spoiled", [torch.nan, -torch.nan, torch.inf])
def test_masses_that_are_no_numbers_choose_chunks_that_there_are(spoiled):
    chunks = ChunkKeys((1, 1, 2, 40, 32))
    chunks.put(slice(0, 1), 0, numbers(1, 1, 2, 40, 32))
    found = chunks.best(0, torch.full((1, 1, 4, 3, 32), spoiled), [3], [37], 8)
    assert all(len(set(head)) == 8 and max(head) < 37 for head in found[0, 0].tolist())
