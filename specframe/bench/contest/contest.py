"""The bench itself: prompts, rounds, and the engine that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from specframe.bench.contest.contestants import Entrant, Roster
from specframe.bench.contest.datasets import Question, spread
from specframe.bench.contest.engines import RoundRunner
from specframe.bench.contest.runner import Errors, Runner, Step
from specframe.bench.contest.schedule import Round, plan_rounds
from specframe.bench.contest.settings import Terms
from specframe.bench.figures.journal import Journal
from specframe.kernel.errors import InputError


class Contest:
    """The loaded contestants, and the prompts they decode."""

    def __init__(self, roster: Roster, terms: Terms) -> None:
        self.roster, self.terms = roster, terms
        self.runner = Runner(roster, terms)
        self.questions: list[Question] = []
        self.skipped = 0
        """Number of prompts left out because they are too long for a target's context."""
        self.errors: Errors = {}

    def choose(self, questions: Sequence[Question]) -> None:
        """Takes up to `limit` prompts, spread over sets and tasks, that fit every target's context.

        Raises InputError when none fits.
        """
        order = list(questions) if self.terms.limit is None else spread(questions, self.terms.seed)
        for question in order:
            if len(self.questions) == self.terms.limit:
                break
            rows = [self.runner.encode(key, question, []) for key in self.runner.coders]
            if all(map(self.runner.fits, self.runner.coders, rows)):
                self.questions.append(question)
            else:
                self.skipped += 1
        if not self.questions:
            raise InputError(
                f"none of the {self.skipped} prompts fits the context with max_new_tokens "
                f"{self.roster.sampling.max_new_tokens}; use a smaller --max-new-tokens or other prompts"
            )
        place = {question: index for index, question in enumerate(questions)}
        self.questions.sort(key=place.__getitem__)

    @property
    def rounds(self) -> list[Round]:
        """Returns all rounds, done or not."""
        terms = self.terms
        return plan_rounds(self.questions, batch=terms.batch, repeats=terms.repeats, turns=terms.turns)

    def remaining(self, journal: Journal) -> list[Round]:
        """The rounds that the journal does not have."""
        done = {(entry["repeat"], tuple(entry["prompts"])) for entry in journal.rounds}
        return [this for this in self.rounds if this.key not in done]

    def run(self, journal: Journal, engine: RoundRunner, listener: Callable[[Step], None] = lambda step: None) -> None:
        """Runs the rounds that the journal does not have, and notes each as it comes in.

        A contestant that fails takes no further part; its error is kept here and in the journal.
        """
        for entry in journal.rounds:
            self._note(entry["errors"])
        rounds = self.remaining(journal)
        if not rounds or not self.alive:
            return
        with closing(engine.run(rounds, self.errors, listener)) as finished:
            for entry in finished:
                journal.append(entry)
                self._note(entry["errors"])
                if not self.alive:
                    return

    @property
    def alive(self) -> list[Entrant]:
        """The contestants that have not failed."""
        return [entrant for entrant in self.roster.entrants if entrant.name not in self.errors]

    def _note(self, errors: Errors) -> None:
        for name, error in errors.items():
            self.errors.setdefault(name, error)
