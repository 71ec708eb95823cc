"""Forecast of a tree's acceptance, compared with the measured acceptance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from specframe.components.trees.calibration import Calibration, Fit
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.recording import Proposals, RecordingTree, paths_of
from specframe.decoding.clock import Clock
from specframe.decoding.pipeline import Pipeline, Prompt
from specframe.kernel.types import Cycle, TokenTree


@dataclass(frozen=True)
class Measured:
    """Results of decoding several prompts with a tree, by prompt."""

    cycles: Tensor  # [P]
    reached: Tensor  # [P, D] cycles whose accepted path has a node of depth 1, 2, ...
    expected_counts: Tensor | None  # [P, D] by the drafter's probabilities; None for sampled trees

    @property
    def tau(self) -> float:
        """Tokens committed per cycle, the bonus included."""
        return 1 + sum(self.alpha)

    @property
    def error(self) -> float:
        """Standard error of tau when prompts are resampled; inf for a single prompt."""
        count = len(self.cycles)
        off = self.reached.sum(1) - (self.tau - 1) * self.cycles  # [P], residuals of a ratio of sums
        spread = count / (count - 1) * float(off.square().sum()) if count > 1 else float("inf")
        return spread**0.5 / float(self.cycles.sum().clamp(min=1))

    @property
    def alpha(self) -> list[float]:
        """Share of cycles whose accepted path reached each depth."""
        return self._by_depth(self.reached)

    @property
    def expected(self) -> list[float] | None:
        """Expected share of cycles that reach each depth, by the drafter's probabilities."""
        return None if self.expected_counts is None else self._by_depth(self.expected_counts)

    def _by_depth(self, sums: Tensor) -> list[float]:
        return (sums.sum(0) / self.cycles.sum().clamp(min=1)).tolist()


def measure_tau(pipeline: Pipeline, prompts: Sequence[Prompt], calibration: Calibration | None = None) -> Measured:
    """Measures tau of the pipeline's tree on the prompts; the drafter must grow a tree policy.

    For a tree of `top` nodes, the result includes OPT-Tree's forecast (Wang et al. 2024): a node is accepted with the
    product of the drafter's probabilities along its path, so the expected number of accepted tokens is the sum of these
    products, to the extent that the drafter approximates the target's law. Probabilities are taken at temperature 1 if
    neither the tree nor the caller gives a calibration.
    """
    tree = pipeline.parts.tree
    recording = ForecastTree(tree) if tree is not None and not tree.promise.sampled else None
    if recording is not None:
        pipeline = pipeline.with_parts(tree=recording)
        calibration = (tree.calibration if isinstance(tree, Dynamic) else None) or calibration
    depth = 1
    counts: list[tuple[list[int], Tensor, Tensor | None]] = []  # rows, depths reached, depths expected
    for rows, cycle in cycles_of(pipeline, prompts, Clock()):
        expected = recording.expected(cycle.draft, calibration) if recording is not None else None
        counts.append((rows, cycle.verdict.length.cpu(), expected))
        depth = max(depth, cycle.draft.levels)
    cycles = torch.zeros(len(prompts), dtype=torch.float64)
    reached = torch.zeros(len(prompts), depth, dtype=torch.float64)
    total = torch.zeros_like(reached)
    for rows, length, expected in counts:
        index = torch.tensor(rows)
        cycles[index] += 1
        reached[index] += (torch.arange(depth) < length[:, None]).double()
        if expected is not None:
            total[index, : expected.shape[1]] += expected
    return Measured(cycles, reached, total if recording is not None else None)


def cycles_of(
    pipeline: Pipeline, prompts: Sequence[Prompt], clock: Clock, first: int = 0
) -> Iterator[tuple[list[int], Cycle]]:
    """Yields the cycles of decoding the prompts, except admissions, and each row's prompt number, from `first` on."""
    requests = pipeline.requests([pipeline.encode(prompt) for prompt in prompts], first=first)
    queue = iter(requests)
    with pipeline.open(requests, clock=clock) as session:
        while True:
            while waiting := list(islice(queue, session.free)):
                session.admit(waiting)
            if not session.live:
                return
            cycle = session.step()
            yield session.numbers, cycle


class ForecastTree(RecordingTree):
    """A recording tree policy that forecasts the acceptance of the trees it grows."""

    def expected(self, draft: TokenTree, calibration: Calibration | None = None) -> Tensor:
        """Returns the drafter's probability that each row of the last tree reaches each depth: [B, levels] float64."""
        rows = [expected_path(draft, row, record, calibration) for row, record in enumerate(self.records)]
        return torch.tensor(rows, dtype=torch.float64)

    def teach(self, fit: Fit, cycle: Cycle) -> None:
        """Adds the target's tokens at the accepted nodes of the last tree to the fit."""
        levels: dict[int, list[tuple[Tensor, int]]] = {}
        for record, tokens in zip(self.records, cycle.verdict.to_host(cycle.draft).tokens, strict=True):
            for level, token in enumerate(tokens):
                logits = record.logits_after(tuple(tokens[:level]))
                if logits is not None:
                    levels.setdefault(level, []).append((logits, token))
        for level, pairs in sorted(levels.items()):
            logits = torch.stack([logits for logits, _ in pairs])  # [M, V]
            fit.add(logits, torch.tensor([token for _, token in pairs], device=logits.device), level)


def expected_path(draft: TokenTree, row: int, record: Proposals, calibration: Calibration | None = None) -> list[float]:
    """Returns, by depth, the sum over a row's nodes of the product of probabilities along each node's path.

    Probabilities are taken at temperature 1 or calibrated. The drafter must have proposed children for the parent of
    every node.
    """
    paths, valid = paths_of(draft, row), draft.valid[row].tolist()
    laws: dict[tuple[int, ...], Tensor] = {}
    value: dict[tuple[int, ...], float] = {(): 1.0}
    total = [0.0] * draft.levels
    for path, real in zip(paths[1:], valid[1:], strict=True):
        if real and path not in value:
            parent, level = path[:-1], len(path) - 1
            if parent not in laws:
                logits = record.logits_after(parent)
                assert logits is not None, "a tree policy drafts what its drafter proposed"
                laws[parent] = (logits.double() * (calibration.power(level) if calibration else 1.0)).softmax(-1)
            value[path] = value[parent] * float(laws[parent][path[-1]])
            total[level] += value[path]
    return total
