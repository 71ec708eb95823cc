"""Profile of a drafter: how often each of its choices is accepted, and the costs of the forwards.

From these two tables `specframe.components.trees.optimal` computes the best tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path as FilePath
from statistics import fmean, median
from typing import Any

import torch

from specframe.components.drafters.none import NoDrafter
from specframe.components.trees.calibration import Calibration, Fit
from specframe.components.trees.fixed import Fixed
from specframe.components.trees.optimal import Choice, fastest_shape
from specframe.components.trees.shape import Path, dotted
from specframe.decoding.clock import PHASES, Clock
from specframe.decoding.pipeline import Pipeline, Prompt, load
from specframe.files.provenance import write_json
from specframe.inspect.drafting import DraftTimes, paired_medians
from specframe.inspect.forecast import ForecastTree, cycles_of
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import text_of
from specframe.kernel.types import Cycle, Draw

CHAIN = 0
"""The chain in which the drafter is timed, among numbers of nodes."""


@dataclass
class Shares:
    """Counts, level by level, of visits to nodes with children and of the child that was accepted."""

    visits: list[list[int]] = field(default_factory=list)
    """visits[d][r]: how often the accepted path came to a node of depth d that has a child of rank r."""
    accepted: list[list[int]] = field(default_factory=list)
    """accepted[d][r]: how often it went on to that child. A rank is a child's place among its siblings."""

    def count(self, level: int, siblings: int, place: int) -> None:
        """Counts a visit to a node with `children` children; `place` is the accepted one, -1 for none."""
        for rows in (self.visits, self.accepted):
            rows.extend([] for _ in range(level + 1 - len(rows)))
            rows[level].extend([0] * (siblings - len(rows[level])))
        for rank in range(siblings):
            self.visits[level][rank] += 1
        if place >= 0:
            self.accepted[level][place] += 1

    @property
    def table(self) -> list[list[float]]:
        """Share of visits to nodes with such a child that went on to it, by level and rank."""
        pairs = zip(self.accepted, self.visits, strict=True)
        return [[n / visits for n, visits in zip(*rows, strict=True)] for rows in pairs]


@dataclass
class Ranks:
    """Counts over cycles of the siblings that the verifier accepted, by rank.

    Nodes after first choices alone are counted apart from those after another choice. There the target did not follow
    the drafter's first choice, so the text is harder, and later nodes are accepted less often.
    """

    top: Shares = field(default_factory=Shares)
    off_path: Shares = field(default_factory=Shares)
    """Nodes with another choice than the first above them, so none of the first level."""

    def add(self, cycle: Cycle) -> None:
        """Counts one cycle's rows."""
        draft, slots = cycle.draft, cycle.verdict.slots  # slots [B, A + 1]: the root, then the path
        index = torch.arange(draft.tokens.shape[1], device=slots.device)
        ends = slots.new_full(slots[:, :1].shape, -1)
        off_path = torch.zeros_like(slots[:, 0])  # [B]
        for level, (node, chosen) in enumerate(zip(slots.T, torch.cat([slots[:, 1:], ends], 1).T, strict=True)):
            children = (draft.parent == node[:, None]) & draft.valid & (node >= 0)[:, None]  # [B, N]
            rank = (children & (index < chosen[:, None])).sum(1).where(chosen >= 0, -1)  # [B]
            for siblings, place, off in torch.stack([children.sum(1), rank, off_path], 1).tolist():
                if siblings:
                    (self.off_path if off else self.top).count(level, siblings, place)
            off_path = off_path | (rank > 0)

    @property
    def table(self) -> list[list[float]]:
        """The shares of nodes after first choices: by level and rank, of all visits those that went on to it."""
        return self.top.table

    @property
    def reached(self) -> list[int]:
        """Number of times, by level, that the accepted path came to a node after first choices that has children."""
        return [max(row, default=0) for row in self.top.visits]


