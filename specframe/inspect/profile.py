"""Profile of a drafter: the acceptance of each of its choices, and the costs of forward passes.

`specframe.components.trees.optimal` computes the best tree from these two tables.
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
"""Key of the chain in which the drafter is timed, used in place of a number of nodes."""


@dataclass
class Shares:
    """Counts, by level and rank, of visits to nodes with children and of accepted children."""

    visits: list[list[int]] = field(default_factory=list)
    """visits[d][r]: number of visits by the accepted path to nodes of depth d that have a child of rank r."""
    accepted: list[list[int]] = field(default_factory=list)
    """accepted[d][r]: number of these visits in which that child was accepted. Rank is the position among siblings."""

    def count(self, level: int, siblings: int, place: int) -> None:
        """Counts a visit to a node with `siblings` children; `place` is the accepted child's rank, -1 for none."""
        for rows in (self.visits, self.accepted):
            rows.extend([] for _ in range(level + 1 - len(rows)))
            rows[level].extend([0] * (siblings - len(rows[level])))
        for rank in range(siblings):
            self.visits[level][rank] += 1
        if place >= 0:
            self.accepted[level][place] += 1

    @property
    def table(self) -> list[list[float]]:
        """Returns, by level and rank, the share of visits in which the child was accepted."""
        pairs = zip(self.accepted, self.visits, strict=True)
        return [[n / visits for n, visits in zip(*rows, strict=True)] for rows in pairs]


@dataclass
class Ranks:
    """Counts of accepted siblings by rank, over cycles.

    Nodes reached by first choices alone are counted separately from nodes below another choice. Below another choice,
    the target did not follow the drafter's first choice, so the text is harder and later nodes are accepted less often.
    """

    top: Shares = field(default_factory=Shares)
    off_path: Shares = field(default_factory=Shares)
    """Nodes below a choice other than the first; the first level has none."""

    def add(self, cycle: Cycle) -> None:
        """Adds the rows of one cycle."""
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
        """Returns, by level and rank, the share of visits below first choices in which the child was accepted."""
        return self.top.table

    @property
    def reached(self) -> list[int]:
        """Number of times, by level, that the accepted path reached a node below first choices that has children."""
        return [max(row, default=0) for row in self.top.visits]


@dataclass(frozen=True)
class Profile:
    """Measurements of a drafter on some prompts."""

    ranks: Ranks
    draft_seconds: float
    """Seconds of a drafter's forward pass, without the pass over a prompt."""
    block: int
    """Number of levels that one forward pass proposes, up to the measured depth."""
    cycle_seconds: dict[int, float]
    """Seconds of a cycle without the drafter's forward passes, by number of nodes including the root."""
    rows: int
    """Number of rows decoded together."""
    context: float
    """Length of the longest row in tokens, averaged over cycles."""
    calibration: Calibration
    """Powers of the drafter's laws that make them closest to the target's, at the temperature of decoding."""
    read_seconds: float = 0.0
    """Seconds that one prompt token adds to the drafter's first pass."""

    def fastest(self, depth: int, cycle_seconds: Mapping[int, float] | None = None) -> Choice:
        """Returns the tree with the most tokens per second among the timed sizes, with at most `depth` levels.

        `cycle_seconds`, by size, replaces the measured costs of a cycle.
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
        """Writes the acceptance tables with their counts, the costs and the calibration to a file that trees read."""
        write_json(path, self.as_data())

    def as_data(self) -> dict[str, Any]:
        """Returns the data that `write` stores; times are in seconds."""
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
    """Measures how often each choice of the pipeline's drafter is accepted, and the costs of forward passes.

    `pipeline` may be a recipe's file or name, which is then loaded.

    Decodes with a comb: a spine of first choices to `depth`, with `width` children at each of its nodes and fewer below
    those. Deeper levels are thus measured mostly where the first choices were right, and counted separately elsewhere.
    `draw` states how children are drawn; the recipe's verifier must accept it. Each of `sizes` is the node count of a
    tree to time, root included; 1 is plain decoding. The comb is always timed. The drafter's forward pass is timed in a
    chain, which some drafters search in one call, because every proposal of the comb is recorded. The trees take turns,
    prompt by prompt, because the speed of a machine drifts; `paired_medians` are reported.

    Raises InputError for a drafter that builds its own trees.
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
        if clock.calls["score"]:  # otherwise the first token was the last
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
    """Prepends other prompts to each prompt, starting with the next one, until it has at least `context` tokens.

    Raises InputError if all of them together are shorter.
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
    """Yields every size with every batch of prompts and the index of its first prompt; the order of sizes rotates."""
    for turn, start in enumerate(range(0, len(prompts), batch)):
        first = turn % len(sizes)
        for size in (*sizes[first:], *sizes[:first]):
            yield size, prompts[start : start + batch], start


def _cycle_seconds(clock: Clock) -> float:
    # Everything in a cycle except the drafter's forward passes.
    phases = sum(clock.seconds[phase] for phase in PHASES)
    return (phases - clock.seconds["drafter"]) / clock.calls["score"]


def comb_paths(depth: int, width: int) -> list[Path]:
    """Returns the comb's paths: `width` children below first choices, width / 2r below the r-th choice, r > 1.

    r is the product of the ranks along the path, so that few paths leave the first choices and fewer leave them twice.
    """
    paths: list[Path] = []
    level: list[Path] = [()]
    for _ in range(depth):
        level = [(*path, rank) for path in level for rank in range(_choices(path, width))]
        paths += level
    return paths


def _choices(path: Path, width: int) -> int:
    return width // 2 // prod(rank + 1 for rank in path) if any(path) else width
