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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specframe.certify.compositions.emission import Comparison, compare
from specframe.certify.compositions.enumeration import EnumerationProgress, Outcome
from specframe.certify.functions.patches import forking
from specframe.certify.functions.replay import BranchReplay, replay_outcomes
from specframe.components.targets.table import TableTarget
from specframe.kernel.errors import InputError, SpecframeError, raised_at
from specframe.kernel.types import Draw
from specframe.recipes.registry import load_local

NEARLY = 1e-6
"""A total variation below this may be float32 arithmetic in the foreign code."""

MOST_PATHS = 1000
"""A draft of more cannot be enumerated: each of its tokens is a choice."""
Law = tuple[float, ...]


@dataclass(frozen=True)
class Node:
    """A drafted token, with the path to it and the law it was drawn from."""

    path: Outcome
    q: Law


class Foreign:
    """A foreign acceptance function over small target and draft laws."""

    def __init__(self, accept: Callable[..., Any], *, vocab: int = 3, seed: int = 0, length: int = 3) -> None:
        self.accept = accept
        self.widths = _widths(accept)
        name = str(getattr(accept, "draw", "iid")).upper()
        if name not in Draw.__members__:
            options = ", ".join(draw.name.lower() for draw in Draw)
            raise InputError(f"the function's `draw` is {name.lower()!r}; use one of {options}")
        self.draw = Draw[name]
        self.vocab = vocab
        self.length = length
        target = TableTarget(vocab=vocab, seed=seed)
        drafter = TableTarget(vocab=vocab, seed=seed + 1000)

        @cache
        def p(context: Outcome) -> Law:
            return _law(target, context)

        @cache
        def q(context: Outcome) -> Law:
            return _law(drafter, context)

        self.p, self.q = p, q

    def compare(
        self, *, budget: int = 200_000, progress: Callable[[EnumerationProgress], None] | None = None
    ) -> Comparison:
        """The law of the first tokens it emits over iterated cycles, against the target's."""
        replay = BranchReplay(tolerance=NEARLY)
        with forking(replay):
            emitted = replay_outcomes(self.emit, replay=replay, budget=budget, progress=progress)
        return compare(self.target_law(), emitted)

    def emit(self, replay: BranchReplay) -> Outcome:
        """The first tokens of one branch."""
        tokens: Outcome = ()
        while len(tokens) < self.length:
            tokens = (*tokens, *self.cycle(replay, (0, *tokens)))
        return tokens[: self.length]

    def cycle(self, replay: BranchReplay, context: Outcome) -> Outcome:
        """Enumerates one draft and one call of the function after a context, and returns the tokens emitted."""
        leaves: list[list[Node]] = [[]]
        for width in self.widths:
            leaves = [[*branch, node] for branch in leaves for node in self.children(replay, context, branch, width)]
        paths = [branch[-1].path for branch in leaves]
        p = [[self.p((*context, *path[:i])) for i in range(len(path) + 1)] for path in paths]
        q = [[node.q for node in branch] for branch in leaves]
        laws = (torch.tensor(law, dtype=torch.float64) for law in (p, q))
        which, accepted, token = self.read(self.call(torch.tensor(paths), *laws), len(paths))
        return (*paths[which][:accepted], token)

    def call(self, *given: Tensor) -> Any:
        """The function's answer. Raises InputError where it raises, or ends the program."""
        try:
            return self.accept(*given)
        except SpecframeError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"the function failed at {raised_at(error)}") from error

    def children(self, replay: BranchReplay, context: Outcome, branch: list[Node], width: int) -> list[Node]:
        """The drafted children below a branch."""
        above = branch[-1].path if branch else ()
        law = self.q((*context, *above))
        found = []
        for _ in range(min(width, len(law)) if self.draw is not Draw.IID else width):
            if self.draw is Draw.TOP:
                token = max(range(len(law)), key=law.__getitem__)
                recorded = tuple(float(i == token) for i in range(len(law)))
            else:
                token, recorded = replay.choose(law), law
            found.append(Node((*above, token), recorded))
            if self.draw is not Draw.IID:
                rest = [0.0 if i == token else x for i, x in enumerate(law)]
                total = sum(rest)
                law = tuple(x / total for x in rest) if total else law
        return found

    def read(self, answer: Any, paths: int) -> tuple[int, int, int]:
        """The function's answer as (path, accepted, token)."""
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
        """Plain autoregressive sampling's law of the first tokens."""
        law: dict[Outcome, float] = {(): 1.0}
        for _ in range(self.length):
            law = {
                (*tokens, token): mass * probability
                for tokens, mass in law.items()
                for token, probability in enumerate(self.p((0, *tokens)))
            }
        return law


def load_function(where: str) -> Callable[..., Any]:
    """The function of `path.py:function`. Raises InputError or PluginError when there is none."""
    file, colon, name = where.rpartition(":")
    if not colon or not file:
        raise InputError(f"'{where}' is not of the form path.py:function")
    function = load_local(Path(file), name)
    if not callable(function):
        raise InputError(f"'{name}' of {file} is not a function")
    accept: Callable[..., Any] = function
    try:
        signature(accept).bind(None, None, None)
    except TypeError as error:
        raise InputError(f"{where} is called with (paths, p, q), which it does not take: {error}") from None
    except ValueError:
        pass  # a function in C has no signature to look at
    return accept


def _widths(accept: Callable[..., Any]) -> list[int]:
    """The function's `widths`. Raises InputError where they are no numbers of children, or too many."""
    given = getattr(accept, "widths", [1, 1])
    widths = list(given) if isinstance(given, Sequence) else []
    if not widths or not all(type(width) is int and width > 0 for width in widths):
        raise InputError(f"the function's `widths` is {given!r}; use the numbers of children per level, such as [2, 1]")
    if prod(widths) > MOST_PATHS:
        raise InputError(f"the function's `widths` is {given!r}, {prod(widths)} paths; use {MOST_PATHS} or fewer")
    return widths


def _law(table: TableTarget, context: Outcome) -> Law:
    logits: Tensor = table.logits_after(torch.tensor([context]))[0]
    return tuple(logits.double().softmax(-1).tolist())
