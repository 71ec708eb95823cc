"""One process, one round after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import sleep

from specframe.bench.contest.engines import describe_worker
from specframe.bench.contest.runner import Errors, RoundResult, Runner, Step
from specframe.bench.contest.schedule import Round
from specframe.bench.contest.timing import settled_objects


class InProcess:
    """Runs rounds with the runner of this process."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(
        self, rounds: Sequence[Round], errors: Errors, listener: Callable[[Step], None]
    ) -> Generator[RoundResult, None, None]:
        """What each round gave, in their order; a warm-up comes first, and after a pause."""
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
