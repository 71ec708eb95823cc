"""Labels without annotators: does the answer stay right when the drafter's token takes the place of the target's?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

import torch

from specframe import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from specframe import Entry, Pipeline, Request, Session
    from specframe.plugin import Cycle


@dataclass(frozen=True)
class Problem:
    """A prompt, and the test of an answer to it."""

    number: int
    """Its place in the set of prompts."""
    prompt: str
    right: Callable[[str], bool]


@dataclass(frozen=True)
class Refused:
    """A token of a draft that the target refused."""

    place: int
    """Number of tokens of the answer before it."""
    token: int
    wanted: int
    """The target's own token there."""
    surprise: float
    """Nats: -log p of the token under the target."""
    feature: Tensor
    """The target's feature at the token's own node, [D]."""


@dataclass(frozen=True)
class Label:
    """A refusal, and whether the answer is right with its token in the text."""

    refusal: Refused
    harmless: bool


@dataclass
class _Trial:
    """A problem on the way from its first refusal to its last."""

    problem: Problem
    prompt: list[int]
    most: int
    """Number of labels that are wanted."""
    dice: Random
    start: list[int] = field(default_factory=list)
    """The beginning of the answer that is being finished."""
    tried: Refused | None = None
    """The refusal whose token `start` ends with; None for the target's own answer."""
    found: list[Refused] = field(default_factory=list)
    """Refusals after `start`, in the answer that is being finished."""
    answer: list[int] = field(default_factory=list)
    left: list[Refused] = field(default_factory=list)
    """Refusals of `answer` that have no label yet."""
    labels: list[Label] = field(default_factory=list)
    solved: bool = True

    def take(self, answer: list[int], right: bool) -> None:
        """Takes the finished answer: the first one, or one with a refused token, which stays where it is right."""
        if self.tried is None:
            self.solved = right
        else:
            self.labels.append(Label(self.tried, right))
        if right:
            self.answer, self.left = answer, self.found

    def go_on(self) -> bool:
        """Puts a refused token in its place; False where no refusal is left, or no label is wanted.

        Where there are more refusals than labels wanted, some are skipped at random, as many as spread the others.
        """
        wanted = self.most - len(self.labels)
        if not self.left or wanted < 1 or not self.solved:
            return False
        index = self.dice.randrange(max(len(self.left) // wanted, 1))
        self.tried, self.left = self.left[index], self.left[index + 1 :]
        self.start = [*self.answer[: self.tried.place], self.tried.token]
        self.found = []
        return True


def mine(
    pipeline: Pipeline, tap: str, problems: Iterable[Problem], *, most: int, seed: int = 0
) -> Iterator[tuple[Problem, list[Label] | None]]:
    """Every problem with its labels, in the order in which they are done; None where the target's answer is wrong.

    As AutoJudge does: the target answers greedily. At a place where it refuses the drafter's token, that token is put
    there and the target finishes the text. If the answer is right the token was harmless and stays; otherwise the
    target's own is kept; then comes a refusal after it, `most` in each problem. `run.batch` problems are mined at a
    time. The pipeline decodes greedily and exactly; the refusals of a text that is being finished are those that come
    next, so a label costs one answer.

    Source: Garipov et al. 2025, AutoJudge, arXiv 2504.20039, Algorithm 1.
    """
    greedy = replace(pipeline, sampling=replace(pipeline.sampling, temperature=0.0))
    greedy.parts.target.request(frozenset({tap}))
    waiting, running = iter(problems), dict[int, _Trial]()
    with greedy.open_endless(watch=lambda cycle: _note(cycle, session, running, tap)) as session:
        entries: list[Entry] = []
        while True:
            ended = [entry for entry in entries if entry.ended is not None]
            entries = [entry for entry in entries if entry.ended is None]
            for entry in ended:
                if entry.error is not None:
                    raise InputError(entry.error)
                trial = running[entry.request.number]
                if (request := _advance(greedy, trial, entry.tokens)) is not None:
                    entries += session.admit([request])
                else:
                    del running[trial.problem.number]
                    yield trial.problem, trial.labels if trial.solved else None
            fresh = [
                _Trial(each, list(greedy.encode(each.prompt)), most, Random(f"{seed}/{each.number}"))
                for each in islice(waiting, session.slots - len(running))
            ]
            running |= {trial.problem.number: trial for trial in fresh}
            entries += session.admit([_request(greedy, trial) for trial in fresh])
            if not entries:
                return
            if session.live:
                session.step()


def _advance(pipeline: Pipeline, trial: _Trial, tokens: list[int]) -> Request | None:
    """The request that finishes the problem's next text, given the tokens after its start; None: it is done."""
    while True:
        answer = [*trial.start, *tokens]
        trial.take(answer, trial.problem.right(pipeline.decode(answer)))
        if not trial.go_on():
            return None
        if len(trial.start) < pipeline.sampling.max_new_tokens and trial.start[-1] not in pipeline.ends:
            return _request(pipeline, trial)
        tokens = []


def _request(pipeline: Pipeline, trial: _Trial) -> Request:
    """The request for the rest of an answer."""
    (request,) = pipeline.requests([[*trial.prompt, *trial.start]], first=trial.problem.number)
    return replace(request, max_new_tokens=pipeline.sampling.max_new_tokens - len(trial.start))


def _note(cycle: Cycle, session: Session, running: dict[int, _Trial], tap: str) -> None:
    """Notes the refusals of a cycle with their trials."""
    if not cycle.draft.levels:
        return
    for row, entry in enumerate(session.cycle_rows):
        trial = running[entry.request.number]
        if (found := refusal_of(cycle, row, entry, tap, len(trial.start))) is not None:
            trial.found.append(found)


def refusal_of(cycle: Cycle, row: int, entry: Entry, tap: str, start: int) -> Refused | None:
    """The row's refused token of a cycle: the first drafted one after the accepted path; None: none was refused.

    The entry's tokens come after `start` others. A text that ended before the bonus has none.
    """
    verdict, draft = cycle.verdict, cycle.draft
    path = [node for node in verdict.path[row].tolist() if node >= 0]
    parent, wanted = [0, *path][-1], int(verdict.bonus[row])
    children = ((draft.parent[row] == parent) & draft.valid[row]).nonzero()[:, 0]
    accepted = draft.tokens[row, path].tolist()
    if not len(children) or entry.ended not in (None, "end") or not entry.request.ends.isdisjoint(accepted):
        return None
    token = int(draft.tokens[row, children[0]])
    surprise = -float(torch.log_softmax(cycle.scores.logits[row, parent].float(), -1)[token])
    feature = cycle.scores.features[tap][row, children[0]].to("cpu", torch.float32, copy=True)
    return Refused(start + len(entry.tokens) - 1, token, wanted, surprise, feature)