@dataclass(frozen=True)
class Profile:
    """Measurements of a drafter."""

    ranks: Ranks
    draft_seconds: float
    """A drafter's forward pass, that over a prompt left out."""
    block: int
    """Number of levels that a forward proposes, as far as a draft of the measured depth shows it."""
    cycle_seconds: dict[int, float]
    """A cycle without the drafter's forwards, by the number of nodes, the root included."""
    rows: int
    """Number of rows decoded together."""
    context: float
    """Number of tokens of the longest row, on average over cycles."""
    calibration: Calibration
    """The powers of the drafter's laws that make them the target's, at the temperature decoded with."""
    read_seconds: float = 0.0
    """Seconds that a token of a prompt adds to the drafter's first pass."""

    def fastest(self, depth: int, cycle_seconds: Mapping[int, float] | None = None) -> Choice:
        """The tree of at most `depth` levels of the most tokens per second, of the sizes that were timed.

        `cycle_seconds` are costs of a cycle, by size, in place of those measured.
        """
        return fastest_shape(
            self.ranks.table,
            draft_seconds=self.draft_seconds,
            cycle_seconds=self.cycle_seconds if cycle_seconds is None else cycle_seconds,
            depth=depth,
            block=self.block,
            off_path=self.ranks.off_path.table,
        )

    def write(self, path: FilePath) -> None:
        """Writes the acceptance tables, with counts, the costs and the calibration, for trees to read."""
        write_json(path, self.as_data())

    def as_data(self) -> dict[str, Any]:
        """Returns the contents of `write` as plain data; times are in seconds."""
        return {
            "acceptance": self.ranks.table,
            "off_path": self.ranks.off_path.table,
            "reached": self.ranks.reached,
            "draft_seconds": self.draft_seconds,
            "read_seconds": self.read_seconds,
            "block": self.block,
            "rows": self.rows,
            "context": self.context,
            "cycle_seconds": self.cycle_seconds,
            "calibration": list(self.calibration.powers),
        }


