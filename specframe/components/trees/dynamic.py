"""EAGLE-2's dynamic tree: the drafter's most probable paths within a node budget, chosen in every cycle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from specframe.components.trees.calibration import Calibration, read_calibration
from specframe.components.trees.candidates import Candidates, tree_of
from specframe.components.trees.growth import Growth
from specframe.kernel.capabilities import Promise
from specframe.kernel.costs import Costs, added
from specframe.kernel.errors import InputError
from specframe.kernel.types import BeamSearch, Context, Draw, Expand, Frontier, Proposal, TokenTree
from specframe.native.argmax import likely
from specframe.neural.transfer import tensor_on


class Dynamic:
    """The `nodes` most probable nodes of a beam search below the root (Li et al. 2024, EAGLE-2, section 4).

    The best `width` nodes of a level become the parents of the next, with `width` children each; after `depth` levels
    all candidates, including those that were not expanded, are ranked again and the best `nodes` stay. `nodes` does not
    count the root, so a tree has `nodes` + 1 nodes (fewer only if depth, width and vocabulary yield fewer candidates).
    A node's value is the probability of its path under the raw logits, at temperature 1: the temperature and truncation
    of sampling do not affect which nodes are worth scoring.

    Siblings are ordered by descending probability. All nodes are `top`: the choice depends on the drafter's logits.

    If a recipe has `run.costs`, a cycle drafts and scores only what pays on the machine: a level is drafted if its
    expected tokens exceed those of decoding without drafts in the time of a drafter's forward pass, and the most
    probable nodes are scored as long as further nodes gain more than they cost. `nodes`, `depth` and `width` are then
    upper limits. Without costs the size is constant. If rows choose together and the time of a pass depends on real
    nodes alone, the nodes of all rows compete (TETRIS, Wu et al. 2025): the most probable ones are scored.

    With `width` as large as `nodes` the search is exhaustive: the tree has the largest expected number of accepted
    tokens under the drafter's probabilities. That is OPT-Tree (Wang et al. 2024), which also stops drafting once a
    level adds no more than a threshold, `gain`, to that number.

    The drafter's probabilities differ from the acceptance rates, most of all under greedy decoding. A `calibration`,
    measured by `specframe profile`, raises the drafter's laws to powers that correct for this.

    Options:
        depth: the largest number of levels to draft
        width: parents per level, and children per parent
        nodes: number of drafted tokens that the target scores, without the root
        gain: drafting ends after a level that adds no more expected tokens than this; 0 drafts all levels
        calibration: the powers of the drafter's laws by level, or a file of `specframe profile --out` with them
    """

    def __init__(
        self,
        *,
        depth: int = 4,
        width: int = 4,
        nodes: int = 16,
        gain: float = 0.0,
        calibration: list[float] | Path | None = None,
    ) -> None:
        if min(depth, width, nodes) < 1:
            raise InputError(
                f"a dynamic tree needs depth, width and nodes of at least 1, got {depth}, {width} and {nodes}"
            )
        if gain < 0:
            raise InputError(f"a gain is a number of tokens of at least 0, got {gain}")
        self.depth = depth
        self.width = min(width, nodes)  # only the best `nodes` of a level can be among the best of all
        self.gain = gain
        self.calibration: Calibration | None = None
        if calibration is not None:
            self.calibration = (
                read_calibration(calibration) if isinstance(calibration, Path) else Calibration(tuple(calibration))
            )
        self.budget = min(nodes, self.width + (depth - 1) * self.width**2)
        self.nodes = self.budget + 1
        self.promise = Promise(frozenset({Draw.TOP}), self.nodes, depth)
        self._planned: BeamSearch | None = None  # for the last cycle's costs, which are usually the next one's, too

    def smaller(self) -> Dynamic:
        """A copy of this policy with at most two levels, two children a node and four drafted nodes."""
        calibration = list(self.calibration.powers) if self.calibration is not None else None
        most = (min(self.depth, 2), min(self.width, 2), min(self.budget, 4))
        return Dynamic(depth=most[0], width=most[1], nodes=most[2], gain=self.gain, calibration=calibration)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The tree below root [B]: `nodes` nodes, or as many as pay under the context's costs."""
        if not root.is_cpu:
            return self.search(expand, root)
        if context.costs is not None and not context.costs.drafts_now():
            return TokenTree.root_only(root)
        record = context.costs.record if context.costs is not None else None
        if context.search is not None:
            tree, _ = context.search(self.plan(context.costs), root)
        else:
            tree = self.search_on_host(expand, root, context.costs)
        if record is not None and not tree.levels:
            record.add(len(root), 0, 0, 1)
        return tree

    def plan(self, costs: Costs | None = None) -> BeamSearch:
        """Returns the parameters of the search, for drafters that run it themselves."""
        if self._planned is None or self._planned.costs is not costs:
            powers = None
            if self.calibration is not None:
                powers = tuple(map(self.calibration.power, range(self.depth)))
            self._planned = BeamSearch(self.depth, self.width, self.nodes, self.gain, powers, costs)
        return self._planned

    def search_on_host(self, expand: Expand, root: Tensor, costs: Costs | None = None) -> TokenTree:
        """The tree of `search`, or the part of it that pays.

        Copies every proposal to the host, which is free if the tensors are on the CPU.
        """
        rows = [Candidates(token) for token in root.tolist()]
        level, expected = 0, [1.0] * len(rows)
        while True:
            size, width = len(rows[0].grown), rows[0].width
            growing = tree_of(rows, [row.grown for row in rows], level, root)
            beam = torch.arange(size - width, size, device=root.device).expand(len(rows), -1)
            gains, tokens = self._children(expand(Frontier(growing, beam)), level)
            proposed = [*zip(rows, gains.tolist(), tokens.tolist(), strict=True)]
            for row in rows:
                row.expanded()
            for j in range(gains.shape[2]):
                for row, row_gains, row_tokens in proposed:
                    row.add(row_gains, row_tokens, j)
                level += 1
                if self.gain:
                    for index, row in enumerate(rows):
                        before, expected[index] = expected[index], row.expected_tokens(self.nodes)
                        row.ended = expected[index] - before <= self.gain
                if costs is not None and j == gains.shape[2] - 1:
                    self._end(rows, costs, j + 1)
                if level == self.depth or all(row.ended for row in rows):
                    return self._drafted(rows, level, root, costs)
                width = self._width(rows, costs)
                for row in rows:
                    row.choose(width)

    def _end(self, rows: list[Candidates], costs: Costs, levels: int) -> None:
        """Ends rows in which another forward pass of the drafter, over `levels` levels, gains less than it costs."""
        counts = self._counts(rows, costs)
        gains = [row.promising(count, levels) for row, count in zip(rows, counts, strict=True)]
        if costs.record is not None:
            gains = [added(gains) / len(rows)] * len(rows)
        nodes = costs.further([count - 1 for count in counts])
        for row, node, gain in zip(rows, nodes, gains, strict=True):
            row.ended = row.ended or gain <= costs.level + node

    def _width(self, rows: list[Candidates], costs: Costs | None) -> int:
        """Number of nodes of the newest level to expand in each row.

        With costs per row, it is the largest number of such nodes worth scoring in any row: descendants of the others
        are no more likely than these nodes.
        """
        if costs is None or not costs.ragged:
            return self.width
        paying = max(row.newest(count) for row, count in zip(rows, self._counts(rows, costs), strict=True))
        return min(max(paying, 1), self.width)

    def _counts(self, rows: list[Candidates], costs: Costs | None) -> list[int]:
        """Number of candidates to score in each row, the root included."""
        if costs is None:
            return [self.nodes] * len(rows)
        return [1 + count for count in costs.counts([row.chances(self.nodes) for row in rows])]

    def _drafted(self, rows: list[Candidates], levels: int, root: Tensor, costs: Costs | None) -> TokenTree:
        """The tree of every row's best candidates."""
        counts = self._counts(rows, costs)
        ranked = [row.best(max(counts)) for row in rows]
        best = [sorted(row[:count]) + sorted(row[count:]) for row, count in zip(ranked, counts, strict=True)]
        valid = [
            [real and place < count for place, real in enumerate(row.reached(chosen))]
            for row, chosen, count in zip(rows, best, counts, strict=True)
        ]
        draft = tree_of(rows, best, min(levels, len(best[0]) - 1), root)
        return draft if all(map(all, valid)) else replace(draft, valid=tensor_on(root.device, valid))

    def search(self, expand: Expand, root: Tensor) -> TokenTree:
        """The tree below root [B], searched on the device of root, without host synchronisation unless `gain` is set.

        The growing tree, which drafters see, holds only the parents: the root, then each level's beam.
        Candidate 0 is the root, the others are numbered in order of creation, so candidate c is a child of
        the growing tree's node (c - 1) // width, and every parent has a smaller number than its children.
        """
        growth = Growth(root)
        beam = torch.zeros_like(root)[:, None]  # [B, W] nodes of the growing tree
        value = torch.zeros_like(beam, dtype=torch.float64)  # [B, W] log-probability of the beam's paths
        tokens, values = [root[:, None]], [value]
        born = [torch.full_like(beam, -1), beam]  # candidate number of each node of the growing tree, after a first -1
        total = 1
        expected: Tensor | float = 1.0  # [B] expected tokens of the best nodes so far
        ended: Tensor | None = None  # [B]
        while True:
            gains, choices = self._children(expand(Frontier(growth.tree, beam)), growth.levels)
            width = choices.shape[-1]
            origin: Tensor | None = None  # [B, W] the frontier node above each beam node; None: itself
            for gain, choice in zip(gains.unbind(2), choices.unbind(2), strict=True):  # [B, F, width]
                if origin is not None:
                    rows = origin[:, :, None].expand(-1, -1, width)
                    gain, choice = gain.gather(1, rows), choice.gather(1, rows)
                level_values, level_tokens = (gain + value[:, :, None]).flatten(1), choice.flatten(1)  # [B, W * width]
                if ended is not None:
                    level_values = level_values.masked_fill(ended[:, None], -torch.inf)
                values.append(level_values)
                tokens.append(level_tokens)
                if self.gain:
                    before, expected = expected, _expected_tokens(values, self.nodes)
                    ended = expected - before <= self.gain  # and stays so: an ended row adds nothing
                if len(values) > self.depth or (ended is not None and bool(ended.all())):
                    return self._best(tokens, values, born, width)
                best = _largest(level_values, self.width)  # [B, W']
                parent = best // width
                value = level_values.gather(1, best)
                growth.add(level_tokens.gather(1, best), beam.gather(1, parent))
                first = growth.size - best.shape[1]
                beam = torch.arange(first, growth.size, device=root.device).expand_as(best)
                born.append(best + total)
                origin = parent if origin is None else origin.gather(1, parent)
                total += level_values.shape[1]

    def _children(self, proposal: Proposal, level: int) -> tuple[Tensor, Tensor]:
        """The most probable tokens of the proposed levels below `level`: log-probabilities and tokens.

        [B, F, K, width] each, where K is at most the number of missing levels. Computed at temperature 1
        or with the calibration, in float32 or better.
        """
        logits = proposal.logits
        if logits.shape[2] > self.depth - level:
            logits = logits[:, :, : self.depth - level]
        if self.calibration is not None:
            logits = self.calibration.sharpen(logits.to(torch.promote_types(logits.dtype, torch.float32)), level)
        gains, columns = likely(logits, min(self.width, logits.shape[-1]))
        return gains, proposal.tokens(columns)

    def _best(self, tokens: list[Tensor], values: list[Tensor], born: list[Tensor], width: int) -> TokenTree:
        """The tree of the root and the best candidates.

        A parent has no smaller value and a smaller number than its children, so it is among the best if they are.
        """
        every = torch.cat(values, 1)
        chosen = _largest(every, self.nodes).sort().values  # [B, n]
        parents = torch.cat(born, 1).gather(1, (chosen + (width - 1)) // width)  # the candidates' parents
        return TokenTree(
            tokens=torch.cat(tokens, 1).gather(1, chosen),
            parent=torch.searchsorted(chosen, parents, right=True) - 1,
            valid=every.gather(1, chosen) > -torch.inf,
            draw=torch.zeros_like(chosen),
            levels=min(len(values) - 1, self.budget),
        )


def _expected_tokens(values: list[Tensor], count: int) -> Tensor:
    """The expected number of accepted tokens among the best `count` candidates, [B]."""
    every = torch.cat(values, 1)
    return every.topk(min(count, every.shape[1])).values.exp().sum(1)


def _largest(values: Tensor, count: int) -> Tensor:
    """The indices of the largest values [B, n], best first; ties in order of index."""
    return values.sort(dim=1, descending=True, stable=True).indices[:, :count]
