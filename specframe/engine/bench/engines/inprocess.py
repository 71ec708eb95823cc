"""One process, one round after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from specframe.engine.bench.engines import describe_worker
from specframe.engine.bench.schedule import Round
from specframe.engine.bench.stage import Errors, Played, Stage, Step
from specframe.engine.bench.timing import settled_objects


class InProcess:
    """Plays rounds on the stage of this process."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def play(
        self, rounds: Sequence[Round], errors: Errors, listener: Callable[[Step], None]
    ) -> Generator[Played, None, None]:
        """What each round gave, in their order, after a warm-up."""
        worker = describe_worker("inprocess")
        with settled_objects():
            self._stage.warm_up(rounds[0].questions, errors)
            for this in rounds:
                yield self._stage.play(this, errors, listener) | {"worker": worker}
