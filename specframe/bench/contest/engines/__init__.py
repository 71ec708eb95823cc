"""Ways to run rounds: in this process, or by the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from specframe.bench.contest.runner import Errors, RoundResult, Step
from specframe.bench.contest.schedule import Round
from specframe.bench.figures.summary import MACHINE
from specframe.files.provenance import describe_hardware


class Engine(Protocol):
    """Runs rounds. A round is never divided: all its contestants decode in one process, alternately."""

    def run(
        self, rounds: Sequence[Round], errors: Errors, listener: Callable[[Step], None]
    ) -> Generator[RoundResult, None, None]:
        """What each round gave, in whatever order they finish.

        Contestants among `errors`, which its owner keeps up to date meanwhile, take no part in rounds that
        begin from then on. Closing the generator ends what runs.
        """
        ...


def describe_worker(engine: str) -> dict[str, Any]:
    """Where this process runs rounds: the engine, and of the hardware what makes times comparable."""
    hardware = describe_hardware()
    return {"engine": engine} | {key: hardware[key] for key in MACHINE}
