"""The slot cache: writes, shows, moves and drops the slots it is given."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe.neural.cache import SlotCache
from specframe.neural.transfer import GRAIN, move_natively, move_slices


def states(batch: int, heads: int, count: int, size: int) -> torch.Tensor:
    return torch.randn(batch, heads, count, size)


def test_one_storage_serves_all_layers_and_both_addressings():
    slices, indexed = SlotCache(3, 10), SlotCache(3, 10)
    for layer in range(3):
        keys, values = states(2, 4, 5, 8), states(2, 4, 5, 8)
        slices.aim(2, 7)
        indexed.aim(torch.arange(2, 7).expand(2, 5), 7)
        first = slices.update(keys, values, layer)
        second = indexed.update(keys, values, layer)
        assert first[0].shape == (2, 4, 7, 8)
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one, other)
        assert torch.equal(first[0][:, :, 2:], keys) and not first[0][:, :, :2].any()
    assert len(slices._blocks) == 1


def test_rows_can_write_at_slots_of_their_own():
    cache = SlotCache(1, 6)
    keys, values = states(2, 1, 2, 3), states(2, 1, 2, 3)
    cache.aim(torch.tensor([[0, 3], [5, 1]]), 6)
    seen, _ = cache.update(keys, values, 0)
    assert torch.equal(seen[0, :, 3], keys[0, :, 1]) and torch.equal(seen[1, :, 5], keys[1, :, 0])
    assert not seen[1, :, 0].any()


def test_both_addressings_take_keys_and_values_of_unlike_dtypes():
    """Autocast makes values half precision, and leaves keys after a rotary embedding as they are."""
    keys, values = states(2, 1, 2, 3), states(2, 1, 2, 3).bfloat16()
    for slots in (3, torch.arange(3, 5).expand(2, 2)):
        cache = SlotCache(1, 6)
        cache.aim(slots, 5)
        seen = cache.update(keys, values, 0)
        assert torch.equal(seen[0][:, :, 3:], keys) and torch.equal(seen[1][:, :, 3:], values.float())


@pytest.mark.parametrize("sizes", [[(4, 8, 8)] * 3, [(4, 8, 6)] * 3, [(4, 8, 8), (2, 8, 8), (4, 16, 16)]])
def test_compaction_and_dropping_rows_reach_every_layer(sizes):
    """Layers of one shape, keys that differ from values, layers that differ from one another."""
    cache = SlotCache(len(sizes), 8)
    cache.aim(0, 8)
    written = []
    for layer, (heads, key_size, value_size) in enumerate(sizes):
        written.append((states(3, heads, 8, key_size), states(3, heads, 8, value_size)))
        cache.update(*written[-1], layer)
    cache.compact(torch.tensor([[4, 6], [2, 3], [7, 0]]), torch.tensor([[3, 4], [2, 3], [0, 1]]))
    cache.keep(torch.tensor([2, 0]))
    cache.aim(8, 8)
    for layer, (keys, values) in enumerate(written):
        empty = [part[:2, :, :0] for part in (keys, values)]
        for now, before in zip(cache.update(*empty, layer), (keys, values), strict=True):
            assert torch.equal(now[1, :, 3], before[0, :, 4]) and torch.equal(now[1, :, 4], before[0, :, 6])
            assert torch.equal(now[0, :, 0], before[2, :, 7]) and torch.equal(now[0, :, 1], before[2, :, 0])
            assert torch.equal(now[0, :, 2:], before[2, :, 2:])


@pytest.mark.parametrize("batch", [1, 3])
def test_compaction_to_one_place_in_every_row_is_compaction_to_these_slots(batch):
    """Slots that overlap with where they come from included: all reads come before all writes."""
    one, other = SlotCache(2, 8), SlotCache(2, 8)
    for layer in range(2):
        keys, values = states(batch, 4, 8, 8), states(batch, 4, 8, 8)
        for cache in (one, other):
            cache.aim(0, 8)
            cache.update(keys, values, layer)
    source = torch.tensor([[3, 6, 2], [2, 4, 7], [7, 2, 3]])[:batch]
    one.compact(source, 2)
    other.compact(source, torch.arange(2, 5).expand(batch, 3))
    assert torch.equal(one._blocks[0], other._blocks[0])


@given(
    moves=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6, unique_by=lambda m: m[1]),
    heads=st.sampled_from([1, 3, GRAIN // 8]),
)
@settings(deadline=None, max_examples=60)
def test_slots_are_read_before_any_is_written(moves, heads):
    """In line or not, over each other, and with so many numbers that the planes are copied in parts."""
    block = torch.arange(5 * 3 * heads * 8 * 2).view(5, 3, heads, 8, 2)
    expected, again = block.clone(), block.clone()
    source, destination = ([*side] for side in zip(*moves, strict=True))
    expected[:, 1, :, destination] = block[:, 1, :, source]
    move_slices(block[:, 1], source, destination)
    move_natively(again, 1, source, destination)
    assert torch.equal(block, expected) and torch.equal(again, expected)


@pytest.mark.parametrize("row, source, destination", [(2, [0], [1]), (0, [8], [1]), (0, [0], [-1]), (0, [0, 1], [2])])
def test_moves_beyond_the_storage_are_refused(row, source, destination):
    with pytest.raises(ValueError, match="slots are 0 to 7 of rows 0 to 1"):
        move_natively(torch.zeros(2, 2, 1, 8, 4), row, source, destination)


@pytest.mark.parametrize("order", [[0, 3], [3, 1, 2], [1, 0, 3], [2, 3, 0, 1], [3, 3], []])
def test_rows_that_move_take_the_slots_asked_for_along(order):
    """Last rows that take free places, rows that change places, and one row twice."""
    cache = SlotCache(2, 6)
    cache.aim(0, 5)
    for layer in range(2):
        cache.update(states(4, 2, 5, 3), states(4, 2, 5, 3), layer)
    before = cache.every.clone()
    cache.keep(torch.tensor(order, dtype=torch.int64), 3)
    assert torch.equal(cache.every[:, : len(order), :, :3], before[:, order, :, :3])
    stays = [row for row in range(4) if row >= len(order) or order[row] == row]
    assert torch.equal(cache.every[:, stays], before[:, stays])
    last = cache.every[:, 3].clone()
    cache.keep(torch.tensor([3]))
    assert torch.equal(cache.every[:, 0], last), "all that was written"


def test_writes_after_dropping_rows_reach_later_compactions():
    cache = SlotCache(2, 4)
    cache.aim(0, 2)
    for layer in range(2):
        cache.update(states(3, 1, 2, 2), states(3, 1, 2, 2), layer)
    cache.keep(torch.tensor([1]))
    cache.aim(2, 3)
    new = states(1, 1, 1, 2)
    cache.update(new, new, 1)
    cache.compact(torch.tensor([[2]]), torch.tensor([[0]]))
    cache.aim(3, 4)
    keys, _ = cache.update(new[:, :, :0], new[:, :, :0], 1)
    assert torch.equal(keys[:, :, 0], new[:, :, 0])


def test_growing_keeps_what_is_written_and_adds_zeros():
    cache = SlotCache(2, 3)
    keys, values = states(2, 1, 3, 2), states(2, 1, 3, 2)
    cache.aim(0, 3)
    for layer in range(2):
        cache.update(keys, values, layer)
    cache.grow(2)
    assert cache.capacity == 3
    cache.grow(7)
    new = states(2, 1, 1, 2)
    cache.aim(5, 7)
    seen, _ = cache.update(new, new, 1)
    assert cache.capacity == 7 and seen.shape[2] == 7
    assert torch.equal(seen[:, :, :3], keys) and torch.equal(seen[:, :, 5:6], new)
    assert not seen[:, :, 3:5].any() and not seen[:, :, 6].any()


def test_transformers_can_read_what_it_holds():
    cache = SlotCache(2, 9)
    cache.aim(4, 7)
    assert cache.get_seq_length() == 4 and cache.get_mask_sizes(3, 0) == (7, 0)
    assert cache.get_max_length() == 9 and len(cache) == 2
    cache.aim(torch.tensor([[4, 5, 6]]), 7)
    assert cache.get_seq_length() == 4


def test_storage_is_given_back_with_its_cache():
    """Without waiting for Python's collector of circles: a server's session may hold gigabytes."""
    gc.disable()
    try:
        cache = SlotCache(2, 6)
        cache.aim(0, 2)
        cache.update(states(1, 1, 2, 3), states(1, 1, 2, 3), 0)
        storage = ref(cache._blocks[0])
        del cache
        assert storage() is None
    finally:
        gc.enable()


def test_its_planes_are_the_storage_itself_until_it_grows():
    cache = SlotCache(2, 3, 4, lambda positions: 4 * positions)
    assert cache.capacity == 12
    written = [(states(4, 2, 3, 8), states(4, 2, 3, 6)) for _ in range(2)]
    for layer, pair in enumerate(written):
        cache.aim(0, 3)
        cache.update(*pair, layer)
    planes = cache.planes(3)
    assert [plane.shape for plane in planes] == [(3, 2, 12, 8), (3, 2, 12, 6)] * 2
    assert cache.planes(3) is planes
    planes[3][2, 1, 5] = 7.0  # the last layer's values
    cache.aim(6, 6)
    assert (cache.update(written[1][0][:, :, :0], written[1][1][:, :, :0], 1)[1][2, 1, 5] == 7).all()
    cache.grow(12)
    assert cache.capacity == 12 and cache.planes(3) is planes
    cache.grow(13)
    assert cache.capacity == 52 and cache.planes(3) is not planes
    assert torch.equal(cache.planes(4)[0][:, :, :3], written[0][0]) and (cache.planes(4)[3][2, 1, 5] == 7).all()
