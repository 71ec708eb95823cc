"""Labels without annotators: is the answer still right if the drafter's token replaces the target's?"""

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
    """Its index in the set of prompts."""
    prompt: str
    right: Callable[[str], bool]


@dataclass(frozen=True)
class Refused:
    """A drafted token that the target rejected."""

    place: int
    """Number of answer tokens before it."""
    token: int
    wanted: int
    """The target's own token at this place."""
    surprise: float
    """-log p of the token under the target, in nats."""
    feature: Tensor
    """The target's feature at the token's own node, [D]."""


@dataclass(frozen=True)
class Label:
    """A rejection, and whether the answer is right with the rejected token in the text."""

    refusal: Refused
    harmless: bool


@dataclass
class _Trial:
    """A problem between its first and its last rejection."""

    problem: Problem
    prompt: list[int]
    most: int
    """Requested number of labels."""
    dice: Random
    start: list[int] = field(default_factory=list)
    """The beginning of the answer that is being completed."""
    tried: Refused | None = None
    """The rejection whose token ends `start`; None for the target's own answer."""
    found: list[Refused] = field(default_factory=list)
    """Rejections after `start`, in the answer that is being completed."""
    answer: list[int] = field(default_factory=list)
    left: list[Refused] = field(default_factory=list)
    """Rejections in `answer` without a label."""
    labels: list[Label] = field(default_factory=list)
    solved: bool = True

    def take(self, answer: list[int], right: bool) -> None:
        """Records a completed answer: the first, or one with a rejected token, which is kept if the answer is right."""
        if self.tried is None:
            self.solved = right
        else:
            self.labels.append(Label(self.tried, right))
        if right:
            self.answer, self.left = answer, self.found

    def go_on(self) -> bool:
        """Inserts the next rejected token; returns False if no rejection is left, or enough labels were found.

        If there are more rejections than requested labels, some are skipped at random, so that the others are spread
        evenly.
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
    """Yields every problem with its labels, in order of completion; None if the target's answer is wrong.

    As in AutoJudge, the target answers greedily. Where it rejects the drafter's token, that token is inserted and the
    target completes the text. If the answer is right, the token is harmless and is kept; otherwise the target's token
    is kept. Then the next rejection after it is tried, up to `most` per problem. `run.batch` problems are mined at a
    time. The pipeline decodes greedily and exactly; the rejections in a text that is being completed are the next
    candidates, so that a label costs one answer.

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
    """Returns the request that completes the problem's next text, given the tokens after its start; None at the end."""
    while True:
        answer = [*trial.start, *tokens]
        trial.take(answer, trial.problem.right(pipeline.decode(answer)))
        if not trial.go_on():
            return None
        if len(trial.start) < pipeline.sampling.max_new_tokens and trial.start[-1] not in pipeline.ends:
            return _request(pipeline, trial)
        tokens = []


def _request(pipeline: Pipeline, trial: _Trial) -> Request:
    """Returns the request for the rest of an answer."""
    (request,) = pipeline.requests([[*trial.prompt, *trial.start]], first=trial.problem.number)
    return replace(request, max_new_tokens=pipeline.sampling.max_new_tokens - len(trial.start))


def _note(cycle: Cycle, session: Session, running: dict[int, _Trial], tap: str) -> None:
    """Records the rejections of a cycle in their trials."""
    if not cycle.draft.levels:
        return
    for row, entry in enumerate(session.cycle_rows):
        trial = running[entry.request.number]
        if (found := refusal_of(cycle, row, entry, tap, len(trial.start))) is not None:
            trial.found.append(found)


def refusal_of(cycle: Cycle, row: int, entry: Entry, tap: str, start: int) -> Refused | None:
    """Returns the row's rejected token of a cycle: the first drafted one after the accepted path; None if none was.

    The entry's tokens follow `start` others. A text that ended before the bonus has none.
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
