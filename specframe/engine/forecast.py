"""What was forecast of a tree, held against what decoding with it gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.components.trees.shape import Path
from specframe.engine.clock import Clock
from specframe.engine.loop import Cycle
from specframe.engine.pipeline import Pipeline, Prompt
from specframe.kernel.interfaces import Observer, RandomSource, Sampling, TreePolicy
from specframe.kernel.types import Draw, Expand, Frontier, Proposal, TokenTree


@dataclass(frozen=True)
class Measured:
    """What decoding some prompts with a tree gave, prompt by prompt."""

    cycles: Tensor  # [P]
    reached: Tensor  # [P, D] cycles whose accepted path has a node of depth 1, 2, ...
    promised: Tensor | None  # [P, D] of as many the drafter's probabilities spoke; None for sampled trees

    @property
    def tau(self) -> float:
        """Tokens committed per cycle, the bonus included."""
        return 1 + sum(self.alpha)

    @property
    def error(self) -> float:
        """The standard error of tau, as another choice of so many prompts would have it; inf for a single one."""
        count = len(self.cycles)
        off = self.reached.sum(1) - (self.tau - 1) * self.cycles  # [P], of a ratio of sums
        spread = count / (count - 1) * float(off.square().sum()) if count > 1 else float("inf")
        return spread**0.5 / float(self.cycles.sum().clamp(min=1))

    @property
    def alpha(self) -> list[float]:
        """By depth, the share of cycles whose path got that far."""
        return self._by_depth(self.reached)

    @property
    def promise(self) -> list[float] | None:
        """By depth, the share of cycles that was to get that far by the drafter's probabilities."""
        return None if self.promised is None else self._by_depth(self.promised)

    def _by_depth(self, sums: Tensor) -> list[float]:
        return (sums.sum(0) / self.cycles.sum().clamp(min=1)).tolist()


def measure_tau(pipeline: Pipeline, prompts: Sequence[Prompt]) -> Measured:
    """What decoding the prompts with the pipeline's tree gives; its drafter grows a tree policy.

    A tree of `top` nodes has a promise of its own, OPT-Tree's (Wang et al. 2024): a node is accepted with the product
    of the drafter's probabilities along its path, at temperature 1. So it promises as many tokens as
    these products sum to, as far as the drafter knows the target's law.
    """
    tree = pipeline.parts.tree
    heard = Overheard(tree) if tree is not None and tree.draws == {Draw.TOP} else None
    if heard is not None:
        pipeline = pipeline.with_parts(tree=heard)
    depth = 1
    counts: list[tuple[list[int], Tensor, Tensor | None]] = []  # rows, how far they got, what was promised
    for rows, cycle in cycles_of(pipeline, prompts, Clock()):
        counts.append((rows, cycle.verdict.length.cpu(), heard.promise if heard is not None else None))
        depth = max(depth, cycle.draft.levels)
    cycles = torch.zeros(len(prompts), dtype=torch.float64)
    reached = torch.zeros(len(prompts), depth, dtype=torch.float64)
    promised = torch.zeros_like(reached)
    for rows, length, promise in counts:
        index = torch.tensor(rows)
        cycles[index] += 1
        reached[index] += (torch.arange(depth) < length[:, None]).double()
        if promise is not None:
            promised[index, : promise.shape[1]] += promise
    return Measured(cycles, reached, promised if heard is not None else None)


def cycles_of(pipeline: Pipeline, prompts: Sequence[Prompt], clock: Clock) -> Iterator[tuple[list[int], Cycle]]:
    """The cycles of decoding the prompts, prefills left out, each with the numbers of its rows' prompts."""
    tokens = [pipeline.encode(prompt) for prompt in prompts]
    for start in range(0, len(tokens), pipeline.run.batch):
        chunk = tokens[start : start + pipeline.run.batch]
        ledger = pipeline.open_ledger(chunk, pipeline.sampling)
        cycles = pipeline.cycles(chunk, ledger, pipeline.sampling, pipeline.run.seed, start, clock)
        next(cycles)  # the prefill's commit
        rows = [start + entry.row for entry in ledger.open]
        for cycle in cycles:
            yield rows, cycle
            rows = [start + entry.row for entry in ledger.open]


class Overheard:
    """A tree policy whose drafter's probabilities are noted."""

    def __init__(self, policy: TreePolicy) -> None:
        self.policy = policy
        self.draws, self.exact, self.nodes = policy.draws, policy.exact, policy.nodes
        if isinstance(policy, Observer):  # then so is this
            self.begin, self.hear, self.keep = policy.begin, policy.hear, policy.keep
        self.promise: Tensor | None = None
        """By depth, the probability that the last tree's rows get there, by the drafter: [B, levels] float64."""

    def grow(self, expand: Expand, root: Tensor, sampling: Sampling, random: RandomSource) -> TokenTree:
        """The policy's tree."""
        said: list[tuple[Frontier, Proposal]] = []

        def overhear(frontier: Frontier) -> Proposal:
            said.append((frontier, expand(frontier)))
            return said[-1][1]

        draft = self.policy.grow(overhear, root, sampling, random)
        self.promise = torch.tensor([promise(draft, said, row) for row in range(len(root))], dtype=torch.float64)
        return draft


def promise(draft: TokenTree, said: Sequence[tuple[Frontier, Proposal]], row: int) -> list[float]:
    """By depth, the sum over a row's nodes of the product of the drafter's probabilities along their paths.

    Nodes of the draft and of the frontiers that were expanded for it are told by their paths.
    """
    spoken: dict[Path, Tensor] = {}  # the logits [K, V] below every path that was expanded
    for frontier, proposal in said:
        paths = paths_of(frontier.tree, row)
        for place, node in enumerate(frontier.nodes[row].tolist()):
            spoken[paths[node]] = proposal.logits[row, place]
    paths, valid = paths_of(draft, row), draft.valid[row].tolist()
    log_laws: dict[tuple[Path, int], Tensor] = {}  # by the path expanded, and the level below it
    value: dict[Path, float] = {(): 1.0}
    total = [0.0] * draft.levels
    for path, real in zip(paths[1:], valid[1:], strict=True):
        if real and path not in value:
            above = next(path[:end] for end in reversed(range(len(path))) if path[:end] in spoken)
            level = len(path) - len(above) - 1
            if (above, level) not in log_laws:
                log_laws[above, level] = spoken[above][level].double().log_softmax(-1)
            value[path] = value[path[:-1]] * float(log_laws[above, level][path[-1]].exp())
            total[len(path) - 1] += value[path]
    return total


def paths_of(tree: TokenTree, row: int) -> list[Path]:
    """The tokens from below the root to each node of a row."""
    paths: list[Path] = [()]
    for token, parent in zip(tree.tokens[row].tolist()[1:], tree.parent[row].tolist()[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths
