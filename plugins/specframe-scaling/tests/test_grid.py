"""Options of the command become training runs, each with folders of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from specframe import InputError
from specframe_scaling.grid import SweepGrid, Trunk, read_count, read_counts, read_time


@pytest.mark.parametrize(
    ("text", "count"), [("250000", 250_000), ("50k", 50_000), ("1.5M", 1_500_000), (" 2G", 2 * 10**9)]
)
def test_counts(text, count):
    assert read_count(text) == count


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("20min", 1200), ("2h", 7200), ("1.5 h", 5400)])
def test_times(text, seconds):
    assert read_time(text) == seconds


@pytest.mark.parametrize("text", ["", "k", "-5", "5T", "0", "50k;80k"])
def test_other_texts_are_no_counts(text):
    with pytest.raises(InputError, match="no number of tokens"):
        read_counts(text)


@pytest.mark.parametrize("text", ["2", "0h", "h", "2 weeks"])
def test_other_texts_are_no_times(text):
    with pytest.raises(InputError, match="not a time"):
        read_time(text)


def test_every_size_and_seed_is_one_run_with_a_folder_for_each_count():
    grid = SweepGrid((50_000, 100_000), layers=(1, 2), width=(64,), seeds=(0, 1))
    assert [trunk.name for trunk in grid.trunks] == ["L1-W64-S0", "L2-W64-S0", "L1-W64-S1", "L2-W64-S1"]
    folders = grid.folders(Trunk(1, 64, 1), Path("out"))
    assert folders == {50_000: Path("out/L1-W64-S1/tokens-50000"), 100_000: Path("out/L1-W64-S1")}
    values = grid.training(Trunk(2, None, 1), Path("out"))
    assert values[0] == "drafter.layers=2" and "train.seed=1" in values
    assert "train.cooldown={at: [50000, 100000], share: 0.15}" in values
