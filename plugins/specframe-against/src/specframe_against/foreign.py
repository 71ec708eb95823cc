"""The exact law of other people's acceptance code, unmodified: `specframe certify --against FILE:FUNCTION`.

The function is called as `accept(candidates, p, q)`, in float64, for one sequence:

    candidates  [paths, depth] int64    the draft's root-to-leaf paths; a chain is one path
    p           [paths, depth + 1, V]   the target's law before the first token of each path, and after each
    q           [paths, depth, V]       the law that each token was drawn from

and gives back `(accepted, token)` or, with several paths, `(path, accepted, token)`: how many tokens of
the path are accepted, and the token that follows them. Two attributes of it define what is drafted:
`accept.widths` (children per level; default [1, 1], a chain of two) and `accept.draw` ("iid",
"without_replacement" or "top"; default "iid").

To wrap foreign code, put a file in the same folder that imports the function and translates:

    from their_project.sampling import their_verify

    def accept(candidates, p, q):
        accepted, token = their_verify(candidates[0], q[0].log(), p[0].log(), temperature=1.0)
        return int(accepted), int(token)

    accept.widths = [1, 1, 1]

While it runs, torch.rand, random.random, numpy.random.rand and their kin give numbers that fork the run at
each comparison, and torch.multinomial, torch.bernoulli and the choice functions fork over their outcomes.
Exponential races (`(p / noise.exponential_()).argmax()`) and Gumbel noise fork over the winner.
A comparison with equality counts as one without: equality has probability 0.

What cannot fork, such as a compiled kernel, is sampled instead (`--samples`): its random numbers are its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
import torch

from specframe import InputError
from specframe.plugin import Draw, Enumeration, EnumerationProgress
from specframe_against.fit import fit_counts
from specframe_against.patches import forking
from specframe_against.replay import BranchReplay, Outcome, replay_outcomes

MOST_PATHS = 1000
"""Maximum number of paths of a draft that can be enumerated: each of its tokens is a choice."""
SHOWN = 1000
"""Number of runs between two progress reports."""
Law = tuple[float, ...]


Choose = Callable[[Sequence[float]], int]
"""Makes a choice outside of the function, such as the drafted token: an option, by weights that form a law."""


@dataclass(frozen=True)
class Node:
    """A drafted token, with its path and the law it was drawn from."""

    path: Outcome
    q: Law


class Foreign:
    """A foreign acceptance function over small target and draft laws."""

    def __init__(
        self,
        accept: Callable[..., Any],
        p: Callable[[Outcome], Law],
        q: Callable[[Outcome], Law],
        *,
        vocab: int,
        length: int,
        tolerance: float,
    ) -> None:
        """Wraps the function over the target's law `p` and the drafter's `q` of the token after a context.

        The joint law of the first `length` tokens is enumerated; choices are drawn from weights that sum to 1 within
        the tolerance. Raises InputError for attributes of the function that define no draft.
        """
        self.accept = accept
        self.widths = _widths(accept)
        name = str(getattr(accept, "draw", "iid")).upper()
        if name not in Draw.__members__:
            options = ", ".join(draw.name.lower() for draw in Draw)
            raise InputError(f"the function's `draw` is {name.lower()!r}; use one of {options}")
        self.draw = Draw[name]
        self.vocab, self.length, self.tolerance = vocab, length, tolerance
        self.p, self.q = cache(p), cache(q)

    def enumerate(self, *, budget: int, progress: Callable[[EnumerationProgress], None] | None = None) -> Enumeration:
        """Enumerates the law of the first tokens emitted over repeated cycles."""
        replay = BranchReplay(tolerance=self.tolerance)
        with forking(replay):
            return replay_outcomes(
                lambda replay: self.emit(replay.choose), replay=replay, budget=budget, progress=progress
            )

    def sample(self, samples: int, seed: int = 0, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """Tests the first tokens emitted in runs with the function's own random numbers; returns `FitTest.as_dict`.

        `progress` is called with the number of runs so far. Global generators are seeded, and restored afterwards.
        """
        dice, counts = random.Random(seed), Counter[Outcome]()
        with _seeded(seed):
            for done in range(samples):
                counts[self.emit(partial(_drawn, dice))] += 1
                if progress is not None and done % SHOWN == 0:
                    progress(done)
        fit = fit_counts(counts, self.target_law())
        return {**fit.as_dict(), "tokens": self.length, "refused": fit.refused}

    def emit(self, choose: Choose) -> Outcome:
        """Returns the first tokens of one branch."""
        tokens: Outcome = ()
        while len(tokens) < self.length:
            tokens = (*tokens, *self.cycle(choose, (0, *tokens)))
        return tokens[: self.length]

    def cycle(self, choose: Choose, context: Outcome) -> Outcome:
        """Enumerates one draft and one call of the function after a context, and returns the tokens emitted."""
        leaves: list[list[Node]] = [[]]
        for width in self.widths:
            leaves = [[*branch, node] for branch in leaves for node in self.children(choose, context, branch, width)]
        paths = [branch[-1].path for branch in leaves]
        p = [[self.p((*context, *path[:i])) for i in range(len(path) + 1)] for path in paths]
        q = [[node.q for node in branch] for branch in leaves]
        laws = (torch.tensor(law, dtype=torch.float64) for law in (p, q))
        which, accepted, token = self.read(self.accept(torch.tensor(paths), *laws), len(paths))
        return (*paths[which][:accepted], token)

    def children(self, choose: Choose, context: Outcome, branch: list[Node], width: int) -> list[Node]:
        """Returns the drafted children below a branch."""
        prefix = branch[-1].path if branch else ()
        law = self.q((*context, *prefix))
        found = []
        for _ in range(min(width, len(law)) if self.draw is not Draw.IID else width):
            if self.draw is Draw.TOP:
                token = max(range(len(law)), key=law.__getitem__)
                recorded = tuple(float(i == token) for i in range(len(law)))
            else:
                token, recorded = choose(law), law
            found.append(Node((*prefix, token), recorded))
            if self.draw is not Draw.IID:
                rest = [0.0 if i == token else x for i, x in enumerate(law)]
                total = sum(rest)
                law = tuple(x / total for x in rest) if total else law
        return found

    def read(self, answer: Any, paths: int) -> tuple[int, int, int]:
        """Parses the function's answer as (path, accepted, token)."""
        try:
            numbers = [int(part) for part in answer]
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"the function gave back {answer!r}; (accepted, token) or (path, accepted, token) is needed"
            ) from error
        which, accepted, token = [0, *numbers] if len(numbers) == 2 else numbers
        depth = len(self.widths)
        if not (0 <= which < paths and 0 <= accepted <= depth and 0 <= token < self.vocab):
            raise InputError(
                f"the function gave back path {which}, {accepted} accepted, token {token}; there are {paths} "
                f"paths of {depth} tokens over a vocabulary of {self.vocab}"
            )
        return which, accepted, token

    def target_law(self) -> dict[Outcome, float]:
        """Returns the law of the first tokens under plain autoregressive sampling."""
        law: dict[Outcome, float] = {(): 1.0}
        for _ in range(self.length):
            law = {
                (*tokens, token): mass * probability
                for tokens, mass in law.items()
                for token, probability in enumerate(self.p((0, *tokens)))
            }
        return law


def _widths(accept: Callable[..., Any]) -> list[int]:
    """Returns the function's `widths`. Raises InputError if they are not numbers of children, or too many."""
    given = getattr(accept, "widths", [1, 1])
    widths = list(given) if isinstance(given, Sequence) else []
    if not widths or not all(type(width) is int and width > 0 for width in widths):
        raise InputError(f"the function's `widths` is {given!r}; use the numbers of children per level, such as [2, 1]")
    if prod(widths) > MOST_PATHS:
        raise InputError(f"the function's `widths` is {given!r}, {prod(widths)} paths; use {MOST_PATHS} or fewer")
    return widths


def _drawn(dice: random.Random, weights: Sequence[float]) -> int:
    return dice.choices(range(len(weights)), weights)[0]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators of torch, random and numpy, which foreign code uses unless it has its own."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
