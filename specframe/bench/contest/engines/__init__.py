"""Ways to get rounds played: in this process, or by the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from specframe.bench.contest.schedule import Round
from specframe.bench.contest.stage import Errors, Played, Step
from specframe.bench.figures.summary import MACHINE
from specframe.files.provenance import describe_hardware


class Engine(Protocol):
    """Plays rounds. A round is never divided: all its contestants decode in one process, alternately."""

    def play(
        self, rounds: Sequence[Round], errors: Errors, listener: Callable[[Step], None]
    ) -> Generator[Played, None, None]:
        """What each round gave, in whatever order they finish.

        Contestants among `errors`, which its owner keeps up to date meanwhile, take no part in rounds that
        begin from then on. Closing the generator ends what runs.
        """
        ...


def describe_worker(engine: str) -> dict[str, Any]:
    """Where this process plays rounds: the engine, and of the hardware what makes times comparable."""
    hardware = describe_hardware()
    return {"engine": engine} | {key: hardware[key] for key in MACHINE}
