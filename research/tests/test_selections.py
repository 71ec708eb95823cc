"""The tables of drafts on a part of long prompts, and the times in their picture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "research/analysis/long"), str(ROOT / "docs/pictures")]

import contexts  # noqa: E402
import selections  # noqa: E402


def record(way: str, seconds: float, source: str = "a", file: str = "long-1000", **more):
    whole = {"way": way, "seconds": seconds, "tokens": 10, "cycles": 5, "accepted": [4, 1], "reached": [5, 4]}
    return {**whole, "file": file, "dtype": "bf16", "task": "code", "source": source, **more}


RECORDS = [
    record("plain", 0.2), record("plain", 0.1), record("plain", 0.4, "b"), record("window 512", 0.05),
    record("window 512", 0.2, "b"), record("window 512", 0.25, file="long-4000"),
    record("plain", 0.5, file="long-4000"),
]  # fmt: skip


def test_acceptance_leaves_out_what_stands_after_a_refused_token():
    found = selections.acceptance_table(RECORDS).splitlines()
    assert found[2] == "| code, 1000 | `window` |  |  | 0.56 |  |" and len(found) == 4


def test_a_gain_is_against_the_same_prompt_s_fastest_plain_decoding():
    lines = selections.time_table(RECORDS).splitlines()
    assert "| bf16 | 1000 | window 512 | 2 | 2.00 | 12.5 | 2.00 (2.00 to 2.00) |" in lines
    assert [line.split(" | ")[1] for line in lines[2:]] == ["1000", "1000", "4000", "4000"]


def test_a_picture_has_the_median_over_prompts_of_the_shortest_time():
    found = contexts.times(RECORDS, "bf16")
    assert found["plain"] == {1000: pytest.approx(25), 4000: pytest.approx(50)}
    assert found["window 512"] == {1000: pytest.approx(12.5), 4000: pytest.approx(25)}


def test_repetition_is_counted_by_eight_tokens():
    assert selections.repeated(range(20)) == 0
    assert selections.repeated([1, 2, 3, 4] * 5) == pytest.approx(1 - 4 / 13)
