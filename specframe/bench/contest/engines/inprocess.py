"""One process, one round after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import sleep

from specframe.bench.contest.engines import describe_worker
from specframe.bench.contest.schedule import Round
from specframe.bench.contest.stage import Errors, Played, Stage, Step
from specframe.bench.contest.timing import settled_objects


class InProcess:
    """Plays rounds on the stage of this process."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def play(
        self, rounds: Sequence[Round], errors: Errors, listener: Callable[[Step], None]
    ) -> Generator[Played, None, None]:
        """What each round gave, in their order; a warm-up comes first, and after a pause."""
        worker, pause = describe_worker("inprocess"), self._stage.terms.pause
        with settled_objects():
            self._stage.warm_up(rounds[0].questions, errors)
            repeat = rounds[0].repeat
            for this in rounds:
                if pause and this.repeat != repeat:
                    sleep(pause)
                    self._stage.warm_up(this.questions, errors)
                repeat = this.repeat
                yield self._stage.play(this, errors, listener) | {"worker": worker}
