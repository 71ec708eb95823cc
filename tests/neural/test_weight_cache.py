"""Packed weights in the cache: written whole or not at all, checked, limited, and read from this user's files alone."""

from __future__ import annotations

import json
import os
import time

import pytest
import torch

from specframe.cli.main import main
from specframe.kernel.errors import InputError
from specframe.neural.weights import weight_cache
from specframe.neural.weights.weight_cache import (
    SIZE,
    PackedWeights,
    clear_entries,
    entry_of,
    list_entries,
    read_packed,
    write_packed,
)

NOTES = {"model": "zoo://some", "precision": "int4"}
TENSORS = {
    "codes": torch.arange(1000, dtype=torch.uint8).view(10, 100),
    "norm": torch.randn(33).bfloat16(),
    "bias": torch.randn(5),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_cache, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(weight_cache, "SMALLEST", 0)
    source = tmp_path / "model.safetensors"
    source.write_bytes(bytes(200))
    path = entry_of([source], "int4")
    write_packed(path, PackedWeights(TENSORS, NOTES))
    return path


def test_what_is_written_is_read_mapped_and_aligned(place):
    found = read_packed(place)
    assert found.notes == NOTES and list(found.tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(found.tensors[name], tensor) and found.tensors[name].data_ptr() % 64 == 0
    found.tensors["bias"].zero_()  # of this process alone
    assert torch.equal(read_packed(place).tensors["bias"], TENSORS["bias"])
    assert [path.name for path in place.parent.iterdir()] == [place.name], "no temporary file is left"


def test_pages_that_were_given_back_are_read_again(place):
    found = read_packed(place)
    assert torch.equal(found.tensors["codes"], TENSORS["codes"])
    found.release()
    assert torch.equal(found.tensors["codes"], TENSORS["codes"])


def test_a_file_that_is_replaced_or_removed_while_mapped_stays_whole_there(place):
    found = read_packed(place)
    write_packed(place, PackedWeights({"codes": torch.zeros(4000, dtype=torch.uint8)}, NOTES))
    assert torch.equal(found.tensors["codes"], TENSORS["codes"])
    assert clear_entries() > 4000 and not list_entries()
    assert torch.equal(found.tensors["norm"], TENSORS["norm"])


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-100], lambda b: b[:500] + b"?" + b[501:], lambda b: b"", lambda b: b[:20]]
)
def test_a_damaged_file_is_removed_with_a_line(place, damage, caplog):
    place.write_bytes(damage(place.read_bytes()))
    assert read_packed(place) is None and not place.exists()
    assert len(caplog.records) == 1 and "damaged" in caplog.text


def test_identity_is_of_path_size_time_ends_and_facts(tmp_path):
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    first.write_bytes(bytes(300_000))
    second.write_bytes(bytes(300_000))
    known = entry_of([first], "int4")
    assert entry_of([first], "int4") == known
    found = {known, entry_of([first], "int8"), entry_of([second], "int4"), entry_of([first, second], "int4")}
    state = first.stat()
    for place in (10, 299_990):  # in the header, wherever it is
        content = bytearray(300_000)
        content[place] = 1
        first.write_bytes(content)
        os.utime(first, ns=(state.st_atime_ns, state.st_mtime_ns))
        found.add(entry_of([first], "int4"))
    os.utime(first, ns=(0, 0))
    found.add(entry_of([first], "int4"))
    assert len(found) == 7


def test_the_weights_that_were_used_longest_ago_go_first(place, monkeypatch):
    monkeypatch.setenv(SIZE, "0.00001")  # 10 kB
    size = place.stat().st_size
    others = [place.with_name(f"{number}.packed") for number in range(4)]
    for number, path in enumerate(others):
        write_packed(path, PackedWeights({"codes": torch.zeros(3000, dtype=torch.uint8)}, NOTES))
        os.utime(path, (number, number))
        if number == 0:
            os.utime(path, (time.time(), time.time()))
    assert size < 3000
    left = {entry.path for entry in list_entries()}
    assert others[0] in left and others[3] in left and others[1] not in left
    write_packed(path := place.with_name("large.packed"), PackedWeights({"codes": torch.zeros(20_000)}, NOTES))
    assert not path.exists() and {entry.path for entry in list_entries()} == left
    monkeypatch.setenv(SIZE, "0")
    assert entry_of([place], "int4") is None
    monkeypatch.setenv(SIZE, "much")
    with pytest.raises(InputError, match="SPECFRAME_PACKED_GB is a number of gigabytes, not 'much'"):
        entry_of([place], "int4")


def test_a_folder_that_others_can_write_is_neither_read_nor_written(place, caplog):
    place.parent.chmod(0o777)
    before = place.stat().st_mtime_ns
    assert read_packed(place) is None and place.stat().st_mtime_ns == before
    write_packed(other := place.with_name("other.packed"), PackedWeights(TENSORS, NOTES))
    assert not other.exists()
    assert [record.message.split(" from ")[0].split(" in ")[0] for record in caplog.records] == [
        "packed weights are not read",
        "packed weights are not kept",
    ]


def test_another_users_file_is_not_read(place, caplog, monkeypatch):
    if os.getuid() == 0:
        os.chown(place, 12345, 12345)
    else:  # who cannot give a file away becomes another user
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert read_packed(place) is None and "another user's" in caplog.text


def test_a_full_or_read_only_cache_costs_a_line_and_leaves_nothing(place, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weight_cache.Path, "replace", full)
    write_packed(other := place.with_name("other.packed"), PackedWeights(TENSORS, NOTES))
    assert len(caplog.records) == 1 and "No space left on device" in caplog.text
    assert not other.exists() and [path.name for path in place.parent.iterdir()] == [place.name]
    monkeypatch.setattr(weight_cache, "weights_folder", lambda: place / "in a file")
    write_packed(place / "in a file" / "other.packed", PackedWeights(TENSORS, NOTES))
    assert len(caplog.records) == 2


def test_the_command_lists_and_clears(place, capsys):
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert "zoo://some" in shown and "int4" in shown and str(place.parent) in shown
    assert main(["cache", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["path"] == str(place) and entry["bytes"] == place.stat().st_size
    assert main(["cache", "--clear"]) == 0 and "removed" in capsys.readouterr().out
    assert not place.exists()
