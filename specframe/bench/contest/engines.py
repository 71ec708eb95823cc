"""Engines that run a bench's rounds: the interface, and one process, one round after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import sleep
from typing import Any, Protocol

from specframe.bench.contest.runner import Errors, RoundResult, Runner, Step
from specframe.bench.contest.schedule import Round
from specframe.bench.contest.timing import settled_objects
from specframe.bench.figures.summary import MACHINE
from specframe.files.provenance import describe_hardware


class RoundRunner(Protocol):
    """Runs rounds. A round is never divided: all its contestants decode in one process, alternately."""

    def run(
        self, rounds: Sequence[Round], errors: Errors, listener: Callable[[Step], None]
    ) -> Generator[RoundResult, None, None]:
        """Yields the result of each round, in any order.

        Contestants in `errors`, which its owner keeps up to date meanwhile, take no part in rounds that begin later.
        Closing the generator ends the running rounds.
        """
        ...


def describe_worker(engine: str) -> dict[str, Any]:
    """Describes where this process runs rounds: the engine, and the hardware that makes times comparable."""
    hardware = describe_hardware()
    return {"engine": engine} | {key: hardware[key] for key in MACHINE}


class InProcess:
    """Runs rounds with the runner of this process."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(
        self, rounds: Sequence[Round], errors: Errors, listener: Callable[[Step], None]
    ) -> Generator[RoundResult, None, None]:
        """Yields the result of each round, in order; a warm-up comes first, and after a pause."""
        worker, pause = describe_worker("inprocess"), self._runner.terms.pause
        with settled_objects():
            self._runner.warm_up(rounds[0].questions, errors)
            repeat = rounds[0].repeat
            for this in rounds:
                if pause and this.repeat != repeat:
                    sleep(pause)
                    self._runner.warm_up(this.questions, errors)
                repeat = this.repeat
                yield self._runner.run(this, errors, listener) | {"worker": worker}
