"""What a drafter is worth: how often each of its choices is accepted, and what the forwards cost.

The two tables from which `specframe.components.trees.optimal` computes the best tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from specframe.components.drafters.none import NoDrafter
from specframe.components.trees.fixed import Fixed
from specframe.components.trees.optimal import Choice, fastest_shape
from specframe.engine.clock import Clock
from specframe.engine.loop import Cycle
from specframe.engine.pipeline import Pipeline, Prompt
from specframe.engine.provenance import write_json
from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw


@dataclass
class Ranks:
    """Counts, over cycles, of which sibling the verifier accepted."""

    reached: list[int] = field(default_factory=list)
    """reached[d]: how often the accepted path came to a node of depth d that has children."""
    accepted: list[list[int]] = field(default_factory=list)
    """accepted[d][r]: how often it went on to the child of rank r, its place among its siblings."""

    def add(self, cycle: Cycle) -> None:
        """Counts one cycle's rows."""
        draft, slots = cycle.draft, cycle.verdict.slots  # slots [B, A + 1]: the root, then the path
        index = torch.arange(draft.tokens.shape[1], device=slots.device)
        ends = slots.new_full(slots[:, :1].shape, -1)
        for level, (node, chosen) in enumerate(zip(slots.T, torch.cat([slots[:, 1:], ends], 1).T, strict=True)):
            children = (draft.parent == node[:, None]) & draft.valid & (node >= 0)[:, None]  # [B, N]
            rank = (children & (index < chosen[:, None])).sum(1).where(chosen >= 0, -1)  # [B]
            for siblings, place in torch.stack([children.sum(1), rank], 1).tolist():
                if siblings:
                    self._count(level, place, siblings)

    def _count(self, level: int, place: int, siblings: int) -> None:
        while len(self.reached) <= level:
            self.reached.append(0)
            self.accepted.append([])
        self.reached[level] += 1
        row = self.accepted[level]
        row.extend([0] * (siblings - len(row)))
        if place >= 0:
            row[place] += 1

    @property
    def table(self) -> list[list[float]]:
        """By level and rank, the share of visits to the level above that went on to this child."""
        return [[n / visits for n in row] for row, visits in zip(self.accepted, self.reached, strict=True)]


@dataclass(frozen=True)
class Profile:
    """What was measured."""

    ranks: Ranks
    draft_seconds: float
    """A drafter forward."""
    block: int
    """How many levels a forward proposes, as far as a draft of the measured depth shows it."""
    target_seconds: dict[int, float]
    """The target's forward, by the number of nodes, the root included."""

    def fastest(self, depth: int) -> Choice:
        """The tree of at most `depth` levels, of the sizes that were timed, that promises most tokens per second."""
        return fastest_shape(
            self.ranks.table,
            draft_seconds=self.draft_seconds,
            target_seconds=self.target_seconds,
            depth=depth,
            block=self.block,
        )

    def write(self, path: Path) -> None:
        """Writes the acceptance table, with its counts, and the costs, as trees `sequoia` and `adaptive` read them."""
        write_json(
            path,
            {
                "acceptance": self.ranks.table,
                "reached": self.ranks.reached,
                "draft_seconds": self.draft_seconds,
                "block": self.block,
                "target_seconds": self.target_seconds,
            },
        )


def profile(
    pipeline: Pipeline,
    prompts: Sequence[Prompt],
    *,
    depth: int = 4,
    width: int = 8,
    draw: Draw = Draw.TOP,
    sizes: Iterable[int] = (),
) -> Profile:
    """How often each choice of the pipeline's drafter is accepted on the prompts, and what forwards cost.

    Decodes with a comb: a spine of first choices to `depth`, with `width` children at each of its nodes. So
    deeper levels are measured where the first choices were right. `draw` is how the children are drawn,
    which the recipe's verifier must accept. Each of `sizes` is the node count of a tree to be timed, root
    included, 1 being plain decoding; the comb itself always is. Raises InputError for a drafter that makes its
    own trees.
    """
    if pipeline.parts.tree is None:
        raise InputError("this drafter makes its own trees: there is no shape to choose for it")
    paths = [".".join(["0"] * level + [str(rank)]) for level in range(depth) for rank in range(width)]
    comb = Fixed(paths=paths, draw=draw)
    if refused := comb.draws - pipeline.parts.verifier.accepts:
        raise InputError(
            f"the recipe's verifier does not accept nodes drawn {', '.join(d.name.lower() for d in refused)}"
        )
    ranks = Ranks()
    clock = _decode(pipeline.with_parts(tree=comb), prompts, ranks)
    seconds = {comb.nodes: _each(clock, "score")}
    for size in sizes:
        if size == 1:
            timed = pipeline.with_parts(drafter=NoDrafter(), tree=None)
        else:
            timed = pipeline.with_parts(tree=Fixed(paths=[str(rank) for rank in range(size - 1)], draw=draw))
        seconds[size] = _each(_decode(timed, prompts, Ranks()), "score")
    forwards = round(clock.calls["drafter"] / max(clock.calls["draft"], 1))
    return Profile(ranks, _each(clock, "drafter"), -(-depth // max(forwards, 1)), seconds)


def _decode(pipeline: Pipeline, prompts: Sequence[Prompt], ranks: Ranks) -> Clock:
    rows = [pipeline.encode(prompt) for prompt in prompts]
    clock = Clock.on(getattr(pipeline.parts.target, "device", None))
    for start in range(0, len(rows), pipeline.run.batch):
        chunk = rows[start : start + pipeline.run.batch]
        ledger = pipeline.open_ledger(chunk, pipeline.sampling)
        cycles = pipeline.cycles(chunk, ledger, pipeline.sampling, pipeline.run.seed, start, clock)
        next(cycles)  # the prefill's commit
        for cycle in cycles:
            ranks.add(cycle)
    clock.settle()
    return clock


def _each(clock: Clock, name: str) -> float:
    return clock.seconds[name] / max(clock.calls[name], 1)