def profile(
    pipeline: Pipeline | str | FilePath,
    prompts: Sequence[Prompt],
    *,
    depth: int = 4,
    width: int = 8,
    draw: Draw = Draw.TOP,
    sizes: Iterable[int] = (),
) -> Profile:
    """Measures how often each choice of the pipeline's drafter is accepted on the prompts, and the costs of forwards.

    A recipe, by file or name, is loaded first.
    Decodes with a comb: a spine of first choices to `depth`, with `width` children at each of its nodes, and fewer
    below those. So deeper levels are measured mostly where the first choices were right, and separately where they were
    not. `draw` is how the children are drawn, which the recipe's verifier must accept. Each of `sizes` is the node
    count of a tree to be timed, root included, 1 being plain decoding; the comb is always timed. The drafter's forward
    pass is timed in a chain, which a drafter may search in one call; of the comb every proposal is read. The trees take
    turns, prompt by prompt, because a machine drifts; what is reported are `paired_medians`. Raises InputError for a
    drafter that makes its own trees.
    """
    if isinstance(pipeline, str | FilePath):
        pipeline = load(pipeline)
    if pipeline.parts.tree is None:
        raise InputError("this drafter makes its own trees: there is no shape to choose for it")
    comb = Fixed(paths=[dotted(path) for path in comb_paths(depth, width)], draw=draw)
    if refused := (comb.promise.draws or frozenset()) - pipeline.parts.verifier.needs.draws:
        raise InputError(
            f"the recipe's verifier does not accept nodes drawn {', '.join(d.name.lower() for d in refused)}"
        )
    sizes = tuple(sizes)
    if sizes and max(sizes) > (most := pipeline.parts.target.context // 2):
        raise InputError(f"a tree of {max(sizes)} nodes is too large for this target: time at most {most}")
    ranks, fit, recording = Ranks(), Fit(), ForecastTree(comb)
    chain = Fixed(widths=[1] * depth, draw=draw)
    pipelines = {comb.shape.nodes: pipeline.with_parts(tree=recording), CHAIN: pipeline.with_parts(tree=chain)}
    for size in sorted({*sizes} - {comb.shape.nodes}):
        if size == 1:
            pipelines[size] = pipeline.with_parts(drafter=NoDrafter(), tree=None)
        else:
            pipelines[size] = pipeline.with_parts(tree=Fixed(paths=[str(rank) for rank in range(size - 1)], draw=draw))
    combs, turns = list[Clock](), dict[int, dict[int, float]]()  # seconds of a cycle, by the first prompt and size
    longest: list[int] = []  # by cycle
    drafting = DraftTimes()
    for size, chunk, start in take_turns(list(pipelines), prompts, pipeline.run.batch):
        clock = Clock.on(text_of(pipeline.parts.target).device)
        lengths = {start + place: len(pipeline.encode(prompt)) for place, prompt in enumerate(chunk)}
        drafting.begin(sum(lengths.values()))
        for rows, cycle in cycles_of(pipelines[size], chunk, clock, start):
            longest.append(max(lengths[row] for row in rows))
            for row, count in zip(rows, cycle.verdict.count.tolist(), strict=True):
                lengths[row] += count
            if size == comb.shape.nodes:
                ranks.add(cycle)
                recording.teach(fit, cycle)
            if size == CHAIN:
                drafting.count(clock)
        clock.settle()
        if clock.calls["score"]:  # else the first token was the last
            turns.setdefault(start, {})[size] = _cycle_seconds(clock)
            if size == comb.shape.nodes:
                combs.append(clock)
    if not all(any(size in turn for turn in turns.values()) for size in pipelines):
        raise InputError("every answer ended with its first token, so nothing was drafted; give other prompts")
    seconds = paired_medians(list(turns.values()))
    del seconds[CHAIN]
    calls = [sum(clock.calls[name] for clock in combs) for name in ("drafter", "draft")]
    block = -(-depth // max(round(calls[0] / calls[1]), 1))
    rows_together = min(pipeline.run.batch, len(prompts))
    return Profile(
        ranks=ranks,
        draft_seconds=median(drafting.passes),
        block=block,
        cycle_seconds=seconds,
        rows=rows_together,
        context=fmean(longest),
        calibration=fit.calibration,
        read_seconds=median(drafting.read),
    )


def lengthen(pipeline: Pipeline, prompts: Sequence[Prompt], context: int) -> list[Prompt]:
    """Prepends to every prompt as many of the others, from the next one on, as make it `context` tokens or longer.

    Raises InputError where all of them together are shorter.
    """
    longer: list[Prompt] = []
    for place in range(len(prompts)):
        others = [*prompts[place + 1 :], *prompts[:place]]
        count = 0
        while len(pipeline.encode(prompt := _joined(others[:count], prompts[place]))) < context:
            if count == len(others):
                raise InputError(
                    f"all prompts together have fewer than {context} tokens; give more, or a shorter context"
                )
            count += 1
        longer.append(prompt)
    return longer


def _joined(before: Sequence[Prompt], last: Prompt) -> Prompt:
    if isinstance(last, str):
        return "\n\n".join([prompt for prompt in before if isinstance(prompt, str)] + [last])
    return [token for prompt in (*before, last) for token in prompt if isinstance(token, int)]


def take_turns(
    sizes: Sequence[int], prompts: Sequence[Prompt], batch: int
) -> Iterator[tuple[int, Sequence[Prompt], int]]:
    """Yields every size with every batch of prompts, and the batch's first index; the order of sizes rotates."""
    for turn, start in enumerate(range(0, len(prompts), batch)):
        first = turn % len(sizes)
        for size in (*sizes[first:], *sizes[:first]):
            yield size, prompts[start : start + batch], start


def _cycle_seconds(clock: Clock) -> float:
    # Everything that every cycle does, the forwards of the drafter left out.
    phases = sum(clock.seconds[phase] for phase in PHASES)
    return (phases - clock.seconds["drafter"]) / clock.calls["score"]


def comb_paths(depth: int, width: int) -> list[Path]:
    """The comb to measure with: `width` children below first choices; below the r-th, from the second on, width / 2r.

    r is the product of such numbers along the path: few paths leave the first choices, fewer twice, and most not far.
    """
    paths: list[Path] = []
    level: list[Path] = [()]
    for _ in range(depth):
        level = [(*path, rank) for path in level for rank in range(_choices(path, width))]
        paths += level
    return paths


def _choices(path: Path, width: int) -> int:
    return width // 2 // prod(rank + 1 for rank in path) if any(path) else width
