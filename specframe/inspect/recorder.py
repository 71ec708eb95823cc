"""Traces: plain frozen data, and the recorder that collects them from target, tree policy and drafter."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from specframe.components.trees.recording import WatchedTree
from specframe.decoding.session import Parts
from specframe.files.text import render_table
from specframe.kernel.capabilities import DelegatingTarget
from specframe.kernel.interfaces import Target
from specframe.kernel.sampling import SamplingRule
from specframe.kernel.types import Expand, Frontier, Prompts, Proposal, Scores, TokenTree

DrawName = Literal["top", "iid", "without_replacement"]


@dataclass(frozen=True)
class TracedNode:
    """A node of a draft; padding is left out, so indices may have gaps."""

    index: int
    parent: int
    """-1 for the root."""
    depth: int
    token: int
    text: str
    """Text that the token adds to the path above it."""
    p: float | None
    """The target's probability of it; None for the root, which is committed already."""
    q: float | None
    """The drafter's; None where no law of the drafter is known: the root, copies, caches."""
    draw: DrawName | None
    verdict: Literal["root", "accepted", "rejected"]


@dataclass(frozen=True)
class Bonus:
    """The token that follows the accepted path."""

    token: int
    text: str
    p: float


@dataclass(frozen=True)
class TracedCycle:
    """One cycle: its draft and the verdict."""

    number: int
    """Number of the cycle, from 1; the prefill is none."""
    nodes: tuple[TracedNode, ...]
    """Parents before children, siblings in the order they were tried; the root first."""
    path: tuple[int, ...]
    """Indices of the accepted nodes, from level 1 down."""
    bonus: Bonus
    kept: int
    """Tokens that went into the text; fewer than path and bonus where it ended within the cycle."""

    @property
    def cut(self) -> int:
        """Tokens of path and bonus that came after the text's end."""
        return len(self.path) + 1 - self.kept


@dataclass(frozen=True)
class TracedToken:
    """A token of the text, and where it came from."""

    token: int
    text: str
    """Text shown; empty while a character waits for the rest of its bytes."""
    source: Literal["draft", "bonus"]
    cycle: int
    """0: the first token, which the prefill gives."""


@dataclass(frozen=True)
class Trace:
    """Record of the decoding of one prompt.

    Probabilities are those of the recipe's sampling. At temperature 0 every law is one-hot and shows nothing beyond the
    verdict, so they are read at temperature 1 instead (`read_at`).
    """

    recipe: str
    parts: dict[str, str]
    """The component of each kind, such as drafter: falcon."""
    prompt: str
    temperature: float
    read_at: float
    lossless: bool
    ended: str
    """Reason for the text's end: `length`, `end` or `stop`."""
    tau: float
    alpha: tuple[float, ...]
    """Share of cycles whose path reached each depth."""
    reached: tuple[int, ...]
    """Number of cycles whose path reached each depth."""
    drafted: int
    accepted: int
    cycles: tuple[TracedCycle, ...]
    pieces: tuple[TracedToken, ...]

    def as_dict(self) -> dict[str, Any]:
        """The trace as JSON can hold it."""
        return asdict(self)

    def _repr_html_(self) -> str:
        """The cycles as a table, for notebooks: drafted nodes, and the tokens that were accepted."""
        rows = []
        for cycle in self.cycles:
            texts = {node.index: node.text for node in cycle.nodes}
            accepted = "".join(texts[index] for index in cycle.path)
            rows.append((str(cycle.number), str(len(cycle.nodes) - 1), accepted, cycle.bonus.text))
        caption = f"{self.recipe}: tau {self.tau:.2f}, {self.accepted} of {self.drafted} drafted nodes accepted"
        return render_table(("cycle", "drafted", "accepted", "bonus"), rows, caption)


Path = tuple[int, ...]
"""A node by its tokens, from level 1 down to its own; the root is ()."""


class Recorder:
    """The logits of target and drafter for the newest tree of a batch of one row.

    Only the newest: laws over a vocabulary are large, and a reader takes a few numbers from them.
    """

    def __init__(self, reading: SamplingRule) -> None:
        """Laws are made from logits by `reading`."""
        self.reading = reading
        self.logits: Tensor
        """[1, N, V], after each node; there are none before the target's first forward."""
        self._laws: dict[Path, Tensor] = {}  # [K, V] below each expanded node

    def attach(self, parts: Parts) -> Parts:
        """The parts, with this recorder between them."""
        tree: Any = None if parts.tree is None else WatchedTree(parts.tree, self._recorded)
        target: Any = RecordedTarget(parts.target, self)
        return replace(parts, target=target, tree=tree)

    def _recorded(self, expand: Expand) -> Expand:
        def run(frontier: Frontier) -> Proposal:
            proposal = expand(frontier)
            self.record(frontier, proposal)
            return proposal

        return run

    def record(self, frontier: Frontier, proposal: Proposal) -> None:
        """Records the drafter's proposals below frontier nodes."""
        levels = proposal.whole.logits.unbind(2)
        laws = torch.stack([self.reading.law(level, frontier.tree, frontier.nodes)[0] for level in levels], 1)
        paths = token_paths(frontier.tree)
        for node, law in zip(frontier.nodes[0].tolist(), laws, strict=True):  # [K, V]
            self._laws[paths[node]] = law

    def p(self, tree: TokenTree) -> Tensor:
        """The target's law after every node: [N, V]."""
        return self.reading.law(self.logits, tree)[0]

    def q(self, path: Path) -> float | None:
        """The drafter's probability of the last token of a path; None if it was not asked for it.

        Every node lies at most K levels below exactly one expanded node, K being the levels that it proposed.
        """
        for level in range(len(path)):
            laws = self._laws.get(path[: len(path) - 1 - level])
            if laws is not None:
                return float(laws[level, path[-1]]) if level < len(laws) else None
        return None

    def forget(self) -> None:
        """Makes room for the next draft."""
        self._laws.clear()


class RecordedTarget(DelegatingTarget):
    """A target whose scores are kept until the next forward; in all else it is the target."""

    _target: Target

    def __init__(self, target: Target, recorder: Recorder) -> None:
        super().__init__(target)
        self._recorder = recorder

    def admit(self, prompts: Prompts) -> tuple[TokenTree, Scores]:
        """The target's."""
        tree, scores = self._target.admit(prompts)
        self._recorder.logits = scores.logits
        return tree, scores

    def score(self, tree: TokenTree) -> Scores:
        """The target's."""
        scores = self._target.score(tree)
        self._recorder.logits = scores.logits
        return scores


def token_paths(tree: TokenTree) -> list[Path]:
    """The path of every node of the first row."""
    paths: list[Path] = [()]
    for token, parent in zip(tree.tokens[0, 1:].tolist(), tree.parent[0, 1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return paths
