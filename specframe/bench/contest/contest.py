"""The bench: prompts, rounds, and the engine that runs them, by default one process, round by round."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from time import sleep
from typing import Any

from specframe.bench.contest.contestants import Contestants, Entrant
from specframe.bench.contest.datasets import PromptSet, Question, spread
from specframe.bench.contest.runner import Errors, RoundResult, Runner, Step
from specframe.bench.contest.settings import ContestSettings, Round, plan_rounds
from specframe.bench.contest.timing import settled_objects
from specframe.bench.journal import Journal
from specframe.files.provenance import describe_hardware
from specframe.kernel.errors import InputError

MACHINE = ("processor", "cores", "threads", "accelerator")
"""Properties that machines must share for times to compare."""


RunRounds = Callable[[Sequence[Round], Errors, Callable[[Step], None]], Generator[RoundResult, None, None]]
"""A function that yields the result of each round, in any order, and calls a listener with each step.

A round is never split: all its contestants decode in one process, alternately. Contestants in the errors, which the
caller updates while rounds run, are left out of later rounds. Closing the generator ends the running rounds.
"""


def describe_worker(engine: str) -> dict[str, Any]:
    """Describes the engine and the hardware of this process; times are comparable only on equal hardware."""
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
        worker, pause = describe_worker("inprocess"), self._runner.settings.pause
        with settled_objects():
            self._runner.warm_up(rounds[0].questions, errors)
            repeat = rounds[0].repeat
            for this in rounds:
                if pause and this.repeat != repeat:
                    sleep(pause)
                    self._runner.warm_up(this.questions, errors)
                repeat = this.repeat
                yield self._runner.run(this, errors, listener) | {"worker": worker}


class Contest:
    """The loaded contestants, and the prompts they decode."""

    def __init__(self, contestants: Contestants, settings: ContestSettings) -> None:
        self.contestants, self.settings = contestants, settings
        self.runner = Runner(contestants, settings)
        self.questions: list[Question] = []
        self.skipped = 0
        """Number of prompts left out because they are too long for a target's context."""
        self.errors: Errors = {}

    def choose(self, sets: Sequence[PromptSet]) -> None:
        """Selects prompts that fit every target's context: each set's count, `limit` in total, spread over their tasks.

        Raises InputError if none fits.
        """
        questions = [question for each in sets for question in each.questions]
        set_of = {question: index for index, each in enumerate(sets) for question in each.questions}
        counts = [len(each.questions) if each.count is None else each.count for each in sets]
        everything = self.settings.limit is None and all(each.count is None for each in sets)
        for question in questions if everything else spread(questions, self.settings.seed):
            if len(self.questions) == self.settings.limit:
                break
            if not counts[set_of[question]]:
                continue
            rows = [self.runner.encode(key, question, []) for key in self.runner.coders]
            if all(map(self.runner.fits, self.runner.coders, rows)):
                self.questions.append(question)
                counts[set_of[question]] -= 1
            else:
                self.skipped += 1
        if not self.questions:
            raise InputError(
                f"none of the {self.skipped} prompts fits the context with max_new_tokens "
                f"{self.contestants.sampling.max_new_tokens}; use a smaller --max-new-tokens or other prompts"
            )
        place = {question: index for index, question in enumerate(questions)}
        self.questions.sort(key=place.__getitem__)

    @property
    def rounds(self) -> list[Round]:
        """Returns all rounds, done or not."""
        settings = self.settings
        return plan_rounds(self.questions, batch=settings.batch, repeats=settings.repeats, turns=settings.turns)

    def remaining(self, journal: Journal) -> list[Round]:
        """The rounds that the journal does not have."""
        done = {(entry["repeat"], tuple(entry["prompts"])) for entry in journal.rounds}
        return [this for this in self.rounds if this.key not in done]

    def run(
        self, journal: Journal, run_rounds: RunRounds, listener: Callable[[Step], None] = lambda step: None
    ) -> None:
        """Runs the rounds that the journal does not have, and appends each to it when done.

        A contestant that fails is left out from then on; its error is stored in the contest and the journal.
        """
        for entry in journal.rounds:
            self._note(entry["errors"])
        rounds = self.remaining(journal)
        if not rounds or not self.alive:
            return
        with closing(run_rounds(rounds, self.errors, listener)) as finished:
            for entry in finished:
                journal.append(entry)
                self._note(entry["errors"])
                if not self.alive:
                    return

    @property
    def alive(self) -> list[Entrant]:
        """The contestants that have not failed."""
        return [entrant for entrant in self.contestants.entrants if entrant.name not in self.errors]

    def _note(self, errors: Errors) -> None:
        for name, error in errors.items():
            self.errors.setdefault(name, error)
