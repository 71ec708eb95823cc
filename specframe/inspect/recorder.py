"""Traces as plain frozen data, and the recorder that collects them from target, tree policy and drafter."""

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
    """A node of a draft. Padding is omitted, so indices may have gaps."""

    index: int
    parent: int
    """-1 for the root."""
    depth: int
    token: int
    text: str
    """Text that the token adds to the path above it."""
    p: float | None
    """The target's probability; None for the root, which is already committed."""
    q: float | None
    """The drafter's probability; None if its law is unknown: the root, copies, caches."""
    draw: DrawName | None
    verdict: Literal["root", "accepted", "rejected"]


@dataclass(frozen=True)
class Bonus:
    """The token after the accepted path."""

    token: int
    text: str
    p: float


@dataclass(frozen=True)
class TracedCycle:
    """One cycle: its draft and verdict."""

    number: int
    """Number of the cycle, from 1; the prefill is not counted."""
    nodes: tuple[TracedNode, ...]
    """The root first; parents before children, siblings in the order in which they were tried."""
    path: tuple[int, ...]
    """Indices of the accepted nodes, from level 1 down."""
    bonus: Bonus
    kept: int
    """Number of tokens added to the text; fewer than path and bonus if the text ended within the cycle."""

    @property
    def cut(self) -> int:
        """Number of tokens of path and bonus after the end of the text."""
        return len(self.path) + 1 - self.kept


@dataclass(frozen=True)
class TracedToken:
    """A token of the text and its origin."""

    token: int
    text: str
    """Displayed text; empty while a character is incomplete."""
    source: Literal["draft", "bonus"]
    cycle: int
    """Number of the cycle; 0 for the first token, which comes from the prefill."""


@dataclass(frozen=True)
class Trace:
    """The record of decoding one prompt.

    Probabilities follow the recipe's sampling settings. At temperature 0, where every law is one-hot, they are read at
    temperature 1 instead (`read_at`).
    """

    recipe: str
    parts: dict[str, str]
    """Component name by kind, for example drafter: falcon."""
    prompt: str
    temperature: float
    read_at: float
    lossless: bool
    ended: str
    """Reason for the end of the text: `length`, `end` or `stop`."""
    tau: float
    alpha: tuple[float, ...]
    """Share of cycles whose accepted path reached each depth."""
    reached: tuple[int, ...]
    """Number of cycles whose accepted path reached each depth."""
    drafted: int
    accepted: int
    cycles: tuple[TracedCycle, ...]
    pieces: tuple[TracedToken, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns the trace as data for JSON."""
        return asdict(self)

    def _repr_html_(self) -> str:
        """Returns the cycles as an HTML table for notebooks, with drafted nodes and accepted tokens."""
        rows = []
        for cycle in self.cycles:
            texts = {node.index: node.text for node in cycle.nodes}
            accepted = "".join(texts[index] for index in cycle.path)
            rows.append((str(cycle.number), str(len(cycle.nodes) - 1), accepted, cycle.bonus.text))
        caption = f"{self.recipe}: tau {self.tau:.2f}, {self.accepted} of {self.drafted} drafted nodes accepted"
        return render_table(("cycle", "drafted", "accepted", "bonus"), rows, caption)


Path = tuple[int, ...]
"""A node as the tokens from level 1 down to it; () is the root."""


class Recorder:
    """Logits of target and drafter for the latest tree, for a batch of one row.

    Only the latest are kept: laws over a vocabulary are large, and a trace needs a few numbers of them.
    """

    def __init__(self, reading: SamplingRule) -> None:
        """Creates a recorder that turns logits into laws by `reading`."""
        self.reading = reading
        self.logits: Tensor
        """Logits after each node, [1, N, V]; unset before the target's first forward pass."""
        self._laws: dict[Path, Tensor] = {}  # [K, V] below each expanded node

    def attach(self, parts: Parts) -> Parts:
        """Returns the parts with this recorder between them."""
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
        """Records the drafter's proposals for children of frontier nodes."""
        levels = proposal.whole.logits.unbind(2)
        laws = torch.stack([self.reading.law(level, frontier.tree, frontier.nodes)[0] for level in levels], 1)
        paths = token_paths(frontier.tree)
        for node, law in zip(frontier.nodes[0].tolist(), laws, strict=True):  # [K, V]
            self._laws[paths[node]] = law

    def p(self, tree: TokenTree) -> Tensor:
        """Returns the target's law after every node, [N, V]."""
        return self.reading.law(self.logits, tree)[0]

    def q(self, path: Path) -> float | None:
        """Returns the drafter's probability of the last token of a path; None if the drafter was not asked for it.

        Every node lies at most K levels below exactly one expanded node, where K is the number of levels it proposed.
        """
        for level in range(len(path)):
            laws = self._laws.get(path[: len(path) - 1 - level])
            if laws is not None:
                return float(laws[level, path[-1]]) if level < len(laws) else None
        return None

    def forget(self) -> None:
        """Drops the records of the last draft."""
        self._laws.clear()


class RecordedTarget(DelegatingTarget):
    """A target that records its scores until the next forward pass and otherwise delegates to the wrapped target."""

    _target: Target

    def __init__(self, target: Target, recorder: Recorder) -> None:
        super().__init__(target)
        self._recorder = recorder

    def admit(self, prompts: Prompts) -> tuple[TokenTree, Scores]:
        """Admits the prompts to the target and records its scores."""
        tree, scores = self._target.admit(prompts)
        self._recorder.logits = scores.logits
        return tree, scores

    def score(self, tree: TokenTree) -> Scores:
        """Scores the tree with the target and records the result."""
        scores = self._target.score(tree)
        self._recorder.logits = scores.logits
        return scores


def token_paths(tree: TokenTree) -> list[Path]:
    """Returns the path of every node of the first row."""
    paths: list[Path] = [()]
    for token, parent in zip(tree.tokens[0, 1:].tolist(), tree.parent[0, 1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return paths
