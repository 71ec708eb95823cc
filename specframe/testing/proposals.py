"""A drafter's proposals through the life of a session, against a literal forward, and its refusals."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from specframe.components.trees.fixed import Chain
from specframe.kernel.errors import CompositionError, RecipeError, SpecframeError
from specframe.kernel.types import Committed, Frontier, Proposal
from specframe.testing.recipe_checks import check_decoding
from specframe.testing.sessions import GivenSession, GrowingTree

Wanted = Callable[[GivenSession, int, Tensor], Tensor]
"""The logits [K, V] below a drafted path, tokens [d], of a row of a session: wanted(session, row, path)."""


class ExpandingDrafter(Protocol):
    """A drafter whose proposals can be asked for node by node, as every `NeuralDrafter`."""

    def open(self, slots: int, room: int) -> None:
        """Begins a session."""

    def expand(self, frontier: Frontier) -> Proposal:
        """The logits of the next levels below each frontier node."""

    def commit(self, committed: Committed) -> None:
        """Takes in the committed tokens."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, in this order."""


def check_proposals(
    drafter: ExpandingDrafter,
    sessions: Callable[[int], GivenSession],
    wanted: Wanted,
    *,
    expansions: int = 4,
    close: float = 1e-5,
) -> None:
    """Raises AssertionError unless a bound drafter's proposals in sessions equal those of one literal forward.

    `sessions(rows)` makes a session of `rows` texts, 20 pairs each at least. Compared, within `close`: one row and
    ragged batches, padding after what is committed, drafts that are rejected, commits without a draft between them,
    rows that end, in any order, and a session after another; below ragged trees of `expansions` proposals, whose nodes
    are asked for out of order and again.
    """
    comparison = _Comparison(drafter, wanted, expansions, close)
    for rows, steps in LIVES:
        session = sessions(rows)
        drafter.open(8, 64)
        for seed, step in enumerate(steps):
            _live(drafter, session, step, padding=seed % 3)
            if step.drafts:
                comparison.compare(session, seed)


class _Step:
    """Event between two drafts: pairs that are committed, or rows that are kept."""

    def __init__(self, kind: str, numbers: Sequence[int], drafts: bool = True) -> None:
        self.kind, self.numbers, self.drafts = kind, numbers, drafts


LIVES: list[tuple[int, list[_Step]]] = [
    (1, [_Step("admit", [5]), *(_Step("advance", [count]) for count in (1, 3, 2, 4))]),
    (
        4,
        [
            _Step("admit", [5, 1, 9, 4]),
            _Step("advance", [1, 3, 2, 2]),
            _Step("keep", [3, 1, 0]),
            _Step("advance", [4, 1, 2]),
            _Step("advance", [2, 2, 2], drafts=False),
            _Step("keep", [1], drafts=False),  # gone before the last pairs were used
            _Step("advance", [3], drafts=False),
            _Step("advance", [1]),
        ],
    ),
    (2, [_Step("admit", [1, 2]), _Step("advance", [1, 1])]),
    (
        3,
        [
            _Step("admit", [4, 2, 6]),
            _Step("advance", [1, 3, 2], drafts=False),  # of unlike lengths, and then others after them
            _Step("advance", [2, 1, 3], drafts=False),
            _Step("keep", [2, 0, 1], drafts=False),
            _Step("advance", [1, 2, 1]),
            _Step("advance", [1, 1, 1], drafts=False),
            _Step("advance", [2, 2, 2]),
        ],
    ),
]
"""The number of rows, and their steps."""


def _live(drafter: ExpandingDrafter, session: GivenSession, step: _Step, padding: int) -> None:
    if step.kind == "admit":
        drafter.commit(session.admit(step.numbers, padding=padding))
    elif step.kind == "advance":
        drafter.commit(session.advance(step.numbers, padding=padding))
    else:
        drafter.keep(session.keep(step.numbers))


class _Comparison:
    def __init__(self, drafter: ExpandingDrafter, wanted: Wanted, expansions: int, close: float) -> None:
        self.drafter, self.wanted, self.expansions, self.close = drafter, wanted, expansions, close

    @torch.no_grad()
    def compare(self, session: GivenSession, seed: int) -> None:
        """Grows a ragged tree, and compares all that is proposed below its nodes."""
        row = self.wanted(session, 0, session.root[:0])
        tree, levels = GrowingTree(session.root, row.shape[-1], seed), len(row)
        self._compare(session, tree, [0])
        first = beam = [tree.descend(0, levels) for _ in range(3)]
        self._compare(session, tree, beam)
        for _ in range(self.expansions - 2):
            beam = [tree.descend(node, levels) for node in (beam[2], beam[0], beam[2])]
            self._compare(session, tree, beam)
        # A branch passed over before, where the depth allows it, and the root once more.
        self._compare(session, tree, [tree.descend(first[1], levels), 0] if self.expansions > 2 else [0])

    def _compare(self, session: GivenSession, tree: GrowingTree, nodes: Sequence[int]) -> None:
        logits = self.drafter.expand(tree.frontier(nodes)).logits
        for row in range(len(session.tokens)):
            for place, node in enumerate(nodes):
                literal = self.wanted(session, row, tree.tokens[row, tree.path(node)])
                torch.testing.assert_close(logits[row, place], literal, rtol=self.close, atol=self.close)


class Wordless:
    """A target without features: it takes any request for taps and has nothing else."""

    def request(self, taps: frozenset[str]) -> None:
        """Takes the taps."""


def check_refusals(make: Callable[[], Any], bound: Callable[[], Any]) -> None:
    """Raises AssertionError unless a neural drafter refuses bad settings, each in a sentence that names the remedy.

    That is: a target without features, being saved before it is bound, and drafting without a tree policy. `make` gives
    a new drafter, `bound` one that is bound to a target.
    """
    root = torch.zeros(1, dtype=torch.int64)
    with tempfile.TemporaryDirectory() as folder:
        _refused(lambda: make().bind(Wordless()), CompositionError, "target hf")
        _refused(lambda: make().save(Path(folder)), CompositionError, "bind")
        _refused(lambda: bound().propose(root, None, None), CompositionError, "tree policy")


def check_depth(drafter: str, levels: int) -> None:
    """Raises AssertionError unless a tree deeper than the drafter's `levels` is refused in a line that has the number.

    `drafter` is a section of a recipe, `{use: medusa, heads: 2}`. Refused is a recipe, and a pipeline that is given
    another tree; a tree that deep decodes.
    """
    pipeline = check_decoding(drafter, f"{{use: chain, depth: {levels}}}")
    deeper = pipeline.with_parts(tree=Chain(depth=levels + 1))
    cure = f"make the tree at most {levels} deep"
    _refused(lambda: check_decoding(drafter, f"{{use: chain, depth: {levels + 1}}}"), RecipeError, cure)
    _refused(lambda: deeper.generate([1, 2]), CompositionError, cure)


def _refused(attempt: Callable[[], object], error: type[SpecframeError], cure: str) -> None:
    try:
        attempt()
    except error as problem:
        assert cure in str(problem), f"the sentence {str(problem)!r} does not name {cure!r}"
    else:
        raise AssertionError(f"nothing was refused, where a sentence should name {cure!r}")
