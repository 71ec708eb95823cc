"""Diagnoses from figures: the first depth that falls short of what training recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specframe.cli.doctor import show
from specframe.inspect.doctor import Diagnosis
from specframe.inspect.doctor_variants import TargetReading

SOUND = Diagnosis(
    alpha=[0.7, 0.5],
    tau=2.0,
    chance=0.1,
    positions=400,
    readings=[TargetReading("as it is", ("last",), agreement=0.5, depths=(0.6, 0.6))],
    chain=[0.6, 0.6, 0.6],
    recorded=[0.7, 0.7, 0.7, 0.7],
)


def test_what_agrees_about_as_recorded_is_sound() -> None:
    assert SOUND.finding is None
    assert replace(SOUND, recorded=[]).finding is None


@pytest.mark.parametrize(
    ("chain", "finding"),
    [
        ([0.3, 0.6, 0.6], "its training recorded an agreement of 0.70, but here it is 0.30"),
        ([0.6, 0.1, 0.0], "it agrees as recorded at depth 1, but 0.10 instead of 0.70 at depth 2"),
        ([0.6, 0.6, 0.2], "it agrees as recorded at depth 2, but 0.20 instead of 0.70 at depth 3"),
    ],
)
def test_the_first_depth_that_falls_short_is_named(chain: list[float], finding: str) -> None:
    assert finding in (replace(SOUND, chain=chain).finding or "")


def test_a_depth_that_few_chains_reach_is_not_judged() -> None:
    assert replace(SOUND, positions=100, chain=[0.6, 0.0], tau=3.0).finding is None


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"steps": 2}, "no verdict after 2 steps of training: at least 50 are needed"),
        ({"positions": 95}, "no verdict from 95 positions of text: give more prompts, for at least 100"),
        ({"steps": 50, "positions": 100}, None),
    ],
)
def test_little_evidence_gives_no_verdict(changes: dict[str, int], doubt: str | None) -> None:
    found = replace(SOUND, **changes, chain=[0.1])  # type: ignore[arg-type]
    assert found.doubt == doubt and show(found)[-1] == (doubt or found.finding)
    assert (found.finding is None) == (doubt is not None)


def test_another_reading_that_fits_comes_first() -> None:
    other = TargetReading("layers +1", ("layer.3",), "correct them", agreement=0.7, depths=(0.7, 0.7), error=0.01)
    found = replace(SOUND, readings=[*SOUND.readings, other], chain=[0.0])
    assert found.finding == "these weights fit another reading of the target better, layers +1: correct them"
    unsure = replace(other, error=0.1)
    assert replace(SOUND, readings=[*SOUND.readings, unsure]).finding is None
